//! Vectors in random programs: where the newest copy is, and what it holds.

use spoc_driver::{BackendKind, Location, Vector};

use super::machine::{Machine, OneRead, Reasons};
use super::program::{How, Order, Piece, SEGMENT_BYTES, SEGMENTS, VectorOp};
use super::reference::Contents;
use crate::helpers::pattern;

/// A vector, and what the reference knows of it.
pub(super) struct OneVector {
    vector: Vector<u8>,
    newest: Vec<u8>,
    location: Location,
    home: usize,
    is_released: bool,
    pub(super) has_buffer: [bool; 2],
    /// By device, whether work on a stream has used the buffer since the device was flushed.
    pub(super) is_touched: [bool; 2],
    /// By device, who uses the buffer; their bytes are not looked at.
    pub(super) buffers: [Contents; 2],
}

impl OneVector {
    pub(super) fn on_host() -> Self {
        Self {
            vector: Vector::zeroed(SEGMENT_BYTES as u64).unwrap(),
            newest: vec![0; SEGMENT_BYTES],
            location: Location::Cpu,
            home: 0,
            is_released: false,
            has_buffer: [false; 2],
            is_touched: [false; 2],
            buffers: [Contents::zeroes(), Contents::zeroes()],
        }
    }

    fn is_only(&self) -> bool {
        self.location == Location::DeviceOnly
    }

    fn is_device_newer(&self) -> bool {
        matches!(self.location, Location::Gpu | Location::StaleCpu)
    }

    /// Why a ranged copy is refused, on a stream of a device or on none.
    fn ranged(&self, at: Piece, device: Option<usize>) -> Reasons<4> {
        let is_away = self.location != Location::Cpu && device.is_some_and(|device| device != self.home);
        Reasons([
            (self.is_released, "released"),
            (!at.is_inside(), "out_of_bounds"),
            (matches!(self.location, Location::Cpu | Location::StaleGpu), "wrong_location"),
            (is_away, "wrong_device"),
        ])
    }

    fn write(&mut self, at: Piece, bytes: &[u8]) {
        self.newest[at.offset..][..at.len].copy_from_slice(bytes);
        if self.location == Location::Both {
            self.location = Location::StaleCpu;
        }
    }
}

impl Machine {
    pub(super) fn step_vector(&mut self, number: usize, op: &VectorOp) {
        match op {
            VectorOp::Get { index } => self.get(number, *index),
            VectorOp::Set { index, value } => self.set(number, *index, *value),
            VectorOp::ToCpu => {
                let reasons = self.on_host_reasons(number, 0);
                reasons.judge(self.vectors[number].vector.to_cpu().err().as_ref());
                if !reasons.hold() {
                    self.bring_back(number);
                }
            }
            VectorOp::ToDevice { device } => self.move_to(number, *device),
            VectorOp::Write { at, seed, how } => self.write_vector(number, *at, *seed, *how),
            VectorOp::Read { at, stream: None, .. } => self.read_vector(number, *at),
            VectorOp::Read { at, stream: Some(stream), order } => {
                self.read_vector_on(number, *at, *stream, *order);
            }
            VectorOp::Free { device } => self.free(number, *device),
            VectorOp::Renew { device, is_device_only } => self.renew(number, *device, *is_device_only),
        }
        let OneVector { vector, location, .. } = &self.vectors[number];
        assert_eq!(vector.location(), *location, "vector{number} after {op:?}");
    }

    fn piece(number: usize, device: usize, at: Piece) -> Piece {
        Piece { segment: SEGMENTS + 2 * number + device, ..at }
    }

    /// The device's default stream copies to or from the buffer, complete on return.
    fn touch(&mut self, number: usize, device: usize) {
        let default = self.streams[device].track;
        let buffer = &mut self.vectors[number].buffers[device];
        buffer.copy_without_a_stream(&mut self.tracks, default);
    }

