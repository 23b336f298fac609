//! Acquires of what is resident: call by call at a pace, and many on a stream.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use spoc_client::pb;
use spoc_page::Words;
use spoc_page::lend::{LendSocket, Packet};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use crate::program::{GROUPS, Place};
use crate::{Args, judge, tell};

/// Bytes of a message to and fro: about those of an acquire and its answer.
const MESSAGE: usize = 96;
const PACE: Duration = Duration::from_micros(500);
/// Groups of an acquire.
const KEYS: u32 = 16;
/// Messages of the stream that are under way at once.
const WINDOW: u32 = 64;

/// Answers each message with itself.
pub fn echo(socket: &Path) -> Result<()> {
    let listener = UnixListener::bind(socket)?;
    println!("listening");
    let (mut stream, _) = listener.accept()?;
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

/// The times of `count` of these, each begun when its time has come, µs, in order.
fn paced(count: u32, mut one: impl FnMut(u32) -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::with_capacity(count as usize);
    let began = Instant::now();
    for number in 0..count {
        let due = PACE * number;
        if let Some(left) = due.checked_sub(began.elapsed()) {
            std::thread::sleep(left);
        }
        let asked = Instant::now();
        one(number)?;
        times.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_unstable_by(f64::total_cmp);
    Ok(times)
}

fn share(sorted: &[f64], thousandths: usize) -> f64 {
    sorted.get((sorted.len() - 1) * thousandths / 1000).copied().unwrap_or(f64::NAN)
}

pub fn measure(args: &Args, place: &Place) -> Result<()> {
    let service = place.serve(false)?;
    let client = place.client()?;
    place.register(&client, "small", "a")?;
    let echoing = place.path("echo");
    let mut child =
        Command::new(std::env::current_exe()?).arg("--echo").arg(&echoing).stdout(Stdio::piped()).spawn()?;
    let mut line = [0; 9];
    child.stdout.as_mut().context("piped")?.read_exact(&mut line)?;
    let mut plain = UnixStream::connect(&echoing)?;
    let groups: Vec<u32> = (0..KEYS).collect();
    let session = client.session("measure")?;
    // Everything is resident from here on.
    for first in (0..GROUPS).step_by(64) {
        session.acquire("small", &(first..first + 64).collect::<Vec<_>>(), None)?.release();
    }
    let (mut raw, mut unary, mut keys) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()], Vec::new());
    for _ in 0..args.rounds {
        let mut message = [7; MESSAGE];
        let times = paced(args.calls, |_| {
            plain.write_all(&message)?;
            Ok(plain.read_exact(&mut message)?)
        })?;
        raw[0].push(share(&times, 500));
        raw[1].push(share(&times, 990));
        let times = paced(args.calls, |_| {
            session.acquire("small", &groups, None)?.release();
            Ok(())
        })?;
        unary[0].push(share(&times, 500));
        unary[1].push(share(&times, 990));
        keys.push(client.wait(async |client| stream(client, args.messages).await)?);
    }
    drop(plain);
    child.wait()?;
    let raw = (tell("to and fro, median", "µs", &raw[0])?, tell("to and fro, 99 %", "µs", &raw[1])?);
    let unary =
        (tell("acquire of 16 resident groups, median", "µs", &unary[0])?, tell("… 99 %", "µs", &unary[1])?);
    let keys = tell("keys on a stream, 16 a message", "1/s", &keys)?;
    judge("acquire over to and fro, medians", unary.0 / raw.0, unary.0 <= 2.0 * raw.0, "≤ 2");
    judge("… 99 %", unary.1 / raw.1, unary.1 <= 5.0 * raw.1, "≤ 5");
    judge("keys a second on a stream", keys, keys >= 50_000.0, "≥ 50000");
    drop(session);
    drop(service);
    Ok(())
}

/// Acquires on a stream, each ended by its word as soon as its answer is there; keys a second.
async fn stream(client: &spoc_client::Client, messages: u32) -> Result<f64> {
    let mut rpc = client.rpc()?;
    let opened = rpc.open_session(pb::OpenSessionRequest { name: "stream".into() }).await?.into_inner();
    let token = opened.token.as_slice().try_into()?;
    let lend = LendSocket::connect(Path::new(&opened.lend_path), Duration::from_secs(10))?;
    lend.send(&Packet::Hello { token }, None)?;
    let (_, descriptor) = lend.receive(false)?.context("a welcome")?;
    let words = Words::map(descriptor.context("the words")?)?;
    let (requests, asked) = tokio::sync::mpsc::channel(WINDOW as usize);
    let mut answers = rpc.acquire_stream(ReceiverStream::new(asked)).await?.into_inner();
    let request = |number: u32| {
        let first = number * KEYS % GROUPS;
        let keys = pb::KeySet {
            model: "small".into(),
            device: String::new(),
            groups: (first..first + KEYS).collect(),
        };
        pb::AcquireRequest {
            session: opened.session.clone(),
            tag: u64::from(number) + 1,
            what: Some(pb::acquire_request::What::Keys(keys)),
            timeout_ms: 0,
        }
    };
    let began = Instant::now();
    for number in 0..WINDOW.min(messages) {
        requests.send(request(number)).await?;
    }
    for number in 0..messages {
        let answer = answers.next().await.context("the stream has ended")??;
        let lease = answer.lease.with_context(|| answer.error_message.clone())?;
        ensure!(lease.slots.len() == KEYS as usize, "a slot for each");
        words.words()[lease.word as usize].fetch_max(lease.value, Ordering::AcqRel);
        if number + WINDOW < messages {
            requests.send(request(number + WINDOW)).await?;
        }
    }
    Ok(f64::from(messages * KEYS) / began.elapsed().as_secs_f64())
}
