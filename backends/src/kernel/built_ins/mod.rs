//! The built-in kernels as launches of WGSL.

mod text;

use spoc_driver::backend::{Launch, LaunchArgument};
use spoc_driver::{BuiltIn, ElementKind, Error, ErrorKind, Result, Scalar};

pub(crate) use text::Variant;

const DOING: &str = "launching a built-in kernel";

/// Threads of a group, as the texts say.
const GROUP: u64 = 256;
/// More groups than this only share the same work further.
const GROUPS_MAX: u64 = 8192;

/// A built-in with its arguments, as a launch of its WGSL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) variant: Variant,
    /// The scalars, in order.
    pub(crate) numbers: Vec<u32>,
    /// For each binding: the argument, and the range of its buffer in bytes.
    pub(crate) bindings: Vec<(u32, Range)>,
    /// Groups in one dimension; none if there is nothing to do.
    pub(crate) groups: u32,
}

/// A part of the buffer of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// By position.
    pub(crate) argument: usize,
    pub(crate) offset_bytes: u64,
    pub(crate) len_bytes: u64,
}

/// A vector as a built-in sees it.
#[derive(Clone, Copy)]
struct Vector {
    argument: usize,
    offset_bytes: u64,
    len_bytes: u64,
    kind: ElementKind,
}

impl Vector {
    /// Bytes of what is moved at a time: of an element, or half of a wide one.
    fn unit(self, is_wide: bool) -> u64 {
        let bytes = self.kind.len_bytes() as u64;
        if is_wide { bytes } else { bytes.min(4) }
    }

    fn units(self, is_wide: bool) -> u64 {
        self.len_bytes / self.unit(is_wide)
    }

    /// The range to bind, from a multiple of `align`, and how many units before the vector it begins.
    fn bound(self, align: u64, is_wide: bool) -> (Range, u64) {
        let base = self.offset_bytes - self.offset_bytes % align.max(16);
        let skipped = self.offset_bytes - base;
        let len_bytes = (skipped + self.len_bytes).next_multiple_of(4).max(4);
        (Range { argument: self.argument, offset_bytes: base, len_bytes }, skipped / self.unit(is_wide))
    }
}

fn vector<B>(launch: &Launch<'_, B>, argument: usize) -> Result<Vector> {
    match launch.arguments.get(argument) {
        Some(LaunchArgument::Memory { offset_bytes, len_bytes, kind, .. }) => Ok(Vector {
            argument,
            offset_bytes: *offset_bytes,
            len_bytes: *len_bytes,
            // Only the digest takes records, as bytes.
            kind: kind.unwrap_or(ElementKind::U8),
        }),
        _ => Err(Error::new(ErrorKind::InvalidArgument, DOING).with("argument", argument)),
    }
}

fn scalar<B>(launch: &Launch<'_, B>, argument: usize) -> Result<Scalar> {
    match launch.arguments.get(argument) {
        Some(LaunchArgument::Scalar(scalar)) => Ok(*scalar),
        _ => Err(Error::new(ErrorKind::InvalidArgument, DOING).with("argument", argument)),
    }
}

