//! Beside somebody who captures a stream into a graph: neither do our calls fail, nor is the capture spoilt.

use cudarc::driver::sys as raw;
use cudarc::driver::sys::CUresult::CUDA_SUCCESS;
use cudarc::driver::sys::CUstreamCaptureMode as Mode;
use spoc_driver::backend::Foreign;
use spoc_driver::{CaptureState, ErrorKind, Stream, StreamOptions};

use super::adopting::Theirs;
use super::{Bench, MIB, NON_BLOCKING, filled, on_every_device, read, whole};

fn begin(bench: &Bench, theirs: &Theirs, mode: Mode, options: StreamOptions) -> Stream {
    let words = [theirs.stream.expose_provenance() as u64, 0, 0, 0, 0, 0];
    let foreign = Foreign { words, keep_alive: None };
    // SAFETY: it lives as long as the tests need it.
    let stream = unsafe { bench.device.adopt_stream(foreign, options) }.unwrap();
    // SAFETY: a live stream.
    assert_eq!(unsafe { raw::cuStreamBeginCapture_v2(theirs.stream, mode) }, CUDA_SUCCESS);
    stream
}

/// Ends the capture, which has to be whole.
fn end(theirs: &Theirs) {
    let mut graph = std::ptr::null_mut();
    // SAFETY: this thread began the capture.
    assert_eq!(unsafe { raw::cuStreamEndCapture(theirs.stream, &raw mut graph) }, CUDA_SUCCESS);
    assert!(!graph.is_null());
    // SAFETY: just made, and nobody else's.
    assert_eq!(unsafe { raw::cuGraphDestroy(graph) }, CUDA_SUCCESS);
}

/// All that a pump does in its life.
fn work(bench: &Bench) {
    let memory = filled(MIB, 3);
    let mut pin = bench.device.pin(&memory).unwrap();
    let (stream, event) = (bench.stream(), bench.device.create_event().unwrap());
    let segment = bench.device.allocate(4 * MIB as u64).unwrap();
    let small = bench.device.allocate(64).unwrap();
    stream.copy_to_device(memory.clone(), &[whole(&segment, MIB)]).unwrap();
    stream.fill(&small, 0, 64, 3).unwrap();
    stream.record(&event).unwrap();
    while !event.query().unwrap() {
        std::thread::yield_now();
    }
    assert!(stream.query().unwrap());
    let room = bench.device.alloc_pinned(MIB as u64).unwrap();
    let back = stream.copy_to_host(&segment, 0, room).unwrap().wait().unwrap();
    assert!(back.as_slice().unwrap() == super::bytes_of(&memory));
    event.synchronize().unwrap();
    stream.synchronize().unwrap();
    pin.release().unwrap();
    bench.device.memory().unwrap();
}

#[test]
fn our_work_goes_on_while_another_thread_captures() {
    on_every_device(|bench| {
        for mode in [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL] {
            let theirs = Theirs::new(bench, false, 1);
            let stream = begin(bench, &theirs, mode, NON_BLOCKING);
            std::thread::scope(|scope| scope.spawn(|| work(bench)).join().unwrap());
            assert_eq!(stream.is_capturing().unwrap(), CaptureState::Active, "{mode:?}");
            end(&theirs);
            assert_eq!(stream.is_capturing().unwrap(), CaptureState::None);
        }
    });
}

#[test]
fn and_on_the_thread_that_captures() {
    on_every_device(|bench| {
        for mode in [Mode::CU_STREAM_CAPTURE_MODE_GLOBAL, Mode::CU_STREAM_CAPTURE_MODE_RELAXED] {
            let theirs = Theirs::new(bench, false, 1);
            let stream = begin(bench, &theirs, mode, NON_BLOCKING);
            work(bench);
            assert_eq!(stream.is_capturing().unwrap(), CaptureState::Active, "{mode:?}");
            end(&theirs);
        }
    });
}

#[test]
fn the_default_stream_is_left_alone_while_a_blocking_stream_is_captured() {
    on_every_device(|bench| {
        let segment = bench.device.allocate(64).unwrap();
        segment.write(0, &[1; 64]).unwrap();
        let theirs = Theirs::new(bench, false, 0);
        let stream = begin(bench, &theirs, Mode::CU_STREAM_CAPTURE_MODE_RELAXED, StreamOptions::default());
        let refused = segment.write(0, &[2; 64]).unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::Capturing, "{refused}");
        assert_eq!(bench.device.default_stream().is_capturing().unwrap(), CaptureState::Active);
        assert_eq!(stream.is_capturing().unwrap(), CaptureState::Active, "spoilt");
        end(&theirs);
        segment.write(0, &[3; 64]).unwrap();
        assert_eq!(read(&segment), [3; 64]);
    });
}

#[test]
fn waiting_for_a_captured_stream_is_refused() {
    on_every_device(|bench| {
        let theirs = Theirs::new(bench, false, 1);
        let stream = begin(bench, &theirs, Mode::CU_STREAM_CAPTURE_MODE_RELAXED, NON_BLOCKING);
        let refused = stream.synchronize().unwrap_err();
        assert_eq!(*refused.kind(), ErrorKind::Capturing, "{refused}");
        end(&theirs);
        stream.synchronize().unwrap();
    });
}
