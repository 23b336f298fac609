//! The native backend through the driver: bytes, order, memory, lending.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use spoc_backends::ProbeOutcome;
use spoc_backends::native::{self, Options};
use spoc_driver::{
    BackendKind, CaptureState, CopyRange, Device, DeviceSelector, Driver, ErrorKind, Exported, HostMemory,
    HostMemoryOptions, PeerPath, Segment, SegmentOptions, Stream, StreamOptions, StreamPriority,
};

const MIB: u64 = 1 << 20;
const NON_BLOCKING: StreamOptions = StreamOptions { non_blocking: true, priority: StreamPriority::Normal };

fn device() -> Device {
    device_of(256 * MIB)
}

fn device_of(memory_bytes: u64) -> Device {
    let driver = Driver::new(vec![native::backend(Options {
        memory_bytes: Some(memory_bytes),
        ..Options::default()
    })]);
    driver.open(&DeviceSelector::index(BackendKind::Native, 0)).unwrap()
}

fn stream(device: &Device) -> Stream {
    device.create_stream(StreamOptions::default()).unwrap()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31 + seed) % 251) as u8).collect()
}

fn read(segment: &Segment, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    segment.read(offset, &mut bytes).unwrap();
    bytes
}

fn whole(dst: &Segment, len_bytes: usize) -> CopyRange<'_> {
    CopyRange { src_offset: 0, dst, dst_offset: 0, len_bytes }
}

/// Keeps a stream busy for tens of milliseconds.
struct Slow(HostMemory, Segment);

impl Slow {
    const BYTES: usize = 32 << 20;

    fn new(device: &Device) -> Self {
        let memory = HostMemory::allocate(Self::BYTES, HostMemoryOptions::default()).unwrap();
        Self(memory, device.allocate(Self::BYTES as u64).unwrap())
    }

    fn keep_busy(&self, stream: &Stream) {
        for _ in 0..8 {
            stream.copy_to_device(self.0.clone(), &[whole(&self.1, Self::BYTES)]).unwrap();
        }
    }
}

#[test]
fn bytes_arrive_and_come_back() {
    let device = device();
    let stream = stream(&device);
    let (a, b) = (device.allocate(MIB + 3).unwrap(), device.allocate(4096).unwrap());
    let bytes = pattern(10_000, 1);
    let ranges = [
        CopyRange { src_offset: 0, dst: &a, dst_offset: 5, len_bytes: 7000 },
        CopyRange { src_offset: 7000, dst: &b, dst_offset: 1000, len_bytes: 3000 },
    ];
    stream.copy_to_device(bytes.clone(), &ranges).unwrap();
    stream.copy_device_to_device(&b, 1000, &a, MIB - 3000, 3000).unwrap();
    let back = stream.copy_to_host(&a, 5, vec![0; 7000]).unwrap().wait().unwrap();
    assert_eq!(back, bytes[..7000]);
    assert_eq!(read(&a, MIB - 3000, 3000), bytes[7000..]);
    stream.fill(&a, 6, 2, 9).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(read(&a, 5, 4), [bytes[0], 9, 9, bytes[3]]);
    assert_eq!(device.in_flight(), 0);
}

#[test]
fn copies_on_a_stream_return_before_they_have_run() {
    let device = device();
    let stream = stream(&device);
    let slow = Slow::new(&device);
    let event = device.create_event().unwrap();
    // On a busy machine the thread may be held up; that it never is early enough is not believable.
    let was_early = (0..50).any(|_| {
        slow.keep_busy(&stream);
        stream.record(&event).unwrap();
        let was_early = !event.query().unwrap() && !stream.query().unwrap() && device.in_flight() > 0;
        event.synchronize().unwrap();
        was_early
    });
    assert!(was_early);
    assert!(stream.query().unwrap());
    assert_eq!(device.in_flight(), 0);
}

