//! What a process holds.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use spoc_driver::Device;
use spoc_driver::Segment;
use spoc_driver::backend::Exported;
use spoc_page::Words;
use spoc_page::lend::{LendSocket, Packet};
use spoc_proto::v1 as pb;
use spoc_proto::v1::spoc_client::SpocClient;
use tonic::transport::Channel;

use crate::client::{Client, missing, ms};
use crate::error::{Error, Result, kind_of};
use crate::lease::Lease;
use crate::process::OwnProcess;

/// The lending socket answers within this, or not at all.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// A session with the service. Clones share it.
#[derive(Clone, Debug)]
pub struct Session {
    client: Client,
    shared: Arc<Shared>,
}

/// The part of a session that its leases keep.
#[derive(Debug)]
pub(crate) struct Shared {
    /// As the control plane calls it.
    id: String,
    number: u64,
    resume: [u8; 32],
    path: PathBuf,
    pub(crate) words: Words,
    pub(crate) own: OwnProcess,
    socket: Mutex<LendSocket>,
    imported: Mutex<HashMap<u64, Imported>>,
    lost: Mutex<Vec<(u64, String)>>,
    /// The next request's tag.
    tags: AtomicU64,
}

#[derive(Debug)]
struct Imported {
    segment: Segment,
    /// Leases on images that lie in it. Segments of arenas stay until the session goes: their slots are leased again.
    users: usize,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half changed under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(error: impl std::fmt::Display) -> Error {
    Error::new("session_lost", format_args!("lending socket: {error}"))
}

/// Connects and attaches; a refusal is the service's error.
fn attach(path: &Path, first: &Packet) -> Result<(LendSocket, u64, [u8; 32], Words)> {
    let socket = LendSocket::connect(path, ANSWER_WITHIN)
        .map_err(|error| Error::new("service_unreachable", format_args!("{}: {error}", path.display())))?;
    socket.send(first, None).map_err(broken)?;
    match socket.receive(false).map_err(broken)? {
        Some((Packet::Welcome { session, resume, .. }, Some(descriptor))) => {
            let words = Words::map(descriptor).map_err(broken)?;
            Ok((socket, session, resume, words))
        }
        Some((Packet::Refused { kind, message }, _)) => Err(Error::sent(kind, message)),
        Some(_) => Err(broken("an answer to something else")),
        None => Err(broken("closed by the service")),
    }
}

/// A request that was sent: if it is given up, or its answer is lost, nobody here knows of the lease that it may have been
/// answered with, and that is ended by the request's tag.
struct Unanswered {
    rpc: SpocClient<Channel>,
    session: String,
    /// 0 once it was answered.
    tag: u64,
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if self.tag == 0 {
            return;
        }
        let (mut rpc, session) = (self.rpc.clone(), std::mem::take(&mut self.session));
        let request = pb::ReleaseRequest { session, leases: Vec::new(), tags: vec![self.tag] };
        // A service that does not answer this either is gone, and the lease with it or adopted by its word.
        runtime.spawn(async move { drop(rpc.release(request).await) });
    }
}

/// Runs what waits for a socket on a thread that may.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(Error::new("internal", error)))
}

impl Session {
    pub(crate) async fn open(client: Client, name: &str) -> Result<Session> {
        let opened =
            client.rpc()?.open_session(pb::OpenSessionRequest { name: name.into() }).await?.into_inner();
        let token: [u8; 32] = opened.token.try_into().map_err(|_| missing("a token"))?;
        let path = PathBuf::from(opened.lend_path);
        let to = path.clone();
        let (socket, number, resume, words) = blocking(move || attach(&to, &Packet::Hello { token })).await?;
        let shared = Shared {
            id: opened.session,
            number,
            resume,
            path,
            words,
            own: OwnProcess::here(),
            socket: Mutex::new(socket),
            imported: Mutex::default(),
            lost: Mutex::default(),
            tags: AtomicU64::new(1),
        };
        Ok(Session { client, shared: Arc::new(shared) })
    }

