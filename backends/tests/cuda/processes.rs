//! What takes another process: lending, faults, forking. The second halves are tests that the first ones start.

use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use spoc_driver::{
    Arguments, BackendKind, Exported, Grid, Kernel, KindRule, Language, Parameter, Source, Vector,
};

use super::memory::LENDABLE;
use super::{Bench, MIB, on_every_device, read};

const LENT: &str = "SPOC_TEST_LENT_CUDA";
const INDEX: &str = "SPOC_TEST_DEVICE";

fn start(name: &str, bench: &Bench, lent: &str) -> Output {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(LENT, lent)
        .env(INDEX, bench.device.info().index.to_string())
        .output()
        .unwrap()
}

#[track_caller]
fn assert_fine(output: &Output) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(out.contains("1 passed"), "{out}\n{err}");
}

fn here() -> Option<Bench> {
    let index = std::env::var(INDEX).ok()?;
    Some(Bench::open(index.parse().unwrap()))
}

#[test]
fn another_process_writes_lent_memory_of_the_device() {
    on_every_device(|bench| {
        if !bench.device.capabilities().export_memory.is_available() {
            return;
        }
        let segment = bench.device.allocate_with(3 * MIB as u64, LENDABLE).unwrap();
        segment.fill(0, 3 * MIB as u64, 1).unwrap();
        let exported = segment.export().unwrap();
        let fd = exported.descriptor.as_raw_fd();
        let lent = format!("{} {} {}", std::process::id(), fd, exported.allocation_bytes);
        assert_fine(&start("processes::the_borrower", bench, &lent));
        let seen = read(&segment);
        assert_eq!(seen[3 * MIB - 5..], *b"hello");
        assert_eq!(seen[..3 * MIB - 5], vec![1; 3 * MIB - 5]);
    });
}

#[test]
#[ignore = "the second half of another_process_writes_lent_memory_of_the_device, which starts it"]
fn the_borrower() {
    let Some(bench) = here() else { return };
    let lent = std::env::var(LENT).unwrap();
    let words: Vec<u64> = lent.split(' ').map(|word| word.parse().unwrap()).collect();
    // Taken from the other process as a socket would hand it over: opening it through /proc makes another file.
    // SAFETY: plain system calls that make descriptors.
    let descriptor = unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, words[0], 0);
        libc::syscall(libc::SYS_pidfd_getfd, process, words[1], 0)
    };
    let descriptor = if descriptor >= 0 {
        // SAFETY: just made.
        unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor as i32) }
    } else {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/{}/fd/{}", words[0], words[1]))
            .unwrap()
            .into()
    };
    let (backend, device) = (BackendKind::Cuda, bench.device.info().uuid);
    let exported =
        Exported { descriptor, len_bytes: 3 * MIB as u64, allocation_bytes: words[2], backend, device };
    let segment = bench.device.import(exported).unwrap();
    segment.write(3 * MIB as u64 - 5, b"hello").unwrap();
}

#[test]
fn a_fault_on_the_device_is_told_and_ends_the_process_s_use_alone() {
    on_every_device(|bench| {
        assert_fine(&start("processes::the_faulty_one", bench, ""));
        let segment = bench.device.allocate(64).unwrap();
        segment.write(0, &[4; 64]).unwrap();
        assert_eq!(read(&segment), [4; 64]);
    });
}

#[test]
#[ignore = "the second half of a_fault_on_the_device_…, which starts it"]
fn the_faulty_one() {
    let Some(bench) = here() else { return };
    let text: Arc<[u8]> = Arc::from(*include_bytes!("fault.ptx"));
    let source = Source { language: Language::Ptx, text, entry: "fault".to_owned() };
    let parameters = [Parameter::write(KindRule::Any)];
    // SAFETY: it is none of ours: it writes to address 64, which is the point. The process ends with it.
    let kernel = unsafe { Kernel::from_sources("fault", &parameters, vec![source]) }.unwrap();
    let mut vector = Vector::<u32>::zeroed(8).unwrap();
    vector.to_device(&bench.device).unwrap();
    let (stream, other) = (bench.stream(), bench.stream());
    let segment = bench.device.allocate(4 * MIB as u64).unwrap();
    let pinned = bench.device.alloc_pinned(4096).unwrap();
    other.copy_to_device(pinned, &[super::whole(&segment, 4096)]).unwrap();
    stream.launch(&kernel, Grid::linear(1), &Arguments::new().write(&mut vector)).unwrap();
    let start = Instant::now();
    let error = loop {
        match stream.synchronize() {
            Err(error) => break error,
            Ok(()) => assert!(start.elapsed() < Duration::from_secs(20), "the fault was never told"),
        }
    };
    assert_eq!(error.kind().as_str(), "process_lost", "{error}");
    assert!(error.to_string().contains("CUDA_ERROR"), "{error}");
    // The whole process: another stream, another opening.
    assert_eq!(other.synchronize().unwrap_err().kind().as_str(), "process_lost");
    assert_eq!(bench.device.memory().unwrap_err().kind().as_str(), "process_lost");
    assert!(bench.device.allocate(64).unwrap_err().is_device_lost());
    drop((stream, other, segment, vector));
    assert_eq!(bench.device.in_flight(), 0, "what the work kept was not let go");
}

#[test]
fn a_forked_child_gets_an_error_that_names_the_fork() {
    on_every_device(|bench| assert_fine(&start("processes::the_forking_one", bench, "")));
}

#[test]
#[ignore = "the second half of a_forked_child_…, which starts it"]
fn the_forking_one() {
    let Some(bench) = here() else { return };
    // SAFETY: the child asks one question and leaves without running anything else.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = bench.device.memory().err().is_some_and(|error| error.to_string().contains("forked"));
        // SAFETY: ends the child.
        unsafe { libc::_exit(if told { 7 } else { 8 }) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status}");
    assert_eq!(libc::WEXITSTATUS(status), 7, "the child was not told");
    // The parent's device is as it was.
    bench.device.memory().unwrap();
}
