//! Load and faults: clients in processes of their own acquire and release at random, some are killed, reads fail, the
//! device fills up, the configuration is reloaded. No lease leaks, no byte is wrong, memory stays flat.
//!
//! `SPOC_LOAD_SECONDS` is how long (20 unless set, 600 for the long form); the figures are printed with `--nocapture`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // helpers of tests are tests

mod common;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{config, native, pattern, socket, start, write_model};
use spoc_client::{Error, blocking, pb};
use xxhash_rust::xxh3::xxh3_64;

const PROCESSES: usize = 8;
const THREADS: usize = 8;
const LAYERS: u32 = 40;
const LEN: usize = 65_536;
const IMAGE_LAYERS: usize = 16;
/// Of the service's device: room for arena, image and a few images of clients.
const DEVICE_BYTES: &str = "48MiB";
const OWN_IMAGE_BYTES: u64 = 8 << 20;
const CONFIG: &str =
    "[quota]\nwaiting = 512\n[[arena]]\nname = \"a\"\nclasses = [{ slots = 24, slot = \"64KiB\" }]\n";
/// Kinds that load and faults bring about, and that a client lives with.
const EXPECTED: [&str; 5] = ["timed_out", "device_too_small", "quota_exceeded", FAULT_OF_DISK, FAULT_OF_FILE];
/// What a read of a broken block is answered with, and of a file that was cut off.
const FAULT_OF_DISK: &str = "io_error";
const FAULT_OF_FILE: &str = "changed";

/// What a process of this test is; the test itself, if nothing is said.
const ROLE: &str = "SPOC_LOAD_ROLE";
const FOLDER: &str = "SPOC_LOAD_FOLDER";

fn seconds() -> u64 {
    std::env::var("SPOC_LOAD_SECONDS")
        .map_or(20, |text| text.parse().expect("SPOC_LOAD_SECONDS: whole seconds"))
}

/// A process that is ended when the test is.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn output(&mut self) -> (bool, String) {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().success(), text)
    }
}

/// Another process of this test.
fn spawn(role: &str, folder: &Path, seed: usize) -> Process {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "role", "--nocapture"])
        .env(ROLE, role)
        .env(FOLDER, folder)
        .env("SPOC_LOAD_SEED", seed.to_string())
        .env("SPOC_NATIVE_BYTES", DEVICE_BYTES)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    Process(child.unwrap())
}

/// Runs in the processes that the test starts; nothing in the test itself.
#[test]
fn role() {
    let folder = std::env::var_os(FOLDER).map(PathBuf::from).unwrap_or_default();
    match std::env::var(ROLE).as_deref() {
        Ok("service") => service(&folder),
        Ok("client") => client(&folder),
        _ => {}
    }
}

fn service(folder: &Path) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let service = start(config(folder, CONFIG)).await;
        for round in 0u32.. {
            // Reloaded twice a second, with other quotas each time.
            tokio::time::sleep(Duration::from_millis(500)).await;
            let mut other = config(folder, CONFIG);
            other.quota.leases = 2000 + round % 2;
            assert!(service.reload(other).is_empty());
            if folder.join("end").exists() {
                let left = service.stop(Duration::from_secs(10)).await;
                std::fs::write(folder.join("left"), left.to_string()).unwrap();
                return;
            }
        }
    });
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 33) % u64::from(most)).unwrap()
    }
}

fn client(folder: &Path) {
    let seed: u64 = std::env::var("SPOC_LOAD_SEED").unwrap().parse().unwrap();
    let threads: Vec<_> = (0..THREADS as u64)
        .map(|thread| {
            let folder = folder.to_owned();
            std::thread::spawn(move || work(&folder, Random(seed * 1000 + thread * 7 + 1)))
        })
        .collect();
    println!();
    for thread in threads {
        let Work { times, faults } = thread.join().expect("a client thread");
        let times: Vec<String> = times.iter().map(u64::to_string).collect();
        println!("times {}", times.join(" "));
        faults.iter().for_each(|(kind, count)| println!("fault {kind} {count}"));
    }
}

/// What a client's thread has seen.
#[derive(Default)]
struct Work {
    /// How long each acquire took, µs.
    times: Vec<u64>,
    faults: BTreeMap<String, u64>,
}

