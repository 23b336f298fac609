//! What clients leave behind: calls they gave up, streams they closed, memory they had seen, names they would like.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{Rpc, attach, eventually, kind, load, model, receive, register, start};
use spoc_page::lend::{LendSocket, Packet};
use spoc_proto::v1 as pb;
use std::path::Path;
use std::time::Duration;

const ARENA: &str =
    "[quota]\nwaiting = 2\n[[arena]]\nname = \"a\"\nclasses = [{ slots = 4, slot = \"64KiB\" }]\n";

async fn leases(rpc: &mut Rpc) -> u32 {
    let stats = rpc.get_stats(pb::GetStatsRequest {}).await.unwrap().into_inner();
    stats.sessions.iter().map(|session| session.leases).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_was_given_up_holds_neither_a_lease_nor_a_place() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    let held = rpc.acquire(session.keys("m", &[0, 1, 2, 3])).await.unwrap().into_inner().lease.unwrap();
    // More than may wait at once, each without a bound of its own and each given up.
    for group in [4, 5, 6, 7] {
        let forever = pb::AcquireRequest { timeout_ms: 0, ..session.keys("m", &[group]) };
        let waited = tokio::time::timeout(Duration::from_millis(50), rpc.acquire(forever)).await;
        assert!(waited.is_err(), "there was no room: {waited:?}");
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
    assert_eq!(leases(&mut rpc).await, 1);
    rpc.release(pb::ReleaseRequest { session: session.id.clone(), leases: vec![held.id], tags: Vec::new() })
        .await
        .unwrap();
    let all = rpc.acquire(session.keys("m", &[4, 5, 6, 7])).await.unwrap().into_inner().lease.unwrap();
    assert_eq!((all.slots.len(), leases(&mut rpc).await), (4, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_was_lent_is_free_when_its_arena_goes() {
    let running = start("").await;
    let mut rpc = running.rpc().await;
    let before = running.device.memory_in_use();
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "auto").await.unwrap();
    let session = attach(&mut rpc).await;
    let lease = rpc.acquire(session.keys("m", &[0])).await.unwrap().into_inner().lease.unwrap();
    let (session, bytes) = session.read(lease.segments[0].id).await;
    bytes.unwrap();
    assert_eq!(rpc.list_models(pb::ListModelsRequest {}).await.unwrap().into_inner().models[0].leases, 1);
    rpc.release(pb::ReleaseRequest { session: session.id.clone(), leases: vec![lease.id], tags: Vec::new() })
        .await
        .unwrap();
    rpc.unregister_model(pb::UnregisterModelRequest { model: "m".into() }).await.unwrap();
    eventually("the memory goes", async || running.device.memory_in_use() == before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_makes_an_image_that_is_called_like_a_loaded_one() {
    let running = start("").await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 5, 30_000), "").await.unwrap();
    let loaded = load(&mut rpc, "m").await.unwrap().image;
    rpc.evict(pb::EvictRequest { what: Some(pb::evict_request::What::Image(loaded.clone())) }).await.unwrap();
    let session = attach(&mut rpc).await;
    let create = |name: &str| pb::CreateImageRequest {
        session: session.id.clone(),
        name: name.into(),
        segment_bytes: vec![150_000],
        ..pb::CreateImageRequest::default()
    };
    for name in [loaded.as_str(), "", "a\nb"] {
        assert_eq!(kind(&rpc.create_image(create(name)).await.unwrap_err()), "usage", "{name:?}");
    }
    rpc.create_image(create("mine")).await.unwrap();
    assert_eq!(kind(&rpc.create_image(create("mine")).await.unwrap_err()), "already_registered");
    assert!(!load(&mut rpc, "m").await.unwrap().was_resident);
    // What is there was not compared with a manifest, and nobody is told that it was.
    let verify = pb::LoadRequest { model: "m".into(), verify: true, ..pb::LoadRequest::default() };
    assert_eq!(kind(&rpc.load(verify).await.unwrap_err()), "wrong_state");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_load_that_everybody_gave_up_ends_and_the_next_begins_anew() {
    let running = start("staging = \"64KiB\"").await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 40, 1_000_000), "").await.unwrap();
    let request = || pb::LoadRequest { model: "m".into(), ..pb::LoadRequest::default() };
    for _ in 0..3 {
        drop(rpc.load(request()).await.unwrap());
        // Whatever becomes of the one given up, who asks now is served.
        let done = load(&mut rpc, "m").await.unwrap();
        let evict = pb::EvictRequest { what: Some(pb::evict_request::What::Image(done.image)) };
        rpc.evict(evict).await.unwrap();
    }
    rpc.unregister_model(pb::UnregisterModelRequest { model: "m".into() }).await.unwrap();
    eventually("the memory goes", async || running.device.memory_in_use() == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_socket_that_closes_late_does_not_detach_a_session_that_came_back() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let session = attach(&mut rpc).await;
    let path = format!("{}.lend", running.socket.display());
    let second = LendSocket::connect(Path::new(&path), Duration::from_secs(10)).unwrap();
    second.send(&Packet::Resume { session: session.number, resume: session.resume }, None).unwrap();
    let (_second, answer) = receive(second).await;
    assert!(matches!(answer, Some((Packet::Welcome { .. }, Some(_)))), "{answer:?}");
    let request = session.keys("m", &[0]);
    drop(session.lend);
    tokio::time::sleep(Duration::from_millis(100)).await;
    rpc.acquire(request).await.unwrap();
}
