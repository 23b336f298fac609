//! Registered models and their items: dense numbers over every group of every model.

use super::Core;
use super::pools::Pool;
use crate::catalogue::Catalogue;
use crate::policy::reload_weight;
use crate::readers::{Word, Words};
use crate::slots::NONE;
use crate::slots::state::State;
use crate::stats::Cause;
use crate::stats::layout::NO_KEY;
use crate::{Error, ErrorKind, Key, ModelId, Result};
use spoc_io::ReadPlan;
use std::collections::BTreeMap;
use std::sync::Arc;

/// After a failed fill nobody reads the item ahead for this long, doubled with every failure in a row, ns.
const BACKOFF_NS: u64 = 100_000_000;

/// Doublings at most: about a minute and a half.
const BACKOFF_DOUBLINGS: u32 = 10;

#[derive(Debug, Default)]
pub(super) struct Models {
    models: Vec<Registration>,
    items: Vec<Item>,
    /// Numbers of models that were unregistered, for others with as many groups at the same places.
    unused: Vec<Unused>,
    /// Events so far.
    pub event: u64,
    /// Failures in a row of an item, and until when it is not read ahead.
    blamed: BTreeMap<u32, (u32, u64)>,
}

/// Items of a model that was unregistered.
#[derive(Debug)]
struct Unused {
    first_item: u32,
    positions: Vec<u32>,
}

/// Where the groups of one registration of a model are, for everyone to read without a lock.
#[derive(Debug)]
pub(crate) struct ModelWords {
    pub generation: u32,
    pub first_item: u32,
    pub words: Words,
}

#[derive(Debug)]
struct Registration {
    generation: u32,
    /// `None` once unregistered; the generation stays, so that old keys are recognised.
    catalogue: Option<Arc<Catalogue>>,
    first_item: u32,
    /// Places in the order of visits.
    layers: u32,
    /// Groups at each place.
    members: Vec<u32>,
    /// The place that was visited last.
    now: u32,
    words: Arc<ModelWords>,
}

impl Registration {
    /// Whether a place has one group: a layer that is wanted as a whole.
    fn is_alone(&self, position: u32) -> bool {
        self.members.get(position as usize) == Some(&1)
    }

