//! Registered models and their items: dense numbers over every group of every model.

use super::Core;
use crate::catalogue::Catalogue;
use crate::slots::NONE;
use crate::slots::state::{State, Step};
use crate::stats::layout::NO_KEY;
use crate::stats::{Cause, LogKind};
use crate::{Error, ErrorKind, Key, ModelId, Result};
use spoc_io::ReadPlan;
use std::sync::Arc;

#[derive(Debug, Default)]
pub(super) struct Models {
    models: Vec<Registration>,
    items: Vec<Item>,
}

#[derive(Debug)]
struct Registration {
    generation: u32,
    /// `None` once unregistered; the generation stays, so that old keys are recognised.
    catalogue: Option<Arc<Catalogue>>,
    first_item: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub key: Key,
    pub position: u32,
    pub bytes: u64,
    pub plan: Arc<ReadPlan>,
}

impl Models {
    pub fn item(&self, item: u32) -> &Item {
        &self.items[item as usize]
    }

    pub fn position(&self, item: u32) -> u32 {
        self.items.get(item as usize).map_or(0, |item| item.position)
    }

    pub fn key_word(&self, item: u32) -> u64 {
        self.items
            .get(item as usize)
            .map_or(NO_KEY, |item| (u64::from(item.key.model.0) << 32) | u64::from(item.key.group))
    }

    pub fn find(&self, key: Key) -> Result<u32> {
        let stale = || Error::new(ErrorKind::StaleKey { key });
        let model = self.models.get(key.model.0 as usize).ok_or_else(stale)?;
        let catalogue = model.catalogue.as_ref().filter(|_| model.generation == key.generation);
        let catalogue = catalogue.ok_or_else(stale)?;
        if (key.group as usize) < catalogue.groups().len() {
            Ok(model.first_item + key.group)
        } else {
            Err(Error::new(ErrorKind::NoSuchGroup { group: key.group }))
        }
    }

    pub fn generation(&self, model: ModelId) -> Option<(u32, &Arc<Catalogue>)> {
        let entry = self.models.get(model.0 as usize)?;
        Some((entry.generation, entry.catalogue.as_ref()?))
    }
}

impl Core {
    /// Takes a model in; `plans` are those of its groups, in their order.
    pub fn register(&mut self, catalogue: Arc<Catalogue>, plans: Vec<Arc<ReadPlan>>) -> Result<ModelId> {
        let slot_bytes = self.arena.geometry().stride_bytes;
        if let Some(group) = catalogue.groups().iter().find(|group| group.slot_bytes > slot_bytes) {
            return Err(Error::new(ErrorKind::GroupTooWide {
                group: group.name.clone(),
                need_bytes: group.slot_bytes,
                slot_bytes,
            }));
        }
        let too_large = |_| Error::new(ErrorKind::CatalogueTooLarge);
        let first_item = u32::try_from(self.models.items.len()).map_err(too_large)?;
        let items = self.models.items.len() + catalogue.groups().len();
        u32::try_from(items + 1).map_err(too_large)?;

        let free = self.models.models.iter().position(|model| model.catalogue.is_none());
        let index = free.unwrap_or(self.models.models.len());
        let model = ModelId(u32::try_from(index).map_err(too_large)?);
        let generation = free.map_or(0, |index| self.models.models[index].generation);
        for ((group, number), plan) in catalogue.groups().iter().zip(0u32..).zip(plans) {
            let key = Key { model, generation, group: number };
            let bytes = group.tensor_bytes;
            self.models.items.push(Item { key, position: group.position, bytes, plan });
        }
        let positions: Vec<u32> = catalogue.groups().iter().map(|group| group.position).collect();
        self.policy.add_model(&positions);
        self.slot_of.resize(items, NONE);
        self.seen.resize(items, (0, 0));
        let entry = Registration { generation, catalogue: Some(catalogue), first_item };
        match free {
            Some(index) => self.models.models[index] = entry,
            None => self.models.models.push(entry),
        }
        Ok(model)
    }

    /// The model's current generation and catalogue.
    pub fn model(&self, model: ModelId) -> Option<(u32, Arc<Catalogue>)> {
        let (generation, catalogue) = self.models.generation(model)?;
        Some((generation, Arc::clone(catalogue)))
    }

    /// Forgets a model: its groups leave, its keys go stale.
    pub fn unregister(&mut self, model: ModelId) -> Result<()> {
        self.retire_all();
        let Some((_, catalogue)) = self.models.generation(model) else { return Ok(()) };
        let groups = catalogue.groups().len();
        let first = self.models.models[model.0 as usize].first_item;
        let items = first..first + u32::try_from(groups).unwrap_or(0);
        let busy = |&item: &u32| {
            let slot = self.slot_of[item as usize];
            slot != NONE && !matches!(self.table.state(slot), State::Resident | State::Draining)
        };
        let queued = self
            .queue
            .iter()
            .any(|&ticket| self.tickets[ticket as usize].items.iter().any(|item| items.contains(item)));
        let slots = items.clone().filter(busy).count();
        if slots > 0 || queued {
            return Err(Error::new(ErrorKind::InUse { slots }));
        }
        for item in items {
            let slot = self.slot_of[item as usize];
            if slot != NONE {
                self.leave(item, slot, Cause::Closed);
                self.free.push(slot);
            }
        }
        let entry = &mut self.models.models[model.0 as usize];
        entry.catalogue = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.serve_queue();
        Ok(())
    }

    /// Takes an evictable item out of its slot; the slot is free afterwards, and in nobody's list.
    pub(super) fn leave(&mut self, item: u32, slot: u32, cause: Cause) {
        self.policy.remove(item);
        self.evictable -= 1;
        self.slot_of[item as usize] = NONE;
        self.table.step(slot, Step::Evict);
        let entry = self.table.get_mut(slot);
        entry.item = NONE;
        entry.bytes = 0;
        self.table.describe(slot, NO_KEY, 0);
        self.log(LogKind::Evicted, cause, item, slot);
    }
}
