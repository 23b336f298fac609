//! Kernels: the built-ins give the bytes that the native device gives.

use spoc_backends::native;
use spoc_driver::{
    Arguments, BackendKind, BuiltIn, Device, DeviceSelector, DeviceVector, Driver, Element, Error, Grid,
    Item, Kernel,
};

use super::transfers::{noise, same};
use super::{Ended, Outcome, need};

const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };
const LEN: usize = 10_007;

fn vector<T: Element>(device: &Device, seed: u64, len: usize) -> Result<DeviceVector<T>, Error> {
    let vector = DeviceVector::allocate(device, len as u64)?;
    vector.segment().write(0, &noise(seed, len * size_of::<T>()))?;
    Ok(vector)
}

fn bytes_of<T: Element>(vector: &DeviceVector<T>) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; usize::try_from(vector.len()).unwrap_or(0) * size_of::<T>()];
    vector.segment().read(0, &mut bytes)?;
    Ok(bytes)
}

/// What the arithmetic and the moving built-ins make of the same input, one after the other.
fn of_kind<T: Element>(device: &Device) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
    let (a, b) = (vector::<T>(device, 7, LEN)?, vector::<T>(device, 8, LEN)?);
    let mut out = vector::<T>(device, 9, LEN)?;
    let factor = T::load(&noise(10, size_of::<T>()));
    let launch = |which, arguments: Arguments<'_>| device.launch(&Kernel::built_in(which), GRID, &arguments);
    let mut found = Vec::new();
    launch(BuiltIn::Add, Arguments::new().read_view(&a).read_view(&b).write_view(&mut out))?;
    found.push(("add", bytes_of(&out)?));
    launch(BuiltIn::Scale, Arguments::new().read_view(&a).scalar(factor).write_view(&mut out))?;
    found.push(("scale", bytes_of(&out)?));
    launch(BuiltIn::Copy, Arguments::new().read_view(&b).write_view(&mut out))?;
    found.push(("copy", bytes_of(&out)?));
    launch(BuiltIn::Fill, Arguments::new().write_view(&mut out).scalar(factor))?;
    found.push(("fill", bytes_of(&out)?));
    let indices = DeviceVector::<u32>::allocate(device, 100)?;
    indices.write(0, &(0..100).map(|index| index * 37 % 111).collect::<Vec<u32>>())?;
    launch(
        BuiltIn::Gather,
        Arguments::new().read_view(&a).read_view(&indices).scalar(91_u32).write_view(&mut out),
    )?;
    found.push(("gather", bytes_of(&out)?));
    let mut digest = DeviceVector::<u32>::allocate(device, 4)?;
    digest.write(0, &[0; 4])?;
    launch(BuiltIn::Digest, Arguments::new().read_view(&a).scalar(5_u32).write_view(&mut digest))?;
    found.push(("digest", bytes_of(&digest)?));
    Ok(found)
}

/// What the casts make of the same input.
fn casts(device: &Device) -> Result<Vec<(&'static str, Vec<u8>)>, Error> {
    let single = vector::<f32>(device, 11, LEN)?;
    let codes = vector::<u8>(device, 12, LEN)?;
    let launch = |which, arguments: Arguments<'_>| device.launch(&Kernel::built_in(which), GRID, &arguments);
    let mut found = Vec::new();
    let mut small = vector::<u8>(device, 13, LEN)?;
    launch(BuiltIn::ToE4m3, Arguments::new().read_view(&single).write_view(&mut small))?;
    found.push(("to_e4m3", bytes_of(&small)?));
    launch(BuiltIn::ToE5m2, Arguments::new().read_view(&single).write_view(&mut small))?;
    found.push(("to_e5m2", bytes_of(&small)?));
    let mut wide = vector::<f32>(device, 14, LEN)?;
    launch(BuiltIn::FromE4m3, Arguments::new().read_view(&codes).write_view(&mut wide))?;
    found.push(("from_e4m3", bytes_of(&wide)?));
    launch(BuiltIn::FromE5m2, Arguments::new().read_view(&codes).write_view(&mut wide))?;
    found.push(("from_e5m2", bytes_of(&wide)?));
    Ok(found)
}

type Set = (&'static str, fn(&Device) -> Result<Vec<(&'static str, Vec<u8>)>, Error>);

const SETS: [Set; 7] = [
    ("u8", of_kind::<u8>),
    ("i16", of_kind::<i16>),
    ("u32", of_kind::<u32>),
    ("i64", of_kind::<i64>),
    ("f32", of_kind::<f32>),
    ("f64", of_kind::<f64>),
    ("8-bit floats", casts),
];

/// Every built-in, of several kinds, against the native device.
pub(super) fn built_ins(device: &Device) -> Outcome {
    need("launch", &device.capabilities().launch)?;
    let driver = Driver::new(vec![native::backend(native::Options::default())]);
    let host = driver.open(&DeviceSelector::index(BackendKind::Native, 0))?;
    let (mut count, mut refused) = (0, Vec::new());
    for (kind, make) in SETS {
        let found = match make(device) {
            // Not every device has numbers of 64 bits.
            Err(error) if error.kind().as_str() == "unsupported" => {
                refused.push(kind);
                continue;
            }
            outcome => outcome?,
        };
        for ((name, found), (_, expected)) in found.iter().zip(&make(&host)?) {
            same(found, expected, &format!("{name} of {kind}"))?;
            count += 1;
        }
    }
    if count == 0 {
        return Err(Ended::Refused(refused.join(", ")));
    }
    let beside = if refused.is_empty() { String::new() } else { format!("; no {}", refused.join(", ")) };
    Ok(format!("{count} results as on the native device{beside}"))
}
