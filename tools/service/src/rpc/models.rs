//! Models: registered, described, forgotten.

use super::{Answers, Rpc, blocking};
use crate::access::{check_name, check_path};
use crate::arenas::{Arena, classes_for};
use crate::config::{ArenaConfig, ClassConfig, Size};
use crate::error::{Error, Result};
use crate::models::{Placed, Registered};
use crate::state::State;
use spoc_cache::catalogue::Pattern;
use spoc_cache::{Catalogue, GroupRules};
use spoc_io::{OpenOptions, open_model};
use spoc_proto::v1 as pb;
use std::path::Path;
use std::sync::Arc;

/// Tensors or groups in one message of `DescribeModel`.
const PAGE: usize = 1000;
/// An arena of the model's own.
const AUTO: &str = "auto";

impl Rpc {
    pub(super) fn models(&self) -> pb::ListModelsResponse {
        let told = self.state.models.all().iter().map(|model| told(&self.state, model)).collect();
        pb::ListModelsResponse { models: told }
    }

    pub(super) async fn register(
        &self,
        asked: pb::RegisterModelRequest,
    ) -> Result<pb::RegisterModelResponse> {
        self.state.check_takes_work()?;
        let state = Arc::clone(&self.state);
        blocking(move || {
            let model = register(&state, &asked)?;
            state.parking.model(&model);
            tracing::info!(model = &*model.name, source = model.source, "registered");
            state.events.tell("registered", &model.name, "", || model.source.clone());
            Ok(pb::RegisterModelResponse { model: Some(told(&state, &model)) })
        })
        .await
    }

    pub(super) async fn unregister(&self, name: &str) -> Result<()> {
        let (state, name) = (Arc::clone(&self.state), name.to_owned());
        blocking(move || {
            let model = state.models.get(&name)?;
            if state.images.is_loading(&name) {
                return Err(Error::new("in_use", format!("some of {name:?} is being loaded")));
            }
            let images: Vec<_> = state.images.all().into_iter().filter(|image| image.model == name).collect();
            if let Some(image) = images.iter().find(|image| image.told().leases > 0 || image.told().pinned) {
                return Err(Error::new(
                    "in_use",
                    format!("image {:?} of {name:?} is held or pinned", image.name),
                ));
            }
            if let Some(placed) = &model.placed {
                state.sweep();
                placed.arena.cache.unregister(placed.id)?;
                if placed.arena.name == auto_name(&name) {
                    state.arenas.remove(&placed.arena.name, &state.segments);
                }
            }
            for image in images {
                state.images.evict(&image.name, &state.segments)?;
            }
            state.models.remove(&name);
            state.parking.forget_model(&name);
            state.events.tell("unregistered", &name, "", String::new);
            Ok(())
        })
        .await
    }

    pub(super) fn describe(&self, name: &str) -> Result<Answers<pb::DescribeModelResponse>> {
        let pages = self.state.models.get(name)?.pages(PAGE);
        Ok(Box::pin(tokio_stream::iter(pages.into_iter().map(Ok))))
    }
}

fn auto_name(model: &str) -> String {
    format!("{model} (its own)")
}

fn told(state: &State, model: &Registered) -> pb::Model {
    let sessions = state.sessions.all();
    let images: Vec<_> = state.images.all().into_iter().filter(|image| image.model == *model.name).collect();
    let image_bytes: u64 = images.iter().map(|image| image.bytes).sum();
    let image_leases: u32 = images.iter().map(|image| image.told().leases).sum();
    let slot_bytes = model.placed.as_ref().map_or(0, |placed| {
        let profile = placed.arena.cache.profile(placed.id);
        let bytes = |(name, _): &(String, u64)| {
            let group = model.catalogue.group_named(name)?;
            Some(model.catalogue.group(group)?.slot_bytes)
        };
        profile.groups.iter().filter_map(bytes).sum()
    });
    let leases: usize = sessions.iter().map(|session| session.leases_on(&model.name)).sum();
    let leases = u32::try_from(leases).unwrap_or(u32::MAX);
    model.told(image_bytes + slot_bytes, image_leases.saturating_add(leases))
}

