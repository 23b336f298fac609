//! The programs that measure rules of the transfer contract run on the native backend and say what they were asked.
#![allow(clippy::unwrap_used)]

use std::process::Command;

fn answer_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn rule_30_registering_is_measured_by_preparation_with_and_without_pressure() {
    let program = env!("CARGO_BIN_EXE_register_host");
    let answer = answer_of(program, &["--passes", "2", "--mib", "4", "--pressure-mib", "8"]);
    for pressure in ["false", "true"] {
        for preparation in ["Touched", "Untouched", "Populated", "Allocated"] {
            let line = format!("pressure {pressure}, {preparation}: pin");
            assert!(answer.contains(&line), "{line} is missing in {answer}");
        }
    }
    assert!(answer.contains("VmPin"), "{answer}");
}

#[test]
fn rule_28_pinned_copies_are_measured_against_ordinary_ones_in_both_directions() {
    let answer = answer_of(env!("CARGO_BIN_EXE_vulkan_pinned_copy"), &["--passes", "2", "--mib", "4"]);
    for line in ["up pinned", "up ordinary", "down pinned", "down ordinary", "up   pinned / ordinary median"]
    {
        assert!(answer.contains(line), "{line} is missing in {answer}");
    }
}
