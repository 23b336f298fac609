//! What parked descriptors mean, each record in a memfd that nobody can change any more.
//!
//! ```text
//! 0   8  "SPOCREC\0"
//! 8   4  version            12  4  kind
//! 16  8  length of the body 24  8  XXH3-64 of the body
//! 32  …  the body, a protobuf message of this module
//! ```
//!
//! Numbers are little-endian. A field is only ever added; anything else raises the version, and a record of another
//! version is dropped with what it describes. What changes while the service runs (leases) is in words beside the session's
//! record: see [`crate::session`].

use crate::images;
use crate::models::Registered;
use crate::session;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use spoc_io::Identity;
use spoc_page::ProcessIdentity;
use spoc_proto::v1 as pb;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"SPOCREC\0";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 32;
/// A model of a million tensors stays below this.
const BODY_MAX: u64 = 256 << 20;

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Model = 1,
    Image = 2,
    Session = 3,
    /// That a segment is lent to a user: its name says it.
    Lent = 4,
}

/// A file, as it was when it was opened.
#[derive(Clone, PartialEq, prost::Message)]
pub struct WeightFile {
    #[prost(string, tag = "1")]
    pub path: String,
    #[prost(uint64, tag = "2")]
    pub dev: u64,
    #[prost(uint64, tag = "3")]
    pub ino: u64,
    #[prost(uint64, tag = "4")]
    pub len_bytes: u64,
    #[prost(bytes = "vec", tag = "5")]
    pub mtime_ns: Vec<u8>,
    #[prost(bytes = "vec", tag = "6")]
    pub ctime_ns: Vec<u8>,
}

impl WeightFile {
    pub fn of(file: &spoc_io::WeightFile) -> WeightFile {
        let Identity { dev, ino, len_bytes, mtime_ns, ctime_ns } = file.identity();
        let path = file.path().to_string_lossy().into_owned();
        let (mtime_ns, ctime_ns) = (mtime_ns.to_le_bytes().to_vec(), ctime_ns.to_le_bytes().to_vec());
        WeightFile { path, dev, ino, len_bytes, mtime_ns, ctime_ns }
    }
}

/// A registered model.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Model {
    #[prost(message, optional, tag = "1")]
    pub asked: Option<pb::RegisterModelRequest>,
    #[prost(message, repeated, tag = "2")]
    pub files: Vec<WeightFile>,
}

impl Model {
    pub fn of(model: &Registered) -> Model {
        let asked = pb::RegisterModelRequest { name: model.name.to_string(), ..model.asked.clone() };
        Model { asked: Some(asked), files: files_of(model) }
    }
}

/// The files of a model, as they are now open.
pub fn files_of(model: &Registered) -> Vec<WeightFile> {
    model.model.files().iter().map(|file| WeightFile::of(file)).collect()
}

/// A segment of an image.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Segment {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub len_bytes: u64,
    #[prost(uint64, tag = "3")]
    pub allocation_bytes: u64,
}

/// A sealed image.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Image {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub device: String,
    #[prost(string, tag = "3")]
    pub model: String,
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
    #[prost(message, repeated, tag = "5")]
    pub segments: Vec<Segment>,
    #[prost(message, repeated, tag = "6")]
    pub tensors: Vec<pb::Placement>,
    #[prost(map = "string, string", tag = "7")]
    pub lineage: HashMap<String, String>,
    #[prost(bool, tag = "8")]
    pub pinned: bool,
    #[prost(bool, tag = "9")]
    pub was_verified: bool,
}

impl Image {
    /// `None` for one without memory.
    pub fn of(image: &images::Image) -> Option<Image> {
        let told = image.told();
        let segment = |numbered: &crate::segments::Numbered| Segment {
            id: numbered.id,
            len_bytes: numbered.segment.len_bytes(),
            allocation_bytes: numbered.allocation_bytes(),
        };
        image.segments.first()?;
        Some(Image {
            name: image.name.clone(),
            device: image.device.clone(),
            model: image.model.clone(),
            bytes: image.bytes,
            segments: image.segments.iter().map(segment).collect(),
            tensors: image.tensors.clone(),
            lineage: image.lineage.clone(),
            pinned: told.pinned,
            was_verified: image.was_verified,
        })
    }

    /// The id of its first segment, by which it is known where a name would be too long.
    pub fn number(&self) -> u64 {
        self.segments.first().map_or(0, |segment| segment.id)
    }

    /// Whether every tensor lies in a segment that is there.
    ///
    /// # Errors
    /// Which does not.
    pub fn check(&self) -> Result<(), String> {
        for tensor in &self.tensors {
            let len = self.segments.get(tensor.segment as usize).map(|segment| segment.len_bytes);
            let end = tensor.offset.checked_add(tensor.bytes);
            if len.is_none_or(|len| end.is_none_or(|end| end > len)) {
                return Err(format!("tensor {:?} lies beyond its segment", tensor.name));
            }
        }
        Ok(())
    }
}

