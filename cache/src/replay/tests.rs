use super::*;
use crate::policy::{PolicyKind, Scope};

/// 3 layers × 4 experts, 5 steps, two experts an event: 30 accesses.
const STEPS: [[[u32; 2]; 3]; 5] = [
    [[0, 1], [0, 1], [2, 3]],
    [[0, 2], [0, 1], [2, 0]],
    [[0, 1], [2, 3], [2, 3]],
    [[0, 1], [0, 1], [2, 3]],
    [[3, 0], [0, 3], [1, 2]],
];

fn toy() -> Routing {
    let mut prompt = Prompt::new(3);
    for step in STEPS {
        for (experts, layer) in step.into_iter().zip(0..) {
            prompt.push(experts.map(|expert| layer * 4 + expert));
        }
    }
    Routing { layers: 3, experts: 4, expert_bytes: vec![10, 20, 30], prompts: vec![prompt] }
}

fn run(policy: PolicyKind, slots: usize, scope: Scope, inserts_max: Option<usize>) -> Outcome {
    let options = Options { slots, policy, scope, inserts_max, weigh_bytes: false };
    replay(&toy().events(1, 1), &options).expect("can be replayed")
}

/// LRU per layer with two slots each, by hand. Contents after each step, hits in brackets:
///
/// | step | layer 0         | layer 1         | layer 2         | hits |
/// |------|-----------------|-----------------|-----------------|------|
/// | 0    | {0,1}: 0 1 (0)  | {0,1}: 0 1 (0)  | {2,3}: 2 3 (0)  | 0    |
/// | 1    | {0,2}: 0 2 (1)  | {0,1}: 0 1 (2)  | {2,0}: 2 0 (1)  | 4    |
/// | 2    | {0,1}: 0 1 (1)  | {2,3}: 2 3 (0)  | {2,3}: 2 3 (1)  | 2    |
/// | 3    | {0,1}: 0 1 (2)  | {0,1}: 0 1 (0)  | {2,3}: 2 3 (2)  | 4    |
/// | 4    | {3,0}: 0 3 (1)  | {0,3}: 0 3 (1)  | {1,2}: 2 1 (1)  | 3    |
#[test]
fn toy_vector_by_hand() {
    let outcome = run(PolicyKind::Lru, 6, Scope::Layer, None);
    assert_eq!((outcome.events, outcome.tokens, outcome.requested), (15, 5, 30));
    assert_eq!((outcome.hits, outcome.misses, outcome.loads), (13, 17, 17));
    // First uses: 0 1 2 3 of layer 0, 0 1 2 3 of layer 1, 2 3 0 1 of layer 2.
    assert_eq!(outcome.cold_misses, 12);
    assert_eq!(outcome.evictions, 17 - 6);
    // Layer 0 loads 2+1+1+0+1, layer 1 2+0+2+2+1, layer 2 2+1+1+0+1.
    assert_eq!(outcome.loaded_bytes, 5 * 10 + 7 * 20 + 5 * 30);
    assert!((outcome.hit_rate() - 13.0 / 30.0).abs() < 1e-12);
    assert!((outcome.bytes_per_token() - 340.0 / 5.0).abs() < 1e-12);
}

/// LRU over all layers with six slots is one round of two an event: everything leaves just before it is wanted, but for
/// what the event itself still found. By hand: after step 0 the pool is full with that step's six; step 1 layer 0 wants
/// 0 and 2: 0 is there (the oldest, but a member), 2 takes the place of 1; layer 1 finds both; layer 2 wants 2 and 0: 2
/// is there, 3 leaves. Step 2: layer 0 finds 0, 1 takes the place of 2 (used a round ago); layer 1 finds neither, and
/// takes its own old two; layer 2 finds 2. So the sets' own layer is always the oldest, as per layer.
#[test]
fn toy_vector_over_all_layers() {
    assert_eq!(run(PolicyKind::Lru, 6, Scope::Global, None).hits, 13);
}

