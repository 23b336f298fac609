//! An engine's loop over more layers than slots: acquire, launch, release.
//!
//! ```sh
//! cargo run --release -p spoc-cache --example 05_engine_loop
//! ```
//!
//! A network of 24 layers runs for several tokens in the memory of 6. The host enqueues launches and releases and waits
//! for the disk alone: a launch runs behind the copies of its layer, and the next fill of the slot runs behind the
//! launch, both on the device. At the end the state is compared with the same arithmetic done on the host.

#![allow(clippy::print_stdout)] // an example shows what it did

use spoc_cache::stats::layout::Counter;
use spoc_cache::{CacheOptions, Catalogue, GroupRules, Key, Lease, Pump, PumpOptions, SlotCache};
use spoc_driver::{
    Arguments, BackendKind, DeviceSelector, DeviceVector, Driver, ElementKind, Grid, Kernel, KindRule,
    Parameter, Stream, StreamOptions,
};
use spoc_io::{Dtype, OpenOptions, SafetensorsHeader};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const LAYERS: usize = 24;
const SLOTS: u32 = 6;
const TOKENS: usize = 4;
/// Elements of the state: a layer is a matrix of this side, and a bias.
const WIDTH: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let weights = weights();
    let path = write_model(folder.path(), &weights)?;

    // Wiring: what was probed is passed in, and the native device is always there.
    let found = spoc_backends::found(&spoc_backends::probe_only([BackendKind::Native]));
    let device = Driver::new(found).open(&DeviceSelector::index(BackendKind::Native, 0))?;
    let pump = Pump::start(&device, PumpOptions { staging_bytes: 8 << 20, ..PumpOptions::default() })?;

    // A layer is a group: its tensors move as one, into one slot.
    let model = spoc_io::open_model(&path, &OpenOptions::default())?;
    let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default())?);
    let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, SLOTS))?;
    let keys = cache.keys(cache.register(Arc::clone(&catalogue))?);

    let stream = device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
    let kernel = layer_kernel()?;
    let mut state = DeviceVector::<f32>::allocate(&device, WIDTH as u64)?;
    state.write(0, &[0.5; WIDTH])?;

    for token in 0..TOKENS {
        for layer in 0..LAYERS {
            // Wanting the next layer now lets it be read while this one is served.
            let next = keys[(layer + 1) % LAYERS];
            let ahead = if (token, layer) == (TOKENS - 1, LAYERS - 1) { None } else { Some(next) };
            run_layer(&cache, &stream, &catalogue, &kernel, keys[layer], ahead, &mut state)?;
        }
    }

    let mut result = [0.0; WIDTH];
    stream.synchronize()?;
    state.read(0, &mut result)?;
    if result != expected(&weights) {
        return Err("the state is not what the weights give".into());
    }
    let counters = cache.counters();
    println!(
        "{TOKENS} tokens through {LAYERS} layers in {SLOTS} slots: {} hits, {} misses, {} evictions, {} of them behind a \
         launch that was still to run; the state is exact",
        counters.get(Counter::Hits),
        counters.get(Counter::Misses),
        counters.get(Counter::Evictions),
        counters.get(Counter::EvictionsDraining),
    );
    Ok(())
}

/// Acquire, launch, release. Nothing here waits for a copy or a kernel.
fn run_layer(
    cache: &SlotCache,
    stream: &Stream,
    catalogue: &Catalogue,
    kernel: &Kernel,
    key: Key,
    ahead: Option<Key>,
    state: &mut DeviceVector<f32>,
) -> Result<(), Box<dyn Error>> {
    if let Some(next) = ahead {
        cache.hint(&[next], std::time::Instant::now() + std::time::Duration::from_millis(100))?;
    }
    // May wait for the disk. The stream now waits for the copies, on the device.
    let lease = cache.wait_acquire(&[key], stream)?;
    let (matrix, bias) = (part(&lease, catalogue, key, 0)?, part(&lease, catalogue, key, 1)?);
    let arguments = Arguments::new().read_view(&matrix).read_view(&bias).write_view(state);
    let threads = u32::try_from(WIDTH)?;
    stream.launch(kernel, Grid::linear(threads), &arguments)?;
    // Ends the lease behind the launch: an event on its stream, which the next fill of the slot waits for.
    lease.release(&[stream])?;
    Ok(())
}

/// A tensor of the leased layer, as a vector in its slot.
fn part(
    lease: &Lease<&Stream>,
    catalogue: &Catalogue,
    key: Key,
    position: usize,
) -> Result<DeviceVector<f32>, Box<dyn Error>> {
    let (segment, offset_bytes) = lease.memory(0).ok_or("a lease of one layer")?;
    let tensor = catalogue.tensors(key.group).get(position).ok_or("a layer of two tensors")?;
    Ok(DeviceVector::view(&segment, offset_bytes + tensor.offset_bytes, tensor.extent.len_bytes / 4)?)
}

/// `state = state / 2 + (matrix · state + bias) / width`: on a GPU this would be its language's source.
fn layer_kernel() -> Result<Kernel, spoc_driver::Error> {
    let f32s = KindRule::Exactly(ElementKind::F32);
    let parameters = [Parameter::read(f32s), Parameter::read(f32s), Parameter::write(f32s)];
    Kernel::native("layer", &parameters, |call| {
        let (matrix, bias, state) = (call.read::<f32>(0)?, call.read::<f32>(1)?, call.write::<f32>(2)?);
        layer(matrix, bias, state);
        Ok(())
    })
}

fn layer(matrix: &[f32], bias: &[f32], state: &mut [f32]) {
    let before = state.to_vec();
    for (row, (bias, out)) in matrix.chunks_exact(before.len()).zip(bias.iter().zip(state)) {
        let sum: f32 = row.iter().zip(&before).map(|(weight, value)| weight * value).sum();
        *out = *out / 2.0 + (sum + bias) / before.len() as f32;
    }
}

/// A matrix and a bias a layer, all different.
fn weights() -> Vec<(Vec<f32>, Vec<f32>)> {
    let mut seed = 1u32;
    let mut number = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    let mut some = |count: usize| (0..count).map(|_| number()).collect::<Vec<f32>>();
    (0..LAYERS).map(|_| (some(WIDTH * WIDTH), some(WIDTH))).collect()
}

/// What the loop has to give, computed on the host.
fn expected(weights: &[(Vec<f32>, Vec<f32>)]) -> [f32; WIDTH] {
    let mut state = [0.5; WIDTH];
    for _ in 0..TOKENS {
        for (matrix, bias) in weights {
            layer(matrix, bias, &mut state);
        }
    }
    state
}

/// Writes the weights as a safetensors file, each layer's matrix before its bias.
fn write_model(folder: &Path, weights: &[(Vec<f32>, Vec<f32>)]) -> Result<PathBuf, Box<dyn Error>> {
    let width = WIDTH as u64;
    let (mut header, mut data) = (SafetensorsHeader::new(), Vec::<u8>::new());
    for (layer, (matrix, bias)) in weights.iter().enumerate() {
        header.add(&format!("layers.{layer}.matrix"), Dtype::F32, &[width, width])?;
        header.add(&format!("layers.{layer}.bias"), Dtype::F32, &[width])?;
        data.extend(matrix.iter().chain(bias).flat_map(|value| value.to_le_bytes()));
    }
    let mut file = header.bytes();
    file.extend(data);
    let path = folder.join("model.safetensors");
    std::fs::write(&path, file)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_state_is_exact() -> Result<(), Box<dyn std::error::Error>> {
        super::main()
    }
}