#[test]
fn a_stream_waits_for_the_event_of_a_slower_one() {
    let device = device();
    let (fast, slow_stream, idle) = (stream(&device), stream(&device), stream(&device));
    let slow = Slow::new(&device);
    let (from, to) = (device.allocate(8).unwrap(), device.allocate(8).unwrap());
    let event = device.create_event().unwrap();
    for round in 0..10_u8 {
        slow.keep_busy(&slow_stream);
        slow_stream.copy_to_device(vec![round; 8], &[whole(&from, 8)]).unwrap();
        slow_stream.record(&event).unwrap();
        fast.wait(&event).unwrap();
        // Recorded again where it is reached at once: the wait above keeps the record it saw.
        idle.record(&event).unwrap();
        fast.copy_device_to_device(&from, 0, &to, 0, 8).unwrap();
        let back = fast.copy_to_host(&to, 0, vec![0; 8]).unwrap();
        assert!(event.query().unwrap());
        assert_eq!(back.wait().unwrap(), [round; 8]);
    }
}

#[test]
fn the_default_stream_waits_for_blocking_streams_and_is_complete_on_return() {
    let device = device();
    let blocking = stream(&device);
    let slow = Slow::new(&device);
    let (here, there) = (device.allocate(8).unwrap(), device.allocate(8).unwrap());
    for round in 0..5_u8 {
        slow.keep_busy(&blocking);
        blocking.copy_to_device(vec![round; 8], &[whole(&here, 8)]).unwrap();
        let default = device.default_stream();
        default.copy_device_to_device(&here, 0, &there, 0, 8).unwrap();
        // No wait: it is there.
        // SAFETY: the segment is alive, eight bytes long, and nothing writes it now.
        let bytes = unsafe { std::slice::from_raw_parts(there.host_pointer().unwrap(), 8) };
        assert_eq!(bytes, [round; 8]);
        let event = device.create_event().unwrap();
        default.record(&event).unwrap();
        assert!(event.query().unwrap());
    }
}

#[test]
fn the_default_stream_does_not_wait_for_non_blocking_streams() {
    let device = device();
    let other = device.create_stream(NON_BLOCKING).unwrap();
    let slow = Slow::new(&device);
    let segment = device.allocate(8).unwrap();
    let event = device.create_event().unwrap();
    let did_not_wait = (0..50).any(|_| {
        slow.keep_busy(&other);
        other.record(&event).unwrap();
        segment.write(0, &[1; 8]).unwrap();
        let did_not_wait = !event.query().unwrap();
        event.synchronize().unwrap();
        did_not_wait
    });
    assert!(did_not_wait);
    // But what it works on is settled first.
    for round in 0..5_u8 {
        slow.keep_busy(&other);
        other.copy_to_device(vec![round; 8], &[whole(&segment, 8)]).unwrap();
        assert_eq!(read(&segment, 0, 8), [round; 8]);
    }
}

#[test]
fn everything_may_be_dropped_while_work_is_pending() {
    let device = device();
    let stream = stream(&device);
    let slow = Slow::new(&device);
    let memory = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
    let segment = device.allocate(4096).unwrap();
    let event = device.create_event().unwrap();
    slow.keep_busy(&stream);
    stream.copy_to_device(memory.clone(), &[whole(&segment, 4096)]).unwrap();
    stream.record(&event).unwrap();
    drop(stream.copy_to_host(&segment, 0, vec![0; 4096]).unwrap());
    drop((slow, segment, stream));
    let memory = memory.unshare().unwrap_err();
    drop((event, device));
    // The last handle waited, so nobody else holds the memory.
    assert!(memory.unshare().is_ok());
}

