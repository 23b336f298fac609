//! A model against the blocks of its manifest, through the loader's own reader and to no device.

use std::sync::Arc;

use spoc_io::{
    AnonymousRegion, BlockDigests, Error, Model, PlanBuilder, PlanOptions, ReadClass, ReadRequest, Reader,
    ReaderOptions,
};

use super::Bad;
use crate::cli::Io;
use crate::failure::Failure;
use crate::out::Out;
use crate::{progress, staging};

/// Reads and compares every tensor; the number of bytes. Goes on after a difference, to count them.
pub(super) fn verify(model: &Model, digests: &Arc<BlockDigests>, io: Io, out: Out) -> Result<u64, Bad> {
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
    let (mut first, mut bad): (Option<Arc<Error>>, usize) = (None, 0);
    for _ in plan.reads() {
        let closed = |_| Failure::new("closed", "the reader has shut down");
        let completion = reader.completions().recv().map_err(closed)?;
        bar.inc(u64::from(plan.reads()[completion.read as usize].len_bytes));
        if let Err(error) = completion.outcome {
            bad += 1;
            let place = |error: &Error| (error.file().map(ToOwned::to_owned), error.offset());
            if first.as_ref().is_none_or(|first| place(&error) < place(first)) {
                first = Some(error);
            }
        }
    }
    bar.finish_and_clear();
    match first {
        Some(first) => Err(Bad { first: (*first).clone().into(), more: bad - 1 }),
        None => {
            for file in model.files() {
                file.check_unchanged().map_err(Failure::from)?;
            }
            Ok(plan.wanted_bytes())
        }
    }
}
