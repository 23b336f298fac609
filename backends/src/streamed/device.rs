//! An opened device, and what its streams and its memory share.

use std::sync::Arc;

use spoc_driver::{Error, ErrorKind, MemoryInfo, Result};

use super::context::Context;
use super::counters::Counters;
use super::error::{OUT_OF_MEMORY, SUCCESS, kind_of};
use super::flavour::Traits;
use super::host::Registrations;
use super::module::Modules;
use super::reaper::Reaper;
use super::stream::{Lane, Lanes};
use super::survey::Found;
use super::table::{Code, Table};
use super::trial::Findings;
use super::vmm;

const ALLOCATING: &str = "allocating device memory";

/// An opened device.
pub(crate) struct Device {
    pub(crate) shared: Arc<Shared>,
    pub(crate) findings: Findings,
}

/// What everything made by a device refers to.
pub(crate) struct Shared {
    pub(crate) found: Found,
    /// Ranges of host memory that are registered, for all devices of the backend.
    pub(crate) registrations: Arc<Registrations>,
    pub(crate) counters: Arc<Counters>,
    /// What sizes of mapped memory are multiples of; 1 where the device maps none.
    pub(crate) granule: u64,
    /// What the context has loaded, for all openings of the device.
    pub(crate) modules: Arc<Modules>,
    /// The streams of this opening.
    lanes: Lanes,
    // These two last, and in this order: what is still to be freed needs the context.
    pub(crate) reaper: Reaper,
    pub(crate) context: Arc<Context>,
}

impl Shared {
    pub(crate) fn new(
        context: Arc<Context>,
        found: Found,
        registrations: Arc<Registrations>,
        counters: Arc<Counters>,
        modules: Arc<Modules>,
    ) -> Result<Arc<Self>> {
        let granule = if found.facts.virtual_memory { vmm::granule(&context)? } else { 1 };
        let reaper = Reaper::start(&context)?;
        let lanes = Lanes::default();
        Ok(Arc::new(Self { found, registrations, counters, granule, modules, lanes, reaper, context }))
    }

    /// What is particular to the API.
    pub(crate) fn traits(&self) -> &'static Traits {
        self.context.api.flavour.traits()
    }

    /// Notes a stream that [`Shared::synchronize`] has to wait for, and freeing.
    pub(crate) fn add(&self, lane: &Arc<Lane>) {
        self.lanes.add(lane);
        self.context.lanes.add(lane);
    }

    /// Waits for every stream of this opening. Not for the context: others may use it, too.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let mut outcome = Ok(());
        for lane in self.lanes.live() {
            // The others are waited for all the same.
            outcome = outcome.and(lane.synchronize());
        }
        outcome
    }

    /// What the driver says is free, and what is on its way to be.
    pub(crate) fn memory(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0_usize, 0_usize);
        {
            let _here = self.context.enter()?;
            // SAFETY: the places are valid, and the context is current.
            let code = unsafe { (self.context.api.library.memory_info)(&raw mut free, &raw mut total) };
            self.context.api.check(code, "asking for a device's memory")?;
        }
        let total_bytes = total as u64;
        let free_bytes = (free as u64).saturating_add(self.reaper.pending_bytes()).min(total_bytes);
        Ok(MemoryInfo { free_bytes, total_bytes })
    }

    /// Takes device memory by a call that is told how many bytes. The context is current for it.
    ///
    /// # Errors
    /// `OutOfDeviceMemory`; what the API answers.
    pub(crate) fn take<T>(&self, len_bytes: u64, call: impl Fn(&Table, usize) -> (Code, T)) -> Result<T> {
        let api = &self.context.api;
        let len = usize::try_from(len_bytes).unwrap_or(usize::MAX);
        let call = || self.context.enter().map(|_here| call(&api.library, len));
        let (mut code, mut memory) = call()?;
        if code == OUT_OF_MEMORY && self.reaper.pending_bytes() > 0 {
            // What was given up but is not free yet may be enough.
            self.reaper.drain();
            (code, memory) = call()?;
        }
        match code {
            SUCCESS => Ok(memory),
            OUT_OF_MEMORY => Err(self.out_of_memory(len_bytes)),
            _ => Err(api.error(kind_of(code), code, ALLOCATING)),
        }
    }

    /// The error of an allocation of device memory that found too little.
    pub(crate) fn out_of_memory(&self, need_bytes: u64) -> Error {
        let have_bytes = self.memory().map_or(0, |memory| memory.free_bytes);
        Error::new(ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes }, ALLOCATING)
    }
}