    fn on_host_reasons(&self, number: usize, index: usize) -> Reasons<3> {
        let one = &self.vectors[number];
        let kind = self.devices[0].info().backend;
        let is_cpu = matches!(kind, BackendKind::Native | BackendKind::Interpreter);
        Reasons([
            (index >= SEGMENT_BYTES, "out_of_bounds"),
            (one.is_released, "released"),
            (one.is_only() && !is_cpu, "wrong_location"),
        ])
    }

    /// What host access needs: nothing if the host is current. In place if there is no host side.
    fn bring_back(&mut self, number: usize) {
        let one = &self.vectors[number];
        if one.is_device_newer() {
            self.touch(number, one.home);
            self.vectors[number].location = Location::Both;
        }
    }

    fn get(&mut self, number: usize, index: usize) {
        let reasons = self.on_host_reasons(number, index);
        let outcome = self.vectors[number].vector.get(index as u64);
        reasons.judge(outcome.as_ref().err());
        let Ok(value) = outcome else { return };
        assert_eq!(value, self.vectors[number].newest[index], "vector{number}[{index}]");
        self.in_place_or_back(number);
    }

    fn in_place_or_back(&mut self, number: usize) {
        let one = &self.vectors[number];
        match one.is_only() {
            true => self.touch(number, one.home),
            false => self.bring_back(number),
        }
    }

    fn set(&mut self, number: usize, index: usize, value: u8) {
        let reasons = self.on_host_reasons(number, index);
        let outcome = self.vectors[number].vector.set(index as u64, value);
        reasons.judge(outcome.as_ref().err());
        if outcome.is_err() {
            return;
        }
        self.in_place_or_back(number);
        let one = &mut self.vectors[number];
        one.newest[index] = value;
        if one.location == Location::Both {
            one.location = Location::StaleGpu;
        }
    }

    fn move_to(&mut self, number: usize, device: usize) {
        let one = &self.vectors[number];
        let is_home = one.home == device;
        let reasons = Reasons([(one.is_released, "released"), (one.is_only() && !is_home, "wrong_device")]);
        let outcome = one.vector.to_device(&self.devices[device]);
        reasons.judge(outcome.as_ref().err());
        let is_there = is_home && !matches!(one.location, Location::Cpu | Location::StaleGpu);
        if outcome.is_err() || is_there {
            return;
        }
        self.bring_back(number);
        self.touch(number, device);
        let one = &mut self.vectors[number];
        one.has_buffer[device] = true;
        (one.location, one.home) = (Location::Both, device);
    }

    fn write_vector(&mut self, number: usize, at: Piece, seed: u8, how: How) {
        let How { stream, is_staged, order } = how;
        let bytes = pattern(seed.into(), at.len);
        let reasons = self.vectors[number].ranged(at, stream.map(|stream| stream % 2));
        let home = self.vectors[number].home;
        let piece = Self::piece(number, home, at);
        if let (Some(stream), false) = (stream, reasons.hold()) {
            self.order(stream, piece, true, order);
        }
        let source = match stream {
            Some(stream) if !is_staged => Some(self.host(stream, bytes.clone(), false)),
            _ => None,
        };
        let (vector, offset) = (&mut self.vectors[number].vector, at.offset as u64);
        let outcome = match (stream, source) {
            (None, _) if is_staged => vector.stage_to_device(offset, &bytes),
            (None, _) => vector.copy_to_device(offset, &bytes),
            (Some(stream), None) => vector.stage_to_device_on(&self.streams[stream].stream, offset, &bytes),
            (Some(stream), Some(source)) => vector
                .copy_bytes_to_device_on(&self.streams[stream].stream, offset, source)
                .map_err(spoc_driver::Error::from),
        };
        reasons.judge(outcome.as_ref().err());
        if outcome.is_err() {
            return;
        }
        self.vectors[number].write(at, &bytes);
        // An empty copy runs nothing, but the ledger keeps its entry as it keeps others.
        self.vectors[number].is_touched[home] |= stream.is_some();
        match stream {
            _ if at.len == 0 => {}
            Some(stream) => {
                self.enter(stream, &[(piece, true)]);
            }
            None if is_staged => {
                let default = self.streams[home].track;
                let buffer = &mut self.vectors[number].buffers[home];
                buffer.stage_without_a_stream(&mut self.tracks, default, piece);
            }
            None => self.touch(number, home),
        }
    }

