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

#[test]
fn rule_24_memory_of_buffers_over_host_memory_is_measured_against_that_of_separate_ones() {
    let arguments = ["--mib", "64", "--backend", "native"];
    let answer = answer_of(env!("CARGO_BIN_EXE_opencl_host_ptr"), &arguments);
    for line in ["64 MiB, InPlace: VmRSS grew by", "64 MiB, Separate: VmRSS grew by"] {
        assert!(answer.contains(line), "{line} is missing in {answer}");
    }
}

#[test]
fn rule_27_chains_of_launches_are_measured() {
    let arguments = ["--runs", "2", "--launches", "50", "--backend", "interpreter"];
    let answer = answer_of(env!("CARGO_BIN_EXE_launch_chain"), &arguments);
    assert!(answer.contains("interpreter: µs a launch: median"), "{answer}");
}
