//! Sessions, and the words by which their leases end.
//!
//! A session belongs to a process. It begins `new`, is `attached` while its lending socket is open, `detached` when that has
//! closed and the process lives, and goes when the process has ended. Leases are given to attached sessions only, so that
//! everything that is held is tied to a process whose end is seen.

use crate::access::Peer;
use crate::config::Quota;
use crate::error::{Error, Result};
use crate::images::ImageHold;
use crate::record;
use rustix::rand::{GetRandomFlags, getrandom};
use spoc_cache::SequenceWord;
use spoc_page::Words;
use spoc_proto::v1 as pb;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a token is good.
pub const TOKEN_LIFE: Duration = Duration::from_secs(30);
/// Words of a session that may hold few leases; one lease takes one.
const WORDS_MIN: usize = 512;

/// Words that the client writes, each beside one that only this service does.
#[derive(Debug)]
pub struct SessionWords {
    shared: Words,
    own: Box<[AtomicU64]>,
}

/// Words that say what a session holds, kept beside its record: for each word of the session [`HOLD`] of them, and behind
/// all the number that the next lease is to have. What a restarted service knows of leases is this.
#[derive(Debug)]
struct Holds(Words);

/// Lease, or 0 for none; its value, or that of the last one; first segment of the image, or 0 for slots; bytes.
const HOLD: usize = 4;

impl Holds {
    fn create(count: usize) -> Result<Holds> {
        Ok(Holds(Words::create(count * HOLD + 1)?))
    }

    fn hold(&self, word: u32) -> &[AtomicU64] {
        let at = word as usize * HOLD;
        self.0.words().get(at..at + HOLD).unwrap_or_default()
    }

    /// The lease is written last, so that one that is there is whole.
    fn set(&self, word: u32, lease: u64, value: u64, held: &Held) {
        if let [id, of_value, image, bytes] = self.hold(word) {
            of_value.store(value, Ordering::Relaxed);
            image.store(held.first_segment(), Ordering::Relaxed);
            bytes.store(held.bytes(), Ordering::Relaxed);
            if let Some(next) = self.0.words().last() {
                next.store(lease + 1, Ordering::Relaxed);
            }
            id.store(lease, Ordering::Release);
        }
    }

    fn clear(&self, word: u32) {
        if let [id, ..] = self.hold(word) {
            id.store(0, Ordering::Release);
        }
    }
}

impl SessionWords {
    fn create(count: usize) -> Result<Arc<SessionWords>> {
        SessionWords::of(Words::create(count)?)
    }

    fn of(shared: Words) -> Result<Arc<SessionWords>> {
        let count = shared.words().len();
        let own = (0..count).map(|_| AtomicU64::new(0)).collect();
        Ok(Arc::new(SessionWords { shared, own }))
    }

    fn value(&self, index: u32) -> u64 {
        let at = index as usize;
        let theirs = self.shared.words().get(at).map_or(u64::MAX, |word| word.load(Ordering::Acquire));
        let own = self.own.get(at).map_or(u64::MAX, |word| word.load(Ordering::Acquire));
        theirs.max(own)
    }

    fn raise(&self, index: u32, value: u64) {
        if let Some(word) = self.own.get(index as usize) {
            word.fetch_max(value, Ordering::AcqRel);
        }
    }
}

/// One word, as a cache waits for it.
#[derive(Debug)]
pub struct ClientWord {
    words: Arc<SessionWords>,
    index: u32,
}

