//! A service to be a client of, and models whose bytes can be told.

#![allow(dead_code, clippy::expect_used, clippy::unwrap_used, clippy::panic)] // each test takes its part

use std::path::{Path, PathBuf};
use std::sync::Arc;

use spoc_cache::stats::Counters;
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver};
use spoc_service::{Config, Service};

/// What tensor `layer` of a model holds.
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

/// A model of `layers` layers with one tensor of `len` bytes each.
pub fn write_model(path: &Path, seed: u64, layers: usize, len: usize) {
    let entry = |layer: usize| {
        let (from, to) = (layer * len, (layer + 1) * len);
        format!(
            "\"model.layers.{layer}.w\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{from},{to}]}}"
        )
    };
    let header = format!("{{{}}}", (0..layers).map(entry).collect::<Vec<_>>().join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    for layer in 0..layers as u64 {
        bytes.extend(pattern(seed + layer, len));
    }
    std::fs::write(path, bytes).unwrap();
}

pub fn native() -> Device {
    let found = spoc_backends::found(&spoc_backends::probe_only([BackendKind::Native]));
    Driver::new(found).open(&DeviceSelector::index(BackendKind::Native, 0)).unwrap()
}

/// A configuration with what `text` says, on a socket in `folder`.
pub fn config(folder: &Path, text: &str) -> Config {
    Config { socket: socket(folder), ..Config::parse(text).unwrap() }
}

pub fn socket(folder: &Path) -> PathBuf {
    folder.join("spoc.sock")
}

pub async fn start(config: Config) -> Service {
    let counters = Arc::new(|_: &str, slots: usize| Counters::on_heap(slots));
    Service::start(config, vec![native()], counters).await.unwrap()
}
