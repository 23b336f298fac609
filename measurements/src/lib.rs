//! What the measurements share: order statistics, the machine's description, cold files, a steady disk.
//!
//! A measurement asks one question, interleaves what it compares, and prints medians with an interval,
//! because the machines at hand are shared and drift by a factor of two within minutes.
#![forbid(unsafe_code)]
#![allow(clippy::print_stderr, clippy::print_stdout, reason = "a measurement prints what it found")]

pub mod cold;
pub mod device;
pub mod machine;
pub mod stats;
