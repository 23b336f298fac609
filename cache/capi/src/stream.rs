//! Streams, shared by the threads of a C program.

use crate::args;
use crate::device::{DeviceObject, spoc_device, spoc_foreign};
use crate::entry;
use crate::handles::{self, Object};
use crate::status::spoc_status;
use ::spoc_driver::{Stream, StreamOptions};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An ordered queue of device work: the engine's, or one of spoc's.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct spoc_stream {
    /// The handle; 0 is none.
    pub id: u64,
}

/// A stream, and whose turn it is to use it.
pub struct StreamObject {
    stream: Stream,
    turn: Mutex<()>,
}

// SAFETY: the stream is used by one thread at a time, as it asks: everything here that uses one, through
// `StreamRef` or otherwise, holds its turn meanwhile. Dropping it takes the last reference.
unsafe impl Sync for StreamObject {}

impl Object for StreamObject {
    const NAME: &'static str = "spoc_stream";
}

impl StreamObject {
    fn new(stream: Stream) -> StreamObject {
        StreamObject { stream, turn: Mutex::new(()) }
    }

    /// The right to use the stream. Nothing that waits for disk, or for another stream's turn out of order, may
    /// happen meanwhile.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The stream, for who has the turn.
    pub fn stream(&self, _turn: &MutexGuard<'_, ()>) -> &Stream {
        &self.stream
    }
}

/// What a lease keeps of its stream. Whoever calls what uses it has the turn.
pub struct StreamRef(pub Arc<StreamObject>);

impl Deref for StreamRef {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.0.stream
    }
}

/// A new stream. With `non_blocking` 1 the default stream does not wait for it. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_stream_create(
    device: spoc_device,
    non_blocking: u32,
    stream: Option<&mut MaybeUninit<spoc_stream>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(stream, "stream")?;
        let device = handles::get::<DeviceObject>(device.id)?;
        let options = StreamOptions { non_blocking: non_blocking != 0, ..StreamOptions::default() };
        let stream = StreamObject::new(device.0.create_stream(options)?);
        out.write(spoc_stream { id: handles::put(stream)? });
        Ok(())
    })
}

/// The device's default stream. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_stream_default(
    device: spoc_device,
    stream: Option<&mut MaybeUninit<spoc_stream>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(stream, "stream")?;
        let device = handles::get::<DeviceObject>(device.id)?;
        out.write(spoc_stream { id: handles::put(StreamObject::new(device.0.default_stream()))? });
        Ok(())
    })
}

/// Borrows the engine's own stream of this device. Refused as `SPOC_ERROR_UNSUPPORTED` where the backend cannot. With
/// `non_blocking` 1 it is one that the default stream does not wait for. Any thread, while the stream is alive.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spoc_stream_adopt(
    device: spoc_device,
    foreign: *const spoc_foreign,
    non_blocking: u32,
    stream: Option<&mut MaybeUninit<spoc_stream>>,
) -> spoc_status {
    entry::run(|| {
        let out = args::out(stream, "stream")?;
        // SAFETY: as the header asks. From here on, what was lent is released in any case.
        let foreign = unsafe { args::options(foreign) }?.lend();
        let device = handles::get::<DeviceObject>(device.id)?;
        let options = StreamOptions { non_blocking: non_blocking != 0, ..StreamOptions::default() };
        // SAFETY: the header asks for a live stream of this device that lives until `release`.
        let stream = unsafe { device.0.adopt_stream(foreign, options) }?;
        out.write(spoc_stream { id: handles::put(StreamObject::new(stream))? });
        Ok(())
    })
}

/// Waits until everything enqueued on the stream has run. Any thread; other calls with this stream wait meanwhile.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_stream_synchronize(stream: spoc_stream) -> spoc_status {
    entry::run(|| {
        let object = handles::get::<StreamObject>(stream.id)?;
        let turn = object.turn();
        object.stream(&turn).synchronize()?;
        Ok(())
    })
}

/// Closes the handle. Nothing that was enqueued is cancelled; leases on it stay valid. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn spoc_stream_close(stream: spoc_stream) -> spoc_status {
    entry::run(|| handles::take::<StreamObject>(stream.id).map(drop))
}
