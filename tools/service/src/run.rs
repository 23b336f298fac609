//! From start to stop.

use crate::adopt::adopt;
use crate::arenas::Arena;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::lend;
use crate::ops::calls::Calls;
use crate::ops::http::{Address, Bound};
use crate::ops::layer::CountCalls;
use crate::ops::metrics::Metrics;
use crate::ops::observe::Observe;
use crate::ops::systemd;
use crate::park::{Parked, Parking};
use crate::rpc::Rpc;
use crate::state::{MakeCounters, State};
use rustix::rand::{GetRandomFlags, getrandom};
use spoc_driver::Device;
use spoc_page::lend::{LendListener, pidfd_of};
use spoc_page::remove_leftover_socket;
use spoc_proto::v1::spoc_server::SpocServer;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

/// How often words are looked at that nobody tells of.
const SWEEP: Duration = Duration::from_millis(50);
/// … and while an acquire waits for room that they may make.
const SWEEP_FOR_WAITERS: Duration = Duration::from_millis(1);

/// A running service.
pub struct Service {
    state: Arc<State>,
    tasks: Vec<JoinHandle<()>>,
    metrics: Option<Address>,
    survived: Option<Survived>,
}

/// What a service took over from its predecessor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Survived {
    /// Registered models.
    pub models: usize,
    /// Sealed images.
    pub images: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Sessions whose processes live.
    pub sessions: usize,
    /// Their leases.
    pub leases: u32,
    /// What was dropped, and why.
    pub dropped: Vec<String>,
    /// How long that took.
    pub took: Duration,
}

impl Service {
    /// Starts a pump for each device, makes the arenas, and opens the sockets. Answers are given from its return on.
    ///
    /// # Errors
    /// `config`, `socket_in_use`, `device_too_small`, what devices and kernel say.
    pub async fn start(config: Config, devices: Vec<Device>, counters: MakeCounters) -> Result<Service> {
        Service::start_with(config, devices, counters, Vec::new()).await
    }

    /// [`Service::start`] with descriptors that the service manager passed on (`spoc_page::inherited`): with
    /// `park = "systemd"` those that it kept are among them.
    ///
    /// # Errors
    /// As [`Service::start`]; `os` if there is no keeper where one is to be.
    pub async fn start_with(
        config: Config,
        devices: Vec<Device>,
        counters: MakeCounters,
        inherited: Parked,
    ) -> Result<Service> {
        let began = Instant::now();
        let made = {
            let (config, counters) = (config.clone(), Arc::clone(&counters));
            let prepare = move || prepare(&config, devices, &counters);
            let prepared = tokio::task::spawn_blocking(prepare).await;
            prepared.unwrap_or_else(|error| Err(Error::new("internal", format!("starting: {error}"))))?
        };
        let (host, arenas) = made;
        let listener = listen(&config).await?;
        let lending = bind_lend(&config)?;
        let (stop, stopped) = watch::channel(false);
        // Behind the listening: whoever holds the socket owns what is parked.
        let (parking, parked) = Parking::open(&config.park, &config.socket, inherited)?;
        let parking = Arc::new(parking);
        let state = State::new(config.clone(), host, parking, counters, instance()?, began, stop);
        for arena in arenas {
            state.arenas.add(arena);
        }
        let (state, survived) = if state.parking.is_on() {
            let (state, survived) = take_over(state, parked).await?;
            (state, Some(survived))
        } else {
            (Arc::new(state), None)
        };
        // Those of the interface, and the health service's.
        let methods: Vec<&'static str> = spoc_proto::methods().chain(["Check"]).collect();
        let calls = Arc::new(Calls::new(&methods));
        let (mut tasks, mut metrics) = (Vec::new(), None);
        if !config.metrics.is_empty() {
            let address: Address =
                config.metrics.parse().map_err(|error| Error::new("config", format!("metrics = {error}")))?;
            let bound = Bound::new(&address).await?;
            metrics = Some(bound.address()?);
            let observed: Arc<dyn Observe> = Arc::clone(&state) as Arc<dyn Observe>;
            let made = Metrics::new(Arc::clone(&observed), Arc::clone(&calls));
            let stopped = stopped.clone();
            tasks.push(tokio::spawn(async move {
                if let Err(error) = bound.serve(made, observed, stopped).await {
                    tracing::error!(%error, "metrics are not served any more");
                }
            }));
        }
        tasks.push(tokio::spawn(lend::serve(lending, Arc::clone(&state), stopped.clone())));
        tasks.push(tokio::spawn(sweep(Arc::clone(&state), stopped.clone())));
        tasks.push(tokio::spawn(systemd::watchdog(Arc::clone(&state) as Arc<dyn Observe>, stopped.clone())));
        if state.parking.is_on() {
            tasks.push(tokio::spawn(keep_parked(Arc::clone(&state), stopped.clone())));
        }
        tasks.push(tokio::spawn(serve(listener, Arc::clone(&state), calls, stopped)));
        Ok(Service { state, tasks, metrics, survived })
    }

    /// Where metrics are served, with the port that was given for a port of 0.
    #[must_use]
    pub fn metrics_address(&self) -> Option<String> {
        self.metrics.as_ref().map(ToString::to_string)
    }

    /// What was taken over from a predecessor; `None` where nothing is parked.
    #[must_use]
    pub fn survived(&self) -> Option<&Survived> {
        self.survived.as_ref()
    }

