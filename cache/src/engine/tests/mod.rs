//! The core against a small reference and the deferred fake, under random schedules in one thread; its readers under
//! chosen interleavings of several (`--cfg shuttle`, where nothing else runs).

mod harness;
#[cfg(shuttle)]
mod interleavings;
#[cfg(not(shuttle))]
mod readers;
#[cfg(not(shuttle))]
mod reference;
#[cfg(not(shuttle))]
mod schedules;
#[cfg(not(shuttle))]
mod single;
#[cfg(not(shuttle))]
mod tier;
#[cfg(not(shuttle))]
mod wild;
#[cfg(not(shuttle))]
mod words;
