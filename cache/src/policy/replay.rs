//! Event-atomic replay of a policy without device or disk, for the tests of the policies.

use super::Policy;

/// Hits of each event. All members are judged against the contents as the event began; room for the missing
/// ones is made without touching a member; then every member is resident.
pub(super) fn union_hits(
    policy: &mut dyn Policy,
    positions: &[u32],
    events: &[Vec<u32>],
    slots: usize,
) -> Vec<usize> {
    policy.add_model(positions);
    let mut resident = vec![false; positions.len()];
    let mut used = 0;
    let mut hits = Vec::with_capacity(events.len());
    for event in events {
        assert!(event.len() <= slots, "set wider than the pool");
        policy.visit(event);
        hits.push(event.iter().filter(|&&item| resident[item as usize]).count());
        for &item in event {
            policy.remove(item);
        }
        for &item in event {
            if resident[item as usize] {
                continue;
            }
            if used == slots {
                let victim = policy.victim().expect("room outside the set");
                policy.remove(victim);
                policy.left(victim);
                resident[victim as usize] = false;
                used -= 1;
            }
            resident[item as usize] = true;
            used += 1;
        }
        for &item in event {
            policy.insert(item);
        }
    }
    hits
}

/// Two layers of two items (0, 1 | 2, 3), three slots. By hand, with λ = 2^(−1/8) = 0.917 and scores rounded:
///
/// | event | lru: hits, leaves, contents (oldest first) | cycle: hits, leaves and why, contents            |
/// |-------|-----------------------------|-----------------------------------------------------------------|
/// | {0}   | 0 – 0                       | 0 – 0                                                           |
/// | {2,3} | 0 – 0 2 3                   | 0 – 0 2 3                                                       |
/// | {0,1} | 1, 2: 3 0 1                 | 1, 2 (2 and 3 both 1.0, lower number): 0 1 3                    |
/// | {2}   | 0, 3: 0 1 2                 | 0, 3 (0: 1.0, 1: 1 + 2λ = 2.8, 3: 2 + 2/λ = 4.2): 0 1 2         |
/// | {0}   | 1, –: 1 2 0                 | 1, –: 0 1 2                                                     |
/// | {2,3} | 1, 1: 0 2 3                 | 1, 1 (0: 1.0, 1: 1 + 4.0): 0 2 3                                |
/// | {1}   | 0, 0: 2 3 1                 | 0, 0 (0: 2 + 0.8, 2: 1.0, 3: 1 + 1.0): 1 2 3                    |
/// | {2}   | 1, –: 3 1 2                 | 1, –: 1 2 3                                                     |
/// | {0}   | 0, 3: 1 2 0                 | 0, 1 (1: 2 + 3.0, 2: 1.0, 3: 1 + 2.2): 0 2 3                    |
/// | {3}   | 0, 1: 2 0 3                 | 1, –: 0 2 3                                                     |
pub(super) fn toy_trace() -> (Vec<Vec<u32>>, Vec<u32>) {
    let events: [&[u32]; 10] = [&[0], &[2, 3], &[0, 1], &[2], &[0], &[2, 3], &[1], &[2], &[0], &[3]];
    (events.iter().map(|event| event.to_vec()).collect(), vec![0, 0, 1, 1])
}

mod real {
    use super::super::{Cycle, Lru, Policy};
    use super::union_hits;
    use std::path::Path;
    use std::process::Command;

    const LAYERS: u32 = 24;
    const EXPERTS: u32 = 32;
    const TOP: usize = 4;

    /// The events of the recorded routing, one a (token, layer), prompts one after another.
    fn events(folder: &Path) -> Option<Vec<Vec<u32>>> {
        let packed = folder.join("gptoss20b/select32.u8.gz");
        let raw =
            Command::new("gzip").arg("-dc").arg(packed).output().ok().filter(|out| out.status.success())?;
        let events = raw.stdout.chunks_exact(TOP).zip((0..LAYERS).cycle()).map(|(experts, layer)| {
            let mut set: Vec<u32> = experts.iter().map(|&e| layer * EXPERTS + u32::from(e)).collect();
            set.sort_unstable();
            set.dedup();
            set
        });
        Some(events.collect())
    }

    fn hit_percent(policy: &mut dyn Policy, events: &[Vec<u32>], slots: usize) -> f64 {
        let positions: Vec<u32> = (0..LAYERS * EXPERTS).map(|item| item / EXPERTS).collect();
        let hits: usize = union_hits(policy, &positions, events, slots).iter().sum();
        let wanted: usize = events.iter().map(Vec::len).sum();
        100.0 * f64::from(u32::try_from(hits).unwrap()) / f64::from(u32::try_from(wanted).unwrap())
    }

    /// Published figures of an independent simulator: 25 % of gpt-oss-20b's experts, one prompt at a time.
    #[test]
    fn recorded_routing_of_gpt_oss_20b() {
        let Some(folder) = std::env::var_os("SPOC_TRACES") else {
            println!("not run: SPOC_TRACES names no folder of traces");
            return;
        };
        let events = events(Path::new(&folder)).expect("gptoss20b/select32.u8.gz in SPOC_TRACES");
        let slots = (LAYERS * EXPERTS / 4) as usize;
        let lru = hit_percent(&mut Lru::default(), &events, slots);
        let cycle = hit_percent(&mut Cycle::new(8.0), &events, slots);
        println!("25 % of blocks: lru {lru:.2}, cycle {cycle:.2}");
        assert!((lru - 62.1).abs() < 0.2, "lru {lru:.2}");
        assert!((cycle - 69.6).abs() < 0.3, "cycle {cycle:.2}");
    }
}
