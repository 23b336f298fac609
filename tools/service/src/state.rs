//! Everything that requests and operations share.

use crate::access::Peer;
use crate::arenas::ArenaBook;
use crate::clients::Clients;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::events::Events;
use crate::host::Host;
use crate::images::ImageBook;
use crate::models::ModelBook;
use crate::ops::observe::{DeviceBytes, Observe, Observed, Source};
use crate::park::Parking;
use crate::segments::SegmentBook;
use crate::session::{SessionBook, Stage};
use spoc_cache::stats::Counters;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, watch};

/// Makes counters; see [`crate::host::CountersFor`].
pub type MakeCounters = Arc<dyn Fn(&str, usize) -> Counters + Send + Sync>;

/// The service's state.
pub struct State {
    /// As it is now: a reload changes what can change.
    config: RwLock<Arc<Config>>,
    pub host: Host,
    pub models: ModelBook,
    pub images: ImageBook,
    pub arenas: ArenaBook,
    pub segments: SegmentBook,
    pub parking: Arc<Parking>,
    pub sessions: SessionBook,
    pub events: Events,
    pub counters: MakeCounters,
    /// Acquires that may wait.
    pub waiting: Arc<Semaphore>,
    waiting_max: usize,
    /// One more waits.
    pub somebody_waits: Notify,
    /// Requests in flight.
    pub clients: Clients,
    /// Something that is held has ended.
    pub released: Notify,
    pub instance: String,
    pub began: Instant,
    pub ready_after: Duration,
    draining: AtomicBool,
    pub stop: watch::Sender<bool>,
}

impl State {
    #[allow(clippy::too_many_arguments, reason = "called once")]
    pub fn new(
        config: Config,
        host: Host,
        parking: Arc<Parking>,
        counters: MakeCounters,
        instance: String,
        began: Instant,
        stop: watch::Sender<bool>,
    ) -> State {
        let waiting = Arc::new(Semaphore::new(config.quota.waiting as usize));
        State {
            config: RwLock::new(Arc::new(config)),
            host,
            models: ModelBook::default(),
            images: ImageBook::new(Arc::clone(&parking)),
            arenas: ArenaBook::default(),
            segments: SegmentBook::default(),
            sessions: SessionBook::new(parking.is_on()),
            parking,
            events: Events::new(),
            counters,
            waiting_max: waiting.available_permits(),
            waiting,
            somebody_waits: Notify::new(),
            clients: Clients::default(),
            released: Notify::new(),
            instance,
            began,
            ready_after: began.elapsed(),
            draining: AtomicBool::new(false),
            stop,
        }
    }

