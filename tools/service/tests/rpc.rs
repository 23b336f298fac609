//! The control plane on a real socket, the native backend behind it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{attach, eventually, kind, load, model, pattern, receive, register, start};
use spoc_page::lend::{LendSocket, Packet};
use spoc_proto::v1 as pb;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio_stream::StreamExt;

const ARENA: &str = "[[arena]]\nname = \"a\"\nclasses = [{ slots = 4, slot = \"64KiB\" }]\n";

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_acquired_lent_and_released_in_three_ways() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    let path = model(running.folder.path(), "m.safetensors", 8, 60_000);
    let told = register(&mut rpc, &path, "a").await.unwrap();
    assert_eq!((told.name.as_str(), told.groups, told.arena.as_str()), ("m", 8, "a"));

    let session = attach(&mut rpc).await;
    let answer = rpc.acquire(session.keys("m", &[3, 5])).await.unwrap().into_inner();
    let lease = answer.lease.unwrap();
    assert_eq!((lease.slots.len(), lease.segments.len()), (2, 1));
    let (session, bytes) = session.read(lease.segments[0].id).await;
    let bytes = bytes.unwrap();
    for (slot, group) in lease.slots.iter().zip([3, 5]) {
        let from = usize::try_from(slot.offset).unwrap();
        assert!(bytes[from..from + 60_000] == pattern(group, 60_000), "group {group}");
    }
    // A second lease on the same, ended by the client's own word.
    let second = rpc.acquire(session.keys("m", &[3])).await.unwrap().into_inner().lease.unwrap();
    assert!(second.word != lease.word && second.slots[0].slot == lease.slots[0].slot);
    session.words.words()[second.word as usize].store(second.value, Ordering::Release);
    let released =
        pb::ReleaseRequest { session: session.id.clone(), leases: vec![lease.id], tags: Vec::new() };
    assert_eq!(rpc.release(released).await.unwrap().into_inner().released, 1);
    let stats = rpc.get_stats(pb::GetStatsRequest {}).await.unwrap().into_inner();
    eventually("all leases end", async || {
        let stats = rpc.get_stats(pb::GetStatsRequest {}).await.unwrap().into_inner();
        stats.sessions[0].leases == 0 && stats.arenas[0].leased == 0
    })
    .await;
    assert_eq!((stats.sessions[0].state.as_str(), stats.counters["spoc_hits"]), ("attached", 1));
    // A segment that no lease is on is not lent.
    let (_, refused) = session.read(lease.segments[0].id).await;
    assert_eq!(refused.unwrap_err(), "not_permitted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_arena_waits_for_a_release_and_a_set_that_never_fits_is_refused() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    let held = rpc.acquire(session.keys("m", &[0, 1, 2, 3])).await.unwrap().into_inner().lease.unwrap();
    let mut short = session.keys("m", &[4]);
    short.timeout_ms = 50;
    assert_eq!(kind(&rpc.acquire(short).await.unwrap_err()), "timed_out");
    let waiting = tokio::spawn({
        let (mut rpc, request) = (rpc.clone(), session.keys("m", &[4]));
        async move { rpc.acquire(request).await }
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    session.words.words()[held.word as usize].store(held.value, Ordering::Release);
    waiting.await.unwrap().unwrap();
    assert_eq!(kind(&rpc.acquire(session.keys("m", &[0, 1, 2, 3, 4])).await.unwrap_err()), "too_wide");
    assert_eq!(kind(&rpc.acquire(session.keys("m", &[99])).await.unwrap_err()), "no_such_group");
    assert_eq!(kind(&rpc.acquire(session.keys("none", &[0])).await.unwrap_err()), "unknown_model");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_is_loaded_once_lent_whole_and_evicted_when_nobody_holds_it() {
    let running = start("").await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 5, 300_000), "").await.unwrap();
    let (first, second) = tokio::join!(async { load(&mut rpc.clone(), "m").await.unwrap() }, async {
        load(&mut rpc.clone(), "m").await.unwrap()
    });
    assert_eq!(first.image, second.image);
    assert!(load(&mut rpc, "m").await.unwrap().was_resident);
    let session = attach(&mut rpc).await;
    let lease = rpc.acquire(session.image(&first.image)).await.unwrap().into_inner().lease.unwrap();
    assert_eq!(lease.tensors.len(), 5);
    let (session, bytes) = session.read(lease.segments[0].id).await;
    let bytes = bytes.unwrap();
    for (number, tensor) in lease.tensors.iter().enumerate() {
        let from = usize::try_from(tensor.offset).unwrap();
        assert!(bytes[from..from + 300_000] == pattern(number, 300_000), "{}", tensor.name);
    }
    let evict = || pb::EvictRequest { what: Some(pb::evict_request::What::Image(first.image.clone())) };
    assert_eq!(kind(&rpc.evict(evict()).await.unwrap_err()), "in_use");
    let unregister = || pb::UnregisterModelRequest { model: "m".into() };
    assert_eq!(kind(&rpc.unregister_model(unregister()).await.unwrap_err()), "in_use");
    rpc.release(pb::ReleaseRequest { session: session.id.clone(), leases: vec![lease.id], tags: Vec::new() })
        .await
        .unwrap();
    assert_eq!(rpc.evict(evict()).await.unwrap().into_inner().freed_bytes, 5 * 300_000);
    rpc.unregister_model(unregister()).await.unwrap();
    assert_eq!(kind(&rpc.acquire(session.image(&first.image)).await.unwrap_err()), "not_resident");
    eventually("the memory goes", async || running.device.memory_in_use() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_made_is_its_own_until_it_is_sealed() {
    let running = start("").await;
    let mut rpc = running.rpc().await;
    let (maker, reader) = (attach(&mut rpc).await, attach(&mut rpc).await);
    let tensor =
        pb::Placement { name: "t".into(), segment: 0, offset: 10, bytes: 20, ..pb::Placement::default() };
    let create = |offset| pb::CreateImageRequest {
        session: maker.id.clone(),
        name: "made".into(),
        segment_bytes: vec![4096],
        tensors: vec![pb::Placement { offset, ..tensor.clone() }],
        lineage: [("from".to_owned(), "m".to_owned())].into(),
        ..pb::CreateImageRequest::default()
    };
    assert_eq!(kind(&rpc.create_image(create(4090)).await.unwrap_err()), "usage");
    let made = rpc.create_image(create(10)).await.unwrap().into_inner();
    let lease = made.lease.unwrap();
    assert_eq!(made.image.unwrap().state, "writing");
    assert_eq!(kind(&rpc.acquire(reader.image("made")).await.unwrap_err()), "wrong_state");

    maker.lend.send(&Packet::Segment { id: lease.segments[0].id }, None).unwrap();
    let common::Session { id, lend, .. } = maker;
    let (lend, answer) = receive(lend).await;
    let Some((_, Some(descriptor))) = answer else { panic!("{answer:?}") };
    std::os::unix::fs::FileExt::write_all_at(&std::fs::File::from(descriptor), b"derived", 10).unwrap();
    let seal = |session: &str| pb::SealImageRequest { session: session.into(), image: "made".into() };
    assert_eq!(kind(&rpc.seal_image(seal(&reader.id)).await.unwrap_err()), "not_permitted");
    let sealed = rpc.seal_image(seal(&id)).await.unwrap().into_inner().image.unwrap();
    assert_eq!((sealed.state.as_str(), sealed.lineage["from"].as_str()), ("sealed", "m"));
    assert_eq!(kind(&rpc.seal_image(seal(&id)).await.unwrap_err()), "wrong_state");

    let lease = rpc.acquire(reader.image("made")).await.unwrap().into_inner().lease.unwrap();
    let (_, bytes) = reader.read(lease.segments[0].id).await;
    assert_eq!(&bytes.unwrap()[10..17], b"derived");
    drop(lend);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_answers_every_request_by_its_tag() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    let requests: Vec<pb::AcquireRequest> = (0..40u64)
        .map(|tag| {
            let groups = if tag % 10 == 9 { vec![1000] } else { vec![u32::try_from(tag % 4).unwrap()] };
            pb::AcquireRequest { tag, ..session.keys("m", &groups) }
        })
        .collect();
    let mut answers = rpc.acquire_stream(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let mut seen = Vec::new();
    while let Some(answer) = answers.next().await {
        let answer = answer.unwrap();
        let expected = if answer.tag % 10 == 9 { "no_such_group" } else { "" };
        assert_eq!(answer.error_kind, expected, "{answer:?}");
        assert_eq!(answer.lease.is_some(), expected.is_empty());
        seen.push(answer.tag);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..40).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn pins_keep_hints_fetch_and_evictions_make_room() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    let keys =
        |groups: &[u32]| pb::KeySet { model: "m".into(), device: String::new(), groups: groups.to_vec() };
    let prefetch =
        pb::PrefetchRequest { session: session.id.clone(), keys: Some(keys(&[6, 7])), ..Default::default() };
    let answer = rpc.prefetch(prefetch).await.unwrap().into_inner();
    assert_eq!((answer.queued, answer.refused), (2, 0));
    let pin = |unpin| pb::PinRequest {
        what: Some(pb::pin_request::What::Keys(keys(&[6]))),
        unpin,
        ..Default::default()
    };
    rpc.pin(pin(false)).await.unwrap();
    let evict = |groups: &[u32]| pb::EvictRequest { what: Some(pb::evict_request::What::Keys(keys(groups))) };
    eventually("both are there", async || {
        let arenas = rpc.list_arenas(pb::ListArenasRequest {}).await.unwrap().into_inner().arenas;
        arenas[0].resident == 2
    })
    .await;
    let answer = rpc.evict(evict(&[5, 6, 7])).await.unwrap().into_inner();
    assert_eq!((answer.evicted, answer.held, answer.freed_bytes), (1, 1, 60_000));
    rpc.pin(pin(true)).await.unwrap();
    assert_eq!(rpc.evict(evict(&[6])).await.unwrap().into_inner().evicted, 1);
    let resize = |slots| pb::ResizeRequest { arena: "a".into(), slots, timeout_ms: 500 };
    assert_eq!(rpc.resize(resize(8)).await.unwrap().into_inner().arena.unwrap().classes[0].slots, 8);
    assert_eq!(kind(&rpc.resize(resize(9)).await.unwrap_err()), "too_many_slots");
    let give = pb::GiveBackRequest { arena: "a".into(), bytes: 1, timeout_ms: 500 };
    assert!(rpc.give_back(give).await.unwrap().into_inner().freed_bytes > 0);
    assert_eq!(
        kind(&rpc.resize(pb::ResizeRequest { arena: "b".into(), ..resize(1) }).await.unwrap_err()),
        "unknown_arena"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn models_come_from_the_roots_only_and_have_names_of_their_own() {
    let (inside, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let running = start(&format!("roots = [{:?}]", inside.path())).await;
    let mut rpc = running.rpc().await;
    let good = model(inside.path(), "m.safetensors", 2, 1000);
    let bad = model(outside.path(), "m.safetensors", 2, 1000);
    std::os::unix::fs::symlink(&bad, inside.path().join("link.safetensors")).unwrap();
    register(&mut rpc, &good, "").await.unwrap();
    for (path, expected) in [
        (bad.as_path(), "path_not_allowed"),
        (&inside.path().join("link.safetensors"), "path_not_allowed"),
        (&inside.path().join("../x"), "path_not_allowed"),
        (Path::new("/nothing/there"), "path_not_allowed"),
        (&good, "already_registered"),
    ] {
        let error = register(&mut rpc, path, "").await.unwrap_err();
        assert_eq!(kind(&error), expected, "{}", path.display());
    }
    std::fs::write(inside.path().join("broken.safetensors"), [9; 100]).unwrap();
    let error = register(&mut rpc, &inside.path().join("broken.safetensors"), "").await.unwrap_err();
    assert!(["header_too_large", "header_too_small", "truncated"].contains(&kind(&error)), "{error:?}");
    assert_eq!(rpc.list_models(pb::ListModelsRequest {}).await.unwrap().into_inner().models.len(), 1);
    let mut pages =
        rpc.describe_model(pb::DescribeModelRequest { model: "m".into() }).await.unwrap().into_inner();
    let (mut tensors, mut groups) = (0, 0);
    while let Some(page) = pages.next().await {
        let page = page.unwrap();
        (tensors, groups) = (tensors + page.tensors.len(), groups + page.groups.len());
    }
    assert_eq!((tensors, groups), (2, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_arena_of_the_models_own_holds_half_of_it() {
    let running = start("").await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "auto").await.unwrap();
    let arenas = rpc.list_arenas(pb::ListArenasRequest {}).await.unwrap().into_inner().arenas;
    assert_eq!((arenas.len(), arenas[0].classes[0].slots), (1, 4));
    rpc.unregister_model(pb::UnregisterModelRequest { model: "m".into() }).await.unwrap();
    assert!(rpc.list_arenas(pb::ListArenasRequest {}).await.unwrap().into_inner().arenas.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn draining_refuses_new_work_and_waits_for_what_is_held() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    let lease = rpc.acquire(session.keys("m", &[0])).await.unwrap().into_inner().lease.unwrap();
    let left = rpc.drain(pb::DrainRequest { timeout_ms: 30 }).await.unwrap().into_inner().leases_left;
    assert_eq!(left, 1);
    assert_eq!(kind(&rpc.acquire(session.keys("m", &[1])).await.unwrap_err()), "draining");
    assert_eq!(kind(&rpc.open_session(pb::OpenSessionRequest::default()).await.unwrap_err()), "draining");
    let drained = tokio::spawn({
        let mut rpc = rpc.clone();
        async move { rpc.drain(pb::DrainRequest { timeout_ms: 5000 }).await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    session.words.words()[lease.word as usize].store(lease.value, Ordering::Release);
    assert_eq!(drained.await.unwrap().unwrap().into_inner().leases_left, 0);
    rpc.shutdown(pb::ShutdownRequest { timeout_ms: 0 }).await.unwrap();
    running.service.ended().await;
    let socket = running.socket.clone();
    assert_eq!(running.service.stop(Duration::ZERO).await, 0);
    assert!(!socket.exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lending_socket_wants_a_token_that_is_good() {
    let running = start("").await;
    let mut rpc = running.rpc().await;
    let opened = rpc.open_session(pb::OpenSessionRequest { name: "x".into() }).await.unwrap().into_inner();
    let path = Path::new(&opened.lend_path).to_owned();
    let attach_with = async |packet: Packet| {
        let lend = LendSocket::connect(&path, Duration::from_secs(10)).unwrap();
        lend.send(&packet, None).unwrap();
        match receive(lend).await.1 {
            Some((Packet::Refused { kind, .. }, None)) => kind,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(attach_with(Packet::Hello { token: [0; 32] }).await, "not_permitted");
    assert_eq!(attach_with(Packet::Resume { session: 1, resume: [0; 32] }).await, "unknown_session");
    assert_eq!(attach_with(Packet::Segment { id: 1 }).await, "usage");
    // Without its socket a session may hold nothing.
    let image = pb::ImageRef { image: "x".into(), without_tensors: true };
    let what = Some(pb::acquire_request::What::Image(image));
    let request = pb::AcquireRequest { session: opened.session, what, ..pb::AcquireRequest::default() };
    assert_eq!(kind(&rpc.acquire(request).await.unwrap_err()), "not_resident");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_socket_releases_nothing_and_the_session_goes_on_with_another() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    let lease = rpc.acquire(session.keys("m", &[0, 1])).await.unwrap().into_inner().lease.unwrap();
    let common::Session { id, number, resume, lend, words } = session;
    drop(lend);
    let state = async |rpc: &mut common::Rpc| {
        let stats = rpc.get_stats(pb::GetStatsRequest {}).await.unwrap().into_inner();
        (stats.sessions[0].state.clone(), stats.sessions[0].leases)
    };
    eventually("it is detached", async || state(&mut rpc).await.0 == "detached").await;
    assert_eq!(state(&mut rpc).await.1, 1);
    let path = running.socket.with_file_name("spoc.sock.lend");
    let lend = LendSocket::connect(&path, Duration::from_secs(10)).unwrap();
    lend.send(&Packet::Resume { session: number, resume }, None).unwrap();
    let (_lend, answer) = receive(lend).await;
    assert!(matches!(answer, Some((Packet::Welcome { .. }, Some(_)))), "{answer:?}");
    assert_eq!(state(&mut rpc).await, ("attached".to_owned(), 1));
    words.words()[lease.word as usize].store(lease.value, Ordering::Release);
    eventually("the word ends it", async || state(&mut rpc).await.1 == 0).await;
    assert_eq!(id, number.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_service_on_the_same_socket_is_refused_and_a_stale_file_replaced() {
    let running = start("").await;
    let config = spoc_service::Config { socket: running.socket.clone(), ..spoc_service::Config::default() };
    let counters =
        || std::sync::Arc::new(|_: &str, slots: usize| spoc_cache::stats::Counters::on_heap(slots));
    let second = spoc_service::Service::start(config.clone(), vec![common::native()], counters()).await;
    assert_eq!(second.err().unwrap().kind(), "socket_in_use");
    running.service.stop(Duration::ZERO).await;
    drop(std::os::unix::net::UnixListener::bind(&running.socket).unwrap());
    assert!(running.socket.exists());
    let again = spoc_service::Service::start(config, vec![common::native()], counters()).await.unwrap();
    again.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_too_large_or_with_too_many_keys_is_refused() {
    let running = start(&format!("[quota]\nmessage = \"64KiB\"\nkeys = 10\n{ARENA}")).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    assert_eq!(kind(&rpc.acquire(session.keys("m", &[0; 11])).await.unwrap_err()), "quota_exceeded");
    let error = rpc.acquire(session.keys("m", &[1_000_000; 60_000])).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::OutOfRange, "{error:?}");
    rpc.acquire(session.keys("m", &[0, 0, 1])).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn events_are_told_as_they_happen() {
    let running = start("").await;
    let mut rpc = running.rpc().await;
    let mut events = rpc.watch_events(pb::WatchEventsRequest {}).await.unwrap().into_inner();
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 2, 1000), "").await.unwrap();
    load(&mut rpc, "m").await.unwrap();
    let mut kinds = Vec::new();
    while kinds.len() < 2 {
        kinds.push(events.next().await.unwrap().unwrap().kind);
    }
    assert_eq!(kinds, ["registered", "loaded"]);
}
