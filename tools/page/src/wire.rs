//! Packets on a SEQPACKET socket, with at most one descriptor each.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Sends one packet.
///
/// # Errors
/// The other side is gone, or takes nothing.
pub(crate) fn send(socket: impl AsFd, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors
        && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(io::Error::other("no room for the descriptor"));
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one packet into `bytes`: its length, 0 when the other side has closed, and its descriptor.
///
/// # Errors
/// `WouldBlock`; `InvalidData` for a packet longer than `bytes`, or with several descriptors, which are closed.
pub(crate) fn receive(
    socket: impl AsFd,
    bytes: &mut [u8],
    dont_wait: bool,
) -> io::Result<(usize, Option<OwnedFd>)> {
    // Room for more than one, so that a packet with several is seen and their descriptors closed.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut flags = RecvFlags::CMSG_CLOEXEC;
    flags.set(RecvFlags::DONTWAIT, dont_wait);
    let got = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    if got.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) || descriptors.len() > 1 {
        let why = "a packet longer than any, or with several descriptors, or one that could not be taken";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok((got.bytes, descriptors.pop()))
}
