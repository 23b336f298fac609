//! Memory in C.

use super::super::ir::{AtomicOp, Kind, Limit, Place, Reg, Space, Value};
use super::{Checks, Writer, c_type, constant, value};

/// What a kind is in memory.
fn stored_type(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "u8",
        Kind::F16 => "u16",
        // One type a width, so that the compiler never thinks that two accesses cannot meet.
        Kind::I32 | Kind::U32 | Kind::F32 => "u32",
        Kind::I64 | Kind::U64 | Kind::F64 => "u64",
    }
}

impl Writer<'_> {
    fn base(space: Space) -> (&'static str, String) {
        match space {
            Space::Buffer(number) => ("GLOBAL ", format!("b{number}")),
            Space::Group => ("GROUP ", "group_memory".to_owned()),
            Space::Private => ("", "private_memory".to_owned()),
            Space::Local | Space::Scalars => ("", "local_memory".to_owned()),
        }
    }

    /// A typed pointer to a place.
    fn pointer(&self, place: &Place, target: &str, qualifier: &str) -> String {
        let (space, base) = Self::base(place.space);
        let mut offset = format!("{}u", place.offset);
        for step in &place.steps {
            offset.push_str(&format!(" + (u64)(u32){} * {}u", value(step.index), step.stride));
        }
        format!("({qualifier} {space}{target}*)({base} + ({offset}))")
    }

    /// What has to hold for a place to be inside, if that is to be looked at.
    fn condition(&self, place: &Place) -> Option<String> {
        if self.checks == Checks::Off {
            return None;
        }
        let mut conditions = Vec::new();
        for step in &place.steps {
            let index = value(step.index);
            conditions.push(match step.limit {
                Limit::Fixed(count) => format!("(u32){index} < {count}u"),
                Limit::Runtime { buffer, offset, stride } => {
                    format!("((u64)(u32){index} + 1u) * {stride}u + {offset}u <= n{buffer}")
                }
            });
        }
        if let (Space::Buffer(buffer), true) = (place.space, !has_runtime_limit(place)) {
            let reach = place.steps.iter().map(|step| match step.limit {
                Limit::Fixed(count) => u64::from(count.saturating_sub(1)) * u64::from(step.stride),
                Limit::Runtime { .. } => 0,
            });
            let end = u64::from(place.offset) + u64::from(place.kind.bytes()) + reach.sum::<u64>();
            conditions.push(format!("{end}u <= n{buffer}"));
        }
        (!conditions.is_empty()).then(|| conditions.join(" && "))
    }

    pub(super) fn load(&self, place: &Place) -> String {
        if place.space == Space::Scalars {
            return self.scalar(place);
        }
        let qualifier = if place.is_atomic { "volatile" } else { "const" };
        let cell = format!("*{}", self.pointer(place, stored_type(place.kind), qualifier));
        let loaded = from_stored(place.kind, &cell);
        match self.condition(place) {
            Some(condition) => format!("({condition}) ? {loaded} : {}", constant(place.kind, 0)),
            None => loaded,
        }
    }

    fn scalar(&self, place: &Place) -> String {
        let slot = self.program.scalars.iter().position(|slot| slot.offset == place.offset);
        match slot {
            Some(number) if place.kind == Kind::F16 => format!("from_half(s{number})"),
            Some(number) => format!("s{number}"),
            None => constant(place.kind, 0),
        }
    }

    pub(super) fn store(&self, place: &Place, stored: Value) -> String {
        let qualifier = if place.is_atomic { "volatile" } else { "" };
        let cell = format!("*{}", self.pointer(place, stored_type(place.kind), qualifier));
        let text = format!("{cell} = {};", to_stored(place.kind, &value(stored)));
        self.guarded(place, &text, None)
    }

    pub(super) fn atomic(&self, place: &Place, op: AtomicOp, stored: Value, old: Option<Reg>) -> String {
        let pointer = self.pointer(place, c_type(place.kind), "ATOMIC");
        let call = format!("{}({pointer}, {})", self.dialect.atomic(op), value(stored));
        let text = old.map_or_else(|| format!("{call};"), |old| format!("r{old} = {call};"));
        self.guarded(place, &text, old)
    }

    pub(super) fn compare_exchange(&self, place: &Place, expected: Value, stored: Value, old: Reg) -> String {
        let pointer = self.pointer(place, c_type(place.kind), "ATOMIC");
        let (name, expected, stored) = (self.dialect.compare_exchange(), value(expected), value(stored));
        let text = format!("r{old} = {name}({pointer}, {expected}, {stored});");
        self.guarded(place, &text, Some(old))
    }

    fn guarded(&self, place: &Place, text: &str, otherwise: Option<Reg>) -> String {
        match (self.condition(place), otherwise) {
            (Some(condition), Some(old)) => format!("if ({condition}) {text} else r{old} = 0;"),
            (Some(condition), None) => format!("if ({condition}) {text}"),
            (None, _) => text.to_owned(),
        }
    }
}

fn has_runtime_limit(place: &Place) -> bool {
    place.steps.iter().any(|step| matches!(step.limit, Limit::Runtime { .. }))
}

fn from_stored(kind: Kind, cell: &str) -> String {
    match kind {
        Kind::Bool => format!("(u32)({cell} != 0)"),
        Kind::F16 => format!("from_half({cell})"),
        Kind::F32 => format!("AS_F32({cell})"),
        Kind::F64 => format!("AS_F64({cell})"),
        Kind::I32 => format!("(i32){cell}"),
        Kind::I64 => format!("(i64){cell}"),
        Kind::U32 | Kind::U64 => cell.to_owned(),
    }
}

fn to_stored(kind: Kind, value: &str) -> String {
    match kind {
        Kind::Bool => format!("(u8){value}"),
        Kind::F16 => format!("(u16)to_half({value})"),
        Kind::F32 => format!("BITS_F32({value})"),
        Kind::F64 => format!("BITS_F64({value})"),
        Kind::I32 => format!("(u32){value}"),
        Kind::I64 => format!("(u64){value}"),
        Kind::U32 | Kind::U64 => value.to_owned(),
    }
}