    /// From the start to the first answer.
    #[must_use]
    pub fn ready_after(&self) -> Duration {
        self.state.ready_after
    }

    /// Takes over what may change while running; the names of what may not and differs.
    pub fn reload(&self, config: Config) -> Vec<&'static str> {
        self.state.reload(config)
    }

    /// Waits until somebody ended it by `Shutdown`.
    pub async fn ended(&self) {
        let mut stop = self.state.stop.subscribe();
        let _ = stop.wait_for(|stop| *stop).await;
    }

    /// Refuses new work, waits until nothing is held any more or for so long, and ends. Leases left.
    pub async fn stop(self, drain: Duration) -> u32 {
        self.state.begin_draining();
        let left = self.state.drained(drain).await;
        self.state.sessions.stop();
        self.state.stop.send_replace(true);
        for task in self.tasks {
            // Streams that clients keep open end with their connections.
            if tokio::time::timeout(Duration::from_secs(2), task).await.is_err() {
                tracing::debug!("a task is left behind");
            }
        }
        let config = self.state.config();
        let _ = std::fs::remove_file(&config.socket);
        left
    }
}

fn prepare(config: &Config, devices: Vec<Device>, counters: &MakeCounters) -> Result<(Host, Vec<Arena>)> {
    let host = Host::start(config, devices, &**counters)?;
    let mut arenas = Vec::with_capacity(config.arenas.len());
    for arena in &config.arenas {
        let device = host.get(&arena.device)?;
        arenas.push(Arena::new(arena, device, &**counters)?);
    }
    Ok((host, arenas))
}

/// Adopts what was parked, on a thread that may block, and watches the processes of adopted sessions.
async fn take_over(state: State, parked: Parked) -> Result<(Arc<State>, Survived)> {
    let state = Arc::new(state);
    let adopting = {
        let state = Arc::clone(&state);
        tokio::task::spawn_blocking(move || adopt(&state, parked)).await
    };
    let (survived, sessions) =
        adopting.map_err(|error| Error::new("internal", format!("adopting: {error}")))?;
    for session in &sessions {
        // Its start was compared just now: the number is still its own.
        lend::watch_process(session, &state, pidfd_of(session.peer().pid));
    }
    Ok((state, survived))
}

/// Asks the keeper whether it is there; one that came back gets everything again.
async fn keep_parked(state: Arc<State>, mut stop: watch::Receiver<bool>) {
    let mut ticks = tokio::time::interval(Duration::from_secs(2));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let state = Arc::clone(&state);
        let asked = tokio::task::spawn_blocking(move || {
            if state.parking.came_back() {
                state.park_everything();
            }
        });
        if let Err(error) = asked.await {
            tracing::error!(%error, "parking is not looked after any more");
            return;
        }
    }
}

fn instance() -> Result<String> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| Error::new("os", error))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The control socket. A file that nobody listens on is replaced.
async fn listen(config: &Config) -> Result<UnixListener> {
    let path = &config.socket;
    let named = |error: std::io::Error| Error::new("os", format!("{}: {error}", path.display()));
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
        && !folder.exists()
    {
        std::fs::create_dir_all(folder).map_err(named)?;
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).map_err(named)?;
    }
    if let Ok(other) = tokio::net::UnixStream::connect(path).await {
        let pid = other.peer_cred().ok().and_then(|peer| peer.pid());
        let who = pid.map_or_else(String::new, |pid| format!(" (process {pid})"));
        return Err(Error::new("socket_in_use", format!("{}: a service answers there{who}", path.display())));
    }
    remove_leftover_socket(path, |_| false).map_err(named)?;
    let listener = UnixListener::bind(path).map_err(named)?;
    set_mode(path, config.mode())?;
    Ok(listener)
}

fn bind_lend(config: &Config) -> Result<LendListener> {
    let path = config.lend_path();
    let listener = LendListener::bind(&path)
        .map_err(|error| Error::new("os", format!("{}: {error}", path.display())))?;
    set_mode(&path, config.mode())?;
    Ok(listener)
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    let set = std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
    set.map_err(|error| Error::new("os", format!("{}: {error}", path.display())))
}

async fn serve(
    listener: UnixListener,
    state: Arc<State>,
    calls: Arc<Calls>,
    mut stop: watch::Receiver<bool>,
) {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<SpocServer<Rpc>>().await;
    let most = usize::try_from(state.config().quota.message.0).unwrap_or(usize::MAX);
    let spoc =
        SpocServer::new(Rpc { state }).max_decoding_message_size(most).max_encoding_message_size(usize::MAX);
    let stopped = async move {
        let _ = stop.wait_for(|stop| *stop).await;
        reporter.set_not_serving::<SpocServer<Rpc>>().await;
    };
    let served = Server::builder()
        .layer(CountCalls(calls))
        .add_service(health)
        .add_service(spoc)
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), stopped)
        .await;
    if let Err(error) = served {
        tracing::error!(%error, "the control socket is not served any more");
    }
}

/// Words are written by clients and their devices, and tell nobody: they are looked at, more often while somebody waits
/// for what they end.
async fn sweep(state: Arc<State>, mut stop: watch::Receiver<bool>) {
    loop {
        let step = if state.are_waiting() { SWEEP_FOR_WAITERS } else { SWEEP };
        tokio::select! {
            () = tokio::time::sleep(step) => {}
            () = state.somebody_waits.notified() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        state.sweep();
    }
}
