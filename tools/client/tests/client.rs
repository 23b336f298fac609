//! The client against a real service, native device: everything crosses sockets, and memory is imported.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use std::time::Duration;

use common::{config, native, pattern, socket, start, write_model};
use spoc_client::{Client, Lease, Session, blocking, pb};
use spoc_driver::Device;

const LAYERS: usize = 6;
const LEN: usize = 70_001;
const ARENA: &str = "[[arena]]\nname = \"a\"\nclasses = [{ slots = 3, slot = \"128KiB\" }]\n";
const SECONDS: Option<Duration> = Some(Duration::from_secs(10));

fn bytes(lease: &Lease, device: &Device, index: usize) -> Vec<u8> {
    let (segment, offset) = lease.memory(device, index).unwrap();
    let mut bytes = vec![0; LEN];
    segment.read(offset, &mut bytes).unwrap();
    bytes
}

fn register(folder: &std::path::Path, arena: &str) -> pb::RegisterModelRequest {
    let path = folder.join(format!("m{arena}.safetensors"));
    write_model(&path, 1, LAYERS, LEN);
    pb::RegisterModelRequest {
        source: path.to_str().unwrap().into(),
        name: format!("m{arena}"),
        arena: arena.into(),
        ..pb::RegisterModelRequest::default()
    }
}