/// Leases until the end is called.
fn work(folder: &Path, mut random: Random) -> Work {
    let client = blocking::Client::connect(socket(folder)).unwrap();
    let (session, device) = (client.session("load").unwrap(), native());
    let expected: Vec<u64> = (0..u64::from(LAYERS)).map(|layer| xxh3_64(&pattern(1 + layer, LEN))).collect();
    let (mut bytes, mut seen) = (vec![0; LEN], Work::default());
    while !folder.join("stop").exists() {
        let began = Instant::now();
        let outcome = match random.below(20) {
            0 => {
                let layer = random.below(LAYERS);
                session.acquire("broken", &[layer], Some(Duration::from_secs(2))).map(|lease| {
                    let (segment, offset) = lease.memory(&device, 0).unwrap();
                    segment.read(offset, &mut bytes).unwrap();
                    assert!(bytes == pattern(900 + u64::from(layer), LEN), "broken, layer {layer}");
                })
            }
            1 => fill(&session, &client, random.below(1_000_000)),
            2 => session.acquire_image(&image(folder)).map(|lease| {
                let index = random.below(u32::try_from(lease.tensors().len()).unwrap()) as usize;
                let layer: u64 = lease.tensors()[index].name.split('.').nth(2).unwrap().parse().unwrap();
                let (segment, offset) = lease.memory(&device, index).unwrap();
                segment.read(offset, &mut bytes).unwrap();
                assert!(bytes == pattern(500 + layer, LEN), "image, layer {layer}");
            }),
            _ => {
                let groups: Vec<u32> = (0..1 + random.below(3)).map(|_| random.below(LAYERS)).collect();
                session.acquire("model", &groups, Some(Duration::from_secs(2))).map(|lease| {
                    seen.times.push(u64::try_from(began.elapsed().as_micros()).unwrap());
                    for (index, group) in groups.iter().enumerate() {
                        let (segment, offset) = lease.memory(&device, index).unwrap();
                        segment.read(offset, &mut bytes).unwrap();
                        assert_eq!(xxh3_64(&bytes), expected[*group as usize], "group {group}");
                    }
                    std::thread::sleep(Duration::from_micros(random.below(2000).into()));
                })
            }
        };
        if let Err(error) = outcome {
            assert!(EXPECTED.contains(&error.kind()), "{error}");
            *seen.faults.entry(error.kind().to_owned()).or_default() += 1;
        }
    }
    seen
}

fn image(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("image")).unwrap()
}

/// Takes device memory until there is none, then gives it back; the refusal is the answer.
fn fill(session: &blocking::Session, client: &blocking::Client, number: u32) -> Result<(), Error> {
    let mut taken = Vec::new();
    let refused = loop {
        let name = format!("own-{}-{number}-{}", std::process::id(), taken.len());
        let tensor = pb::Placement { name: "t".into(), bytes: 8, ..pb::Placement::default() };
        let request = pb::CreateImageRequest {
            name: name.clone(),
            segment_bytes: vec![OWN_IMAGE_BYTES],
            tensors: vec![tensor],
            ..pb::CreateImageRequest::default()
        };
        match session.wait(async |session| session.create_image(request).await) {
            Ok((_, lease)) => taken.push((name, lease)),
            Err(error) => break error,
        }
    };
    for (name, lease) in taken {
        drop(lease);
        client.wait(async |client| client.evict(pb::evict_request::What::Image(name)).await)?;
    }
    Err(refused)
}

/// Resident memory of a process that is nobody else's, bytes.
fn memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.0.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    for _ in 0..1500 {
        if let Some(found) = ask() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen within 30 s");
}

/// A folder on a disk that loses its second half once it is told to: blocks there are answered with EIO.
struct BadDisk {
    folder: PathBuf,
    disk: PathBuf,
}

const DISK_BYTES: u64 = 8 << 20;

impl BadDisk {
    /// `None` where this process may not mount.
    fn mount(folder: &Path) -> Option<BadDisk> {
        let (disk, mounted) = (folder.join("disk"), folder.join("mounted"));
        std::fs::File::create(&disk).unwrap().set_len(DISK_BYTES).unwrap();
        std::fs::create_dir(&mounted).unwrap();
        let run = |program: &str, args: &[&std::ffi::OsStr]| {
            let run = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
            run.is_ok_and(|status| status.success())
        };
        let mount = || run("mount", &["-o".as_ref(), "loop".as_ref(), disk.as_ref(), mounted.as_ref()]);
        if !run("mkfs.ext2", &["-q".as_ref(), disk.as_ref()]) || !mount() {
            return None;
        }
        let bad = BadDisk { folder: mounted.clone(), disk: disk.clone() };
        write_model(&bad.model(), 900, LAYERS as usize, LEN);
        // Nothing of it is in the page cache behind this.
        assert!(run("umount", &[mounted.as_ref()]) && mount());
        Some(bad)
    }

    fn model(&self) -> PathBuf {
        self.folder.join("broken.safetensors")
    }

    fn break_half(&self) {
        let disk = std::fs::File::options().write(true).open(&self.disk).unwrap();
        disk.set_len(DISK_BYTES / 4).unwrap();
    }
}

impl Drop for BadDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.folder).status();
    }
}

