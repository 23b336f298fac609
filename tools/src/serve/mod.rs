//! `spoc-loader serve` and `spoc-loader config`: the service as a program.

pub mod args;

use std::sync::Arc;
use std::time::{Duration, Instant};

use spoc_cache::stats::Counters;
use spoc_driver::Device;
use spoc_service::{Config, Parked, Service};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::DeviceArgs;
use crate::devices::Found;
use crate::failure::{Failure, Result};
use crate::out::{Out, note};
use crate::publish;
use args::{ConfigCommand, ServeArgs};

/// Checks or prints a configuration.
///
/// # Errors
/// `config`, `not_found`.
pub fn config(command: &ConfigCommand, out: Out) -> Result<u8> {
    match command {
        ConfigCommand::Check(args) => {
            let config = args.config()?;
            let devices = open(&config)?;
            let count = devices.len();
            out.answer(&serde_json::json!({"ok": true, "devices": count}), |_| {
                format!("good; {count} devices")
            });
        }
        ConfigCommand::Print(args) => {
            let text = args.config()?.print();
            out.answer(&serde_json::json!({ "config": text }), |_| text.trim_end().to_owned());
        }
    }
    Ok(0)
}

/// Serves until it is told to end.
///
/// # Errors
/// `config`, `socket_in_use`, `no_device`, what devices and kernel say.
pub fn run(args: &ServeArgs, out: Out) -> Result<u8> {
    // Before anything else opens a file.
    let inherited = spoc_page::inherited()
        .map_err(|error| Failure::new("os", format_args!("descriptors of the service manager: {error}")))?;
    let config = args.config()?;
    let began = Instant::now();
    let devices = open(&config)?;
    let drivers = began.elapsed();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(usize::from(args.threads))
        .thread_name("spoc-serve")
        .enable_all()
        .build()
        .map_err(|error| Failure::new("os", format_args!("starting threads: {error}")))?;
    let inherited = inherited.into_iter().map(|one| (one.name, one.descriptor)).collect();
    runtime.block_on(serve(args, (config, devices, inherited), drivers, out))
}

/// Opens the configured devices: all are there, or the service does not start.
fn open(config: &Config) -> Result<Vec<Device>> {
    if config.devices.is_empty() {
        let any = DeviceArgs { backend: None, device: None };
        return Ok(vec![Found::for_args(&any)?.open(&any)?]);
    }
    // One driver for all, so that each is opened once.
    let found = Found::now()?;
    let named = |text: &String| match text.split_once(':') {
        Some((backend, index)) if index.parse::<u32>().is_ok() => {
            DeviceArgs { backend: Some(backend.to_owned()), device: Some(index.to_owned()) }
        }
        _ => DeviceArgs { backend: None, device: Some(text.clone()) },
    };
    config.devices.iter().map(|text| found.open(&named(text))).collect()
}

async fn serve(
    args: &ServeArgs,
    (config, devices, inherited): (Config, Vec<Device>, Parked),
    drivers: Duration,
    out: Out,
) -> Result<u8> {
    // Before anything is served, so that a signal is never the end of a process with half a service in it.
    let (mut ends, mut interrupts, mut hangups) =
        (on(SignalKind::terminate())?, on(SignalKind::interrupt())?, on(SignalKind::hangup())?);
    let socket = config.socket.display().to_string();
    let names: Vec<String> =
        devices.iter().map(|device| format!("{} {}", device.info().backend, device.info().uuid)).collect();
    let counters = Arc::new(|label: &str, slots: usize| -> Counters { publish::labelled(label, slots) });
    let service = Service::start_with(config, devices, counters, inherited).await?;
    if let Some(survived) = service.survived().filter(|survived| !survived.dropped.is_empty()) {
        note(format_args!("not taken over from the last run: {}", survived.dropped.join("; ")));
    }
    let ready = serde_json::json!({
        "adopted_images": service.survived().map_or(0, |survived| survived.images),
        "adopted_leases": service.survived().map_or(0, |survived| survived.leases),
        "ready": true,
        "socket": socket,
        "devices": names,
        "metrics": service.metrics_address(),
        "ready_seconds": service.ready_after().as_secs_f64(),
        "driver_seconds": drivers.as_secs_f64(),
    });
    out.answer(&ready, |_| format!("ready on {socket}: {}", names.join(", ")));
    spoc_service::ops::systemd::ready(&format!("serving on {socket}"));
    loop {
        tokio::select! {
            _ = ends.recv() => break,
            _ = interrupts.recv() => break,
            () = service.ended() => break,
            _ = hangups.recv() => reload(args, &service),
        }
    }
    spoc_service::ops::systemd::stopping("draining");
    let left = service.stop(args.drain).await;
    if left > 0 {
        note(format_args!("{left} leases were still out; their memory stays with those who mapped it"));
    }
    Ok(0)
}

fn on(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Failure::new("os", format_args!("watching signals: {error}")))
}

fn reload(args: &ServeArgs, service: &Service) {
    spoc_service::ops::systemd::reloading();
    match args.config() {
        Ok(config) => {
            let stays = service.reload(config);
            if stays.is_empty() {
                tracing::info!("the configuration was read again");
            } else {
                tracing::warn!(?stays, "the configuration was read again; these change with a restart only");
            }
        }
        Err(error) => tracing::error!(%error, "the configuration stays as it was"),
    }
    spoc_service::ops::systemd::ready("serving");
}
