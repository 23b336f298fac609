//! Launching kernels with vectors and scalars.

mod arguments;
mod bound;
mod call;
mod kernel;
mod scalar;
mod submit;
mod window;

pub use arguments::Arguments;
pub use call::{Call, CallArgument};
pub use kernel::{BuiltIn, Form, Kernel, KindRule, Language, NativeFn, Parameter, Role, Source};
pub use scalar::Scalar;
pub(crate) use window::Window;

use crate::error::{Error, ErrorKind, Result};

/// What a kernel does with a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Reads and writes it.
    Write,
}

/// How many threads run a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Groups in each dimension.
    pub groups: [u32; 3],
    /// Threads of a group in each dimension.
    pub group: [u32; 3],
}

/// Most threads of a launch: kernels index with 32 bits.
pub const GRID_THREADS_MAX: u64 = i32::MAX as u64;

impl Grid {
    /// One dimension of groups of 256 threads, enough for `threads`.
    #[must_use]
    pub fn linear(threads: u32) -> Self {
        Self { groups: [threads.div_ceil(256), 1, 1], group: [256, 1, 1] }
    }

    /// Refuses nothing at all, and more threads than can be indexed.
    pub(crate) fn check(self, doing: &'static str) -> Result<()> {
        let count =
            |sides: [u32; 3]| sides.iter().try_fold(1_u64, |sum, side| sum.checked_mul((*side).into()));
        let threads = count(self.groups).zip(count(self.group)).and_then(|(a, b)| a.checked_mul(b));
        match threads {
            Some(0) => Err(Error::new(ErrorKind::ZeroSize, doing)),
            Some(threads) if threads <= GRID_THREADS_MAX => Ok(()),
            threads => {
                let need = threads.unwrap_or(u64::MAX);
                let kind = ErrorKind::TooLarge { need, max: GRID_THREADS_MAX };
                Err(Error::new(kind, doing).with("unit", "threads"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_are_bounded() {
        Grid::linear(1).check("").unwrap();
        Grid { groups: [1 << 20, 2, 1], group: [1023, 1, 1] }.check("").unwrap();
        assert_eq!(*Grid::linear(0).check("").unwrap_err().kind(), ErrorKind::ZeroSize);
        for groups in [[1 << 23, 1, 1], [u32::MAX; 3]] {
            let refused = Grid { groups, group: [256, 1, 1] }.check("").unwrap_err();
            assert!(matches!(refused.kind(), ErrorKind::TooLarge { .. }));
        }
    }
}