fn prepare(folder: &Path, disk: Option<&BadDisk>) -> blocking::Client {
    let broken = disk.map_or_else(|| folder.join("broken.safetensors"), BadDisk::model);
    if disk.is_none() {
        write_model(&broken, 900, LAYERS as usize, LEN);
    }
    write_model(&folder.join("model.safetensors"), 1, LAYERS as usize, LEN);
    write_model(&folder.join("whole.safetensors"), 500, IMAGE_LAYERS, LEN);
    let client = wait_for("a service", || blocking::Client::connect(socket(folder)).ok());
    let source = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    client.register(&source("model.safetensors"), "model", "a").unwrap();
    client.register(broken.to_str().unwrap(), "broken", "a").unwrap();
    client.register(&source("whole.safetensors"), "whole", "").unwrap();
    // From now on its reads fail.
    match disk {
        Some(disk) => disk.break_half(),
        None => std::fs::File::options().write(true).open(broken).unwrap().set_len(5000).unwrap(),
    }
    let image = client.load("whole", |_, _| {}).unwrap().image;
    std::fs::write(folder.join("image"), image).unwrap();
    client
}

#[test]
fn nothing_leaks_under_load_and_faults() {
    if std::env::var_os(ROLE).is_some() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (folder, seconds) = (folder.path(), seconds());
    let disk = BadDisk::mount(folder);
    if disk.is_none() {
        println!("not run: a disk with broken blocks, which needs to mount; a file that is cut off instead");
    }
    let mut service = spawn("service", folder, 0);
    let client = prepare(folder, disk.as_ref());
    let mut clients: Vec<Process> =
        (0..PROCESSES).map(|number| spawn("client", folder, number + 1)).collect();
    let (began, mut killed, mut samples) = (Instant::now(), 0, Vec::new());
    let all = Duration::from_secs(seconds);
    // A process in ten is killed: of those that run at the end and those that were killed, counted together.
    let kill_every = (all / 4).min(Duration::from_secs(15));
    while began.elapsed() < all {
        std::thread::sleep(all.div_f64(100.0).min(Duration::from_secs(1)));
        samples.push((began.elapsed().as_secs_f64(), memory(&service)));
        if began.elapsed() > kill_every * (killed + 1) {
            killed += 1;
            let one = killed as usize % PROCESSES;
            // Its end comes with the old value's drop, by SIGKILL.
            clients[one] = spawn("client", folder, 100 + killed as usize);
        }
    }
    std::fs::write(folder.join("stop"), b"").unwrap();
    let seen = all_seen(&mut clients);
    // Everybody has gone: nothing is held.
    wait_for("the end of all leases", || {
        let stats = client.stats().unwrap();
        let arena = &stats.arenas[0];
        let quiet =
            stats.sessions.is_empty() && arena.leased == 0 && arena.draining == 0 && arena.loading == 0;
        quiet.then_some(())
    });
    // Images that killed clients were writing went with them.
    let images = client.wait(async |client| client.images().await).unwrap();
    assert!(killed > 0 && images.len() == 1 && images[0].leases == 0, "{images:?}");
    let growth = growth_per_minute(&samples);
    let at = |share: usize| seen.times.get(seen.times.len().saturating_sub(1) * share / 1000).copied();
    println!(
        "{} leases in {seconds} s: median {} µs, 99 % within {} µs; {killed} processes of {THREADS} clients killed; \
         faults {:?}; memory {:.2} MiB, {growth:+.3} MiB a minute",
        seen.times.len(),
        at(500).unwrap_or(0),
        at(990).unwrap_or(0),
        seen.faults,
        samples.last().unwrap().1 as f64 / 1048576.0,
    );
    let fault = if disk.is_some() { FAULT_OF_DISK } else { FAULT_OF_FILE };
    assert!(seen.times.len() > 100, "hardly any work was done");
    assert!(
        [fault, "device_too_small"].iter().all(|kind| seen.faults.contains_key(*kind)),
        "{:?}",
        seen.faults
    );
    if seconds >= 300 {
        assert!(growth < 1.0, "memory grows by {growth} MiB a minute");
    }
    std::fs::write(folder.join("end"), b"").unwrap();
    assert!(service.0.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(folder.join("left")).unwrap(), "0");
}

/// What all clients have seen, times in order.
fn all_seen(clients: &mut [Process]) -> Work {
    let mut all = Work::default();
    for client in clients {
        let (is_good, text) = client.output();
        assert!(is_good, "a client failed: {text}");
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                ["times", ref times @ ..] => {
                    all.times.extend(times.iter().filter_map(|us| us.parse::<u64>().ok()));
                }
                ["fault", kind, count] => {
                    *all.faults.entry(kind.to_owned()).or_default() += count.parse::<u64>().unwrap();
                }
                _ => {}
            }
        }
    }
    all.times.sort_unstable();
    all
}

/// Slope over the last four fifths, MiB a minute.
fn growth_per_minute(samples: &[(f64, u64)]) -> f64 {
    let last = &samples[samples.len() / 5..];
    let count = last.len() as f64;
    let bytes = |sample: &(f64, u64)| sample.1 as f64;
    let (time, memory) = (
        last.iter().map(|sample| sample.0).sum::<f64>() / count,
        last.iter().map(bytes).sum::<f64>() / count,
    );
    let both: f64 = last.iter().map(|sample| (sample.0 - time) * (bytes(sample) - memory)).sum();
    let square: f64 = last.iter().map(|sample| (sample.0 - time).powi(2)).sum();
    both / square * 60.0 / 1048576.0
}