    fn read_vector(&mut self, number: usize, at: Piece) {
        let one = &self.vectors[number];
        let (reasons, home) = (one.ranged(at, None), one.home);
        let mut bytes = vec![0x5A; at.len];
        let outcome = one.vector.copy_to_host(at.offset as u64, &mut bytes);
        reasons.judge(outcome.as_ref().err());
        if outcome.is_ok() {
            assert_eq!(bytes, one.newest[at.offset..][..at.len], "vector{number} at {at:?}");
            if at.len > 0 {
                self.touch(number, home);
            }
        }
    }

    fn read_vector_on(&mut self, number: usize, at: Piece, stream: usize, order: Order) {
        let reasons = self.vectors[number].ranged(at, Some(stream % 2));
        let piece = Self::piece(number, self.vectors[number].home, at);
        if !reasons.hold() {
            self.order(stream, piece, false, order);
        }
        let room = self.host(stream, vec![0xA5; at.len], false);
        let one = &mut self.vectors[number];
        let queue = &self.streams[stream].stream;
        let outcome = one.vector.copy_bytes_to_host_on(queue, at.offset as u64, room);
        reasons.judge(outcome.as_ref().err().map(|returned| &returned.error));
        let Ok(pending) = outcome else { return };
        one.is_touched[one.home] = true;
        let expected = one.newest[at.offset..][..at.len].to_vec();
        self.enter(stream, &[(piece, false)]);
        let clock = self.tracks.enter(self.streams[stream].track);
        self.reads.push(OneRead { pending, expected, clock });
    }

    fn free(&mut self, number: usize, device: usize) {
        let one = &mut self.vectors[number];
        let outcome = one.vector.free_buffer(&self.devices[device]);
        if let Err(error) = outcome {
            // Refusing is right while work uses the buffer. When exactly that ends is the ledger's to know.
            let is_used = one.has_buffer[device] && one.is_touched[device];
            return Reasons([(is_used, "in_flight")]).judge(Some(&error));
        }
        if !one.has_buffer[device] {
            return;
        }
        let is_home = one.home == device && one.location != Location::Cpu;
        if is_home && one.is_device_newer() {
            self.touch(number, device);
        }
        let one = &mut self.vectors[number];
        one.buffers[device].forget(&mut self.tracks);
        (one.has_buffer[device], one.is_touched[device]) = (false, false);
        if is_home {
            one.is_released = one.is_only();
            one.location = if one.is_released { Location::DeviceOnly } else { Location::Cpu };
        }
    }

    fn renew(&mut self, number: usize, device: usize, is_device_only: bool) {
        let mut new = OneVector::on_host();
        if is_device_only {
            let len = SEGMENT_BYTES as u64;
            new.vector = Vector::device_only(&self.devices[device], len).unwrap();
            new.vector.copy_to_device(0, &new.newest).unwrap();
            (new.location, new.home) = (Location::DeviceOnly, device);
            new.has_buffer[device] = true;
        }
        self.vectors[number] = new;
        if is_device_only {
            self.touch(number, device);
        }
    }

    /// What every vector holds in the end.
    pub(super) fn compare_vectors(&mut self) {
        for number in 0..self.vectors.len() {
            let one = &self.vectors[number];
            if one.is_released {
                continue;
            }
            let held = match one.is_only() {
                true => {
                    let mut held = vec![0; SEGMENT_BYTES];
                    one.vector.copy_to_host(0, &mut held).unwrap();
                    held
                }
                false => one.vector.to_vec().unwrap(),
            };
            assert_eq!(held, one.newest, "vector{number} in the end");
        }
    }
}
