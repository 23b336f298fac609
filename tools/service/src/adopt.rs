//! What a restarted service does with what its predecessor parked: whatever is beyond doubt goes on; everything else is
//! dropped, and said.

use crate::error::{Error, Result};
use crate::models::Registered;
use crate::park::{Parked, image_name, segment_name};
use crate::record::{self, Kind};
use crate::rpc::models::register;
use crate::run::Survived;
use crate::segments::Numbered;
use crate::session::Session;
use crate::state::State;
use spoc_driver::Exported;
use spoc_page::Words;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// Parked descriptors by name, each taken once.
struct Shelf {
    left: BTreeMap<String, OwnedFd>,
}

impl Shelf {
    fn take(&mut self, name: &str) -> Result<OwnedFd> {
        self.left
            .remove(name)
            .ok_or_else(|| Error::new("not_found", format!("{name} is not among what was parked")))
    }

    /// The rest of every name that begins so.
    fn numbers(&self, prefix: &str) -> Vec<String> {
        self.left.keys().filter(|name| name.starts_with(prefix)).cloned().collect()
    }

    fn record<M: prost::Message + Default>(&mut self, name: &str, kind: Kind) -> Result<M> {
        let descriptor = self.take(name)?;
        record::read(kind, &descriptor).map_err(|why| Error::new("internal", why))
    }
}

/// Takes over what was parked. Blocks for reading files' headers, and for nothing that grows with the weights.
pub fn adopt(state: &Arc<State>, parked: Parked) -> (Survived, Vec<Arc<Session>>) {
    let began = Instant::now();
    let mut shelf = Shelf { left: parked.into_iter().collect() };
    let mut adopted = Survived::default();
    for name in shelf.left.keys() {
        // Numbers that clients may know are not given out again, whatever becomes of what had them.
        let number = |prefix: &str| name.strip_prefix(prefix).and_then(|number| number.parse().ok());
        number("segment-").into_iter().for_each(|id| state.segments.skip(id));
        number("session-").into_iter().for_each(|id| state.sessions.skip(id));
    }
    models(state, &mut shelf, &mut adopted);
    images(state, &mut shelf, &mut adopted);
    let sessions = sessions(state, &mut shelf, &mut adopted);
    for name in shelf.left.keys() {
        // What is left belongs to nothing that is there; "lent" has done its duty.
        if !name.starts_with("lent-") {
            adopted.dropped.push(format!("{name}: belongs to nothing that was adopted"));
            state.parking.remove(name);
        }
    }
    adopted.took = began.elapsed();
    for dropped in &adopted.dropped {
        tracing::warn!(dropped, "not adopted");
        state.events.tell("not_adopted", "", "", || dropped.clone());
    }
    let Survived { models, images, bytes, sessions: count, leases, took, .. } = &adopted;
    tracing::info!(models, images, bytes, sessions = count, leases, ?took, "adopted");
    (adopted, sessions)
}

fn models(state: &State, shelf: &mut Shelf, adopted: &mut Survived) {
    for name in shelf.numbers("model-") {
        let made = shelf.record::<record::Model>(&name, Kind::Model).and_then(|record| model(state, &record));
        match made {
            Ok(_) => adopted.models += 1,
            Err(error) => {
                adopted.dropped.push(format!("{name}: {}", error.message()));
                state.parking.remove(&name);
            }
        }
    }
}

fn model(state: &State, record: &record::Model) -> Result<Arc<Registered>> {
    let asked = record.asked.as_ref().ok_or_else(|| Error::new("internal", "the record names no model"))?;
    let named =
        |error: Error| Error::new("file_changed", format!("model {:?}: {}", asked.name, error.message()));
    let model = register(state, asked).map_err(named)?;
    if record::files_of(&model) == record.files {
        return Ok(model);
    }
    if let Some(placed) = &model.placed {
        placed.arena.cache.unregister(placed.id)?;
    }
    state.models.remove(&asked.name);
    let message = format!("model {:?}: its files are not those that were loaded", asked.name);
    Err(Error::new("file_changed", message))
}

