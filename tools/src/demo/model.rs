//! The demo's model: sharded safetensors with an index.
//!
//! Twelve layers in three shards, three sizes of tensors, about 214 MB of reproducible noise. Data starts at an odd byte, as
//! the format allows, so that reading shows what alignment costs (nothing).

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use serde_json::{Map, json};
use spoc_io::{Dtype, SafetensorsHeader};

/// Layers of the model.
pub const LAYERS: u32 = 12;
const SHARDS: u32 = 3;
/// Name within a layer and shape of each BF16 tensor: 11.5 MB, 6.3 MB and 2 KB.
const TENSORS: [(&str, [u64; 2]); 3] = [
    ("mlp.gate_up_proj.weight", [5632, 1024]),
    ("self_attn.qkv_proj.weight", [3072, 1024]),
    ("input_layernorm.weight", [1, 1024]),
];
const ELEMENT_BYTES: u64 = 2;
/// Where data starts, modulo 512: odd, so that no tensor is aligned to anything.
const DATA_START_REMAINDER: usize = 77;

/// What was written.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// Bytes of tensors.
    pub tensor_bytes: u64,
    /// Number of tensors.
    pub tensors: u32,
}

/// Writes the model into `dir`, which must exist. Same `seed`, same bytes. `progress` hears of every piece written, in
/// bytes, and may end the writing with an error.
///
/// # Errors
/// What the file system says.
pub fn write(dir: &Path, seed: u64, mut progress: impl FnMut(u64) -> io::Result<()>) -> io::Result<Written> {
    let mut weight_map = Map::new();
    let mut written = Written { tensor_bytes: 0, tensors: 0 };
    let per_shard = LAYERS / SHARDS;
    for shard in 0..SHARDS {
        let file_name = format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1);
        let tensors = shard_tensors(shard * per_shard..(shard + 1) * per_shard);
        write_shard(&dir.join(&file_name), &tensors, seed ^ u64::from(shard) << 32, &mut progress)?;
        for tensor in &tensors {
            weight_map.insert(tensor.name.clone(), json!(file_name));
            written.tensor_bytes += tensor.len_bytes();
            written.tensors += 1;
        }
    }
    let index = json!({ "metadata": { "total_size": written.tensor_bytes }, "weight_map": weight_map });
    std::fs::write(dir.join("model.safetensors.index.json"), serde_json::to_vec_pretty(&index)?)?;
    Ok(written)
}

/// Bytes of tensors that [`write`] is going to write.
pub fn tensor_bytes() -> u64 {
    shard_tensors(0..LAYERS).iter().map(Tensor::len_bytes).sum()
}

struct Tensor {
    name: String,
    shape: [u64; 2],
}

impl Tensor {
    fn len_bytes(&self) -> u64 {
        self.shape.iter().product::<u64>() * ELEMENT_BYTES
    }
}

fn shard_tensors(layers: std::ops::Range<u32>) -> Vec<Tensor> {
    layers
        .flat_map(|layer| {
            TENSORS.map(|(name, shape)| Tensor { name: format!("model.layers.{layer}.{name}"), shape })
        })
        .collect()
}

/// The header, padded so that data starts where we want it.
fn header(tensors: &[Tensor]) -> io::Result<Vec<u8>> {
    let mut header = SafetensorsHeader::new();
    for tensor in tensors {
        header.add(&tensor.name, Dtype::BF16, &tensor.shape).map_err(io::Error::other)?;
    }
    Ok(header.bytes_until(512, DATA_START_REMAINDER))
}

fn write_shard(
    path: &Path,
    tensors: &[Tensor],
    seed: u64,
    progress: &mut impl FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(&header(tensors)?)?;
    let mut left: u64 = tensors.iter().map(Tensor::len_bytes).sum();
    let mut noise = Noise(seed);
    let mut piece = vec![0; 1 << 20];
    while left > 0 {
        let len = usize::try_from(left).map_or(piece.len(), |left| left.min(piece.len()));
        noise.fill(&mut piece[..len]);
        file.write_all(&piece[..len])?;
        progress(len as u64)?;
        left -= len as u64;
    }
    // On disk and out of the page cache, so that the first load shows the disk and not a copy in memory.
    file.sync_data()?;
    let advised = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    if let Err(errno) = advised {
        tracing::debug!(%errno, "the page cache keeps the model");
    }
    Ok(())
}

/// The SplitMix64 sequence (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(size_of::<u64>()) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    #[test]
    fn headers_describe_the_data_and_start_it_unaligned() {
        let tensors = shard_tensors(0..4);
        let header = header(&tensors).expect("header");
        assert_eq!(header.len() % 512, DATA_START_REMAINDER);
        let len = u64::from_le_bytes(header[..8].try_into().expect("prefix"));
        assert_eq!(usize::try_from(len), Ok(header.len() - 8));
        let value: Value = serde_json::from_slice(&header[8..]).expect("json");
        let last = &value["model.layers.3.input_layernorm.weight"]["data_offsets"][1];
        assert_eq!(last.as_u64(), Some(tensors.iter().map(Tensor::len_bytes).sum()));
    }

    #[test]
    fn the_model_is_as_large_as_promised_and_reproducible() {
        let first = tempfile::tempdir().expect("temporary folder");
        let mut heard = 0;
        let written = write(first.path(), 7, |bytes| {
            heard += bytes;
            Ok(())
        });
        let written = written.expect("write");
        assert!(
            written.tensor_bytes >= 200_000_000 && written.tensors == 36 && heard == written.tensor_bytes
        );
        let mut noise = Noise(7);
        let mut bytes = [0; 16];
        noise.fill(&mut bytes[..9]);
        assert_eq!(bytes[..8], Noise(7).next().to_le_bytes());
        let stopped = write(&first.path().join("missing"), 7, |_| Ok(()));
        assert!(stopped.is_err());
    }
}
