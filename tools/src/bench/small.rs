//! `bench small`: a pinned host tier to scattered slots, by chunk size, by every method that the device offers.

use std::time::Instant;

use serde::Serialize;
use spoc_cache::arena::Geometry;
use spoc_cache::scatter::{Part, fill_slots};
use spoc_driver::{CopyRange, Device, PinnedHandle, Segment, Stream, StreamOptions};

use super::tier::pinned;
use super::{median, spread};
use crate::cli::BenchSmallArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

const SIZES: [u64; 6] = [16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20];
/// Odd, so that steps of it visit every chunk of a power of two once.
const STRIDE: u64 = 7919;

#[derive(Debug, Serialize)]
struct Report {
    backend: &'static str,
    device: String,
    tier_bytes: u64,
    /// A copy of the whole tier.
    link_gb_per_s: f64,
    sizes: Vec<Row>,
}

#[derive(Debug, Serialize)]
struct Row {
    chunk_bytes: u64,
    /// One submission for all, as a refill from the host tier does it: the device chooses how.
    gb_per_s: f64,
    spread: [f64; 2],
    /// A submission for each chunk.
    single_gb_per_s: f64,
    /// Of the faster of the two.
    ratio: f64,
    /// Host time for each chunk, in microseconds: in one submission, and alone.
    enqueue_us: f64,
    single_enqueue_us: f64,
    /// Eight chunks in a submission with an event behind them, for each chunk; and one alone with its event, while the
    /// device has nothing else to do.
    eight_us: f64,
    alone_us: f64,
}

/// Runs the command.
///
/// # Errors
/// `no_device`, `device_too_small`, and what host and device say.
pub fn run(args: &BenchSmallArgs, out: Out) -> Result<u8> {
    let device = Found::for_args(&args.device)?.open(&args.device)?;
    let largest = SIZES[SIZES.len() - 1];
    let tier_bytes = args.tier_bytes / largest * largest;
    if tier_bytes == 0 {
        return Err(Failure::usage(format_args!("--tier-bytes {}: at least {largest}", args.tier_bytes)));
    }
    let mut tier = pinned(&device, tier_bytes)?;
    for (number, word) in tier.as_mut_elements::<u64>()?.iter_mut().enumerate() {
        *word = number as u64;
    }
    let stream = device.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() })?;
    let runs = args.runs.max(1);
    let sizes = SIZES.iter().map(|&size| Trial::new(&device, &stream, &tier, size)?.row(runs));
    let sizes = sizes.collect::<Result<Vec<_>>>()?;
    let whole = Trial::new(&device, &stream, &tier, largest)?.whole(runs)?;
    let info = device.info();
    let report = Report {
        backend: info.backend.as_str(),
        device: info.name.clone(),
        tier_bytes,
        link_gb_per_s: whole,
        sizes,
    };
    out.answer(&report, render);
    Ok(0)
}

/// One chunk size: the tier cut into chunks, each with a slot of its own somewhere else.
struct Trial<'a> {
    stream: &'a Stream,
    tier: &'a PinnedHandle,
    geometry: Geometry,
    segments: Vec<Segment>,
    parts: Vec<Part>,
    chunk_bytes: u64,
}

