//! A model file whose every tensor says which bytes it is to have.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

const TENSORS: u64 = 16;

/// The byte at `at` of the tensor of this name.
pub fn byte(name: &str, at: u64) -> u8 {
    let seed: u64 = name.bytes().fold(7, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    ((seed.wrapping_add(at)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

/// Writes it; `bytes` in all, more or less.
pub fn write(path: &Path, bytes: u64) {
    let each = bytes / TENSORS;
    let mut header = String::from("{");
    for index in 0..TENSORS {
        let comma = if index == 0 { "" } else { "," };
        let (begin, end) = (index * each, (index + 1) * each);
        write!(
            header,
            "{comma}\"t.{index}\":{{\"dtype\":\"U8\",\"shape\":[{each}],\"data_offsets\":[{begin},{end}]}}"
        )
        .expect("written");
    }
    header.push('}');
    let mut file = std::io::BufWriter::new(std::fs::File::create(path).expect("made"));
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
    for index in 0..TENSORS {
        let name = format!("t.{index}");
        let data: Vec<u8> = (0..each).map(|at| byte(&name, at)).collect();
        file.write_all(&data).expect("written");
    }
    file.into_inner().expect("flushed").sync_all().expect("synced");
}
