//! A model against its manifest, blocks and whole tensors, through the loader's own reader and to no device.

use std::sync::Arc;

use spoc_io::{
    AnonymousRegion, BlockDigests, Error, Manifest, Model, PlanBuilder, PlanOptions, ReadClass, ReadRequest,
    Reader, ReaderOptions,
};

use super::{Bad, whole::Whole};
use crate::cli::Io;
use crate::failure::Failure;
use crate::out::Out;
use crate::{progress, staging};

/// Reads and compares every tensor; the number of bytes. Goes on after a difference, to count them.
pub(super) fn verify(
    model: &Model,
    manifest: &Manifest,
    digests: &Arc<BlockDigests>,
    io: Io,
    out: Out,
) -> Result<u64, Bad> {
    let defaults = ReaderOptions { mode: io.into(), ..ReaderOptions::default() };
    let block = digests.block_bytes();
    let chunk = block.max(u64::from(defaults.chunk_bytes));
    let budget = staging::budget(None, 2 * chunk, 2)?.max(4 * chunk);
    let chunk_bytes = u32::try_from(chunk).map_err(Failure::usage)?;
    let options = ReaderOptions { chunk_bytes, check_threads: ReaderOptions::CHECK_THREADS, ..defaults };
    let region =
        AnonymousRegion::new(usize::try_from(budget).map_err(Failure::usage)?).map_err(Failure::from)?;
    let reader = Reader::start(Arc::new(region), options).map_err(Failure::from)?;
    let mut builder = PlanBuilder::new(model.files(), PlanOptions { chunk_bytes, ..PlanOptions::default() });
    builder.check_against(digests).map_err(Failure::from)?;
    for (target, tensor) in (0..).zip(model.tensors()) {
        builder.add(target, tensor.extent, 0).map_err(Failure::from)?;
    }
    let plan = Arc::new(builder.build().map_err(Failure::from)?);
    let bar = progress::bar("verifying", plan.wanted_bytes(), out.is_json());
    let request = ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 };
    reader.submit(request).map_err(Failure::from)?;
    let chunks = usize::try_from(budget / chunk).unwrap_or(usize::MAX);
    let mut whole = Whole::new(model, manifest, &plan, chunks);
    let (mut first, mut bad): (Option<Arc<Error>>, usize) = (None, 0);
    for _ in plan.reads() {
        let closed = |_| Failure::new("closed", "the reader has shut down");
        let completion = reader.completions().recv().map_err(closed)?;
        bar.inc(u64::from(plan.reads()[completion.read as usize].len_bytes));
        let (chunk, error) = match completion.outcome {
            Ok(chunk) => (Some(chunk), None),
            Err(error) => (None, Some(error)),
        };
        whole.take(completion.read, chunk);
        if let Some(error) = error {
            bad += 1;
            let place = |error: &Error| (error.file().map(ToOwned::to_owned), error.offset());
            if first.as_ref().is_none_or(|first| place(&error) < place(first)) {
                first = Some(error);
            }
        }
    }
    bar.finish_and_clear();
    let mut differ = whole.differ().into_iter();
    if let Some(first) = first {
        return Err(Bad { first: (*first).clone().into(), more: bad - 1 + differ.len() });
    }
    for file in model.files() {
        file.check_unchanged().map_err(Failure::from)?;
    }
    match differ.next() {
        Some(first) => Err(Bad { first, more: differ.len() }),
        None => Ok(plan.wanted_bytes()),
    }
}
