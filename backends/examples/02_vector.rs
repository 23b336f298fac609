//! A vector goes to a device, is computed on, and comes back; its location says where the newest copy is.
//!
//! `cargo run -p spoc-backends --example 02_vector`
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use spoc_backends::{found, probe};
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, DeviceSelector, Driver, Grid, Kernel, Location, Result, Vector,
};

/// Asserts each step's location.
pub fn main() -> Result<()> {
    let driver = Driver::new(found(&probe()));
    let device = driver.open(&DeviceSelector::index(BackendKind::Native, 0))?;

    let mut x = Vector::from_slice(&[1.0_f32, 2.0, 3.0, 4.0])?;
    assert_eq!(x.location(), Location::Cpu);
    x.to_device(&device)?;
    assert_eq!(x.location(), Location::Both);

    // A launch moves what it needs by itself, and makes the device newest for what it writes.
    let mut y = Vector::<f32>::zeroed(4)?;
    let scale = Kernel::built_in(BuiltIn::Scale);
    let arguments = Arguments::new().read(&x).scalar(10.0_f32).write(&mut y);
    device.launch(&scale, Grid::linear(4), &arguments)?;
    assert_eq!((x.location(), y.location()), (Location::Both, Location::StaleCpu));

    // A part of it, without moving the rest.
    let mut middle = [0.0; 2];
    y.copy_to_host(1, &mut middle)?;
    assert_eq!((middle, y.location()), ([20.0, 30.0], Location::StaleCpu));

    // Writing one element on the host brings the device's results back first, so none is lost.
    y.set(0, -1.0)?;
    assert_eq!(y.location(), Location::StaleGpu);
    assert_eq!(y.as_slice()?, [-1.0, 20.0, 30.0, 40.0]);

    // Turned off, nothing moves unasked.
    driver.set_automatic_transfers(false);
    x.copy_to_device(0, &[5.0])?;
    let refused = x.get(0).err();
    println!("refused: {}", refused.map(|error| error.to_string()).unwrap_or_default());
    x.to_cpu()?;
    assert_eq!(x.get(0)?, 5.0);

    println!("bytes held in buffers: {}", device.memory_in_use());
    x.free_all_buffers()?;
    println!("after freeing x:       {}", device.memory_in_use());
    Ok(())
}
