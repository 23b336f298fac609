//! The header of one GGUF file: metadata, tensor infos, and where the data lie. Format: ggml's `gguf.md`, v2 and v3.

use std::collections::HashSet;

use super::cursor::{ByteOrder, Cursor};
use super::types::GgmlType;
use super::value::Value;
use crate::error::quoted;
use crate::file::WeightFile;
use crate::format::sniff;
use crate::{Error, ErrorKind, Result};

/// What ggml allows.
const DIMENSIONS_MAX: u32 = 4;
const ALIGNMENT_KEY: &str = "general.alignment";
const ALIGNMENT_DEFAULT: u32 = 32;
/// Data aligned to more than this is a broken header, not a choice: huge pages are 2 MiB.
const ALIGNMENT_MAX: u32 = 16 << 20;
/// No file system holds a file this long; an extent that ends beyond it is a broken number, not a cut file.
const FILE_BYTES_MAX: u64 = 1 << 50;
/// A metadata pair and a tensor info both begin with the 64-bit length of a name. Counts are held to that much an
/// item, so that a cut or lying item is reported as what it is, and memory stays in proportion to the file.
const ITEM_BYTES_MIN: u64 = 8;

/// One tensor of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Info {
    pub(super) name: String,
    pub(super) kind: GgmlType,
    /// Dimensions in file order: the first is contiguous.
    pub(super) shape: Vec<u64>,
    /// First byte, from the start of the file.
    pub(super) offset: u64,
    pub(super) len_bytes: u64,
}

/// A parsed and checked header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) order: ByteOrder,
    pub(super) alignment: u32,
    pub(super) metadata: Vec<(String, Value)>,
    pub(super) tensors: Vec<Info>,
}

impl Header {
    /// Parses the header of `file` and checks every tensor against the file's length.
    ///
    /// # Errors
    /// One of the kinds for malformed files, naming the file and the place.
    pub(super) fn read(file: &WeightFile, header_bytes_max: u64) -> Result<Self> {
        let mut cursor = Cursor::new(file, header_bytes_max);
        parse(&mut cursor, file).map_err(|e| e.in_file(file.path()))
    }

    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        self.metadata.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }
}

fn parse(cursor: &mut Cursor<'_>, file: &WeightFile) -> Result<Header> {
    let version = preamble(cursor, file)?;
    let tensor_count = cursor.u64("the number of tensors")?;
    let pair_count = cursor.u64("the number of metadata pairs")?;
    let out = ErrorKind::CountOutOfBounds;
    let pair_count = cursor.fits(pair_count, ITEM_BYTES_MIN, out, "metadata pairs")?;
    let tensor_count = cursor.fits(tensor_count, ITEM_BYTES_MIN, out, "tensors")?;
    let metadata = pairs(cursor, pair_count)?;
    let alignment = alignment(&metadata)?;
    // Checked again: the pairs have taken their share of the bytes.
    cursor.fits(tensor_count as u64, ITEM_BYTES_MIN, out, "tensors")?;
    let mut tensors = infos(cursor, tensor_count)?;
    place(&mut tensors, cursor.position(), alignment, file.len_bytes())?;
    Ok(Header { version, order: cursor.order, alignment, metadata, tensors })
}

/// Magic and version; sets the byte order, which only the version shows.
fn preamble(cursor: &mut Cursor<'_>, file: &WeightFile) -> Result<u32> {
    let magic = cursor.array::<4>("the magic")?;
    if magic != *sniff::GGUF_MAGIC {
        return Err(sniff::not_gguf(file));
    }
    let little = cursor.u32("the version")?;
    let big = little.swap_bytes();
    match (little, big) {
        (2 | 3, _) => Ok(little),
        // Big-endian files exist since version 3.
        (_, 3) => {
            cursor.order = ByteOrder::Big;
            Ok(3)
        }
        (_, 1..=0xffff) => {
            let message = format!("version {big} in big-endian order, which exists since version 3");
            Err(cursor.error(ErrorKind::UnsupportedVersion, message).at(4))
        }
        _ => {
            let message = format!("version {little}, expected 2 or 3");
            Err(cursor.error(ErrorKind::UnsupportedVersion, message).at(4))
        }
    }
}

fn pairs(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<(String, Value)>> {
    let mut pairs: Vec<(String, Value)> = Vec::with_capacity(count);
    for _ in 0..count {
        let key = cursor.text("a metadata key")?;
        let value = Value::read(cursor, &key)?;
        pairs.push((key, value));
    }
    let mut seen = HashSet::with_capacity(pairs.len());
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !seen.insert(key.as_str())) {
        return Err(Error::new(
            ErrorKind::DuplicateKey,
            format!("metadata key {} stands twice", quoted(key)),
        ));
    }
    Ok(pairs)
}

fn alignment(metadata: &[(String, Value)]) -> Result<u32> {
    let Some((_, value)) = metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    match value {
        // 1, 2 and 4 are against the text of the format, and harmless: any byte offset can be read.
        Value::U32(alignment) if alignment.is_power_of_two() && *alignment <= ALIGNMENT_MAX => Ok(*alignment),
        Value::U32(alignment) => {
            let message =
                format!("'{ALIGNMENT_KEY}' is {alignment}, expected a power of two up to {ALIGNMENT_MAX}");
            Err(Error::new(ErrorKind::AlignmentInvalid, message))
        }
        _ => Err(Error::new(ErrorKind::AlignmentInvalid, format!("'{ALIGNMENT_KEY}' must be of type u32"))),
    }
}

