//! Question: what memory does a kernel over a large array in host memory take, in place and with a buffer of its own?
//!
//! The array is written on the host; a kernel reads all of it (the digest, which is checked); the growth of the
//! process's resident memory from before the buffer was made until after the kernel has run is the answer.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::fs;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use serde_json::json;
use spoc_driver::{Arguments, BuiltIn, Device, Grid, Kernel, Vector};
use spoc_measurements::{device::DeviceArgs, machine};

/// What memory does a kernel over a large array in host memory take, in place and with a buffer of its own?
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    device: DeviceArgs,
    /// Sizes of the array in MiB.
    #[arg(long, value_delimiter = ',', default_values_t = [3072, 4096])]
    mib: Vec<u64>,
    /// Leave the buffer of its own out: it needs as much memory again.
    #[arg(long)]
    in_place_only: bool,
}

/// Where the kernel's buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The array itself.
    InPlace,
    /// A buffer of the device's, copied to.
    Separate,
}

fn main() -> Result<()> {
    let args = Args::parse();
    let device = args.device.open()?;
    println!("{}", machine::describe());
    println!("device: {}", device.info().name);
    warm_up(&device)?;
    for mib in &args.mib {
        for way in [Way::InPlace, Way::Separate] {
            if way == Way::Separate && args.in_place_only {
                continue;
            }
            let (grown, seconds) = measure(&device, *mib, way)?;
            println!(
                "{mib} MiB, {way:?}: VmRSS grew by {grown:.1} MiB, buffer and kernel took {seconds:.2} s"
            );
            println!(
                "{}",
                json!({ "mib": mib, "way": format!("{way:?}"), "grown_mib": grown, "seconds": seconds })
            );
        }
    }
    Ok(())
}

/// The compiler's memory is not the array's.
fn warm_up(device: &Device) -> Result<()> {
    let mut small = Vector::<u32>::zeroed(1024)?;
    if device.capabilities().host_buffer.is_available() {
        small.attach(device)?;
    }
    digest(device, &small).map(|_| ())
}

fn digest(device: &Device, vector: &Vector<u32>) -> Result<Vec<u32>> {
    let mut out = Vector::<u32>::zeroed(4)?;
    let arguments = Arguments::new().read(vector).scalar(0_u32).write(&mut out);
    device.launch(&Kernel::built_in(BuiltIn::Digest), Grid::linear(1), &arguments)?;
    Ok(out.to_vec()?)
}

/// Growth in MiB, and how long it took.
fn measure(device: &Device, mib: u64, way: Way) -> Result<(f64, f64)> {
    let mut vector = Vector::<u32>::zeroed(mib << 18)?;
    let words = vector.as_mut_slice()?;
    words
        .chunks_mut(1 << 18)
        .zip(0_u32..)
        .for_each(|(part, number)| part.fill(number.wrapping_mul(0x9e37_79b9)));
    let before = resident_bytes()?;
    let begin = Instant::now();
    match way {
        Way::InPlace => vector.attach(device).context("the device takes no buffer over host memory")?,
        Way::Separate => vector.to_device(device)?,
    }
    let found = digest(device, &vector)?;
    let seconds = begin.elapsed().as_secs_f64();
    let grown = resident_bytes()?.saturating_sub(before);
    // The digests of parts add up: the array's, from one part and the kernel's own definition elsewhere.
    let expected = by_parts(&mut vector, device)?;
    ensure!(found == expected, "the kernel read something else: {found:x?}, expected {expected:x?}");
    #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
    Ok((grown as f64 / f64::from(1 << 20), seconds))
}

/// The digest by the native backend, a part at a time.
fn by_parts(vector: &mut Vector<u32>, device: &Device) -> Result<Vec<u32>> {
    vector.free_buffer(device)?;
    let native = DeviceArgs { backend: "native".to_owned(), index: 0 }.open()?;
    let mut out = Vector::<u32>::zeroed(4)?;
    let kernel = Kernel::built_in(BuiltIn::Digest);
    for (number, part) in (0_u32..).zip(vector.as_slice()?.chunks(1 << 22)) {
        let part = Vector::from_slice(part)?;
        let arguments = Arguments::new().read(&part).scalar(number << 22).write(&mut out);
        native.launch(&kernel, Grid::linear(1), &arguments)?;
    }
    Ok(out.to_vec()?)
}

fn resident_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .context("no VmRSS in /proc/self/status")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    Ok(kib << 10)
}
