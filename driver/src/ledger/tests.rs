use super::*;

#[test]
fn only_asynchronous_failures_and_lost_devices_are_sticky() {
    let of = |kind| is_asynchronous(&Error::new(kind, "testing"));
    assert!(of(ErrorKind::AsyncFailure) && of(ErrorKind::DeviceLost) && of(ErrorKind::ProcessLost));
    assert!(!of(ErrorKind::Backend) && !of(ErrorKind::Capturing) && !of(ErrorKind::Os));
}

#[test]
fn an_error_of_a_query_says_nothing_about_the_work_unless_it_is_asynchronous() {
    assert!(is_over(&Ok(true)) && !is_over(&Ok(false)));
    assert!(!is_over(&Err(Error::new(ErrorKind::Backend, "testing"))));
    assert!(is_over(&Err(Error::new(ErrorKind::AsyncFailure, "testing"))));
}
