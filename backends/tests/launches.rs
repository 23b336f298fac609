//! Launches with vectors and numbers: built-ins and native kernels, refusals, the window.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use spoc_backends::{interpreter, native};
use spoc_driver::backend::BackendKind;
use spoc_driver::{
    Arguments, BuiltIn, Device, DeviceSelector, DeviceVector, Driver, ElementKind, Elements, Error,
    ErrorKind, Grid, Item, Kernel, KindRule, Location, Parameter, StreamOptions, VECTOR_ELEMENTS_MAX, Vector,
};

const ANY: KindRule = KindRule::Any;
const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };

fn open() -> (Driver, Device, Device) {
    let driver = Driver::new(vec![
        native::backend(native::Options::default()),
        interpreter::backend(interpreter::Options::default()),
    ]);
    let device = |kind| driver.open(&DeviceSelector::index(kind, 0)).unwrap();
    let (native, interpreter) = (device(BackendKind::Native), device(BackendKind::Interpreter));
    (driver, native, interpreter)
}

fn both() -> [Device; 2] {
    let (_, native, interpreter) = open();
    [native, interpreter]
}

fn axpy() -> Kernel {
    let f32s = KindRule::Exactly(ElementKind::F32);
    let parameters = [Parameter::scalar(f32s), Parameter::read(f32s), Parameter::write(f32s)];
    Kernel::native("axpy", &parameters, |call| {
        let (a, x, y) = (call.scalar::<f32>(0)?, call.read::<f32>(1)?, call.write::<f32>(2)?);
        x.iter().zip(y).for_each(|(x, y)| *y += a * x);
        Ok(())
    })
    .unwrap()
}

#[test]
fn a_native_kernel_is_safe_rust_over_slices() {
    let (_, native, interpreter) = open();
    let x = Vector::from_slice(&[1.0_f32, 2.0, 3.0]).unwrap();
    let mut y = Vector::from_slice(&[10.0_f32, 20.0, 30.0]).unwrap();
    native.launch(&axpy(), GRID, &Arguments::new().scalar(2.0_f32).read(&x).write(&mut y)).unwrap();
    assert_eq!((x.location(), y.location()), (Location::Both, Location::StaleCpu));
    let stream = native.create_stream(StreamOptions::default()).unwrap();
    stream.launch(&axpy(), GRID, &Arguments::new().scalar(1.0_f32).read(&x).write(&mut y)).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(y.as_slice().unwrap(), [13.0, 26.0, 39.0]);
    let refused = interpreter
        .launch(&axpy(), GRID, &Arguments::new().scalar(1.0_f32).read(&x).write(&mut y))
        .unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Unsupported { feature: "kernel_form", .. }), "{refused}");
}

#[test]
fn built_ins_give_the_same_bytes_on_both() {
    let results: Vec<_> = both()
        .iter()
        .map(|device| {
            let launch = |which, arguments: &Arguments<'_>| {
                device.launch(&Kernel::built_in(which), GRID, arguments).unwrap();
            };
            let mut a = Vector::<half::f16>::on_device(device, 6).unwrap();
            launch(BuiltIn::Fill, &Arguments::new().write(&mut a).scalar(half::f16::from_f32(0.1)));
            let mut b = Vector::<half::f16>::zeroed(6).unwrap();
            launch(BuiltIn::Copy, &Arguments::new().read(&a).write(&mut b));
            let mut sum = Vector::<half::f16>::zeroed(6).unwrap();
            launch(BuiltIn::Add, &Arguments::new().read(&a).read(&b).write(&mut sum));
            let mut scaled = Vector::<half::f16>::zeroed(6).unwrap();
            let three = half::f16::from_f32(3.0);
            launch(BuiltIn::Scale, &Arguments::new().read(&sum).scalar(three).write(&mut scaled));
            // The same vector may be read twice.
            launch(BuiltIn::Add, &Arguments::new().read(&scaled).read(&scaled).write(&mut sum));
            let numbers = Vector::from_slice(&[1_i32, 2, 3, 4, 5, 6]).unwrap();
            let indices = Vector::from_slice(&[2_u32, 0, 7]).unwrap();
            let mut gathered = Vector::<i32>::zeroed(6).unwrap();
            let arguments = Arguments::new().read(&numbers).read(&indices).scalar(2_u32).write(&mut gathered);
            launch(BuiltIn::Gather, &arguments);
            assert_eq!(gathered.as_slice().unwrap(), [5, 6, 1, 2, 0, 0]);
            sum.to_vec().unwrap()
        })
        .collect();
    assert_eq!(results[0], results[1]);
    // 0.1 is 1638/16384 here; six times that lies half-way between two numbers, and goes to the even one.
    assert_eq!(results[0][0].to_f32(), 2.0 * 1228.0 / 2048.0);
}

