//! Weights stream into slots while a kernel uses the slots that are there; events alone keep the order.
//!
//! `cargo run -p spoc-backends --example 04_streaming_step`
#![allow(clippy::print_stdout, reason = "an example prints what it does")]
#![allow(clippy::cast_possible_truncation, reason = "sizes of a few megabytes")]

use spoc_backends::{MatVec, found, probe};
use spoc_driver::{
    CopyRange, Device, DeviceSelector, DeviceVector, Driver, PinnedHandle, Result, StreamOptions,
};

const SLOTS: u64 = 4;
/// A slot holds a matrix of rows of 1024 numbers.
const ROWS: u64 = 256;
const COLUMNS: u64 = 1024;
const SLOT_BYTES: u64 = ROWS * COLUMNS * 4;
const STEPS: u64 = 12;

/// On every device that copies while it computes.
pub fn main() -> Result<()> {
    let driver = Driver::new(found(&probe()));
    for info in driver.devices() {
        let device = driver.open(&DeviceSelector::index(info.backend, info.index))?;
        let capabilities = device.capabilities();
        if capabilities.launch.is_available() && capabilities.async_copies.is_available() {
            stream(&device)?;
        }
    }
    Ok(())
}

/// Fills a slot a step on the copy stream, and multiplies with it on the compute stream.
fn stream(device: &Device) -> Result<()> {
    let slots = device.allocate(SLOTS * SLOT_BYTES)?;
    let x = DeviceVector::<f32>::allocate(device, COLUMNS)?;
    x.write(0, &[0.5; COLUMNS as usize])?;
    let y = device.allocate(STEPS * ROWS * 4)?;

    // A staging buffer for each slot: what a queued copy reads must not change before it has run.
    let mut staged = PinnedHandle::alloc(device, SLOTS * SLOT_BYTES)?;
    let staged_at = |slot: u64| (slot * SLOT_BYTES) as usize..((slot + 1) * SLOT_BYTES) as usize;
    for (number, value) in staged.as_mut_elements::<f32>()?.iter_mut().enumerate() {
        *value = (number as u64 / (ROWS * COLUMNS)) as f32;
    }

    let options = StreamOptions { non_blocking: true, ..StreamOptions::default() };
    let (copy, compute) = (device.create_stream(options)?, device.create_stream(options)?);
    let events = || (0..SLOTS).map(|_| device.create_event()).collect::<Result<Vec<_>>>();
    let (ready, done, product) = (events()?, events()?, MatVec::new(device)?);
    for step in 0..STEPS {
        let slot = step % SLOTS;
        if step >= SLOTS {
            // The slot is free when the kernel that read it last has run: the device waits for that, not the host.
            copy.wait(&done[slot as usize])?;
        }
        let range = CopyRange {
            src_offset: 0,
            dst: &slots,
            dst_offset: slot * SLOT_BYTES,
            len_bytes: SLOT_BYTES as usize,
        };
        copy.copy_to_device(staged.lend(staged_at(slot))?, &[range])?;
        copy.record(&ready[slot as usize])?;

        compute.wait(&ready[slot as usize])?;
        let matrix = DeviceVector::view(&slots, slot * SLOT_BYTES, ROWS * COLUMNS)?;
        let mut out = DeviceVector::view(&y, step * ROWS * 4, ROWS)?;
        product.launch(&compute, &matrix, &x, &mut out)?;
        compute.record(&done[slot as usize])?;
    }
    compute.synchronize()?;
    let mut sums = [0.0_f32; STEPS as usize];
    for (step, sum) in (0..).zip(&mut sums) {
        DeviceVector::view(&y, step * ROWS * 4, ROWS)?.read(0, std::slice::from_mut(sum))?;
    }
    println!("{} on {}: {sums:?}", device.info().name, device.info().backend);
    assert!((0..STEPS).zip(sums).all(|(step, sum)| sum == (step % SLOTS) as f32 * 512.0));
    Ok(())
}
