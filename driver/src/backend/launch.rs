//! A launch as an adapter gets it.

use crate::launch::{Access, Grid, Kernel, Scalar};
use crate::vector::ElementKind;

/// One launch.
#[derive(Debug)]
pub struct Launch<'a, Buffer> {
    /// What to run; one of its forms is what `check_kernel` accepted.
    pub kernel: &'a Kernel,
    /// How many threads; at least one, and no more than 32 bits index.
    pub grid: Grid,
    /// In the order of the kernel's parameters, roles and kinds as declared.
    pub arguments: &'a [LaunchArgument<'a, Buffer>],
}

/// One argument of a [`Launch`].
#[derive(Debug)]
pub enum LaunchArgument<'a, Buffer> {
    /// A vector.
    Memory {
        /// The buffer it lies in.
        buffer: &'a Buffer,
        /// Where it begins there, in bytes.
        offset_bytes: u64,
        /// How long it is, in bytes.
        len_bytes: u64,
        /// The kind of its elements; none for records.
        kind: Option<ElementKind>,
        /// Whether the kernel may write it. Then no other argument shows the same bytes.
        access: Access,
    },
    /// A number.
    Scalar(Scalar),
}
