//! What a device can do, found by doing it once. Nothing here waits for the device.

use std::sync::Arc;

use spoc_driver::backend::Verdict;
use spoc_driver::{Error, HostBuffer, HostMemoryOptions, Result};

use super::device::Shared;
use super::host::HostMemory;
use super::reaper::{Address, Doomed};
use super::share;

/// What the trial found.
#[derive(Clone)]
pub(crate) struct Findings {
    pub(crate) pinned_alloc: Verdict,
    pub(crate) host_register: Verdict,
    pub(crate) write_value: Verdict,
    pub(crate) wait_value: Verdict,
    pub(crate) export_memory: Verdict,
    pub(crate) import_memory: Verdict,
}

/// Tries what some devices or drivers do not do.
pub(crate) fn run(shared: &Arc<Shared>) -> Findings {
    let words = |is_there: bool| {
        if !shared.found.facts.words {
            Verdict::unavailable("the device's streams neither write nor wait for words of 64 bits")
        } else if !is_there {
            Verdict::unavailable(shared.traits().words_since)
        } else {
            Verdict::Available
        }
    };
    let api = &shared.context.api;
    let (export_memory, import_memory) = share::verdicts(shared);
    Findings {
        export_memory,
        import_memory,
        // Freed on the reaper's thread, as all pinned memory.
        pinned_alloc: verdict(HostMemory::allocate(shared, 1).map(drop)),
        host_register: if shared.found.facts.registers {
            verdict(registers(shared))
        } else {
            Verdict::unavailable("the device does not take registered host memory")
        },
        write_value: words(api.library.write_value.is_some()),
        wait_value: words(api.flavour.waits_for_words()),
    }
}

fn verdict(outcome: Result<(), Error>) -> Verdict {
    outcome.map_or_else(|error| Verdict::Unavailable(error.to_string().into()), |()| Verdict::Available)
}

/// Registers a page and leaves unregistering it to the reaper, with the page.
fn registers(shared: &Arc<Shared>) -> Result<()> {
    let mut page =
        HostBuffer::allocate(4096, HostMemoryOptions { huge_pages: false, ..HostMemoryOptions::default() })?;
    let first = page.as_mut_ptr();
    {
        let _here = shared.context.enter()?;
        // SAFETY: the page stays mapped until the reaper has unregistered it, or until this fails.
        let code = unsafe { (shared.context.api.library.host_register)(first.cast(), page.len(), 0) };
        shared.context.api.check(code, "registering host memory")?;
    }
    shared.reaper.bury(Doomed::Registered(page, Address(first)));
    Ok(())
}