#[test]
fn memory_is_accounted_and_runs_out_with_numbers() {
    let device = device_of(8 * MIB);
    assert_eq!(device.info().memory_bytes, 8 * MIB);
    let first = device.allocate(5 * MIB).unwrap();
    let error = device.allocate(4 * MIB).unwrap_err();
    let expected = ErrorKind::OutOfDeviceMemory { need_bytes: 4 * MIB, have_bytes: 3 * MIB };
    assert_eq!(*error.kind(), expected);
    assert_eq!(device.memory().unwrap().free_bytes, 3 * MIB);
    assert_eq!(device.memory_in_use(), 5 * MIB);
    drop(first);
    assert_eq!(device.memory().unwrap().free_bytes, 8 * MIB);
    let all = device.allocate(8 * MIB).unwrap();
    drop(all);
}

#[test]
fn the_last_bytes_are_granted_once() {
    let device = device_of(4 * MIB);
    let granted: Vec<Segment> = thread::scope(|scope| {
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(|| device.allocate(3 * MIB).ok())).collect();
        workers.into_iter().filter_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(granted.len() <= 1);
}

#[test]
fn more_than_the_machine_has_is_refused_before_it_is_touched() {
    let driver = Driver::new(vec![native::backend(Options::default())]);
    let device = driver.open(&DeviceSelector::index(BackendKind::Native, 0)).unwrap();
    let error = device.allocate(1 << 50).unwrap_err();
    let ErrorKind::OutOfDeviceMemory { need_bytes, have_bytes } = *error.kind() else {
        unreachable!("{error}")
    };
    assert_eq!(need_bytes, 1 << 50);
    assert!(have_bytes > 0 && have_bytes < 1 << 50);
    assert!(device.info().memory_bytes >= device.memory().unwrap().free_bytes);
}

#[test]
fn segments_are_aligned_zeroed_and_stay_where_they_are() {
    let device = device();
    let segment = device.allocate(3 * MIB + 1).unwrap();
    let address = segment.address().unwrap();
    assert!(address.is_multiple_of(device.limits().address_align_bytes));
    assert!(device.limits().address_align_bytes >= 4096);
    assert_eq!(segment.clone().address(), Some(address));
    assert_eq!(read(&segment, 3 * MIB - 3, 4), [0; 4]);
    assert_eq!(segment.host_pointer().unwrap().addr() as u64, address);
}

#[test]
fn a_stream_takes_more_commands_than_its_queue_holds() {
    let device = device();
    let stream = stream(&device);
    let segment = device.allocate(8192).unwrap();
    let bytes = pattern(4096, 0);
    let ranges: Vec<_> = (0..4096)
        .map(|i| CopyRange { src_offset: i, dst: &segment, dst_offset: 2 * i as u64, len_bytes: 1 })
        .collect();
    stream.copy_to_device(bytes.clone(), &ranges).unwrap();
    let every_second: Vec<u8> = read(&segment, 0, 8192).into_iter().step_by(2).collect();
    assert_eq!(every_second, bytes);
}

#[test]
fn words_are_written_after_what_came_before_them() {
    let device = device();
    let stream = stream(&device);
    let slow = Slow::new(&device);
    let segment = device.allocate(16).unwrap();
    slow.keep_busy(&stream);
    stream.write_value(&segment, 8, 77).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(read(&segment, 8, 8), 77_u64.to_le_bytes());
    let refused = stream.wait_value(&segment, 8, 77).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::Unsupported { feature: "wait_value", .. }));
    assert_eq!(stream.is_capturing().unwrap(), CaptureState::None);
}

#[test]
fn pinned_memory_is_ordinary_memory() {
    let device = device();
    assert!(device.pinned_available().unwrap());
    let memory = HostMemory::allocate(4096, HostMemoryOptions::default()).unwrap();
    let mut pin = device.pin(&memory).unwrap();
    let stream = stream(&device);
    let segment = device.allocate(4096).unwrap();
    stream.copy_to_device(memory.clone(), &[whole(&segment, 4096)]).unwrap();
    stream.copy_to_device(device.alloc_pinned(100).unwrap(), &[whole(&segment, 100)]).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(device.counters().pageable_copies, 0);
    pin.release().unwrap();
}

