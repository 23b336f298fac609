//! A model onto several devices as a placement map says: every byte that anybody wants is read once.

mod compare;
mod sink;

use super::cancel::Cancel;
use super::pack::{self, Placement};
use crate::pump::{GroupJob, JobId, Leg, Place, Places, PumpGroup, Sink, Stages};
use crate::{Error, ErrorKind, Result};
use sink::PlacedSink;
use spoc_driver::{Device, Segment, SegmentOptions};
use spoc_io::{BlockDigests, CheckedMap, Model, ReadClass, ReadPlan, ReaderReport};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pieces planned at a time: some 40 MB of plan.
const PIECES_MAX: usize = 1 << 20;
/// Parts of a load that are on their way at once.
const PARTS_OUT_MAX: usize = 2;

/// How to load onto several devices.
#[derive(Clone, Default)]
pub struct PlaceOptions {
    /// Told how many of how many bytes have been copied, over all devices, by their copy threads: must be quick.
    pub progress: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
    /// Every chunk is compared with these digests before it is copied. The map must have whole tensors alone.
    pub verify: Option<Arc<BlockDigests>>,
    /// Ends the load early.
    pub cancel: Option<Cancel>,
    /// Into memory that can be lent to other processes.
    pub exportable: bool,
}

impl fmt::Debug for PlaceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlaceOptions").field("exportable", &self.exportable).finish_non_exhaustive()
    }
}

/// What one device got.
#[derive(Debug)]
pub struct PlacedDevice {
    /// Device memory; freed when dropped.
    pub segments: Vec<Segment>,
    /// Where each of its targets is, in the order of the map; [`Placement::tensor`] is the target's position in the map.
    pub placements: Vec<Placement>,
    /// Bytes that went to it.
    pub bytes: u64,
    /// Where its copy thread's time went, for this load alone if nothing else used the group meanwhile.
    pub stages: Stages,
}

/// A model on several devices.
#[derive(Debug)]
pub struct Placed {
    /// What became of each device, in the order of the group. A device that failed takes nothing from the others.
    pub devices: Vec<Result<PlacedDevice>>,
    /// What happened.
    pub report: PlacedReport,
}

/// What a load onto several devices did.
#[derive(Debug, Clone)]
pub struct PlacedReport {
    /// Bytes over all links, those of devices that failed included.
    pub bytes: u64,
    /// Planning and allocating device memory.
    pub prepare_time: Duration,
    /// From the first read submitted to the last copy run.
    pub stream_time: Duration,
    /// What each ring's reader did since its start.
    pub readers: Vec<ReaderReport>,
}

impl PlacedReport {
    /// 10⁹ bytes a second over all links while streaming.
    #[must_use]
    #[allow(clippy::cast_precision_loss)] // a rate for people
    pub fn gb_per_s(&self) -> f64 {
        let seconds = self.stream_time.as_secs_f64();
        if seconds > 0.0 { self.bytes as f64 / 1e9 / seconds } else { 0.0 }
    }
}

/// A device's targets and the memory for them.
struct Room {
    segments: Vec<Segment>,
    placements: Vec<Placement>,
    /// Target n of the map is place n; those of other devices have none here.
    places: Arc<[Option<Place>]>,
}

/// Loads what the map says and waits for it. Device n of the map is the group's n-th.
///
/// # Errors
/// Before a byte is read: [`ErrorKind::NoDevices`] for a map of more devices than the group has; a device too small; a target
/// wider than a segment; `invalid_argument` for digests with a map that divides tensors. Then [`ErrorKind::Cancelled`], or the
/// first device's error if every one failed; the failure of some devices is theirs, in [`Placed::devices`].
pub fn load_placed(
    group: &PumpGroup,
    model: &Model,
    map: &CheckedMap,
    options: &PlaceOptions,
) -> Result<Placed> {
    let began = Instant::now();
    let pumps = group.pumps();
    if map.devices() as usize > pumps.len() {
        return Err(Error::new(ErrorKind::TooFewDevices { need: map.devices(), have: pumps.len() }));
    }
    if options.verify.is_some() && !map.is_whole() {
        let message = "digests are of whole tensors, and the map divides some";
        return Err(spoc_io::Error::new(spoc_io::ErrorKind::InvalidArgument, message).into());
    }
    let rooms = (0u32..).zip(pumps).map(|(number, pump)| Room::of(pump.device(), number, map, options));
    let rooms = rooms.collect::<Result<Vec<_>>>()?;
    let prepare_time = began.elapsed();

    let (before, began): (Vec<Stages>, _) =
        (pumps.iter().map(|pump| pump.stages()).collect(), Instant::now());
    let bytes = (0..map.devices()).map(|device| map.device_bytes(device)).sum();
    let sink = Arc::new(PlacedSink::new(pumps.len(), bytes, options.progress.clone()));
    if let Some(cancel) = &options.cancel {
        cancel.watch(&sink);
    }
    let outcome = stream(group, model, map, options, &rooms, &sink);
    let errors = sink.finish(outcome)?;
    let report = PlacedReport {
        bytes: sink.copied(),
        prepare_time,
        stream_time: began.elapsed(),
        readers: group.reader_reports()?,
    };
    let devices = rooms.into_iter().zip(errors).enumerate().map(|(number, (room, error))| match error {
        Some(error) => Err(error),
        None => Ok(PlacedDevice {
            segments: room.segments,
            placements: room.placements,
            bytes: u32::try_from(number).map_or(0, |number| map.device_bytes(number)),
            stages: pumps[number].stages().since(&before[number]),
        }),
    });
    Ok(Placed { devices: devices.collect(), report })
}

