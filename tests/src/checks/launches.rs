//! Launches: what they refuse, where they run, the launch window, and staged writes between them.

use std::thread;
use std::time::Duration;

use spoc_driver::{
    Arguments, BuiltIn, Elements, Grid, Kernel, Location, PinnedHandle, Stream, VECTOR_ELEMENTS_MAX, Vector,
};

use crate::{Subject, refused};

const GRID: Grid = Grid { groups: [1, 1, 1], group: [64, 1, 1] };

fn on_device(subject: &Subject, values: &[i32]) -> Vector<i32> {
    let vector = Vector::from_slice(values).unwrap();
    vector.to_device(&subject.device).unwrap();
    vector
}

/// Whether the device runs kernels; where not, that a launch is refused by name was checked.
fn launches(subject: &Subject) -> bool {
    let vector = on_device(subject, &[1; 8]);
    let mut target = on_device(subject, &[0; 8]);
    let arguments = Arguments::new().read(&vector).write(&mut target);
    let kernel = Kernel::built_in(BuiltIn::Copy);
    let by_device = subject.device.launch(&kernel, GRID, &arguments);
    let by_stream = subject.stream().launch(&kernel, GRID, &arguments);
    if subject.device.capabilities().launch.is_available() {
        by_device.unwrap();
        by_stream.unwrap();
        subject.device.flush().unwrap();
        return true;
    }
    for outcome in [by_device, by_stream] {
        let error = refused(outcome, "unsupported");
        assert!(error.to_string().contains("launch"), "{error}");
    }
    assert_eq!(target.location(), Location::Both, "a refused launch changed a location");
    refused(subject.device.set_launch_window(0), "zero_size");
    false
}

fn add(stream: Option<&Stream>, subject: &Subject, a: &Vector<i32>, b: &Vector<i32>, out: &mut Vector<i32>) {
    let arguments = Arguments::new().read(a).read(b).write(out);
    let kernel = Kernel::built_in(BuiltIn::Add);
    match stream {
        Some(stream) => stream.launch(&kernel, GRID, &arguments).unwrap(),
        None => subject.device.launch(&kernel, GRID, &arguments).unwrap(),
    }
}

/// A kernel's arguments move by themselves, and what it writes is newest on the device; with automatic
/// transfers off it is refused instead.
pub fn rule_01_launches_move_what_they_need(subject: &Subject) {
    if !launches(subject) {
        return;
    }
    let (a, b) = (Vector::from_slice(&[3; 64]).unwrap(), Vector::from_slice(&[4; 64]).unwrap());
    let mut out = Vector::from_slice(&[0; 64]).unwrap();
    add(None, subject, &a, &b, &mut out);
    assert_eq!((a.location(), out.location()), (Location::Both, Location::StaleCpu));
    assert_eq!(out.to_vec().unwrap(), [7; 64]);
    // Written on the host since: the newest goes over.
    let mut a = a;
    a.set(5, 10).unwrap();
    add(Some(&subject.stream()), subject, &a, &b, &mut out);
    assert_eq!(out.get(5).unwrap(), 14);
    subject.driver.set_automatic_transfers(false);
    a.set(0, 1).unwrap();
    let arguments = Arguments::new().read(&a).read(&b).write(&mut out);
    refused(subject.device.launch(&Kernel::built_in(BuiltIn::Add), GRID, &arguments), "wrong_location");
    subject.driver.set_automatic_transfers(true);
    let other = Vector::<i32>::device_only(&subject.other_device(), 64).unwrap();
    let arguments = Arguments::new().read(&other).read(&b).write(&mut out);
    refused(subject.device.launch(&Kernel::built_in(BuiltIn::Add), GRID, &arguments), "wrong_device");
}

/// Vectors longer than 32 bits index are refused before anything moves or is allocated.
pub fn rule_02_launches_refuse_vectors_that_are_too_long(subject: &Subject) {
    if !launches(subject) {
        return;
    }
    // Untouched host memory: address space and nothing else.
    let long = Vector::<u8>::zeroed(VECTOR_ELEMENTS_MAX + 1).unwrap();
    let mut out = Vector::<u8>::device_only(&subject.device, 64).unwrap();
    let before = subject.device.memory_in_use();
    let arguments = Arguments::new().read(&long).write(&mut out);
    let kernel = Kernel::built_in(BuiltIn::Copy);
    refused(subject.device.launch(&kernel, GRID, &arguments), "too_large");
    refused(subject.stream().launch(&kernel, GRID, &arguments), "too_large");
    assert_eq!(long.location(), Location::Cpu);
    assert_eq!(subject.device.memory_in_use(), before);
}

