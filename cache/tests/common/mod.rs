//! Small real models and the devices of these tests.
#![allow(dead_code)] // each test file uses its part

use spoc_cache::{Pump, PumpOptions};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver};
use spoc_io::{Dtype, IoMode, Model, OpenOptions, SafetensorsHeader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that differ between tensors and along each.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Writes a safetensors file of byte tensors; the data begins unaligned.
pub fn write_model(folder: &Path, tensors: &[(String, usize)]) -> PathBuf {
    let mut header = SafetensorsHeader::new();
    for (name, len) in tensors {
        header.add(name, Dtype::U8, &[*len as u64]).unwrap();
    }
    // Odd, so that nothing in the file is aligned by luck.
    let mut bytes = header.bytes_until(16, 13);
    for (index, (_, len)) in tensors.iter().enumerate() {
        bytes.extend_from_slice(&pattern(index as u64 + 1, *len));
    }
    let path = folder.join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Names and lengths of a model with `layers` layers of three tensors each, an embedding and a head.
pub fn layers(layers: usize, bytes: usize) -> Vec<(String, usize)> {
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), bytes / 2 + 3)];
    for layer in 0..layers {
        tensors.push((format!("model.layers.{layer}.mlp.weight"), bytes));
        tensors.push((format!("model.layers.{layer}.norm.weight"), 129));
        tensors.push((format!("model.layers.{layer}.attn.weight"), bytes / 3));
    }
    tensors.push(("lm_head.weight".to_owned(), bytes / 4));
    tensors
}

/// A file of one F16 matrix.
pub fn matrix(folder: &Path, rows: u64, columns: u64) -> Model {
    let bytes = usize::try_from(rows * columns * 2).unwrap();
    let mut header = SafetensorsHeader::new();
    header.add("w", Dtype::F16, &[rows, columns]).unwrap();
    let mut file = header.bytes_until(2, 1);
    file.extend(pattern(5, bytes));
    let path = folder.join(format!("{rows}x{columns}.safetensors"));
    std::fs::write(&path, file).unwrap();
    open(&path)
}

pub fn open(path: &Path) -> Model {
    spoc_io::open_model(path, &OpenOptions::default()).unwrap()
}

pub fn native() -> Device {
    let found = spoc_backends::found(&spoc_backends::probe());
    Driver::new(found).open(&DeviceSelector::index(BackendKind::Native, 0)).unwrap()
}

pub fn pump(device: &Device, mode: IoMode, staging_bytes: usize) -> Arc<Pump> {
    Pump::start(device, PumpOptions::new(mode, staging_bytes).unwrap()).unwrap()
}
