//! `doctor` and `devices`, whatever machine they run on.

mod common;

use common::{Place, answer, output, stdout};
use serde_json::Value;

#[test]
fn doctor_gives_each_finding_a_status_and_each_problem_a_fix() {
    let place = Place::new();
    let run = output(place.loader().args(["doctor", "--json"]).arg(place.path("")));
    assert!(matches!(run.status.code(), Some(0 | 1)), "{run:?}");
    let report: Value = serde_json::from_str(&stdout(&run)).expect("one JSON value");
    let findings = report["findings"].as_array().expect("findings");
    let mut failed = 0;
    for finding in findings {
        let status = finding["status"].as_str().expect("status");
        assert!(["ok", "warn", "fail", "unknown"].contains(&status), "{finding}");
        assert!(
            finding["found"].as_str().is_some_and(|text| !text.is_empty() && !text.contains('\n')),
            "{finding}"
        );
        assert_eq!(finding["fix"].is_string(), status != "ok", "{finding}");
        failed += u64::from(status == "fail");
    }
    assert_eq!(report["fail"].as_u64(), Some(failed));
    assert_eq!(run.status.code(), Some(i32::from(failed > 0)));
    for check in [
        "storage.file_system",
        "storage.direct_io",
        "kernel.io_uring_disabled",
        "io_uring",
        "seccomp",
        "limits.memlock",
        "memory.transparent_huge_pages",
        "memory.shared_huge_pages",
        "memory.numa",
        "memory.cgroup_limit",
        "module.nvidia",
        "module.nvidia_uvm",
        "module.nvidia_fs",
        "module.amdgpu",
        "module.kfd",
    ] {
        assert!(findings.iter().any(|finding| finding["check"] == check), "{check} is missing");
    }
}

#[test]
fn devices_lists_the_host_and_says_why_the_rest_is_missing() {
    let place = Place::new();
    let listing = answer(place.loader().args(["devices", "--json"]));
    let devices = listing["devices"].as_array().expect("devices");
    let native = devices.iter().find(|device| device["backend"] == "native").expect("native is always there");
    assert!(native["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 0));
    assert!(native["uuid"].as_str().is_some_and(|uuid| uuid.len() == 36));
    assert_eq!(native["index"], 0);
    for missing in listing["missing"].as_array().expect("missing") {
        assert!(missing["reason"].as_str().is_some_and(|reason| !reason.is_empty()), "{missing}");
    }
    let table = stdout(&output(place.loader().args(["devices", "--matrix"])));
    let launch = table.lines().find(|line| line.starts_with("| `launch` |")).expect("a row for each");
    assert!(launch.contains('✓'), "{table}");
    assert!(table.contains("- native 0: ") && table.contains("Asked on 20"), "{table}");
    let text = stdout(&output(place.loader().arg("devices")));
    assert!(text.contains("native"), "{text}");
}

#[test]
fn every_command_has_help() {
    let place = Place::new();
    for command in [
        &["demo"][..],
        &["load"],
        &["inspect"],
        &["devices"],
        &["doctor"],
        &["bench", "read"],
        &["bench", "link"],
    ] {
        let run = output(place.loader().args(command).arg("--help"));
        assert!(run.status.success() && stdout(&run).contains("Usage: spoc-loader"), "{command:?}");
    }
    assert!(output(place.cachestat().arg("--help")).status.success());
}
