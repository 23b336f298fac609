//! `bench link`: pinned host memory to a device, one stream, by chunk size.

use std::time::{Duration, Instant};

use serde::Serialize;
use spoc_bridge::{RingMemory, Rung, StillRing};
use spoc_driver::{CopyRange, Device, Event, HostSource, Segment, Stream, StreamOptions};

use crate::cli::BenchLinkArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::{staging, units};

const SIZES: [u64; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
/// Enough in flight that the link never waits for the host.
const IN_FLIGHT_BYTES: u64 = 64 << 20;
const BATCHES: usize = 4;

#[derive(Debug, Serialize)]
struct Report {
    backend: &'static str,
    device: String,
    uuid: String,
    pinned: bool,
    /// How the ring is known to the device, as in `load`.
    ring: &'static str,
    staging_bytes: u64,
    prepare_seconds: f64,
    /// The best of `sizes`.
    gb_per_s: f64,
    sizes: Vec<Rate>,
}

#[derive(Debug, Serialize)]
struct Rate {
    chunk_bytes: u64,
    bytes: u64,
    seconds: f64,
    gb_per_s: f64,
}

/// Runs the command.
///
/// # Errors
/// `no_device`, `device_too_small`, and what the device says.
pub fn run(args: &BenchLinkArgs, out: Out) -> Result<u8> {
    let device = Found::for_args(&args.device)?.open(&args.device)?;
    let preparing = Instant::now();
    // The copies' target is as large, and may be host memory too.
    let staging_bytes = staging::budget(args.staging_bytes, SIZES[0], 4)?;
    let ring_bytes = usize::try_from(staging_bytes).map_err(Failure::usage)?;
    if staging_bytes < SIZES[0] {
        let message = format!("--staging-bytes {}: at least {} are needed", staging_bytes, SIZES[0]);
        return Err(Failure::new("staging_too_small", message));
    }
    // On the same rung as a load's ring, so that the two compare.
    let ring = StillRing::new(RingMemory::allocate(&device, ring_bytes)?);
    let rung = ring.rung();
    let target = device.allocate(staging_bytes)?;
    let link = Link::new(&device, ring, target)?;
    let prepare_seconds = preparing.elapsed().as_secs_f64();

    let time = Duration::from_millis(args.time_ms);
    let sizes = SIZES.into_iter().filter(|size| *size <= staging_bytes);
    let sizes = sizes.map(|size| link.measure(size, time)).collect::<Result<Vec<_>>>()?;
    let info = device.info();
    let report = Report {
        backend: info.backend.as_str(),
        device: info.name.clone(),
        uuid: info.uuid.to_string(),
        pinned: rung != Rung::Pageable,
        ring: rung.as_str(),
        staging_bytes,
        prepare_seconds,
        gb_per_s: sizes.iter().map(|rate| rate.gb_per_s).fold(0.0, f64::max),
        sizes,
    };
    out.answer(&report, render);
    Ok(0)
}

/// The rate of one chunk size, GB/s, out of a ring of at most `staging_bytes`.
pub(crate) fn link_rate(device: &Device, staging_bytes: u64, chunk_bytes: u64) -> Result<f64> {
    let ring_bytes = (staging_bytes / chunk_bytes).max(1) * chunk_bytes;
    let ring = RingMemory::allocate(device, usize::try_from(ring_bytes).map_err(Failure::usage)?)?;
    let link = Link::new(device, StillRing::new(ring), device.allocate(ring_bytes)?)?;
    let time = Duration::from_millis(100);
    let rates = (0..3).map(|_| Ok(link.measure(chunk_bytes, time)?.gb_per_s)).collect::<Result<Vec<_>>>()?;
    Ok(super::median(&rates))
}

struct Link {
    stream: Stream,
    ring: StillRing,
    target: Segment,
    batches: [Event; BATCHES],
}

impl Link {
    fn new(device: &Device, ring: StillRing, target: Segment) -> Result<Link> {
        let stream =
            device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
        let event = || device.create_event();
        Ok(Link { stream, ring, target, batches: [event()?, event()?, event()?, event()?] })
    }

    fn measure(&self, size: u64, time: Duration) -> Result<Rate> {
        // Once unmeasured: first touches and lazy set-up are not the link.
        self.copy_for(size, Duration::ZERO)?;
        let start = Instant::now();
        let bytes = self.copy_for(size, time)?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Rate { chunk_bytes: size, bytes, seconds, gb_per_s: units::gb_per_s(bytes, seconds) })
    }

    /// Copies the ring round and round for `time`, at least once, and waits for the last copy.
    fn copy_for(&self, size: u64, time: Duration) -> Result<u64> {
        let slots = self.ring.len_bytes() as u64 / size;
        let per_batch = (IN_FLIGHT_BYTES / BATCHES as u64 / size).max(1);
        self.stream.reserve(usize::try_from(per_batch).map_or(1024, |batch| batch * (BATCHES + 1)), 1);
        let start = Instant::now();
        let (mut copied, mut batch) = (0, 0);
        while copied < slots || start.elapsed() < time {
            for _ in 0..per_batch {
                self.copy(copied % slots * size, size)?;
                copied += 1;
            }
            self.stream.record(&self.batches[batch])?;
            batch = (batch + 1) % BATCHES;
            // The oldest batch: the host stays a fixed number of batches ahead.
            if self.batches[batch].is_recorded() {
                self.batches[batch].synchronize()?;
            }
        }
        self.stream.synchronize()?;
        Ok(copied * size)
    }

    fn copy(&self, offset: u64, size: u64) -> Result<()> {
        let (src_offset, len_bytes) = (
            usize::try_from(offset).map_err(Failure::usage)?,
            usize::try_from(size).map_err(Failure::usage)?,
        );
        let range = CopyRange { src_offset, dst: &self.target, dst_offset: offset, len_bytes };
        self.stream.copy_to_device(self.ring.clone(), &[range]).map_err(spoc_driver::Error::from)?;
        Ok(())
    }
}

fn render(report: &Report) -> String {
    let mut text = format!(
        "{} {} ({} ring of {})",
        report.backend,
        report.device,
        report.ring,
        units::bytes(report.staging_bytes)
    );
    for rate in &report.sizes {
        text.push_str(&format!("\n{:>8}  {:7.2} GB/s", units::bytes(rate.chunk_bytes), rate.gb_per_s));
    }
    text
}