#[test]
fn lent_memory_is_the_same_memory_and_outlives_the_lender() {
    let (lender, borrower) = (device(), device());
    let segment = lender.allocate_with(5000, LENDABLE).unwrap();
    segment.write(4000, &[7; 1000]).unwrap();
    let exported = segment.export().unwrap();
    assert_eq!((exported.len_bytes, exported.allocation_bytes), (5000, 8192));
    let borrowed = borrower.import(exported).unwrap();
    assert_eq!(borrowed.len_bytes(), 5000);
    borrowed.write(0, &[1, 2, 3]).unwrap();
    assert_eq!(read(&segment, 0, 3), [1, 2, 3]);
    drop((segment, lender));
    assert_eq!(read(&borrowed, 4000, 1000), [7; 1000]);
    // Lent on: the descriptor is the first one's equal here.
    assert_eq!(borrowed.export().unwrap().allocation_bytes, 8192);
}

#[test]
fn lent_memory_cannot_be_resized_and_others_are_not_imported() {
    let device = device();
    let segment = device.allocate_with(4096, LENDABLE).unwrap();
    let own = device.allocate(4096).unwrap().export().unwrap_err();
    assert!(own.to_string().contains("not allocated as exportable"), "{own}");
    let sealed = File::from(segment.export().unwrap().descriptor);
    assert!(sealed.set_len(0).is_err());
    assert!(sealed.set_len(8192).is_err());
    let lie = |descriptor: OwnedFd, len_bytes, allocation_bytes| {
        let exported = segment.export().unwrap();
        let exported = Exported { descriptor, len_bytes, allocation_bytes, ..exported };
        device.import(exported).unwrap_err().kind().clone()
    };
    let descriptor = || segment.export().unwrap().descriptor;
    assert_eq!(lie(descriptor(), 4097, 8192), ErrorKind::InvalidArgument);
    assert_eq!(lie(descriptor(), 8192, 4096), ErrorKind::InvalidArgument);
    assert_eq!(lie(OwnedFd::from(File::open("/dev/null").unwrap()), 4096, 4096), ErrorKind::InvalidArgument);
    let exported = segment.export().unwrap();
    let elsewhere = Exported { backend: BackendKind::Cuda, ..exported };
    assert_eq!(*device.import(elsewhere).unwrap_err().kind(), ErrorKind::WrongDevice);
}

#[test]
fn the_environment_says_how_much_memory_there_is() {
    let child = |value: &str| {
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "the_process_with_an_environment", "--ignored", "--nocapture"])
            .env(native::MEMORY_VARIABLE, value)
            .output()
            .unwrap();
        String::from_utf8_lossy(&status.stdout).into_owned()
    };
    for (text, bytes) in [("64MiB", 64 << 20), ("64M", 64 << 20), (" 64 mib", 64 << 20), ("1.5GiB", 3 << 29)]
    {
        assert!(child(text).contains(&format!("found {bytes}")), "{text}");
    }
    assert!(child("0").contains("missing SPOC_NATIVE_BYTES=0: a device has memory"));
    let said = child("a lot");
    assert!(said.contains("missing SPOC_NATIVE_BYTES=a lot is not a size"), "{said}");
}

#[test]
#[ignore = "the second half of the_environment_says_how_much_memory_there_is, which starts it"]
fn the_process_with_an_environment() {
    for report in spoc_backends::probe() {
        match report.outcome {
            ProbeOutcome::Found(probed) if report.kind == BackendKind::Native => {
                println!("found {}", probed.devices()[0].memory_bytes);
            }
            ProbeOutcome::Missing { reason } if report.kind == BackendKind::Native => {
                println!("missing {reason}");
            }
            _ => {}
        }
    }
}

const LENDABLE: SegmentOptions = SegmentOptions { exportable: true };
const LENT: &str = "SPOC_TEST_LENT";

