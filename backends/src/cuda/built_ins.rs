//! Built-in kernels: CUDA C written by hand, carried as PTX that every driver since CUDA 11.4 compiles for
//! its device, so that they need no compiler on the machine. Built-ins that are not here are translated.

use spoc_driver::backend::{Launch, LaunchArgument};
use spoc_driver::{BuiltIn, ElementKind, Error, ErrorKind, Result, Scalar};

use crate::streamed::flavour::{Plan, Text};
use crate::streamed::launch::{GROUP, bits};
use crate::streamed::memory::Buffer;

/// Sums, products and fills.
pub(super) static COMPUTE: Text = Text {
    name: "compute",
    #[cfg(test)]
    source: include_str!("kernels/compute.cu"),
    ptx: include_str!("kernels/compute.ptx"),
};

/// Gathering.
pub(super) static COPY: Text = Text {
    name: "copy",
    #[cfg(test)]
    source: include_str!("kernels/copy.cu"),
    ptx: include_str!("kernels/copy.ptx"),
};

/// Carrying as many copies as the arguments of a launch have had room for since ever.
pub(super) static CARRY: Text = Text {
    name: "carry",
    #[cfg(test)]
    source: concat!("#define PIECES_MAX 338\n#define ENTRY carry_pieces\n", include_str!("kernels/carry.cu")),
    ptx: include_str!("kernels/carry.ptx"),
};

/// The same with the room that launches have since CUDA 12.1, on devices since Volta.
pub(super) static CARRY_WIDE: Text = Text {
    name: "carry_wide",
    #[cfg(test)]
    source: concat!("#define PIECES_MAX 2728\n#define ENTRY carry_many\n", include_str!("kernels/carry.cu")),
    ptx: include_str!("kernels/carry_wide.ptx"),
};

/// More groups than this gain nothing: each goes on until the work is done.
const GROUPS_MAX: u64 = 4096;
/// What a warp of `gather` has under way, in units: 32 lanes with 4 each.
const TILE_UNITS: u64 = 128;

/// A vector as a kernel takes it.
struct Memory {
    address: u64,
    len_bytes: u64,
    kind: ElementKind,
}

/// Whether this adapter has the kernel. The set may grow faster than it does.
pub(super) fn is_known(which: BuiltIn) -> bool {
    matches!(which, BuiltIn::Fill | BuiltIn::Copy | BuiltIn::Add | BuiltIn::Scale | BuiltIn::Gather)
}

/// What to do for a launch; nothing for a kernel that is not here. Roles and kinds were checked by the driver; the
/// launch's grid is not looked at.
pub(super) fn plan(which: BuiltIn, launch: &Launch<'_, Buffer>) -> Result<Option<Plan>> {
    if is_known(which) { known(which, launch).map(Some) } else { Ok(None) }
}

fn known(which: BuiltIn, launch: &Launch<'_, Buffer>) -> Result<Plan> {
    let arguments = Arguments(launch.arguments);
    match which.as_str() {
        "fill" => {
            let (out, value) = (arguments.memory(0)?, arguments.scalar(1)?);
            let entry = of_kind(out.kind, &FILL);
            Ok(each(entry, out.len_bytes, vec![out.address, out.elements(), bits(value)]))
        }
        "copy" => {
            let (from, to) = (arguments.memory(0)?, arguments.memory(1)?);
            let bytes = from.len_bytes.min(to.len_bytes);
            Ok(if bytes == 0 { Plan::Nothing } else { Plan::Copy(from.address, to.address, bytes) })
        }
        "add" => {
            let (a, b, out) = (arguments.memory(0)?, arguments.memory(1)?, arguments.memory(2)?);
            let bytes = a.len_bytes.min(b.len_bytes).min(out.len_bytes);
            let count = bytes / out.kind.len_bytes() as u64;
            Ok(each(of_kind(out.kind, &ADD), bytes, vec![a.address, b.address, out.address, count]))
        }
        "scale" => {
            let (from, factor, out) = (arguments.memory(0)?, arguments.scalar(1)?, arguments.memory(2)?);
            let bytes = from.len_bytes.min(out.len_bytes);
            let count = bytes / out.kind.len_bytes() as u64;
            Ok(each(of_kind(out.kind, &SCALE), bytes, vec![from.address, bits(factor), out.address, count]))
        }
        "gather" => gather(&arguments),
        other => Err(Error::new(ErrorKind::InvalidArgument, "launching a CUDA kernel").with("kernel", other)),
    }
}

