//! One planned read from its first system call to its last: what to ask next, and what an answer means.

use std::io;

use super::report::{Counters, add};
use crate::file::WeightFile;
use crate::{Error, ErrorKind, PlannedRead};

/// How far one read is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    done: u32,
    without_gain: u32,
    direct: bool,
}

/// What to do after an answer.
#[derive(Debug)]
pub(crate) enum Step {
    /// Every needed byte arrived.
    Done,
    /// Ask for [`Progress::range`].
    Again,
    /// Direct reads of this file do not work: ask again through the page cache.
    Demote(&'static str),
    /// The read failed.
    Fail(Error),
}

/// Answers in a row that bring nothing before a read is given up, or taken off the direct path.
const WITHOUT_GAIN_MAX: u32 = 32;

impl Progress {
    pub(crate) fn new(direct: bool) -> Self {
        Self { direct, ..Self::default() }
    }

    pub(crate) fn is_direct(&self) -> bool {
        self.direct
    }

    pub(crate) fn leave_direct(&mut self) {
        self.direct = false;
        self.without_gain = 0;
    }

    /// The range of the chunk to ask for. A direct read continues from the last aligned byte: asking from the middle
    /// of a block would be refused, and skipping to the next would lose bytes.
    pub(crate) fn range(&self, read: &PlannedRead, file: &WeightFile) -> (u32, u32) {
        if !self.direct {
            return (self.done, read.need.end);
        }
        let align = file.direct_step();
        (self.done / align * align, read.len_bytes)
    }

    /// Judges the answer to the read of `range`.
    pub(crate) fn take(
        &mut self,
        answer: io::Result<usize>,
        read: &PlannedRead,
        file: &WeightFile,
        counters: &Counters,
    ) -> Step {
        let (start, end) = self.range(read, file);
        let place = read.offset + u64::from(start);
        let fail = |error: Error| Step::Fail(error.in_file(file.path()).at(place));
        let arrived = match answer {
            Ok(n) => n,
            Err(e) => {
                return self.take_error(e, counters).unwrap_or_else(|e| fail(Error::from_os(e, "reading")));
            }
        };
        let left_in_file = file.len_bytes().saturating_sub(place);
        let arrived =
            u32::try_from(arrived).ok().filter(|n| *n <= end - start && u64::from(*n) <= left_in_file);
        let Some(arrived) = arrived else { return fail(past_the_end(file)) };
        if arrived == 0 {
            return fail(ends_early(read, file));
        }
        if start + arrived > self.done {
            self.done = start + arrived;
            self.without_gain = 0;
        } else {
            self.without_gain += 1;
        }
        if self.done >= read.need.end {
            return Step::Done;
        }
        add(&counters.short_reads, 1);
        if self.direct && self.without_gain > 0 {
            // Less than a block at a time: aligned reads would never get on.
            return Step::Demote("direct reads return parts of blocks");
        }
        Step::Again
    }

    fn take_error(&mut self, error: io::Error, counters: &Counters) -> Result<Step, io::Error> {
        match error.raw_os_error() {
            Some(libc::EINTR | libc::EAGAIN) if self.without_gain < WITHOUT_GAIN_MAX => {
                self.without_gain += 1;
                add(&counters.retries, 1);
                Ok(Step::Again)
            }
            Some(libc::EINVAL | libc::EOPNOTSUPP) if self.direct => {
                Ok(Step::Demote("the file refuses direct reads"))
            }
            _ => Err(error),
        }
    }
}

fn past_the_end(file: &WeightFile) -> Error {
    match file.check_unchanged() {
        Err(changed) => changed,
        Ok(()) => {
            let message =
                format!("more bytes arrived than the file's {}: its file system is broken", file.len_bytes());
            Error::new(ErrorKind::IoError, message)
        }
    }
}

fn ends_early(read: &PlannedRead, file: &WeightFile) -> Error {
    let expected = read.offset + u64::from(read.need.end);
    let message = format!(
        "expected bytes up to {expected} (the file had {} when it was opened), the file ends",
        file.len_bytes()
    );
    Error::new(ErrorKind::Truncated, message)
}
