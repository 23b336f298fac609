//! Arenas: seen, resized.

use super::{Rpc, blocking, timeout};
use crate::error::{Error, Result};
use spoc_proto::v1 as pb;
use std::sync::Arc;
use std::time::Instant;

impl Rpc {
    pub(super) fn list_of_arenas(&self) -> pb::ListArenasResponse {
        pb::ListArenasResponse { arenas: self.state.arenas.all().iter().map(|arena| arena.told()).collect() }
    }

    pub(super) async fn resized(&self, asked: pb::ResizeRequest) -> Result<pb::ResizeResponse> {
        let state = Arc::clone(&self.state);
        blocking(move || {
            let arena = state.arenas.get(&asked.arena)?;
            state.sweep();
            let deadline = timeout(asked.timeout_ms).and_then(|time| Instant::now().checked_add(time));
            let resized = arena.cache.resize(0, asked.slots, deadline);
            arena.forget_gone(&state.segments);
            let slots = resized?;
            state.events.tell("resized", "", &arena.device, || format!("{}: {slots} slots", arena.name));
            if slots > asked.slots {
                let message = format!(
                    "{} of {slots} slots are held or full of what is; {} were to be left",
                    slots - asked.slots,
                    asked.slots
                );
                return Err(Error::new("timed_out", message));
            }
            Ok(pb::ResizeResponse { arena: Some(arena.told()) })
        })
        .await
    }

    pub(super) async fn given_back(&self, asked: pb::GiveBackRequest) -> Result<pb::GiveBackResponse> {
        let state = Arc::clone(&self.state);
        blocking(move || {
            let arena = state.arenas.get(&asked.arena)?;
            state.sweep();
            let deadline = timeout(asked.timeout_ms).and_then(|time| Instant::now().checked_add(time));
            let freed = arena.cache.give_back(asked.bytes, deadline);
            arena.forget_gone(&state.segments);
            Ok(pb::GiveBackResponse { freed_bytes: freed? })
        })
        .await
    }
}