    /// The client it was opened with.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// As the control plane calls it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.shared.id
    }

    /// Leases groups of a model in an arena, when all of them are there; `None` waits as long as it takes.
    ///
    /// # Errors
    /// `unknown_model`, `no_such_group`, `too_wide`, `timed_out`, `quota_exceeded`, `draining`; why a group could not be read.
    pub async fn acquire(&self, model: &str, groups: &[u32], timeout: Option<Duration>) -> Result<Lease> {
        let keys = pb::KeySet { model: model.into(), device: String::new(), groups: groups.to_vec() };
        self.lease(pb::acquire_request::What::Keys(keys), timeout.map_or(0, |timeout| ms(timeout).max(1)))
            .await
    }

    /// Leases a whole image, if it is there.
    ///
    /// # Errors
    /// `not_resident`, `not_permitted`, `quota_exceeded`, `draining`.
    pub async fn acquire_image(&self, image: &str) -> Result<Lease> {
        let image = pb::ImageRef { image: image.into(), without_tensors: false };
        self.lease(pb::acquire_request::What::Image(image), 0).await
    }

    async fn lease(&self, what: pb::acquire_request::What, timeout_ms: u64) -> Result<Lease> {
        let mut rpc = self.client.rpc()?;
        let (session, tag) = (self.shared.id.clone(), self.shared.tags.fetch_add(1, Ordering::Relaxed));
        let request = pb::AcquireRequest { session: session.clone(), tag, what: Some(what), timeout_ms };
        let mut unanswered = Unanswered { rpc: rpc.clone(), session, tag };
        let mut answer = rpc.acquire(request.clone()).await;
        if answer.as_ref().err().and_then(kind_of) == Some("not_attached") {
            // The service was restarted, or the socket broke: attach again, once.
            self.reattach().await?;
            answer = rpc.acquire(request).await;
        }
        if answer.as_ref().map_or_else(|status| kind_of(status).is_some(), |_| true) {
            unanswered.tag = 0;
        }
        let lease = answer?.into_inner().lease.ok_or_else(|| missing("the lease"))?;
        Ok(Lease::new(Arc::clone(&self.shared), lease))
    }

    /// Makes an image that this session fills, and leases it.
    ///
    /// # Errors
    /// `already_registered`, `device_too_small`, `usage`.
    pub async fn create_image(&self, request: pb::CreateImageRequest) -> Result<(pb::Image, Lease)> {
        let request = pb::CreateImageRequest { session: self.shared.id.clone(), ..request };
        let answer = self.client.rpc()?.create_image(request).await?.into_inner();
        let image = answer.image.ok_or_else(|| missing("the image"))?;
        let lease = answer.lease.ok_or_else(|| missing("the lease"))?;
        Ok((image, Lease::new(Arc::clone(&self.shared), lease)))
    }

    /// Says that an image is complete: from now on it is lent to others.
    ///
    /// # Errors
    /// `not_permitted` for one that this session does not write.
    pub async fn seal(&self, image: &str) -> Result<()> {
        let request = pb::SealImageRequest { session: self.shared.id.clone(), image: image.into() };
        self.client.rpc()?.seal_image(request).await?;
        Ok(())
    }

    /// Says that groups will probably be wanted; they are read behind everything that somebody waits for.
    ///
    /// # Errors
    /// `unknown_model`, `no_such_group`.
    pub async fn prefetch(
        &self,
        model: &str,
        groups: &[u32],
        deadline: Option<Duration>,
    ) -> Result<pb::PrefetchResponse> {
        let keys = pb::KeySet { model: model.into(), device: String::new(), groups: groups.to_vec() };
        let request = pb::PrefetchRequest {
            session: self.shared.id.clone(),
            keys: Some(keys),
            deadline_ms: deadline.map_or(0, |deadline| ms(deadline).max(1)),
            is_refill: false,
        };
        Ok(self.client.rpc()?.prefetch(request).await?.into_inner())
    }

    /// Connects the lending socket anew: after a restart of a service that adopted this session, or when it broke. Leases
    /// that are held stay.
    ///
    /// # Errors
    /// `unknown_session` if the service does not know it any more: open another.
    pub async fn reattach(&self) -> Result<()> {
        self.shared.own.check()?;
        let shared = Arc::clone(&self.shared);
        blocking(move || {
            let resume = Packet::Resume { session: shared.number, resume: shared.resume };
            let (socket, number, ..) = attach(&shared.path, &resume)?;
            if number != shared.number {
                return Err(broken("another session"));
            }
            *lock(&shared.socket) = socket;
            Ok(())
        })
        .await
    }

    /// Leases that the service lost since the last call, with the reasons: what they held must not be read any more.
    #[must_use]
    pub fn lost(&self) -> Vec<(u64, String)> {
        let socket = lock(&self.shared.socket);
        while let Ok(Some((packet, _))) = socket.receive(true) {
            self.shared.note(packet);
        }
        drop(socket);
        std::mem::take(&mut *lock(&self.shared.lost))
    }
}

impl Shared {
    /// Whether it told of a lost lease.
    fn note(&self, packet: Packet) -> bool {
        if let Packet::Lost { lease, why } = packet {
            lock(&self.lost).push((lease, why));
            return true;
        }
        false
    }

    /// The segment with this id, imported into `device` if it was not yet.
    pub(crate) fn segment(&self, device: &Device, id: u64) -> Result<Segment> {
        self.own.check()?;
        let mut imported = lock(&self.imported);
        if let Some(known) = imported.get(&id).filter(|known| known.segment.device().is(device)) {
            return Ok(known.segment.clone());
        }
        let segment = device.import(self.borrow(id)?)?;
        imported.entry(id).or_insert_with(|| Imported { segment: segment.clone(), users: 0 });
        Ok(segment)
    }

    fn borrow(&self, id: u64) -> Result<Exported> {
        let socket = lock(&self.socket);
        socket.send(&Packet::Segment { id }, None).map_err(broken)?;
        loop {
            let (packet, descriptor) =
                socket.receive(false).map_err(broken)?.ok_or_else(|| broken("closed by the service"))?;
            return match (packet, descriptor) {
                (Packet::SegmentIs(lent), Some(descriptor)) if lent.id == id => Ok(Exported {
                    descriptor,
                    len_bytes: lent.len_bytes,
                    allocation_bytes: lent.allocation_bytes,
                    backend: lent.backend.parse()?,
                    device: lent.device.parse()?,
                }),
                (Packet::Refused { kind, message }, _) => Err(Error::sent(kind, message)),
                (other, _) if self.note(other.clone()) => continue,
                _ => Err(broken("an answer to something else")),
            };
        }
    }

    /// An image's lease uses these segments, or does no more.
    pub(crate) fn use_segments(&self, ids: impl Iterator<Item = u64>, begins: bool) {
        let mut imported = lock(&self.imported);
        for id in ids {
            let Some(known) = imported.get_mut(&id) else { continue };
            known.users = if begins { known.users + 1 } else { known.users.saturating_sub(1) };
            if known.users == 0 {
                imported.remove(&id);
            }
        }
    }
}
