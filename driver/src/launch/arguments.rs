//! The arguments of one launch.

use super::{Access, Scalar};
use crate::segment::Segment;
use crate::vector::{Body, DeviceVector, Element, ElementKind, Item, Vector};

/// The arguments of one launch, in order. Vectors are borrowed as the kernel will use them, so one that is
/// written cannot be passed twice:
///
/// ```compile_fail,E0502
/// # fn wrong(x: &mut spoc_driver::Vector<f32>) {
/// let arguments = spoc_driver::Arguments::new().read(x).write(x);
/// # }
/// ```
#[derive(Default)]
pub struct Arguments<'a> {
    pub(super) list: Vec<Argument<'a>>,
}

pub(super) enum Argument<'a> {
    Vector(&'a Body, Access),
    View { segment: &'a Segment, offset_bytes: u64, elements: u64, kind: ElementKind, access: Access },
    Scalar(Scalar),
}

impl<'a> Arguments<'a> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A vector that the kernel reads. It may be passed several times.
    #[must_use]
    pub fn read<T: Item>(self, vector: &'a Vector<T>) -> Self {
        self.and(Argument::Vector(&vector.body, Access::Read))
    }

    /// A vector that the kernel may write.
    #[must_use]
    pub fn write<T: Item>(self, vector: &'a mut Vector<T>) -> Self {
        self.and(Argument::Vector(&vector.body, Access::Write))
    }

    /// A part of a segment that the kernel reads.
    #[must_use]
    pub fn read_view<T: Element>(self, view: &'a DeviceVector<T>) -> Self {
        self.and(Self::view(view, Access::Read))
    }

    /// A part of a segment that the kernel may write. It must not overlap another argument.
    #[must_use]
    pub fn write_view<T: Element>(self, view: &'a mut DeviceVector<T>) -> Self {
        self.and(Self::view(view, Access::Write))
    }

    /// A number.
    #[must_use]
    pub fn scalar<T: Element>(self, value: T) -> Self {
        self.and(Argument::Scalar(Scalar::of(value)))
    }

    fn view<T: Element>(view: &'a DeviceVector<T>, access: Access) -> Argument<'a> {
        let (segment, offset_bytes) = (view.segment(), view.offset_bytes());
        Argument::View { segment, offset_bytes, elements: view.len(), kind: T::KIND, access }
    }

    fn and(mut self, argument: Argument<'a>) -> Self {
        self.list.push(argument);
        self
    }
}

impl Argument<'_> {
    /// Nothing for records.
    pub(super) fn kind(&self) -> Option<ElementKind> {
        match self {
            Self::Vector(body, _) => body.kind,
            Self::View { kind, .. } => Some(*kind),
            Self::Scalar(scalar) => Some(scalar.kind()),
        }
    }

    /// Nothing for numbers.
    pub(super) fn access(&self) -> Option<Access> {
        match self {
            Self::Vector(_, access) | Self::View { access, .. } => Some(*access),
            Self::Scalar(_) => None,
        }
    }
}

impl std::fmt::Debug for Arguments<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = |argument: &Argument<'_>| (argument.kind(), argument.access());
        f.debug_list().entries(self.list.iter().map(kind)).finish()
    }
}
