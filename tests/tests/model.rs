//! Random programs on every backend, against a reference of a few lines.

// Helpers of tests stop with a message, as tests do.
#![allow(clippy::expect_used, clippy::panic, clippy::print_stderr)]

use proptest::test_runner::{Config, TestRunner};
use spoc_tests::{Platform, model};

/// Runs `cases` random programs; a program that fails is made as small as possible and printed.
fn agree(platform: Platform, cases: u32, len: usize) {
    let bench = match platform.bench() {
        Ok(bench) => bench,
        Err(reason) => {
            assert!(!platform.is_required(), "{} is required: {reason}", platform.kind);
            eprintln!("not run: {}: {reason}", platform.kind);
            return;
        }
    };
    let granule = platform.granule(&bench).expect("the devices open");
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: 100_000,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&model::programs(len, granule), |program| {
        // A fresh bench each: the fake's machine remembers.
        let bench = platform.deferred_bench().expect("it was there a moment ago");
        model::run(&bench, &program);
        Ok(())
    });
    if let Err(failure) = outcome {
        panic!("{}: {failure}", platform.kind);
    }
}

#[test]
fn native_agrees_with_the_reference() {
    agree(Platform::native(), 150, 80);
}

#[test]
fn the_deferred_fake_agrees_with_the_reference() {
    agree(Platform::fake(), 400, 120);
}

#[test]
fn the_interpreter_agrees_with_the_reference() {
    agree(Platform::interpreter(), 150, 80);
}

#[test]
fn opencl_agrees_with_the_reference() {
    agree(Platform::opencl(), 60, 60);
}

#[test]
fn vulkan_agrees_with_the_reference() {
    agree(Platform::vulkan(), 60, 60);
}

#[test]
fn webgpu_agrees_with_the_reference() {
    agree(Platform::webgpu(), 60, 60);
}

#[test]
fn metals_adapter_over_a_double_agrees_with_the_reference() {
    agree(Platform::metal_double(), 60, 60);
}

#[test]
fn programs_print_as_source() {
    use proptest::strategy::{Strategy, ValueTree};
    let tree = model::programs(40, 1).new_tree(&mut TestRunner::deterministic()).expect("a program");
    let text = format!("{:?}", tree.current());
    assert!(text.lines().skip(1).all(|line| line.starts_with("    ") && line.contains(';')), "{text}");
}
