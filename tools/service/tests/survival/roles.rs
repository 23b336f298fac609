//! What each process does.

use crate::model;
use spoc_backends::{found, probe_only};
use spoc_cache::stats::Counters;
use spoc_driver::{BackendKind, Device, DeviceSelector, Driver, Exported, Segment};
use spoc_page::Words;
use spoc_page::keep::KeeperServer;
use spoc_page::lend::{LendSocket, LentSegment, Packet};
use spoc_proto::v1 as pb;
use spoc_proto::v1::spoc_client::SpocClient;
use spoc_service::{Config, Service, Size};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tonic::transport::{Channel, Endpoint};

fn device() -> Device {
    let named = std::env::var("SPOC_SURVIVAL_BACKEND").unwrap_or_else(|_| "native".to_owned());
    let kind: BackendKind = named.parse().expect("a backend");
    let driver = Driver::new(found(&probe_only([kind])));
    driver.open(&DeviceSelector::index(kind, 0)).expect("opened")
}

pub fn keeper(path: &Path) {
    let mut keeper = KeeperServer::bind(path).expect("listens");
    println!("keeping");
    loop {
        keeper.turn(-1).expect("polled");
    }
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

pub fn service(socket: &str, park: &str) {
    let device = device();
    println!("opened");
    let config =
        Config { socket: socket.into(), park: park.to_owned(), staging: Size(8 << 20), ..Config::default() };
    runtime().block_on(async {
        let counters = Arc::new(|_: &str, slots| Counters::on_heap(slots));
        match Service::start(config, vec![device], counters).await {
            Ok(service) => {
                let told = service.survived().cloned().unwrap_or_default();
                println!(
                    "ready {} models, {} images, {} sessions, {} leases, {} ms; dropped {:?}",
                    told.models,
                    told.images,
                    told.sessions,
                    told.leases,
                    told.took.as_millis(),
                    told.dropped
                );
                service.ended().await;
                service.stop(Duration::ZERO).await;
            }
            Err(error) => println!("failed {error}"),
        }
    });
}

pub async fn connect(socket: &Path) -> SpocClient<Channel> {
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).expect("a path");
    SpocClient::new(endpoint.connect().await.expect("connected")).max_decoding_message_size(64 << 20)
}

fn lend_path(socket: &Path) -> std::path::PathBuf {
    format!("{}.lend", socket.display()).into()
}

/// Everything that a client has.
struct Client {
    session: u64,
    resume: [u8; 32],
    words: Words,
    lending: LendSocket,
    lease: pb::Lease,
    segments: Vec<Segment>,
}

fn welcomed(lending: &LendSocket) -> (u64, [u8; 32], Words) {
    let (packet, descriptor) = lending.receive(false).expect("received").expect("an answer");
    let Packet::Welcome { session, resume, .. } = packet else { panic!("{packet:?}") };
    (session, resume, Words::map(descriptor.expect("the words")).expect("mapped"))
}

fn import(lending: &LendSocket, device: &Device, id: u64) -> Segment {
    lending.send(&Packet::Segment { id }, None).expect("asked");
    let (packet, descriptor) = lending.receive(false).expect("received").expect("an answer");
    let Packet::SegmentIs(LentSegment { len_bytes, allocation_bytes, backend, device: uuid, .. }) = packet
    else {
        panic!("{packet:?}")
    };
    let exported = Exported {
        descriptor: descriptor.expect("the segment's"),
        len_bytes,
        allocation_bytes,
        backend: backend.parse().expect("a backend"),
        device: uuid.parse().expect("a device"),
    };
    device.import(exported).expect("imported")
}

impl Client {
    async fn attach(socket: &Path, image: &str, device: &Device) -> Client {
        let mut control = connect(socket).await;
        let request = pb::OpenSessionRequest { name: "survivor".into() };
        let opened = control.open_session(request).await.expect("opened").into_inner();
        let lending = LendSocket::connect(&lend_path(socket), Duration::from_secs(20)).expect("connected");
        let token = opened.token.try_into().expect("a token");
        lending.send(&Packet::Hello { token }, None).expect("sent");
        let (session, resume, words) = welcomed(&lending);
        let began = Instant::now();
        let request = pb::AcquireRequest {
            session: session.to_string(),
            what: Some(pb::acquire_request::What::Image(pb::ImageRef {
                image: image.into(),
                without_tensors: false,
            })),
            ..pb::AcquireRequest::default()
        };
        let lease = control.acquire(request).await.expect("acquired").into_inner().lease.expect("a lease");
        let segments = lease.segments.iter().map(|told| import(&lending, device, told.id)).collect();
        println!("attached in {:.3} ms", began.elapsed().as_secs_f64() * 1e3);
        Client { session, resume, words, lending, lease, segments }
    }

    /// Reads part of every tensor where it lies, and compares.
    fn read(&self) {
        let mut part = vec![0; 1 << 16];
        for tensor in &self.lease.tensors {
            for from in [0, tensor.bytes.saturating_sub(part.len() as u64)] {
                let len = usize::try_from(tensor.bytes.min(part.len() as u64)).expect("short");
                let segment = &self.segments[tensor.segment as usize];
                segment.read(tensor.offset + from, &mut part[..len]).expect("read");
                let wrong =
                    (0..).zip(&part[..len]).find(|(at, byte)| model::byte(&tensor.name, from + at) != **byte);
                assert!(wrong.is_none(), "{} has a wrong byte at {wrong:?} behind {from}", tensor.name);
            }
        }
    }

    /// Attaches again; what was lost.
    fn resume(&mut self, socket: &Path) -> Vec<String> {
        self.lending =
            LendSocket::connect(&lend_path(socket), Duration::from_millis(300)).expect("connected");
        let began = Instant::now();
        self.lending
            .send(&Packet::Resume { session: self.session, resume: self.resume }, None)
            .expect("sent");
        let (_, resume, words) = welcomed(&self.lending);
        assert!(resume == self.resume && words.words().len() == self.words.words().len());
        println!("resumed in {:.3} ms", began.elapsed().as_secs_f64() * 1e3);
        let mut lost = Vec::new();
        while let Ok(Some((Packet::Lost { lease, why }, _))) = self.lending.receive(false) {
            lost.push(format!("{lease}: {why}"));
        }
        lost
    }
}

pub fn client(socket: &Path, image: &str) {
    let device = device();
    let mut client = runtime().block_on(Client::attach(socket, image, &device));
    client.read();
    println!("reading");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "read" => {
                client.read();
                println!("same bytes");
            }
            "resume" => {
                let lost = client.resume(socket);
                println!("lost {lost:?}");
            }
            "release" => {
                let word = &client.words.words()[client.lease.word as usize];
                word.store(client.lease.value, Ordering::Release);
                println!("released");
            }
            _ => panic!("{line:?}"),
        }
    }
}