impl SequenceWord for ClientWord {
    fn load(&self) -> u64 {
        self.words.value(self.index)
    }
}

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
    /// Words that no lease has, with the value their last one ended at.
    free: Vec<(u32, u64)>,
    next_lease: u64,
    held_bytes: u64,
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

    /// Takes a word for a lease that holds `held`; `held` is made only if there is room for it.
    ///
    /// # Errors
    /// `not_attached`, `quota_exceeded`.
    pub fn grant(&self, bytes: u64, held: impl FnOnce() -> Held) -> Result<Grant> {
        self.sweep();
        let mut inside = self.lock();
        if inside.stage != Stage::Attached {
            let message =
                "the session's lending socket is not connected: what is held must be tied to a process";
            return Err(Error::new("not_attached", message));
        }
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
        let Some((word, last)) = inside.free.pop() else {
            return Err(Error::new("quota_exceeded", "the session has no word left"));
        };
        // A client that wrote its word ahead of time ends its own lease; it must not end the next one too.
        let value = last.max(self.words.value(word)).saturating_add(1);
        let id = inside.next_lease;
        inside.next_lease += 1;
        inside.held_bytes = sum;
        let held = held();
        if let Some(holds) = &self.holds {
            holds.set(word, id, value, &held);
        }
        inside.leases.insert(id, LeaseEntry { word, value, held });
        self.lease_count.store(inside.leases.len() as u64, Ordering::Relaxed);
        let awaited = Arc::new(ClientWord { words: Arc::clone(&self.words), index: word });
        Ok(Grant { id, word, value, awaited })
    }

    /// A lease on an image, as its client is told; without the tensors' table for one that has it.
    ///
    /// # Errors
    /// As of [`grant`](Session::grant).
    pub fn grant_image(&self, hold: ImageHold, with_tensors: bool) -> Result<pb::Lease> {
        let image = Arc::clone(hold.image());
        let grant = self.grant(image.bytes, || Held::Image(hold))?;
        let tensors = if with_tensors { image.tensors.clone() } else { Vec::new() };
        Ok(pb::Lease { tensors, segments: image.told_segments(), ..grant.told() })
    }

    /// Ends leases; how many there were of these.
    pub fn release(&self, ids: &[u64]) -> u32 {
        let mut count = 0;
        {
            let inside = self.lock();
            for entry in ids.iter().filter_map(|id| inside.leases.get(id)) {
                self.words.raise(entry.word, entry.value);
                count += 1;
            }
        }
        self.sweep();
        count
    }

    /// Forgets leases whose words have come. How many.
    pub fn sweep(&self) -> usize {
        if self.lease_count.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut inside = self.lock();
        let ended: Vec<u64> = inside
            .leases
            .iter()
            .filter(|(_, entry)| self.words.value(entry.word) >= entry.value)
            .map(|(id, _)| *id)
            .collect();
        let mut entries = Vec::with_capacity(ended.len());
        for id in &ended {
            let Some(entry) = inside.leases.remove(id) else { continue };
            inside.held_bytes = inside.held_bytes.saturating_sub(entry.held.bytes());
            if let Some(holds) = &self.holds {
                holds.clear(entry.word);
            }
            inside.free.push((entry.word, entry.value));
            entries.push(entry);
        }
        self.lease_count.store(inside.leases.len() as u64, Ordering::Relaxed);
        // What they held may take other locks as it goes.
        drop(inside);
        entries.len()
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

/// Every session, by number; and tokens that are good for one attachment.
#[derive(Debug, Default)]
pub struct SessionBook {
    inside: Mutex<Book>,
    /// Clients that ended while they held something.
    lost: AtomicU64,
    stopping: AtomicBool,
    /// Whether sessions are parked.
    parks: bool,
}

#[derive(Debug, Default)]
struct Book {
    next: u64,
    sessions: HashMap<u64, Arc<Session>>,
    tokens: HashMap<[u8; 32], u64>,
}

fn secret() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(32) => Ok(bytes),
        Ok(_) => Err(Error::new("os", "the kernel gives no random numbers")),
        Err(error) => Err(Error::new("os", format!("random numbers: {error}"))),
    }
}

impl SessionBook {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A book whose sessions outlive the service, if they are parked.
    pub fn new(parks: bool) -> SessionBook {
        SessionBook { parks, ..SessionBook::default() }
    }

