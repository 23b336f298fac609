//! Launches: what a kernel is given, held against the device's bounds.

use std::num::NonZeroU64;

use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{Error, ErrorKind, Language, Result};

use super::counters::add;
use super::memory::Buffer;
use super::pipeline::Request;
use super::stream::Stream;
use crate::kernel::ir::{Kind, Program};
use crate::kernel::library::{Body, Library, Prepared};
use crate::kernel::texts::ENTRY;

const DOING: &str = "launching a WebGPU kernel";
/// No language wins over WGSL: it is the API's own.
pub(super) const OWN: Option<Language> = None;

/// Records a launch. The driver keeps the buffers until it has run.
pub(super) fn launch(
    limits: &wgpu::Limits,
    library: &Library,
    stream: &Stream,
    launch: &Launch<'_, Buffer>,
) -> Result<()> {
    let queue = stream.queue();
    let device = &queue.device;
    let align = u64::from(limits.min_storage_buffer_offset_alignment.max(4));
    let Some(prepared) = library.prepare(launch, BackendKind::WebGpu, OWN, align)? else { return Ok(()) };
    check_grid(limits, &prepared)?;
    let name = launch.kernel.name();
    let Body::Wgsl(module) = &prepared.body else {
        return Err(Error::unsupported(BackendKind::WebGpu, "kernel_form").with("kernel", name.to_owned()));
    };
    check_program(device.features(), limits, module.program(), name)?;
    let text = module.wgsl().map_err(|refusal| {
        Error::unsupported(BackendKind::WebGpu, "kernel_construct")
            .with("kernel", name.to_owned())
            .because(refusal)
    })?;
    let mut scalars = prepared.scalars.clone();
    scalars.resize(scalars.len().next_multiple_of(4), 0);
    let request = Request {
        text,
        entry: ENTRY,
        checks: module.checks(),
        bindings: prepared.ranges.iter().map(|(binding, _)| *binding).collect(),
        scalars_bytes: u32::try_from(scalars.len()).unwrap_or(u32::MAX),
    };
    let pipeline = queue.pipelines.of_kernel(device, prepared.body.origin(), &request)?;
    let vectors = vectors(limits, &prepared, launch)?;
    let group = pipeline.bind(device, vectors.into_iter())?;
    stream.record(|batch| {
        batch.dispatch(&pipeline.raw, &group, &scalars, prepared.groups);
        batch.launched();
        Ok(())
    })?;
    add(&queue.counters.launches, 1);
    Ok(())
}

fn too_large(need: u64, max: u64, limit: &'static str) -> Error {
    Error::new(ErrorKind::TooLarge { need, max }, DOING).with("limit", limit)
}

fn check_grid(limits: &wgpu::Limits, prepared: &Prepared) -> Result<()> {
    let sides = [
        (limits.max_compute_workgroup_size_x, "maxComputeWorkgroupSizeX"),
        (limits.max_compute_workgroup_size_y, "maxComputeWorkgroupSizeY"),
        (limits.max_compute_workgroup_size_z, "maxComputeWorkgroupSizeZ"),
    ];
    let groups_max = limits.max_compute_workgroups_per_dimension;
    for (side, (group_max, limit)) in sides.into_iter().enumerate() {
        let (groups, group) = (prepared.groups[side], prepared.group[side]);
        if groups > groups_max {
            return Err(too_large(groups.into(), groups_max.into(), "maxComputeWorkgroupsPerDimension"));
        }
        if group > group_max {
            return Err(too_large(group.into(), group_max.into(), limit));
        }
    }
    let threads: u64 = prepared.group.iter().map(|side| u64::from(*side)).product();
    let threads_max = limits.max_compute_invocations_per_workgroup.into();
    if threads > threads_max {
        return Err(too_large(threads, threads_max, "maxComputeInvocationsPerWorkgroup"));
    }
    Ok(())
}

/// Whether the device has the kinds of numbers and the memory that a kernel uses.
fn check_program(
    features: wgpu::Features,
    limits: &wgpu::Limits,
    program: &Program,
    name: &str,
) -> Result<()> {
    let lacks = [
        (Kind::F64, wgpu::Features::SHADER_F64, "SHADER_F64"),
        (Kind::I64, wgpu::Features::SHADER_INT64, "SHADER_INT64"),
        (Kind::U64, wgpu::Features::SHADER_INT64, "SHADER_INT64"),
        (Kind::F16, wgpu::Features::SHADER_F16, "shader-f16"),
    ];
    for (kind, feature, feature_name) in lacks {
        if !features.contains(feature) && program.uses(kind) {
            return Err(Error::unsupported(BackendKind::WebGpu, "kernel_number")
                .with("kernel", name.to_owned())
                .with("kind", format_args!("{kind:?}"))
                .with("missing", feature_name));
        }
    }
    let group_max = limits.max_compute_workgroup_storage_size;
    if program.group_bytes > group_max {
        return Err(too_large(
            program.group_bytes.into(),
            group_max.into(),
            "maxComputeWorkgroupStorageSize",
        ));
    }
    Ok(())
}

fn vectors<'b>(
    limits: &wgpu::Limits,
    prepared: &Prepared,
    launch: &Launch<'b, Buffer>,
) -> Result<Vec<(u32, wgpu::BufferBinding<'b>)>> {
    let align = u64::from(limits.min_storage_buffer_offset_alignment.max(4));
    let max = limits.max_storage_buffer_binding_size;
    let mut bound = Vec::with_capacity(prepared.ranges.len());
    for (binding, range) in &prepared.ranges {
        let LaunchArgument::Memory { buffer, .. } = &launch.arguments[range.argument] else { continue };
        if range.offset_bytes % align != 0 {
            let kind = ErrorKind::Misaligned { value: range.offset_bytes, align };
            return Err(Error::new(kind, DOING)
                .with("argument", range.argument)
                .with("limit", "minStorageBufferOffsetAlignment"));
        }
        let len_bytes = range.len_bytes.next_multiple_of(4).max(4);
        if len_bytes > max {
            return Err(
                too_large(len_bytes, max, "maxStorageBufferBindingSize").with("argument", range.argument)
            );
        }
        let size = NonZeroU64::new(len_bytes);
        bound
            .push((*binding, wgpu::BufferBinding { buffer: buffer.raw(), offset: range.offset_bytes, size }));
    }
    Ok(bound)
}