#[derive(Clone, Copy)]
struct Record(u8);

impl Item for Record {
    const LEN_BYTES: usize = 3;
    fn store(&self, out: &mut [u8]) {
        out.fill(self.0);
    }
    fn load(from: &[u8]) -> Self {
        Self(from[0])
    }
}

#[test]
fn kernels_see_the_bytes_of_records() {
    let (_, native, _) = open();
    let mut records = Vector::from_slice(&[Record(1), Record(2)]).unwrap();
    let kernel = Kernel::native("bump", &[Parameter::write(ANY)], |call| {
        assert_eq!(call.kind(0)?, None);
        call.write_bytes(0)?.iter_mut().for_each(|byte| *byte += 1);
        Ok(())
    })
    .unwrap();
    native.launch(&kernel, GRID, &Arguments::new().write(&mut records)).unwrap();
    assert_eq!(records.get(1).unwrap().0, 3);
    let fill = Kernel::built_in(BuiltIn::Fill);
    let refused = native.launch(&fill, GRID, &Arguments::new().write(&mut records).scalar(1_u8)).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::WrongKind);
}

#[test]
fn what_the_kernel_does_not_take_is_refused_before_anything_moves() {
    let (_, native, _) = open();
    let x = Vector::from_slice(&[1.0_f32]).unwrap();
    let wide = Vector::from_slice(&[1.0_f64]).unwrap();
    let mut y = Vector::from_slice(&[1.0_f32]).unwrap();
    let refused =
        |arguments: &Arguments<'_>| native.launch(&axpy(), GRID, arguments).unwrap_err().kind().clone();
    assert_eq!(refused(&Arguments::new().scalar(1.0_f32).read(&x)), ErrorKind::InvalidArgument);
    assert_eq!(refused(&Arguments::new().scalar(1.0_f32).read(&x).read(&x)), ErrorKind::InvalidArgument);
    assert_eq!(refused(&Arguments::new().read(&x).read(&x).write(&mut y)), ErrorKind::InvalidArgument);
    assert_eq!(refused(&Arguments::new().scalar(1.0_f32).read(&wide).write(&mut y)), ErrorKind::WrongKind);
    assert_eq!(refused(&Arguments::new().scalar(1_u32).read(&x).write(&mut y)), ErrorKind::WrongKind);
    let none = Grid { groups: [0, 1, 1], group: [1, 1, 1] };
    let arguments = Arguments::new().scalar(1.0_f32).read(&x).write(&mut y);
    assert_eq!(*native.launch(&axpy(), none, &arguments).unwrap_err().kind(), ErrorKind::ZeroSize);
    let many = Grid { groups: [1 << 16, 1 << 16, 1], group: [1, 1, 1] };
    assert!(matches!(
        native.launch(&axpy(), many, &arguments).unwrap_err().kind(),
        ErrorKind::TooLarge { .. }
    ));
    assert_eq!((x.location(), wide.location(), y.location()), (Location::Cpu, Location::Cpu, Location::Cpu));
    assert_eq!(native.memory_in_use(), 0);
    let later = [Parameter::read(KindRule::SameAs(1)), Parameter::read(ANY)];
    let wrong = Kernel::native("wrong", &later, |_| Ok(())).unwrap_err();
    assert_eq!(*wrong.kind(), ErrorKind::InvalidArgument);
}

/// More than kernels can index; the memory is never touched.
#[test]
fn longer_vectors_than_kernels_index_are_refused() {
    for device in both() {
        let mut long = Vector::<u8>::zeroed(VECTOR_ELEMENTS_MAX + 1).unwrap();
        let fill = Kernel::built_in(BuiltIn::Fill);
        let refused =
            device.launch(&fill, GRID, &Arguments::new().write(&mut long).scalar(1_u8)).unwrap_err();
        assert_eq!(
            *refused.kind(),
            ErrorKind::TooLarge { need: VECTOR_ELEMENTS_MAX + 1, max: VECTOR_ELEMENTS_MAX }
        );
        assert_eq!((long.location(), device.memory_in_use()), (Location::Cpu, 0));
    }
}