    /// A session that an earlier process of this service had, detached, with the leases whose images `find` holds, by their
    /// first segment. Leases that it had and has no more.
    ///
    /// # Errors
    /// What of record and words does not agree.
    pub fn adopt(
        &self,
        record: &record::Session,
        words: Words,
        holds: Words,
        quota: Quota,
        find: impl Fn(u64) -> Option<ImageHold>,
    ) -> Result<(Arc<Session>, usize)> {
        let (count, disagree) = (words.words().len(), |what: &str| Error::new("internal", what));
        if holds.words().len() != count * HOLD + 1 {
            return Err(disagree("its words and its leases do not agree"));
        }
        let resume =
            record.resume.as_slice().try_into().map_err(|_| disagree("its secret has another length"))?;
        let (words, holds) = (SessionWords::of(words)?, Holds(holds));
        let opener = Peer { pid: record.pid, uid: record.uid, gid: record.gid };
        let next_lease = holds.0.words().last().map_or(1, |next| next.load(Ordering::Acquire).max(1));
        let mut inside = Inside {
            stage: Stage::Detached,
            peer: opener,
            connections: 0,
            watched: Vec::new(),
            leases: HashMap::new(),
            free: Vec::new(),
            next_lease,
            held_bytes: 0,
        };
        let mut lost = Vec::new();
        for word in (0..u32::try_from(count).unwrap_or(u32::MAX)).rev() {
            let [id, value, image, _] = holds.hold(word) else { continue };
            let lease = id.load(Ordering::Acquire);
            let (value, image) = (value.load(Ordering::Relaxed), image.load(Ordering::Relaxed));
            let is_out = lease > 0 && words.value(word) < value;
            match Some(image).filter(|image| is_out && *image > 0).and_then(&find) {
                Some(hold) => {
                    let held = Held::Image(hold);
                    inside.held_bytes = inside.held_bytes.saturating_add(held.bytes());
                    inside.leases.insert(lease, LeaseEntry { word, value, held });
                    continue;
                }
                None if is_out => {
                    let what = if image == 0 { "slots do" } else { "its image did" };
                    lost.push((lease, format!("{what} not outlive the restart of the service")));
                }
                None => {}
            }
            holds.clear(word);
            inside.free.push((word, value));
        }
        let lost_count = lost.len();
        let session = Arc::new(Session {
            number: record.number,
            name: record.name.clone(),
            opener,
            opened: Instant::now(),
            resume,
            quota,
            words,
            holds: Some(holds),
            lost: Mutex::new(lost),
            lease_count: AtomicU64::new(inside.leases.len() as u64),
            inside: Mutex::new(inside),
        });
        let mut book = self.lock();
        book.next = book.next.max(record.number);
        book.sessions.insert(record.number, Arc::clone(&session));
        Ok((session, lost_count))
    }

    /// No session gets a number up to this one: a client may have it.
    pub fn skip(&self, number: u64) {
        let mut book = self.lock();
        book.next = book.next.max(number);
    }

    /// A new session of this process, and the token with which it is attached.
    ///
    /// # Errors
    /// `quota_exceeded`; the kernel's.
    pub fn open(&self, name: &str, opener: Peer, quota: Quota) -> Result<(Arc<Session>, [u8; 32])> {
        let (token, resume) = (secret()?, secret()?);
        let count = WORDS_MIN.max(quota.leases as usize);
        let words = SessionWords::create(count)?;
        let holds = if self.parks { Some(Holds::create(count)?) } else { None };
        self.forget_stale();
        let mut book = self.lock();
        if book.sessions.len() >= quota.sessions as usize {
            let message = format!("{} sessions are open, as many as may be", book.sessions.len());
            return Err(Error::new("quota_exceeded", message));
        }
        book.next += 1;
        let number = book.next;
        let free =
            (0..u32::try_from(words.own.len()).unwrap_or(u32::MAX)).rev().map(|word| (word, 0)).collect();
        let inside = Inside {
            stage: Stage::New,
            peer: opener,
            connections: 0,
            watched: Vec::new(),
            leases: HashMap::new(),
            free,
            next_lease: 1,
            held_bytes: 0,
        };
        let session = Arc::new(Session {
            number,
            name: name.chars().filter(|c| !c.is_control()).take(64).collect(),
            opener,
            opened: Instant::now(),
            resume,
            quota,
            words,
            holds,
            lost: Mutex::default(),
            inside: Mutex::new(inside),
            lease_count: AtomicU64::new(0),
        });
        book.sessions.insert(number, Arc::clone(&session));
        book.tokens.insert(token, number);
        Ok((session, token))
    }

    /// Sessions whose token was never used in time hold nothing, and go.
    fn forget_stale(&self) {
        let mut book = self.lock();
        let Book { sessions, tokens, .. } = &mut *book;
        tokens.retain(|_, number| {
            let is_stale = sessions.get(number).is_none_or(|session| session.opened.elapsed() > TOKEN_LIFE);
            if is_stale && sessions.get(number).is_some_and(|session| session.stage() == Stage::New) {
                sessions.remove(number);
            }
            !is_stale
        });
    }

