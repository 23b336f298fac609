//! A handle of another backend, of another opening of the same backend, or of another type is noticed by
//! every operation of the port.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::OwnedFd;

use spoc_driver::backend::{
    Backend, BackendKind, Capabilities, CopyOp, DeviceInfo, DeviceUuid, Exported, Foreign, Handle, Limits,
    MemoryInfo, Probed, SegmentOptions, StreamOptions, Verdict, erase,
};
use spoc_driver::{ErrorKind, Result, fake};

/// A backend of another kind that does nothing, and leaves every optional method to its default.
struct Idle;

impl Backend for Idle {
    const KIND: BackendKind = BackendKind::Interpreter;
    type Device = ();
    type Stream = u8;
    type Event = u16;
    type Buffer = u32;
    type HostMemory = u64;

    fn devices(&self) -> Vec<DeviceInfo> {
        vec![self.describe(&())]
    }
    fn open(&self, _: u32) -> Result<()> {
        Ok(())
    }
    fn describe(&self, (): &()) -> DeviceInfo {
        DeviceInfo {
            backend: Self::KIND,
            index: 0,
            uuid: DeviceUuid([0; 16]),
            name: String::new(),
            memory_bytes: 0,
            uuid_is_stable: false,
            numa_node: None,
            unified: false,
        }
    }
    fn capabilities(&self, (): &()) -> Capabilities {
        Capabilities::all(&Verdict::Available)
    }
    fn limits(&self, (): &()) -> Limits {
        Limits {
            segment_bytes_max: 1,
            binding_bytes_max: 1,
            copy_granule_bytes: 1,
            address_align_bytes: 1,
            export_granule_bytes: 1,
            free_waits_for_device: false,
        }
    }
    fn memory(&self, (): &()) -> Result<MemoryInfo> {
        Ok(MemoryInfo { free_bytes: 0, total_bytes: 0 })
    }
    fn synchronize_device(&self, (): &()) -> Result<()> {
        Ok(())
    }
    fn create_stream(&self, (): &(), _: StreamOptions) -> Result<u8> {
        Ok(0)
    }
    fn default_stream(&self, (): &()) -> Result<u8> {
        Ok(0)
    }
    fn synchronize_stream(&self, (): &(), _: &u8) -> Result<()> {
        Ok(())
    }
    fn query_stream(&self, (): &(), _: &u8) -> Result<bool> {
        Ok(true)
    }
    fn create_event(&self, (): &()) -> Result<u16> {
        Ok(0)
    }
    fn record_event(&self, (): &(), _: &u8, _: &u16) -> Result<()> {
        Ok(())
    }
    fn wait_event(&self, (): &(), _: &u8, _: &u16) -> Result<()> {
        Ok(())
    }
    fn query_event(&self, (): &(), _: &u16) -> Result<bool> {
        Ok(true)
    }
    fn synchronize_event(&self, (): &(), _: &u16) -> Result<()> {
        Ok(())
    }
    fn allocate(&self, (): &(), _: u64, _: SegmentOptions) -> Result<u32> {
        Ok(0)
    }
    fn alloc_pinned(&self, (): &(), _: usize) -> Result<u64> {
        Ok(0)
    }
    fn pinned_pointer(&self, (): &(), _: &u64) -> *mut u8 {
        std::ptr::null_mut()
    }
    unsafe fn copy_to_device(&self, (): &(), _: &u8, _: CopyOp<'_, u32>) -> Result<()> {
        Ok(())
    }
    unsafe fn copy_to_host(&self, (): &(), _: &u8, _: (&u32, u64), _: *mut u8, _: usize) -> Result<()> {
        Ok(())
    }
    unsafe fn copy_on_device(&self, (): &(), _: &u8, _: (&u32, u64), _: (&u32, u64), _: u64) -> Result<()> {
        Ok(())
    }
}

/// One handle of each type.
struct Handles {
    device: Handle,
    stream: Handle,
    event: Handle,
    buffer: Handle,
    pinned: Handle,
}

