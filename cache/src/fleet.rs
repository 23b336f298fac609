//! Slot caches over several devices: a group of tensors may be in the slots of one device, of some, or of all.

use crate::cache::{CacheOptions, SlotCache};
use crate::catalogue::Catalogue;
use crate::engine::Hinted;
use crate::key::{Key, ModelId};
use crate::lease::{Acquire, Lease};
use crate::pump::PumpGroup;
use crate::{Error, ErrorKind, Result};
use spoc_driver::Stream;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Instant;

/// A slot cache for each device of a [`PumpGroup`]. Each decides for itself what leaves; what two of them read at about the
/// same time is read once.
#[derive(Debug)]
pub struct Fleet {
    caches: Vec<SlotCache>,
    group: PumpGroup,
}

/// A model that every cache of a fleet knows.
#[derive(Debug, Clone)]
pub struct FleetModel {
    ids: Vec<ModelId>,
    homes: Vec<u32>,
}

impl FleetModel {
    /// The device that a group belongs to, if it is kept on one: see [`balance`].
    #[must_use]
    pub fn home(&self, group: u32) -> Option<usize> {
        self.homes.get(group as usize).map(|home| *home as usize)
    }
}

impl Fleet {
    /// A cache with these options on each device, in the order of the group.
    ///
    /// # Errors
    /// [`ErrorKind::TooFewDevices`] unless there are as many options as devices; as of [`SlotCache::new`].
    pub fn new(group: PumpGroup, options: Vec<CacheOptions>) -> Result<Fleet> {
        let (need, have) = (options.len(), group.pumps().len());
        if need != have {
            let need = u32::try_from(need).unwrap_or(u32::MAX);
            return Err(Error::new(ErrorKind::TooFewDevices { need, have }));
        }
        let caches = group.pumps().iter().zip(options).map(|(pump, options)| SlotCache::new(pump, options));
        Ok(Fleet { caches: caches.collect::<Result<Vec<_>>>()?, group })
    }

    /// The caches, in the order of the group: everything that a cache can do can be asked of one of them.
    #[must_use]
    pub fn caches(&self) -> &[SlotCache] {
        &self.caches
    }

    /// The readers and copy threads behind them.
    #[must_use]
    pub fn group(&self) -> &PumpGroup {
        &self.group
    }