/// The tensor infos, with offsets still relative to the data.
fn infos(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<Info>> {
    let mut infos = Vec::with_capacity(count);
    for _ in 0..count {
        infos.push(info(cursor)?);
    }
    let mut seen: HashSet<&str> = HashSet::with_capacity(infos.len());
    if let Some(twice) = infos.iter().find(|info| !seen.insert(info.name.as_str())) {
        let message = format!("tensor {} stands twice", quoted(&twice.name));
        return Err(Error::new(ErrorKind::DuplicateTensor, message));
    }
    Ok(infos)
}

fn info(cursor: &mut Cursor<'_>) -> Result<Info> {
    let at = cursor.position();
    let name = cursor.text("a tensor's name")?;
    let failed =
        |kind, message: String| Err(Error::new(kind, format!("tensor {} {message}", quoted(&name))).at(at));
    let rank = cursor.u32("a tensor's rank")?;
    if rank > DIMENSIONS_MAX {
        return failed(
            ErrorKind::TooManyDims,
            format!("has {rank} dimensions, expected at most {DIMENSIONS_MAX}"),
        );
    }
    let mut shape = Vec::with_capacity(rank as usize);
    for _ in 0..rank {
        shape.push(cursor.u64("a tensor's dimension")?);
    }
    let id = cursor.u32("a tensor's type")?;
    let Some(kind) = GgmlType::from_id(id) else {
        return failed(ErrorKind::BadDtype, format!("has type {id}, which is unknown or was removed"));
    };
    let offset = cursor.u64("a tensor's offset")?;
    match size(kind, &shape) {
        Ok(len_bytes) => Ok(Info { name, kind, shape, offset, len_bytes }),
        Err((kind, message)) => failed(kind, message),
    }
}

/// Bytes of a tensor. Signed 64-bit limits, as every reader of the format has them.
fn size(kind: GgmlType, shape: &[u64]) -> Result<u64, (ErrorKind, String)> {
    let overflow =
        || (ErrorKind::ShapeOverflow, format!("of shape {shape:?} has more than 2^63 elements or bytes"));
    let small = |value: u64| i64::try_from(value).is_ok();
    if shape.iter().any(|dimension| !small(*dimension)) {
        return Err(overflow());
    }
    if shape.contains(&0) {
        return Ok(0);
    }
    let elements = shape.iter().try_fold(1u64, |product, d| product.checked_mul(*d).filter(|p| small(*p)));
    let elements = elements.ok_or_else(overflow)?;
    let row = shape.first().copied().unwrap_or(1);
    if row % kind.block_elements() != 0 {
        let block = kind.block_elements();
        return Err((
            ErrorKind::BlockMisaligned,
            format!("has rows of {row} elements, {kind} needs multiples of {block}"),
        ));
    }
    let blocks = elements / kind.block_elements();
    blocks.checked_mul(kind.block_bytes()).filter(|b| small(*b)).ok_or_else(overflow)
}

/// Turns relative offsets into absolute ones and checks that each tensor lies in the file and in none of the others.
fn place(tensors: &mut [Info], header_end: u64, alignment: u32, file_bytes: u64) -> Result<()> {
    let alignment = u64::from(alignment);
    let start = header_end.checked_next_multiple_of(alignment).unwrap_or(u64::MAX);
    for tensor in tensors.iter_mut() {
        let relative = tensor.offset;
        let end = start.checked_add(relative).and_then(|s| s.checked_add(tensor.len_bytes));
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            let message =
                format!("has offset {relative} and {} bytes: no file is that long", tensor.len_bytes);
            return Err(named(tensor, ErrorKind::OffsetOutOfBounds, &message));
        }
        if relative % alignment != 0 {
            let message = format!("has offset {relative}, expected a multiple of {alignment}");
            return Err(named(tensor, ErrorKind::AlignmentInvalid, &message));
        }
        tensor.offset = start + relative;
        if tensor.len_bytes == 0 {
            // It has no bytes that could lie outside, and its place would.
            tensor.offset = tensor.offset.min(file_bytes);
        }
    }
    let mut order: Vec<&Info> = tensors.iter().filter(|t| t.len_bytes > 0).collect();
    order.sort_by_key(|t| (t.offset, t.len_bytes));
    for (i, tensor) in order.iter().enumerate() {
        if let Some(before) =
            i.checked_sub(1).map(|i| order[i]).filter(|b| b.offset + b.len_bytes > tensor.offset)
        {
            let message = format!("shares bytes with tensor {}", quoted(&before.name));
            return Err(named(tensor, ErrorKind::Overlap, &message).at(tensor.offset));
        }
        inside(tensor, alignment, file_bytes)?;
    }
    Ok(())
}

/// The tensors before this one lie in the file. So where this one should follow them, the file was cut.
fn inside(tensor: &Info, alignment: u64, file_bytes: u64) -> Result<()> {
    let end = tensor.offset + tensor.len_bytes;
    if end <= file_bytes {
        return Ok(());
    }
    let cut = tensor.offset <= file_bytes.next_multiple_of(alignment);
    let kind = if cut { ErrorKind::Truncated } else { ErrorKind::OffsetOutOfBounds };
    let message = format!("takes bytes {} to {end}, the file has {file_bytes}", tensor.offset);
    Err(named(tensor, kind, &message).at(tensor.offset))
}

fn named(tensor: &Info, kind: ErrorKind, message: &str) -> Error {
    Error::new(kind, format!("tensor {} {message}", quoted(&tensor.name)))
}