/// What a model is called if nobody says: the last part of what it was registered by.
fn name_of(source: &str) -> String {
    let last = source.trim_end_matches('/').rsplit('/').next().unwrap_or(source);
    let stem = last.strip_suffix(".safetensors").or_else(|| last.strip_suffix(".gguf")).unwrap_or(last);
    stem.to_owned()
}

pub(crate) fn register(state: &State, asked: &pb::RegisterModelRequest) -> Result<Arc<Registered>> {
    let name = if asked.name.is_empty() { name_of(&asked.source) } else { asked.name.clone() };
    check_name("model", &name)?;
    if asked.share > 1 || asked.floor_slots > 0 {
        let message = "models share an arena by how they are used: expected a share of 0 or 1, and no floor";
        return Err(Error::new("unsupported", message));
    }
    let roots = &state.config().roots;
    let path = Path::new(&asked.source);
    if path.exists() || asked.source.starts_with('/') || asked.source.contains("..") {
        check_path(roots, path)?;
    }
    if state.models.contains(&name) {
        return Err(Error::new("already_registered", format!("a model {name:?} is registered")));
    }
    let model = open_model(path, &OpenOptions::default())?;
    // A name of the Hugging Face cache, an index or a link may have led elsewhere.
    for file in model.files() {
        check_path(roots, file.path())?;
    }
    let rules = match asked.group_pattern.as_str() {
        "" => GroupRules::default(),
        text => {
            let pattern: Pattern = text.parse().map_err(|error| Error::new("bad_pattern", error))?;
            GroupRules::with_patterns(vec![pattern])
        }
    };
    let catalogue = Arc::new(Catalogue::from_model(&model, &rules)?);
    let add = |placed| {
        state.models.add(Registered {
            name: name.as_str().into(),
            source: asked.source.clone(),
            asked: asked.clone(),
            model: Arc::new(model),
            catalogue: Arc::clone(&catalogue),
            placed,
        })
    };
    match asked.arena.as_str() {
        "" => add(None),
        AUTO => {
            let arena = own_arena(state, &name, &catalogue)?;
            let added = place(&arena, &catalogue).and_then(|placed| add(Some(placed)));
            if added.is_err() {
                state.arenas.remove_this(&arena, &state.segments);
            }
            added
        }
        arena => {
            let arena = state.arenas.get(arena)?;
            let placed = place(&arena, &catalogue)?;
            let id = placed.id;
            let added = add(Some(placed));
            if added.is_err() {
                // Another request was first with the name.
                arena.cache.unregister(id)?;
            }
            added
        }
    }
}

fn place(arena: &Arc<Arena>, catalogue: &Arc<Catalogue>) -> Result<Placed> {
    let id = arena.cache.register(Arc::clone(catalogue))?;
    let keys = arena.cache.keys(id);
    Ok(Placed { arena: Arc::clone(arena), id, keys })
}

/// Half of the model's bytes in slots of its groups' widths, or what is free of the device.
fn own_arena(state: &State, name: &str, catalogue: &Catalogue) -> Result<Arc<Arena>> {
    let host = state.host.get("")?;
    let total: u64 = catalogue.groups().iter().map(|group| group.slot_bytes).sum();
    let free = host.device.memory()?.free_bytes / 10 * 9;
    let classes = classes_for(catalogue, (total / 2).max(1).min(free));
    let config = ArenaConfig {
        name: auto_name(name),
        device: host.uuid.clone(),
        policy: String::new(),
        headroom: Size(0),
        classes: classes
            .iter()
            .map(|class| ClassConfig { slots: class.slots, slot: Size(class.slot_bytes) })
            .collect(),
    };
    Ok(state.arenas.add(Arena::new(&config, host, &*state.counters)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_what_a_model_is_registered_by() {
        for (source, name) in
            [("/models/llama/", "llama"), ("/m/a.safetensors", "a"), ("org/name", "name"), ("x.gguf", "x")]
        {
            assert_eq!(name_of(source), name);
        }
    }
}
