//! Launches: what a kernel is given, held against the device's bounds.

use std::borrow::Cow;

use ash::vk;
use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{Error, ErrorKind, Language, Result};

use super::device::Shared;
use super::identity::Physical;
use super::memory::Buffer;
use super::pipeline::Request;
use super::queue::Run;
use super::stream::Stream;
use crate::kernel::ir::{Kind, Program};
use crate::kernel::library::{Body, Library, Prepared};

const DOING: &str = "launching a Vulkan kernel";
/// The language that wins where a kernel comes in it.
pub(super) const OWN: Option<Language> = Some(Language::SpirV);

/// Records a launch. The driver keeps the buffers until it has run.
pub(super) fn launch(
    shared: &Shared,
    library: &Library,
    stream: &Stream,
    launch: &Launch<'_, Buffer>,
) -> Result<()> {
    let physical = &shared.core.physical;
    let align = physical.storage_align_bytes.max(1);
    let Some(prepared) = library.prepare(launch, BackendKind::Vulkan, OWN, align)? else { return Ok(()) };
    check_grid(physical, &prepared)?;
    let name = launch.kernel.name();
    let scalars_bytes = u32::try_from(prepared.scalars.len()).unwrap_or(u32::MAX);
    let bindings: Vec<u32> = prepared.ranges.iter().map(|(binding, _)| *binding).collect();
    let entry = match &prepared.body {
        Body::Wgsl(module) => {
            check_program(physical, module.program(), name)?;
            module.program().entry.as_str()
        }
        Body::Own(source) => source.entry.as_str(),
    };
    let words = || words(&prepared.body, name);
    let origin = prepared.body.origin();
    let pipeline = shared.pipelines.get(
        &shared.core,
        &Request { origin: &origin, words: &words, entry, bindings: &bindings, scalars_bytes },
    )?;
    let buffers = buffers(physical, &prepared, launch)?;
    let mut scalars = prepared.scalars;
    scalars.resize(scalars.len().next_multiple_of(4), 0);
    stream.launch(&Run {
        pipeline: &pipeline,
        buffers: &buffers,
        scalars: &scalars,
        groups: prepared.groups,
    })?;
    Ok(())
}

/// A kernel as SPIR-V.
fn words<'b>(body: &'b Body, name: &str) -> Result<Cow<'b, [u32]>> {
    match body {
        Body::Wgsl(module) => module.spirv().map(Cow::Borrowed).map_err(|refusal| {
            let error = Error::unsupported(BackendKind::Vulkan, "kernel_construct");
            error.with("kernel", name.to_owned()).because(refusal)
        }),
        Body::Own(source) => {
            let (words, rest) = source.text.as_chunks();
            if !rest.is_empty() {
                let error = Error::new(ErrorKind::InvalidArgument, DOING).with("kernel", name.to_owned());
                return Err(error.with("because", "SPIR-V is words of four bytes"));
            }
            Ok(words.iter().map(|word| u32::from_ne_bytes(*word)).collect())
        }
    }
}

fn too_large(need: u64, max: u64, limit: &'static str) -> Error {
    Error::new(ErrorKind::TooLarge { need, max }, DOING).with("limit", limit)
}

fn check_grid(physical: &Physical, prepared: &Prepared) -> Result<()> {
    let bounds = physical.bounds;
    for side in 0..3 {
        let (groups, group) = (prepared.groups[side], prepared.group[side]);
        if groups > bounds.groups[side] {
            return Err(too_large(groups.into(), bounds.groups[side].into(), "maxComputeWorkGroupCount"));
        }
        if group > bounds.group[side] {
            return Err(too_large(group.into(), bounds.group[side].into(), "maxComputeWorkGroupSize"));
        }
    }
    let threads: u64 = prepared.group.iter().map(|side| u64::from(*side)).product();
    if threads > bounds.group_threads.into() {
        return Err(too_large(threads, bounds.group_threads.into(), "maxComputeWorkGroupInvocations"));
    }
    Ok(())
}

/// Whether the device has the kinds of numbers and the memory that a kernel uses.
fn check_program(physical: &Physical, program: &Program, name: &str) -> Result<()> {
    let features = physical.features;
    let lacks = [
        (Kind::F64, features.f64, "shaderFloat64"),
        (Kind::I64, features.i64, "shaderInt64"),
        (Kind::U64, features.i64, "shaderInt64"),
        (Kind::F16, features.f16 && features.storage_16, "shaderFloat16 and storageBuffer16BitAccess"),
    ];
    for (kind, has, feature) in lacks {
        if !has && program.uses(kind) {
            return Err(Error::unsupported(BackendKind::Vulkan, "kernel_number")
                .with("kernel", name.to_owned())
                .with("kind", format_args!("{kind:?}"))
                .with("missing", feature));
        }
    }
    if program.group_bytes > physical.bounds.group_bytes {
        let max = physical.bounds.group_bytes.into();
        return Err(too_large(program.group_bytes.into(), max, "maxComputeSharedMemorySize"));
    }
    Ok(())
}

fn buffers(
    physical: &Physical,
    prepared: &Prepared,
    launch: &Launch<'_, Buffer>,
) -> Result<Vec<(u32, vk::DescriptorBufferInfo)>> {
    let mut infos = Vec::with_capacity(prepared.ranges.len());
    for (binding, range) in &prepared.ranges {
        let LaunchArgument::Memory { buffer, .. } = &launch.arguments[range.argument] else { continue };
        let align = physical.storage_align_bytes.max(1);
        if range.offset_bytes % align != 0 {
            let kind = ErrorKind::Misaligned { value: range.offset_bytes, align };
            return Err(Error::new(kind, DOING)
                .with("argument", range.argument)
                .with("limit", "minStorageBufferOffsetAlignment"));
        }
        let len_bytes = range.len_bytes.next_multiple_of(4).max(4);
        if len_bytes > physical.binding_bytes_max {
            return Err(too_large(len_bytes, physical.binding_bytes_max, "maxStorageBufferRange")
                .with("argument", range.argument));
        }
        let info =
            vk::DescriptorBufferInfo { buffer: buffer.raw(), offset: range.offset_bytes, range: len_bytes };
        infos.push((*binding, info));
    }
    Ok(infos)
}