async fn leases_end(client: &Client) {
    for _ in 0..500 {
        if client.stats().await.unwrap().sessions.iter().all(|session| session.leases == 0) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a lease did not end");
}

#[tokio::test(flavor = "multi_thread")]
async fn groups_are_leased_imported_and_released() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(config(folder.path(), ARENA)).await;
    let client = Client::connect(socket(folder.path())).await.unwrap();
    assert!(client.info().await.unwrap().devices[0].can_lend);
    client.register(register(folder.path(), "a")).await.unwrap();
    let (tensors, groups) = client.describe("ma").await.unwrap();
    assert_eq!((tensors.len(), groups.len()), (LAYERS, LAYERS));
    let (session, device) = (client.session("test").await.unwrap(), native());
    for round in 0..3 {
        for layer in 0..6u32 {
            let next = (layer + 1) % 6;
            let lease = session.acquire("ma", &[layer, next], SECONDS).await.unwrap();
            assert_eq!(lease.slots().len(), 2);
            for (index, layer) in [(0, layer), (1, next)] {
                let expected = pattern(1 + u64::from(layer), LEN);
                assert!(bytes(&lease, &device, index) == expected, "layer {layer} in round {round}");
            }
            assert_eq!(lease.memory(&device, 2).unwrap_err().kind(), "usage");
            lease.release();
        }
    }
    assert_eq!(session.acquire("ma", &[99], None).await.unwrap_err().kind(), "no_such_group");
    assert_eq!(session.acquire("other", &[0], None).await.unwrap_err().kind(), "unknown_model");
    leases_end(&client).await;
    // The lending socket anew: words, leases and what was imported stay.
    let held = session.acquire("ma", &[0], SECONDS).await.unwrap();
    session.reattach().await.unwrap();
    let more = session.acquire("ma", &[1], SECONDS).await.unwrap();
    assert!(bytes(&held, &device, 0) == pattern(1, LEN) && bytes(&more, &device, 0) == pattern(2, LEN));
    assert!(session.lost().is_empty());
    drop((held, more));
    leases_end(&client).await;
    drop(session);
    assert_eq!(service.stop(Duration::from_secs(5)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_loaded_read_and_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(config(folder.path(), "")).await;
    let client = Client::connect(socket(folder.path())).await.unwrap();
    client.register(register(folder.path(), "")).await.unwrap();
    let mut told = Vec::new();
    let request = pb::LoadRequest { model: "m".into(), ..pb::LoadRequest::default() };
    let done = client.load(request, &mut |done, total| told.push((done, total))).await.unwrap();
    assert!(told.iter().all(|(done, total)| done <= total) && !done.was_resident);
    let (session, device) = (client.session("test").await.unwrap(), native());
    let lease = session.acquire_image(&done.image).await.unwrap();
    assert_eq!(lease.tensors().len(), LAYERS);
    for (index, tensor) in lease.tensors().iter().enumerate() {
        let layer: u64 = tensor.name.split('.').nth(2).unwrap().parse().unwrap();
        assert!(bytes(&lease, &device, index) == pattern(1 + layer, LEN), "{}", tensor.name);
    }
    let evict = || client.evict(pb::evict_request::What::Image(done.image.clone()));
    assert_eq!(evict().await.unwrap_err().kind(), "in_use");
    drop(lease);
    assert_eq!(device.memory_in_use(), 0, "what no lease uses is not kept");
    leases_end(&client).await;
    evict().await.unwrap();
    assert_eq!(session.acquire_image(&done.image).await.unwrap_err().kind(), "not_resident");
    service.stop(Duration::from_secs(5)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_of_ones_own_is_written_and_sealed() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(config(folder.path(), "")).await;
    let client = Client::connect(socket(folder.path())).await.unwrap();
    let sessions: [Session; 2] = [client.session("one").await.unwrap(), client.session("two").await.unwrap()];
    let tensor = pb::Placement { name: "t".into(), bytes: LEN as u64, ..pb::Placement::default() };
    let request = pb::CreateImageRequest {
        name: "own".into(),
        segment_bytes: vec![LEN as u64],
        tensors: vec![tensor],
        ..pb::CreateImageRequest::default()
    };
    let (image, lease) = sessions[0].create_image(request).await.unwrap();
    assert_eq!(image.state, "writing");
    let device = native();
    let (segment, offset) = lease.memory(&device, 0).unwrap();
    segment.write(offset, &pattern(7, LEN)).unwrap();
    sessions[0].seal("own").await.unwrap();
    let read = sessions[1].acquire_image("own").await.unwrap();
    assert!(bytes(&read, &native(), 0) == pattern(7, LEN));
    drop((lease, read));
    service.stop(Duration::from_secs(5)).await;
}

#[test]
fn without_async() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let service = runtime.block_on(start(config(folder.path(), ARENA)));
    let missing = blocking::Client::connect(folder.path().join("none")).unwrap_err();
    assert!(missing.is_unreachable() && missing.to_string().contains("none"), "{missing}");
    let client = blocking::Client::connect(socket(folder.path())).unwrap();
    let request = register(folder.path(), "a");
    client.register(&request.source, "ma", "a").unwrap();
    let session = client.session("test").unwrap();
    let lease = session.acquire("ma", &[3], SECONDS).unwrap();
    assert!(bytes(&lease, &native(), 0) == pattern(4, LEN));
    assert_eq!(client.stats().unwrap().sessions[0].leases, 1);
    drop(lease);
    session.reattach().unwrap();
    assert_eq!(runtime.block_on(service.stop(Duration::from_secs(5))), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acquire_that_is_given_up_at_any_moment_leaves_no_lease() {
    let folder = tempfile::tempdir().unwrap();
    let service = start(config(folder.path(), ARENA)).await;
    let client = Client::connect(socket(folder.path())).await.unwrap();
    client.register(register(folder.path(), "a")).await.unwrap();
    let session = client.session("test").await.unwrap();
    session.acquire("ma", &[0], SECONDS).await.unwrap().release();
    let mut given_up = 0;
    // Before it is sent, under way, and behind its answer, which nobody reads.
    for round in 0..400 {
        let time = Duration::from_micros(round * 7 % 1500);
        match tokio::time::timeout(time, session.acquire("ma", &[0], SECONDS)).await {
            Ok(lease) => drop(lease.unwrap()),
            Err(_) => given_up += 1,
        }
    }
    assert!(given_up > 0);
    leases_end(&client).await;
    assert_eq!(service.stop(Duration::from_secs(5)).await, 0);
}
