//! The service manager: it is told when the service is ready, reloads, stops and lives. Without one (`NOTIFY_SOCKET` is not
//! set) nothing is said.

use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::sync::watch;

use super::observe::Observe;

/// Tells the service manager; a failure is logged, as nobody can act on it here.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "the service manager could not be told");
    }
}

/// Requests are served from now on.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// What the service is doing, in a line.
pub fn status(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// A reload has begun; [`ready`] ends it.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager could not be told of the reload"),
    }
}

/// The end has begun.
pub fn stopping(status: &str) {
    tell(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// Feeds the watchdog as long as the service shows life, if the service manager wants it fed (`WATCHDOG_USEC`). A service
/// that does not is left to the manager, which ends and restarts it; the log says what stands still.
pub async fn watchdog(service: Arc<dyn Observe>, mut stop: watch::Receiver<bool>) {
    let Some(limit) = sd_notify::watchdog_enabled() else { return };
    let mut ticks = tokio::time::interval((limit / 3).max(Duration::from_millis(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|stop| *stop) => return,
        }
        let asked = Arc::clone(&service);
        match tokio::task::spawn_blocking(move || asked.live()).await {
            Ok(Ok(())) => tell(&[NotifyState::Watchdog]),
            Ok(Err(why)) => tracing::error!(why, "the watchdog is not fed"),
            Err(error) => tracing::error!(%error, "the watchdog is not fed"),
        }
    }
}
