//! Messages as bytes: magic, version, kind, then texts, each behind its length in 16 bits.

use std::io;

const MAGIC: [u8; 4] = *b"SPOK";
const VERSION: u8 = 1;
/// The longest name, in bytes.
pub const NAME_MAX: usize = 200;
/// The longest message.
pub(super) const MESSAGE_MAX: usize = 1024;

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    Put(String),
    Remove(String),
    Next { after: String, prefix: String },
    Ping,
    Done,
    Entry(String),
    Refused(String),
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("keeper: {why}"))
}

impl Message {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, texts): (u8, [&str; 2]) = match self {
            Message::Put(name) => (1, [name, ""]),
            Message::Remove(name) => (2, [name, ""]),
            Message::Next { after, prefix } => (3, [after, prefix]),
            Message::Ping => (4, ["", ""]),
            Message::Done => (5, ["", ""]),
            Message::Entry(name) => (6, [name, ""]),
            Message::Refused(why) => (7, [&why[..why.floor_char_boundary(400)], ""]),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, kind]);
        for text in texts {
            // A name that is too long is refused by whoever reads it.
            let len = u16::try_from(text.len()).unwrap_or(u16::MAX);
            bytes.extend(len.to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    }

    /// # Errors
    /// `InvalidData`, with what is wrong.
    pub fn decode(bytes: &[u8]) -> io::Result<Message> {
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or_else(|| invalid("a message is cut off"))?;
        let ([version, kind], rest) =
            rest.split_first_chunk::<2>().ok_or_else(|| invalid("a message is cut off"))?;
        if (magic, *version) != (&MAGIC, VERSION) {
            return Err(invalid("the other side speaks something else, or another version"));
        }
        let (first, rest) = text(rest)?;
        let (second, rest) = text(rest)?;
        if !rest.is_empty() {
            return Err(invalid("a message is longer than its kind"));
        }
        let is_named = matches!(kind, 1 | 2 | 6);
        if first.len() > NAME_MAX * 2 || second.len() > NAME_MAX || is_named && !is_name(&first) {
            return Err(invalid("a name is empty, longer than 200 bytes, or has a control character or ':'"));
        }
        Ok(match kind {
            1 => Message::Put(first),
            2 => Message::Remove(first),
            3 => Message::Next { after: first, prefix: second },
            4 => Message::Ping,
            5 => Message::Done,
            6 => Message::Entry(first),
            7 => Message::Refused(first),
            _ => return Err(invalid("a kind of message that this version does not know")),
        })
    }
}

/// Names are what systemd's descriptor store takes, too.
pub(super) fn is_name(name: &str) -> bool {
    (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| (33..127).contains(&byte) && byte != b':')
}

fn text(bytes: &[u8]) -> io::Result<(String, &[u8])> {
    let (len, rest) = bytes.split_first_chunk::<2>().ok_or_else(|| invalid("a message is cut off"))?;
    let len = usize::from(u16::from_le_bytes(*len));
    let (text, rest) = rest.split_at_checked(len).ok_or_else(|| invalid("a text is cut off"))?;
    let text = std::str::from_utf8(text).map_err(|_| invalid("a text is not UTF-8"))?;
    Ok((text.to_owned(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_and_what_is_cut_off_changed_or_longer_does_not() {
        let all = [
            Message::Put("a/segment-1".into()),
            Message::Remove("b".into()),
            Message::Next { after: String::new(), prefix: "a/".into() },
            Message::Ping,
            Message::Done,
            Message::Entry("x".into()),
            Message::Refused("full".into()),
        ];
        for message in all {
            let bytes = message.encode();
            assert!(bytes.len() <= MESSAGE_MAX);
            assert_eq!(Message::decode(&bytes).expect("read"), message);
            for len in 0..bytes.len() {
                assert!(Message::decode(&bytes[..len]).is_err(), "{message:?} cut at {len}");
            }
            assert!(Message::decode(&[&bytes[..], &[0]].concat()).is_err());
            for at in 0..5 {
                let mut changed = bytes.clone();
                changed[at] ^= 0x40;
                assert!(Message::decode(&changed).is_err(), "{message:?} changed at {at}");
            }
        }
    }

    #[test]
    fn names_are_checked() {
        for bad in ["", "a b", "a:b", "a\nb", "ä", &"x".repeat(201)] {
            assert!(Message::decode(&Message::Put(bad.to_owned()).encode()).is_err(), "{bad:?}");
        }
    }
}
