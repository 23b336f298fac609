//! A check of the kernel before its fixed reads are trusted: some kernels fail or misplace reads into a registered
//! buffer that begin in its second page when several are submitted together.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::engine::{Engine, WAKE, read_entry};
use super::files::FileSlot;
use crate::reader::queue::Work;

/// Length of each of the reads, which go to consecutive places of one chunk.
const STEP_BYTES: u32 = 4096;
/// Reads submitted together.
const STEPS: u32 = 3;
/// What a file must have for the check.
const NEED_BYTES: u32 = STEP_BYTES * STEPS;

/// User data of the reads of the check.
const TEST: u64 = 1 << 62;

impl Engine {
    /// Once, before the first direct read of some length, while the ring is empty.
    pub(super) fn test_fixed_reads(&mut self, work: &Work, file: FileSlot, direct: bool) -> io::Result<()> {
        let planned = &work.plan.reads()[work.ticket.read as usize];
        let possible = direct && self.in_flight() == 0 && planned.len_bytes >= NEED_BYTES;
        let registered = self.registered.as_ref().filter(|_| possible && !self.tested);
        let Some(buffer) = registered.and_then(|r| r.index(work.chunk.region_offset()?)) else {
            return Ok(());
        };
        self.tested = true;
        let first = work.chunk.start().as_ptr();
        for step in 0..STEPS {
            let within = step * STEP_BYTES;
            let address = first.wrapping_add(within as usize);
            let offset = planned.offset + u64::from(within);
            let target = self.files.target(file);
            let entry = read_entry(target, Some(buffer), address, STEP_BYTES, offset);
            self.submit(&entry.user_data(TEST + u64::from(step)));
        }
        let mut answers = [0; STEPS as usize];
        let mut missing = answers.len();
        while missing > 0 {
            self.enter(1)?;
            for cqe in self.ring.completion() {
                match cqe.user_data() {
                    WAKE => self.wake_armed = false,
                    name => {
                        if let Some(answer) =
                            answers.get_mut(usize::try_from(name - TEST).unwrap_or(usize::MAX))
                        {
                            *answer = cqe.result();
                            missing -= 1;
                        }
                    }
                }
            }
        }
        // SAFETY: the three reads are over, and the chunk is `work`'s alone.
        let fixed = unsafe { std::slice::from_raw_parts(first, NEED_BYTES as usize) };
        let agrees = self.files.descriptor(file).and_then(|f| agrees(f, planned.offset, fixed, answers));
        if agrees == Some(false) {
            self.leave_fixed("reads into registered memory brought other bytes than pread");
        }
        Ok(())
    }
}

/// Compares what fixed reads brought with what pread brings. `None` when that cannot be told here.
fn agrees(file: &File, offset: u64, fixed: &[u8], answers: [i32; STEPS as usize]) -> Option<bool> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn every_place_of_a_registered_buffer_is_compared_with_pread() {
        let bytes: Vec<u8> =
            (0..2 * NEED_BYTES).map(|at| u8::try_from((at * 7 + at / 256) % 251).unwrap()).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let (whole, start) = ([STEP_BYTES.cast_signed(); STEPS as usize], STEP_BYTES as usize);
        let there = &bytes[start..start + NEED_BYTES as usize];
        let offset = u64::from(STEP_BYTES);
        assert_eq!(agrees(&file, offset, there, whole), Some(true));
        for step in 0..STEPS as usize {
            // One wrong byte at the end of that read, as where the kernel fills another page.
            let mut wrong = there.to_vec();
            wrong[(step + 1) * STEP_BYTES as usize - 1] ^= 1;
            assert_eq!(agrees(&file, offset, &wrong, whole), Some(false), "step {step}");
            // The kernel's refusal of one of three that went in together.
            for (answer, expected) in [
                (-libc::EFAULT, Some(false)),
                (-libc::EOPNOTSUPP, Some(false)),
                (-libc::EIO, None),
                (512, None),
            ] {
                let mut answers = whole;
                answers[step] = answer;
                assert_eq!(agrees(&file, offset, there, answers), expected, "step {step}: {answer}");
            }
        }
    }
}
