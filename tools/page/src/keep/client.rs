//! The side of whoever has something kept.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::message::{MESSAGE_MAX, Message, is_name};
use crate::wire;

/// A keeper answers at once, or something is wrong with it.
const PATIENCE: Duration = Duration::from_secs(2);

/// A connection to a keeper. Names are one namespace's own: those of another are not seen.
#[derive(Debug)]
pub struct Keeper {
    socket: OwnedFd,
    prefix: String,
}

impl Keeper {
    /// Connects to the keeper at `path`, for names in `namespace`.
    ///
    /// # Errors
    /// Nobody listens there, or it does not answer; `InvalidInput` for a namespace that is no name, or has a `/`.
    pub fn connect(path: &Path, namespace: &str) -> io::Result<Keeper> {
        if !is_name(namespace) || namespace.contains('/') {
            let why = format!("keeper: {namespace:?} is no namespace: expected letters, digits and -_.");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        sockopt::set_socket_timeout(&socket, Timeout::Send, Some(PATIENCE))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let keeper = Keeper { socket, prefix: format!("{namespace}/") };
        keeper.ping()?;
        Ok(keeper)
    }

    fn ask(
        &self,
        message: &Message,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> io::Result<(Message, Option<OwnedFd>)> {
        wire::send(&self.socket, &message.encode(), descriptor)?;
        let mut bytes = [0; MESSAGE_MAX];
        let (len, descriptor) = wire::receive(&self.socket, &mut bytes, false)?;
        if len == 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        match Message::decode(&bytes[..len])? {
            Message::Refused(why) => Err(io::Error::other(format!("keeper: {why}"))),
            answer => Ok((answer, descriptor)),
        }
    }

    /// Whether it answers.
    ///
    /// # Errors
    /// It does not.
    pub fn ping(&self) -> io::Result<()> {
        self.ask(&Message::Ping, None).map(|_| ())
    }

    /// Has a descriptor kept, in place of what had that name. It is kept when this returns.
    ///
    /// # Errors
    /// The keeper is gone, or full.
    pub fn put(&self, name: &str, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        self.ask(&Message::Put(format!("{}{name}", self.prefix)), Some(descriptor)).map(|_| ())
    }

    /// Lets a descriptor go; no error if none is kept under that name.
    ///
    /// # Errors
    /// The keeper is gone.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.ask(&Message::Remove(format!("{}{name}", self.prefix)), None).map(|_| ())
    }

    /// Everything that is kept in this namespace, by name. It stays kept.
    ///
    /// # Errors
    /// The keeper is gone; no descriptors are left in this process.
    pub fn all(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let mut found: Vec<(String, OwnedFd)> = Vec::new();
        let mut after = String::new();
        loop {
            match self.ask(&Message::Next { after, prefix: self.prefix.clone() }, None)? {
                (Message::Entry(name), Some(descriptor)) => {
                    let own = name.strip_prefix(&self.prefix).unwrap_or(&name).to_owned();
                    found.push((own, descriptor));
                    after = name;
                }
                (Message::Done, _) => return Ok(found),
                _ => {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "keeper: an answer of another kind",
                    ));
                }
            }
        }
    }
}
