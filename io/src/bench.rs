//! How fast files come off their storage: whole files through a reader whose chunks are dropped at once.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::{
    AnonymousRegion, Extent, PlanBuilder, PlanOptions, ReadClass, ReadRequest, Reader, ReaderOptions,
    ReaderReport, Result, WeightFile,
};

/// What [`bench_read`] found.
#[derive(Clone, Debug)]
pub struct ReadBench {
    /// Bytes of the files.
    pub bytes: u64,
    /// From the submission of the plan to the last completion.
    pub elapsed: Duration,
    /// What the reader did, and why that way.
    pub report: ReaderReport,
}

impl ReadBench {
    /// Rate in units of 10⁹ bytes a second.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "a rate needs no more than 52 bits")]
    pub fn gb_per_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Reads whole files, of any format, through a region of `staging_bytes`. The region is made, and the reader
/// started, before the clock is.
///
/// # Errors
/// The first error of a file or a read; `staging_too_small`.
pub fn bench_read<P: AsRef<Path>>(
    paths: &[P],
    staging_bytes: usize,
    options: ReaderOptions,
) -> Result<ReadBench> {
    let files =
        paths.iter().map(|p| WeightFile::open(p.as_ref()).map(Arc::new)).collect::<Result<Vec<_>>>()?;
    let chunk_bytes = options.chunk_bytes;
    let region = Arc::new(AnonymousRegion::new(staging_bytes)?);
    let reader = Reader::start(region, options)?;
    let mut builder = PlanBuilder::new(&files, PlanOptions { chunk_bytes, ..PlanOptions::default() });
    for (number, file) in (0..).zip(&files) {
        builder.add(number, Extent { file: number, offset: 0, len_bytes: file.len_bytes() }, 0)?;
    }
    let plan = Arc::new(builder.build()?);
    let since = Instant::now();
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 })?;
    for (_, completion) in plan.reads().iter().zip(reader.completions()) {
        completion.outcome.map_err(|shared| (*shared).clone())?;
    }
    let elapsed = since.elapsed();
    Ok(ReadBench { bytes: plan.wanted_bytes(), elapsed, report: reader.report() })
}
