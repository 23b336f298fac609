//! The built-in kernels against references of a few lines each, on every backend that launches: the same bytes.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

use std::sync::OnceLock;

use half::{bf16, f16};
use spoc_backends::{ProbeOutcome, probe};
use spoc_driver::backend::BackendKind;
use spoc_driver::{
    Arguments, BuiltIn, Device, DeviceSelector, DeviceVector, Driver, Element, ErrorKind, Grid, Item, Kernel,
    Scalar,
};

const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };

/// Every device that launches, and its kind; opened once, for each opening compiles its kernels anew.
fn devices() -> &'static [(BackendKind, Device)] {
    static DEVICES: OnceLock<Vec<(BackendKind, Device)>> = OnceLock::new();
    DEVICES.get_or_init(open)
}

fn open() -> Vec<(BackendKind, Device)> {
    let mut devices = Vec::new();
    for report in probe() {
        let ProbeOutcome::Found(backend) = report.outcome else { continue };
        let driver = Driver::new(vec![backend.clone()]);
        for info in backend.devices() {
            let device = driver.open(&DeviceSelector::index(report.kind, info.index)).unwrap();
            if device.capabilities().launch.is_available() {
                devices.push((report.kind, device));
            } else {
                eprintln!("not run: {} launches nothing", report.kind);
            }
        }
    }
    devices
}

/// Numbers without a pattern.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    move || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state ^ (state >> 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (state >> 32)
    }
}

/// Elements of any bits; floats among them of every sort.
fn elements<T: Element>(len: usize, seed: u64) -> Vec<T> {
    let mut next = noise(seed);
    let bytes: Vec<u8> = (0..len * size_of::<T>()).map(|_| next().to_le_bytes()[3]).collect();
    bytes.chunks(size_of::<T>()).map(T::load).collect()
}

fn bytes_of<T: Element>(values: &[T]) -> Vec<u8> {
    let mut bytes = vec![0; size_of_val(values)];
    values.iter().zip(bytes.chunks_mut(size_of::<T>())).for_each(|(value, out)| value.store(out));
    bytes
}

/// A vector at an offset that is a multiple of nothing but its element, with a margin after it.
struct Placed<T: Element> {
    view: DeviceVector<T>,
    around: DeviceVector<u8>,
    first: usize,
}

impl<T: Element> Placed<T> {
    fn new(device: &Device, values: &[T], offset: usize) -> Self {
        let first = offset * size_of::<T>();
        let len = first + size_of_val(values) + 21;
        let segment = device.allocate(len as u64).unwrap();
        let around = DeviceVector::<u8>::view(&segment, 0, len as u64).unwrap();
        around.write(0, &vec![0xA5; len]).unwrap();
        let view = DeviceVector::view(&segment, first as u64, values.len() as u64).unwrap();
        view.write(0, values).unwrap();
        Self { view, around, first }
    }

    /// The bytes of the vector; that those around it are as they were is checked.
    fn bytes(&self) -> Vec<u8> {
        let mut all = vec![0; usize::try_from(self.around.len()).unwrap()];
        self.around.read(0, &mut all).unwrap();
        let end = all.len() - 21;
        assert!(
            all[..self.first].iter().chain(&all[end..]).all(|byte| *byte == 0xA5),
            "written beside the vector"
        );
        all[self.first..end].to_vec()
    }
}

/// Tells the first byte that differs.
fn assert_same(found: &[u8], expected: &[u8], what: std::fmt::Arguments<'_>) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let apart = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(place) = apart {
        let around = place / 8 * 8..(place / 8 * 8 + 8).min(found.len());
        panic!("{what}: byte {place}: {:x?}, expected {:x?}", &found[around.clone()], &expected[around]);
    }
}

const LENGTHS: [(usize, usize); 6] = [(1, 0), (3, 1), (4, 3), (257, 2), (1000, 5), (70_001, 1)];

/// Runs a case on every device; kinds of 64 bits may be refused by name.
fn everywhere(is_wide: bool, case: impl Fn(&Device) -> Result<(), spoc_driver::Error>) {
    for (kind, device) in devices() {
        match case(device) {
            Ok(()) => {}
            Err(error) if is_wide && matches!(error.kind(), ErrorKind::Unsupported { .. }) => {
                eprintln!("not run: {kind}: {error}");
            }
            Err(error) => panic!("{kind}: {error}"),
        }
    }
}

/// As [`assert_same`], of one of two: devices may take numbers below the smallest normal one for zero, all of them alike.
fn assert_one_of(found: &[u8], exact: &[u8], flushed: &[u8], device: &Device, what: std::fmt::Arguments<'_>) {
    let is_cpu = matches!(device.info().backend, BackendKind::Native | BackendKind::Interpreter);
    if is_cpu || found != flushed {
        assert_same(found, exact, format_args!("{}: {what}", device.info().name));
    }
}

