//! Tests that cross rooms.
//!
//! - [`conformance!`] stamps every check of the transfer contract on a backend. A check is one function
//!   over a [`Subject`]; it is written against the driver's public surface and knows no adapter.
//! - [`model`] runs random programs against a reference of a few lines.
//!
//! A check that needs what a device does not offer demands the right refusal instead. Nothing is skipped
//! in silence: an absent backend says `not run: reason`, and `SPOC_REQUIRE=opencl,vulkan` makes it fail.

// A library of tests: stopping with a message is what it is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

pub mod checks;
mod gate;
mod helpers;
mod hold;
pub mod model;
mod platform;
pub mod record;
mod run;
mod stamp;
mod stepper;
mod subject;

pub use helpers::{Drops, Watched, pattern, refused};
pub use hold::{Hold, HoldWay};
pub use platform::{Bench, Offer, Platform, Table};
pub use run::run;
pub use stamp::{CHECKS, Check, FUNCTIONS};
pub use stepper::Stepper;
pub use subject::Subject;
