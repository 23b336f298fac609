//! The safetensors format: 8 bytes of header length (little endian), a JSON header, the tensors' bytes.
//!
//! Format: <https://github.com/huggingface/safetensors>, "Format". The bytes start right after the header; nothing is
//! aligned. Every byte after the header belongs to exactly one tensor.

use std::io::{BufReader, Read};

use super::json::{self, Entry, Header};
use super::sniff;
use crate::error::quoted;
use crate::file::WeightFile;
use crate::model::ElementType;
use crate::{Error, ErrorKind, Extent, OpenOptions, Result, Tensor};

/// Length of the length prefix.
const PREFIX_LEN: u64 = 8;
/// Headers up to this size are read into memory at once. Above, they are parsed as they are read, which is slower, so
/// that a file that only claims a long header costs no memory.
const HEADER_AT_ONCE_BYTES: u64 = 8 << 20;

/// What one file holds.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) tensors: Vec<Tensor>,
    pub(super) metadata: Vec<(String, String)>,
}

/// Parses and checks the header of file number `index` of a model.
///
/// # Errors
/// The categories of a malformed file; every error names the file.
pub(super) fn parse(file: &WeightFile, index: u32, options: &OpenOptions) -> Result<Parsed> {
    parse_header(file, options)
        .and_then(|(header, data_start)| {
            let tensors = check(header.entries, data_start, file.len_bytes(), index)?;
            Ok(Parsed { tensors, metadata: header.metadata })
        })
        .map_err(|e| e.in_file(file.path()))
}

fn parse_header(file: &WeightFile, options: &OpenOptions) -> Result<(Header, u64)> {
    let size = file.len_bytes();
    let mut prefix = [0u8; sniff::PREFIX_BYTES];
    let seen = usize::try_from(size).unwrap_or(usize::MAX).min(prefix.len());
    file.read_exact_at(&mut prefix[..seen], 0)?;
    if let Some(error) = sniff::recognise(&prefix[..seen]) {
        return Err(error);
    }
    let Some(length) = prefix.first_chunk::<8>().filter(|_| size >= PREFIX_LEN) else {
        let message = format!("expected at least {PREFIX_LEN} bytes, the file has {size}");
        return Err(Error::new(ErrorKind::HeaderTooSmall, message));
    };
    let length = u64::from_le_bytes(*length);
    if length > options.header_bytes_max {
        let cap = options.header_bytes_max;
        let message = format!("the header claims {length} bytes, the limit is {cap} and the file has {size}");
        return Err(Error::new(ErrorKind::HeaderTooLarge, message));
    }
    if length > size - PREFIX_LEN {
        let message =
            format!("the header ends at byte {}, the file has {size}", length.saturating_add(PREFIX_LEN));
        return Err(Error::new(ErrorKind::Truncated, message).at(size));
    }
    if length == 0 || prefix[8] != b'{' {
        let message = format!("the header of {length} bytes must begin with '{{'");
        return Err(Error::new(ErrorKind::InvalidHeader, message).at(PREFIX_LEN));
    }
    let header =
        if length <= HEADER_AT_ONCE_BYTES { at_once(file, length)? } else { streamed(file, length)? };
    Ok((header, PREFIX_LEN + length))
}

fn at_once(file: &WeightFile, length: u64) -> Result<Header> {
    let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
    file.read_exact_at(&mut bytes, PREFIX_LEN)?;
    let text = std::str::from_utf8(&bytes).map_err(|e| bad_utf8(PREFIX_LEN + e.valid_up_to() as u64))?;
    json::read_header(serde_json::de::StrRead::new(text))
}

fn streamed(file: &WeightFile, length: u64) -> Result<Header> {
    let mut source = HeaderReader { file, at: PREFIX_LEN, left: length, carry: 0, failed: None };
    let read = json::read_header(serde_json::de::IoRead::new(BufReader::with_capacity(1 << 16, &mut source)));
    match source.failed {
        Some(error) => Err(error),
        None => read,
    }
}

fn bad_utf8(offset: u64) -> Error {
    Error::new(ErrorKind::BadUtf8, "the header is not UTF-8").at(offset)
}

/// Reads the header piece by piece and checks its UTF-8 on the way: the JSON reader checks only some strings.
struct HeaderReader<'a> {
    file: &'a WeightFile,
    at: u64,
    left: u64,
    /// Bytes before `at` that began a character and wait for its rest.
    carry: u8,
    failed: Option<Error>,
}

impl HeaderReader<'_> {
    fn check_utf8(&mut self, fresh: &[u8]) -> Result<()> {
        let mut held = [0u8; 4];
        let carry = usize::from(self.carry);
        let start = self.at - carry as u64;
        // A character is at most 4 bytes: first complete the one that was cut, then take the rest at once.
        self.file.read_exact_at(&mut held[..carry], start)?;
        let mut rest = fresh;
        if carry > 0 {
            let more = (4 - carry).min(fresh.len());
            held[carry..carry + more].copy_from_slice(&fresh[..more]);
            let valid = match std::str::from_utf8(&held[..carry + more]) {
                Ok(_) => carry + more,
                Err(e) if e.valid_up_to() > 0 => e.valid_up_to(),
                Err(e) if e.error_len().is_none() && (fresh.len() as u64) < self.left => {
                    self.carry += u8::try_from(more).unwrap_or(0);
                    return Ok(());
                }
                Err(_) => return Err(bad_utf8(start)),
            };
            rest = &fresh[valid - carry..];
        }
        let rest_start = self.at + (fresh.len() - rest.len()) as u64;
        self.carry = 0;
        if let Err(e) = std::str::from_utf8(rest) {
            if e.error_len().is_some() || fresh.len() as u64 == self.left {
                return Err(bad_utf8(rest_start + e.valid_up_to() as u64));
            }
            self.carry = u8::try_from(rest.len() - e.valid_up_to()).unwrap_or(0);
        }
        Ok(())
    }
}

