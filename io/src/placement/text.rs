//! The JSON form of a placement map.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};

use super::{MapEntry, MapTarget, Pitch, PlacementMap};
use crate::error::quoted;
use crate::{Error, ErrorKind, Result};

/// Version of the form that is read and written.
const VERSION: u64 = 1;

#[derive(Deserialize)]
struct Head {
    spoc_placement: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text<'a> {
    #[allow(dead_code, reason = "read as the head's")]
    spoc_placement: u64,
    #[serde(borrow)]
    targets: Vec<Target<'a>>,
    #[serde(borrow)]
    entries: Vec<Entry<'a>>,
}

const fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_yes(complete: &bool) -> bool {
    *complete
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Target<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    device: u32,
    bytes: u64,
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    complete: bool,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry<'a> {
    #[serde(borrow)]
    tensor: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slice: Option<Vec<[u64; 2]>>,
    device: u32,
    #[serde(borrow)]
    target: Cow<'a, str>,
    offset: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    row_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pitch: Option<u64>,
}

fn from_json(error: &serde_json::Error) -> Error {
    let kind = if error.is_eof() { ErrorKind::Truncated } else { ErrorKind::InvalidMap };
    Error::new(kind, format!("expected the JSON of a placement map: {error}"))
}

impl PlacementMap {
    /// Takes the JSON form apart. Whether it fits a model is [`PlacementMap::check`]'s to say.
    ///
    /// # Errors
    /// `invalid_map`, `truncated` where the text ends too early, `unsupported_version`, `duplicate_key` for a target
    /// named twice on one device.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let head: Head = serde_json::from_slice(bytes).map_err(|e| from_json(&e))?;
        if head.spoc_placement != VERSION {
            let message =
                format!("expected a placement map of version {VERSION}, found {}", head.spoc_placement);
            return Err(Error::new(ErrorKind::UnsupportedVersion, message));
        }
        let text: Text<'_> = serde_json::from_slice(bytes).map_err(|e| from_json(&e))?;
        let mut numbers = HashMap::with_capacity(text.targets.len());
        for (number, target) in (0u32..).zip(&text.targets) {
            if numbers.insert((target.device, target.name.as_ref()), number).is_some() {
                let message = format!(
                    "target {} of device {} is there twice, expected names that are unique on a device",
                    quoted(&target.name),
                    target.device
                );
                return Err(Error::new(ErrorKind::DuplicateKey, message));
            }
        }
        let entries = text.entries.iter().enumerate();
        let entries = entries.map(|(number, entry)| taken(number, entry, &numbers)).collect::<Result<_>>()?;
        let targets = text.targets.iter().map(|target| MapTarget {
            name: target.name.clone().into_owned(),
            device: target.device,
            len_bytes: target.bytes,
            complete: target.complete,
        });
        Ok(Self { targets: targets.collect(), entries })
    }

    /// Writes the JSON form, a line for each target and entry.
    ///
    /// # Errors
    /// What `out` says; an entry of a target that is not there is written to no target's name, and refused.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        write!(out, "{{\"spoc_placement\":{VERSION},\n\"targets\":[")?;
        lines(
            out,
            self.targets.iter().map(|target| {
                let MapTarget { name, device, len_bytes, complete } = target;
                Ok(Target { name: name.into(), device: *device, bytes: *len_bytes, complete: *complete })
            }),
        )?;
        write!(out, "],\n\"entries\":[")?;
        lines(
            out,
            self.entries.iter().map(|entry| {
                let nowhere = || io::Error::other(format!("no target {}", entry.target));
                let target = self.targets.get(entry.target as usize).ok_or_else(nowhere)?;
                let slice = entry.slice.as_ref();
                Ok(Entry {
                    tensor: entry.tensor.as_str().into(),
                    slice: slice.map(|slice| slice.iter().map(|range| [range.start, range.end]).collect()),
                    device: target.device,
                    target: target.name.as_str().into(),
                    offset: entry.offset_bytes,
                    row_bytes: entry.pitch.map(|pitch| pitch.row_bytes),
                    pitch: entry.pitch.map(|pitch| pitch.pitch_bytes),
                })
            }),
        )?;
        writeln!(out, "]}}")
    }
}

fn lines<T: Serialize>(out: &mut impl Write, items: impl Iterator<Item = io::Result<T>>) -> io::Result<()> {
    for (number, item) in items.enumerate() {
        out.write_all(if number == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &item?)?;
    }
    Ok(())
}

fn taken(number: usize, entry: &Entry<'_>, numbers: &HashMap<(u32, &str), u32>) -> Result<MapEntry> {
    let name = || format!("entry {number}, of tensor {}", quoted(&entry.tensor));
    let invalid = |why: String| Error::new(ErrorKind::InvalidMap, format!("{}: {why}", name()));
    let target = numbers
        .get(&(entry.device, entry.target.as_ref()))
        .copied()
        .ok_or_else(|| invalid(format!("device {} has no target {}", entry.device, quoted(&entry.target))))?;
    let pitch = match (entry.row_bytes, entry.pitch) {
        (None, None) => None,
        (Some(row_bytes), Some(pitch_bytes)) => Some(Pitch { row_bytes, pitch_bytes }),
        _ => return Err(invalid("expected row_bytes and pitch together, found one of them".to_owned())),
    };
    Ok(MapEntry {
        tensor: entry.tensor.clone().into_owned(),
        slice: entry.slice.as_ref().map(|slice| slice.iter().map(|[start, end]| *start..*end).collect()),
        target,
        offset_bytes: entry.offset,
        pitch,
    })
}
