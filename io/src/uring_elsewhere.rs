//! In io_uring's place where there is none.

use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender};

use crate::reader::queue::Shared;
use crate::reader::{Outlet, ReaderOptions};

/// Says so: the reader then uses its threads that call pread.
pub(crate) fn start(
    _: &Arc<Shared>,
    _: Outlet,
    _: &ReaderOptions,
    _: Sender<()>,
    _: Receiver<()>,
) -> Result<JoinHandle<()>, String> {
    Err("io_uring exists on Linux alone".to_owned())
}
