//! Starts, ends, and what it costs while nothing happens.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use spoc_measurements::device::DeviceArgs;

use crate::program::{Place, Running};
use crate::{Args, judge, tell};

pub fn measure(args: &Args, place: &Place) -> Result<()> {
    idle(args, place)?;
    starts(args, place)?;
    returns(args, place)
}

/// Processor time that a process has used, s.
fn cpu(pid: u32) -> Result<f64> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    let mut total = 0.0;
    for task in tasks.flatten() {
        let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let ns: f64 = text.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
        total += ns / 1e9;
    }
    Ok(total)
}

fn watched(service: &Running, seconds: u64) -> Result<f64> {
    let (before, began) = (cpu(service.pid())?, Instant::now());
    std::thread::sleep(Duration::from_secs(seconds));
    Ok((cpu(service.pid())? - before) / began.elapsed().as_secs_f64() * 100.0)
}

fn idle(args: &Args, place: &Place) -> Result<()> {
    let service = place.serve(false)?;
    let client = place.client()?;
    place.register(&client, "small", "a")?;
    place.register(&client, "large", "")?;
    let image = client.load("large", |_, _| {})?.image;
    let session = client.session("idle")?;
    std::thread::sleep(Duration::from_secs(2));
    let nothing = watched(&service, args.idle_s)?;
    let _held = (session.acquire("small", &[1, 2, 3], None)?, session.acquire_image(&image)?);
    let held = watched(&service, args.idle_s)?;
    tell("idle, an image resident and a client attached", "% of a core", &[nothing])?;
    tell("idle, with leases out", "% of a core", &[held])?;
    judge("idle, % of a core", nothing, nothing < 0.5, "< 0.5");
    Ok(())
}

fn starts(args: &Args, place: &Place) -> Result<()> {
    let (mut all, mut own) = (Vec::new(), Vec::new());
    for _ in 0..args.starts {
        let service = place.serve(false)?;
        let driver = service.ready["driver_seconds"].as_f64().context("driver_seconds")?;
        all.push(service.ready_after.as_secs_f64() * 1e3);
        own.push((service.ready_after.as_secs_f64() - driver) * 1e3);
    }
    tell("start to ready", "ms", &all)?;
    let own = tell("… without the driver's own start", "ms", &own)?;
    judge("start to ready without the driver, ms", own, own <= 300.0, "≤ 300");
    Ok(())
}

/// The first answer of a service that begins where another was killed.
fn returns(args: &Args, place: &Place) -> Result<()> {
    let keeper = place.keeper()?;
    let mut service = place.serve(true)?;
    let client = place.client()?;
    place.register(&client, "small", "a")?;
    place.register(&client, "large", "")?;
    let image = client.load("large", |_, _| {})?.image;
    let device = DeviceArgs { backend: args.backend.clone(), index: 0 }.open()?;
    let (mut first, mut own, mut attach, mut again) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let session = client.session("stays")?;
    let held = session.acquire_image(&image)?;
    let (segment, offset) = held.memory(&device, 0)?;
    let mut before = [0; 4096];
    segment.read(offset, &mut before)?;
    for _ in 0..args.starts {
        let killed = Instant::now();
        service.kill()?;
        service = place.serve(true)?;
        let other = place.client()?;
        ensure!(other.wait(async |client| client.images().await)?.len() == 1, "the image was not taken over");
        let answered = killed.elapsed();
        let driver = service.ready["driver_seconds"].as_f64().context("driver_seconds")?;
        first.push(answered.as_secs_f64() * 1e3);
        own.push((answered.as_secs_f64() - driver) * 1e3);
        let began = Instant::now();
        session.reattach()?;
        again.push(began.elapsed().as_secs_f64() * 1e3);
        let mut now = [0; 4096];
        segment.read(offset, &mut now)?;
        ensure!(now == before, "other bytes");
        // A client that begins anew, with a device that it has opened.
        let began = Instant::now();
        let fresh = other.session("comes")?;
        let lease = fresh.acquire_image(&image)?;
        for index in 0..lease.tensors().len() {
            lease.memory(&device, index)?;
        }
        attach.push(began.elapsed().as_secs_f64() * 1e3);
    }
    tell("SIGKILL to the first answer of the next", "ms", &first)?;
    let own = tell("… without the driver's own start", "ms", &own)?;
    let attach = tell("attached to all of the model, imported", "ms", &attach)?;
    tell("a session attached again", "ms", &again)?;
    judge("SIGKILL to the first answer without the driver, ms", own, own <= 1000.0, "≤ 1000");
    judge("attached, ms", attach, attach <= 50.0, "≤ 50");
    drop((held, session, keeper));
    Ok(())
}
