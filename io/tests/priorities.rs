//! Who goes first: demand before prefetch before refill, and nobody for ever last.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod common;

use std::time::{Duration, Instant};

use common::{Fixture, next, reader, submit};
use spoc_io::ReadClass::{Demand, Prefetch, Refill};
use spoc_io::{Completion, ErrorKind, IoMode, Reader, ReaderOptions};

/// Both lanes; one thread each, so that the order of completions is that of the starts.
const ONE_AT_A_TIME: [fn() -> ReaderOptions; 2] = [
    || ReaderOptions { mode: IoMode::Direct, depth: 1, ..ReaderOptions::default() },
    || ReaderOptions { mode: IoMode::Pread, threads: 1, ..ReaderOptions::default() },
];

/// A reader whose only chunk is held by the completion: nothing starts until that is dropped.
fn stopped(fixture: &Fixture, options: ReaderOptions) -> (Reader, Completion) {
    let reader = reader(1, options);
    submit(&reader, &fixture.plan(0, 1), Demand, 0);
    let held = next(&reader);
    (reader, held)
}

fn tokens(reader: &Reader, count: usize) -> Vec<u64> {
    (0..count).map(|_| next(reader)).map(|c| c.outcome.map(|_| c.token).unwrap()).collect()
}

#[test]
fn classes_go_by_urgency_and_inside_a_class_who_came_first() {
    let fixture = Fixture::new(8);
    for options in ONE_AT_A_TIME {
        let (reader, held) = stopped(&fixture, options());
        for (token, class) in
            [(1, Refill), (2, Prefetch), (3, Demand), (4, Prefetch), (5, Refill), (6, Demand)]
        {
            submit(&reader, &fixture.plan(0, 2), class, token);
        }
        drop(held);
        assert_eq!(tokens(&reader, 12), [3, 3, 6, 6, 2, 2, 4, 4, 1, 1, 5, 5]);
    }
}

#[test]
fn a_demand_overtakes_a_prefetch_between_two_of_its_chunks() {
    let fixture = Fixture::new(8);
    for options in ONE_AT_A_TIME {
        let reader = reader(1, options());
        submit(&reader, &fixture.plan(0, 8), Prefetch, 1);
        let held = next(&reader);
        submit(&reader, &fixture.plan(0, 2), Demand, 2);
        drop(held);
        let order = tokens(&reader, 9);
        // The prefetch may have taken the chunk before the demand was queued.
        let first = order.iter().position(|t| *t == 2).unwrap();
        assert!(first <= 1, "{order:?}");
        assert_eq!(order[first..first + 2], [2, 2]);
    }
}

#[test]
fn a_refill_that_prefetches_overtook_long_enough_gets_its_turn_and_never_before_a_demand() {
    let fixture = Fixture::new(100);
    for options in ONE_AT_A_TIME {
        let (reader, held) = stopped(&fixture, options());
        submit(&reader, &fixture.plan(0, 4), Refill, 3);
        submit(&reader, &fixture.plan(0, 60), Prefetch, 2);
        submit(&reader, &fixture.plan(0, 30), Demand, 1);
        drop(held);
        let order = tokens(&reader, 94);
        assert!(order[..30].iter().all(|t| *t == 1), "{order:?}");
        let refills: Vec<usize> = (0..94).filter(|i| order[*i] == 3).collect();
        assert_eq!(refills, [46, 63, 80, 93], "after 16 prefetch reads each");
    }
}

#[test]
fn promoting_moves_a_request_before_less_urgent_ones() {
    let fixture = Fixture::new(8);
    for options in ONE_AT_A_TIME {
        let (reader, held) = stopped(&fixture, options());
        submit(&reader, &fixture.plan(0, 2), Prefetch, 1);
        let second = submit(&reader, &fixture.plan(0, 2), Refill, 2);
        let third = submit(&reader, &fixture.plan(0, 2), Prefetch, 3);
        submit(&reader, &fixture.plan(0, 2), Demand, 4);
        assert!(reader.promote(second, Demand));
        assert!(!reader.promote(second, Prefetch), "never down");
        assert!(!reader.promote(third, Prefetch), "it is there");
        drop(held);
        assert_eq!(tokens(&reader, 8), [4, 4, 2, 2, 1, 1, 3, 3]);
        assert!(!reader.promote(second, Demand), "it is done");
    }
}

#[test]
fn prefetch_leaves_chunks_to_a_demand() {
    let fixture = Fixture::new(64);
    for mode in [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread] {
        let reader = reader(16, ReaderOptions { mode, ..ReaderOptions::default() });
        submit(&reader, &fixture.plan(0, 64), Prefetch, 1);
        let held: Vec<Completion> = (0..12).map(|_| next(&reader)).collect();
        std::thread::sleep(Duration::from_millis(20));
        assert!(reader.completions().is_empty(), "a quarter of the chunks is kept");
        submit(&reader, &fixture.plan(0, 4), Demand, 2);
        assert_eq!(tokens(&reader, 4), [2; 4], "{mode:?}");
        drop(held);
        tokens(&reader, 52);
    }
}

#[test]
fn refills_keep_to_their_rate_and_others_do_not() {
    let fixture = Fixture::new(64);
    let bytes = 16 * u64::from(common::CHUNK);
    for options in ONE_AT_A_TIME {
        let options = ReaderOptions { refill_bytes_per_second: Some(4 * bytes), ..options() };
        let reader = reader(8, options);
        let since = Instant::now();
        submit(&reader, &fixture.plan(0, 16), Refill, 1);
        submit(&reader, &fixture.plan(0, 64), Prefetch, 2);
        let order = tokens(&reader, 80);
        let took = since.elapsed();
        // 250 ms, less the last read's share and what is made up.
        assert!(took > Duration::from_millis(200), "{took:?}");
        assert!(order[..70].iter().filter(|t| **t == 2).count() >= 60, "{order:?}");
        reader.set_refill_bytes_per_second(Some(1));
        submit(&reader, &fixture.plan(0, 16), Refill, 1);
        std::thread::sleep(Duration::from_millis(30));
        assert!(reader.completions().len() <= 2);
        reader.set_refill_bytes_per_second(None);
        assert_eq!(tokens(&reader, 16), [1; 16], "lifting the limit wakes what it held back");
    }
}

#[test]
fn a_refill_that_is_held_back_can_be_cancelled_and_dropped() {
    let fixture = Fixture::new(16);
    for options in ONE_AT_A_TIME {
        let reader = reader(8, ReaderOptions { refill_bytes_per_second: Some(1), ..options() });
        let request = submit(&reader, &fixture.plan(0, 16), Refill, 1);
        std::thread::sleep(Duration::from_millis(20));
        reader.cancel(request);
        let errors = (0..16).filter_map(|_| next(&reader).outcome.err());
        assert!(errors.map(|e| assert_eq!(e.kind(), ErrorKind::Cancelled)).count() >= 14);
        submit(&reader, &fixture.plan(0, 16), Refill, 1);
        let since = Instant::now();
        drop(reader);
        assert!(since.elapsed() < Duration::from_secs(2));
    }
}
