//! `selftest`, on the devices that are everywhere.

mod common;

use common::{Place, answer, output, stderr, stdout};

#[test]
fn every_check_holds_or_is_refused_on_the_devices_that_are_everywhere() {
    let place = Place::new();
    for backend in ["native", "interpreter"] {
        let report = answer(place.loader().args(["selftest", "--json", "--backend", backend]));
        assert_eq!(report["failed"], 0, "{report}");
        let devices = report["devices"].as_array().expect("devices");
        assert_eq!((devices.len(), &devices[0]["backend"]), (1, &backend.into()));
        let checks = devices[0]["checks"].as_array().expect("checks");
        for (check, is_offered) in [
            ("memory", true),
            ("copies", true),
            ("batches", true),
            ("pinned", true),
            ("staging", true),
            ("events", true),
            ("launches", true),
            ("load", true),
        ] {
            let line = checks.iter().find(|line| line["check"] == check).expect(check);
            let verdict = if is_offered { "ok" } else { "refused" };
            assert_eq!(line["verdict"], verdict, "{backend}: {line}");
            assert!(line["note"].as_str().is_some_and(|note| !note.is_empty()), "{line}");
        }
    }
}

#[test]
fn the_block_can_be_posted_as_it_is() {
    let place = Place::new();
    let run = output(place.loader().args(["selftest", "--backend", "native"]));
    assert_eq!(run.status.code(), Some(0), "{}", stderr(&run));
    let text = stdout(&run);
    let block = text.split("```").nth(1).expect("a fenced block");
    assert!(block.starts_with("text\nspoc-loader selftest "), "{text}");
    assert!(block.contains("\nnative 0: ") && block.trim_end().ends_with("nothing failed"), "{text}");
    assert_eq!(text.matches("```").count(), 2);
    // Nothing of the temporary files is left, nor told.
    assert!(!block.contains("spoc-selftest-"), "{text}");
}

#[test]
fn what_is_not_there_is_refused_with_its_reason() {
    let place = Place::new();
    let run = output(place.loader().args(["selftest", "--backend", "metal"]));
    assert_eq!(run.status.code(), Some(2));
    assert!(stderr(&run).contains("Metal exists on macOS only"), "{}", stderr(&run));
    let run = output(place.loader().args(["selftest", "--backend", "abacus"]));
    assert!(stderr(&run).contains("expected one of"), "{}", stderr(&run));
}
