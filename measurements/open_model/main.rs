//! Question: how long from opening a large model to its first byte?
//!
//! Sparse files in the shape of 60 GB and 18,000 tensors, one file or sharded: the model is opened, everything of it is
//! planned, the plan is submitted, and the first chunk arrives. The reader runs before the clock does; what starting it
//! costs is told apart.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "printing its answer is what a measurement does")]

use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use spoc_io::{
    AnonymousRegion, OpenOptions, PlanBuilder, PlanOptions, ReadClass, ReadRequest, Reader, ReaderOptions,
    open_model,
};
use spoc_measurements::{cold, machine, stats::Summary};

/// How long from opening a large model to its first byte?
#[derive(Debug, Parser)]
struct Args {
    /// Where the sparse files are made; they take next to no room and are removed.
    folder: PathBuf,
    /// Tensors of the model.
    #[arg(long, default_value_t = 18_000)]
    tensors: usize,
    /// Bytes of the model.
    #[arg(long, default_value_t = 60_000_000_000)]
    bytes: u64,
    /// Files of the sharded one.
    #[arg(long, default_value_t = 13)]
    shards: usize,
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Headers out of the page cache before each round (root).
    #[arg(long)]
    cold: bool,
}

/// Where the time of one opening went.
struct Steps {
    open: Duration,
    plan: Duration,
    first: Duration,
}

impl Steps {
    fn total(&self) -> Duration {
        self.open + self.plan + self.first
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    println!("{}", json!({"machine": machine::describe(), "command": std::env::args().collect::<Vec<_>>()}));
    let folder = tempfile::Builder::new().prefix("spoc-open-").tempdir_in(&args.folder)?;
    let one = folder.path().join("one.safetensors");
    write_file(&one, 0..args.tensors, args.bytes / args.tensors as u64 / 2 * 2)?;
    let sharded = folder.path().join("sharded");
    write_shards(&sharded, &args)?;

    let began = Instant::now();
    let reader = Reader::start(Arc::new(AnonymousRegion::new(64 << 20)?), ReaderOptions::default())?;
    println!("{}", json!({"reader_start_ms": ms(began.elapsed())}));
    for (name, path) in [("one", &one), ("sharded", &sharded)] {
        let mut totals = Vec::new();
        for round in 0..args.rounds {
            if args.cold {
                cold::drop_caches()?;
            }
            let steps = opening(path, &reader)?;
            totals.push(ms(steps.total()));
            let line = json!({"model": name, "round": round, "open_ms": ms(steps.open),
                "plan_ms": ms(steps.plan), "first_ms": ms(steps.first), "total_ms": ms(steps.total())});
            println!("{line}");
        }
        let summary = Summary::of(&totals).context("no rounds")?;
        println!("{name:8} ms to the first byte: {summary}");
    }
    Ok(())
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Opens, plans, submits, and waits for the first chunk; the rest is cancelled.
fn opening(path: &Path, reader: &Reader) -> Result<Steps> {
    let began = Instant::now();
    let model = open_model(path, &OpenOptions::default())?;
    let open = began.elapsed();

    let began = Instant::now();
    let mut builder = PlanBuilder::new(model.files(), PlanOptions::default());
    for (target, tensor) in (0u32..).zip(model.tensors()) {
        builder.add(target, tensor.extent, 0)?;
    }
    let plan = Arc::new(builder.build()?);
    let planned = began.elapsed();

    let began = Instant::now();
    let request = ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 };
    let id = reader.submit(request)?;
    reader.completions().recv()?.outcome.map_err(|error| (*error).clone())?;
    let first = began.elapsed();
    reader.cancel(id);
    for _ in 1..plan.reads().len() {
        // Cancelled ones are errors, and nothing else is asked of them.
        let _ = reader.completions().recv()?.outcome;
    }
    Ok(Steps { open, plan: planned, first })
}

/// A header in front of a hole.
fn write_file(path: &Path, tensors: std::ops::Range<usize>, each_bytes: u64) -> Result<()> {
    let mut header = String::from("{");
    let first = tensors.start;
    let count = tensors.len() as u64;
    for number in tensors {
        let (layer, part) = (number / 384, number % 384);
        let start = (number - first) as u64 * each_bytes;
        let end = start + each_bytes;
        let comma = if number == first { "" } else { "," };
        write!(
            header,
            r#"{comma}"model.layers.{layer}.mlp.experts.{part}.down_proj.weight":{{"dtype":"BF16","shape":[1,{}],"data_offsets":[{start},{end}]}}"#,
            each_bytes / 2
        )?;
    }
    header.push('}');
    header.extend(std::iter::repeat_n(' ', header.len().next_multiple_of(8) - header.len()));
    let file = File::create(path).with_context(|| format!("making {}", path.display()))?;
    file.write_all_at(&(header.len() as u64).to_le_bytes(), 0)?;
    file.write_all_at(header.as_bytes(), 8)?;
    file.set_len(8 + header.len() as u64 + count * each_bytes)?;
    file.sync_all()?;
    Ok(())
}

fn write_shards(folder: &Path, args: &Args) -> Result<()> {
    std::fs::create_dir(folder)?;
    let per = args.tensors.div_ceil(args.shards);
    let each_bytes = args.bytes / args.tensors as u64 / 2 * 2;
    let mut map = serde_json::Map::new();
    for shard in 0..args.shards {
        let name = format!("model-{:05}-of-{:05}.safetensors", shard + 1, args.shards);
        let tensors = shard * per..((shard + 1) * per).min(args.tensors);
        write_file(&folder.join(&name), tensors.clone(), each_bytes)?;
        for number in tensors {
            let (layer, part) = (number / 384, number % 384);
            map.insert(
                format!("model.layers.{layer}.mlp.experts.{part}.down_proj.weight"),
                name.clone().into(),
            );
        }
    }
    let index = json!({"metadata": {"total_size": each_bytes * args.tensors as u64}, "weight_map": map});
    std::fs::write(folder.join("model.safetensors.index.json"), index.to_string())?;
    Ok(())
}
