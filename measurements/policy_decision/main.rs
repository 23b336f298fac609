//! What does one miss cost in the policy alone, with 10,000 slots?
//!
//! Routing is made up: 60 layers of 256 experts, 8 an event, drawn with a Zipf-like slope whose favourites move. A
//! decision is choosing the victim of one miss and taking it out. The whole event is everything that a policy is asked:
//! the visit, the members that are there taken out, the victims, all members put back.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a measurement prints what it found")]

use std::time::{Duration, Instant};

use clap::Parser;
use spoc_cache::policy::{Policy, PolicyKind, Scope};
use spoc_measurements::machine::describe;
use spoc_measurements::stats::Summary;

/// Times every policy.
#[derive(Debug, Parser)]
struct Args {
    /// Slots of the pool.
    #[arg(long, default_value_t = 10_000)]
    slots: usize,
    /// Layers.
    #[arg(long, default_value_t = 60)]
    layers: u32,
    /// Experts of a layer.
    #[arg(long, default_value_t = 256)]
    experts: u32,
    /// Experts of an event.
    #[arg(long, default_value_t = 8)]
    top: usize,
    /// Tokens of one pass: short, so that some passes are not interrupted by others on the machine.
    #[arg(long, default_value_t = 10)]
    tokens: u32,
    /// Passes measured.
    #[arg(long, default_value_t = 99)]
    passes: usize,
}

/// Passes that are not counted: the pool fills.
const WARM: usize = 60;

struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// 0 to 1, small ones much more often.
    fn sloped(&mut self) -> f64 {
        let even = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        even * even * even
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a count")]
fn events(args: &Args, draw: &mut Draw, from_token: u32) -> Vec<Vec<u32>> {
    let mut events = Vec::new();
    for token in from_token..from_token + args.tokens {
        for layer in 0..args.layers {
            let mut set = Vec::with_capacity(args.top);
            while set.len() < args.top {
                let favourite = (draw.sloped() * f64::from(args.experts)) as u32;
                let expert = (favourite + layer * 31 + token / 8) % args.experts;
                let item = layer * args.experts + expert;
                if !set.contains(&item) {
                    set.push(item);
                }
            }
            events.push(set);
        }
    }
    events
}

struct Pool {
    resident: Vec<bool>,
    used: usize,
    slots: usize,
}

/// One pass. Answers the misses, and the time that choosing their victims took.
fn pass(policy: &mut dyn Policy, pool: &mut Pool, events: &[Vec<u32>]) -> (usize, Duration) {
    let (mut misses, mut choosing) = (0, Duration::ZERO);
    for set in events {
        policy.visit(set);
        for &item in set.iter().filter(|&&item| pool.resident[item as usize]) {
            policy.remove(item);
        }
        let began = Instant::now();
        for &item in set {
            if pool.resident[item as usize] {
                continue;
            }
            misses += 1;
            if pool.used == pool.slots
                && let Some(victim) = policy.victim_for(item)
            {
                policy.remove(victim);
                policy.left(victim);
                pool.resident[victim as usize] = false;
                pool.used -= 1;
            }
            pool.resident[item as usize] = true;
            pool.used += 1;
        }
        choosing += began.elapsed();
        set.iter().for_each(|&item| policy.insert(item));
    }
    (misses, choosing)
}

fn main() {
    let args = Args::parse();
    println!("{}", describe());
    println!(
        "{} slots, {} layers of {} experts, {} an event, {} tokens a pass",
        args.slots, args.layers, args.experts, args.top, args.tokens
    );
    for (scope, name) in [(Scope::Global, "global"), (Scope::Layer, "per layer")] {
        for kind in PolicyKind::ALL {
            let mut policy = kind.create_for(scope);
            let positions: Vec<u32> =
                (0..args.layers * args.experts).map(|item| item / args.experts).collect();
            policy.add_model(&positions);
            policy.set_capacity(args.slots);
            let mut pool = Pool { resident: vec![false; positions.len()], used: 0, slots: args.slots };
            let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
            let (mut decision, mut event) = (Vec::new(), Vec::new());
            let mut share = 0.0;
            // Full, and warm, before anything is counted.
            for number in 0..=args.passes + WARM {
                let token = u32::try_from(number).unwrap_or(0) * args.tokens;
                let events = events(&args, &mut draw, token);
                let began = Instant::now();
                let (misses, choosing) = pass(policy.as_mut(), &mut pool, &events);
                let ns = began.elapsed().as_nanos() as f64;
                if number > WARM {
                    decision.push(choosing.as_nanos() as f64 / misses.max(1) as f64);
                    event.push(ns / events.len() as f64);
                    share = misses as f64 / (events.len() * args.top) as f64;
                }
            }
            if let (Some(decision), Some(event)) = (Summary::of(&decision), Summary::of(&event)) {
                println!("{kind:10} {name:9} ns a miss  {decision}  ({:.0} % misses)", 100.0 * share);
                println!("{kind:10} {name:9} ns an event {event}");
            }
        }
    }
}
