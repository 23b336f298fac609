//! A launch with its arguments bound to device memory: what the ledger and the window keep.

use super::{Access, Grid, Kernel, Scalar};
use crate::backend::{Handle, Launch, LaunchArgument};
use crate::device::DeviceCore;
use crate::error::{Error, ErrorKind, Result};
use crate::segment::Segment;
use crate::vector::ElementKind;

pub(super) struct BoundLaunch {
    pub(super) kernel: Kernel,
    pub(super) grid: Grid,
    pub(super) arguments: Vec<Bound>,
}

pub(super) enum Bound {
    Memory { segment: Segment, offset_bytes: u64, len_bytes: u64, kind: Option<ElementKind>, access: Access },
    Scalar(Scalar),
}

impl BoundLaunch {
    pub(super) fn segments(&self) -> impl Iterator<Item = &Segment> {
        self.arguments.iter().filter_map(|argument| match argument {
            Bound::Memory { segment, .. } => Some(segment),
            Bound::Scalar(_) => None,
        })
    }

    /// Refuses memory that the kernel writes and that another argument shows as well.
    pub(super) fn refuse_overlap(&self, doing: &'static str) -> Result<()> {
        for (position, one) in self.arguments.iter().enumerate() {
            let clash = self.arguments[..position].iter().position(|other| clashes(one, other));
            if let Some(other) = clash {
                return Err(Error::new(ErrorKind::Overlap, doing)
                    .with("kernel", self.kernel.name().to_owned())
                    .with("argument", other)
                    .with("and", position));
            }
        }
        Ok(())
    }

    /// Hands the launch to the backend.
    pub(super) fn enqueue(&self, core: &DeviceCore, stream: &Handle) -> Result<()> {
        let arguments: Vec<_> = self.arguments.iter().map(Bound::as_port).collect();
        let launch = Launch { kernel: &self.kernel, grid: self.grid, arguments: &arguments };
        // SAFETY: the ledger keeps the segments until the stream has passed; ranges lie in them (vectors and
        // views were checked when they were made), and what is written overlaps nothing (`refuse_overlap`).
        unsafe { core.backend.launch(&core.handle, stream, &launch) }
    }
}

impl Bound {
    fn as_port(&self) -> LaunchArgument<'_, Handle> {
        match self {
            Self::Memory { segment, offset_bytes, len_bytes, kind, access } => LaunchArgument::Memory {
                buffer: segment.buffer(),
                offset_bytes: *offset_bytes,
                len_bytes: *len_bytes,
                kind: *kind,
                access: *access,
            },
            Self::Scalar(scalar) => LaunchArgument::Scalar(*scalar),
        }
    }
}

fn clashes(one: &Bound, other: &Bound) -> bool {
    let (
        Bound::Memory { segment: a, offset_bytes: a_first, len_bytes: a_len, access: a_access, .. },
        Bound::Memory { segment: b, offset_bytes: b_first, len_bytes: b_len, access: b_access, .. },
    ) = (one, other)
    else {
        return false;
    };
    let is_written = *a_access == Access::Write || *b_access == Access::Write;
    is_written && a.is(b) && *a_first < b_first + b_len && *b_first < a_first + a_len
}
