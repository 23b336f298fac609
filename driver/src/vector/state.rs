//! Which devices have buffers of a vector, and where its newest copy is.

use super::location::{Location, Relation};
use crate::device::Device;
use crate::segment::Segment;

/// What a vector's buffer on a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostLink {
    /// Memory of its own: transfers copy.
    Separate,
    /// The vector's host memory, on a device whose memory is the host's (native, interpreter).
    HostStorage,
    /// The vector's host memory, which the API was handed: seen by the other side only through a map.
    HostPtr,
}

impl HostLink {
    /// Whether host and device share the bytes.
    pub(crate) fn is_shared(self) -> bool {
        self != Self::Separate
    }
}

/// A vector's buffer on one device.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) device: Device,
    pub(crate) segment: Segment,
    /// Where the vector begins in the segment.
    pub(crate) offset_bytes: u64,
    pub(crate) link: HostLink,
}

pub(crate) struct State {
    pub(crate) location: Location,
    /// The device that the location speaks of; none for [`Location::Cpu`].
    pub(crate) home: Option<Device>,
    pub(crate) buffers: Vec<Held>,
}

impl State {
    pub(crate) fn on_host() -> Self {
        Self { location: Location::Cpu, home: None, buffers: Vec::new() }
    }

    pub(crate) fn held(&self, device: &Device) -> Option<&Held> {
        self.buffers.iter().find(|held| held.device.is(device))
    }

    /// The home's buffer; gone only once a device-only vector was discarded.
    pub(crate) fn home_buffer(&self) -> Option<&Held> {
        self.home.as_ref().and_then(|home| self.held(home))
    }

    pub(crate) fn relation(&self, named: Option<&Device>) -> Relation {
        match (&self.home, named) {
            (Some(home), Some(named)) if home.is(named) => Relation::Same,
            (Some(_), Some(_)) => Relation::Other,
            _ => Relation::None,
        }
    }

    pub(crate) fn place(&mut self, location: Location, home: Option<Device>) {
        self.home = if location == Location::Cpu { None } else { home };
        self.location = location;
    }
}