fn images(state: &State, shelf: &mut Shelf, adopted: &mut Survived) {
    for name in shelf.numbers("image-") {
        match shelf
            .record::<record::Image>(&name, Kind::Image)
            .and_then(|record| image(state, shelf, &name, record))
        {
            Ok(bytes) => {
                adopted.images += 1;
                adopted.bytes += bytes;
            }
            Err(error) => {
                adopted.dropped.push(format!("{name}: {}", error.message()));
                state.parking.remove(&name);
            }
        }
    }
}

fn image(state: &State, shelf: &mut Shelf, parked_as: &str, record: record::Image) -> Result<u64> {
    let named =
        |error: Error| Error::new("internal", format!("image {:?}: {}", record.name, error.message()));
    record.check().map_err(|why| named(Error::new("internal", why)))?;
    if parked_as != image_name(record.number()) {
        return Err(named(Error::new("internal", "it was parked under another number")));
    }
    // Taken first: an image that is dropped lets all of its memory go.
    let taken: Vec<_> =
        record.segments.iter().map(|segment| (*segment, shelf.take(&segment_name(segment.id)))).collect();
    let made = if record.model.is_empty() || state.models.contains(&record.model) {
        let import = |(segment, descriptor)| import(state, shelf, &record.device, segment, descriptor);
        taken.into_iter().map(import).collect::<Result<Vec<Numbered>>>()
    } else {
        Err(Error::new("file_changed", format!("its model {:?} was not adopted", record.model)))
    };
    match made {
        Ok(segments) => Ok(state.images.adopt(record, segments).bytes),
        Err(error) => {
            for segment in &record.segments {
                state.segments.remove(segment.id);
                state.parking.remove(&segment_name(segment.id));
            }
            Err(named(error))
        }
    }
}

fn import(
    state: &State,
    shelf: &Shelf,
    device: &str,
    segment: record::Segment,
    descriptor: Result<OwnedFd>,
) -> Result<Numbered> {
    let (descriptor, device) = (descriptor?, &state.host.get(device)?.device);
    let kept = descriptor.try_clone().map_err(|error| Error::new("os", error))?;
    let record::Segment { id, len_bytes, allocation_bytes } = segment;
    let (backend, uuid) = (device.info().backend, device.info().uuid);
    let imported =
        device.import(Exported { descriptor, len_bytes, allocation_bytes, backend, device: uuid })?;
    let lent =
        shelf.numbers(&format!("lent-{id}-")).first().and_then(|name| name.rsplit('-').next()?.parse().ok());
    if let Some(uid) = lent {
        state.parking.lent(id, uid);
    }
    Ok(state.segments.adopt(id, imported, kept, lent))
}

fn sessions(state: &Arc<State>, shelf: &mut Shelf, adopted: &mut Survived) -> Vec<Arc<Session>> {
    let mut found = Vec::new();
    for name in shelf.numbers("session-") {
        let number = name.trim_start_matches("session-").to_owned();
        let (words, holds) = (shelf.take(&format!("words-{number}")), shelf.take(&format!("holds-{number}")));
        let record = shelf.record::<record::Session>(&name, Kind::Session);
        let made = record.and_then(|record| session(state, &record, words, holds));
        match made {
            Ok(Some((session, lost))) => {
                adopted.sessions += 1;
                adopted.leases += session.held().0;
                if lost > 0 {
                    adopted.dropped.push(format!("{name}: {lost} leases on what was not adopted"));
                }
                found.push(session);
                continue;
            }
            // Its process has ended: nothing to say.
            Ok(None) => {}
            Err(error) => adopted.dropped.push(format!("{name}: {}", error.message())),
        }
        if let Ok(number) = number.parse() {
            state.parking.forget_session_number(number);
        }
    }
    found
}

type Found = (Arc<Session>, usize);

fn session(
    state: &State,
    record: &record::Session,
    words: Result<OwnedFd>,
    holds: Result<OwnedFd>,
) -> Result<Option<Found>> {
    let (words, holds) = (Words::map(words?)?, Words::map(holds?)?);
    if record.has_ended() {
        return Ok(None);
    }
    let find = |first: u64| state.images.hold_by_segment(first);
    state.sessions.adopt(record, words, holds, state.config().quota, find).map(Some)
}
