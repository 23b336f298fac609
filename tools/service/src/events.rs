//! What happens, told to whoever watches; nobody is waited for.

use spoc_proto::v1 as pb;
use std::time::Instant;
use tokio::sync::broadcast;

/// Events that a watcher may be behind.
const ROOM: usize = 1024;

/// Where events are told.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<pb::Event>,
    since: Instant,
}

impl Events {
    pub fn new() -> Events {
        Events { sender: broadcast::channel(ROOM).0, since: Instant::now() }
    }

    pub fn watch(&self) -> broadcast::Receiver<pb::Event> {
        self.sender.subscribe()
    }

    /// Tells of something, with whatever of these is known.
    pub fn tell(&self, kind: &str, model: &str, device: &str, detail: impl FnOnce() -> String) {
        if self.sender.receiver_count() == 0 {
            return;
        }
        let event = pb::Event {
            time_ns: u64::try_from(self.since.elapsed().as_nanos()).unwrap_or(u64::MAX),
            kind: kind.to_owned(),
            model: model.to_owned(),
            device: device.to_owned(),
            detail: detail(),
            ..pb::Event::default()
        };
        // Without a watcher there is nothing to tell.
        let _ = self.sender.send(event);
    }
}
