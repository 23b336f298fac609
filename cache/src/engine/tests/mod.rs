//! The core against a small reference and the deferred fake, under random schedules in one thread.

mod harness;
mod readers;
mod reference;
mod schedules;
mod single;
mod wild;
