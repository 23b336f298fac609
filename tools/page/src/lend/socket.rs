//! The socket itself.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::packet::{PACKET_MAX, Packet};
use crate::leftover::remove_leftover_socket;
use crate::wire;

/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// Who is at the other end, as the kernel says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id as seen from here; 0 for a process that cannot be seen from here.
    pub pid: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// A descriptor that becomes readable when the process ends.
///
/// # Errors
/// No such process, or one that cannot be seen from here.
pub fn pidfd_of(pid: u32) -> io::Result<OwnedFd> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::NotFound)?;
    Ok(pidfd_open(pid, PidfdFlags::NONBLOCK)?)
}

/// A connected end.
#[derive(Debug)]
pub struct LendSocket(OwnedFd);

impl AsFd for LendSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for LendSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl LendSocket {
    /// Connects to the socket at `path`; calls wait for `timeout` at most.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: &Path, timeout: Duration) -> io::Result<LendSocket> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(LendSocket(socket))
    }

    /// Who is at the other end.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn peer(&self) -> io::Result<Peer> {
        let credentials = sockopt::socket_peercred(&self.0)?;
        let number = |raw: i32| u32::try_from(raw).unwrap_or(0);
        Ok(Peer {
            pid: number(credentials.pid.as_raw_nonzero().get()),
            uid: credentials.uid.as_raw(),
            gid: credentials.gid.as_raw(),
        })
    }

    /// A descriptor that becomes readable when the process at the other end has ended: the one that connected, even if its
    /// number belongs to another by now, or means nothing here. A kernel that does not give it is asked by number.
    ///
    /// # Errors
    /// No such process any more, or one that cannot be seen from here.
    pub fn peer_pidfd(&self) -> io::Result<OwnedFd> {
        match nix::sys::socket::getsockopt(&self.0, nix::sys::socket::sockopt::PeerPidfd) {
            Ok(process) => Ok(process),
            Err(Errno::ENOPROTOOPT) => pidfd_of(self.peer()?.pid),
            // So it is said of a process that was waited for already.
            Err(Errno::EINVAL) => Err(Errno::ESRCH.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a packet, with a descriptor if there is one.
    ///
    /// # Errors
    /// The other side is gone, or takes nothing.
    pub fn send(&self, packet: &Packet, descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
        wire::send(&self.0, &packet.encode(), descriptor)
    }

    /// The next packet and its descriptor; `None` when the other side has closed.
    ///
    /// # Errors
    /// `WouldBlock` after the timeout, or at once if `dont_wait`; `InvalidData` for what is no packet.
    pub fn receive(&self, dont_wait: bool) -> io::Result<Option<(Packet, Option<OwnedFd>)>> {
        let mut bytes = [0; PACKET_MAX];
        let (len, descriptor) = wire::receive(&self.0, &mut bytes, dont_wait)?;
        if len == 0 {
            return Ok(None);
        }
        Ok(Some((Packet::decode(&bytes[..len])?, descriptor)))
    }
}

/// The listening end. Its file goes with it.
#[derive(Debug)]
pub struct LendListener {
    socket: OwnedFd,
    path: PathBuf,
}

impl AsFd for LendListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for LendListener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl LendListener {
    /// Listens at `path`, without blocking; a file there that nobody listens on is replaced.
    ///
    /// # Errors
    /// `AddrInUse` if somebody answers there; what the kernel says.
    pub fn bind(path: &Path) -> io::Result<LendListener> {
        remove_leftover_socket(path, |path| LendSocket::connect(path, Duration::from_secs(1)).is_ok())?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, BACKLOG)?;
        Ok(LendListener { socket, path: path.to_owned() })
    }

    /// The next connection.
    ///
    /// # Errors
    /// `WouldBlock` if there is none; what the kernel says.
    pub fn accept(&self) -> io::Result<LendSocket> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(LendSocket(accept_with(&self.socket, flags)?))
    }
}

impl Drop for LendListener {
    fn drop(&mut self) {
        // A leftover is recognised by nobody listening on it.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Words;
    use std::sync::atomic::Ordering::SeqCst;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn packets_and_descriptors_cross() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lend");
        let listener = LendListener::bind(&path).expect("listens");
        assert_eq!(listener.accept().expect_err("nobody yet").kind(), io::ErrorKind::WouldBlock);
        let client = LendSocket::connect(&path, SECOND).expect("connected");
        let service = listener.accept().expect("accepted");
        let peer = service.peer().expect("a peer");
        assert_eq!(peer.pid, std::process::id());
        client.send(&Packet::Segment { id: 5 }, None).expect("sent");
        assert_eq!(
            service.receive(true).expect("received").map(|(packet, _)| packet),
            Some(Packet::Segment { id: 5 })
        );
        let words = Words::create(8).expect("words");
        let welcome = Packet::Welcome { session: 1, resume: [1; 32], words: 8 };
        service.send(&welcome, Some(words.descriptor())).expect("sent");
        let (packet, descriptor) = client.receive(false).expect("received").expect("a packet");
        assert_eq!(packet, welcome);
        let shared = Words::map(descriptor.expect("a descriptor")).expect("mapped");
        shared.words()[3].store(9, SeqCst);
        assert_eq!(words.words()[3].load(SeqCst), 9);
        assert_eq!(service.receive(true).expect_err("nothing").kind(), io::ErrorKind::WouldBlock);
        drop(client);
        assert!(service.receive(true).expect("the end").is_none());
    }

    #[test]
    fn one_listener_a_path_and_no_leftover() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("lend");
        let first = LendListener::bind(&path).expect("listens");
        assert_eq!(LendListener::bind(&path).expect_err("taken").kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        drop(std::os::unix::net::UnixListener::bind(&path).expect("left over"));
        drop(LendListener::bind(&path).expect("replaced"));
    }

    #[test]
    fn a_pidfd_shows_the_end_of_a_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("starts");
        let descriptor = pidfd_of(child.id()).expect("a pidfd");
        let readable = || {
            let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
            let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            rustix::event::poll(&mut polled, Some(&timeout)).expect("polled") == 1
        };
        assert!(!readable());
        child.kill().expect("killed");
        child.wait().expect("ended");
        assert!(readable());
        assert!(pidfd_of(0).is_err());
    }
}
