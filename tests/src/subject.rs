//! What a check is given.

use std::sync::atomic::{AtomicBool, Ordering};

use spoc_driver::backend::Probed;
use spoc_driver::fake::FakeControl;
use spoc_driver::{CopyRange, Device, DeviceSelector, Driver, Error, Segment, Stream, StreamOptions};

use crate::hold::{Hold, HoldWay};
use crate::platform::{Bench, Table};

/// A device under test, and what the contract says of its backend.
pub struct Subject {
    /// The driver that opened it.
    pub driver: Driver,
    /// The device.
    pub device: Device,
    /// The backend, to make more drivers of.
    pub backend: Probed,
    /// What the contract says it offers.
    pub table: Table,
    /// The size of its memory, where that is so little that a check may use it up.
    pub memory_bytes: Option<u64>,
    /// Controls the backend, where it lets itself be controlled.
    pub control: Option<FakeControl>,
    pub(crate) hold_way: HoldWay,
    may_leak: AtomicBool,
}

impl Subject {
    /// Opens the backend's device with this index.
    ///
    /// # Errors
    /// What opening answers.
    pub fn open(bench: &Bench, table: Table, index: u32) -> Result<Self, Error> {
        let driver = Driver::new(vec![Probed::clone(&bench.backend)]);
        let device = driver.open(&DeviceSelector::index(bench.backend.id().kind, index))?;
        let (memory_bytes, hold_way) = (bench.memory_bytes, bench.hold_way.clone());
        let (backend, may_leak) = (Probed::clone(&bench.backend), AtomicBool::new(false));
        let control = bench.watcher.clone();
        Ok(Self { driver, device, backend, table, memory_bytes, control, hold_way, may_leak })
    }

    /// The check forgets something on purpose: what is left behind is not a finding.
    pub fn forgets(&self) {
        self.may_leak.store(true, Ordering::Relaxed);
    }

    pub(crate) fn may_leak(&self) -> bool {
        self.may_leak.load(Ordering::Relaxed)
    }

    /// A device that is not the one under test: another of the backend, or the same one as another driver
    /// opens it, which is a stranger just as well.
    #[must_use]
    pub fn other_device(&self) -> Device {
        let (kind, index) = (self.backend.id().kind, self.device.info().index);
        let devices = self.backend.devices();
        let other = devices.iter().map(|info| info.index).find(|other| *other != index);
        match other {
            Some(other) => self.driver.open(&DeviceSelector::index(kind, other)).unwrap(),
            None => self.other_driver().open(&DeviceSelector::index(kind, index)).unwrap(),
        }
    }

    /// Another driver over the same backend.
    #[must_use]
    pub fn other_driver(&self) -> Driver {
        Driver::new(vec![Probed::clone(&self.backend)])
    }

    /// Makes what is enqueued on the stream from now on wait, as surely as the backend allows.
    #[must_use]
    pub fn hold(&self, stream: &Stream) -> Hold {
        Hold::on(&self.hold_way, stream)
    }

    /// A blocking stream.
    #[must_use]
    pub fn stream(&self) -> Stream {
        self.device.create_stream(StreamOptions::default()).unwrap()
    }

    /// A non-blocking stream.
    #[must_use]
    pub fn free_stream(&self) -> Stream {
        self.device.create_stream(StreamOptions { non_blocking: true, ..Default::default() }).unwrap()
    }

    /// A segment of zeroes.
    #[must_use]
    pub fn zeroes(&self, len: usize) -> Segment {
        self.filled_with(&vec![0; len])
    }

    /// A segment that holds these bytes.
    #[must_use]
    pub fn filled_with(&self, bytes: &[u8]) -> Segment {
        let segment = self.device.allocate(bytes.len() as u64).unwrap();
        segment.write(0, bytes).unwrap();
        segment
    }

    /// Everything in a segment.
    #[must_use]
    pub fn contents(&self, segment: &Segment) -> Vec<u8> {
        let mut bytes = vec![0xA5; usize::try_from(segment.len_bytes()).unwrap()];
        segment.read(0, &mut bytes).unwrap();
        bytes
    }

    /// What offsets and lengths of copies must be multiples of.
    #[must_use]
    pub fn granule(&self) -> usize {
        usize::try_from(self.device.limits().copy_granule_bytes.max(1)).unwrap()
    }
}

/// Enqueues a copy of all the bytes to the beginning of a segment.
#[track_caller]
pub fn upload(stream: &Stream, bytes: Vec<u8>, segment: &Segment) {
    let range = whole(bytes.len(), segment);
    stream.copy_to_device(bytes, &[range]).unwrap();
}

/// A range from the first byte of a source to the first of a segment.
#[must_use]
pub fn whole(len_bytes: usize, segment: &Segment) -> CopyRange<'_> {
    CopyRange { src_offset: 0, dst: segment, dst_offset: 0, len_bytes }
}

/// Enqueues reading a whole segment on the stream and waits for it.
#[track_caller]
#[must_use]
pub fn download(stream: &Stream, segment: &Segment) -> Vec<u8> {
    let room = vec![0x5A; usize::try_from(segment.len_bytes()).unwrap()];
    stream.copy_to_host(segment, 0, room).unwrap().wait().unwrap()
}