fn handles(backend: &Probed) -> Handles {
    let device = backend.open(0).unwrap();
    Handles {
        stream: backend.create_stream(&device, StreamOptions::default()).unwrap(),
        event: backend.create_event(&device).unwrap(),
        buffer: backend.allocate(&device, 1, SegmentOptions::default()).unwrap(),
        pinned: backend.alloc_pinned(&device, 1).unwrap(),
        device,
    }
}

fn exported() -> Exported {
    Exported {
        descriptor: OwnedFd::from(std::fs::File::open("/dev/null").unwrap()),
        len_bytes: 1,
        allocation_bytes: 1,
        backend: BackendKind::Fake,
        device: DeviceUuid([0; 16]),
    }
}

fn nothing() -> Foreign {
    Foreign { words: [0; 6], keep_alive: None }
}

/// Every operation, once with each of its handles replaced by `bad`'s.
fn outcomes(backend: &Probed, good: &Handles, bad: &Handles) -> Vec<(&'static str, Option<ErrorKind>)> {
    let mut outcomes = Vec::new();
    let mut byte = 0_u8;
    let host = &raw mut byte;
    macro_rules! ask {
        ($name:expr, $call:expr) => {
            // SAFETY: every call names a handle that does not belong, so it is refused before any memory is
            // looked at; that is what the test is about.
            #[allow(unused_unsafe, clippy::multiple_unsafe_ops_per_block)]
            outcomes.push(($name, unsafe { $call }.err().map(|error| error.kind().clone())))
        };
    }
    let (device, stream, event, buffer) = (&good.device, &good.stream, &good.event, &good.buffer);
    let op = |dst| CopyOp { src: host.cast_const(), dst, dst_offset: 0, len_bytes: 1 };
    ask!("describe", backend.describe(&bad.device));
    ask!("capabilities", backend.capabilities(&bad.device));
    ask!("limits", backend.limits(&bad.device));
    ask!("segment_limit_name", backend.segment_limit_name(&bad.device));
    ask!("memory", backend.memory(&bad.device));
    ask!("synchronize_device", backend.synchronize_device(&bad.device));
    ask!("create_stream", backend.create_stream(&bad.device, StreamOptions::default()));
    ask!("default_stream", backend.default_stream(&bad.device));
    ask!("adopt_stream", backend.adopt_stream(&bad.device, nothing()));
    for (device, stream) in [(&bad.device, stream), (device, &bad.stream)] {
        ask!("synchronize_stream", backend.synchronize_stream(device, stream));
        ask!("query_stream", backend.query_stream(device, stream));
        ask!("capture_state", backend.capture_state(device, stream));
    }
    ask!("create_event", backend.create_event(&bad.device));
    for (device, stream, event) in
        [(&bad.device, stream, event), (device, &bad.stream, event), (device, stream, &bad.event)]
    {
        ask!("record_event", backend.record_event(device, stream, event));
        ask!("wait_event", backend.wait_event(device, stream, event));
    }
    for (device, event) in [(&bad.device, event), (device, &bad.event)] {
        ask!("query_event", backend.query_event(device, event));
        ask!("synchronize_event", backend.synchronize_event(device, event));
    }
    ask!("allocate", backend.allocate(&bad.device, 1, SegmentOptions::default()));
    for (device, buffer) in [(&bad.device, buffer), (device, &bad.buffer)] {
        ask!("address", backend.address(device, buffer));
        ask!("host_pointer", backend.host_pointer(device, buffer));
        ask!("export", backend.export(device, buffer));
    }
    ask!("adopt_buffer", backend.adopt_buffer(&bad.device, nothing(), 1));
    ask!("import", backend.import(&bad.device, exported()));
    ask!("alloc_pinned", backend.alloc_pinned(&bad.device, 1));
    for (device, pinned) in [(&bad.device, &good.pinned), (device, &bad.pinned)] {
        ask!("pinned_pointer", backend.pinned_pointer(device, pinned));
    }
    ask!("register_host", backend.register_host(&bad.device, host, 1));
    for (device, stream, buffer) in
        [(&bad.device, stream, buffer), (device, &bad.stream, buffer), (device, stream, &bad.buffer)]
    {
        ask!("copy_to_device", backend.copy_to_device(device, stream, op(buffer)));
        ask!("copy_to_host", backend.copy_to_host(device, stream, (buffer, 0), host, 1));
        ask!(
            "copy_on_device (src)",
            backend.copy_on_device(device, stream, (buffer, 0), (&good.buffer, 0), 1)
        );
        ask!(
            "copy_on_device (dst)",
            backend.copy_on_device(device, stream, (&good.buffer, 0), (buffer, 0), 1)
        );
        ask!("copy_many", backend.copy_many(device, stream, 2, &|index| op([&good.buffer, buffer][index])));
        ask!("fill", backend.fill(device, stream, (buffer, 0), 1, 0));
        ask!("write_value", backend.write_value(device, stream, (buffer, 0), 0));
        ask!("wait_value", backend.wait_value(device, stream, (buffer, 0), 0));
    }
    outcomes
}

