//! Checking a launch, moving what it needs, and handing it over.

use std::sync::atomic::Ordering;

use super::arguments::{Argument, Arguments};
use super::bound::{Bound, BoundLaunch};
use super::kernel::{Kernel, KindRule, Role};
use super::{Access, Grid};
use crate::device::{Device, DeviceCore};
use crate::error::{Error, ErrorKind, Result};
use crate::ledger::{Payload, StreamCore};
use crate::stream::Stream;
use crate::util::lock;
use crate::vector::{Body, Cell, Operation, check_elements};

const DOING: &str = "launching a kernel";

impl Device {
    /// Launches on the default stream, after all blocking streams, and after non-blocking ones that still use
    /// one of the vectors. May be held in the launch window ([`Device::set_launch_window`]).
    ///
    /// Vectors move by themselves if they are not current here; those that the kernel writes are newest here
    /// afterwards.
    ///
    /// # Errors
    /// `Unsupported` if the device runs no kernels, or none of this form; `InvalidArgument` if the number or
    /// roles of arguments are not what the kernel takes; `WrongKind`; `TooLarge` for vectors or grids that 32
    /// bits do not index; `ZeroSize`; `Overlap` if written memory is passed twice; `WrongDevice`;
    /// `WrongLocation` if a vector would have to move and automatic transfers are off; the failure of enqueued
    /// work. Nothing has moved then, unless it was a transfer that failed.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, arguments: &Arguments<'_>) -> Result<()> {
        let launch = self.prepare(kernel, grid, arguments)?;
        for segment in launch.segments() {
            self.ledger().settle(self.core(), segment)?;
        }
        self.hold_or_launch(launch)?;
        settle_locations(self, arguments);
        Ok(())
    }

    /// Checks everything, then moves what has to move.
    fn prepare(&self, kernel: &Kernel, grid: Grid, arguments: &Arguments<'_>) -> Result<BoundLaunch> {
        let core = self.core();
        core.require("launch", &core.capabilities.launch)?;
        core.backend.check_kernel(&core.handle, kernel)?;
        grid.check(DOING)?;
        check_signature(kernel, arguments)?;
        for argument in &arguments.list {
            self.check(argument)?;
        }
        let bind = |argument| self.bind(argument);
        let arguments = arguments.list.iter().map(bind).collect::<Result<Vec<_>>>()?;
        let launch = BoundLaunch { kernel: kernel.clone(), grid, arguments };
        launch.refuse_overlap(DOING)?;
        Ok(launch)
    }

    /// Everything that can be refused before anything moves.
    fn check(&self, argument: &Argument<'_>) -> Result<()> {
        let bytes = match argument {
            Argument::Vector(body, access) => {
                check_elements(body.len, DOING)?;
                body.look_up(operation(*access), Some(self))?;
                body.len_bytes()
            }
            Argument::View { segment, elements, kind, .. } => {
                self.core().check_same(segment.core(), DOING)?;
                elements * kind.len_bytes() as u64
            }
            Argument::Scalar(_) => 0,
        };
        let max = self.limits().binding_bytes_max;
        if bytes > max {
            let limit = self.core().backend.binding_limit_name(&self.core().handle)?;
            let error = Error::new(ErrorKind::TooLarge { need: bytes, max }, DOING);
            return Err(error.with("unit", "bytes").with("limit", limit));
        }
        Ok(())
    }

    fn bind(&self, argument: &Argument<'_>) -> Result<Bound> {
        match argument {
            Argument::Vector(body, access) => self.bind_vector(body, *access),
            Argument::View { segment, offset_bytes, elements, kind, access } => Ok(Bound::Memory {
                segment: (*segment).clone(),
                offset_bytes: *offset_bytes,
                len_bytes: elements * kind.len_bytes() as u64,
                kind: Some(*kind),
                access: *access,
            }),
            Argument::Scalar(scalar) => Ok(Bound::Scalar(*scalar)),
        }
    }

    /// Makes the vector current here. That it will be written is noted once the launch has been taken.
    fn bind_vector(&self, body: &Body, access: Access) -> Result<Bound> {
        if let Cell::Move(moves, next) = body.look_up(operation(access), Some(self))? {
            body.carry_out(moves, Some(self))?;
            if access == Access::Read {
                body.settle_at(next, Some(self));
            }
        }
        let held = body.home_buffer(DOING)?;
        Ok(Bound::Memory {
            segment: held.segment,
            offset_bytes: held.offset_bytes,
            len_bytes: body.len_bytes(),
            kind: body.kind,
            access,
        })
    }
}

