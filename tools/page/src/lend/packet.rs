//! Messages as bytes.

use std::fmt;

/// "SPOL".
const MAGIC: [u8; 4] = *b"SPOL";
/// Raised with every change that an old side would misread.
pub const VERSION: u16 = 1;
/// The longest packet.
pub const PACKET_MAX: usize = 1024;
/// Length of a token and of a resume secret.
pub const SECRET_BYTES: usize = 32;
/// A text longer than this is cut off.
const TEXT_MAX: usize = 400;

/// What a packet says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A client with the token that `OpenSession` gave it.
    Hello {
        /// Good once.
        token: [u8; SECRET_BYTES],
    },
    /// The session is attached; a descriptor of its words comes along.
    Welcome {
        /// Number of the session.
        session: u64,
        /// Lets its client attach again.
        resume: [u8; SECRET_BYTES],
        /// How many words there are.
        words: u32,
    },
    /// A client attaches to a session that it has.
    Resume {
        /// Number of the session.
        session: u64,
        /// From `Welcome`.
        resume: [u8; SECRET_BYTES],
    },
    /// A client wants the descriptor of a segment that it holds a lease on.
    Segment {
        /// From the lease.
        id: u64,
    },
    /// Here it is; the descriptor comes along.
    SegmentIs(LentSegment),
    /// What was asked for is refused.
    Refused {
        /// Kind of docs/errors.md.
        kind: String,
        /// A line for people.
        message: String,
    },
    /// A lease is no more, although nobody released it.
    Lost {
        /// Its id.
        lease: u64,
        /// Why, a line for people.
        why: String,
    },
}

/// A segment of device memory, lent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LentSegment {
    /// Its id.
    pub id: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Length of the allocation behind it.
    pub allocation_bytes: u64,
    /// API family, as `cuda`.
    pub backend: String,
    /// The device's UUID, as text.
    pub device: String,
    /// Whether the kernel or the driver keeps borrowers from writing.
    pub read_only: bool,
}

/// A packet that is none of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPacket(pub &'static str);

impl fmt::Display for BadPacket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lending socket: {}", self.0)
    }
}

impl std::error::Error for BadPacket {}

impl From<BadPacket> for std::io::Error {
    fn from(bad: BadPacket) -> std::io::Error {
        std::io::Error::new(std::io::ErrorKind::InvalidData, bad)
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u16) -> Writer {
        let mut bytes = Vec::with_capacity(128);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        Writer(bytes)
    }

    fn number(mut self, number: u64) -> Writer {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn secret(mut self, secret: &[u8; SECRET_BYTES]) -> Writer {
        self.0.extend_from_slice(secret);
        self
    }

    fn text(mut self, text: &str) -> Writer {
        let text = &text[..text.floor_char_boundary(TEXT_MAX)];
        // At most TEXT_MAX.
        #[allow(clippy::cast_possible_truncation)]
        self.0.extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }
}

struct Parser<'a>(&'a [u8]);

impl<'a> Parser<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BadPacket> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(BadPacket("the packet is cut off"))?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Result<u64, BadPacket> {
        self.take().map(u64::from_le_bytes)
    }

    fn short(&mut self) -> Result<u16, BadPacket> {
        self.take().map(u16::from_le_bytes)
    }

    fn text(&mut self) -> Result<String, BadPacket> {
        let len = usize::from(self.short()?);
        let (text, rest) = self.0.split_at_checked(len).ok_or(BadPacket("a text is cut off"))?;
        self.0 = rest;
        std::str::from_utf8(text).map(str::to_owned).map_err(|_| BadPacket("a text is not UTF-8"))
    }

    fn end<T>(&self, value: T) -> Result<T, BadPacket> {
        if self.0.is_empty() { Ok(value) } else { Err(BadPacket("the packet is longer than its kind")) }
    }
}

