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
