//! The io_uring side of the reader: the only place that calls io_uring.
//!
//! One thread owns the ring. It sleeps in one place, `io_uring_enter`, and is woken there by completions and by a
//! read of the reader's eventfd that it keeps armed in the ring.

mod closing;
mod depth;
mod engine;
mod files;
mod late;
mod selftest;
mod setup;
mod wait;

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::reader::queue::Shared;
use crate::reader::{Outlet, ReaderOptions};
use engine::Engine;

/// Starts the ring thread. `alive` is dropped when the thread ends; it begins to read when `go` closes.
///
/// # Errors
/// Why there is no io_uring here, and what would change that, in words.
pub(crate) fn start(
    shared: &Arc<Shared>,
    outlet: Outlet,
    options: &ReaderOptions,
    alive: Sender<()>,
    go: Receiver<()>,
) -> Result<JoinHandle<()>, String> {
    let (shared, options) = (Arc::clone(shared), options.clone());
    let (ready, started) = bounded(1);
    let body = move || {
        // First: the ring's own memory is then of the node too.
        crate::reader::bind(options.numa_node, &shared.counters);
        // The ring is made by the thread that uses it: the kernel then knows it has a single issuer.
        match Engine::new(shared, outlet, &options) {
            Ok(mut engine) => {
                let _ = ready.send(Ok(()));
                // Never a message: it closes.
                let _ = go.recv();
                // Takes as long as some reads, and threads that need no ring may be reading already.
                engine.register(&options);
                engine.run();
            }
            Err(reason) => {
                let _ = ready.send(Err(reason));
            }
        }
        drop(alive);
    };
    let thread = std::thread::Builder::new().name("spoc-ring".to_owned()).spawn(body);
    let thread = thread.map_err(|e| format!("the ring thread could not be started: {e}"))?;
    match started.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(reason)) => Err(reason),
        Err(_) => Err("the ring thread ended while it started".to_owned()),
    }
}