impl<'a> Trial<'a> {
    fn new(
        device: &Device,
        stream: &'a Stream,
        tier: &'a PinnedHandle,
        chunk_bytes: u64,
    ) -> Result<Trial<'a>> {
        let count = tier.len_bytes() as u64 / chunk_bytes;
        let slots = u32::try_from(count).map_err(Failure::usage)?;
        let (limits, chunk) = (device.limits(), usize::try_from(chunk_bytes).map_err(Failure::usage)?);
        let geometry =
            Geometry::new(chunk_bytes, slots, limits.address_align_bytes, Geometry::segment_bytes(limits))?;
        let allocate =
            |segment| device.allocate(u64::from(geometry.slots_of(segment)) * geometry.stride_bytes);
        let segments = (0..geometry.segments()).map(allocate).collect::<spoc_driver::Result<Vec<_>>>()?;
        let part = |number: u64| {
            let slot = u32::try_from(number * STRIDE % count).unwrap_or(0);
            let src_offset = usize::try_from(number).unwrap_or(0) * chunk;
            Part { src_offset, slot, slot_offset: 0, len_bytes: chunk }
        };
        let parts = (0..count).map(part).collect();
        stream.reserve(2 * slots as usize + 64, 2);
        Ok(Trial { stream, tier, geometry, segments, parts, chunk_bytes })
    }

    fn row(&mut self, runs: usize) -> Result<Row> {
        let (mut rates, mut singles) = (Vec::new(), Vec::new());
        let (mut enqueues, mut single_enqueues) = (Vec::new(), Vec::new());
        self.together()?;
        self.check()?;
        self.each()?;
        for _ in 0..runs {
            let (rate, enqueue) = self.together()?;
            rates.push(rate);
            enqueues.push(enqueue);
            let (rate, enqueue) = self.each()?;
            singles.push(rate);
            single_enqueues.push(enqueue);
        }
        let (gb_per_s, single_gb_per_s) = (median(&rates), median(&singles));
        Ok(Row {
            chunk_bytes: self.chunk_bytes,
            gb_per_s,
            spread: spread(&rates),
            single_gb_per_s,
            ratio: gb_per_s / gb_per_s.max(single_gb_per_s),
            enqueue_us: median(&enqueues),
            single_enqueue_us: median(&single_enqueues),
            eight_us: self.host_us(8)?,
            alone_us: self.host_us(1)?,
        })
    }

    /// All chunks in one submission: GB/s, and microseconds of the host a chunk.
    fn together(&mut self) -> Result<(f64, f64)> {
        let began = Instant::now();
        let source = self.tier.lend(0..self.tier.len_bytes())?;
        fill_slots(self.stream, &self.segments, self.geometry, source, &mut self.parts)?;
        self.rates(began, began.elapsed().as_secs_f64())
    }

    /// A submission a chunk.
    fn each(&self) -> Result<(f64, f64)> {
        let began = Instant::now();
        for part in &self.parts {
            self.submit(std::slice::from_ref(part))?;
        }
        self.rates(began, began.elapsed().as_secs_f64())
    }

    fn rates(&self, began: Instant, enqueued: f64) -> Result<(f64, f64)> {
        self.stream.synchronize()?;
        let bytes = self.parts.len() as u64 * self.chunk_bytes;
        let rate = units::gb_per_s(bytes, began.elapsed().as_secs_f64());
        Ok((rate, enqueued * 1e6 / self.parts.len() as f64))
    }

    /// Host time to enqueue `count` chunks in one submission with an event behind them, in microseconds a chunk.
    fn host_us(&self, count: usize) -> Result<f64> {
        let event = self.stream.device().create_event()?;
        let mut times = Vec::new();
        for _ in 0..100 {
            let began = Instant::now();
            self.submit(&self.parts[..count.min(self.parts.len())])?;
            self.stream.record(&event)?;
            times.push(began.elapsed().as_secs_f64() * 1e6 / count as f64);
            event.synchronize()?;
        }
        Ok(median(&times))
    }

    fn submit(&self, parts: &[Part]) -> Result<()> {
        // On the stack: a list for each chunk is not what is measured.
        let mut ranges =
            [CopyRange { src_offset: 0, dst: &self.segments[0], dst_offset: 0, len_bytes: 0 }; 8];
        let first = parts.iter().map(|part| part.src_offset).min().unwrap_or(0);
        let end = parts.iter().map(|part| part.src_offset + part.len_bytes).max().unwrap_or(0);
        for (part, range) in parts.iter().zip(&mut ranges) {
            let place = self.geometry.place(part.slot);
            let (src_offset, len_bytes) = (part.src_offset - first, part.len_bytes);
            let dst = &self.segments[place.segment as usize];
            *range = CopyRange { src_offset, dst, dst_offset: place.offset_bytes, len_bytes };
        }
        let ranges = &ranges[..parts.len().min(8)];
        self.stream.copy_to_device(self.tier.lend(first..end)?, ranges).map_err(spoc_driver::Error::from)?;
        Ok(())
    }

    /// The largest copies that the segments allow.
    fn whole(&self, runs: usize) -> Result<f64> {
        let mut rates = Vec::new();
        for _ in 0..=runs {
            let began = Instant::now();
            let mut src_offset = 0;
            for segment in &self.segments {
                let len_bytes = usize::try_from(segment.len_bytes()).map_err(Failure::usage)?;
                let len_bytes = len_bytes.min(self.tier.len_bytes() - src_offset);
                let range = CopyRange { src_offset, dst: segment, dst_offset: 0, len_bytes };
                let source = self.tier.lend(0..self.tier.len_bytes())?;
                self.stream.copy_to_device(source, &[range]).map_err(spoc_driver::Error::from)?;
                src_offset += len_bytes;
            }
            self.stream.synchronize()?;
            rates.push(units::gb_per_s(src_offset as u64, began.elapsed().as_secs_f64()));
        }
        Ok(median(&rates[1..]))
    }

    /// The first and the last chunk are where they belong.
    fn check(&self) -> Result<()> {
        let tier = self.tier.as_slice()?;
        for part in self.parts.iter().take(1).chain(self.parts.last()) {
            let place = self.geometry.place(part.slot);
            let mut found = vec![0; part.len_bytes];
            self.segments[place.segment as usize].read(place.offset_bytes, &mut found)?;
            if found != tier[part.src_offset..part.src_offset + part.len_bytes] {
                return Err(Failure::new("mismatch", format_args!("slot {} holds other bytes", part.slot)));
            }
        }
        Ok(())
    }
}

fn render(report: &Report) -> String {
    let mut text = format!(
        "{} {}: {} of pinned memory to scattered slots; whole {:.2} GB/s\n   chunk  GB/s  one each  ratio   µs a chunk: one each, eight with an event, alone with an event",
        report.backend,
        report.device,
        units::bytes(report.tier_bytes),
        report.link_gb_per_s
    );
    for row in &report.sizes {
        text.push_str(&format!(
            "\n{:>8}  {:6.2}  {:6.2}  {:5.3}   {:7.2}  {:7.2}  {:7.2}  {:7.2}",
            units::bytes(row.chunk_bytes),
            row.gb_per_s,
            row.single_gb_per_s,
            row.ratio,
            row.enqueue_us,
            row.single_enqueue_us,
            row.eight_us,
            row.alone_us,
        ));
    }
    text
}