/// Part after part, a few at a time.
fn stream(
    group: &PumpGroup,
    model: &Model,
    map: &CheckedMap,
    options: &PlaceOptions,
    rooms: &[Room],
    sink: &Arc<PlacedSink>,
) -> Result<()> {
    let mut names: Vec<JobId> = Vec::new();
    let mut outcome = Ok(());
    for part in map.parts(PIECES_MAX) {
        let plan = map.plan(model, &part, group.plan_options(), options.verify.as_ref())?;
        if plan.reads().is_empty() {
            continue;
        }
        if !sink.wait(|state| state.legs_open < PARTS_OUT_MAX * rooms.len()) {
            break;
        }
        let legs = legs_of(&plan, rooms, sink);
        if legs.is_empty() {
            continue;
        }
        sink.expect(legs.iter().map(|leg| leg.lane));
        let lanes: Vec<usize> = legs.iter().map(|leg| leg.lane).collect();
        let submitted = group.submit(GroupJob { plan: Arc::new(plan), legs, class: ReadClass::Demand });
        match submitted {
            Ok(more) => names.extend(more),
            Err(error) => {
                sink.unexpect(lanes.into_iter());
                outcome = Err(error);
                break;
            }
        }
    }
    if outcome.is_err() || !sink.wait(|state| state.legs_open == 0) {
        group.cancel(&names);
        sink.wait_a_moment();
    }
    if names.is_empty() && outcome.is_ok() {
        // There is nothing to read, but the files may still have changed.
        for file in model.files() {
            file.check_unchanged()?;
        }
    }
    outcome
}

/// A leg for each device that wants something of the plan and has not failed.
fn legs_of(plan: &ReadPlan, rooms: &[Room], sink: &Arc<PlacedSink>) -> Vec<Leg> {
    let mut wanted = 0u64;
    for piece in plan.pieces() {
        wanted |= 1 << piece.device;
    }
    let devices = (0u32..).zip(rooms).filter(|(device, _)| wanted & (1 << device) != 0);
    let alive = devices.filter(|(device, _)| !sink.has_failed(*device as usize));
    let leg = |(device, room): (u32, &Room)| Leg {
        lane: device as usize,
        device: Some(device),
        places: Places::Some(Arc::clone(&room.places)),
        sink: Arc::clone(sink) as Arc<dyn Sink>,
        tag: u64::from(device),
    };
    alive.map(leg).collect()
}

impl Room {
    fn of(device: &Device, number: u32, map: &CheckedMap, options: &PlaceOptions) -> Result<Room> {
        let targets = || (0u32..).zip(map.targets()).filter(move |(_, target)| target.device == number);
        let named = targets().map(|(index, target)| (index, target.name.as_str(), target.len_bytes));
        let (placements, segment_bytes) = pack::place(named, device.limits())?;
        let need_bytes: u64 = segment_bytes.iter().sum();
        let have_bytes = device.memory()?.free_bytes;
        if need_bytes > have_bytes {
            return Err(Error::new(ErrorKind::DeviceTooSmall { need_bytes, have_bytes }));
        }
        let memory = SegmentOptions { exportable: options.exportable };
        let segments = segment_bytes.iter().map(|&bytes| device.allocate_with(bytes, memory));
        let segments = segments.collect::<Result<Vec<_>, _>>()?;
        let mut places: Vec<Option<Place>> = map.targets().iter().map(|_| None).collect();
        for placement in &placements {
            let segment = segments[placement.segment as usize].clone();
            places[placement.tensor as usize] = Some(Place { segment, offset_bytes: placement.offset_bytes });
        }
        Ok(Room { segments, placements, places: places.into() })
    }
}