    /// Attaches the session that this token is good for.
    ///
    /// # Errors
    /// `not_permitted` for a token that is none, was used, is too old, or belongs to another user.
    pub fn attach(&self, token: &[u8; 32], peer: Peer) -> Result<Arc<Session>> {
        self.forget_stale();
        let refuse = || Error::new("not_permitted", "the token is none, was used before, or is too old");
        let mut book = self.lock();
        let number = book.tokens.remove(token).ok_or_else(refuse)?;
        let session = book.sessions.get(&number).cloned().ok_or_else(refuse)?;
        drop(book);
        same_user(&session, peer)?;
        session.attach(peer)?;
        Ok(session)
    }

    /// Attaches a session that its client has already.
    ///
    /// # Errors
    /// `unknown_session`, `not_permitted`.
    pub fn resume(&self, number: u64, resume: &[u8; 32], peer: Peer) -> Result<Arc<Session>> {
        let unknown = || Error::new("unknown_session", format!("there is no session {number} (any more)"));
        let session = self.lock().sessions.get(&number).cloned().ok_or_else(unknown)?;
        // Said alike for a wrong secret: whether a number exists is nobody else's business.
        if session.resume != *resume {
            return Err(unknown());
        }
        same_user(&session, peer)?;
        session.attach(peer)?;
        Ok(session)
    }

    /// The session of a request, by the text that its client was given.
    ///
    /// # Errors
    /// `unknown_session`; `not_permitted` for another user's.
    pub fn get(&self, text: &str, uid: u32) -> Result<Arc<Session>> {
        let unknown =
            || Error::new("unknown_session", format!("{text:?} is no session (any more): open one"));
        let number: u64 = text.parse().map_err(|_| unknown())?;
        let session = self.lock().sessions.get(&number).cloned().ok_or_else(unknown)?;
        if session.opener.uid != uid {
            return Err(Error::new("not_permitted", format!("session {number} belongs to another user")));
        }
        Ok(session)
    }

    pub fn all(&self) -> Vec<Arc<Session>> {
        self.lock().sessions.values().cloned().collect()
    }

    /// The process has ended: what it held is free, as soon as copies in flight have ended too.
    pub fn died(&self, session: &Session) -> usize {
        let mut book = self.lock();
        book.sessions.remove(&session.number);
        // An attachment that found it before waits for its lock, and finds it dead.
        drop(book);
        let held = session.die();
        if held > 0 && !self.stopping.load(Ordering::Relaxed) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        held
    }

    /// Leases of all sessions, and the bytes they hold.
    pub fn held(&self) -> (u64, u64) {
        self.all().iter().map(|session| session.held()).fold((0, 0), |(leases, bytes), (own, held)| {
            (leases + u64::from(own), bytes.saturating_add(held))
        })
    }

    /// Looks at every word. Leases that ended.
    pub fn sweep(&self) -> usize {
        self.all().iter().map(|session| session.sweep()).sum()
    }

    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// From now on sessions end with the service, not with their clients.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }
}

