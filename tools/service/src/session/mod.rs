//! Sessions, and the words by which their leases end.
//!
//! A session belongs to a process. It begins `new`, is `attached` while its lending socket is open, `detached` when that has
//! closed and the process lives, and goes when the process has ended. Leases are given to attached sessions only, so that
//! everything that is held is tied to a process whose end is seen.

mod book;
mod tags;
#[cfg(test)]
mod tests;
mod words;

pub use book::SessionBook;
pub use words::ClientWord;

use crate::access::Peer;
use crate::config::Quota;
use crate::error::{Error, Result};
use crate::images::ImageHold;
use spoc_page::Words;
use spoc_proto::v1 as pb;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tags::Tags;
use words::{Holds, SessionWords};

/// How long a token is good.
pub const TOKEN_LIFE: Duration = Duration::from_secs(30);
/// Words of a session that may hold few leases; one lease takes one.
const WORDS_MIN: usize = 512;
/// Leases that a new one looks at, the oldest looks first: what has ended is found without looking at all of them.
const GLANCES: usize = 4;

/// What a lease holds.
#[derive(Debug)]
pub enum Held {
    /// Slots of an arena; the cache itself waits for the word.
    Slots {
        /// Segments they lie in, by id.
        segments: Vec<u64>,
        model: Arc<str>,
        bytes: u64,
    },
    /// An image, until this is dropped.
    Image(ImageHold),
}

impl Held {
    fn bytes(&self) -> u64 {
        match self {
            Held::Slots { bytes, .. } => *bytes,
            Held::Image(hold) => hold.image().bytes,
        }
    }

    /// By which an image is found again; 0 for slots.
    fn first_segment(&self) -> u64 {
        match self {
            Held::Slots { .. } => 0,
            Held::Image(hold) => hold.image().segments.first().map_or(0, |segment| segment.id),
        }
    }

    fn has_segment(&self, id: u64) -> bool {
        match self {
            Held::Slots { segments, .. } => segments.contains(&id),
            Held::Image(hold) => hold.image().segments.iter().any(|segment| segment.id == id),
        }
    }
}

#[derive(Debug)]
struct LeaseEntry {
    word: u32,
    value: u64,
    /// Of the request that it answered; 0 for none.
    tag: u64,
    held: Held,
}

/// A lease, as its client is told.
#[derive(Debug)]
pub struct Grant {
    pub id: u64,
    pub word: u32,
    pub value: u64,
    /// For the cache to wait for.
    pub awaited: Arc<ClientWord>,
}

impl Grant {
    /// As its client is told; what it is on is for the caller to add.
    pub fn told(&self) -> pb::Lease {
        pb::Lease { id: self.id, word: self.word, value: self.value, ..pb::Lease::default() }
    }
}

/// Where a session is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    New,
    Attached,
    Detached,
    Dead,
}

impl Stage {
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::New => "new",
            Stage::Attached => "attached",
            Stage::Detached => "detached",
            Stage::Dead => "dead",
        }
    }
}

#[derive(Debug)]
struct Inside {
    stage: Stage,
    peer: Peer,
    /// Lending sockets that are open.
    connections: u32,
    /// Processes whose end is awaited.
    watched: Vec<u32>,
    leases: HashMap<u64, LeaseEntry>,
    /// Leases in the order in which they are to be looked at; some may have ended since.
    looks: VecDeque<u64>,
    /// Words that no lease has, with the value their last one ended at.
    free: Vec<(u32, u64)>,
    tags: Tags,
    next_lease: u64,
    held_bytes: u64,
}

impl Inside {
    fn new(stage: Stage, peer: Peer, free: Vec<(u32, u64)>, next_lease: u64) -> Inside {
        Inside {
            stage,
            peer,
            connections: 0,
            watched: Vec::new(),
            leases: HashMap::new(),
            looks: VecDeque::new(),
            free,
            tags: Tags::default(),
            next_lease,
            held_bytes: 0,
        }
    }

    fn add(&mut self, id: u64, entry: LeaseEntry) {
        self.held_bytes = self.held_bytes.saturating_add(entry.held.bytes());
        self.leases.insert(id, entry);
        self.looks.push_back(id);
    }

    /// Takes a lease out; what it held is kept no longer. It is for the caller to drop behind the lock, as that may free
    /// memory.
    fn end(&mut self, id: u64, holds: Option<&Holds>) -> Option<LeaseEntry> {
        let mut entry = self.leases.remove(&id)?;
        self.held_bytes = self.held_bytes.saturating_sub(entry.held.bytes());
        if let Some(holds) = holds {
            holds.clear(entry.word);
        }
        self.tags.forget(entry.tag);
        if let Held::Image(hold) = &mut entry.held {
            // Before anybody can find that the session does not have it: who evicts it then is not refused.
            hold.let_go();
        }
        self.free.push((entry.word, entry.value));
        Some(entry)
    }
}

