//! Contexts, streams and memory of another library.

use cudarc::driver::sys as raw;
use cudarc::driver::sys::CUresult::CUDA_SUCCESS;
use spoc_driver::backend::Foreign;
use spoc_driver::{BackendKind, CaptureState, Device, ErrorKind, StreamOptions};

use super::{Bench, MIB, NON_BLOCKING, bytes_of, filled, on_every_device, read, whole};

fn foreign(word: usize) -> Foreign {
    Foreign { words: [word as u64, 0, 0, 0, 0, 0], keep_alive: None }
}

/// A context, a stream in it, and memory, made as another library makes them.
pub struct Theirs {
    context: raw::CUcontext,
    pub stream: raw::CUstream,
    pub address: raw::CUdeviceptr,
}

impl Theirs {
    /// In a context of its own, or in the device's primary one.
    pub fn new(bench: &Bench, is_own_context: bool, stream_flags: u32) -> Self {
        let ordinal = bench.device.info().index.cast_signed();
        let (mut context, mut stream, mut address) = (std::ptr::null_mut(), std::ptr::null_mut(), 0);
        // SAFETY: plain calls with valid places; a new context is current when it is made.
        unsafe {
            if is_own_context {
                assert_eq!(raw::cuCtxCreate_v2(&raw mut context, 0, ordinal), CUDA_SUCCESS);
            } else {
                assert_eq!(raw::cuDevicePrimaryCtxRetain(&raw mut context, ordinal), CUDA_SUCCESS);
                assert_eq!(raw::cuCtxPushCurrent_v2(context), CUDA_SUCCESS);
            }
            assert_eq!(raw::cuStreamCreate(&raw mut stream, stream_flags), CUDA_SUCCESS);
            assert_eq!(raw::cuMemAlloc_v2(&raw mut address, MIB), CUDA_SUCCESS);
            assert_eq!(raw::cuCtxPopCurrent_v2(&raw mut context), CUDA_SUCCESS);
        }
        Self { context, stream, address }
    }

    fn device(&self, bench: &Bench) -> Device {
        // SAFETY: the context lives as long as `self`, which the tests keep.
        unsafe { bench.driver.adopt(BackendKind::Cuda, foreign(self.context.expose_provenance())) }.unwrap()
    }
}

#[test]
fn a_context_with_its_stream_and_memory_is_borrowed() {
    on_every_device(|bench| {
        for is_own_context in [true, false] {
            let theirs = Theirs::new(bench, is_own_context, 1);
            let device = theirs.device(bench);
            assert_eq!(device.info().uuid, bench.device.info().uuid);
            let word = foreign(theirs.stream.expose_provenance());
            // SAFETY: both live as long as `theirs`.
            let (stream, segment) = unsafe {
                (
                    device.adopt_stream(word, NON_BLOCKING).unwrap(),
                    device.adopt_memory(foreign(theirs.address as usize), MIB as u64).unwrap(),
                )
            };
            assert_eq!(segment.address(), Some(theirs.address));
            assert_eq!(stream.is_capturing().unwrap(), CaptureState::None);
            let memory = filled(MIB, 1);
            let _pin = device.pin(&memory).unwrap();
            let event = device.create_event().unwrap();
            stream.copy_to_device(memory.clone(), &[whole(&segment, MIB)]).unwrap();
            stream.record(&event).unwrap();
            event.synchronize().unwrap();
            assert!(read(&segment) == bytes_of(&memory));
            // Our own memory in their context, too.
            let own = device.allocate(4 * MIB as u64).unwrap();
            let other = device.create_stream(StreamOptions::default()).unwrap();
            other.wait(&event).unwrap();
            other.copy_device_to_device(&segment, 0, &own, 0, MIB as u64).unwrap();
            other.synchronize().unwrap();
            assert!(read(&own)[..MIB] == *bytes_of(&memory));
            drop((stream, segment, own, other, event));
            // What was lent is as it was.
            let mut byte = 0_u8;
            // SAFETY: live still; the context is made current for the call.
            unsafe {
                assert_eq!(raw::cuCtxPushCurrent_v2(theirs.context), CUDA_SUCCESS);
                assert_eq!(raw::cuStreamSynchronize(theirs.stream), CUDA_SUCCESS);
                let last = theirs.address + MIB as u64 - 1;
                assert_eq!(raw::cuMemcpyDtoH_v2((&raw mut byte).cast(), last, 1), CUDA_SUCCESS);
                let mut popped = std::ptr::null_mut();
                assert_eq!(raw::cuCtxPopCurrent_v2(&raw mut popped), CUDA_SUCCESS);
            }
            assert_eq!(byte, bytes_of(&memory)[MIB - 1]);
        }
    });
}

#[test]
fn what_is_not_the_devices_own_is_refused() {
    on_every_device(|bench| {
        let theirs = Theirs::new(bench, true, 1);
        let device = &bench.device;
        let word = foreign(theirs.stream.expose_provenance());
        // SAFETY: a live stream, but of another context; so in the calls below.
        let refused = unsafe { device.adopt_stream(word, NON_BLOCKING) }.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::WrongDevice, "{refused}");
        // SAFETY: as above.
        let refused = unsafe { device.adopt_stream(foreign(2), NON_BLOCKING) }.unwrap_err();
        assert!(refused.to_string().contains("on every thread"), "{refused}");
        // SAFETY: as above.
        let refused = unsafe { device.adopt_memory(foreign(theirs.address as usize), 64) }.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::WrongDevice, "{refused}");
        let memory = filled(4096, 1);
        // SAFETY: refused, for it is memory of the host.
        let refused = unsafe { device.adopt_memory(foreign(memory.as_ptr().addr()), 4096) }.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        // SAFETY: refused before it is used.
        let refused = unsafe { bench.driver.adopt(BackendKind::Cuda, foreign(0)) }.unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::InvalidArgument, "{refused}");
        assert_eq!(device.memory_in_use(), 0);
    });
}

#[test]
fn memory_that_ends_too_early_is_refused() {
    on_every_device(|bench| {
        let theirs = Theirs::new(bench, false, 1);
        // SAFETY: refused: the API knows nothing there.
        let outcome = unsafe { bench.device.adopt_memory(foreign(theirs.address as usize), 8 << 30) };
        assert_eq!(*outcome.unwrap_err().kind(), ErrorKind::InvalidArgument);
        // Mapped memory has no context of its own, and is taken.
        let mapped = bench.device.allocate(4 * MIB as u64).unwrap();
        let address = mapped.address().unwrap() as usize;
        // SAFETY: it lives until the end.
        let borrowed = unsafe { bench.device.adopt_memory(foreign(address), 4 * MIB as u64) }.unwrap();
        borrowed.write(5, b"here").unwrap();
        assert_eq!(read(&mapped)[5..9], *b"here");
    });
}

#[test]
fn the_default_stream_of_another_library_is_ours() {
    on_every_device(|bench| {
        for word in [0, 1] {
            // SAFETY: these name the context's default stream.
            let stream =
                unsafe { bench.device.adopt_stream(foreign(word), StreamOptions::default()) }.unwrap();
            let segment = bench.device.allocate(4096).unwrap();
            stream.copy_to_device(vec![7; 4096], &[whole(&segment, 4096)]).unwrap();
            stream.synchronize().unwrap();
            assert_eq!(read(&segment), [7; 4096]);
        }
    });
}
