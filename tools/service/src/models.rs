//! Registered models.

use crate::arenas::Arena;
use crate::error::{Error, Result};
use spoc_cache::{Catalogue, Key, ModelId};
use spoc_io::Model;
use spoc_proto::v1 as pb;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A model in an arena: its keys, by group.
#[derive(Debug)]
pub struct Placed {
    pub arena: Arc<Arena>,
    pub id: ModelId,
    pub keys: Vec<Key>,
}

/// A registered model.
#[derive(Debug)]
pub struct Registered {
    pub name: Arc<str>,
    /// What it was registered by.
    pub source: String,
    /// The request, to be made again by a restarted service.
    pub asked: pb::RegisterModelRequest,
    pub model: Arc<Model>,
    pub catalogue: Arc<Catalogue>,
    /// In which arena its groups compete; `None` for a model that is loaded as a whole.
    pub placed: Option<Placed>,
}

impl Registered {
    /// Where its groups compete.
    ///
    /// # Errors
    /// `wrong_state` for a model that is in no arena.
    pub fn placed(&self) -> Result<&Placed> {
        self.placed.as_ref().ok_or_else(|| {
            let message =
                format!("{:?} is in no arena: it is loaded as a whole, and acquired as an image", self.name);
            Error::new("wrong_state", message)
        })
    }

    /// The keys of these groups.
    ///
    /// # Errors
    /// `no_such_group`; as of [`placed`](Registered::placed).
    pub fn keys(&self, groups: &[u32]) -> Result<Vec<Key>> {
        let keys = &self.placed()?.keys;
        let key = |&group: &u32| {
            let missing = || {
                let message = format!("group {group} of {:?}, which has {}", self.name, keys.len());
                Error::new("no_such_group", message)
            };
            keys.get(group as usize).copied().ok_or_else(missing)
        };
        groups.iter().map(key).collect()
    }

    /// Of its keys; 0 for a model that is in no arena.
    pub fn generation(&self) -> u32 {
        self.placed.as_ref().and_then(|placed| placed.keys.first()).map_or(0, |key| key.generation)
    }

    /// As a client is told of it.
    pub fn told(&self, resident_bytes: u64, leases: u32) -> pb::Model {
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        pb::Model {
            name: self.name.to_string(),
            source: self.source.clone(),
            arena: self.placed.as_ref().map_or_else(String::new, |placed| placed.arena.name.clone()),
            groups: count(self.catalogue.groups().len()),
            tensors: count(self.model.tensors().len()),
            bytes: self.model.tensor_bytes(),
            resident_bytes,
            generation: self.generation(),
            leases,
        }
    }

    /// Its tensors and groups in pages of so many.
    pub fn pages(&self, page: usize) -> Vec<pb::DescribeModelResponse> {
        let mut pages = Vec::new();
        let groups = self.catalogue.groups();
        for (numbers, part) in (0u32..).step_by(page).zip(groups.chunks(page)) {
            let told = (numbers..).zip(part).map(|(index, group)| pb::Group {
                index,
                name: group.name.clone(),
                slot_bytes: group.slot_bytes,
            });
            pages.push(pb::DescribeModelResponse { tensors: Vec::new(), groups: told.collect() });
        }
        let mut tensors = Vec::with_capacity(page);
        for group in 0..u32::try_from(groups.len()).unwrap_or(0) {
            for member in self.catalogue.tensors(group) {
                let Some(tensor) = self.model.tensors().get(member.tensor as usize) else { continue };
                tensors.push(pb::Tensor {
                    name: tensor.name.to_string(),
                    dtype: tensor.dtype.name().to_owned(),
                    shape: tensor.shape.to_vec(),
                    bytes: member.extent.len_bytes,
                    group,
                    group_offset: member.offset_bytes,
                });
                if tensors.len() == page {
                    pages.push(pb::DescribeModelResponse {
                        tensors: std::mem::take(&mut tensors),
                        groups: Vec::new(),
                    });
                }
            }
        }
        if !tensors.is_empty() {
            pages.push(pb::DescribeModelResponse { tensors, groups: Vec::new() });
        }
        pages
    }
}

/// All of them, by name.
#[derive(Debug, Default)]
pub struct ModelBook(Mutex<BTreeMap<Arc<str>, Arc<Registered>>>);

impl ModelBook {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, Arc<Registered>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// `unknown_model`, with the names there are.
    pub fn get(&self, name: &str) -> Result<Arc<Registered>> {
        let models = self.lock();
        models.get(name).cloned().ok_or_else(|| {
            let names: Vec<&str> = models.keys().take(8).map(|name| &**name).collect();
            Error::new("unknown_model", format!("no model {name:?} is registered; there are {names:?}"))
        })
    }

    /// # Errors
    /// `already_registered`.
    pub fn add(&self, model: Registered) -> Result<Arc<Registered>> {
        let mut models = self.lock();
        if let Some(other) = models.get(&model.name) {
            let message = format!("{:?} is registered, from {}", other.name, other.source);
            return Err(Error::new("already_registered", message));
        }
        let model = Arc::new(model);
        models.insert(Arc::clone(&model.name), Arc::clone(&model));
        Ok(model)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    pub fn remove(&self, name: &str) {
        self.lock().remove(name);
    }

    pub fn all(&self) -> Vec<Arc<Registered>> {
        self.lock().values().cloned().collect()
    }
}