    /// Visits until a place comes round; the one visited last comes last.
    fn ahead(&self, position: u32) -> u32 {
        let layers = self.layers.max(1);
        match (position + layers - self.now % layers) % layers {
            0 => layers,
            ahead => ahead,
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub key: Key,
    pub position: u32,
    /// The class of slots that it goes into.
    pub pool: u32,
    pub bytes: u64,
    /// With the gaps between tensors: what of a slot is its own.
    pub slot_bytes: u64,
    pub plan: Arc<ReadPlan>,
    /// How many want it kept for good.
    pins: u32,
    /// Until when it is to be kept if possible, ns; 0 for no wish.
    retained_until: u64,
    /// The event that last wanted it.
    last_event: u64,
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

    pub fn key_of(&self, item: u32) -> Option<Key> {
        self.items.get(item as usize).map(|item| item.key)
    }

    /// The table that an item's word is in, and its place there.
    pub fn words(&self, item: u32) -> Option<(&Words, u32)> {
        let key = self.items.get(item as usize)?.key;
        let model = self.models.get(key.model.0 as usize)?;
        (model.generation == key.generation).then_some((&model.words.words, key.group))
    }

    pub fn is_pinned(&self, item: u32) -> bool {
        self.items.get(item as usize).is_some_and(|item| item.pins > 0)
    }

    /// One pin more or less. True if it is the first, or was the last.
    pub fn pin(&mut self, item: u32, more: bool) -> bool {
        let pins = &mut self.items[item as usize].pins;
        match (more, *pins) {
            (true, before) => {
                *pins += 1;
                before == 0
            }
            (false, 0) => false,
            (false, before) => {
                *pins -= 1;
                before == 1
            }
        }
    }

    pub fn retain(&mut self, item: u32, until_ns: u64) {
        self.items[item as usize].retained_until = until_ns;
    }

    pub fn retained_until(&self, item: u32) -> u64 {
        self.items[item as usize].retained_until
    }

    pub fn note_visit(&mut self, item: u32) {
        let entry = &mut self.items[item as usize];
        entry.last_event = self.event;
        if let Some(model) = self.models.get_mut(entry.key.model.0 as usize) {
            model.now = entry.position;
        }
    }

    /// Whether `item` may take the place of `victim` before anybody wants it: if demand has not wanted the victim for
    /// two rounds of its model's layers, or if both are whole layers of one model and the victim's comes round later.
    pub fn may_take_place(&self, item: u32, victim: u32) -> bool {
        let (item, victim) = (&self.items[item as usize], &self.items[victim as usize]);
        let Some(model) = self.models.get(victim.key.model.0 as usize) else { return true };
        let rounds = 2 * u64::from(model.layers.max(1));
        if victim.last_event == 0 || self.event - victim.last_event > rounds {
            return true;
        }
        item.key.model == victim.key.model
            && model.is_alone(item.position)
            && model.is_alone(victim.position)
            && model.ahead(victim.position) > model.ahead(item.position)
    }

    /// A fill failed: it is not read ahead for a while.
    pub fn blame(&mut self, item: u32, now_ns: u64) {
        let (failures, until) = self.blamed.entry(item).or_default();
        *until = now_ns + (BACKOFF_NS << (*failures).min(BACKOFF_DOUBLINGS));
        *failures += 1;
    }

    /// A fill succeeded.
    pub fn forgive(&mut self, item: u32) {
        if !self.blamed.is_empty() {
            self.blamed.remove(&item);
        }
    }

    pub fn is_blamed(&self, item: u32, now_ns: u64) -> bool {
        self.blamed.get(&item).is_some_and(|&(_, until)| until > now_ns)
    }

    /// The items of a registered model.
    pub fn items_of(&self, model: ModelId) -> std::ops::Range<u32> {
        let found = self.models.get(model.0 as usize);
        let live = found.and_then(|model| Some((model.first_item, model.catalogue.as_ref()?.groups().len())));
        live.map_or(0..0, |(first, groups)| first..first + u32::try_from(groups).unwrap_or(0))
    }

    /// The words of every registered model.
    pub fn tables(&self) -> impl Iterator<Item = Option<&Arc<ModelWords>>> {
        self.models.iter().map(|model| model.catalogue.as_ref().map(|_| &model.words))
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
        let mut pools = Vec::with_capacity(catalogue.groups().len());
        for group in catalogue.groups() {
            let fits = |pool: &&Pool| pool.stride_bytes >= group.slot_bytes;
            // The narrowest class that holds it.
            let pool = self.pools.iter().filter(fits).min_by_key(|pool| pool.stride_bytes);
            let Some(pool) =
                pool.and_then(|found| self.pools.iter().position(|pool| std::ptr::eq(pool, found)))
            else {
                let widest = self.pools.iter().map(|pool| pool.stride_bytes).max();
                return Err(Error::new(ErrorKind::GroupTooWide {
                    group: group.name.clone(),
                    need_bytes: group.slot_bytes,
                    slot_bytes: widest.unwrap_or(0),
                }));
            };
            pools.push(u32::try_from(pool).unwrap_or(NONE));
        }
        let too_large = |_| Error::new(ErrorKind::CatalogueTooLarge);
        let positions: Vec<u32> = catalogue.groups().iter().map(|group| group.position).collect();
        let unused = self.models.unused.iter().position(|unused| unused.positions == positions);
        let end = u32::try_from(self.models.items.len()).map_err(too_large)?;
        let first_item = unused.map_or(end, |index| self.models.unused[index].first_item);
        let items = self.models.items.len().max(first_item as usize + positions.len());
        u32::try_from(items + 1).map_err(too_large)?;
        self.table_holds(items)?;

        let free = self.models.models.iter().position(|model| model.catalogue.is_none());
        let index = free.unwrap_or(self.models.models.len());
        let model = ModelId(u32::try_from(index).map_err(too_large)?);
        let generation = free.map_or(0, |index| self.models.models[index].generation);
        for (((group, number), plan), pool) in catalogue.groups().iter().zip(0u32..).zip(plans).zip(pools) {
            let item = Item {
                key: Key { model, generation, group: number },
                position: group.position,
                pool,
                bytes: group.tensor_bytes,
                slot_bytes: group.slot_bytes,
                plan,
                pins: 0,
                retained_until: 0,
                last_event: 0,
            };
            match self.models.items.get_mut((first_item + number) as usize) {
                Some(place) => *place = item,
                None => self.models.items.push(item),
            }
        }
        let own = first_item..first_item + u32::try_from(positions.len()).map_err(too_large)?;
        match unused {
            // The policies know these numbers, and that they have these places.
            Some(index) => {
                self.models.unused.swap_remove(index);
                self.reuse.forget(own.clone());
            }
            None => {
                for pool in &mut self.pools {
                    pool.policy.add_model(&positions);
                }
                if let Some(tier) = &mut self.tier {
                    tier.add_model(&positions);
                }
                self.reuse.add_model(&positions);
            }
        }
        self.weigh(own);
        let layers = positions.iter().max().map_or(0, |&last| last + 1);
        let mut members = vec![0; layers as usize];
        positions.iter().for_each(|&position| members[position as usize] += 1);
        let words = Words::new(positions.len());
        let words = Arc::new(ModelWords { generation, first_item, words });
        self.slot_of.resize(items, NONE);
        self.seen.resize(items, (0, 0));
        let entry = Registration {
            generation,
            catalogue: Some(catalogue),
            first_item,
            layers,
            members,
            now: layers.saturating_sub(1),
            words,
        };
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

    /// The words of every registered model, for a reader.
    pub fn tables(&self) -> impl Iterator<Item = Option<&Arc<ModelWords>>> {
        self.models.tables()
    }

    /// Forgets a model: its groups leave, its keys go stale.
    pub fn unregister(&mut self, model: ModelId) -> Result<()> {
        self.retire_all();
        if self.models.generation(model).is_none() {
            return Ok(());
        }
        let items = self.models.items_of(model);
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
        let held = self.mark_all(items.clone());
        if held > 0 {
            return Err(Error::new(ErrorKind::InUse { slots: held }));
        }
        // What readers found until now is about this model, not about one that gets its numbers.
        self.take_visits();
        self.ahead.forget(&items);
        for item in items.clone() {
            let slot = self.slot_of[item as usize];
            if slot != NONE {
                self.unlist(slot);
                self.evict(slot, Cause::Closed);
            }
            self.distrust(item);
            let entry = &mut self.models.items[item as usize];
            if std::mem::take(&mut entry.pins) > 0 {
                self.pools[entry.pool as usize].pinned -= 1;
            }
            self.models.forgive(item);
        }
        let positions = items.clone().map(|item| self.models.position(item)).collect();
        self.models.unused.push(Unused { first_item: items.start, positions });
        let entry = &mut self.models.models[model.0 as usize];
        entry.catalogue = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.serve_queue();
        Ok(())
    }

    /// Tells the policies what it costs to load a model's items again: their bytes, over the mean.
    fn weigh(&mut self, own: std::ops::Range<u32>) {
        let items = &self.models.items[own.start as usize..own.end as usize];
        let mean = items.iter().map(|item| item.bytes as f64).sum::<f64>() / items.len().max(1) as f64;
        for (item, number) in items.iter().zip(own) {
            let weight = reload_weight(item.bytes, mean);
            for pool in &mut self.pools {
                pool.policy.weigh(number, weight);
            }
        }
    }

    /// Marks everything resident of these items absent, or nothing if readers hold some. Answers how many they hold.
    fn mark_all(&mut self, items: std::ops::Range<u32>) -> usize {
        let mut marked: Vec<(u32, Word)> = Vec::new();
        let mut held = 0;
        for item in items {
            match self.slot_of[item as usize] {
                NONE => {}
                slot => match self.mark(slot) {
                    Some(word) => marked.push((item, word)),
                    None => held += 1,
                },
            }
        }
        if held > 0 {
            for (item, word) in marked {
                if let Some((words, group)) = self.models.words(item) {
                    words.store(group, word);
                }
            }
        }
        held
    }
}