/// A number that is known to fit.
fn short(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Plans a launch; ranges begin at multiples of `align_bytes` of their buffers.
///
/// # Errors
/// `WrongKind` for casts between kinds that are no floats.
pub(crate) fn plan<B>(which: BuiltIn, launch: &Launch<'_, B>, align_bytes: u64) -> Result<Plan> {
    if which == BuiltIn::Digest {
        return digest(launch, align_bytes);
    }
    let out = vector(launch, launch.arguments.len() - if which == BuiltIn::Fill { 2 } else { 1 })?;
    let a = if which == BuiltIn::Fill { out } else { vector(launch, 0)? };
    let variant = Variant { which, from: a.kind, to: out.kind };
    check_cast(variant)?;
    let is_wide = variant.is_wide();
    let mut count =
        out.units(is_wide).min(if which == BuiltIn::Gather { u64::MAX } else { a.units(is_wide) });
    let (mut bindings, mut firsts) = (Vec::new(), [0; 3]);
    let mut bind = |binding: u32, vector: Vector| {
        let (range, first) = vector.bound(align_bytes, is_wide);
        firsts[binding as usize] = short(first);
        bindings.push((binding, range));
    };
    if which != BuiltIn::Fill {
        bind(0, a);
    }
    let (mut low, mut high, mut chunk) = (0, 0, 1);
    match which {
        BuiltIn::Fill | BuiltIn::Scale => (low, high) = words(scalar(launch, 1)?),
        BuiltIn::Add => {
            let b = vector(launch, 1)?;
            count = count.min(b.units(is_wide));
            bind(1, b);
        }
        BuiltIn::Gather => {
            let indices = vector(launch, 1)?;
            let elements: u32 = scalar(launch, 2)?.get().unwrap_or(0);
            let each = u64::from(elements) * (a.kind.len_bytes() as u64 / a.unit(is_wide));
            count = count.min(indices.units(is_wide).saturating_mul(each));
            chunk = short(each);
            bind(1, indices);
        }
        _ => {}
    }
    bind(2, out);
    let [first_a, first_b, first_out] = firsts;
    let per = if out.unit(is_wide) < 4 { 4 / out.unit(is_wide) } else { 1 };
    let begin = u64::from(first_out);
    let words = if count == 0 { 0 } else { (begin + count - 1) / per - begin / per + 1 };
    let count_a = short(a.units(is_wide));
    let numbers =
        vec![first_a, first_b, first_out, short(count), short(words), low, high, chunk.max(1), count_a];
    Ok(Plan { variant, numbers, bindings, groups: groups(words) })
}

fn groups(words: u64) -> u32 {
    short(words.div_ceil(GROUP).min(GROUPS_MAX))
}

/// The bits of a number in two words.
fn words(scalar: Scalar) -> (u32, u32) {
    let mut bytes = [0; 8];
    bytes[..scalar.bytes().len()].copy_from_slice(scalar.bytes());
    let bits = u64::from_ne_bytes(bytes);
    (short(bits & u64::from(u32::MAX)), short(bits >> 32))
}

fn digest<B>(launch: &Launch<'_, B>, align_bytes: u64) -> Result<Plan> {
    let (a, out) = (vector(launch, 0)?, vector(launch, 2)?);
    let number: u32 = scalar(launch, 1)?.get().unwrap_or(0);
    let bytes = Vector { kind: ElementKind::U8, ..a };
    let (range, skipped) = bytes.bound(align_bytes, false);
    let (out_range, first_out) = out.bound(align_bytes, false);
    let words = a.len_bytes.div_ceil(4);
    let last = match a.len_bytes % 4 {
        0 => u32::MAX,
        rest => (1 << (rest * 8)) - 1,
    };
    let count_out = out.units(false).min(4);
    let shift = short(skipped % 4 * 8);
    let numbers =
        vec![shift, short(skipped / 4), short(words), last, number, short(first_out), short(count_out)];
    let variant = Variant { which: BuiltIn::Digest, from: ElementKind::U8, to: ElementKind::U32 };
    Ok(Plan { variant, numbers, bindings: vec![(0, range), (2, out_range)], groups: groups(words) })
}

/// Refuses casts of what is no float.
pub(crate) fn check_cast(variant: Variant) -> Result<()> {
    let is_float = |kind| matches!(kind, ElementKind::F32 | ElementKind::F16 | ElementKind::Bf16);
    let is_right = match variant.which {
        BuiltIn::Cast => is_float(variant.from) && is_float(variant.to),
        BuiltIn::FromE4m3 | BuiltIn::FromE5m2 => is_float(variant.to),
        BuiltIn::ToE4m3 | BuiltIn::ToE5m2 => is_float(variant.from),
        _ => true,
    };
    if is_right {
        return Ok(());
    }
    Err(Error::new(ErrorKind::WrongKind, DOING)
        .with("kernel", variant.which.as_str())
        .with("from", variant.from)
        .with("to", variant.to)
        .with("expected", "f32, f16 or bf16"))
}
