//! Adapters of APIs of one shape: a driver with contexts, streams and events, whose functions correspond one to one.
//!
//! CUDA and HIP are such. What both do is here, written once over a [table](table) of functions and what the
//! [flavour](flavour) says of the rest; an adapter's own folder says how its functions are called, what its numbers
//! are, and how its kernels are compiled.

pub(crate) mod adapter;
pub(crate) mod carry;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod counters;
pub(crate) mod device;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod files;
pub(crate) mod first;
pub(crate) mod flavour;
pub(crate) mod gate;
pub(crate) mod host;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod reaper;
pub(crate) mod rtc;
pub(crate) mod share;
pub(crate) mod stream;
pub(crate) mod survey;
pub(crate) mod table;
pub(crate) mod trial;
pub(crate) mod vmm;

use std::ffi::c_int;

use spoc_driver::backend::{Probed, erase};

pub use self::counters::{CounterReader, Counts};

/// Starts an API that has been loaded, and looks for devices. Opens none.
///
/// # Errors
/// Why there is none, for the person who expected one.
pub(crate) fn start<F: adapter::Family>(
    library: table::Table,
    flavour: Box<dyn flavour::Flavour>,
    version: c_int,
) -> Result<(Probed, CounterReader), String> {
    let name = flavour.traits().name;
    let api = error::Api::new(library, flavour, version);
    let found = survey::Found::all(&api).map_err(|error| format!("no {name} device: {error}"))?;
    if found.is_empty() {
        return Err(format!("no {name} device: the driver lists none"));
    }
    let adapter = adapter::Adapter::<F>::new(api, found);
    let reader = adapter.counters();
    Ok((erase(adapter), reader))
}
