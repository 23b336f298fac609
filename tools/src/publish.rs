//! Counters on a statistics page that `cachestat` can see.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use spoc_cache::stats::{CounterStore, Counters, Identity, layout};
use spoc_page::{Page, ProcessIdentity};

use crate::failure::{Failure, Result};
use crate::process::Interrupt;

/// A page as the cache wants its counters' store.
struct PageStore(Arc<Page>);

impl CounterStore for PageStore {
    fn words(&self) -> &[AtomicU64] {
        self.0.words()
    }
}

/// More slots than this in one process is a mistake: their records alone would take 64 MiB.
pub const SLOTS_MAX: usize = 1 << 20;

/// Counters with room for `slots_max` slots, on a published page; on the heap, with a warning, where none can be made.
/// The page goes when the last clone of the counters does, or when `interrupt` ends the process.
///
/// # Errors
/// `usage` for more than [`SLOTS_MAX`] slots; nothing has been allocated then.
pub fn counters(slots_max: usize, interrupt: &Interrupt) -> Result<Counters> {
    if slots_max > SLOTS_MAX {
        return Err(Failure::usage(format_args!("{slots_max} slots: at most {SLOTS_MAX} can be counted")));
    }
    Ok(match on_page(slots_max, interrupt) {
        Ok(counters) => counters,
        Err(error) => {
            tracing::warn!(%error, "no statistics page: cachestat will not see this process");
            Counters::on_heap(slots_max)
        }
    })
}

/// Counters of a part of a program that ends by its own means: on a published page with this label, which goes with the
/// last clone of the counters; on the heap, with a warning, where none can be made.
#[must_use]
pub fn labelled(label: &str, slots_max: usize) -> Counters {
    let slots_max = slots_max.min(SLOTS_MAX);
    let counters = new_page(slots_max, |page| page.publish().map(drop)).unwrap_or_else(|error| {
        tracing::warn!(%error, label, "no statistics page: cachestat will not see this part");
        Counters::on_heap(slots_max)
    });
    counters.set_label(label);
    counters
}

fn on_page(slots_max: usize, interrupt: &Interrupt) -> std::io::Result<Counters> {
    new_page(slots_max, |page| {
        interrupt.temporary(|| page.publish().map(Path::to_path_buf), PathBuf::clone).map(drop)
    })
}

fn new_page(
    slots_max: usize,
    publish: impl FnOnce(&Page) -> std::io::Result<()>,
) -> std::io::Result<Counters> {
    spoc_page::remove_stale();
    let page = Arc::new(Page::create(layout::page_words(slots_max))?);
    let ProcessIdentity { pid, start_ticks, boot_id } = ProcessIdentity::current()?;
    let who = Identity { boot_id, pid, process_start_ticks: start_ticks };
    let counters = Counters::new(Arc::new(PageStore(Arc::clone(&page))), who)
        .ok_or_else(|| std::io::Error::other("the page is too small"))?;
    // Named only now, with its header complete.
    publish(&page)?;
    Ok(counters)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_of_slots_are_refused_before_anything_is_allocated() {
        let interrupt = Interrupt::watch();
        for slots in [SLOTS_MAX + 1, u32::MAX as usize, usize::MAX] {
            let failure = counters(slots, &interrupt).expect_err("too many");
            assert_eq!(failure.kind, "usage");
            assert!(failure.message.contains("1048576"), "{failure}");
        }
    }
}
