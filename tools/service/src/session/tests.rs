//! Sessions as clients see them.

use super::*;
use spoc_cache::SequenceWord;

const PEER: Peer = Peer { pid: 7, uid: 8, gid: 9 };

fn slots(bytes: u64) -> Held {
    Held::Slots { segments: vec![3], model: "m".into(), bytes }
}

fn attached(quota: Quota) -> (SessionBook, Arc<Session>) {
    let book = SessionBook::default();
    let (session, token) = book.open("test", PEER, quota).expect("opened");
    assert_eq!(session.grant(1, 0, || slots(1)).expect_err("not yet").kind(), "not_attached");
    assert!(Arc::ptr_eq(&book.attach(&token, PEER).expect("attached"), &session));
    assert_eq!(book.attach(&token, PEER).expect_err("used").kind(), "not_permitted");
    (book, session)
}

#[test]
fn a_lease_ends_by_the_clients_word_by_a_release_or_by_death() {
    let (book, session) = attached(Quota::default());
    let grants: Vec<Grant> = (0..3).map(|_| session.grant(10, 0, || slots(10)).expect("granted")).collect();
    assert_eq!((session.held(), book.held()), ((3, 30), (3, 30)));
    assert!(session.holds_segment(3) && !session.holds_segment(4) && session.leases_on("m") == 3);
    let first = &grants[0];
    assert!(first.awaited.load() < first.value);
    session.words().words()[first.word as usize].store(first.value, Ordering::Release);
    assert!(first.awaited.load() >= first.value);
    assert_eq!((session.sweep(), session.held()), (1, (2, 20)));
    assert_eq!(session.release(&[grants[1].id, grants[1].id + 100]), 1);
    assert!(grants[1].awaited.load() >= grants[1].value);
    session.detach();
    assert_eq!((session.stage(), session.held()), (Stage::Detached, (1, 10)));
    assert_eq!((book.died(&session), book.lost()), (1, 1));
    assert!(grants[2].awaited.load() >= grants[2].value && session.held() == (0, 0));
    assert_eq!(book.get(&session.number.to_string(), PEER.uid).expect_err("gone").kind(), "unknown_session");
}

#[test]
fn a_word_is_used_again_with_a_higher_value() {
    let (_book, session) = attached(Quota { leases: 2, ..Quota::default() });
    let mut last = HashMap::new();
    for round in 0..2000 {
        let grant = session.grant(1, 0, || slots(1)).expect("granted");
        let before = last.insert(grant.word, grant.value);
        assert!(before.is_none_or(|before| before < grant.value), "{round}");
        assert!(grant.awaited.load() < grant.value);
        if round % 3 == 0 {
            // A client that writes too much ends this lease, and no later one.
            session.words().words()[grant.word as usize].store(grant.value + 5, Ordering::Release);
        }
        session.release(&[grant.id]);
    }
}

#[test]
fn quotas_bound_leases_bytes_and_sessions() {
    let (_book, session) = attached(Quota { leases: 2, held: crate::Size(100), ..Quota::default() });
    session.grant(60, 0, || slots(60)).expect("fits");
    assert_eq!(session.grant(41, 0, || slots(41)).expect_err("too many bytes").kind(), "quota_exceeded");
    session.grant(40, 0, || slots(40)).expect("fits");
    assert_eq!(session.grant(0, 0, || slots(0)).expect_err("too many").kind(), "quota_exceeded");
    let book = SessionBook::default();
    let quota = Quota { sessions: 1, ..Quota::default() };
    book.open("one", PEER, quota).expect("opened");
    assert_eq!(book.open("two", PEER, quota).expect_err("too many").kind(), "quota_exceeded");
}

#[test]
fn a_session_is_its_users_own() {
    let (book, session) = attached(Quota::default());
    let other = Peer { uid: 1, ..PEER };
    assert_eq!(book.get(&session.number.to_string(), 1).expect_err("another's").kind(), "not_permitted");
    assert_eq!(
        book.resume(session.number, session.resume(), other).expect_err("another's").kind(),
        "not_permitted"
    );
    assert_eq!(book.resume(session.number, &[0; 32], PEER).expect_err("no secret").kind(), "unknown_session");
    session.detach();
    book.resume(session.number, session.resume(), PEER).expect("resumed");
    assert_eq!(session.stage(), Stage::Attached);
    book.resume(session.number, session.resume(), PEER).expect("resumed beside it");
    session.detach();
    assert_eq!(session.stage(), Stage::Attached, "one of its sockets is open");
    session.detach();
    assert_eq!(session.stage(), Stage::Detached);
}

#[test]
fn a_dead_session_is_not_attached_again_and_a_process_is_watched_once() {
    let (book, session) = attached(Quota::default());
    assert!(session.begin_watch(7) && session.begin_watch(8) && !session.begin_watch(7));
    session.end_watch(7);
    assert!(session.begin_watch(7));
    book.died(&session);
    // As by a request that had found it just before.
    assert_eq!(session.attach(PEER).expect_err("dead").kind(), "unknown_session");
    assert_eq!(session.grant(1, 0, || slots(1)).expect_err("dead").kind(), "not_attached");
}

#[test]
fn what_was_asked_for_under_a_tag_is_released_by_it_or_never_granted() {
    let (_book, session) = attached(Quota::default());
    session.grant(1, 7, || slots(1)).expect("granted");
    session.grant(1, 0, || slots(1)).expect("granted");
    assert_eq!((session.release_tags(&[0, 7]), session.held().0), (1, 1));
    // It is on its way.
    assert_eq!(session.release_tags(&[8, 8]), 0);
    assert_eq!(session.grant(1, 8, || slots(1)).expect_err("given up").kind(), "cancelled");
    session.grant(1, 8, || slots(1)).expect("asked for again");
    for tag in 100..5000 {
        session.release_tags(&[tag]);
    }
    assert_eq!(session.grant(1, 4999, || slots(1)).expect_err("given up").kind(), "cancelled");
    session.grant(1, 100, || slots(1)).expect("long forgotten");
}

#[test]
fn leases_that_ended_are_found_a_few_at_a_time_and_all_of_them_where_room_is_short() {
    let (_book, session) = attached(Quota { leases: 100, ..Quota::default() });
    let grants: Vec<Grant> = (0..100).map(|_| session.grant(1, 0, || slots(1)).expect("granted")).collect();
    for grant in &grants[40..] {
        session.words().words()[grant.word as usize].store(grant.value, Ordering::Release);
    }
    session.grant(1, 0, || slots(1)).expect("what ended made room");
    assert!(session.held().0 <= 100);
    session.sweep();
    assert_eq!(session.held(), (41, 41));
    let mut before = session.held().0;
    for grant in &grants[..40] {
        session.words().words()[grant.word as usize].store(grant.value, Ordering::Release);
    }
    for _ in 0..20 {
        session.grant(1, 0, || slots(1)).expect("granted");
        let now = session.held().0;
        assert!(now <= before + 1 && now + 4 > before, "{before} to {now}");
        before = now;
    }
    assert!(before < 41, "the forty that ended are found in passing: {before}");
}
