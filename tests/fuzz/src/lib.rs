//! What the targets share: files in memory, and an allocator that counts.
//!
//! A malformed file must cost no memory: opening one may never hold more than 1 MiB + 16 × the bytes of its header.

pub mod seeds;
pub mod targets;

use std::alloc::{GlobalAlloc, Layout, System};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes that are alive.
pub struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn grown(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        grown(layout.size());
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // Old and new may be alive together.
        grown(new_size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is the one asked for.
        unsafe { System.realloc(pointer, layout, new_size) }
    }
}

/// Runs `body` and panics if it held more than a header of `header_bytes` may cost.
pub fn within_limit<T>(header_bytes: usize, body: impl FnOnce() -> T) -> T {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let result = body();
    let held = PEAK.load(Ordering::Relaxed) - before;
    let limit = (1 << 20) + 16 * header_bytes;
    assert!(held <= limit, "{held} bytes held for a header of {header_bytes}, the limit is {limit}");
    result
}

/// A file in memory, opened by a path.
pub struct MemoryFile(File);

impl MemoryFile {
    /// A file with these bytes, then a hole up to `len_bytes` if that is longer.
    pub fn new(bytes: &[u8], len_bytes: u64) -> Self {
        // SAFETY: a C string that lives for ever.
        let fd = unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0, "a file in memory");
        // SAFETY: the descriptor is new, and nobody else's.
        let mut file = unsafe { File::from_raw_fd(fd) };
        file.write_all(bytes).expect("memory");
        file.set_len(len_bytes.max(bytes.len() as u64)).expect("memory");
        Self(file)
    }

    pub fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }
}

/// What a file holds, and how long a hole follows: the last two bytes say so.
pub fn split_hole(data: &[u8]) -> (&[u8], u16) {
    match data {
        [bytes @ .., a, b] => (bytes, u16::from_le_bytes([*a, *b])),
        short => (short, 0),
    }
}

/// Opens a model, within the limit, and checks what every opened model promises.
pub fn open(path: &Path, header_bytes: usize) {
    let options = spoc_io::OpenOptions { foreign_byte_order: true, ..Default::default() };
    match within_limit(header_bytes, || spoc_io::open_model(path, &options)) {
        Ok(model) => {
            for tensor in model.tensors() {
                let file = model.file_of(tensor).expect("a file of the model");
                assert!(tensor.extent.end() <= file.len_bytes(), "{tensor:?} ends outside its file");
                assert_eq!(model.tensor(&tensor.name).map(|t| &t.name), Some(&tensor.name));
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    }
}
