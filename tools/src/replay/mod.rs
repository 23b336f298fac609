//! `spoc-loader replay`: what a policy would have done on recorded routing.

pub mod args;
mod build;
mod csv;
mod device;
mod experts;
mod lines;
mod packed;

use std::fmt::{self, Write};
use std::path::Path;

use serde::Serialize;
use spoc_cache::policy::Scope;
use spoc_cache::replay::{Bypass, Events, Options, Outcome, Routing, belady, frozen_best, replay};

use crate::failure::{Failure, Result};
use crate::out::Out;
use args::{Prompts, ReplayArgs};

/// Reads a trace, whatever its format: by its name, docs/traces.md says which.
///
/// # Errors
/// The file cannot be read, or is not what its name says: one line with the place.
pub fn read_trace(path: &Path) -> Result<Routing> {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
    match () {
        () if name.ends_with(".csv") => csv::read(path),
        () if name.ends_with(".jsonl") || name.ends_with(".ndjson") => lines::read(path),
        () if name.ends_with(".u8.gz") || name.ends_with(".index.json") => packed::read(path),
        () => Err(Failure::usage(format_args!(
            "{}: not a trace by its name: .jsonl, .ndjson, .csv or .u8.gz is expected",
            path.display()
        ))
        .at(path)),
    }
}

/// Runs the command.
///
/// # Errors
/// What reading the trace says, or a pool that cannot be.
pub fn run(args: &ReplayArgs, out: Out) -> Result<u8> {
    let mut routing = read_trace(&args.trace)?;
    match args.prompts {
        Prompts::All => {}
        Prompts::Even => routing = routing.only(|number| number % 2 == 0),
        Prompts::Odd => routing = routing.only(|number| number % 2 == 1),
    }
    if let Some(most) = args.tokens_max {
        routing.cut(most as usize);
    }
    let events = routing.events(args.batch as usize, args.tokens_per_event as usize);
    if events.is_empty() {
        return Err(Failure::new(
            "malformed_trace",
            format_args!("{}: no decoded token", args.trace.display()),
        )
        .at(&args.trace));
    }
    let mut report = Report::new(args, &routing, &events).map_err(Failure::usage)?;
    if args.device.is_some() {
        let known = !routing.expert_bytes.is_empty();
        report.device = Some(device::run(args, &events, (routing.experts, known), report.slots, out)?);
    }
    out.answer(&report, ToString::to_string);
    Ok(0)
}

/// What came of a replay.
#[derive(Debug, Serialize)]
struct Report {
    trace: Trace,
    policy: &'static str,
    scope: &'static str,
    slots: usize,
    capacity: f64,
    batch: u32,
    tokens_per_event: u32,
    inserts_max: Option<u32>,
    #[serde(flatten)]
    outcome: Figures,
    /// The optimum that knows the future; every member holds a slot.
    belady: Figures,
    /// The same, but a miss may be used without being kept.
    belady_bypass: Figures,
    /// The best set that never changes, its first loads counted as misses.
    frozen_best: Figures,
    /// Points of hit rate that the optimum is ahead.
    regret: f64,
    /// With `--device`: what came of running it.
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<device::Report>,
}

#[derive(Debug, Serialize)]
struct Trace {
    path: String,
    prompts: usize,
    layers: usize,
    experts: usize,
    expert_bytes_known: bool,
}

#[derive(Debug, Serialize)]
struct Figures {
    hit_rate: f64,
    events: u64,
    tokens: u64,
    requested: u64,
    hits: u64,
    misses: u64,
    cold_misses: u64,
    loads: u64,
    loaded_bytes: u64,
    bytes_per_token: f64,
    evictions: u64,
    overflows: u64,
}

impl From<Outcome> for Figures {
    fn from(outcome: Outcome) -> Figures {
        Figures {
            hit_rate: outcome.hit_rate(),
            events: outcome.events,
            tokens: outcome.tokens,
            requested: outcome.requested,
            hits: outcome.hits,
            misses: outcome.misses,
            cold_misses: outcome.cold_misses,
            loads: outcome.loads,
            loaded_bytes: outcome.loaded_bytes,
            bytes_per_token: outcome.bytes_per_token(),
            evictions: outcome.evictions,
            overflows: outcome.overflows,
        }
    }
}