#[test]
fn written_memory_is_passed_once() {
    for device in both() {
        let segment = device.allocate(64).unwrap();
        let view = |offset, len| DeviceVector::<u32>::view(&segment, offset, len).unwrap();
        let (first, mut overlapping, mut beside) = (view(0, 8), view(28, 4), view(32, 8));
        beside.write(0, &[0; 8]).unwrap();
        first.write(0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let copy = Kernel::built_in(BuiltIn::Copy);
        let refused =
            device.launch(&copy, GRID, &Arguments::new().read_view(&first).write_view(&mut overlapping));
        assert_eq!(*refused.unwrap_err().kind(), ErrorKind::Overlap);
        device.launch(&copy, GRID, &Arguments::new().read_view(&first).write_view(&mut beside)).unwrap();
        let mut seen = [0; 2];
        beside.read(6, &mut seen).unwrap();
        assert_eq!(seen, [7, 8]);
        // What is only read may be passed as often as wanted, parts of it too.
        let (tail, add) = (view(4, 4), Kernel::built_in(BuiltIn::Add));
        let arguments = Arguments::new().read_view(&first).read_view(&tail).write_view(&mut beside);
        device.launch(&add, GRID, &arguments).unwrap();
        beside.read(0, &mut seen).unwrap();
        assert_eq!(seen, [3, 5]);
    }
}

#[test]
fn vectors_of_another_device_come_by_themselves_or_are_refused() {
    let (driver, native, interpreter) = open();
    let fill = Kernel::built_in(BuiltIn::Fill);
    let mut vector = Vector::from_slice(&[1_u8, 2]).unwrap();
    let mut only = Vector::<u8>::device_only(&native, 2).unwrap();
    driver.set_automatic_transfers(false);
    let refused = native.launch(&fill, GRID, &Arguments::new().write(&mut vector).scalar(7_u8)).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::WrongLocation);
    driver.set_automatic_transfers(true);
    native.launch(&fill, GRID, &Arguments::new().write(&mut vector).scalar(7_u8)).unwrap();
    let mut sum = Vector::<u8>::zeroed(2).unwrap();
    let add = Kernel::built_in(BuiltIn::Add);
    interpreter.launch(&add, GRID, &Arguments::new().read(&vector).read(&vector).write(&mut sum)).unwrap();
    assert!(vector.home().unwrap().is(&interpreter));
    assert_eq!(sum.as_slice().unwrap(), [14, 14]);
    let refused =
        interpreter.launch(&fill, GRID, &Arguments::new().write(&mut only).scalar(7_u8)).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::WrongDevice);
    let mut view = DeviceVector::<u8>::allocate(&native, 2).unwrap();
    let refused =
        interpreter.launch(&fill, GRID, &Arguments::new().write_view(&mut view).scalar(7_u8)).unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::WrongDevice);
}

#[test]
fn a_kernel_that_fails_fails_its_stream() {
    let (_, native, _) = open();
    let fails = Kernel::native("fails", &[Parameter::write(ANY)], |_| {
        Err(Error::new(ErrorKind::InvalidArgument, "on purpose"))
    })
    .unwrap();
    let panics = Kernel::native("panics", &[Parameter::write(ANY)], |_| panic!("on purpose")).unwrap();
    for kernel in [fails, panics] {
        let mut vector = Vector::<u8>::device_only(&native, 4).unwrap();
        vector.copy_to_device(0, &[1; 4]).unwrap();
        let (stream, other) = (
            native.create_stream(StreamOptions::default()).unwrap(),
            native.create_stream(StreamOptions::default()).unwrap(),
        );
        let event = native.create_event().unwrap();
        stream.launch(&kernel, GRID, &Arguments::new().write(&mut vector)).unwrap();
        let _ = vector.copy_to_device_on(&stream, 0, vec![9; 4]);
        let recorded = stream.record(&event);
        assert_eq!(*stream.synchronize().unwrap_err().kind(), ErrorKind::AsyncFailure);
        if recorded.is_ok() {
            assert_eq!(*event.synchronize().unwrap_err().kind(), ErrorKind::AsyncFailure);
        }
        assert_eq!(*stream.query().unwrap_err().kind(), ErrorKind::AsyncFailure);
        let refused = vector.copy_to_device_on(&stream, 0, vec![9]).unwrap_err();
        assert_eq!(*refused.error.kind(), ErrorKind::AsyncFailure);
        other.synchronize().unwrap();
        // What followed the failure did not run.
        let mut seen = [0; 4];
        vector.copy_to_host(0, &mut seen).unwrap();
        assert_eq!(seen, [1; 4]);
        // On the default stream the caller is told at once, and the stream goes on.
        let told = native.launch(&kernel, GRID, &Arguments::new().write(&mut vector)).unwrap_err();
        assert_ne!(*told.kind(), ErrorKind::AsyncFailure);
        vector.copy_to_device(0, &[2]).unwrap();
    }
}