impl Stream {
    /// Enqueues a launch on this stream, ordered by it alone. What the launch window holds is handed over
    /// first; this launch is never held there.
    ///
    /// # Errors
    /// As [`Device::launch`]; the stream's sticky failure.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, arguments: &Arguments<'_>) -> Result<()> {
        let launch = self.device().prepare(kernel, grid, arguments)?;
        self.enqueue_launch(&launch)?;
        settle_locations(self.device(), arguments);
        Ok(())
    }

    pub(super) fn enqueue_launch(&self, launch: &BoundLaunch) -> Result<()> {
        self.keep_short();
        let _turn = lock(&self.core().submission);
        submit_locked(self.device_core(), self.core(), launch)
    }
}

/// Hands a launch to the backend and enters it. The caller holds the stream's submission lock.
pub(super) fn submit_locked(core: &DeviceCore, stream: &StreamCore, launch: &BoundLaunch) -> Result<()> {
    stream.in_flight.check()?;
    launch.enqueue(core, &stream.handle)?;
    core.counters.submissions.fetch_add(1, Ordering::Relaxed);
    // The kernel is kept as well: an API may still read it.
    stream.in_flight.enter(Payload::new(launch.kernel.clone()), false, launch.segments(), None);
    Ok(())
}

/// What the launch writes is newest on the device from here on.
fn settle_locations(device: &Device, arguments: &Arguments<'_>) {
    for argument in &arguments.list {
        if let Argument::Vector(body, Access::Write) = argument
            && let Ok(Cell::Move(_, next)) = body.look_up(Operation::LaunchWrite, Some(device))
        {
            body.settle_at(next, Some(device));
        }
    }
}

fn operation(access: Access) -> Operation {
    match access {
        Access::Read => Operation::LaunchRead,
        Access::Write => Operation::LaunchWrite,
    }
}

fn check_signature(kernel: &Kernel, arguments: &Arguments<'_>) -> Result<()> {
    let (parameters, given) = (kernel.parameters(), &arguments.list);
    let refuse = |kind: ErrorKind| Error::new(kind, DOING).with("kernel", kernel.name().to_owned());
    if parameters.len() != given.len() {
        return Err(refuse(ErrorKind::InvalidArgument)
            .with("arguments", given.len())
            .with("expected", parameters.len()));
    }
    for (position, (parameter, argument)) in parameters.iter().zip(given).enumerate() {
        let role = match argument.access() {
            Some(Access::Read) => Role::Read,
            Some(Access::Write) => Role::Write,
            None => Role::Scalar,
        };
        if role != parameter.role {
            return Err(refuse(ErrorKind::InvalidArgument)
                .with("argument", position)
                .with("expected", format_args!("{:?}", parameter.role)));
        }
        let expected = match parameter.kind {
            KindRule::Any => continue,
            KindRule::AnyNumber if argument.kind().is_some() => continue,
            KindRule::AnyNumber => return Err(refuse(ErrorKind::WrongKind).with("argument", position)),
            KindRule::Exactly(kind) => Some(kind),
            KindRule::SameAs(other) => given.get(other).and_then(Argument::kind),
        };
        if argument.kind() != expected {
            let name = |kind: Option<crate::vector::ElementKind>| kind.map_or("record", |kind| kind.as_str());
            return Err(refuse(ErrorKind::WrongKind)
                .with("argument", position)
                .with("kind", name(argument.kind()))
                .with("expected", name(expected)));
        }
    }
    Ok(())
}
