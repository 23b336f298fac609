//! The keeper itself: one thread, no device, no mapping, no time at which it does anything unasked.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};

use super::message::{MESSAGE_MAX, Message};
use crate::leftover::remove_leftover_socket;
use crate::wire;

/// The most that is kept.
pub const ENTRIES_MAX: usize = 1 << 16;
/// Connections at a time: services that run, and one that starts.
const CLIENTS_MAX: usize = 64;

/// Keeps descriptors. What it keeps is closed when it is dropped.
#[derive(Debug)]
pub struct KeeperServer {
    listener: OwnedFd,
    path: PathBuf,
    clients: Vec<OwnedFd>,
    kept: BTreeMap<String, OwnedFd>,
}

fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

impl KeeperServer {
    /// Listens at `path`, for its own user only; a file there that nobody listens on is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if a keeper answers there; what the kernel says.
    pub fn bind(path: &Path) -> io::Result<KeeperServer> {
        let address = SocketAddrUnix::new(path)?;
        let probe = new_socket()?;
        remove_leftover_socket(path, |_| connect(probe, &address).is_ok())?;
        raise_limit();
        let listener = new_socket()?;
        bind(&listener, &address)?;
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        listen(&listener, 16)?;
        Ok(KeeperServer { listener, path: path.to_owned(), clients: Vec::new(), kept: BTreeMap::new() })
    }

    /// How many descriptors are kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.kept.len()
    }

    /// Serves whoever has something to say, waiting `wait_ms` at most for that; −1 for as long as it takes.
    ///
    /// # Errors
    /// The kernel's, when polling; a client that fails is let go, and no error.
    pub fn turn(&mut self, wait_ms: i64) -> io::Result<()> {
        let mut polled = vec![PollFd::new(&self.listener, PollFlags::IN)];
        polled.extend(self.clients.iter().map(|client| PollFd::new(client, PollFlags::IN)));
        let wait = Timespec { tv_sec: wait_ms / 1000, tv_nsec: wait_ms % 1000 * 1_000_000 };
        match poll(&mut polled, (wait_ms >= 0).then_some(&wait)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        drop(polled);
        let mut ready_clients = ready[1..].iter().copied();
        for client in std::mem::take(&mut self.clients) {
            let is_ready = ready_clients.next().unwrap_or(false);
            if !is_ready || self.serve(&client).is_ok() {
                self.clients.push(client);
            }
        }
        if ready[0] {
            self.accept();
        }
        Ok(())
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(client) = accept_with(&self.listener, flags) else { return };
        let is_own = sockopt::socket_peercred(&client).is_ok_and(|peer| peer.uid == geteuid());
        if is_own && self.clients.len() < CLIENTS_MAX {
            self.clients.push(client);
        }
    }

    /// One request. An error ends the connection.
    fn serve(&mut self, client: &OwnedFd) -> io::Result<()> {
        let mut bytes = [0; MESSAGE_MAX];
        let (len, descriptor) = match wire::receive(client, &mut bytes, true) {
            Ok((0, _)) => return Err(io::ErrorKind::ConnectionReset.into()),
            Ok(received) => received,
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return wire::send(client, &Message::Refused(error.to_string()).encode(), None);
            }
            Err(error) => return Err(error),
        };
        let message = match Message::decode(&bytes[..len]) {
            Ok(message) => message,
            Err(error) => return wire::send(client, &Message::Refused(error.to_string()).encode(), None),
        };
        let (answer, lent) = self.answer(message, descriptor);
        wire::send(client, &answer.encode(), lent.map(AsFd::as_fd))
    }

    fn answer(&mut self, message: Message, descriptor: Option<OwnedFd>) -> (Message, Option<&OwnedFd>) {
        let refused = |why: &str| (Message::Refused(why.to_owned()), None);
        match (message, descriptor) {
            (Message::Put(name), Some(descriptor)) => {
                if self.kept.len() >= ENTRIES_MAX && !self.kept.contains_key(&name) {
                    return refused("as much is kept as may be");
                }
                self.kept.insert(name, descriptor);
                (Message::Done, None)
            }
            (Message::Put(_), None) => refused("no descriptor came along"),
            (Message::Remove(name), _) => {
                self.kept.remove(&name);
                (Message::Done, None)
            }
            (Message::Next { after, prefix }, _) => {
                let start = if after.is_empty() { Bound::Included(&prefix) } else { Bound::Excluded(&after) };
                match self.kept.range::<String, _>((start, Bound::Unbounded)).next() {
                    Some((name, kept)) if name.starts_with(&prefix) => {
                        (Message::Entry(name.clone()), Some(kept))
                    }
                    _ => (Message::Done, None),
                }
            }
            (Message::Ping, _) => (Message::Done, None),
            _ => refused("that is an answer"),
        }
    }
}