/// Default-stream launches settle non-blocking streams that still use an argument; stream launches do not.
pub fn rule_10_default_stream_launches_settle_non_blocking_streams(subject: &Subject) {
    if !launches(subject) {
        return;
    }
    let (stream, zero) = (subject.free_stream(), on_device(subject, &[0; 64]));
    let (mut a, mut out) = (on_device(subject, &[1; 64]), on_device(subject, &[0; 64]));
    let hold = subject.hold(&stream);
    a.copy_to_device_on(&stream, 0, Elements(vec![2; 64])).unwrap();
    if hold.is_certain() {
        let other = subject.free_stream();
        add(Some(&other), subject, &a, &zero, &mut out);
        other.synchronize().unwrap();
        let read = out.copy_to_host_on(&other, 0, Elements(vec![0; 8])).unwrap().wait().unwrap();
        assert_eq!(read.0, [1; 8], "a stream launch was settled");
        hold.assert_pending(&stream);
    }
    thread::scope(|scope| {
        // Vectors are used by one thread at a time: these move.
        let (a, out) = (&mut a, &mut out);
        let launcher = scope.spawn(move || {
            let zero = on_device(subject, &[0; 64]);
            add(None, subject, a, &zero, out);
        });
        if hold.is_certain() {
            thread::sleep(Duration::from_millis(10));
            assert!(!launcher.is_finished(), "a default-stream launch did not settle");
        }
        hold.open();
        launcher.join().unwrap();
    });
    assert_eq!(out.to_vec().unwrap(), [2; 64]);
}

/// Something that hands the window over, and may use the last launch's output.
type Flush<'a> = &'a dyn Fn(&mut Vector<i32>);

