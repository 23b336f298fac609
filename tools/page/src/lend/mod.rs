//! The lending socket: SEQPACKET, one packet a message, at most one descriptor a packet.
//!
//! ```text
//! client → Hello{token}                 service → Welcome{session, resume, words} + descriptor of the words
//! client → Segment{id}                  service → SegmentIs{…} + descriptor, or Refused{kind, message}
//! client → Resume{session, resume}      service → Welcome, as above
//!                                       service → Lost{lease, why}, at any time
//! ```
//!
//! Every packet begins with magic, version and kind; numbers are little-endian. The connection is the session: when it
//! ends and the process has too, what the session held is taken back.

mod packet;
mod socket;

pub use packet::{BadPacket, LentSegment, PACKET_MAX, Packet, SECRET_BYTES, VERSION};
pub use socket::{LendListener, LendSocket, Peer, pidfd_of};
