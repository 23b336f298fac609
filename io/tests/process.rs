//! What a process may find itself in: io_uring refused by a filter, little locked memory, a fork.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr, reason = "a test")]

use std::sync::Arc;
use std::time::Duration;

use spoc_io::{
    AnonymousRegion, ErrorKind, Extent, IoMode, IoPath, PlanBuilder, PlanOptions, ReadClass, ReadPlan,
    ReadRequest, Reader, ReaderOptions, ReaderReport, WeightFile,
};

const CHUNK: u32 = 64 << 10;
const LEN: usize = 10 * CHUNK as usize + 3;

fn plan(folder: &tempfile::TempDir) -> Arc<ReadPlan> {
    let path = folder.path().join("f");
    std::fs::write(&path, vec![7; LEN]).unwrap();
    let file = Arc::new(WeightFile::open(&path).unwrap());
    let mut builder = PlanBuilder::new(&[file], PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 });
    builder.add(0, Extent { file: 0, offset: 0, len_bytes: LEN as u64 }, 0).unwrap();
    Arc::new(builder.build().unwrap())
}

fn reader(mode: IoMode) -> Reader {
    let options = ReaderOptions { mode, chunk_bytes: CHUNK, ..ReaderOptions::default() };
    Reader::start(Arc::new(AnonymousRegion::new(8 * CHUNK as usize).unwrap()), options).unwrap()
}

fn load(mode: IoMode) -> ReaderReport {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (plan, reader) = (plan(&folder), reader(mode));
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
    for read in plan.reads() {
        let completion = reader.completions().recv_timeout(Duration::from_secs(20)).expect("no hang");
        let chunk = completion.outcome.unwrap();
        assert!(chunk.bytes().iter().all(|b| *b == 7), "{read:?}");
    }
    reader.report()
}

/// Makes io_uring_setup fail with this error for the calling thread and the threads it starts.
fn refuse_io_uring(errno: i32) {
    let statement = |code, k| libc::sock_filter { code, jt: 0, jf: 0, k };
    let errno = u32::try_from(errno).unwrap();
    let number = u32::try_from(libc::SYS_io_uring_setup).unwrap();
    let mut program = [
        // The system call's number is the first word of what a filter sees.
        statement(0x20, 0),
        libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: number },
        statement(0x06, libc::SECCOMP_RET_ERRNO | errno),
        statement(0x06, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: plain integers.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program is four statements and lives across the call.
    let rc = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

fn in_thread(body: impl FnOnce() + Send + 'static) {
    std::thread::spawn(body).join().unwrap();
}

#[test]
fn a_container_that_refuses_io_uring_is_served_by_threads() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        in_thread(move || {
            refuse_io_uring(errno);
            let report = load(IoMode::Direct);
            assert!(matches!(report.path, IoPath::PreadDirect | IoPath::PreadBuffered), "{report:?}");
            assert!(report.reason.contains("seccomp"), "{}", report.reason);
            let report = load(IoMode::Buffered);
            assert_eq!(report.path, IoPath::PreadBuffered);
        });
    }
}

/// Takes CAP_IPC_LOCK, which lifts the limit, from the calling thread and the threads it starts.
fn drop_ipc_lock() {
    const VERSION_3: u32 = 0x2008_0522;
    const CAP_IPC_LOCK: u32 = 14;
    let mut header = [VERSION_3, 0u32];
    // Effective, permitted and inheritable, low words first.
    let mut sets = [0u32; 6];
    // SAFETY: header and sets have the layout of version 3 and live across the call.
    let rc = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    assert_eq!(rc, 0);
    sets[0] &= !(1 << CAP_IPC_LOCK);
    // SAFETY: as above.
    let rc = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) };
    assert_eq!(rc, 0);
}

/// A load under this limit on locked memory; the ring has 512 KiB.
fn load_locking(limit_bytes: u64) -> Option<ReaderReport> {
    drop_ipc_lock();
    let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK).unwrap();
    nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_MEMLOCK, limit_bytes, hard).unwrap();
    let report = load(IoMode::Direct);
    if matches!(report.path, IoPath::PreadDirect | IoPath::PreadBuffered) {
        eprintln!("not run: {}", report.reason);
        return None;
    }
    assert!(report.reason.contains("524288 bytes of locked memory"), "{}", report.reason);
    assert!(report.reason.contains(&format!("limit of {limit_bytes}")), "{}", report.reason);
    Some(report)
}

