//! Where descriptors of device memory are kept, so that weights outlive this process: a keeper, or systemd's descriptor
//! store. What they mean is in records that are kept with them ([`crate::record`]).

use crate::error::{Error, Result};
use crate::images::Image;
use crate::models::Registered;
use crate::record::{self, Kind};
use crate::session::Session;
use sd_notify::NotifyState;
use spoc_page::keep::Keeper;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use xxhash_rust::xxh3::xxh3_64;

/// What systemd keeps of this service begins with this; other names are its sockets.
const SYSTEMD_PREFIX: &str = "spoc.";

#[derive(Debug, Default)]
enum Store {
    /// Nothing outlives the service.
    #[default]
    Nowhere,
    Keeper {
        path: PathBuf,
        namespace: String,
        /// `None` while the keeper is gone.
        connection: Option<Keeper>,
    },
    Systemd,
}

/// Parks descriptors. A store that fails is said once and tried again; the service goes on without it.
#[derive(Debug, Default)]
pub struct Parking {
    store: Mutex<Store>,
    failures: AtomicU64,
    /// Users that segments are lent to, by the segment's id.
    lent: Mutex<HashMap<u64, u32>>,
}

/// Name and descriptor, as they were parked.
pub type Parked = Vec<(String, OwnedFd)>;

impl Parking {
    /// As `park` of the configuration says (`keeper:PATH`, `systemd`, or nothing), and what is kept there. `inherited` are
    /// the descriptors that systemd passed on.
    ///
    /// # Errors
    /// `config`; `os` if there is no keeper: a service that was to have one does not begin without.
    pub fn open(park: &str, socket: &Path, inherited: Parked) -> Result<(Parking, Parked)> {
        let (store, parked) = match park {
            "" => (Store::Nowhere, Vec::new()),
            "systemd" => {
                let own = |(name, descriptor): (String, OwnedFd)| {
                    Some((name.strip_prefix(SYSTEMD_PREFIX)?.to_owned(), descriptor))
                };
                (Store::Systemd, inherited.into_iter().filter_map(own).collect())
            }
            _ => {
                let path = check(park)?;
                // Two services on one keeper have two sockets.
                let namespace = format!("{:016x}", xxh3_64(socket.as_os_str().as_encoded_bytes()));
                let named =
                    |error: io::Error| Error::new("os", format!("keeper at {}: {error}", path.display()));
                let keeper = Keeper::connect(&path, &namespace).map_err(named)?;
                let parked = keeper.all().map_err(named)?;
                (Store::Keeper { path, namespace, connection: Some(keeper) }, parked)
            }
        };
        Ok((Parking { store: Mutex::new(store), ..Parking::default() }, parked))
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `none`, `keeper` or `systemd`.
    pub fn kind(&self) -> &'static str {
        match &*self.lock() {
            Store::Nowhere => "none",
            Store::Keeper { .. } => "keeper",
            Store::Systemd => "systemd",
        }
    }

    /// Whether anything is parked at all.
    pub fn is_on(&self) -> bool {
        !matches!(&*self.lock(), Store::Nowhere)
    }

