//! A page's life as other processes see it.

#![allow(clippy::expect_used)]

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use spoc_page::{Page, PageName, View};

fn only_file(dir: &Path) -> Option<String> {
    let mut names = std::fs::read_dir(dir).expect("list").map(|item| item.expect("item").file_name());
    let name = names.next()?.into_string().expect("utf-8");
    assert!(names.next().is_none());
    Some(name)
}

#[test]
fn invisible_until_published_and_gone_when_dropped() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let page = Page::create_in(dir.path(), 512).expect("page");
    assert_eq!(only_file(dir.path()), None);
    page.words()[7].store(41, Relaxed);
    let path = page.publish().expect("publish").to_path_buf();
    assert_eq!(page.publish().expect("again"), path);
    let name = PageName::parse(&only_file(dir.path()).expect("one file")).expect("a page's name");
    assert_eq!(name.process.pid, std::process::id());

    let view = View::open(&path).expect("view");
    assert!(view.is_live().expect("lock"));
    page.words()[8].store(u64::MAX, Relaxed);
    let words = view.words().expect("words");
    let seen = |at: usize| words[at].load(Relaxed);
    assert_eq!((words.len(), seen(7), seen(8), seen(9)), (512, 41, u64::MAX, 0));
    page.words()[9].store(9, Relaxed);
    assert_eq!(seen(9), 9, "a view is live");
    words[8].store(5, Relaxed);
    assert_eq!(page.words()[8].load(Relaxed), u64::MAX, "a view's stores reach nobody");

    drop(page);
    assert_eq!(only_file(dir.path()), None);
    assert!(!view.is_live().expect("lock"));
    view.words().expect("an unlinked page stays readable");
}

#[test]
fn mode_is_private_and_pages_of_one_process_differ() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("temporary folder");
    let first = Page::create_in(dir.path(), 1).expect("page");
    let second = Page::create_in(dir.path(), 1).expect("page");
    let path = first.publish().expect("publish").to_path_buf();
    assert_ne!(path, second.publish().expect("publish"));
    assert_eq!(std::fs::metadata(path).expect("meta").permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_truncated_page_is_an_error_and_not_a_signal() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let path = dir.path().join("1-2-00000000000000000000000000000003-0.page");
    std::fs::write(&path, vec![1u8; 3 * 4096]).expect("write");
    let view = View::open(&path).expect("view");
    std::fs::OpenOptions::new().write(true).open(&path).expect("open").set_len(4096).expect("truncate");
    let error = view.words().expect_err("shorter than mapped");
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn what_is_no_page_is_refused() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("empty"), b"").expect("write");
    std::fs::write(at("odd"), b"123456789").expect("write");
    std::fs::write(at("good"), b"12345678").expect("write");
    std::os::unix::fs::symlink(at("good"), at("link")).expect("link");
    for name in ["empty", "odd", "link", "missing", "."] {
        assert!(View::open(&at(name)).is_err(), "{name}");
    }
    assert!(View::open(&at("good")).is_ok());
    assert!(Page::create_in(dir.path(), 0).is_err());
    assert!(Page::create_in(&at("missing"), 1).is_err());
}
