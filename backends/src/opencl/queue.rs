//! Commands: one call, one function. None blocks but `drain`, `finish` and the maps.

use std::ptr;
use std::sync::Arc;

use opencl_sys::{
    CL_EVENT_COMMAND_EXECUTION_STATUS, CL_FALSE, CL_MAP_READ, CL_MAP_WRITE, CL_SUCCESS, cl_device_id,
    cl_event, cl_int, cl_map_flags, cl_uint,
};
use spoc_driver::{Error, ErrorKind, Result};

use super::error::check;
use super::handle::{Context, Mem, Queue, Signal};

/// The widest pattern a fill may have, in bytes.
const PATTERN_BYTES: usize = 128;

impl Queue {
    /// An in-order queue.
    pub(super) fn create(context: &Context, device: cl_device_id) -> Result<Self> {
        let mut code = CL_SUCCESS;
        // SAFETY: context and device belong together; no properties means in order.
        let raw =
            unsafe { (context.api().library.create_command_queue)(context.raw(), device, 0, &raw mut code) };
        check(code, "creating an OpenCL queue")?;
        // SAFETY: just created.
        Ok(unsafe { Self::owned(context.api(), raw) })
    }

    /// Sees to it that what was enqueued runs without further calls.
    pub(super) fn flush(&self) -> Result<()> {
        // SAFETY: `self` keeps the queue.
        check(unsafe { (self.api().library.flush)(self.raw()) }, "submitting OpenCL commands")
    }

    /// Sleeps until everything enqueued is over.
    pub(super) fn drain(&self) -> Result<()> {
        let end = self.marker()?;
        self.flush()?;
        end.wait()
    }

    /// Waits until everything enqueued is over, failed or not. May work on other queues meanwhile.
    pub(super) fn finish(&self) -> Result<()> {
        // SAFETY: as above.
        check(unsafe { (self.api().library.finish)(self.raw()) }, "waiting for an OpenCL queue")
    }

    /// A signal that comes after everything enqueued so far.
    pub(super) fn marker(&self) -> Result<Signal> {
        let mut event = ptr::null_mut();
        // SAFETY: `self` keeps the queue; an empty list stands for all earlier commands.
        let code = unsafe { (self.api().library.enqueue_marker)(self.raw(), 0, ptr::null(), &raw mut event) };
        check(code, "recording in an OpenCL queue")?;
        // SAFETY: just made for us.
        Ok(unsafe { Signal::owned(self.api(), event) })
    }

    /// Makes everything enqueued from now on wait for signals (≥ 1).
    ///
    /// # Safety
    /// They are live events of the same context.
    pub(super) unsafe fn barrier(&self, signals: &[cl_event]) -> Result<()> {
        let count = cl_uint::try_from(signals.len()).unwrap_or(cl_uint::MAX);
        // SAFETY: the caller's word; the runtime keeps the events it waits for.
        let code = unsafe {
            (self.api().library.enqueue_barrier)(self.raw(), count, signals.as_ptr(), ptr::null_mut())
        };
        check(code, "waiting in an OpenCL queue")
    }

    /// Makes everything enqueued from now on wait for a signal.
    pub(super) fn wait_for(&self, signal: &Signal) -> Result<()> {
        // SAFETY: `signal` is alive; the driver checked that it is of the same device.
        unsafe { self.barrier(&[signal.raw()]) }
    }