impl Packet {
    /// As bytes, at most [`PACKET_MAX`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let writer = match self {
            Packet::Hello { token } => Writer::new(1).secret(token),
            Packet::Welcome { session, resume, words } => {
                Writer::new(2).number(*session).secret(resume).number(u64::from(*words))
            }
            Packet::Resume { session, resume } => Writer::new(3).number(*session).secret(resume),
            Packet::Segment { id } => Writer::new(4).number(*id),
            Packet::SegmentIs(lent) => Writer::new(5)
                .number(lent.id)
                .number(lent.len_bytes)
                .number(lent.allocation_bytes)
                .number(u64::from(lent.read_only))
                .text(&lent.backend)
                .text(&lent.device),
            Packet::Refused { kind, message } => Writer::new(6).text(kind).text(message),
            Packet::Lost { lease, why } => Writer::new(7).number(*lease).text(why),
        };
        writer.0
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// Which part is not as this version has it.
    pub fn decode(bytes: &[u8]) -> Result<Packet, BadPacket> {
        let mut rest = Parser(bytes);
        if rest.take::<4>()? != MAGIC {
            return Err(BadPacket("the other side speaks something else"));
        }
        if rest.short()? != VERSION {
            return Err(BadPacket("the other side speaks another version"));
        }
        let packet = match rest.short()? {
            1 => Packet::Hello { token: rest.take()? },
            2 => Packet::Welcome {
                session: rest.number()?,
                resume: rest.take()?,
                words: u32::try_from(rest.number()?).map_err(|_| BadPacket("too many words"))?,
            },
            3 => Packet::Resume { session: rest.number()?, resume: rest.take()? },
            4 => Packet::Segment { id: rest.number()? },
            5 => {
                let (id, len_bytes, allocation_bytes) = (rest.number()?, rest.number()?, rest.number()?);
                let read_only = rest.number()? == 1;
                let (backend, device) = (rest.text()?, rest.text()?);
                Packet::SegmentIs(LentSegment { id, len_bytes, allocation_bytes, backend, device, read_only })
            }
            6 => Packet::Refused { kind: rest.text()?, message: rest.text()? },
            7 => Packet::Lost { lease: rest.number()?, why: rest.text()? },
            _ => return Err(BadPacket("a kind of packet that this version does not know")),
        };
        rest.end(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Packet> {
        let lent = LentSegment {
            id: 1,
            len_bytes: 2,
            allocation_bytes: 3,
            backend: "cuda".into(),
            device: "GPU-1".into(),
            read_only: true,
        };
        vec![
            Packet::Hello { token: [3; 32] },
            Packet::Welcome { session: 9, resume: [4; 32], words: 4096 },
            Packet::Resume { session: 9, resume: [4; 32] },
            Packet::Segment { id: u64::MAX },
            Packet::SegmentIs(lent),
            Packet::Refused { kind: "not_permitted".into(), message: "ä".repeat(1000) },
            Packet::Lost { lease: 1, why: String::new() },
        ]
    }

    #[test]
    fn packets_come_back_and_fit() {
        for packet in all() {
            let bytes = packet.encode();
            assert!(bytes.len() <= PACKET_MAX);
            let back = Packet::decode(&bytes).expect("read");
            match (&packet, &back) {
                (Packet::Refused { .. }, Packet::Refused { message, .. }) => {
                    assert_eq!(message.len(), TEXT_MAX);
                }
                _ => assert_eq!(back, packet),
            }
        }
    }

    #[test]
    fn whatever_is_cut_off_changed_or_longer_is_refused_or_another_packet() {
        for packet in all() {
            let bytes = packet.encode();
            for len in 0..bytes.len() {
                assert!(Packet::decode(&bytes[..len]).is_err(), "{packet:?} cut at {len}");
            }
            assert!(Packet::decode(&[&bytes[..], &[0]].concat()).is_err());
            for at in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 0x40;
                assert!(Packet::decode(&changed).is_err(), "{packet:?} changed at {at}");
            }
        }
    }
}