#[test]
fn what_little_memory_may_be_locked_is_registered_and_the_rest_is_said() {
    in_thread(|| {
        let Some(report) = load_locking(256 << 10) else { return };
        // A quarter or half of it, whatever else the user has locked.
        assert!(report.fixed_reads > 0 && report.reason.contains("for the first"), "{report:?}");
        let Some(report) = load_locking(4096) else { return };
        assert_eq!(report.fixed_reads, 0, "{report:?}");
        assert!(report.reason.contains("plain reads"), "{}", report.reason);
    });
}

/// Memory that io_uring does not register: the pages of a file.
struct FilePages {
    start: std::ptr::NonNull<u8>,
    len_bytes: usize,
}

impl FilePages {
    fn new(file: &std::fs::File, len_bytes: usize) -> Self {
        file.set_len(len_bytes as u64).unwrap();
        let len = std::num::NonZeroUsize::new(len_bytes).unwrap();
        let both = nix::sys::mman::ProtFlags::PROT_READ | nix::sys::mman::ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing; nobody else has the file.
        let start =
            unsafe { nix::sys::mman::mmap(None, len, both, nix::sys::mman::MapFlags::MAP_SHARED, file, 0) };
        Self { start: start.unwrap().cast(), len_bytes }
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the reader let go of it.
        let _ = unsafe { nix::sys::mman::munmap(self.start.cast(), self.len_bytes) };
    }
}

// SAFETY: the mapping is only reached through the reader's chunks.
unsafe impl Send for FilePages {}
// SAFETY: as above.
unsafe impl Sync for FilePages {}

// SAFETY: page aligned, mapped, writable and in place until the value is dropped; nobody else touches it.
unsafe impl spoc_io::HostRegion for FilePages {
    fn as_ptr(&self) -> std::ptr::NonNull<u8> {
        self.start
    }

    fn len_bytes(&self) -> usize {
        self.len_bytes
    }
}

#[test]
fn memory_that_the_kernel_does_not_register_gets_plain_reads_and_says_so() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let plan = plan(&folder);
    let pages = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for mode in [IoMode::Direct, IoMode::Buffered] {
        let region = FilePages::new(&pages, 8 * CHUNK as usize);
        let options = ReaderOptions { mode, chunk_bytes: CHUNK, ..ReaderOptions::default() };
        let reader = Reader::start(Arc::new(region), options).unwrap();
        reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
        for _ in plan.reads() {
            let completion = reader.completions().recv_timeout(Duration::from_secs(20)).expect("no hang");
            assert!(completion.outcome.unwrap().bytes().iter().all(|b| *b == 7));
        }
        let report = reader.report();
        if matches!(report.path, IoPath::PreadDirect | IoPath::PreadBuffered) {
            eprintln!("not run: {}", report.reason);
            return;
        }
        assert_eq!(report.fixed_reads, 0, "{report:?}");
        assert!(report.reason.contains("io_uring with plain reads"), "{}", report.reason);
    }
}

/// In a child, because the limit is the whole process's.
#[test]
fn a_process_out_of_descriptors_is_told_so() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let header = br#"{"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.push(1);
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, bytes).unwrap();
    // SAFETY: the child of this one thread opens files, which takes no lock another thread could hold but the
    // allocator's, whose fork handlers glibc has; then it leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (_, hard) = nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap();
        let _ = nix::sys::resource::setrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE, 24, hard);
        let mut open = Vec::new();
        let told = loop {
            match spoc_io::open_model(&path, &spoc_io::OpenOptions::default()) {
                Ok(model) if open.len() < 100 => open.push(model),
                Ok(_) => break false,
                Err(error) => break error.kind() == ErrorKind::TooManyOpenFiles && error.file().is_some(),
            }
        };
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    let mut status = -1;
    // SAFETY: the status lives across the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was told");
}

#[test]
fn a_forked_child_is_told_so() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (plan, reader) = (plan(&folder), reader(IoMode::Auto));
    let request = || ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 };
    // SAFETY: the child only asks the reader, which looks at its process number first, and leaves.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let told = reader.submit(request()).is_err_and(|e| e.kind() == ErrorKind::Forked);
        // SAFETY: ends the child without running anything else.
        unsafe { libc::_exit(i32::from(!told)) };
    }
    let mut status = -1;
    // SAFETY: the status lives across the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child's reader refused by name");
    reader.submit(request()).unwrap();
    for _ in plan.reads() {
        reader.completions().recv_timeout(Duration::from_secs(20)).unwrap().outcome.unwrap();
    }
}
