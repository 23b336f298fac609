//! Metadata values of a GGUF file.

use super::cursor::Cursor;
use crate::{ErrorKind, Result};

/// Arrays inside arrays, at most. The published models need one level.
const NESTING_MAX: u32 = 16;

/// A metadata value. Strings are bytes: vocabularies hold pieces that are not UTF-8.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Value {
    /// Unsigned 8-bit integer.
    U8(u8),
    /// Signed 8-bit integer.
    I8(i8),
    /// Unsigned 16-bit integer.
    U16(u16),
    /// Signed 16-bit integer.
    I16(i16),
    /// Unsigned 32-bit integer.
    U32(u32),
    /// Signed 32-bit integer.
    I32(i32),
    /// Single-precision number.
    F32(f32),
    /// Boolean; any byte but 0 is true.
    Bool(bool),
    /// String of bytes.
    Bytes(Vec<u8>),
    /// Array.
    Array(Array),
    /// Unsigned 64-bit integer.
    U64(u64),
    /// Signed 64-bit integer.
    I64(i64),
    /// Double-precision number.
    F64(f64),
}

/// An array of one kind of value.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Array {
    /// Unsigned 8-bit integers.
    U8(Vec<u8>),
    /// Signed 8-bit integers.
    I8(Vec<i8>),
    /// Unsigned 16-bit integers.
    U16(Vec<u16>),
    /// Signed 16-bit integers.
    I16(Vec<i16>),
    /// Unsigned 32-bit integers.
    U32(Vec<u32>),
    /// Signed 32-bit integers.
    I32(Vec<i32>),
    /// Single-precision numbers.
    F32(Vec<f32>),
    /// Booleans.
    Bool(Vec<bool>),
    /// Strings of bytes.
    Bytes(Vec<Vec<u8>>),
    /// Arrays.
    Array(Vec<Self>),
    /// Unsigned 64-bit integers.
    U64(Vec<u64>),
    /// Signed 64-bit integers.
    I64(Vec<i64>),
    /// Double-precision numbers.
    F64(Vec<f64>),
}

impl Value {
    /// The value as an unsigned number, from any integer type that holds one.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as text, where it is a string of UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// Reads the value of `key`, whose type number comes first.
    pub(super) fn read(cursor: &mut Cursor<'_>, key: &str) -> Result<Self> {
        let at = cursor.position();
        let kind = cursor.u32("a value's type")?;
        Ok(match kind {
            0 => Self::U8(cursor.u8(key)?),
            1 => Self::I8(cursor.i8(key)?),
            2 => Self::U16(cursor.u16(key)?),
            3 => Self::I16(cursor.i16(key)?),
            4 => Self::U32(cursor.u32(key)?),
            5 => Self::I32(cursor.i32(key)?),
            6 => Self::F32(cursor.f32(key)?),
            7 => Self::Bool(cursor.u8(key)? != 0),
            8 => Self::Bytes(cursor.bytes(key)?),
            9 => Self::Array(Array::read(cursor, key, 1)?),
            10 => Self::U64(cursor.u64(key)?),
            11 => Self::I64(cursor.i64(key)?),
            12 => Self::F64(cursor.f64(key)?),
            _ => {
                let message = format!("key '{key}' has value type {kind}, expected 0 to 12");
                return Err(cursor.error(ErrorKind::BadValueType, message).at(at));
            }
        })
    }
}

/// `count` values by `read`. The count was checked against the bytes left, so the capacity is no promise.
fn items<T>(count: usize, mut read: impl FnMut() -> Result<T>) -> Result<Vec<T>> {
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        values.push(read()?);
    }
    Ok(values)
}

impl Array {
    /// Reads an array: the type of its items, their number, the items.
    fn read(cursor: &mut Cursor<'_>, key: &str, depth: u32) -> Result<Self> {
        if depth > NESTING_MAX {
            let message = format!("key '{key}' nests arrays more than {NESTING_MAX} deep");
            return Err(cursor.error(ErrorKind::NestingTooDeep, message));
        }
        let at = cursor.position();
        let kind = cursor.u32("an array's type")?;
        let count = cursor.u64("an array's length")?;
        let item_bytes = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            _ => {
                let message = format!("key '{key}' is an array of type {kind}, expected 0 to 12");
                return Err(cursor.error(ErrorKind::BadValueType, message).at(at));
            }
        };
        let count = cursor.fits(count, item_bytes, ErrorKind::LengthOutOfBounds, key)?;
        Self::read_items(cursor, key, depth, kind, count)
    }

    fn read_items(cursor: &mut Cursor<'_>, key: &str, depth: u32, kind: u32, count: usize) -> Result<Self> {
        Ok(match kind {
            0 => Self::U8(items(count, || cursor.u8(key))?),
            1 => Self::I8(items(count, || cursor.i8(key))?),
            2 => Self::U16(items(count, || cursor.u16(key))?),
            3 => Self::I16(items(count, || cursor.i16(key))?),
            4 => Self::U32(items(count, || cursor.u32(key))?),
            5 => Self::I32(items(count, || cursor.i32(key))?),
            6 => Self::F32(items(count, || cursor.f32(key))?),
            7 => Self::Bool(items(count, || Ok(cursor.u8(key)? != 0))?),
            8 => Self::Bytes(items(count, || cursor.bytes(key))?),
            9 => Self::Array(items(count, || Self::read(cursor, key, depth + 1))?),
            10 => Self::U64(items(count, || cursor.u64(key))?),
            11 => Self::I64(items(count, || cursor.i64(key))?),
            _ => Self::F64(items(count, || cursor.f64(key))?),
        })
    }
}
