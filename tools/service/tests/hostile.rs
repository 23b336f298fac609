//! Requests as nobody sensible makes them: any field anything. Each is answered, with a kind that docs/errors.md has.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests are tests

mod common;

use common::{Rpc, attach, kind, load, model, register, start};
use spoc_proto::v1 as pb;
use std::time::Duration;
use tonic::{Code, Status};

const ARENA: &str =
    "[quota]\nkeys = 32\nleases = 64\n[[arena]]\nname = \"a\"\nclasses = [{ slots = 4, slot = \"64KiB\" }]\n";

/// The same numbers every time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.next() % of.len() as u64).unwrap()].clone()
    }

    fn number(&mut self) -> u64 {
        let any = self.next();
        self.pick(&[0, 1, 2, 63, 64, 4096, u64::from(u32::MAX), 1 << 40, i64::MAX as u64, u64::MAX, any])
    }

    fn small(&mut self) -> u32 {
        self.pick(&[0, 1, 2, 3, 4, 7, 8, u32::MAX])
    }

    fn text(&mut self, good: &[String]) -> String {
        let odd = [
            "",
            "..",
            "/",
            "/etc/passwd",
            "../../etc",
            "a\nb",
            "\u{0}",
            "auto",
            "*",
            "[",
            "[[",
            "m@",
            "#",
            "-1",
            "\u{202e}x",
        ];
        match self.next() % 3 {
            0 => self.pick(&odd).to_owned(),
            1 => "x".repeat(usize::try_from(self.next() % 3000).unwrap()),
            _ => self.pick(good),
        }
    }

    fn keys(&mut self, good: &[String]) -> pb::KeySet {
        let count = self.next() % 40;
        let groups = (0..count).map(|_| self.small()).collect();
        let device = if self.next().is_multiple_of(4) { self.text(good) } else { String::new() };
        pb::KeySet { model: self.text(good), device, groups }
    }
}

/// One call of any kind.
async fn call(dice: &mut Dice, rpc: &mut Rpc, good: &[String]) -> Result<(), Status> {
    let session = dice.text(good);
    match dice.next() % 12 {
        0 => {
            let what = match dice.next() % 3 {
                0 => None,
                1 => Some(pb::acquire_request::What::Keys(dice.keys(good))),
                _ => Some(pb::acquire_request::What::Image(pb::ImageRef {
                    image: dice.text(good),
                    without_tensors: true,
                })),
            };
            // As long as it takes is for clients that are there to give it up.
            let timeout_ms = dice.number().clamp(1, 20);
            rpc.acquire(pb::AcquireRequest { session, tag: dice.number(), what, timeout_ms }).await.map(drop)
        }
        1 => rpc
            .release(pb::ReleaseRequest {
                session,
                leases: vec![dice.number(), dice.number(), 1],
                tags: Vec::new(),
            })
            .await
            .map(drop),
        2 => {
            let request = pb::RegisterModelRequest {
                name: dice.text(good),
                source: dice.text(good),
                arena: dice.text(good),
                group_pattern: dice.text(good),
                share: dice.small(),
                floor_slots: dice.small(),
            };
            rpc.register_model(request).await.map(drop)
        }
        3 => rpc.describe_model(pb::DescribeModelRequest { model: dice.text(good) }).await.map(drop),
        4 => {
            let (model, device, tensors) = (dice.text(good), dice.text(good), dice.text(good));
            let verify = dice.next().is_multiple_of(2);
            rpc.load(pb::LoadRequest { model, device, verify, tensors }).await.map(drop)
        }
        5 => {
            let tensor = pb::Placement {
                segment: dice.small(),
                offset: dice.number(),
                bytes: dice.number(),
                shape: vec![dice.number(); 3],
                ..pb::Placement::default()
            };
            let request = pb::CreateImageRequest {
                session,
                name: dice.text(good),
                segment_bytes: (0..dice.next() % 3)
                    .map(|_| dice.pick(&[0, 1, 4096, 1 << 20, 1 << 50, u64::MAX]))
                    .collect(),
                tensors: vec![tensor],
                ..pb::CreateImageRequest::default()
            };
            rpc.create_image(request).await.map(drop)
        }
        6 => rpc.seal_image(pb::SealImageRequest { session, image: dice.text(good) }).await.map(drop),
        7 => {
            let keys = Some(dice.keys(good));
            let (deadline_ms, is_refill) = (dice.number(), dice.next().is_multiple_of(2));
            rpc.prefetch(pb::PrefetchRequest { session, keys, deadline_ms, is_refill }).await.map(drop)
        }
        8 => {
            let what = Some(pb::pin_request::What::Keys(dice.keys(good)));
            // Nothing stays pinned: what is not is refused or left alone.
            rpc.pin(pb::PinRequest { session, what, unpin: true }).await.map(drop)
        }
        9 => {
            let what = Some(pb::evict_request::What::Keys(dice.keys(good)));
            rpc.evict(pb::EvictRequest { what }).await.map(drop)
        }
        10 => {
            // As many as it has: not to find out how much memory there is.
            let slots = 4;
            let timeout_ms = dice.number().clamp(1, 20);
            rpc.resize(pb::ResizeRequest { arena: dice.text(good), slots, timeout_ms }).await.map(drop)
        }
        _ => rpc.open_session(pb::OpenSessionRequest { name: dice.text(good) }).await.map(drop),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_request_is_answered_and_the_service_goes_on() {
    let running = start(ARENA).await;
    let mut rpc = running.rpc().await;
    register(&mut rpc, &model(running.folder.path(), "m.safetensors", 8, 60_000), "a").await.unwrap();
    let whole = model(running.folder.path(), "w.safetensors", 3, 60_000);
    register(&mut rpc, &whole, "").await.unwrap();
    let image = load(&mut rpc, "w").await.unwrap().image;
    let session = attach(&mut rpc).await;
    let good = [session.id.clone(), "m".into(), "w".into(), "a".into(), image, whole.display().to_string()];
    let documented = include_str!("../../../docs/errors.md");
    let mut dice = Dice(0x005e_ed0f_7e57);
    let (mut fine, mut refused) = (0, 0);
    for number in 0..3000 {
        let answered = tokio::time::timeout(Duration::from_secs(20), call(&mut dice, &mut rpc, &good)).await;
        match answered.unwrap_or_else(|_| panic!("request {number} was not answered")) {
            Ok(()) => fine += 1,
            Err(status) => {
                let kind = kind(&status);
                assert!(
                    documented.contains(&format!("| `{kind}` |")),
                    "request {number}: {kind}: {status:?}"
                );
                assert!(kind != "internal" && status.code() != Code::Unknown, "request {number}: {status:?}");
                assert!(!status.message().contains('\n'), "request {number}: {:?}", status.message());
                refused += 1;
            }
        }
    }
    assert!(fine > 100 && refused > 1000, "{fine} fine, {refused} refused");
    rpc.release(pb::ReleaseRequest {
        session: session.id.clone(),
        leases: (0..5000).collect(),
        tags: Vec::new(),
    })
    .await
    .unwrap();
    let lease = rpc.acquire(session.keys("m", &[0, 1, 2, 3])).await.unwrap().into_inner().lease.unwrap();
    assert_eq!(lease.slots.len(), 4);
}