/// The window holds default-stream launches alone; everything else hands it over first.
pub fn rule_14_the_window_holds_default_stream_launches_alone(subject: &Subject) {
    if !launches(subject) {
        return;
    }
    let device = &subject.device;
    refused(device.set_launch_window(0), "zero_size");
    refused(device.set_launch_window(1025), "too_large");
    device.set_launch_window(8).unwrap();
    let (a, b) = (on_device(subject, &[1; 64]), on_device(subject, &[2; 64]));
    let mut out = on_device(subject, &[0; 64]);
    let (stream, event) = (subject.stream(), device.create_event().unwrap());
    let flushes: [(&str, Flush<'_>); 7] = [
        ("a stream launch", &|out| add(Some(&stream), subject, &a, &b, out)),
        ("a read", &|out| out.copy_to_host(0, &mut [0; 8]).unwrap()),
        ("get", &|out| assert_eq!(out.get(0).unwrap(), 3)),
        ("a record", &|_| device.default_stream().record(&event).unwrap()),
        ("a stream copy", &|out| {
            out.copy_to_device_on(&stream, 0, Elements(vec![3; 8])).unwrap();
        }),
        ("synchronize", &|_| stream.synchronize().unwrap()),
        ("flush", &|_| device.flush().unwrap()),
    ];
    for (name, flush) in flushes {
        add(None, subject, &a, &b, &mut out);
        assert_eq!(device.launches_held(), 1, "before {name}");
        flush(&mut out);
        assert_eq!(device.launches_held(), 0, "{name} did not hand the window over");
        device.flush().unwrap();
    }
    for launch in 1..8 {
        add(None, subject, &a, &b, &mut out);
        assert_eq!(device.launches_held(), launch);
    }
    add(None, subject, &a, &b, &mut out);
    assert_eq!(device.launches_held(), 0, "a full window was not handed over");
    assert_eq!(out.to_vec().unwrap(), [3; 64]);
    device.set_launch_window(1).unwrap();
}

/// 300 staged writes, each read by a launch before the next, by the device's ring and the caller's, with and
/// without buffers being freed meanwhile, on a stream and without: no launch is lost.
pub fn rule_22_staged_writes_interleaved_with_launches_lose_none(subject: &Subject) {
    if !launches(subject) {
        return;
    }
    for is_own_ring in [true, false] {
        for is_freeing in [true, false] {
            for stream in [None, Some(subject.stream())] {
                count(subject, stream.as_ref(), is_own_ring, is_freeing);
            }
        }
    }
}

fn count(subject: &Subject, stream: Option<&Stream>, is_own_ring: bool, is_freeing: bool) {
    const WRITES: i32 = 300;
    let explicit = subject.stream();
    let mut input = on_device(subject, &[0; 8]);
    // Ping and pong: a kernel's output is no input of it.
    let (mut sum, mut next) = (on_device(subject, &[0; 8]), on_device(subject, &[0; 8]));
    let mut ring = PinnedHandle::alloc(&subject.device, 32).ok().filter(|_| !is_own_ring);
    for write in 1..=WRITES {
        let values = [write; 8];
        match (&mut ring, stream) {
            (Some(pinned), _) => {
                // One slot, so its last copy is waited for: what a caller's ring does when it is full.
                let on = stream.unwrap_or(&explicit);
                on.synchronize().unwrap();
                pinned.as_mut_elements::<i32>().unwrap().copy_from_slice(&values);
                input.copy_to_device_on(on, 0, pinned.lend(0..32).unwrap()).unwrap();
            }
            (None, Some(stream)) => input.stage_to_device_on(stream, 0, &values).unwrap(),
            (None, None) => input.stage_to_device(0, &values).unwrap(),
        }
        add(stream, subject, &sum, &input, &mut next);
        std::mem::swap(&mut sum, &mut next);
        if is_freeing {
            drop(on_device(subject, &values));
        }
    }
    let expected = WRITES * (WRITES + 1) / 2;
    if let Some(stream) = stream {
        stream.synchronize().unwrap();
    }
    assert_eq!(sum.to_vec().unwrap(), [expected; 8], "own ring: {is_own_ring}, freeing: {is_freeing}");
}

/// Every access of the host to a vector comes after the launches that use it, whatever stream they are on; so does
/// a copy without a stream.
pub fn rule_25_host_access_comes_after_the_launches_that_use_the_vector(subject: &Subject) {
    if !launches(subject) {
        return;
    }
    let b = on_device(subject, &[1; 64]);
    for stream in [subject.stream(), subject.free_stream()] {
        let (mut first, mut second) = (on_device(subject, &[1; 64]), on_device(subject, &[0; 64]));
        let count = |stream: &Stream, first: &mut Vector<i32>, second: &mut Vector<i32>| {
            for _ in 0..20 {
                add(Some(stream), subject, first, &b, second);
                add(Some(stream), subject, second, &b, first);
            }
        };
        count(&stream, &mut first, &mut second);
        assert_eq!(first.get(63).unwrap(), 41);
        count(&stream, &mut first, &mut second);
        let mut seen = [0; 2];
        first.copy_to_host(10, &mut seen).unwrap();
        assert_eq!(seen, [81; 2]);
        count(&stream, &mut first, &mut second);
        first.copy_to_device(0, &[0; 8]).unwrap();
        first.to_cpu().unwrap();
        assert_eq!(first.as_slice().unwrap(), [[0; 8].as_slice(), &[121; 56]].concat());
        count(&stream, &mut first, &mut second);
        // Freed while launches that use it are pending.
        drop(second);
        assert_eq!(first.to_vec().unwrap()[8..], [161; 56]);
    }
}

/// A kernel works on a buffer over host memory where it lies; what it writes is there once it is acquired.
pub fn rule_24_kernels_read_and_write_host_memory_in_place(subject: &Subject) {
    if !launches(subject) || !subject.device.capabilities().host_buffer.is_available() {
        return;
    }
    let device = &subject.device;
    let mut vector = Vector::from_slice(&[20; 1000]).unwrap();
    vector.attach(device).unwrap();
    let ones = on_device(subject, &[1; 1000]);
    let mut out = Vector::from_slice(&[0; 1000]).unwrap();
    out.attach(device).unwrap();
    add(Some(&subject.stream()), subject, &vector, &ones, &mut out);
    out.acquire_device_writes(device).unwrap();
    assert_eq!(out.as_slice().unwrap(), [21; 1000]);
    vector.as_mut_slice().unwrap().fill(5);
    vector.publish_host_writes(device).unwrap();
    add(None, subject, &vector, &ones, &mut out);
    assert_eq!(out.to_vec().unwrap(), [6; 1000]);
}