/// What a program forgot to order runs in some order, never at once: kernels are safe Rust.
#[test]
fn unordered_kernels_do_not_race() {
    let (_, native, _) = open();
    let running = Arc::new(AtomicU32::new(0));
    let alone = Arc::clone(&running);
    let kernel = Kernel::native("alone", &[Parameter::write(ANY)], move |call| {
        assert_eq!(alone.fetch_add(1, Ordering::SeqCst), 0);
        for byte in call.write::<u8>(0)? {
            *byte = byte.wrapping_add(1);
        }
        alone.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    })
    .unwrap();
    let mut vector = Vector::<u8>::device_only(&native, 1 << 16).unwrap();
    vector.copy_to_device(0, &vec![0; 1 << 16]).unwrap();
    let streams: Vec<_> = (0..4).map(|_| native.create_stream(StreamOptions::default()).unwrap()).collect();
    for _ in 0..20 {
        for stream in &streams {
            stream.launch(&kernel, GRID, &Arguments::new().write(&mut vector)).unwrap();
        }
    }
    native.flush().unwrap();
    let mut seen = vec![0; 1 << 16];
    vector.copy_to_host(0, &mut seen).unwrap();
    assert!(seen.iter().all(|&byte| byte == 80));
}

/// The window's rules: what hands it over, and what a stream launch does.
#[test]
fn everything_else_hands_the_window_over() {
    type Trigger = (&'static str, fn(&Device, &mut Vector<u8>));
    let triggers: [Trigger; 16] = [
        ("get", |_, vector| assert_eq!(vector.get(0).unwrap(), 7)),
        ("set", |_, vector| vector.set(0, 1).unwrap()),
        ("to_cpu", |_, vector| vector.to_cpu().unwrap()),
        ("ranged read", |_, vector| vector.copy_to_host(0, &mut [0]).unwrap()),
        ("ranged write", |_, vector| vector.copy_to_device(0, &[1]).unwrap()),
        ("stage", |_, vector| vector.stage_to_device(0, &[1]).unwrap()),
        ("free", |device, vector| vector.free_buffer(device).unwrap()),
        ("flush", |device, _| device.flush().unwrap()),
        ("synchronize", |device, _| device.default_stream().synchronize().unwrap()),
        ("query", |device, _| assert!(device.default_stream().query().unwrap())),
        ("record", |device, _| device.default_stream().record(&device.create_event().unwrap()).unwrap()),
        ("stream copy", |device, vector| {
            let stream = device.create_stream(StreamOptions::default()).unwrap();
            vector.copy_to_device_on(&stream, 0, vec![1]).unwrap();
        }),
        ("stream read", |device, vector| {
            let stream = device.create_stream(StreamOptions::default()).unwrap();
            drop(vector.copy_to_host_on(&stream, 0, vec![1]).unwrap());
        }),
        ("stream launch", |device, vector| {
            let stream = device.create_stream(StreamOptions::default()).unwrap();
            let fill = Kernel::built_in(BuiltIn::Fill);
            stream.launch(&fill, GRID, &Arguments::new().write(vector).scalar(9_u8)).unwrap();
        }),
        ("segment", |device, _| {
            device.allocate(8).unwrap().write(0, &[1]).unwrap();
        }),
        ("smaller window", |device, _| device.set_launch_window(1).unwrap()),
    ];
    for (name, trigger) in triggers {
        let (_, native, _) = open();
        native.set_launch_window(8).unwrap();
        let mut vector = Vector::from_slice(&[1_u8; 4]).unwrap();
        let fill = Kernel::built_in(BuiltIn::Fill);
        native.launch(&fill, GRID, &Arguments::new().write(&mut vector).scalar(7_u8)).unwrap();
        assert_eq!((native.launches_held(), vector.location()), (1, Location::StaleCpu), "{name}");
        trigger(&native, &mut vector);
        assert_eq!(native.launches_held(), 0, "{name}");
        native.flush().unwrap();
        let last = if name == "stream launch" { 9 } else { 7 };
        assert_eq!(vector.get(3).unwrap(), last, "{name}");
    }
}

#[test]
fn a_full_window_is_handed_over_and_the_last_handle_hands_over_too() {
    let (driver, native, interpreter) = open();
    drop((driver, interpreter));
    let ran = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&ran);
    let kernel = Kernel::native("count", &[], move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Ok(())
    })
    .unwrap();
    native.set_launch_window(3).unwrap();
    for (held, expected) in [(1, 0), (2, 0), (0, 3), (1, 3)] {
        native.launch(&kernel, GRID, &Arguments::new()).unwrap();
        assert_eq!((native.launches_held(), ran.load(Ordering::SeqCst)), (held, expected));
        assert_eq!(native.in_flight(), held);
    }
    assert_eq!(*native.set_launch_window(0).unwrap_err().kind(), ErrorKind::ZeroSize);
    assert!(matches!(native.set_launch_window(1025).unwrap_err().kind(), ErrorKind::TooLarge { .. }));
    // An explicit launch on the default stream is not held, and comes after what is.
    native.default_stream().launch(&kernel, GRID, &Arguments::new()).unwrap();
    assert_eq!((native.launches_held(), ran.load(Ordering::SeqCst)), (0, 5));
    native.launch(&kernel, GRID, &Arguments::new()).unwrap();
    drop(native);
    assert_eq!(ran.load(Ordering::SeqCst), 6);
}

