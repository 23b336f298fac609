//! Releases that launches have not passed yet: the events recorded when leases came back.

use spoc_driver::{Device, Event, Stream, StreamOptions};
use std::collections::VecDeque;

/// One release: its events, and the slots that may be read until all have fired.
#[derive(Debug, Default)]
struct Drain {
    events: Vec<Event>,
    slots: Vec<u32>,
}

/// All releases under way. Entries and events are reused, so that a release allocates only while the number
/// under way is at its highest yet.
#[derive(Debug)]
pub(crate) struct Drains {
    device: Device,
    entries: Vec<Drain>,
    unused: Vec<u32>,
    active: VecDeque<u32>,
    events: Vec<Event>,
}

impl Drains {
    pub fn new(device: Device) -> Drains {
        Drains {
            device,
            entries: Vec::new(),
            unused: Vec::new(),
            active: VecDeque::new(),
            events: Vec::new(),
        }
    }

    /// Records one event on each stream for these slots.
    ///
    /// If a stream cannot record, nothing says when the slots will have been read: the caller must keep them.
    pub fn record(&mut self, slots: &[u32], streams: &[&Stream]) -> Result<u32, spoc_driver::Error> {
        let index = self.unused.pop().unwrap_or_else(|| {
            self.entries.push(Drain::default());
            // One entry a release under way: far below the width of the index.
            u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX)
        });
        for stream in streams {
            let event = match self.events.pop() {
                Some(event) => Ok(event),
                None => self.device.create_event(),
            };
            let recorded = event.and_then(|event| stream.record(&event).map(|()| event));
            match recorded {
                Ok(event) => self.entries[index as usize].events.push(event),
                Err(error) => {
                    // Events that were recorded before may be recorded again once nobody waits for them,
                    // and nobody does: no slot knows of this entry.
                    let entry = &mut self.entries[index as usize];
                    self.events.append(&mut entry.events);
                    self.unused.push(index);
                    return Err(error);
                }
            }
        }
        self.entries[index as usize].slots.extend_from_slice(slots);
        self.active.push_back(index);
        Ok(index)
    }

    /// A stream that waits for nothing but what it is told.
    pub fn side_stream(&self) -> Result<Stream, spoc_driver::Error> {
        self.device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })
    }

    /// Waits for everything that was launched on the device.
    pub fn wait_for_device(&self) -> Result<(), spoc_driver::Error> {
        self.device.flush()
    }

    pub fn events(&self, drain: u32) -> &[Event] {
        &self.entries[drain as usize].events
    }

    /// Looks at up to `most` releases and returns one that has ended: its slots are in `ended`.
    /// Call again until `None` with what is left of `most`.
    pub fn poll(&mut self, most: &mut usize, ended: &mut Vec<u32>) -> Option<u32> {
        while *most > 0 {
            *most -= 1;
            let index = self.active.pop_front()?;
            let entry = &mut self.entries[index as usize];
            // An event that reports an error belongs to a stream that failed: what it launched no longer runs.
            let fired = entry.events.iter().all(|event| event.query().unwrap_or(true));
            if !fired {
                self.active.push_back(index);
                continue;
            }
            self.events.append(&mut entry.events);
            ended.clear();
            ended.append(&mut entry.slots);
            self.unused.push(index);
            return Some(index);
        }
        None
    }

    pub fn active(&self) -> usize {
        self.active.len()
    }
}

impl Drop for Drains {
    /// The memory is freed after this: launches that read it must have ended. The only wait of the host, once,
    /// when a cache and its last lease are gone.
    fn drop(&mut self) {
        for &index in &self.active {
            for event in &self.entries[index as usize].events {
                if let Err(error) = event.synchronize() {
                    tracing::warn!(%error, "a release could not be waited for");
                }
            }
        }
    }
}