#[test]
fn another_process_writes_lent_memory() {
    let device = device();
    let segment = device.allocate_with(MIB, LENDABLE).unwrap();
    let exported = segment.export().unwrap();
    // The child opens our descriptor through /proc, as if it had been sent over a socket.
    let path = format!("/proc/{}/fd/{}", std::process::id(), exported.descriptor.as_raw_fd());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--ignored"])
        .env(LENT, path)
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stdout));
    assert_eq!(read(&segment, MIB - 5, 5), b"hello".to_owned());
}

#[test]
#[ignore = "the second half of another_process_writes_lent_memory, which starts it"]
fn the_other_process() {
    let Some(path) = std::env::var_os(LENT) else { return };
    let device = device();
    let descriptor = OpenOptions::new().read(true).write(true).open(path).unwrap().into();
    let (backend, uuid) = (BackendKind::Native, device.info().uuid);
    let exported = Exported { descriptor, len_bytes: MIB, allocation_bytes: MIB, backend, device: uuid };
    device.import(exported).unwrap().write(MIB - 5, b"hello").unwrap();
}

/// Threads that copy, wait for each other's events and drop things, all at once.
#[test]
fn many_threads_share_a_device() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 300;
    const BYTES: usize = 4096;
    let device = device();
    // Each thread's lane holds the round it has reached; its neighbour copies it on the device.
    let lanes: Vec<Segment> = (0..THREADS).map(|_| device.allocate(BYTES as u64).unwrap()).collect();
    let events: Vec<_> = (0..THREADS).map(|_| device.create_event().unwrap()).collect();
    let checked = AtomicU64::new(0);
    thread::scope(|scope| {
        for me in 0..THREADS {
            let (device, lanes, events, checked) = (&device, &lanes, &events, &checked);
            scope.spawn(move || {
                let options = if me % 2 == 0 { NON_BLOCKING } else { StreamOptions::default() };
                let mut stream = device.create_stream(options).unwrap();
                let own = device.allocate(BYTES as u64).unwrap();
                for round in 0..ROUNDS {
                    let bytes = pattern(BYTES, me + round);
                    stream.copy_to_device(bytes.clone(), &[whole(&own, BYTES)]).unwrap();
                    stream.copy_device_to_device(&own, 0, &lanes[me], 0, BYTES as u64).unwrap();
                    stream.record(&events[me]).unwrap();
                    let neighbour = (me + 1) % THREADS;
                    if events[neighbour].is_recorded() {
                        stream.wait(&events[neighbour]).unwrap();
                    }
                    let back = stream.copy_to_host(&own, 0, vec![0; BYTES]).unwrap();
                    if round % 3 == 0 {
                        assert!(back.wait().unwrap() == bytes, "round {round} of thread {me}");
                        checked.fetch_add(1, Ordering::Relaxed);
                    }
                    if round % 17 == 0 {
                        // The old stream's work goes on without it; the new one's comes after.
                        stream.record(&events[me]).unwrap();
                        stream = device.create_stream(options).unwrap();
                        stream.wait(&events[me]).unwrap();
                    }
                    if round % 5 == 0 {
                        let _ = events[neighbour].is_recorded().then(|| events[neighbour].query().unwrap());
                    }
                }
                stream.synchronize().unwrap();
            });
        }
    });
    device.flush().unwrap();
    assert_eq!(device.in_flight(), 0);
    assert_eq!(checked.load(Ordering::Relaxed), (THREADS * ROUNDS.div_ceil(3)) as u64);
    for (me, lane) in lanes.iter().enumerate() {
        assert!(read(lane, 0, BYTES) == pattern(BYTES, me + ROUNDS - 1), "lane {me}");
    }
}

#[test]
fn rule_29_metal_is_refused_by_name_where_it_does_not_exist() {
    let reports = spoc_backends::probe_only([BackendKind::Metal]);
    let ProbeOutcome::Missing { reason } = &reports[0].outcome else {
        panic!("there is no Metal adapter yet");
    };
    assert!(reason.contains("macOS"), "{reason}");
}