impl Read for HeaderReader<'_> {
    fn read(&mut self, target: &mut [u8]) -> std::io::Result<usize> {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(target.len());
        let target = &mut target[..count];
        let read = self.file.read_exact_at(target, self.at).and_then(|()| self.check_utf8(target));
        if let Err(error) = read {
            let text = error.to_string();
            // The first counts: the JSON reader may ask again after it.
            self.failed.get_or_insert(error);
            return Err(std::io::Error::other(text));
        }
        self.at += count as u64;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Bytes of a tensor of this shape and type.
pub(super) fn byte_len(entry: &Entry) -> Result<u64> {
    let overflow = || {
        let message = format!("tensor {}: its shape has more than 2^64 bytes", quoted(&entry.name));
        Error::new(ErrorKind::ShapeOverflow, message)
    };
    // A zero anywhere makes the tensor empty, however large the other dimensions are.
    let elements = if entry.shape.contains(&0) {
        0
    } else {
        entry.shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)).ok_or_else(overflow)?
    };
    let bits = u128::from(elements) * u128::from(entry.dtype.bits());
    if bits % 8 != 0 {
        let message = format!(
            "tensor {}: {elements} elements of {} do not end on a byte",
            quoted(&entry.name),
            entry.dtype
        );
        return Err(Error::new(ErrorKind::SubbyteMisaligned, message));
    }
    u64::try_from(bits / 8).map_err(|_| overflow())
}

fn check_entry(entry: &Entry, data_start: u64, size: u64) -> Result<()> {
    let Entry { begin, end, .. } = entry;
    // Text only for what is wrong: there may be a million entries.
    let name = || quoted(&entry.name);
    if end < begin {
        let message = format!("tensor {}: data_offsets [{begin}, {end}] end before they begin", name());
        return Err(Error::new(ErrorKind::InvalidOffsets, message));
    }
    let expected = byte_len(entry)?;
    if expected != end - begin {
        let message = format!(
            "tensor {}: shape and {} make {expected} bytes, data_offsets [{begin}, {end}] hold {}",
            name(),
            entry.dtype,
            end - begin
        );
        return Err(Error::new(ErrorKind::ShapeMismatch, message));
    }
    // No file is longer than i64::MAX: such offsets are not a matter of a file cut short.
    if data_start.checked_add(*end).is_none_or(|end| i64::try_from(end).is_err()) {
        let message =
            format!("tensor {}: data_offsets [{begin}, {end}] lie outside any file (it has {size})", name());
        return Err(Error::new(ErrorKind::OffsetOutOfBounds, message));
    }
    Ok(())
}

/// Checks that the entries cover the bytes after the header exactly once.
fn check(mut entries: Vec<Entry>, data_start: u64, size: u64, file: u32) -> Result<Vec<Tensor>> {
    for entry in &entries {
        check_entry(entry, data_start, size)?;
    }
    entries.sort_by_key(|e| (e.begin, e.end));
    let data_len = size - data_start;
    let mut covered = 0u64;
    let mut last = "";
    for Entry { name, begin, end, .. } in &entries {
        let place = data_start + begin;
        if *begin < covered {
            let message = format!(
                "tensor {} begins at {begin} of the data, but {} ends at {covered}",
                quoted(name),
                quoted(last)
            );
            return Err(Error::new(ErrorKind::Overlap, message).at(place));
        }
        if *begin > covered {
            let (kind, what) = if *end > data_len {
                (ErrorKind::OffsetOutOfBounds, format!("the data has {data_len} bytes"))
            } else {
                (ErrorKind::Hole, format!("the {} bytes before belong to no tensor", begin - covered))
            };
            let message = format!("tensor {} has data_offsets [{begin}, {end}]: {what}", quoted(name));
            return Err(Error::new(kind, message).at(place));
        }
        covered = *end;
        last = name;
    }
    let expected = data_start + covered;
    if covered > data_len {
        let message =
            format!("expected {expected} bytes (last tensor {}), the file has {size}", quoted(last));
        return Err(Error::new(ErrorKind::Truncated, message).at(size));
    }
    if covered < data_len {
        let message = format!("expected {expected} bytes, the file has {size}: bytes follow the last tensor");
        return Err(Error::new(ErrorKind::TrailingData, message).at(expected));
    }
    Ok(entries.into_iter().map(|e| tensor(e, data_start, file)).collect())
}

fn tensor(entry: Entry, data_start: u64, file: u32) -> Tensor {
    let extent = Extent { file, offset: data_start + entry.begin, len_bytes: entry.end - entry.begin };
    Tensor { name: entry.name, dtype: ElementType::Safetensors(entry.dtype), shape: entry.shape, extent }
}
