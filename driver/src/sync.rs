//! The locks of the driver, and the counters of its ledger and registry: the standard library's, or, under
//! `--cfg shuttle`, ones that let `driver/tests/shuttle.rs` choose how threads interleave.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard, atomic};