#[test]
fn several_devices_are_each_their_own_behind_links_of_a_rate() {
    use std::time::{Duration, Instant};
    const LEN: usize = 1 << 20;
    let options = Options { devices: 2, link_bytes_per_second: Some(20 * LEN as u64), ..Options::default() };
    let driver = Driver::new(vec![native::backend(options)]);
    let infos = driver.devices();
    assert_eq!(infos.iter().map(|info| info.index).collect::<Vec<_>>(), [0, 1]);
    assert_ne!(infos[0].uuid, infos[1].uuid);
    let open = |index| driver.open(&DeviceSelector::index(BackendKind::Native, index));
    assert!(open(2).is_err());
    let devices = [open(0).unwrap(), open(1).unwrap()];
    assert!(!devices[0].is(&devices[1]) && devices[1].info().uuid == infos[1].uuid);
    let streams = devices.each_ref().map(|device| device.create_stream(StreamOptions::default()).unwrap());
    let segments = devices.each_ref().map(|device| device.allocate(LEN as u64).unwrap());
    // Two copies over each link, at the same time: 100 ms of it each.
    let began = Instant::now();
    for (stream, segment) in streams.iter().zip(&segments).cycle().take(4) {
        let range = CopyRange { src_offset: 0, dst: segment, dst_offset: 0, len_bytes: LEN };
        stream.copy_to_device(vec![7u8; LEN], &[range]).unwrap();
    }
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert!(began.elapsed() >= Duration::from_millis(100), "{:?}", began.elapsed());
    // Nothing passes the link within the device.
    let began = Instant::now();
    streams[0].copy_device_to_device(&segments[0], 0, &segments[0], LEN as u64 / 2, 1000).unwrap();
    streams[0].synchronize().unwrap();
    assert!(began.elapsed() < Duration::from_millis(50));
    let error = streams[0].copy_device_to_device(&segments[0], 0, &segments[1], 0, 8).unwrap_err();
    assert_eq!(error.kind().as_str(), "wrong_device");
}

#[test]
fn devices_copy_from_each_other_or_through_the_host() {
    let driver = Driver::new(vec![native::backend(Options { devices: 2, ..Options::default() })]);
    let open = |index| driver.open(&DeviceSelector::index(BackendKind::Native, index)).unwrap();
    let devices = [open(0), open(1), device()];
    assert!(devices[0].peer_verdict(&devices[1]).is_available());
    assert!(devices[0].capabilities().peer_copies.is_available());
    assert!(!devices[2].peer_verdict(&devices[0]).is_available());
    let len = 5 * MIB + 3;
    let bytes: Vec<u8> = (0..len).map(|at| (at.wrapping_mul(31) >> 3) as u8).collect();
    let source = devices[0].allocate(len).unwrap();
    source.write(0, &bytes).unwrap();
    for (target, direct) in [(1, true), (2, false)] {
        let device = &devices[target];
        let segment = device.allocate(len + 8).unwrap();
        let stream = device.create_stream(NON_BLOCKING).unwrap();
        let path = stream.copy_from_peer(&source, 1, &segment, 8, len - 1).unwrap();
        assert_eq!(path == PeerPath::Direct, direct, "{path:?}");
        stream.synchronize().unwrap();
        let mut found = vec![0; len as usize - 1];
        segment.read(8, &mut found).unwrap();
        assert_eq!(found, bytes[1..]);
        let counters = device.counters();
        let expected = if direct { (len - 1, 0) } else { (0, len - 1) };
        assert_eq!((counters.peer_bytes, counters.peer_bytes_by_host), expected);
        for (from, to, at) in [(&source, &source, 0), (&segment, &segment, 0)] {
            let error = stream.copy_from_peer(from, at, to, 0, 8).unwrap_err();
            assert_eq!(error.kind().as_str(), "wrong_device");
        }
        let error = stream.copy_from_peer(&source, 1, &segment, 8, len).unwrap_err();
        assert_eq!(error.kind().as_str(), "out_of_bounds");
    }
}