/// Slots that a part of all items makes, at least one.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a part of a count
pub fn slots_of(part: f64, items: usize) -> usize {
    ((part * items as f64).round() as usize).max(1)
}

impl Report {
    fn new(
        args: &ReplayArgs,
        routing: &Routing,
        events: &Events,
    ) -> Result<Report, spoc_cache::replay::ReplayError> {
        let slots = match (args.slots, args.capacity) {
            (Some(slots), _) => slots as usize,
            (None, part) => slots_of(part.unwrap_or(1.0), events.item_count()),
        };
        let options = Options {
            slots,
            policy: args.policy,
            scope: args.scope,
            inserts_max: args.inserts_max.map(|most| most as usize),
            weigh_bytes: false,
        };
        let outcome = replay(events, &options)?;
        let best = belady(events, slots, args.scope, Bypass::Never)?;
        Ok(Report {
            trace: Trace {
                path: args.trace.to_string_lossy().into_owned(),
                prompts: routing.prompts.len(),
                layers: routing.layers,
                experts: routing.experts,
                expert_bytes_known: !routing.expert_bytes.is_empty(),
            },
            policy: args.policy.as_str(),
            scope: match args.scope {
                Scope::Global => "global",
                Scope::Layer => "layer",
            },
            slots,
            capacity: slots as f64 / events.item_count() as f64,
            batch: args.batch,
            tokens_per_event: args.tokens_per_event,
            inserts_max: args.inserts_max,
            regret: 100.0 * (best.hit_rate() - outcome.hit_rate()),
            outcome: outcome.into(),
            belady: best.into(),
            belady_bypass: belady(events, slots, args.scope, Bypass::Allowed)?.into(),
            frozen_best: frozen_best(events, slots).into(),
            device: None,
        })
    }

    fn per_token(&self, figures: &Figures) -> String {
        let loads = figures.loads as f64 / figures.tokens.max(1) as f64;
        if self.trace.expert_bytes_known {
            format!("{loads:.1} loads, {:.1} MB a token", figures.bytes_per_token / 1e6)
        } else {
            format!("{loads:.1} loads a token")
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { trace, outcome, belady, belady_bypass, frozen_best, .. } = self;
        writeln!(
            f,
            "trace     {} prompts, {} tokens, {} layers × {} experts",
            trace.prompts, outcome.tokens, trace.layers, trace.experts
        )?;
        let mut how = format!("{}, {}, {} slots", self.policy, self.scope, self.slots);
        let _ = write!(how, " ({:.1} % of all)", 100.0 * self.capacity);
        if self.batch > 1 {
            let _ = write!(how, ", {} prompts at a time", self.batch);
        }
        if self.tokens_per_event > 1 {
            let _ = write!(how, ", {} tokens an event", self.tokens_per_event);
        }
        if let Some(most) = self.inserts_max {
            let _ = write!(how, ", at most {most} loads a layer and step");
        }
        writeln!(f, "pool      {how}")?;
        writeln!(
            f,
            "hit rate  {:.2} % of {} wanted in {} events",
            100.0 * outcome.hit_rate,
            outcome.requested,
            outcome.events
        )?;
        writeln!(
            f,
            "misses    {} ({} cold), {} loads, {} evictions; {}",
            outcome.misses,
            outcome.cold_misses,
            outcome.loads,
            outcome.evictions,
            self.per_token(outcome)
        )?;
        if outcome.overflows > 0 {
            writeln!(f, "too wide  {} loads found no slot beside their own set", outcome.overflows)?;
        }
        writeln!(
            f,
            "belady    {:.2} % ({:.2} % where a miss need not be kept); {}",
            100.0 * belady.hit_rate,
            100.0 * belady_bypass.hit_rate,
            self.per_token(belady)
        )?;
        write!(
            f,
            "regret    {:.2} points behind belady; the best frozen set has {:.2} %",
            self.regret,
            100.0 * frozen_best.hit_rate
        )?;
        self.device.as_ref().map_or(Ok(()), |device| write!(f, "\n{}", device.lines()))
    }
}
