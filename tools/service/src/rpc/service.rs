//! The service itself: what runs, how it fares, how it ends.

use super::{Answers, Rpc, timeout};
use crate::access::Peer;
use crate::error::{Error, Result};
use crate::ops::metrics::sums;
use crate::ops::observe::Observe;
use crate::session::TOKEN_LIFE;
use spoc_proto::v1 as pb;
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;

impl Rpc {
    pub(super) fn info(&self) -> pb::GetInfoResponse {
        let state = &self.state;
        let quota = state.config().quota;
        pb::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            api_minor: 0,
            devices: (0u32..).zip(&state.host.0).map(|(index, device)| device.told(index)).collect(),
            arenas: state.arenas.all().iter().map(|arena| arena.told()).collect(),
            instance: state.instance.clone(),
            is_draining: state.is_draining(),
            message_bytes_max: quota.message.0,
            keys_max: quota.keys,
            parking: state.parking.kind().to_owned(),
        }
    }

    pub(super) fn opened(
        &self,
        peer: Peer,
        asked: &pb::OpenSessionRequest,
    ) -> Result<pb::OpenSessionResponse> {
        self.state.check_takes_work()?;
        let config = self.state.config();
        let (session, token) = self.state.sessions.open(&asked.name, peer, config.quota)?;
        Ok(pb::OpenSessionResponse {
            session: session.number.to_string(),
            lend_path: config.lend_path().to_string_lossy().into_owned(),
            token: token.to_vec(),
            token_ms: u64::try_from(TOKEN_LIFE.as_millis()).unwrap_or(u64::MAX),
        })
    }

    pub(super) async fn stats(&self) -> Result<pb::GetStatsResponse> {
        let state = Arc::clone(&self.state);
        super::blocking(move || {
            let sessions = state.sessions.all();
            let told = sessions.iter().map(|session| {
                let ((leases, held_bytes), peer) = (session.held(), session.peer());
                pb::Session {
                    name: session.name.clone(),
                    pid: peer.pid,
                    uid: peer.uid,
                    leases,
                    held_bytes,
                    state: session.stage().as_str().to_owned(),
                }
            });
            let mut counters: std::collections::HashMap<_, _> = sums(&state.observe()).into_iter().collect();
            counters.insert("parking_failures".to_owned(), state.parking.failures());
            Ok(pb::GetStatsResponse {
                counters,
                arenas: state.arenas.all().iter().map(|arena| arena.told()).collect(),
                sessions: told.collect(),
                uptime_ms: u64::try_from(state.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            })
        })
        .await
    }

    pub(super) fn watching(&self) -> Answers<pb::Event> {
        let mut dropped = 0;
        let events = BroadcastStream::new(self.state.events.watch()).filter_map(move |event| match event {
            Ok(event) => Some(Ok(pb::Event { dropped, ..event })),
            Err(BroadcastStreamRecvError::Lagged(missed)) => {
                dropped += missed;
                None
            }
        });
        Box::pin(events)
    }

    /// Ending the service is for its own user and root.
    fn may_end(&self, peer: Peer) -> Result<()> {
        let own = nix::unistd::geteuid().as_raw();
        if peer.uid == own || peer.uid == 0 {
            return Ok(());
        }
        Err(Error::new("not_permitted", format!("user {} may not drain or end the service", peer.uid)))
    }

    pub(super) async fn draining(&self, peer: Peer, asked: &pb::DrainRequest) -> Result<pb::DrainResponse> {
        self.may_end(peer)?;
        self.state.begin_draining();
        let most = timeout(asked.timeout_ms).unwrap_or(Duration::from_secs(24 * 3600));
        Ok(pb::DrainResponse { leases_left: self.state.drained(most).await })
    }

    pub(super) async fn shutting_down(
        &self,
        peer: Peer,
        asked: &pb::ShutdownRequest,
    ) -> Result<pb::ShutdownResponse> {
        self.may_end(peer)?;
        self.state.begin_draining();
        self.state.drained(Duration::from_millis(asked.timeout_ms)).await;
        self.state.sessions.stop();
        self.state.stop.send_replace(true);
        Ok(pb::ShutdownResponse {})
    }
}