    pub fn config(&self) -> Arc<Config> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes over what may change while running: access, quotas and roots. What may not and differs is named.
    pub fn reload(&self, new: Config) -> Vec<&'static str> {
        let mut held = self.config.write().unwrap_or_else(PoisonError::into_inner);
        let mut stays = Vec::new();
        for (name, differs) in [
            ("socket", new.socket != held.socket),
            ("socket_mode", new.socket_mode != held.socket_mode),
            ("devices", new.devices != held.devices),
            ("staging", new.staging != held.staging),
            ("metrics", new.metrics != held.metrics),
            ("arena", new.arenas != held.arenas),
            ("park", new.park != held.park),
        ] {
            if differs {
                stays.push(name);
            }
        }
        let mut next = (**held).clone();
        next.access = new.access;
        next.quota = new.quota;
        next.roots = new.roots;
        *held = Arc::new(next);
        stays
    }

    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// New work is refused from now on.
    pub fn begin_draining(&self) {
        if !self.draining.swap(true, Ordering::AcqRel) {
            self.events.tell("draining", "", "", String::new);
        }
    }

    /// # Errors
    /// `draining`.
    pub fn check_takes_work(&self) -> Result<()> {
        if self.is_draining() {
            return Err(Error::new("draining", "the service is being drained: no new work is taken"));
        }
        Ok(())
    }

    /// Whether an acquire waits for disk or room.
    pub fn are_waiting(&self) -> bool {
        self.waiting.available_permits() < self.waiting_max
    }

    /// Looks at every word, and tells caches and those that wait for room.
    pub fn sweep(&self) {
        if self.sessions.sweep() > 0 {
            self.poll_caches();
        }
    }

    /// Parks all that outlives the service, once more.
    pub fn park_everything(&self) {
        self.models.all().iter().for_each(|model| self.parking.model(model));
        let images = self.images.all();
        let sealed = images.iter().filter(|image| image.stage() == crate::images::Stage::Sealed);
        sealed.for_each(|image| self.parking.image(image));
        let sessions = self.sessions.all();
        sessions
            .iter()
            .filter(|session| session.stage() != Stage::New)
            .for_each(|session| self.parking.session(session));
    }

    pub fn poll_caches(&self) {
        self.arenas.all().iter().for_each(|arena| arena.cache.poll());
        self.released.notify_waiters();
    }

    /// A client's process has ended.
    pub fn client_died(&self, session: &crate::session::Session) {
        let held = self.sessions.died(session);
        self.parking.forget_session(session);
        self.images.drop_unfinished(session.number, &self.segments);
        self.poll_caches();
        let Peer { pid, uid, .. } = session.peer();
        tracing::info!(session = session.number, pid, uid, leases = held, "a client has ended");
        self.events.tell("client_ended", "", "", || format!("session {}, {held} leases", session.number));
    }

    /// Waits until nothing is held any more. Leases left.
    pub async fn drained(&self, timeout: Duration) -> u32 {
        let deadline = tokio::time::Instant::now() + timeout;
        loop {
            let changed = self.released.notified();
            self.sweep();
            let (leases, _) = self.sessions.held();
            if leases == 0 || tokio::time::Instant::now() >= deadline {
                return u32::try_from(leases).unwrap_or(u32::MAX);
            }
            // Words are not told of: they are looked at.
            let step = (tokio::time::Instant::now() + Duration::from_millis(20)).min(deadline);
            let _ = tokio::time::timeout_at(step, changed).await;
        }
    }
}

impl Observe for State {
    fn observe(&self) -> Observed {
        let arenas = self.arenas.all();
        let mut sources: Vec<Source> =
            self.host.0.iter().map(|device| Source::read("", &device.uuid, &device.counters)).collect();
        sources.extend(arenas.iter().map(|arena| {
            // Retires what has ended, and writes its own figures.
            let _now = arena.cache.snapshot();
            Source::read(&arena.name, &arena.device, arena.cache.counters())
        }));
        let images = self.images.all();
        let devices = self.host.0.iter().map(|device| {
            let memory = device.device.memory().ok();
            let here = |name: &str| *name == *device.uuid;
            DeviceBytes {
                device: device.uuid.clone(),
                total: memory.map_or(0, |memory| memory.total_bytes),
                free: memory.map_or(0, |memory| memory.free_bytes),
                arenas: arenas.iter().filter(|arena| here(&arena.device)).map(|arena| arena.bytes()).sum(),
                images: images.iter().filter(|image| here(&image.device)).map(|image| image.bytes).sum(),
                staging: device.pump.ring().bytes as u64,
            }
        });
        let sessions = self.sessions.all();
        let in_stage =
            |stage: Stage| sessions.iter().filter(|session| session.stage() == stage).count() as u64;
        let stages = [Stage::New, Stage::Attached, Stage::Detached];
        let (leases, held_bytes) = self.sessions.held();
        let sealed =
            images.iter().filter(|image| image.stage() == crate::images::Stage::Sealed).count() as u64;
        Observed {
            uptime: self.began.elapsed(),
            ready_after: self.ready_after,
            is_draining: self.is_draining(),
            devices: devices.collect(),
            sources,
            sessions: stages.map(|stage| (stage.as_str(), in_stage(stage))).to_vec(),
            images: vec![
                ("loading", self.images.loading().len() as u64),
                ("writing", images.len() as u64 - sealed),
                ("sealed", sealed),
            ],
            leases,
            held_bytes,
            models: self.models.all().len() as u64,
            clients_lost: self.sessions.lost(),
        }
    }

    fn ready(&self) -> std::result::Result<(), String> {
        if self.is_draining() { Err("the service is being drained".to_owned()) } else { Ok(()) }
    }

    fn live(&self) -> std::result::Result<(), String> {
        for device in &self.host.0 {
            device.device.memory().map_err(|error| format!("device {}: {error}", device.uuid))?;
        }
        Ok(())
    }
}
