//! A load with `--check` of files made for it.

use std::fs::File;
use std::io::Write;
use std::time::Instant;

use serde_json::{Map, Value, json};
use spoc_cache::stats::Counters;
use spoc_driver::Device;
use spoc_io::{OpenOptions, open_model};

use super::transfers::noise;
use super::{Ended, Outcome};
use crate::cli::Io;
use crate::out::Out;
use crate::{load, units};

/// Bytes of the tensors: of one to some megabytes, and odd ones among them.
const TENSORS: [usize; 9] = [1, 3, 4096, 65_537, 2 << 20, (2 << 20) + 5, 7, (8 << 20) - 1, 3 << 20];
const STAGING_BYTES: u64 = 16 << 20;

/// Safetensors in two files with an index; data begin at odd offsets.
fn write(folder: &std::path::Path) -> std::io::Result<u64> {
    let (mut weight_map, mut total) = (Map::new(), 0_u64);
    for file in 0..2_usize {
        let name = format!("model-{:05}-of-00002.safetensors", file + 1);
        let (mut header, mut data) = (Map::new(), Vec::new());
        for (number, len) in TENSORS.iter().enumerate().filter(|(number, _)| number % 2 == file) {
            let tensor = format!("t{number}");
            let end = data.len() + len;
            let entry = json!({ "dtype": "U8", "shape": [len], "data_offsets": [data.len(), end] });
            header.insert(tensor.clone(), entry);
            weight_map.insert(tensor, json!(name));
            data.extend_from_slice(&noise(1000 + number as u64, *len));
        }
        let mut text = serde_json::to_vec(&Value::Object(header))?;
        text.resize(text.len().next_multiple_of(8) + 5, b' ');
        let mut out = File::create_new(folder.join(&name))?;
        out.write_all(&(text.len() as u64).to_le_bytes())?;
        out.write_all(&text)?;
        out.write_all(&data)?;
        total += data.len() as u64;
    }
    let index = json!({ "metadata": { "total_size": total }, "weight_map": weight_map });
    std::fs::write(folder.join("model.safetensors.index.json"), serde_json::to_vec(&index)?)?;
    Ok(total)
}

fn failed(failure: &crate::failure::Failure) -> Ended {
    Ended::Failed(failure.message.clone())
}

/// Loads them in every way of reading, and compares what is in device memory with the files.
pub(super) fn load(device: &Device) -> Outcome {
    let folder = tempfile::Builder::new().prefix("spoc-selftest-").tempdir()?;
    let bytes = write(folder.path())?;
    let model = open_model(folder.path(), &OpenOptions::default())?;
    let mut rates = Vec::new();
    for (name, io) in [("auto", Io::Auto), ("direct", Io::Direct), ("pread", Io::Pread)] {
        // On the heap: nobody has to see these.
        let counters = Counters::on_heap(0);
        let pump =
            load::start_pump(device, io, STAGING_BYTES, counters).map_err(|failure| failed(&failure))?;
        let start = Instant::now();
        // Silent: the block is for one line.
        let loaded = load::load(&pump, &model, load::What::default(), start, Out::new(true));
        let (loaded, _) = loaded.map_err(|failure| failed(&failure))?;
        let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e9;
        load::check(&loaded, &model).map_err(|failure| failed(&failure))?;
        rates.push(format!("{name} {rate:.2}"));
    }
    Ok(format!("{} equal to the files, GB/s: {}", units::bytes(bytes), rates.join(", ")))
}
