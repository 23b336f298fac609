//! What the service knows about itself at one moment.

use std::time::Duration;

use spoc_cache::stats::layout::Counter;
use spoc_cache::stats::{Counters, Reader, Snapshot};

/// Who counts: a device's pump, or an arena.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the arena; empty for the pump of a device.
    pub arena: String,
    /// UUID of the device.
    pub device: String,
    /// Every counter, in the order of [`Counter::ALL`].
    pub counters: [u64; Counter::ALL.len()],
    /// Slots by state, what is loading, leases.
    pub slots: Snapshot,
    /// Bytes of one slot of the widest class; 0 for a pump.
    pub slot_bytes: u64,
}

impl Source {
    /// Reads counters as they are now.
    #[must_use]
    pub fn read(arena: &str, device: &str, counters: &Counters) -> Source {
        let page = Reader::new(counters.words()).ok();
        Source {
            arena: arena.to_owned(),
            device: device.to_owned(),
            counters: Counter::ALL.map(|counter| counters.get(counter)),
            slots: page.map(|page| page.snapshot()).unwrap_or_default(),
            slot_bytes: page.map_or(0, |page| page.header().stride_bytes),
        }
    }

    /// One counter.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }
}

/// Memory of one device.
#[derive(Clone, Debug, Default)]
pub struct DeviceBytes {
    /// Its UUID.
    pub device: String,
    /// All there is.
    pub total: u64,
    /// Nobody's, as the driver says.
    pub free: u64,
    /// Taken by arenas of this service.
    pub arenas: u64,
    /// Taken by its images.
    pub images: u64,
    /// Host memory of its staging ring.
    pub staging: u64,
}

/// Everything that is not counted call by call.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// Since the start.
    pub uptime: Duration,
    /// From the start to the first answer, without the drivers' own initialisation.
    pub ready_after: Duration,
    /// New work is refused.
    pub is_draining: bool,
    /// Pumps and arenas.
    pub sources: Vec<Source>,
    /// Memory by device.
    pub devices: Vec<DeviceBytes>,
    /// Sessions by state.
    pub sessions: Vec<(&'static str, u64)>,
    /// Images by state.
    pub images: Vec<(&'static str, u64)>,
    /// Leases out.
    pub leases: u64,
    /// Bytes that they hold; what two of them hold counts twice.
    pub held_bytes: u64,
    /// Models registered.
    pub models: u64,
    /// Clients that died with leases in hand.
    pub clients_lost: u64,
}

/// What operations ask of the service.
pub trait Observe: Send + Sync + 'static {
    /// How things are. Called at each scrape: may take locks, must not wait for device or disk.
    fn observe(&self) -> Observed;

    /// Whether requests are served; if not, why, in a line.
    ///
    /// # Errors
    /// The line.
    fn ready(&self) -> Result<(), String>;

    /// Whether the threads that everything waits for show life; if not, which does not, in a line. The watchdog is fed
    /// by this.
    ///
    /// # Errors
    /// The line.
    fn live(&self) -> Result<(), String>;
}