/// A client's process and what it holds.
#[derive(Debug)]
pub struct Session {
    pub number: u64,
    pub name: String,
    /// The process that opened it; the socket's other end must be of the same user.
    pub opener: Peer,
    opened: Instant,
    resume: [u8; 32],
    quota: Quota,
    words: Arc<SessionWords>,
    /// If sessions outlive the service.
    holds: Option<Holds>,
    /// Leases that did not outlive a restart, and why; to be told.
    lost: Mutex<Vec<(u64, String)>>,
    inside: Mutex<Inside>,
    /// Leases out: read without the lock.
    lease_count: AtomicU64,
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stage(&self) -> Stage {
        self.lock().stage
    }

    pub fn peer(&self) -> Peer {
        self.lock().peer
    }

    pub fn words(&self) -> &Words {
        &self.words.shared
    }

    pub fn resume(&self) -> &[u8; 32] {
        &self.resume
    }

    /// What says of its leases what a restarted service has to know.
    pub fn holds(&self) -> Option<&Words> {
        self.holds.as_ref().map(|holds| &holds.0)
    }

    /// Leases that did not outlive a restart of the service; each is told once.
    pub fn take_lost(&self) -> Vec<(u64, String)> {
        std::mem::take(&mut self.lost.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Leases, and the bytes they hold.
    pub fn held(&self) -> (u32, u64) {
        let inside = self.lock();
        (u32::try_from(inside.leases.len()).unwrap_or(u32::MAX), inside.held_bytes)
    }

    /// Takes a word for a lease that holds `held`; `held` is made only if there is room for it. `tag` is that of the
    /// request, 0 for none.
    ///
    /// # Errors
    /// `not_attached`, `quota_exceeded`; `cancelled` if the client has given the request up by its tag.
    pub fn grant(&self, bytes: u64, tag: u64, held: impl FnOnce() -> Held) -> Result<Grant> {
        self.sweep_some(GLANCES);
        let mut held = Some(held);
        match self.try_grant(bytes, tag, &mut held) {
            // What has ended and was not seen yet makes room.
            Err(error) if error.kind() == "quota_exceeded" && self.sweep() > 0 => {
                self.try_grant(bytes, tag, &mut held)
            }
            granted => granted,
        }
    }

    fn try_grant(&self, bytes: u64, tag: u64, held: &mut Option<impl FnOnce() -> Held>) -> Result<Grant> {
        let mut inside = self.lock();
        if inside.stage != Stage::Attached {
            let message =
                "the session's lending socket is not connected: what is held must be tied to a process";
            return Err(Error::new("not_attached", message));
        }
        self.check_quota(&inside, bytes)?;
        if inside.tags.take_given_up(tag) {
            return Err(Error::new("cancelled", format!("request {tag} was given up by its client")));
        }
        let Some((held, (word, last))) = held.take().zip(inside.free.pop()) else {
            return Err(Error::new("quota_exceeded", "the session has no word left"));
        };
        // A client that wrote its word ahead of time ends its own lease; it must not end the next one too.
        let value = last.max(self.words.value(word)).saturating_add(1);
        let id = inside.next_lease;
        inside.next_lease += 1;
        let held = held();
        if let Some(holds) = &self.holds {
            holds.set(word, id, value, &held);
        }
        inside.add(id, LeaseEntry { word, value, tag, held });
        inside.tags.answered(tag, id);
        self.count(&inside);
        let awaited = Arc::new(ClientWord::new(&self.words, word));
        Ok(Grant { id, word, value, awaited })
    }

    fn check_quota(&self, inside: &Inside, bytes: u64) -> Result<()> {
        let quota = &self.quota;
        let sum = inside.held_bytes.saturating_add(bytes);
        if quota.held.0 > 0 && sum > quota.held.0 {
            let message = format!("the session would hold {sum} bytes, and may hold {}", quota.held);
            return Err(Error::new("quota_exceeded", message));
        }
        if inside.leases.len() >= quota.leases as usize {
            let message = format!("the session holds {} leases, as many as it may", quota.leases);
            return Err(Error::new("quota_exceeded", message));
        }
        if inside.free.is_empty() {
            return Err(Error::new("quota_exceeded", "the session has no word left"));
        }
        Ok(())
    }

    /// A lease on an image, as its client is told; without the tensors' table for one that has it.
    ///
    /// # Errors
    /// As of [`grant`](Session::grant).
    pub fn grant_image(&self, hold: ImageHold, tag: u64, with_tensors: bool) -> Result<pb::Lease> {
        let image = Arc::clone(hold.image());
        let grant = self.grant(image.bytes, tag, || Held::Image(hold))?;
        let tensors = if with_tensors { image.tensors.clone() } else { Vec::new() };
        Ok(pb::Lease { tensors, segments: image.told_segments(), ..grant.told() })
    }

    /// Ends leases; how many there were of these.
    pub fn release(&self, ids: &[u64]) -> u32 {
        let mut inside = self.lock();
        let mut ended = Vec::with_capacity(ids.len().min(inside.leases.len()));
        for &id in ids {
            if let Some(entry) = inside.end(id, self.holds.as_ref()) {
                self.words.raise(entry.word, entry.value);
                ended.push(entry);
            }
        }
        self.count(&inside);
        drop(inside);
        u32::try_from(ended.len()).unwrap_or(u32::MAX)
    }

    /// Ends the leases that requests with these tags were answered with. A request that is still under way is not
    /// granted any more.
    pub fn release_tags(&self, tags: &[u64]) -> u32 {
        let mut ids = Vec::new();
        {
            let mut inside = self.lock();
            for &tag in tags {
                ids.extend(inside.tags.lease_or_give_up(tag));
            }
        }
        self.release(&ids)
    }

    fn count(&self, inside: &Inside) {
        self.lease_count.store(inside.leases.len() as u64, Ordering::Relaxed);
    }

    /// Forgets leases whose words have come. How many.
    pub fn sweep(&self) -> usize {
        self.sweep_some(usize::MAX)
    }

    /// As [`sweep`](Session::sweep), looking at so many leases at most.
    fn sweep_some(&self, most: usize) -> usize {
        if self.lease_count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut inside = self.lock();
        let mut ended = Vec::new();
        for _ in 0..most.min(inside.looks.len()) {
            let Some(id) = inside.looks.pop_front() else { break };
            // One that was released is forgotten here.
            let Some(entry) = inside.leases.get(&id) else { continue };
            if self.words.value(entry.word) >= entry.value {
                ended.extend(inside.end(id, self.holds.as_ref()));
            } else {
                inside.looks.push_back(id);
            }
        }
        self.count(&inside);
        drop(inside);
        ended.len()
    }

    /// Whether one of its leases is on this segment.
    pub fn holds_segment(&self, id: u64) -> bool {
        self.lock().leases.values().any(|entry| entry.held.has_segment(id))
    }

    /// Its leases on slots of this model.
    pub fn leases_on(&self, model: &str) -> usize {
        let of =
            |entry: &&LeaseEntry| matches!(&entry.held, Held::Slots { model: held, .. } if **held == *model);
        self.lock().leases.values().filter(of).count()
    }

    /// # Errors
    /// `unknown_session` if its process has ended: nobody would see a lease of it end.
    fn attach(&self, peer: Peer) -> Result<()> {
        let mut inside = self.lock();
        if inside.stage == Stage::Dead {
            return Err(Error::new(
                "unknown_session",
                format!("there is no session {} any more", self.number),
            ));
        }
        inside.stage = Stage::Attached;
        inside.peer = peer;
        inside.connections += 1;
        Ok(())
    }

    /// Whether nobody awaits the end of this process yet; from now on the caller does.
    pub fn begin_watch(&self, pid: u32) -> bool {
        let mut inside = self.lock();
        let is_new = !inside.watched.contains(&pid);
        if is_new {
            inside.watched.push(pid);
        }
        is_new
    }

    /// This process is not awaited any more.
    pub fn end_watch(&self, pid: u32) {
        self.lock().watched.retain(|&watched| watched != pid);
    }

    /// A lending socket has closed. Nothing is released: the process may live. A client that connects anew may be faster
    /// than the end of its old connection.
    pub fn detach(&self) {
        let mut inside = self.lock();
        inside.connections = inside.connections.saturating_sub(1);
        if inside.stage == Stage::Attached && inside.connections == 0 {
            inside.stage = Stage::Detached;
        }
    }

    fn die(&self) -> usize {
        {
            let mut inside = self.lock();
            inside.stage = Stage::Dead;
            for entry in inside.leases.values() {
                self.words.raise(entry.word, u64::MAX);
            }
        }
        self.sweep()
    }
}