impl Drop for KeeperServer {
    fn drop(&mut self) {
        // A leftover is recognised by nobody listening on it.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// As many descriptors as this process may have.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // A wish: a keeper with fewer says so when it is full.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

#[cfg(test)]
mod tests {
    use super::super::Keeper;
    use super::*;
    use crate::Words;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    /// A keeper that serves until `work` has ended; what it keeps then.
    fn with_keeper(path: &Path, work: impl FnOnce()) -> KeeperServer {
        let mut server = KeeperServer::bind(path).expect("listens");
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                while !done.load(SeqCst) {
                    server.turn(10).expect("polled");
                }
            });
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            done.store(true, SeqCst);
            serving.join().expect("served");
            if let Err(panic) = outcome {
                std::panic::resume_unwind(panic);
            }
        });
        server
    }

    #[test]
    fn what_is_kept_outlives_its_connection() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("keeper");
        let server = with_keeper(&path, || {
            let words = Words::create(4).expect("words");
            let keeper = Keeper::connect(&path, "one").expect("connected");
            for name in ["b", "a", "c"] {
                keeper.put(name, words.descriptor()).expect("kept");
            }
            words.words()[1].store(5, SeqCst);
            drop((keeper, words));
            assert!(Keeper::connect(&path, "other").expect("connected").all().expect("listed").is_empty());
            let again = Keeper::connect(&path, "one").expect("connected");
            let all = again.all().expect("listed");
            let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["a", "b", "c"]);
            let words = Words::map(all.into_iter().next().expect("one").1).expect("mapped");
            assert_eq!(words.words()[1].load(SeqCst), 5);
            again.remove("a").expect("let go");
            again.remove("a").expect("none, which is no error");
            assert_eq!(again.all().expect("listed").len(), 2);
            assert!(again.put("no name", words.descriptor()).is_err());
            again.put("b", words.descriptor()).expect("the connection is still good");
        });
        assert_eq!(server.kept(), 2);
    }

    #[test]
    fn rubbish_is_refused_and_harms_nobody() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("keeper");
        let server = with_keeper(&path, || {
            let keeper = Keeper::connect(&path, "one").expect("connected");
            let rude = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .expect("made");
            connect(&rude, &SocketAddrUnix::new(&path).expect("path")).expect("connected");
            let put = Message::Put("one/x".into()).encode();
            for bytes in [&b"x"[..], &[0; 4000], &put, &Message::Done.encode()] {
                wire::send(&rude, bytes, None).expect("sent");
                let mut answer = [0; MESSAGE_MAX];
                let (len, _) = wire::receive(&rude, &mut answer, false).expect("answered");
                assert!(matches!(Message::decode(&answer[..len]), Ok(Message::Refused(_))));
            }
            keeper.ping().expect("still there");
            assert!(keeper.all().expect("listed").is_empty());
            assert_eq!(KeeperServer::bind(&path).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
            assert!(Keeper::connect(&path, "a/b").is_err());
        });
        assert_eq!(server.kept(), 0);
        drop(server);
        assert!(!path.exists());
        assert!(Keeper::connect(&path, "one").is_err(), "nobody listens");
    }
}