fn assert_all_foreign(backend: &Probed, good: &Handles, bad: &Handles) {
    for (name, kind) in outcomes(backend, good, bad) {
        let Some(ErrorKind::ForeignHandle { expected, found }) = kind else { panic!("{name}: {kind:?}") };
        assert_eq!(expected, backend.id(), "{name}");
        assert_eq!(found, bad.device.owner(), "{name}");
    }
}

#[test]
fn handles_of_another_backend_are_foreign() {
    let (fake, control) = fake::backend();
    let idle = erase(Idle);
    assert_all_foreign(&fake, &handles(&fake), &handles(&idle));
    assert_all_foreign(&idle, &handles(&idle), &handles(&fake));
    assert_eq!(control.pending(), 0);
}

#[test]
fn handles_of_another_opening_are_foreign() {
    let ((first, _a), (second, _b)) = (fake::backend(), fake::backend());
    assert_all_foreign(&first, &handles(&first), &handles(&second));
    let (first, second) = (erase(Idle), erase(Idle));
    assert_all_foreign(&first, &handles(&first), &handles(&second));
}

#[test]
fn handles_of_another_type_are_foreign() {
    let (fake, _control) = fake::backend();
    let good = handles(&fake);
    let made = handles(&fake);
    // Each in a place where it does not belong.
    let bad = Handles {
        device: made.stream,
        stream: made.event,
        event: made.buffer,
        buffer: made.pinned,
        pinned: made.device,
    };
    assert_all_foreign(&fake, &good, &bad);
}

#[test]
fn default_methods_refuse_by_name() {
    let backend = erase(Idle);
    let own = handles(&backend);
    // With handles that do belong, what the adapter did not write is refused, and only that.
    let refused: Vec<_> = outcomes(&backend, &own, &own)
        .into_iter()
        .filter_map(|(name, kind)| match kind? {
            ErrorKind::Unsupported { backend: BackendKind::Interpreter, feature } => Some((name, feature)),
            other => panic!("{name}: {other:?}"),
        })
        .collect();
    for (name, feature) in [
        ("adopt_stream", "adopt_stream"),
        ("adopt_buffer", "adopt_memory"),
        ("capture_state", "stream_capture"),
        ("export", "export_memory"),
        ("import", "import_memory"),
        ("register_host", "host_register"),
        ("copy_many", "copy_many"),
        ("fill", "fill"),
        ("write_value", "write_value"),
        ("wait_value", "wait_value"),
    ] {
        assert!(refused.contains(&(name, feature)), "{name} was not refused");
    }
    // SAFETY: refused before the words are looked at.
    let adopted = unsafe { backend.adopt_device(nothing()) }.err().unwrap();
    assert!(matches!(adopted.kind(), ErrorKind::Unsupported { feature: "adopt_context", .. }));
}