    /// Registers a model with every cache, and gives each of its groups a home: by its bytes, and by `weights`, one a device,
    /// which say how much of them it is to have (the rate of its link, or the size of its pool).
    ///
    /// # Errors
    /// As of [`balance`] and [`SlotCache::register`]; then no cache knows it.
    pub fn register(&self, catalogue: &Arc<Catalogue>, weights: &[f64]) -> Result<FleetModel> {
        let bytes: Vec<u64> = catalogue.groups().iter().map(|group| group.slot_bytes).collect();
        if weights.len() != self.caches.len() {
            let need = u32::try_from(weights.len()).unwrap_or(u32::MAX);
            return Err(Error::new(ErrorKind::TooFewDevices { need, have: self.caches.len() }));
        }
        let homes = balance(&bytes, weights)?;
        let mut ids = Vec::with_capacity(self.caches.len());
        for cache in &self.caches {
            match cache.register(Arc::clone(catalogue)) {
                Ok(id) => ids.push(id),
                Err(error) => {
                    for (cache, id) in self.caches.iter().zip(ids) {
                        // Just registered: nothing of it is loading or leased.
                        cache.unregister(id)?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(FleetModel { ids, homes })
    }

    /// The key of a group in one device's cache.
    ///
    /// # Errors
    /// [`ErrorKind::NoSuchGroup`]; [`ErrorKind::StaleKey`]; [`ErrorKind::TooFewDevices`] for a device that is not there.
    pub fn key(&self, model: &FleetModel, device: usize, group: u32) -> Result<Key> {
        let cache = self.cache(device)?;
        cache.key(model.ids[device], group)
    }

    /// Leases groups on one device, whatever other devices have.
    ///
    /// # Errors
    /// As of [`Fleet::key`] and [`SlotCache::acquire`].
    pub fn acquire<S: Deref<Target = Stream>>(
        &self,
        model: &FleetModel,
        device: usize,
        groups: &[u32],
        stream: S,
    ) -> Result<Acquire<S>> {
        self.cache(device)?.acquire(&self.keys(model, device, groups)?, stream)
    }

    /// As [`Fleet::acquire`], and waits for it.
    ///
    /// # Errors
    /// As of [`Fleet::key`] and [`SlotCache::wait_acquire`].
    pub fn wait_acquire<S: Deref<Target = Stream>>(
        &self,
        model: &FleetModel,
        device: usize,
        groups: &[u32],
        stream: S,
    ) -> Result<Lease<S>> {
        self.cache(device)?.wait_acquire(&self.keys(model, device, groups)?, stream)
    }

    /// Reads groups ahead onto several devices, each of which has or begins to read them; one read serves those that begin
    /// together. Answers what each took.
    ///
    /// # Errors
    /// As of [`Fleet::key`] and [`SlotCache::hint`].
    pub fn hint(
        &self,
        model: &FleetModel,
        devices: &[usize],
        groups: &[u32],
        deadline: Instant,
    ) -> Result<Vec<Hinted>> {
        let mut hinted = vec![Hinted::default(); devices.len()];
        // Group by group, so that the devices' reads of one come together.
        for group in groups {
            for (device, hinted) in devices.iter().zip(&mut hinted) {
                let key = self.key(model, *device, *group)?;
                let more = self.cache(*device)?.hint(&[key], deadline)?;
                hinted.there += more.there;
                hinted.begun += more.begun;
                hinted.waiting += more.waiting;
                hinted.refused += more.refused;
            }
        }
        Ok(hinted)
    }

    fn keys(&self, model: &FleetModel, device: usize, groups: &[u32]) -> Result<Vec<Key>> {
        groups.iter().map(|group| self.key(model, device, *group)).collect()
    }

    fn cache(&self, device: usize) -> Result<&SlotCache> {
        let need = u32::try_from(device).unwrap_or(u32::MAX).saturating_add(1);
        let missing = || Error::new(ErrorKind::TooFewDevices { need, have: self.caches.len() });
        self.caches.get(device).ok_or_else(missing)
    }
}

/// A device for each item, so that the items' bytes are shared out in proportion to the devices' weights: the widest first,
/// each to the device that then has least for its weight.
///
/// # Errors
/// [`ErrorKind::NoDevices`] for no device, or a weight that is not above 0.
#[allow(clippy::cast_precision_loss)] // shares, not addresses
pub fn balance(bytes: &[u64], weights: &[f64]) -> Result<Vec<u32>> {
    if weights.is_empty() || weights.iter().any(|weight| !weight.is_finite() || *weight <= 0.0) {
        return Err(Error::new(ErrorKind::NoDevices { found: weights.len() }));
    }
    let mut order: Vec<usize> = (0..bytes.len()).collect();
    order.sort_by_key(|item| std::cmp::Reverse(bytes[*item]));
    let mut filled = vec![0u64; weights.len()];
    let mut homes = vec![0; bytes.len()];
    for item in order {
        let load = |device: &usize| filled[*device].saturating_add(bytes[item]) as f64 / weights[*device];
        let least = (0..weights.len()).min_by(|a, b| load(a).total_cmp(&load(b))).unwrap_or_default();
        filled[least] = filled[least].saturating_add(bytes[item]);
        homes[item] = u32::try_from(least).unwrap_or(u32::MAX);
    }
    Ok(homes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shared_out_by_weight() {
        assert_eq!(balance(&[5, 5, 5, 5], &[1.0, 1.0]).unwrap(), [0, 1, 0, 1]);
        let bytes: Vec<u64> = (1..=100).collect();
        let homes = balance(&bytes, &[3.0, 1.0]).unwrap();
        let first: u64 =
            bytes.iter().zip(&homes).filter(|(_, home)| **home == 0).map(|(bytes, _)| bytes).sum();
        assert!((3700..=3880).contains(&first), "{first} of 5050");
        assert_eq!(balance(&[], &[1.0]).unwrap(), [0; 0]);
        for wrong in [&[][..], &[1.0, 0.0], &[f64::NAN]] {
            assert_eq!(balance(&[1], wrong).unwrap_err().kind().as_str(), "no_device");
        }
    }
}
