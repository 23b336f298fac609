//! Small real models and the devices of these tests.
#![allow(dead_code)] // each test file uses its part

use spoc_cache::{Pump, PumpOptions};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver};
use spoc_io::{IoMode, Model, OpenOptions};
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
    let mut header = String::from("{");
    let mut offset = 0;
    for (index, (name, len)) in tensors.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let end = offset + len;
        header.push_str(&format!(
            "{comma}\"{name}\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{offset},{end}]}}"
        ));
        offset = end;
    }
    header.push('}');
    // An odd length, so that nothing in the file is aligned by luck.
    while header.len() % 16 != 5 {
        header.push(' ');
    }
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
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
