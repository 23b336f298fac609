//! Where the newest copy of a vector is, and what each operation makes of it: the one table.

use std::fmt::{self, Write};

/// Where the newest copy is. All but [`Location::Cpu`] belong to one device, the vector's home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Location {
    /// On the host alone; what devices may still hold is worthless.
    Cpu,
    /// On the device alone; the host has never had it.
    Gpu,
    /// On both, the same.
    Both,
    /// The device's is newer.
    StaleCpu,
    /// The host's is newer.
    StaleGpu,
    /// On the device, without a host side.
    DeviceOnly,
}

/// What is asked of a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reading elements on the host.
    Get,
    /// Writing elements on the host.
    Set,
    /// Making the host copy current.
    ToCpu,
    /// Making a device's copy current.
    ToDevice,
    /// A ranged or byte copy out of the device copy.
    RangedRead,
    /// A ranged or byte copy into the device copy.
    RangedWrite,
    /// A small write through the staging ring.
    Stage,
    /// Being an argument that a kernel reads.
    LaunchRead,
    /// Being an argument that a kernel may write.
    LaunchWrite,
    /// Giving up one device's buffer.
    FreeBuffer,
    /// Giving up every buffer.
    FreeAll,
    /// Making the host memory itself a device's buffer.
    Attach,
    /// Making a host-pointer buffer's device writes visible to the host.
    Acquire,
    /// Declaring a host-pointer buffer's host contents the newest.
    Publish,
}

/// How the device an operation names relates to the vector's home.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Relation {
    /// It is the home.
    Same,
    /// It is another device.
    Other,
    /// The operation names no device, or the vector has no home.
    None,
}

/// What moves before an operation can be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moves {
    /// Nothing.
    Nothing,
    /// The host copy goes to the named device.
    Upload,
    /// The home's copy comes to the host.
    BringBack,
    /// The home's copy comes to the host, and goes on to the named device.
    BringBackAndUpload,
    /// The contents are discarded, as asked.
    Discard,
}

/// Where the newest copy is afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Next {
    /// Where it was.
    Stays,
    /// Elsewhere; the home is the named device from then on, if one was named.
    Becomes(Location),
    /// Nowhere: there is nothing left to refer to.
    Released,
}

/// Why an operation is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// The device copy is not current, or there is no host side.
    WrongLocation,
    /// The vector is on another device.
    WrongDevice,
    /// The device has a buffer of this vector.
    AlreadyAttached,
}

/// A cell of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The combination does not occur.
    Impossible,
    /// Refused; nothing has changed.
    Refused(Refusal),
    /// Done, after what has to move has moved.
    Done(Moves, Next),
    /// Done in the device's own memory where a CPU is the device; refused as `WrongLocation` elsewhere.
    HostBacked,
}

impl Location {
    /// All of them, in the table's order.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::Gpu, Self::Both, Self::StaleCpu, Self::StaleGpu, Self::DeviceOnly];

    /// Whether the host copy is the newest, or as new.
    #[must_use]
    pub fn is_host_current(self) -> bool {
        matches!(self, Self::Cpu | Self::Both | Self::StaleGpu)
    }

    /// Whether the home's copy is the newest, or as new.
    #[must_use]
    pub fn is_device_current(self) -> bool {
        matches!(self, Self::Gpu | Self::Both | Self::StaleCpu | Self::DeviceOnly)
    }
}

impl Operation {
    /// All of them, in the table's order.
    pub const ALL: [Self; 14] = [
        Self::Get,
        Self::Set,
        Self::ToCpu,
        Self::ToDevice,
        Self::RangedRead,
        Self::RangedWrite,
        Self::Stage,
        Self::LaunchRead,
        Self::LaunchWrite,
        Self::FreeBuffer,
        Self::FreeAll,
        Self::Attach,
        Self::Acquire,
        Self::Publish,
    ];

    /// Whether a transfer is what the caller asks for, rather than a consequence. Only the latter can be
    /// turned off for a driver.
    #[must_use]
    pub fn asks_for_transfer(self) -> bool {
        matches!(self, Self::ToCpu | Self::ToDevice | Self::Acquire | Self::Publish)
    }

    /// Whether the operation is about one device.
    #[must_use]
    pub fn names_device(self) -> bool {
        !matches!(self, Self::Get | Self::Set | Self::ToCpu | Self::FreeAll)
    }
}

impl Moves {
    /// Whether bytes go from one side to the other.
    #[must_use]
    pub fn is_transfer(self) -> bool {
        matches!(self, Self::Upload | Self::BringBack | Self::BringBackAndUpload)
    }
}

