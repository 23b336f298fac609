//! How long opening a model and planning to read all of it take: `open_time MODEL`.

#![allow(clippy::print_stdout, reason = "an example prints")]

use std::sync::Arc;
use std::time::Instant;

use spoc_io::{
    AnonymousRegion, OpenOptions, PlanBuilder, PlanOptions, ReadClass, ReadRequest, Reader, ReaderOptions,
    open_model,
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: open_time MODEL")?;
    let region = Arc::new(AnonymousRegion::new(64 << 20)?);
    let since = Instant::now();
    let model = open_model(path.as_ref(), &OpenOptions::default())?;
    let opened = since.elapsed();
    let mut builder = PlanBuilder::new(model.files(), PlanOptions::default());
    for (target, tensor) in (0..).zip(model.tensors()) {
        builder.add(target, tensor.extent, 0)?;
    }
    let plan = Arc::new(builder.build()?);
    let planned = since.elapsed();
    let reader = Reader::start(region, ReaderOptions::default())?;
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 })?;
    let first = reader.completions().recv()?.outcome.is_ok();
    println!(
        "{} tensors in {} files: opened after {opened:?}, {} reads planned after {planned:?}, first bytes ({first}) after {:?}",
        model.tensors().len(),
        model.files().len(),
        plan.reads().len(),
        since.elapsed(),
    );
    Ok(())
}