#[test]
fn a_launch_that_fails_in_the_window_stays_on_the_default_stream() {
    let (_, native, _) = open();
    let fails = Kernel::native("fails", &[], |_| Err(Error::new(ErrorKind::InvalidArgument, "on purpose")));
    native.set_launch_window(2).unwrap();
    native.launch(&fails.unwrap(), GRID, &Arguments::new()).unwrap();
    assert_eq!(*native.flush().unwrap_err().kind(), ErrorKind::AsyncFailure);
    let mut vector = Vector::from_slice(&[1_u8]).unwrap();
    assert_eq!(*vector.to_device(&native).unwrap_err().kind(), ErrorKind::AsyncFailure);
    let fill = Kernel::built_in(BuiltIn::Fill);
    assert!(native.launch(&fill, GRID, &Arguments::new().write(&mut vector).scalar(1_u8)).is_err());
}

/// Default launches wait for non-blocking streams that use a vector; launches on a stream do not.
#[test]
fn default_launches_settle() {
    let (_, native, _) = open();
    let stream =
        native.create_stream(StreamOptions { non_blocking: true, ..StreamOptions::default() }).unwrap();
    let copy = Kernel::built_in(BuiltIn::Copy);
    for turn in 0..50_u32 {
        let mut from = Vector::<u32>::device_only(&native, 1 << 12).unwrap();
        let mut to = Vector::<u32>::zeroed(1 << 12).unwrap();
        from.copy_to_device_on(&stream, 0, Elements(vec![turn; 1 << 12])).unwrap();
        native.launch(&copy, GRID, &Arguments::new().read(&from).write(&mut to)).unwrap();
        assert!(to.as_slice().unwrap().iter().all(|&word| word == turn));
    }
}

#[test]
fn a_shared_host_buffer_is_computed_on_in_place() {
    for device in both() {
        let mut vector = Vector::from_slice(&[1_u32; 1000]).unwrap();
        vector.attach(&device).unwrap();
        let (stream, scale) =
            (device.create_stream(StreamOptions::default()).unwrap(), Kernel::built_in(BuiltIn::Fill));
        for turn in 0..20 {
            stream.launch(&scale, GRID, &Arguments::new().write(&mut vector).scalar(turn)).unwrap();
            assert_eq!(vector.location(), Location::StaleCpu);
            assert!(vector.as_slice().unwrap().iter().all(|&word| word == turn));
            vector.set(0, 5).unwrap();
        }
        let counters = device.counters();
        assert_eq!((counters.bytes_to_device, counters.bytes_to_host), (0, 0), "nothing was copied");
    }
}