/// The table: what `operation` does to a vector at `location`, with automatic transfers on.
#[must_use]
pub fn outcome(location: Location, operation: Operation, relation: Relation) -> Outcome {
    use Location::{Both, Cpu, DeviceOnly, Gpu, StaleCpu, StaleGpu};
    use Operation as Op;
    if !occurs(location, operation, relation) {
        return Outcome::Impossible;
    }
    match operation {
        Op::Get => match location {
            Cpu | Both | StaleGpu => still(),
            Gpu | StaleCpu => done(Moves::BringBack, Both),
            DeviceOnly => Outcome::HostBacked,
        },
        Op::Set => match location {
            Cpu | StaleGpu => still(),
            Both => done(Moves::Nothing, StaleGpu),
            Gpu | StaleCpu => done(Moves::BringBack, StaleGpu),
            DeviceOnly => Outcome::HostBacked,
        },
        Op::ToCpu => match location {
            Cpu | Both | StaleGpu => still(),
            Gpu | StaleCpu => done(Moves::BringBack, Both),
            DeviceOnly => Outcome::HostBacked,
        },
        Op::ToDevice | Op::LaunchRead => match (location, relation) {
            (Gpu | Both | StaleCpu | DeviceOnly, Relation::Same) => still(),
            _ => reach(location, Both),
        },
        Op::LaunchWrite => match (location, relation) {
            (Gpu | StaleCpu | DeviceOnly, Relation::Same) => still(),
            (Both, Relation::Same) => done(Moves::Nothing, StaleCpu),
            _ => reach(location, StaleCpu),
        },
        Op::RangedRead | Op::RangedWrite | Op::Stage => match (location, relation) {
            (_, Relation::Other) => Outcome::Refused(Refusal::WrongDevice),
            (Cpu | StaleGpu, _) => Outcome::Refused(Refusal::WrongLocation),
            (Both, _) if operation != Op::RangedRead => done(Moves::Nothing, StaleCpu),
            (Gpu | Both | StaleCpu | DeviceOnly, _) => still(),
        },
        Op::FreeBuffer if relation != Relation::Same => still(),
        Op::FreeBuffer | Op::FreeAll => match location {
            Cpu => still(),
            Both | StaleGpu => done(Moves::Nothing, Cpu),
            Gpu | StaleCpu => done(Moves::BringBack, Cpu),
            DeviceOnly => Outcome::Done(Moves::Discard, Next::Released),
        },
        Op::Attach => match (location, relation) {
            (DeviceOnly, _) => Outcome::Refused(Refusal::WrongLocation),
            (_, Relation::Same) => Outcome::Refused(Refusal::AlreadyAttached),
            (Cpu | Both | StaleGpu, _) => done(Moves::Nothing, Both),
            (Gpu | StaleCpu, _) => done(Moves::BringBack, Both),
        },
        Op::Acquire => match (location, relation) {
            (_, Relation::Other | Relation::None) | (DeviceOnly, _) => {
                Outcome::Refused(Refusal::WrongLocation)
            }
            (Gpu | StaleCpu, _) => done(Moves::BringBack, Both),
            (Cpu | Both | StaleGpu, _) => still(),
        },
        Op::Publish => match (location, relation) {
            (_, Relation::Other | Relation::None) | (DeviceOnly, _) => {
                Outcome::Refused(Refusal::WrongLocation)
            }
            _ => done(Moves::Upload, Both),
        },
    }
}

/// A device's copy has to become current that is not.
fn reach(location: Location, next: Location) -> Outcome {
    match location {
        Location::Cpu | Location::Both | Location::StaleGpu => done(Moves::Upload, next),
        Location::Gpu | Location::StaleCpu => done(Moves::BringBackAndUpload, next),
        Location::DeviceOnly => Outcome::Refused(Refusal::WrongDevice),
    }
}

fn still() -> Outcome {
    Outcome::Done(Moves::Nothing, Next::Stays)
}

fn done(moves: Moves, next: Location) -> Outcome {
    Outcome::Done(moves, Next::Becomes(next))
}

/// Whether the three can come together: a vector on the CPU has no home, and neither has an operation that
/// names no device a device to compare with it.
fn occurs(location: Location, operation: Operation, relation: Relation) -> bool {
    let has_relation = location != Location::Cpu && operation.names_device();
    has_relation == (relation != Relation::None)
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (moves, next) = match self {
            Self::Impossible => return f.write_str("·"),
            Self::Refused(refusal) => return write!(f, "refused: {refusal:?}"),
            Self::HostBacked => return f.write_str("in place on a CPU device; else refused: WrongLocation"),
            Self::Done(moves, next) => (moves, next),
        };
        match moves {
            Moves::Nothing => {}
            Moves::Upload => f.write_str("upload → ")?,
            Moves::BringBack => f.write_str("bring back → ")?,
            Moves::BringBackAndUpload => f.write_str("bring back, upload → ")?,
            Moves::Discard => f.write_str("discard → ")?,
        }
        match next {
            Next::Stays => f.write_str("unchanged"),
            Next::Becomes(location) => write!(f, "{location}"),
            Next::Released => f.write_str("released"),
        }
    }
}

/// The table as `docs/transfers.md` prints it. `†` marks transfers that happen only while a driver's automatic
/// transfers are on.
#[must_use]
pub fn table_as_markdown() -> String {
    let mut text = String::from("| operation | location | same device | other device | none |\n");
    text.push_str("|---|---|---|---|---|\n");
    for operation in Operation::ALL {
        for location in Location::ALL {
            // Writing to a string cannot fail.
            let _ = write!(text, "| {operation:?} | {location} |");
            for relation in [Relation::Same, Relation::Other, Relation::None] {
                let cell = outcome(location, operation, relation);
                let _ = write!(text, " {cell}{} |", dagger(operation, cell));
            }
            text.push('\n');
        }
    }
    text
}

fn dagger(operation: Operation, cell: Outcome) -> &'static str {
    match cell {
        Outcome::Done(moves, _) if moves.is_transfer() && !operation.asks_for_transfer() => " †",
        _ => "",
    }
}

#[cfg(test)]
#[path = "location_tests.rs"]
mod tests;