fn add_and_scale<T: Element + PartialEq + std::fmt::Debug>(
    plus: impl Fn(T, T) -> T,
    times: impl Fn(T, T) -> T,
) {
    add_and_scale_or_flush(plus, times, |value| value);
}

fn add_and_scale_or_flush<T: Element + PartialEq + std::fmt::Debug>(
    plus: impl Fn(T, T) -> T,
    times: impl Fn(T, T) -> T,
    flush: impl Fn(T) -> T,
) {
    let flushed = |op: &dyn Fn(T, T) -> T, a: T, b: T| flush(op(flush(a), flush(b)));
    everywhere(size_of::<T>() == 8, |device| {
        for (len, offset) in LENGTHS {
            let (a, b) = (elements::<T>(len, 1), elements::<T>(len, 2));
            let (on_a, on_b) = (Placed::new(device, &a, offset), Placed::new(device, &b, 0));
            let mut out = Placed::new(device, &elements::<T>(len, 3), offset + 1);
            let arguments =
                Arguments::new().read_view(&on_a.view).read_view(&on_b.view).write_view(&mut out.view);
            device.launch(&Kernel::built_in(BuiltIn::Add), GRID, &arguments)?;
            let sums: Vec<T> = a.iter().zip(&b).map(|(a, b)| plus(*a, *b)).collect();
            let zeroed: Vec<T> = a.iter().zip(&b).map(|(a, b)| flushed(&plus, *a, *b)).collect();
            let what = format_args!("sums {len} {offset}");
            assert_one_of(&out.bytes(), &bytes_of(&sums), &bytes_of(&zeroed), device, what);
            let factor = b[0];
            let arguments = Arguments::new().read_view(&on_a.view).scalar(factor).write_view(&mut out.view);
            device.launch(&Kernel::built_in(BuiltIn::Scale), GRID, &arguments)?;
            let products: Vec<T> = a.iter().map(|a| times(*a, factor)).collect();
            let zeroed: Vec<T> = a.iter().map(|a| flushed(&times, *a, factor)).collect();
            let what = format_args!("products {len} {offset}");
            assert_one_of(&out.bytes(), &bytes_of(&products), &bytes_of(&zeroed), device, what);
        }
        Ok(())
    });
}

#[test]
fn sums_and_products_of_integers() {
    add_and_scale::<u8>(u8::wrapping_add, u8::wrapping_mul);
    add_and_scale::<i8>(i8::wrapping_add, i8::wrapping_mul);
    add_and_scale::<u16>(u16::wrapping_add, u16::wrapping_mul);
    add_and_scale::<i16>(i16::wrapping_add, i16::wrapping_mul);
    add_and_scale::<u32>(u32::wrapping_add, u32::wrapping_mul);
    add_and_scale::<i32>(i32::wrapping_add, i32::wrapping_mul);
    add_and_scale::<u64>(u64::wrapping_add, u64::wrapping_mul);
    add_and_scale::<i64>(i64::wrapping_add, i64::wrapping_mul);
}

#[test]
fn sums_and_products_of_floats() {
    let single = |v: f32| if v.is_nan() { f32::from_bits(0x7fc0_0000) } else { v };
    let flush = |v: f32| if v.is_subnormal() { 0.0_f32.copysign(v) } else { v };
    add_and_scale_or_flush::<f32>(move |a, b| single(a + b), move |a, b| single(a * b), flush);
    let double = |v: f64| if v.is_nan() { f64::from_bits(0x7ff8 << 48) } else { v };
    add_and_scale::<f64>(move |a, b| double(a + b), move |a, b| double(a * b));
    // In 64 bits, rounded once.
    let half = |v: f64| if v.is_nan() { f16::from_bits(0x7e00) } else { f16::from_f64(v) };
    add_and_scale::<f16>(
        move |a, b| half(a.to_f64() + b.to_f64()),
        move |a, b| half(a.to_f64() * b.to_f64()),
    );
    // Through 32 bits: what the kernels promise, and what processors do.
    let brain = |v: f32| if v.is_nan() { bf16::from_bits(0x7fc0) } else { bf16::from_f32(v) };
    add_and_scale_or_flush::<bf16>(
        move |a, b| brain(a.to_f32() + b.to_f32()),
        move |a, b| brain(a.to_f32() * b.to_f32()),
        move |v| bf16::from_f32(flush(v.to_f32())),
    );
}