fn gather(arguments: &Arguments<'_, '_>) -> Result<Plan> {
    let (from, indices) = (arguments.memory(0)?, arguments.memory(1)?);
    let (chunk, out) = (arguments.scalar(2)?, arguments.memory(3)?);
    let chunk = chunk.get::<u32>().ok_or_else(|| wrong(2))?;
    let chunk_bytes = u64::from(chunk) * out.kind.len_bytes() as u64;
    if chunk_bytes == 0 {
        return Ok(Plan::Nothing);
    }
    let chunks = indices.elements().min(out.len_bytes.div_ceil(chunk_bytes));
    let unit = unit_bytes(from.address | out.address | chunk_bytes);
    if chunks == 0 {
        return Ok(Plan::Nothing);
    }
    // No overflow: there are no more chunks than begin in `out`.
    let tiles = chunks * chunk_bytes.min(out.len_bytes).div_ceil(TILE_UNITS * unit);
    let entry = match unit {
        16 => "gather_16",
        8 => "gather_8",
        4 => "gather_4",
        2 => "gather_2",
        _ => "gather_1",
    };
    let parameters =
        vec![from.address, from.len_bytes, indices.address, chunks, chunk_bytes, out.address, out.len_bytes];
    Ok(Plan::Run { text: &COPY, entry, groups: groups(tiles.div_ceil(u64::from(GROUP) / 32)), parameters })
}

/// The largest unit, up to 16 bytes, that divides everything that was ored together.
fn unit_bytes(all: u64) -> u64 {
    1 << all.trailing_zeros().min(4)
}

/// A launch of a kernel that does sixteen bytes a thread and turn.
fn each(entry: &'static str, bytes: u64, parameters: Vec<u64>) -> Plan {
    if bytes == 0 {
        return Plan::Nothing;
    }
    let groups = groups(bytes.div_ceil(16 * u64::from(GROUP)));
    Plan::Run { text: &COMPUTE, entry, groups, parameters }
}

fn groups(wanted: u64) -> u32 {
    u32::try_from(wanted.clamp(1, GROUPS_MAX)).unwrap_or(1)
}

/// The names of a kernel by kind, in the order of [`of_kind`].
type Names = [&'static str; 8];

const FILL: Names =
    ["fill_u8", "fill_u16", "fill_u32", "fill_u64", "fill_f16", "fill_bf16", "fill_f32", "fill_f64"];
const ADD: Names = ["add_u8", "add_u16", "add_u32", "add_u64", "add_f16", "add_bf16", "add_f32", "add_f64"];
const SCALE: Names =
    ["scale_u8", "scale_u16", "scale_u32", "scale_u64", "scale_f16", "scale_bf16", "scale_f32", "scale_f64"];

/// Signed integers wrap as unsigned ones do.
fn of_kind(kind: ElementKind, names: &Names) -> &'static str {
    names[match kind {
        ElementKind::U8 | ElementKind::I8 => 0,
        ElementKind::U16 | ElementKind::I16 => 1,
        ElementKind::U32 | ElementKind::I32 => 2,
        ElementKind::U64 | ElementKind::I64 => 3,
        ElementKind::F16 => 4,
        ElementKind::Bf16 => 5,
        ElementKind::F32 => 6,
        ElementKind::F64 => 7,
    }]
}

struct Arguments<'a, 'b>(&'a [LaunchArgument<'b, Buffer>]);

impl Arguments<'_, '_> {
    fn memory(&self, position: usize) -> Result<Memory> {
        match self.0.get(position) {
            Some(LaunchArgument::Memory { buffer, offset_bytes, len_bytes, kind: Some(kind), .. }) => {
                Ok(Memory { address: buffer.at(*offset_bytes), len_bytes: *len_bytes, kind: *kind })
            }
            _ => Err(wrong(position)),
        }
    }

    fn scalar(&self, position: usize) -> Result<Scalar> {
        match self.0.get(position) {
            Some(LaunchArgument::Scalar(scalar)) => Ok(*scalar),
            _ => Err(wrong(position)),
        }
    }
}

