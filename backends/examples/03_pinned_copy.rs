//! A slot of a cache is loaded on one stream while another computes; an event orders them on the device.
//!
//! `cargo run -p spoc-backends --example 03_pinned_copy`
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use spoc_backends::{found, probe};
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, DeviceSelector, DeviceVector, Driver, Grid, Kernel, PinnedHandle,
    Result, StreamOptions, Vector,
};

/// Elements of a slot, as many bytes, and as many threads.
const SLOT: u64 = 1 << 16;
const SLOT_BYTES: usize = 4 << 16;
const THREADS: u32 = 1 << 16;

/// Copies through pinned memory, waits on the device, checks the sum.
pub fn main() -> Result<()> {
    let driver = Driver::new(found(&probe()));
    let device = driver.open(&DeviceSelector::index(BackendKind::Native, 0))?;
    if !PinnedHandle::is_available(&device)? {
        println!("no pinned memory here");
        return Ok(());
    }

    // Four slots of one segment; the vectors are views of it.
    let cache = device.allocate(4 * SLOT * 4)?;
    let slot = |number: u64| DeviceVector::<u32>::view(&cache, number * SLOT * 4, SLOT);
    let mut sum = Vector::<u32>::device_only(&device, SLOT)?;

    let options = StreamOptions { non_blocking: true, ..StreamOptions::default() };
    let (copy, compute) = (device.create_stream(options)?, device.create_stream(options)?);
    let (ready, add) = (device.create_event()?, Kernel::built_in(BuiltIn::Add));

    let staged = PinnedHandle::with_alloc(&device, SLOT * 4, Some(&copy), |staged| -> Result<()> {
        for number in 0..4_u32 {
            // Refused while the last copy still reads it, so that is waited for.
            copy.synchronize()?;
            staged.as_mut_elements::<u32>()?.fill(number + 1);
            let target = slot(number.into())?;
            let range = spoc_driver::CopyRange {
                src_offset: 0,
                dst: &cache,
                dst_offset: target.offset_bytes(),
                len_bytes: SLOT_BYTES,
            };
            copy.copy_to_device(staged.lend(0..SLOT_BYTES)?, &[range])?;
        }
        // The host waits for nothing here: `compute` does, on the device.
        copy.record(&ready)?;
        compute.wait(&ready)
    });
    staged??;
    let (third, fourth) = (slot(2)?, slot(3)?);
    let arguments = Arguments::new().read_view(&third).read_view(&fourth).write(&mut sum);
    compute.launch(&add, Grid::linear(THREADS), &arguments)?;

    let back = sum.copy_bytes_to_host_on(&compute, 0, vec![0; 8])?.wait()?;
    println!("3 + 4 = {}", back[0]);
    assert_eq!(back, [7, 0, 0, 0, 7, 0, 0, 0]);
    println!("kept alive for pending work: {} submissions", device.in_flight());
    Ok(())
}
