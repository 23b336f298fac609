//! A check of the kernel before its fixed reads are trusted: some kernels fail or misplace reads into a registered
//! buffer that begin in its second page when several are submitted together.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Length of each of the reads, which go to consecutive places of one chunk.
pub(super) const STEP_BYTES: u32 = 4096;
/// Reads submitted together.
pub(super) const STEPS: u32 = 3;
/// What a file must have for the check.
pub(super) const NEED_BYTES: u32 = STEP_BYTES * STEPS;

/// Compares what fixed reads brought with what pread brings. `None` when that cannot be told here.
pub(super) fn agrees(file: &File, offset: u64, fixed: &[u8], answers: [i32; STEPS as usize]) -> Option<bool> {
    if answers.iter().any(|n| u32::try_from(*n) != Ok(STEP_BYTES)) {
        // A file that cannot be read directly, or ends here, says nothing about registered buffers.
        let about_the_file = |n: &i32| *n >= 0 || [libc::EINVAL, libc::EIO].contains(&-n);
        return if answers.iter().all(about_the_file) { None } else { Some(false) };
    }
    // Direct reads want aligned memory.
    let mut buffer = vec![0u8; (NEED_BYTES + STEP_BYTES) as usize];
    let start = buffer.as_ptr().align_offset(STEP_BYTES as usize).min(STEP_BYTES as usize);
    let plain = &mut buffer[start..start + NEED_BYTES as usize];
    match file.read_at(plain, offset) {
        Ok(n) if n == plain.len() => Some(plain == fixed),
        _ => None,
    }
}
