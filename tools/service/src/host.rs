//! The devices of this host, each with its pump.

use crate::config::Config;
use crate::error::{Error, Result};
use spoc_cache::stats::Counters;
use spoc_cache::{Pump, PumpOptions};
use spoc_driver::Device;
use spoc_io::IoMode;
use spoc_proto::v1 as pb;
use std::sync::Arc;

/// Makes counters for whatever a label names, with room for so many slots: a statistics page, or just memory.
pub type CountersFor<'a> = &'a (dyn Fn(&str, usize) -> Counters + Send + Sync);

/// A device, its reader and copy thread.
#[derive(Debug)]
pub struct HostDevice {
    pub device: Device,
    pub pump: Arc<Pump>,
    pub counters: Counters,
    /// As clients name it.
    pub uuid: String,
}

impl HostDevice {
    /// As clients are told of it.
    pub fn told(&self, index: u32) -> pb::Device {
        let info = self.device.info();
        let memory = self.device.memory().ok();
        let lending = &self.device.capabilities().export_memory;
        pb::Device {
            uuid: self.uuid.clone(),
            backend: info.backend.as_str().to_owned(),
            name: info.name.clone(),
            index,
            memory_bytes: memory.map_or(0, |memory| memory.total_bytes),
            free_bytes: memory.map_or(0, |memory| memory.free_bytes),
            can_lend: lending.is_available(),
            cannot_lend_because: lending.reason().unwrap_or_default().to_owned(),
            read_only_enforced: false,
        }
    }
}

/// All of them, in the order of the configuration.
#[derive(Debug)]
pub struct Host(pub Vec<HostDevice>);

impl Host {
    /// Starts a pump for each device.
    ///
    /// # Errors
    /// `staging_too_small`, what host and device say.
    pub fn start(config: &Config, devices: Vec<Device>, counters: CountersFor<'_>) -> Result<Host> {
        let staging = usize::try_from(config.staging.0).map_err(|error| Error::new("config", error))?;
        let mut started = Vec::with_capacity(devices.len());
        for device in devices {
            let counters = counters(&format!("device {}", device.info().uuid), 0);
            let mut options = PumpOptions::new(IoMode::Auto, staging)?;
            options.reader.check_threads = 2;
            options.counters = Some(counters.clone());
            let pump = Pump::start(&device, options)?;
            let uuid = device.info().uuid.to_string();
            started.push(HostDevice { device, pump, counters, uuid });
        }
        if started.is_empty() {
            return Err(Error::new("no_device", "the service has no device"));
        }
        Ok(Host(started))
    }

    /// What tells this device from the others in names: the beginning of its UUID, or all of it.
    pub fn short<'a>(&self, device: &'a HostDevice) -> &'a str {
        let short = device.uuid.get(..8).unwrap_or(&device.uuid);
        let alike = self.0.iter().filter(|other| other.uuid.starts_with(short)).count();
        if alike > 1 { &device.uuid } else { short }
    }

    /// The device of this UUID; the first for an empty one.
    ///
    /// # Errors
    /// `no_device`, with those there are.
    pub fn get(&self, uuid: &str) -> Result<&HostDevice> {
        let found = match uuid {
            "" => self.0.first(),
            _ => self.0.iter().find(|device| device.uuid == uuid),
        };
        found.ok_or_else(|| {
            let there: Vec<&str> = self.0.iter().map(|device| device.uuid.as_str()).collect();
            Error::new("no_device", format!("{uuid:?} is no device of this service; there are {there:?}"))
        })
    }
}
