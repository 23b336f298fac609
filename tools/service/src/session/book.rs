//! Every session there is, and how one is opened, attached, adopted and ended.

use super::words::{HOLD, Holds, SessionWords};
use super::{Held, Inside, LeaseEntry, Session, Stage, TOKEN_LIFE, WORDS_MIN};
use crate::access::Peer;
use crate::config::Quota;
use crate::error::{Error, Result};
use crate::images::ImageHold;
use crate::record;
use rustix::rand::{GetRandomFlags, getrandom};
use spoc_page::Words;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

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
        let mut inside = Inside::new(Stage::Detached, opener, Vec::new(), next_lease);
        let mut lost = Vec::new();
        for word in (0..u32::try_from(count).unwrap_or(u32::MAX)).rev() {
            let [id, value, image, _] = holds.hold(word) else { continue };
            let lease = id.load(Ordering::Acquire);
            let (value, image) = (value.load(Ordering::Relaxed), image.load(Ordering::Relaxed));
            let is_out = lease > 0 && words.value(word) < value;
            match Some(image).filter(|image| is_out && *image > 0).and_then(&find) {
                Some(hold) => {
                    let held = Held::Image(hold);
                    inside.add(lease, LeaseEntry { word, value, tag: 0, held });
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
        let inside = Inside::new(Stage::New, opener, free, 1);
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