#[test]
fn belady_by_hand_and_above_every_policy() {
    let events = toy().events(1, 1);
    let fair = |slots, scope| belady(&events, slots, scope, Bypass::Never).expect("can be replayed");
    // Layer 0: 0 stays; with {0,1} held, {0,2} must take 1's slot: 1 of 2; then {0,1}: 1, {0,1}: 2, {3,0}: 1. Layer 1: 2,
    // 0, 0, 1. Layer 2: 1, 1, 2, 1. No choice is ever left with two slots and sets of two: as LRU.
    assert_eq!(fair(6, Scope::Layer).hits, 13);
    let bypass = belady(&events, 6, Scope::Layer, Bypass::Allowed).expect("can be replayed");
    // With bypass layer 0 keeps {0,1} beside 2 (step 2 hits both: 1 more), layer 1 keeps {0,1} beside {2,3} (step 3
    // hits both: 2 more), layer 2 keeps {2,3} beside 0 (step 2 hits both: 1 more).
    assert_eq!(bypass.hits, 17);
    for slots in [2, 3, 5, 6, 9, 12] {
        let best = fair(slots, Scope::Global);
        for policy in PolicyKind::ALL {
            let outcome = run(policy, slots, Scope::Global, None);
            assert!(outcome.hits <= best.hits, "{policy} with {slots} slots");
            assert_eq!(outcome.hits + outcome.misses, outcome.requested);
            assert_eq!(outcome.loads, outcome.misses);
        }
    }
    assert_eq!(fair(12, Scope::Global).hits, 30 - 12, "only the first uses miss");
}

#[test]
fn frozen_set_by_hand() {
    // Uses: layer 0: 5 3 1 1, layer 1: 4 3 1 2, layer 2: 1 1 5 3. The best two are the fives: 4 hits each.
    let outcome = frozen_best(&toy().events(1, 1), 2);
    assert_eq!((outcome.hits, outcome.misses, outcome.loads, outcome.loaded_bytes), (8, 22, 2, 40));
}

#[test]
fn an_insert_cap_limits_loads_not_misses() {
    let outcome = run(PolicyKind::Lru, 6, Scope::Layer, Some(1));
    assert!(outcome.loads <= outcome.events && outcome.loads < outcome.misses);
    assert_eq!(outcome.hits + outcome.misses, 30);
    let none = run(PolicyKind::Forecast, 6, Scope::Global, Some(0));
    assert_eq!((none.hits, none.loads, none.loaded_bytes), (0, 0, 0));
}

#[test]
fn sets_wider_than_the_pool_are_served_and_counted() {
    for policy in PolicyKind::ALL {
        let outcome = run(policy, 1, Scope::Global, None);
        assert_eq!(outcome.loads, outcome.misses, "{policy}");
        assert!(outcome.overflows >= 15, "{policy}: the second member of every event has no slot");
    }
    let refused = |slots, scope| {
        replay(
            &toy().events(1, 1),
            &Options { slots, policy: PolicyKind::Lru, scope, inserts_max: None, weigh_bytes: false },
        )
    };
    assert_eq!(refused(0, Scope::Global), Err(ReplayError::NoSlots));
    assert_eq!(refused(2, Scope::Layer), Err(ReplayError::SharesTooSmall { slots: 2, layers: 3 }));
}

#[test]
fn batches_replace_prompts_and_tokens_are_joined() {
    let mut routing = toy();
    let mut short = Prompt::new(3);
    for layer in 0..3 {
        short.push([layer * 4 + 3]);
    }
    routing.prompts.insert(0, short.clone());
    routing.prompts.push(short);
    let events = routing.events(2, 1);
    // The first short one runs beside step 0, the last one takes its place beside step 1.
    assert_eq!((events.len(), events.tokens), (15, 7));
    let sets: Vec<&[u32]> = events.sets().collect();
    assert_eq!(sets[0], [0, 1, 3]);
    assert_eq!(sets[2], [10, 11], "a member of both counts once");
    assert_eq!(sets[3], [0, 2, 3]);
    assert_eq!(sets[6], [0, 1]);
    let joined = toy().events(1, 2);
    let sets: Vec<&[u32]> = joined.sets().collect();
    assert_eq!((joined.len(), joined.tokens), (9, 5));
    assert_eq!(sets[0], [0, 1, 2]);
    assert_eq!(sets[6], [0, 3], "the last event of a prompt is shorter");
}

#[test]
fn a_trace_is_cut_after_tokens_of_all_prompts() {
    let twice = || {
        let mut routing = toy();
        routing.prompts.push(routing.prompts[0].clone());
        routing
    };
    for most in 0..12 {
        let mut cut = twice();
        cut.cut(most);
        assert_eq!(cut.tokens(), most.min(10));
        assert_eq!(cut.prompts.len(), most.min(10).div_ceil(5));
        let (whole, cut) = (twice().events(1, 1), cut.events(1, 1));
        assert!(whole.sets().zip(cut.sets()).all(|(whole, cut)| whole == cut));
        assert_eq!(cut.len(), 3 * most.min(10));
    }
}