    /// Times that the store failed.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    fn with(
        &self,
        doing: &str,
        keeper: impl FnOnce(&Keeper) -> io::Result<()>,
        systemd: impl FnOnce() -> io::Result<()>,
    ) {
        let mut store = self.lock();
        let outcome = match &*store {
            Store::Nowhere | Store::Keeper { connection: None, .. } => return,
            Store::Keeper { connection: Some(connection), .. } => keeper(connection),
            Store::Systemd => systemd(),
        };
        let Err(error) = outcome else { return };
        self.failures.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(doing, %error, "parking has failed: what is resident now would not outlive this process");
        // An answer says what is wrong with this one; anything else says that nobody answers.
        if let Store::Keeper { connection, .. } = &mut *store
            && error.kind() != io::ErrorKind::Other
        {
            *connection = None;
        }
    }

    /// Parks a descriptor, in place of what had that name.
    pub fn put(&self, name: &str, descriptor: BorrowedFd<'_>) {
        let systemd = || {
            let named = format!("{SYSTEMD_PREFIX}{name}");
            let states = [NotifyState::FdStore, NotifyState::FdName(&named), NotifyState::Custom("FDPOLL=0")];
            sd_notify::notify_with_fds(&states, &[descriptor])
        };
        self.with("putting", |keeper| keeper.put(name, descriptor), systemd);
    }

    /// Lets a descriptor go.
    pub fn remove(&self, name: &str) {
        let systemd = || {
            let named = format!("{SYSTEMD_PREFIX}{name}");
            sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(&named)])
        };
        self.with("removing", |keeper| keeper.remove(name), systemd);
    }

    /// Whether the keeper came back and has nothing yet. Asks it whether it is there; blocks.
    pub fn came_back(&self) -> bool {
        self.with("asking", Keeper::ping, || Ok(()));
        let mut store = self.lock();
        let Store::Keeper { path, namespace, connection: connection @ None } = &mut *store else {
            return false;
        };
        *connection = Keeper::connect(path, namespace).ok();
        if connection.is_some() {
            tracing::info!(path = %path.display(), "there is a keeper again");
        }
        connection.is_some()
    }

    fn put_record<M: prost::Message>(&self, name: &str, kind: Kind, message: &M) {
        match record::write(kind, message) {
            Ok(descriptor) => self.put(name, descriptor.as_fd()),
            Err(error) => {
                self.failures.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(name, %error, "a record could not be written");
            }
        }
    }

    /// Parks a sealed image: its segments, then the record that makes them one.
    pub fn image(&self, image: &Image) {
        if !self.is_on() {
            return;
        }
        for segment in &image.segments {
            match segment.export() {
                Ok(exported) => self.put(&segment_name(segment.id), exported.descriptor.as_fd()),
                Err(error) => {
                    self.failures.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(image = image.name, %error, "an image cannot be parked");
                    return;
                }
            }
        }
        // As after the keeper has come back.
        for segment in &image.segments {
            let lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner).get(&segment.id).copied();
            if let Some(uid) = lent {
                self.put_record(&lent_name(segment.id, uid), Kind::Lent, &());
            }
        }
        if let Some(record) = record::Image::of(image) {
            self.put_record(&image_name(record.number()), Kind::Image, &record);
        }
    }

    /// Remembers to which user a segment is lent, before it is.
    pub fn lent(&self, segment: u64, uid: u32) {
        if !self.is_on() {
            return;
        }
        let mut lent = self.lent.lock().unwrap_or_else(PoisonError::into_inner);
        if lent.insert(segment, uid) != Some(uid) {
            self.put_record(&lent_name(segment, uid), Kind::Lent, &());
        }
    }

    fn forget_segment(&self, id: u64) {
        self.remove(&segment_name(id));
        let uid = self.lent.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        if let Some(uid) = uid {
            self.remove(&lent_name(id, uid));
        }
    }

    /// Lets an image go: first the record, so that no record is without its segments.
    pub fn forget_image(&self, image: &Image) {
        if let Some(first) = image.segments.first().filter(|_| self.is_on()) {
            self.remove(&image_name(first.id));
            image.segments.iter().for_each(|segment| self.forget_segment(segment.id));
        }
    }

    /// Parks what is needed to register a model again.
    pub fn model(&self, model: &Registered) {
        if self.is_on() {
            self.put_record(&model_name(&model.name), Kind::Model, &record::Model::of(model));
        }
    }

    /// Lets a model go.
    pub fn forget_model(&self, name: &str) {
        if self.is_on() {
            self.remove(&model_name(name));
        }
    }

    /// Parks a session: its words, what they hold, and then whose it is.
    pub fn session(&self, session: &Session) {
        let Some(holds) = session.holds().filter(|_| self.is_on()) else { return };
        self.put(&format!("words-{}", session.number), session.words().descriptor());
        self.put(&format!("holds-{}", session.number), holds.descriptor());
        self.put_record(&session_name(session.number), Kind::Session, &record::Session::of(session));
    }

    /// Lets a session go.
    pub fn forget_session(&self, session: &Session) {
        if session.holds().is_some() {
            self.forget_session_number(session.number);
        }
    }

    pub fn forget_session_number(&self, number: u64) {
        for name in [session_name(number), format!("words-{number}"), format!("holds-{number}")] {
            self.remove(&name);
        }
    }
}

fn session_name(number: u64) -> String {
    format!("session-{number}")
}

pub fn segment_name(id: u64) -> String {
    format!("segment-{id}")
}

fn lent_name(segment: u64, uid: u32) -> String {
    format!("lent-{segment}-{uid}")
}

pub fn image_name(first_segment: u64) -> String {
    format!("image-{first_segment}")
}

pub fn model_name(name: &str) -> String {
    format!("model-{:016x}", xxh3_64(name.as_bytes()))
}

/// The path of `keeper:PATH`.
///
/// # Errors
/// `config`, with what is expected.
pub fn check(park: &str) -> Result<PathBuf> {
    match park.strip_prefix("keeper:") {
        Some(path) if !path.is_empty() => Ok(PathBuf::from(path)),
        _ => Err(Error::new(
            "config",
            format!("park = {park:?}: expected \"keeper:PATH\", \"systemd\" or \"\""),
        )),
    }
}
