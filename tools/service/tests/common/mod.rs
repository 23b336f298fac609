//! A service on sockets of its own, and a client of it.

#![allow(
    dead_code,
    clippy::cast_possible_truncation,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)] // helpers of tests are tests

use hyper_util::rt::TokioIo;
use spoc_cache::stats::Counters;
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver};
use spoc_page::Words;
use spoc_page::lend::{LendSocket, Packet};
use spoc_proto::ERROR_KIND;
use spoc_proto::v1 as pb;
use spoc_proto::v1::spoc_client::SpocClient;
use spoc_service::{Config, Service};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

pub type Rpc = SpocClient<Channel>;

/// What tensors of these bytes hold: no two bytes near each other are alike.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at.wrapping_mul(31) ^ (at >> 8) ^ seed.wrapping_mul(97)) as u8).collect()
}

/// A model of `layers` layers with one tensor of `len` bytes each.
pub fn model(folder: &Path, name: &str, layers: usize, len: usize) -> PathBuf {
    let mut header = String::from("{");
    let mut data = Vec::new();
    for layer in 0..layers {
        let comma = if layer == 0 { "" } else { "," };
        let (from, to) = (data.len(), data.len() + len);
        header += &format!(
            "{comma}\"layers.{layer}.w\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{from},{to}]}}"
        );
        data.extend(pattern(layer, len));
    }
    header += "}";
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend(data);
    let path = folder.join(name);
    std::fs::write(&path, file).unwrap();
    path
}

pub fn native() -> Device {
    let found = spoc_backends::found(&spoc_backends::probe_only([BackendKind::Native]));
    Driver::new(found).open(&DeviceSelector::index(BackendKind::Native, 0)).unwrap()
}

pub struct Running {
    pub folder: tempfile::TempDir,
    pub socket: PathBuf,
    pub device: Device,
    pub service: Service,
}

/// Starts a service with what `text` says, on a socket of its own.
pub async fn start(text: &str) -> Running {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("spoc.sock");
    let config = Config { socket: socket.clone(), ..Config::parse(text).unwrap() };
    let device = native();
    let counters = Arc::new(|_: &str, slots: usize| Counters::on_heap(slots));
    let service = Service::start(config, vec![device.clone()], counters).await.unwrap();
    Running { folder, socket, device, service }
}

impl Running {
    pub async fn rpc(&self) -> Rpc {
        connect(&self.socket).await
    }
}

pub async fn connect(socket: &Path) -> Rpc {
    let path = socket.to_owned();
    let connector = tower::service_fn(move |_: tonic::transport::Uri| {
        let path = path.clone();
        async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel =
        Endpoint::from_static("http://spoc.invalid").connect_with_connector(connector).await.unwrap();
    SpocClient::new(channel)
}

/// An attached session.
pub struct Session {
    pub id: String,
    pub number: u64,
    pub resume: [u8; 32],
    pub lend: LendSocket,
    pub words: Words,
}

pub async fn attach(rpc: &mut Rpc) -> Session {
    let opened = rpc.open_session(pb::OpenSessionRequest { name: "test".into() }).await.unwrap().into_inner();
    let token: [u8; 32] = opened.token.as_slice().try_into().unwrap();
    let lend = LendSocket::connect(Path::new(&opened.lend_path), Duration::from_secs(10)).unwrap();
    lend.send(&Packet::Hello { token }, None).unwrap();
    let (lend, answer) = receive(lend).await;
    let Some((Packet::Welcome { session, resume, words }, Some(descriptor))) = answer else {
        panic!("{answer:?}")
    };
    let mapped = Words::map(descriptor).unwrap();
    assert_eq!(mapped.words().len(), words as usize);
    Session { id: opened.session, number: session, resume, lend, words: mapped }
}

/// The next packet, without standing in the way of the service that runs on the same threads.
pub async fn receive(lend: LendSocket) -> (LendSocket, Option<(Packet, Option<OwnedFd>)>) {
    tokio::task::spawn_blocking(move || {
        let got = lend.receive(false).unwrap();
        (lend, got)
    })
    .await
    .unwrap()
}

impl Session {
    pub fn keys(&self, model: &str, groups: &[u32]) -> pb::AcquireRequest {
        let keys = pb::KeySet { model: model.into(), device: String::new(), groups: groups.to_vec() };
        pb::AcquireRequest {
            session: self.id.clone(),
            tag: 0,
            what: Some(pb::acquire_request::What::Keys(keys)),
            timeout_ms: 5000,
        }
    }

    pub fn image(&self, image: &str) -> pb::AcquireRequest {
        let image = pb::ImageRef { image: image.into(), without_tensors: false };
        let what = Some(pb::acquire_request::What::Image(image));
        pb::AcquireRequest { session: self.id.clone(), tag: 0, what, timeout_ms: 0 }
    }

    /// Asks for a segment's descriptor and reads all of it.
    pub async fn read(self, id: u64) -> (Session, Result<Vec<u8>, String>) {
        let Session { id: text, number, resume, lend, words } = self;
        lend.send(&Packet::Segment { id }, None).unwrap();
        let (lend, answer) = receive(lend).await;
        let bytes = match answer {
            Some((Packet::SegmentIs(lent), Some(descriptor))) => {
                assert_eq!((lent.id, lent.backend.as_str()), (id, "native"));
                let file = std::fs::File::from(descriptor);
                let mut bytes = vec![0; usize::try_from(lent.len_bytes).unwrap()];
                std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
                Ok(bytes)
            }
            Some((Packet::Refused { kind, .. }, None)) => Err(kind),
            other => panic!("{other:?}"),
        };
        (Session { id: text, number, resume, lend, words }, bytes)
    }
}

/// Registers a model; in an arena if one is named.
pub async fn register(rpc: &mut Rpc, path: &Path, arena: &str) -> Result<pb::Model, Status> {
    let source = path.to_str().unwrap().to_owned();
    let request =
        pb::RegisterModelRequest { source, arena: arena.into(), ..pb::RegisterModelRequest::default() };
    Ok(rpc.register_model(request).await?.into_inner().model.unwrap())
}

/// Loads a model and waits for it.
pub async fn load(rpc: &mut Rpc, model: &str) -> Result<pb::LoadDone, Status> {
    let request = pb::LoadRequest { model: model.into(), ..pb::LoadRequest::default() };
    let mut steps = rpc.load(request).await?.into_inner();
    let mut done = None;
    while let Some(step) = steps.next().await {
        done = step?.done.or(done);
    }
    Ok(done.unwrap())
}

/// The kind of docs/errors.md that an answer carries.
pub fn kind(status: &Status) -> &str {
    status.metadata().get(ERROR_KIND).and_then(|kind| kind.to_str().ok()).unwrap_or("no kind")
}

pub async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    for _ in 0..400 {
        if done().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}");
}