/// A client's session.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Session {
    #[prost(uint64, tag = "1")]
    pub number: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(uint32, tag = "3")]
    pub uid: u32,
    #[prost(uint32, tag = "4")]
    pub gid: u32,
    #[prost(uint32, tag = "5")]
    pub pid: u32,
    /// Start of that process; 0 if it could not be seen.
    #[prost(uint64, tag = "6")]
    pub start_ticks: u64,
    #[prost(bytes = "vec", tag = "7")]
    pub resume: Vec<u8>,
}

impl Session {
    pub fn of(session: &session::Session) -> Session {
        let peer = session.peer();
        Session {
            number: session.number,
            name: session.name.clone(),
            uid: session.opener.uid,
            gid: session.opener.gid,
            pid: peer.pid,
            start_ticks: ProcessIdentity::of(peer.pid).map_or(0, |process| process.start_ticks),
            resume: session.resume().to_vec(),
        }
    }

    /// Whether its process has ended, as far as can be seen.
    pub fn has_ended(&self) -> bool {
        if self.pid == 0 || self.start_ticks == 0 {
            return false;
        }
        match ProcessIdentity::of(self.pid) {
            Ok(process) => process.start_ticks != self.start_ticks,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }
}

/// Writes a record.
///
/// # Errors
/// No memory, or no descriptor.
pub fn write<M: prost::Message>(kind: Kind, message: &M) -> io::Result<OwnedFd> {
    let body = message.encode_to_vec();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((kind as u32).to_le_bytes());
    bytes.extend((body.len() as u64).to_le_bytes());
    bytes.extend(xxh3_64(&body).to_le_bytes());
    bytes.extend(&body);
    let mut file = File::from(memfd_create("spoc-record", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?);
    file.write_all(&bytes)?;
    fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file.into())
}

/// Reads a record of this kind.
///
/// # Errors
/// What is wrong with it.
pub fn read<M: prost::Message + Default>(kind: Kind, descriptor: &OwnedFd) -> Result<M, String> {
    let file = File::from(descriptor.try_clone().map_err(|error| error.to_string())?);
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    if !metadata.is_file() || metadata.len() < HEADER_BYTES as u64 || metadata.len() > BODY_MAX {
        return Err("it is no record".to_owned());
    }
    let mut bytes = vec![0; usize::try_from(metadata.len()).map_err(|error| error.to_string())?];
    file.read_exact_at(&mut bytes, 0).map_err(|error| error.to_string())?;
    let (header, body) = bytes.split_at(HEADER_BYTES);
    let number = |at: usize| header[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    if header[..8] != MAGIC {
        return Err("it is no record".to_owned());
    }
    if number(8) != u64::from(VERSION) | (kind as u64) << 32 {
        return Err("its version or kind is another".to_owned());
    }
    if number(16) != body.len() as u64 || number(24) != xxh3_64(body) {
        return Err("it is damaged".to_owned());
    }
    M::decode(body).map_err(|error| format!("it is damaged: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image() -> Image {
        Image {
            name: "m@native".into(),
            segments: vec![Segment { id: 7, len_bytes: 100, allocation_bytes: 4096 }],
            tensors: vec![pb::Placement {
                name: "t".into(),
                offset: 90,
                bytes: 10,
                ..pb::Placement::default()
            }],
            ..Image::default()
        }
    }

    fn damaged(bytes: &[u8]) -> OwnedFd {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("written");
        file.into()
    }

    #[test]
    fn records_come_back_and_cannot_be_changed() {
        let descriptor = write(Kind::Image, &image()).expect("written");
        let back: Image = read(Kind::Image, &descriptor).expect("read");
        assert_eq!((back.clone(), back.number(), back.check()), (image(), 7, Ok(())));
        assert!(read::<Image>(Kind::Model, &descriptor).expect_err("another kind").contains("kind"));
        let file = File::from(descriptor);
        assert!(file.write_all_at(b"x", 40).is_err() && file.set_len(3).is_err(), "sealed");
        let mut beyond = image();
        beyond.tensors[0].bytes = 11;
        assert!(beyond.check().expect_err("beyond").contains("\"t\""));
    }

    #[test]
    fn damage_is_found_wherever_it_is() {
        let file = File::from(write(Kind::Image, &image()).expect("written"));
        let mut bytes = vec![0; usize::try_from(file.metadata().expect("there").len()).expect("short")];
        file.read_exact_at(&mut bytes, 0).expect("read");
        assert!(read::<Image>(Kind::Image, &damaged(&bytes)).is_ok());
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert!(read::<Image>(Kind::Image, &damaged(&changed)).is_err(), "changed at {at}");
            assert!(read::<Image>(Kind::Image, &damaged(&bytes[..at])).is_err(), "cut at {at}");
        }
        let (reading, _writing) = io::pipe().expect("a pipe");
        assert!(read::<Image>(Kind::Image, &reading.into()).is_err(), "and nothing waits for a pipe");
    }
}
