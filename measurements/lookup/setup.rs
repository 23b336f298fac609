//! A cache on the native device whose slots are all full of small groups.

use std::hint::black_box;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result};
use spoc_cache::policy::{Policy, PolicyKind};
use spoc_cache::{CacheOptions, Catalogue, GroupRules, Key, Pump, PumpOptions, SlotCache};
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver, Stream, StreamOptions};

/// Keys of a set.
pub const SET: usize = 8;

/// Groups a layer: as the experts of a large model.
const EXPERTS: u32 = 128;

const GROUP_BYTES: usize = 64;

pub struct Setup {
    pub device: Device,
    pub cache: SlotCache,
    /// Keys that are there.
    pub resident: Vec<Key>,
    /// Keys that are not.
    absent: Vec<Key>,
    /// The default policy with as many items listed, to be asked alone.
    policy: Mutex<Box<dyn Policy>>,
    _folder: tempfile::TempDir,
}

impl Setup {
    /// `slots` slots, and a tenth more groups than that.
    pub fn new(slots: u32) -> Result<Setup> {
        let groups = slots + slots / 10 + 1;
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("model.safetensors");
        write_model(&path, groups)?;
        let model = spoc_io::open_model(&path, &spoc_io::OpenOptions::default())?;
        let catalogue = Arc::new(Catalogue::from_model(&model, &GroupRules::default().per_expert())?);
        anyhow::ensure!(catalogue.groups().len() == groups as usize, "every expert is a group");
        let found = spoc_backends::found(&spoc_backends::probe());
        let device = Driver::new(found).open(&DeviceSelector::index(BackendKind::Native, 0))?;
        let pump = Pump::start(&device, PumpOptions::default())?;
        let cache = SlotCache::new(&pump, CacheOptions::for_catalogue(&catalogue, slots))?;
        let keys = cache.keys(cache.register(Arc::clone(&catalogue))?);
        let stream = device.create_stream(StreamOptions::default())?;
        let (resident, absent) = keys.split_at(slots as usize);
        for part in resident.chunks(256) {
            cache.wait_acquire(part, &stream)?.release(&[])?;
        }
        // Until the last copy has run and been seen to: then nothing need be waited for.
        let mut there = vec![0; resident.len()];
        let reader = cache.reader(&stream)?;
        drop(reader.wait_acquire(&resident[..1])?);
        let began = Instant::now();
        while reader.look_up(resident, &mut there) < resident.len() {
            anyhow::ensure!(began.elapsed().as_secs() < 60, "the slots were not filled");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        drop(reader);
        let mut policy = PolicyKind::default().create();
        policy.add_model(&catalogue.groups().iter().map(|group| group.position).collect::<Vec<_>>());
        policy.set_capacity(slots as usize);
        (0..slots).for_each(|item| policy.insert(item));
        let (resident, absent) = (resident.to_vec(), absent.to_vec());
        Ok(Setup { device, cache, resident, absent, policy: Mutex::new(policy), _folder: folder })
    }

    pub fn stream(&self) -> Result<Stream> {
        Ok(self.device.create_stream(StreamOptions::default())?)
    }

    /// `count` sets of neighbouring keys out of `width` from `first` on, in an order without a pattern.
    pub fn sets(&self, count: usize, first: usize, width: usize) -> Vec<[Key; SET]> {
        let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ first as u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).unwrap_or(0)
        };
        let own = &self.resident[first..first + width];
        // Of one stretch of keys, as a layer's experts are, and eight different ones of it.
        (0..count)
            .map(|_| {
                let begin = next() % (own.len() - SET + 1);
                let stride = 1 + next() % ((own.len() - begin - SET) / SET + 1).min(16);
                std::array::from_fn(|index| own[begin + index * stride])
            })
            .collect()
    }

    /// A key that is not there: what is asked for is resident afterwards, so they come round.
    pub fn missing(&self, index: usize) -> Key {
        self.absent[index % self.absent.len()]
    }

    /// How long the policy alone takes over an event and a victim, µs.
    pub fn decision_us(&self, index: usize) -> f64 {
        let mut policy = self.policy.lock().unwrap_or_else(PoisonError::into_inner);
        let item = u32::try_from(index % self.resident.len()).unwrap_or(0);
        let began = Instant::now();
        policy.visit(black_box(&[item]));
        if let Some(victim) = black_box(policy.victim_for(item)) {
            policy.remove(victim);
            policy.insert(victim);
        }
        began.elapsed().as_nanos() as f64 / 1000.0
    }
}

fn write_model(path: &std::path::Path, groups: u32) -> Result<()> {
    let mut header = serde_json::Map::new();
    for group in 0..groups as usize {
        let (layer, expert) = (group / EXPERTS as usize, group % EXPERTS as usize);
        let (begin, end) = (group * GROUP_BYTES, (group + 1) * GROUP_BYTES);
        let tensor = serde_json::json!({"dtype": "U8", "shape": [GROUP_BYTES], "data_offsets": [begin, end]});
        header.insert(format!("layers.{layer}.experts.{expert}.w"), tensor);
    }
    let header = serde_json::to_vec(&header)?;
    let mut file = std::fs::File::create(path).context("writing the model")?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    file.write_all(&vec![7; groups as usize * GROUP_BYTES])?;
    Ok(())
}
