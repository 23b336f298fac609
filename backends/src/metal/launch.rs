//! Launches: what a kernel is given, held against the device's bounds.

use spoc_driver::backend::{BackendKind, Launch, LaunchArgument};
use spoc_driver::{Error, ErrorKind, Language, Result};

use super::api::{Api, Physical, Run};
use super::device::{Shared, VECTOR_ALIGN_BYTES};
use super::memory::Buffer;
use super::stream::Stream;
use crate::kernel::library::{Body, Library, Prepared};
use crate::size::host_len;

const DOING: &str = "launching a Metal kernel";
/// No language wins over WGSL.
pub(super) const OWN: Option<Language> = None;

/// Encodes a launch. The driver keeps the buffers until it has run.
pub(super) fn launch<A: Api>(
    shared: &Shared<A>,
    library: &Library,
    stream: &Stream<A>,
    launch: &Launch<'_, Buffer<A>>,
) -> Result<()> {
    let prepared = library.prepare(launch, BackendKind::Metal, OWN, VECTOR_ALIGN_BYTES)?;
    let Some(prepared) = prepared else { return Ok(()) };
    let name = launch.kernel.name();
    check_grid(&shared.physical, &prepared)?;
    let Body::Wgsl(module) = &prepared.body else {
        return Err(Error::unsupported(BackendKind::Metal, "kernel_form").with("kernel", name.to_owned()));
    };
    let msl = module.msl().map_err(|refusal| {
        Error::unsupported(BackendKind::Metal, "kernel_construct")
            .with("kernel", name.to_owned())
            .because(refusal)
    })?;
    let pipeline = shared.pipelines.get(&shared.api, &shared.device, module, msl)?;
    let mut vectors = Vec::with_capacity(prepared.ranges.len());
    let mut bound = Vec::with_capacity(prepared.ranges.len());
    for (binding, range) in &prepared.ranges {
        let LaunchArgument::Memory { buffer, .. } = &launch.arguments[range.argument] else { continue };
        if range.offset_bytes % 4 != 0 {
            let kind = ErrorKind::Misaligned { value: range.offset_bytes, align: 4 };
            return Err(Error::new(kind, DOING).with("argument", range.argument));
        }
        let (offset, len) = (host_len(range.offset_bytes)?, host_len(range.len_bytes)?);
        vectors.push((*binding, &buffer.memory, offset, len));
        bound.push(buffer.id);
    }
    let size = |binding: &u32| {
        let vector = vectors.iter().find(|(known, ..)| known == binding);
        vector.map_or(0, |(.., len)| u32::try_from(*len).unwrap_or(u32::MAX))
    };
    let sizes: Vec<u32> = msl.sized_bindings.iter().map(size).collect();
    let mut scalars = prepared.scalars;
    // The text's structure may be longer than its numbers, by padding.
    scalars.resize(scalars.len().next_multiple_of(16), 0);
    let value = stream.launch(&Run {
        pipeline: &pipeline,
        vectors: &vectors,
        scalars: (msl.scalars_place, &scalars),
        sizes: (msl.sizes_place, &sizes),
        groups: prepared.groups,
        group: prepared.group,
    })?;
    for id in bound {
        shared.pending.bind(id, stream.lane(), value);
    }
    Ok(())
}

fn too_large(need: u64, max: u64, limit: &'static str) -> Error {
    Error::new(ErrorKind::TooLarge { need, max }, DOING).with("limit", limit)
}

fn check_grid(physical: &Physical, prepared: &Prepared) -> Result<()> {
    for side in 0..3 {
        let (group, max) = (prepared.group[side], physical.group_max[side]);
        if group > max {
            return Err(too_large(group.into(), max.into(), "maxThreadsPerThreadgroup"));
        }
    }
    let threads: u64 = prepared.group.iter().map(|side| u64::from(*side)).product();
    let threads_max = u64::from(physical.group_max[0]);
    if threads > threads_max {
        return Err(too_large(threads, threads_max, "maxThreadsPerThreadgroup"));
    }
    if let Body::Wgsl(module) = &prepared.body {
        let (need, max) = (module.program().group_bytes, physical.group_bytes_max);
        if need > max {
            return Err(too_large(need.into(), max.into(), "maxThreadgroupMemoryLength"));
        }
    }
    Ok(())
}