fn moves<T: Element>() {
    everywhere(false, |device| {
        for (len, offset) in LENGTHS {
            let a = elements::<T>(len, 4);
            let on_a = Placed::new(device, &a, offset);
            let mut out = Placed::new(device, &elements::<T>(len, 5), offset + 2);
            let arguments = Arguments::new().write_view(&mut out.view).scalar(a[0]);
            device.launch(&Kernel::built_in(BuiltIn::Fill), GRID, &arguments)?;
            assert_same(&out.bytes(), &bytes_of(&vec![a[0]; len]), format_args!("fill {len} {offset}"));
            let arguments = Arguments::new().read_view(&on_a.view).write_view(&mut out.view);
            device.launch(&Kernel::built_in(BuiltIn::Copy), GRID, &arguments)?;
            assert_same(&out.bytes(), &bytes_of(&a), format_args!("copy {len} {offset}"));
            let mut next = noise(6);
            for chunk in [1, 3, len] {
                let chunks = len.div_ceil(chunk) as u64;
                let pick = |_| u32::try_from(next() % (chunks + 2)).unwrap();
                let mut indices: Vec<u32> = (0..chunks).map(pick).collect();
                indices[0] = u32::MAX;
                let on_indices = Placed::new(device, &indices, 1);
                let before = elements::<T>(len, 7);
                let mut out = Placed::new(device, &before, offset);
                let elements = u32::try_from(chunk).unwrap();
                let arguments = Arguments::new()
                    .read_view(&on_a.view)
                    .read_view(&on_indices.view)
                    .scalar(elements)
                    .write_view(&mut out.view);
                device.launch(&Kernel::built_in(BuiltIn::Gather), GRID, &arguments)?;
                let zero = T::load(&vec![0; size_of::<T>()]);
                let expected: Vec<T> = (0..len)
                    .map(|e| {
                        a.get((indices[e / chunk] as usize) * chunk + e % chunk).copied().unwrap_or(zero)
                    })
                    .collect();
                assert_same(
                    &out.bytes(),
                    &bytes_of(&expected),
                    format_args!("gather {len} {offset} {chunk}"),
                );
            }
        }
        Ok(())
    });
}

#[test]
fn fill_copy_and_gather_move_every_kind() {
    moves::<u8>();
    moves::<u16>();
    moves::<f32>();
    moves::<f64>();
    moves::<i64>();
}

fn cast<A: Element, B: Element>(which: BuiltIn, a: &[A], cast: impl Fn(A) -> B) {
    everywhere(false, |device| {
        for offset in [0, 1, 3] {
            let on_a = Placed::new(device, a, offset);
            let mut out = Placed::new(device, &elements::<B>(a.len(), 8), 3 - offset);
            let arguments = Arguments::new().read_view(&on_a.view).write_view(&mut out.view);
            device.launch(&Kernel::built_in(which), GRID, &arguments)?;
            let expected: Vec<B> = a.iter().map(|a| cast(*a)).collect();
            let found = out.bytes();
            for (position, (found, expected)) in
                found.chunks(size_of::<B>()).zip(bytes_of(&expected).chunks(size_of::<B>())).enumerate()
            {
                let from = Scalar::of(a[position]);
                assert_eq!(found, expected, "{} of {from:?}", which.as_str());
            }
        }
        Ok(())
    });
}

/// Every half, and `f32`s of every exponent with mantissas that decide how to round.
fn singles() -> Vec<f32> {
    let mut values = Vec::new();
    for exponent in 0..256_u32 {
        for mantissa in [
            0, 1, 0xfff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0x18000, 0xfffff, 0x100000, 0x180000,
            0x200000, 0x2fffff, 0x300001, 0x400000, 0x600000, 0x6fffff, 0x700000, 0x7fffff,
        ] {
            for sign in [0, 1_u32 << 31] {
                values.push(f32::from_bits(sign | exponent << 23 | mantissa));
            }
        }
    }
    values
}

#[test]
fn casts_between_halves_and_singles() {
    let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    cast(BuiltIn::Cast, &halves, f16::to_f32);
    cast(BuiltIn::Cast, &brains, |value: bf16| f32::from_bits(u32::from(value.to_bits()) << 16));
    cast(BuiltIn::Cast, &singles(), f16::from_f32);
    cast(BuiltIn::Cast, &singles(), bf16::from_f32);
    cast(BuiltIn::Cast, &singles(), |value: f32| value);
    cast(BuiltIn::Cast, &halves, |value: f16| bf16::from_f32(value.to_f32()));
}

/// The number of a code, by the formula of the format's specification.
fn small(code: u8, mantissa: i32, bias: i32) -> f64 {
    let (exponent, rest) = (i32::from(code & 0x7f) >> mantissa, i32::from(code) & ((1 << mantissa) - 1));
    let fraction = f64::from(rest) / f64::from(1 << mantissa);
    match exponent {
        0 => fraction * 2_f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2_f64.powi(exponent - bias),
    }
}

