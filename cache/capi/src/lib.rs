//! The C ABI of the cache: what `include/spoc_cache.h` declares, and nothing else.
//!
//! Every exported function goes through [`entry::run`]: a panic becomes `SPOC_ERROR_INTERNAL`, an error its code and
//! a message of the calling thread. Handles are numbers that the [`handles`] table knows, so one that is closed,
//! foreign or of another type is an error and touches no memory. What a caller can get wrong unnoticed is only what C
//! cannot show: a pointer that is not null and does not point to what the header says.
//!
//! Nothing of this is meant for Rust callers, who link the crate below.

#![allow(non_camel_case_types)] // names are the header's
#![allow(clippy::missing_safety_doc)] // the header's first page says what every pointer must be

mod args;
mod cache;
mod device;
mod entry;
mod events;
mod failure;
mod handles;
mod lease;
mod load;
mod model;
mod pump;
mod stats;
mod status;
mod stream;
mod version;
mod wants;