fn wrong(position: usize) -> Error {
    Error::new(ErrorKind::WrongKind, "launching a CUDA kernel").with("argument", position)
}

impl Memory {
    fn elements(&self) -> u64 {
        self.len_bytes / self.kind.len_bytes() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::nvrtc::Nvrtc;
    use super::*;
    use crate::identity::digest;
    use crate::streamed::carry::{PIECES_MAX, WIDE_PIECES_MAX};
    use crate::streamed::module::entries;

    /// What a text is made for: the language's version and the oldest device. The first is old enough for every
    /// driver with the functions that this adapter needs, CUDA 11.4; the second has launches with 32 KiB of
    /// arguments.
    fn made_for(text: &Text) -> (&'static str, u32) {
        if *text == CARRY_WIDE { (".version 8.1", 70) } else { (".version 7.4", 60) }
    }

    const TEXTS: [&Text; 4] = [&COMPUTE, &COPY, &CARRY, &CARRY_WIDE];

    fn headline(text: &Text) -> String {
        format!("// Made from the text `{}`, whose digest is {:032x}.", text.name, digest(text.source))
    }

    #[test]
    fn the_ptx_is_made_from_the_text() {
        for text in TEXTS {
            let first = text.ptx.lines().next();
            assert_eq!(first, Some(&*headline(text)), "run the ignored test `make_the_ptx_anew`");
            let (version, arch) = made_for(text);
            let target = format!(".target sm_{arch}");
            assert!(text.ptx.contains(version) && text.ptx.contains(&target), "{}", text.name);
        }
    }

    #[test]
    fn every_entry_is_there() {
        let entries = |names: Names, text: &Text| {
            for name in names {
                assert!(text.ptx.contains(&format!(".visible .entry {name}(")), "{name}");
            }
        };
        [FILL, ADD, SCALE].into_iter().for_each(|names| entries(names, &COMPUTE));
        for name in ["gather_16", "gather_8", "gather_4", "gather_2", "gather_1"] {
            assert!(COPY.ptx.contains(&format!(".visible .entry {name}(")), "{name}");
        }
        assert!(CARRY.ptx.contains(".visible .entry carry_pieces("));
        assert!(CARRY_WIDE.ptx.contains(".visible .entry carry_many("));
    }

    /// Writes the PTX beside the texts. Needs NVRTC 12, the last that knows the oldest devices.
    #[test]
    #[ignore = "writes source files"]
    fn make_the_ptx_anew() {
        let nvrtc = Nvrtc::load().unwrap();
        for text in TEXTS {
            let (version, arch) = made_for(text);
            let ptx = nvrtc.compile_to_ptx(text.source.as_bytes(), text.name, arch, false).unwrap();
            let begin = ptx.find(".version").unwrap();
            let end = begin + ptx[begin..].find('\n').unwrap();
            let ptx = format!("{}\n\n{version}{}\n", headline(text), ptx[end..].trim_end());
            let path = format!("{}/src/cuda/kernels/{}.ptx", env!("CARGO_MANIFEST_DIR"), text.name);
            std::fs::write(path, ptx).unwrap();
        }
    }

    #[test]
    fn units_divide_everything() {
        for (all, unit) in [(0, 16), (256, 16), (8, 8), (12, 4), (6, 2), (7, 1)] {
            assert_eq!(unit_bytes(all), unit, "{all}");
        }
    }

    #[test]
    fn groups_are_enough_and_not_too_many() {
        assert_eq!(groups(0), 1);
        assert_eq!(groups(7), 7);
        assert_eq!(groups(u64::MAX), 4096);
        assert_eq!(each("fill_u8", 0, Vec::new()), Plan::Nothing);
    }

    #[test]
    fn lists_are_as_long_as_the_texts_say() {
        for (text, max) in [(&CARRY, PIECES_MAX), (&CARRY_WIDE, WIDE_PIECES_MAX)] {
            assert!(text.source.contains(&format!("#define PIECES_MAX {max}\n")));
        }
    }

    #[test]
    fn the_entries_of_a_text_are_known() {
        let copy: Vec<_> = entries(&COPY).collect();
        assert!(copy.contains(&"gather_4") && copy.contains(&"gather_16"), "{copy:?}");
        assert_eq!(entries(&COMPUTE).count(), 24);
    }
}
