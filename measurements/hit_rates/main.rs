//! What does each policy reach on recorded routing, at every size, and how far is that from the optimum?
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a measurement prints what it found")]

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use spoc_cache::policy::{PolicyKind, Scope};
use spoc_cache::replay::{Bypass, Events, Options, Routing, belady, frozen_best, replay};
use spoc_tools::replay::{read_trace, slots_of};

/// Replays every trace at every size with every policy.
#[derive(Debug, Parser)]
struct Args {
    /// The folder with `gptoss20b` and `bigmoeonedge`.
    #[arg(long, env = "SPOC_TRACES")]
    traces: PathBuf,
    /// Threads to spread the rows over.
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// One line of the table.
struct Row {
    name: String,
    events: Events,
    part: f64,
    scope: Scope,
}

/// Columns after the name: the policies, the optimum twice, the frozen set.
const COLUMNS: usize = PolicyKind::ALL.len() + 3;

fn main() -> Result<()> {
    let args = Args::parse();
    let load = |name: &str| read_trace(&args.traces.join(name)).with_context(|| name.to_owned());
    let small = load("gptoss20b/select32.u8.gz")?;
    let names = ["qwen", "gemma", "gptoss"];
    let single = names.map(|name| load(&format!("bigmoeonedge/{name}.route.csv")));
    let [qwen, gemma, large] = single;
    let (qwen, gemma, large) = (qwen?, gemma?, large?);

    println!("Union hit %, event-atomic, cold start, decode only, every expert one slot.");
    println!("even, odd: every second prompt, from the first or the second one.\n");
    let mut rows = Vec::new();
    for (batch, tokens, parts) in
        [(1, 1, &[0.156, 0.25, 0.406][..]), (4, 1, &[0.25]), (8, 1, &[0.25, 0.406]), (1, 4, &[0.25])]
    {
        for (half, wanted) in [("", None), (" even", Some(0)), (" odd", Some(1))] {
            let routing = small.only(|number| wanted.is_none_or(|rest| number % 2 == rest));
            rows.extend(rows_of(
                &format!("gpt-oss-20b{half}"),
                &routing,
                batch,
                tokens,
                parts,
                Scope::Global,
            ));
        }
    }
    rows.extend(rows_of("gpt-oss-20b", &small, 1, 1, &[0.25], Scope::Layer));
    for (name, routing) in [("Qwen3-30B", &qwen), ("gemma-4-26B", &gemma), ("gpt-oss-120b", &large)] {
        rows.extend(rows_of(name, routing, 1, 1, &[0.031, 0.062, 0.125, 0.25, 0.5], Scope::Global));
        rows.extend(rows_of(name, routing, 1, 4, &[0.125], Scope::Global));
        rows.extend(rows_of(name, routing, 1, 1, &[0.125], Scope::Layer));
    }
    print_table(&rows, &fill(&rows, args.threads));
    print_capped(&qwen)
}

fn rows_of(
    name: &str,
    routing: &Routing,
    batch: usize,
    tokens: usize,
    parts: &[f64],
    scope: Scope,
) -> Vec<Row> {
    let events = routing.events(batch, tokens);
    let scope_name = if scope == Scope::Layer { " per layer" } else { "" };
    let row = |&part: &f64| Row {
        name: format!("{name} B={batch} N={tokens} {:.1} %{scope_name}", 100.0 * part),
        events: events.clone(),
        part,
        scope,
    };
    parts.iter().map(row).collect()
}

/// Every cell, the rows spread over the threads.
fn fill(rows: &[Row], threads: usize) -> Vec<[f64; COLUMNS]> {
    let next = AtomicUsize::new(0);
    let cells = Mutex::new(vec![[f64::NAN; COLUMNS]; rows.len()]);
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(row) = rows.get(at) else { return };
                    let figures = cells_of(row);
                    if let Ok(mut cells) = cells.lock() {
                        cells[at] = figures;
                    }
                }
            });
        }
    });
    cells.into_inner().unwrap_or_default()
}

fn cells_of(row: &Row) -> [f64; COLUMNS] {
    let slots = slots_of(row.part, row.events.item_count());
    let mut cells = [f64::NAN; COLUMNS];
    for (cell, policy) in cells.iter_mut().zip(PolicyKind::ALL) {
        let options = Options { slots, policy, scope: row.scope, inserts_max: None, weigh_bytes: false };
        *cell = replay(&row.events, &options).map_or(f64::NAN, |outcome| 100.0 * outcome.hit_rate());
    }
    for (cell, bypass) in cells[PolicyKind::ALL.len()..].iter_mut().zip([Bypass::Never, Bypass::Allowed]) {
        let best = belady(&row.events, slots, row.scope, bypass);
        *cell = best.map_or(f64::NAN, |outcome| 100.0 * outcome.hit_rate());
    }
    cells[COLUMNS - 1] = 100.0 * frozen_best(&row.events, slots).hit_rate();
    cells
}

/// The last column is the part of the way from cycle to the optimum that the default policy goes.
fn print_table(rows: &[Row], cells: &[[f64; COLUMNS]]) {
    print!("{:40}", "");
    for name in
        PolicyKind::ALL.map(PolicyKind::as_str).into_iter().chain(["belady", "bypass", "frozen", "way"])
    {
        print!("{name:>10}");
    }
    println!();
    for (row, cells) in rows.iter().zip(cells) {
        print!("{:40}", row.name);
        cells.iter().for_each(|cell| print!("{cell:10.2}"));
        let [cycle, own, best] =
            [PolicyKind::Cycle as usize, PolicyKind::Forecast as usize, PolicyKind::ALL.len()];
        println!("{:8.0} %", 100.0 * (cells[own] - cells[cycle]) / (cells[best] - cells[cycle]));
    }
}

/// What a bound on loads costs.
fn print_capped(qwen: &Routing) -> Result<()> {
    println!("\nQwen3-30B, 12.5 %, at most so many loads a layer and step");
    let events = qwen.events(1, 1);
    let slots = slots_of(0.125, events.item_count());
    for policy in [PolicyKind::Cycle, PolicyKind::Forecast] {
        for inserts_max in [None, Some(1), Some(2)] {
            let options = Options { slots, policy, scope: Scope::Global, inserts_max, weigh_bytes: false };
            let outcome = replay(&events, &options)?;
            println!(
                "{policy:10} {:10} {:6.2} % hits, {:6.1} loads and {:6.1} MB a token",
                inserts_max.map_or_else(|| "all".to_owned(), |most| most.to_string()),
                100.0 * outcome.hit_rate(),
                outcome.loads as f64 / outcome.tokens as f64,
                outcome.bytes_per_token() / 1e6,
            );
        }
    }
    Ok(())
}