fn same_user(session: &Session, peer: Peer) -> Result<()> {
    if session.opener.uid == peer.uid {
        return Ok(());
    }
    let (own, other) = (session.opener.uid, peer.uid);
    Err(Error::new(
        "not_permitted",
        format!("the session was opened by user {own}, and is to be attached by {other}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: Peer = Peer { pid: 7, uid: 8, gid: 9 };

    fn slots(bytes: u64) -> Held {
        Held::Slots { segments: vec![3], model: "m".into(), bytes }
    }

    fn attached(quota: Quota) -> (SessionBook, Arc<Session>) {
        let book = SessionBook::default();
        let (session, token) = book.open("test", PEER, quota).expect("opened");
        assert_eq!(session.grant(1, || slots(1)).expect_err("not yet").kind(), "not_attached");
        assert!(Arc::ptr_eq(&book.attach(&token, PEER).expect("attached"), &session));
        assert_eq!(book.attach(&token, PEER).expect_err("used").kind(), "not_permitted");
        (book, session)
    }

    #[test]
    fn a_lease_ends_by_the_clients_word_by_a_release_or_by_death() {
        let (book, session) = attached(Quota::default());
        let grants: Vec<Grant> = (0..3).map(|_| session.grant(10, || slots(10)).expect("granted")).collect();
        assert_eq!((session.held(), book.held()), ((3, 30), (3, 30)));
        assert!(session.holds_segment(3) && !session.holds_segment(4) && session.leases_on("m") == 3);
        let first = &grants[0];
        assert!(first.awaited.load() < first.value);
        session.words().words()[first.word as usize].store(first.value, Ordering::Release);
        assert!(first.awaited.load() >= first.value);
        assert_eq!((session.sweep(), session.held()), (1, (2, 20)));
        assert_eq!(session.release(&[grants[1].id, grants[1].id + 100]), 1);
        assert!(grants[1].awaited.load() >= grants[1].value);
        session.detach();
        assert_eq!((session.stage(), session.held()), (Stage::Detached, (1, 10)));
        assert_eq!((book.died(&session), book.lost()), (1, 1));
        assert!(grants[2].awaited.load() >= grants[2].value && session.held() == (0, 0));
        assert_eq!(
            book.get(&session.number.to_string(), PEER.uid).expect_err("gone").kind(),
            "unknown_session"
        );
    }

    #[test]
    fn a_word_is_used_again_with_a_higher_value() {
        let (_book, session) = attached(Quota { leases: 2, ..Quota::default() });
        let mut last = HashMap::new();
        for round in 0..2000 {
            let grant = session.grant(1, || slots(1)).expect("granted");
            let before = last.insert(grant.word, grant.value);
            assert!(before.is_none_or(|before| before < grant.value), "{round}");
            assert!(grant.awaited.load() < grant.value);
            if round % 3 == 0 {
                // A client that writes too much ends this lease, and no later one.
                session.words().words()[grant.word as usize].store(grant.value + 5, Ordering::Release);
            }
            session.release(&[grant.id]);
        }
    }

    #[test]
    fn quotas_bound_leases_bytes_and_sessions() {
        let (_book, session) = attached(Quota { leases: 2, held: crate::Size(100), ..Quota::default() });
        session.grant(60, || slots(60)).expect("fits");
        assert_eq!(session.grant(41, || slots(41)).expect_err("too many bytes").kind(), "quota_exceeded");
        session.grant(40, || slots(40)).expect("fits");
        assert_eq!(session.grant(0, || slots(0)).expect_err("too many").kind(), "quota_exceeded");
        let book = SessionBook::default();
        let quota = Quota { sessions: 1, ..Quota::default() };
        book.open("one", PEER, quota).expect("opened");
        assert_eq!(book.open("two", PEER, quota).expect_err("too many").kind(), "quota_exceeded");
    }

    #[test]
    fn a_session_is_its_users_own() {
        let (book, session) = attached(Quota::default());
        let other = Peer { uid: 1, ..PEER };
        assert_eq!(book.get(&session.number.to_string(), 1).expect_err("another's").kind(), "not_permitted");
        assert_eq!(
            book.resume(session.number, session.resume(), other).expect_err("another's").kind(),
            "not_permitted"
        );
        assert_eq!(
            book.resume(session.number, &[0; 32], PEER).expect_err("no secret").kind(),
            "unknown_session"
        );
        session.detach();
        book.resume(session.number, session.resume(), PEER).expect("resumed");
        assert_eq!(session.stage(), Stage::Attached);
        book.resume(session.number, session.resume(), PEER).expect("resumed beside it");
        session.detach();
        assert_eq!(session.stage(), Stage::Attached, "one of its sockets is open");
        session.detach();
        assert_eq!(session.stage(), Stage::Detached);
    }

    #[test]
    fn a_dead_session_is_not_attached_again_and_a_process_is_watched_once() {
        let (book, session) = attached(Quota::default());
        assert!(session.begin_watch(7) && session.begin_watch(8) && !session.begin_watch(7));
        session.end_watch(7);
        assert!(session.begin_watch(7));
        book.died(&session);
        // As by a request that had found it just before.
        assert_eq!(session.attach(PEER).expect_err("dead").kind(), "unknown_session");
        assert_eq!(session.grant(1, || slots(1)).expect_err("dead").kind(), "not_attached");
    }
}