/// The nearest code by looking at all of them; the even one of two.
fn nearest(value: f32, top: u8, mantissa: i32, bias: i32) -> u8 {
    let sign = if value.is_sign_negative() { 0x80 } else { 0 };
    if value.is_nan() {
        return sign | 0x7f;
    }
    let magnitude = f64::from(value.abs()).min(small(top, mantissa, bias));
    let distance = |code: u8| (small(code, mantissa, bias) - magnitude).abs();
    let best = (0..=top).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2))));
    sign | best.unwrap()
}

#[test]
fn casts_of_small_floats() {
    let codes: Vec<u8> = (0..=u8::MAX).collect();
    #[allow(clippy::cast_possible_truncation)]
    let signed = |code: u8, value: f64| if code > 0x7f { -value as f32 } else { value as f32 };
    cast(BuiltIn::FromE4m3, &codes, |code: u8| match code & 0x7f {
        0x7f => f32::from_bits(0x7fc0_0000 | u32::from(code & 0x80) << 24),
        _ => signed(code, small(code, 3, 7)),
    });
    cast(BuiltIn::FromE5m2, &codes, |code: u8| match code & 0x7f {
        0x7c => signed(code, f64::INFINITY),
        0x7d.. => f32::from_bits(0x7fc0_0000 | u32::from(code & 3) << 21 | u32::from(code & 0x80) << 24),
        _ => signed(code, small(code, 2, 15)),
    });
    cast(BuiltIn::FromE4m3, &codes[..0x7f], |code: u8| f16::from_f64(small(code, 3, 7)));
    cast(BuiltIn::ToE4m3, &singles(), |value: f32| nearest(value, 0x7e, 3, 7));
    cast(BuiltIn::ToE5m2, &singles(), |value: f32| nearest(value, 0x7b, 2, 15));
    let brains: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    cast(BuiltIn::ToE4m3, &brains, |value: bf16| {
        nearest(f32::from_bits(u32::from(value.to_bits()) << 16), 0x7e, 3, 7)
    });
}

#[test]
fn casts_of_what_is_no_float_are_refused() {
    for (_, device) in devices() {
        let a = DeviceVector::<u32>::allocate(device, 4).unwrap();
        let mut out = DeviceVector::<f32>::allocate(device, 4).unwrap();
        let arguments = Arguments::new().read_view(&a).write_view(&mut out);
        let refused = device.launch(&Kernel::built_in(BuiltIn::Cast), GRID, &arguments).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::WrongKind, "{refused}");
    }
}

fn mix(x: u32) -> u32 {
    let x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

fn digest(bytes: &[u8], first: u32) -> Vec<u32> {
    let word =
        |i: usize| (0..4).map(|b| u32::from(*bytes.get(i * 4 + b).unwrap_or(&0)) << (b * 8)).sum::<u32>();
    [0x2545_f491_u32, 0x8d7c_6a35, 0xb529_7a4d, 0x68e3_1da4]
        .iter()
        .map(|salt| {
            (0..bytes.len().div_ceil(4)).fold(0_u32, |sum, i| {
                let number = first.wrapping_add(u32::try_from(i).unwrap());
                let place = number.wrapping_mul(0x9e37_79b1).wrapping_add(*salt);
                sum.wrapping_add(mix(mix(word(i).wrapping_add(*salt)) ^ place))
            })
        })
        .collect()
}

#[test]
fn digests_of_parts_add_up() {
    everywhere(false, |device| {
        for (len, offset) in LENGTHS {
            let bytes = elements::<u8>(len, 9);
            let on = Placed::new(device, &bytes, offset);
            let mut out = Placed::new(device, &[0_u32; 6], offset);
            let kernel = Kernel::built_in(BuiltIn::Digest);
            let arguments = Arguments::new().read_view(&on.view).scalar(7_u32).write_view(&mut out.view);
            device.launch(&kernel, GRID, &arguments)?;
            let expected = [digest(&bytes, 7), vec![0, 0]].concat();
            assert_eq!(out.bytes(), bytes_of(&expected), "{len} {offset}");
            if len < 8 {
                continue;
            }
            let (first, second) = bytes.split_at(len / 8 * 4);
            let mut parts = Placed::new(device, &[0_u32; 4], 0);
            for (part, number) in [(second, 7 + len / 8), (first, 7)] {
                let on = Placed::new(device, part, offset);
                let number = u32::try_from(number).unwrap();
                let arguments =
                    Arguments::new().read_view(&on.view).scalar(number).write_view(&mut parts.view);
                device.launch(&kernel, GRID, &arguments)?;
            }
            assert_eq!(parts.bytes(), bytes_of(&expected[..4]));
        }
        Ok(())
    });
}
