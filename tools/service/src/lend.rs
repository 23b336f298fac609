//! The lending socket: attaches sessions, hands out descriptors, and sees clients end.

use crate::access::Peer;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::state::State;
use spoc_page::lend::{LendListener, LendSocket, LentSegment, Packet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

/// A client that says nothing for so long after connecting is cut off.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Serves until `stop`.
pub async fn serve(listener: LendListener, state: Arc<State>, mut stop: watch::Receiver<bool>) {
    let listener = match watched(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the lending socket cannot be watched");
            return;
        }
    };
    loop {
        let ready = tokio::select! {
            ready = listener.readable() => ready,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        let Ok(mut ready) = ready else { return };
        match ready.try_io(|listener| listener.get_ref().accept()) {
            Ok(Ok(socket)) => {
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    if let Err(error) = client(socket, &state).await {
                        tracing::debug!(%error, "a lending connection has ended");
                    }
                });
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => {}
            Ok(Err(error)) => {
                // Out of descriptors, most likely: they come back as clients go.
                tracing::warn!(%error, "a lending connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Err(_would_block) => {}
        }
    }
}

/// Tells of what can be read.
#[allow(
    deprecated,
    reason = "the newer call is unsafe only for types whose descriptor may change; these own theirs"
)]
fn watched<T: AsRawFd>(of: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(of, Interest::READABLE)
}

/// The next packet; `None` when the client has closed.
async fn next(socket: &AsyncFd<LendSocket>) -> io::Result<Option<(Packet, Option<OwnedFd>)>> {
    loop {
        let mut ready = socket.readable().await?;
        if let Ok(got) = ready.try_io(|socket| socket.get_ref().receive(true)) {
            return got;
        }
    }
}

fn refuse(socket: &AsyncFd<LendSocket>, error: &Error) -> io::Result<()> {
    let (kind, message) = (error.kind().to_owned(), error.message().to_owned());
    socket.get_ref().send(&Packet::Refused { kind, message }, None)
}

async fn client(socket: LendSocket, state: &Arc<State>) -> io::Result<()> {
    let peer = socket.peer()?;
    let socket = watched(socket)?;
    let first =
        tokio::time::timeout(HELLO_WITHIN, next(&socket)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    if let Err(error) = state.config().access.check(peer) {
        return refuse(&socket, &error);
    }
    let attached = match first {
        Some((Packet::Hello { token }, _)) => state.sessions.attach(&token, peer),
        Some((Packet::Resume { session, resume }, _)) => state.sessions.resume(session, &resume, peer),
        Some(_) => Err(Error::new("usage", "expected the token of a session first")),
        None => return Ok(()),
    };
    let session = match attached {
        Ok(session) => session,
        Err(error) => return refuse(&socket, &error),
    };
    watch_process(&session, state, socket.get_ref().peer_pidfd());
    // Before the client can have a lease of it.
    state.parking.session(&session);
    let Peer { pid, uid, .. } = peer;
    tracing::debug!(session = session.number, pid, uid, name = session.name, "attached");
    let outcome = match welcome(&socket, &session) {
        Ok(()) => lend(&socket, &session, state).await,
        Err(error) => Err(error),
    };
    session.detach();
    outcome
}

fn welcome(socket: &AsyncFd<LendSocket>, session: &Session) -> io::Result<()> {
    let words = u32::try_from(session.words().words().len()).unwrap_or(u32::MAX);
    let welcome = Packet::Welcome { session: session.number, resume: *session.resume(), words };
    socket.get_ref().send(&welcome, Some(session.words().descriptor()))?;
    for (lease, why) in session.take_lost() {
        socket.get_ref().send(&Packet::Lost { lease, why }, None)?;
    }
    Ok(())
}

async fn lend(socket: &AsyncFd<LendSocket>, session: &Session, state: &State) -> io::Result<()> {
    while let Some((packet, _)) = next(socket).await? {
        let answer = match packet {
            Packet::Segment { id } => segment(id, session, state),
            _ => Err(Error::new("usage", "expected a request for a segment")),
        };
        match answer {
            Ok((lent, descriptor)) => {
                socket.get_ref().send(&Packet::SegmentIs(lent), Some(descriptor.as_fd()))?;
            }
            Err(error) => refuse(socket, &error)?,
        }
    }
    Ok(())
}

fn segment(id: u64, session: &Session, state: &State) -> Result<(LentSegment, OwnedFd)> {
    if !session.holds_segment(id) {
        return Err(Error::new("not_permitted", format!("no lease of this session is on segment {id}")));
    }
    let lent = state.segments.lend(id, session.opener.uid)?;
    state.parking.lent(id, session.opener.uid);
    let exported = lent.export()?;
    let lent = LentSegment {
        id,
        len_bytes: exported.len_bytes,
        allocation_bytes: exported.allocation_bytes,
        backend: exported.backend.as_str().to_owned(),
        device: exported.device.to_string(),
        read_only: false,
    };
    Ok((lent, exported.descriptor))
}

/// Sees the process of a session end, whatever becomes of its socket. `process` is its pidfd.
pub fn watch_process(session: &Arc<Session>, state: &Arc<State>, process: io::Result<OwnedFd>) {
    let pid = session.peer().pid;
    if !session.begin_watch(pid) {
        return;
    }
    let process = match process.and_then(watched) {
        Ok(process) => process,
        Err(error) => {
            session.end_watch(pid);
            if error.raw_os_error() == Some(nix::errno::Errno::ESRCH as i32) {
                // It has ended since it connected.
                state.client_died(session);
                return;
            }
            // Out of sight, in a namespace above this one: what it holds ends by its words alone.
            tracing::warn!(session = session.number, pid, %error, "the client's process cannot be watched");
            return;
        }
    };
    let (session, state) = (Arc::clone(session), Arc::clone(state));
    tokio::spawn(async move {
        let has_ended = process.readable().await.is_ok();
        session.end_watch(pid);
        if has_ended && session.peer().pid == pid {
            state.client_died(&session);
        }
    });
}