    /// # Safety
    /// The ranges exist, and both stay, unmodified, until the copy has run.
    pub(super) unsafe fn write(&self, src: *const u8, len: usize, dst: &Mem, offset: usize) -> Result<()> {
        // SAFETY: the caller's word. No event is asked for: it would cost an allocation a copy.
        let code = unsafe {
            (self.api().library.enqueue_write_buffer)(
                self.raw(),
                dst.raw(),
                CL_FALSE,
                offset,
                len,
                src.cast(),
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check(code, "copying to an OpenCL device")
    }

    /// # Safety
    /// As [`Queue::write`]; nobody else touches the destination.
    pub(super) unsafe fn read(&self, src: &Mem, offset: usize, dst: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the caller's word.
        let code = unsafe {
            (self.api().library.enqueue_read_buffer)(
                self.raw(),
                src.raw(),
                CL_FALSE,
                offset,
                len,
                dst.cast(),
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check(code, "copying from an OpenCL device")
    }

    /// # Safety
    /// Both ranges lie inside their buffers and do not overlap.
    pub(super) unsafe fn copy(&self, src: (&Mem, usize), dst: (&Mem, usize), len: usize) -> Result<()> {
        // SAFETY: the caller's word; the runtime keeps the buffers.
        let code = unsafe {
            (self.api().library.enqueue_copy_buffer)(
                self.raw(),
                src.0.raw(),
                dst.0.raw(),
                src.1,
                dst.1,
                len,
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check(code, "copying within an OpenCL device")
    }

    /// Sets bytes to one value. Up to three commands: offset and length of a fill must be multiples of its
    /// pattern, and runtimes write narrow patterns slowly.
    ///
    /// # Safety
    /// The range lies inside the buffer.
    pub(super) unsafe fn fill(&self, dst: &Mem, offset: usize, len: usize, value: u8) -> Result<()> {
        let end = offset + len;
        let first = offset.next_multiple_of(PATTERN_BYTES).min(end);
        let last = (end - end % PATTERN_BYTES).max(first);
        for (from, to, width) in [(offset, first, 1), (first, last, PATTERN_BYTES), (last, end, 1)] {
            if from < to {
                // SAFETY: parts of the caller's range, multiples of the pattern's width.
                unsafe { self.fill_with(dst, from, to - from, &[value; PATTERN_BYTES][..width]) }?;
            }
        }
        Ok(())
    }

    unsafe fn fill_with(&self, dst: &Mem, offset: usize, len: usize, pattern: &[u8]) -> Result<()> {
        // SAFETY: the caller's word; the pattern is copied by the call.
        let code = unsafe {
            (self.api().library.enqueue_fill_buffer)(
                self.raw(),
                dst.raw(),
                pattern.as_ptr().cast(),
                pattern.len(),
                offset,
                len,
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check(code, "filling OpenCL memory")
    }

    /// Makes a whole buffer addressable by the host, and waits for it.
    pub(super) fn map(&self, mem: &Mem, len: usize) -> Result<*mut u8> {
        self.map_for(mem, len, CL_MAP_READ | CL_MAP_WRITE)
    }

    /// [`Queue::map`] for a purpose.
    pub(super) fn map_for(&self, mem: &Mem, len: usize, flags: cl_map_flags) -> Result<*mut u8> {
        const DOING: &str = "mapping OpenCL memory";
        let mut code = CL_SUCCESS;
        // SAFETY: `len` is the buffer's length, as the callers see to.
        let mapped = unsafe {
            (self.api().library.enqueue_map_buffer)(
                self.raw(),
                mem.raw(),
                CL_FALSE,
                flags,
                0,
                len,
                0,
                ptr::null(),
                ptr::null_mut(),
                &raw mut code,
            )
        };
        check(code, DOING)?;
        self.drain()?;
        if mapped.is_null() { Err(Error::new(ErrorKind::Backend, DOING)) } else { Ok(mapped.cast()) }
    }

    /// Undoes [`Queue::map`], once it comes to it.
    pub(super) fn unmap(&self, mem: &Mem, mapped: *mut u8) -> Result<()> {
        // SAFETY: `mapped` is what `map` answered for `mem`.
        let code = unsafe {
            (self.api().library.enqueue_unmap_mem_object)(
                self.raw(),
                mem.raw(),
                mapped.cast(),
                0,
                ptr::null(),
                ptr::null_mut(),
            )
        };
        check(code, "unmapping OpenCL memory")?;
        self.flush()
    }
}

impl Signal {
    /// A signal that the host gives.
    pub(super) fn by_host(context: &Context) -> Result<Self> {
        let mut code = CL_SUCCESS;
        // SAFETY: `context` is alive.
        let raw = unsafe { (context.api().library.create_user_event)(context.raw(), &raw mut code) };
        check(code, "creating an OpenCL event")?;
        // SAFETY: just created.
        Ok(unsafe { Self::owned(context.api(), raw) })
    }

    /// Gives the host's signal.
    pub(super) fn give(&self) -> Result<()> {
        // SAFETY: `self` keeps the event, which [`Signal::by_host`] made.
        let code = unsafe { (self.api().library.set_user_event_status)(self.raw(), CL_SUCCESS) };
        check(code, "setting an OpenCL event")
    }

    /// The API's word on it: 0 when it is over, less when it failed, more before that.
    pub(super) fn status(&self) -> Result<cl_int> {
        let mut status: cl_int = 0;
        // SAFETY: `self` keeps the event; the property is one `cl_int`.
        let code = unsafe {
            (self.api().library.get_event_info)(
                self.raw(),
                CL_EVENT_COMMAND_EXECUTION_STATUS,
                size_of::<cl_int>(),
                (&raw mut status).cast(),
                ptr::null_mut(),
            )
        };
        check(code, "querying OpenCL work").map(|()| status)
    }

    /// Whether it has come.
    ///
    /// # Errors
    /// `AsyncFailure` if work before it failed.
    pub(super) fn query(&self) -> Result<bool> {
        if self.status()? > CL_SUCCESS { Ok(false) } else { self.wait().map(|()| true) }
    }

    /// The API's own wait, for what is over.
    pub(super) fn confirm(&self) -> Result<()> {
        let event = self.raw();
        // SAFETY: `self` keeps the event.
        let code = unsafe { (self.api().library.wait_for_events)(1, &raw const event) };
        check(code, "waiting for OpenCL work")
    }
}

impl Context {
    /// A context of one device.
    pub(super) fn create(api: &Arc<super::handle::Api>, device: cl_device_id) -> Result<Self> {
        let mut code = CL_SUCCESS;
        // SAFETY: the device came from the API; no properties and no callback are given.
        let raw = unsafe {
            (api.library.create_context)(
                ptr::null(),
                1,
                &raw const device,
                None,
                ptr::null_mut(),
                &raw mut code,
            )
        };
        check(code, "creating an OpenCL context")?;
        // SAFETY: just created.
        Ok(unsafe { Self::owned(api, raw) })
    }
}
