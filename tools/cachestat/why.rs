//! What happened to one key lately, and why.

use serde_json::{Value, json};
use spoc_cache::stats::{Cause, LogKind, Reader};
use spoc_tools::units;

use crate::table::Table;

/// `MODEL/GROUP`, `MODEL.GROUP` or `GROUP` of model 0.
pub fn parse_key(text: &str) -> Result<(u32, u32), String> {
    let (model, group) = text.split_once(['/', '.']).unwrap_or(("0", text));
    let number =
        |text: &str| text.parse::<u32>().map_err(|_| "MODEL/GROUP or GROUP is expected, as 0/17".to_owned());
    Ok((number(model)?, number(group)?))
}

/// Its events that the page still remembers, oldest first, and where it is now.
pub fn events(reader: &Reader<'_>, key: (u32, u32)) -> Table {
    let mut table = Table::new(&["time_s", "what", "cause", "slot"]);
    let log = reader.log(usize::MAX);
    for entry in log.iter().filter(|entry| entry.key == Some(key)) {
        table.push(vec![
            json!(units::seconds(entry.time_ns)),
            entry.kind.map_or(Value::Null, |kind| json!(what(kind))),
            entry.cause.map_or(Value::Null, |cause| json!(because(cause))),
            json!(entry.slot),
        ]);
    }
    let (model, group) = key;
    let held = (0..reader.slots()).find_map(|slot| {
        let record = reader.slot(slot).filter(|record| record.key == Some(key))?;
        Some(format!(
            "{model}/{group} is {} in slot {slot}, layer {}, used {} times since it was loaded",
            record.state, record.layer, record.uses
        ))
    });
    table.remarks.push(held.unwrap_or_else(|| format!("{model}/{group} is in no slot")));
    if let (Some(first), Some(last)) = (log.first(), log.last()) {
        let span = units::seconds(last.time_ns.saturating_sub(first.time_ns));
        table
            .remarks
            .push(format!("the page remembers the last {} events of all keys, {span:.1} s", log.len()));
    }
    table
}

/// What happened, for people.
pub fn what(kind: LogKind) -> &'static str {
    match kind {
        LogKind::FillStarted => "load begun",
        LogKind::FillDone => "loaded",
        LogKind::FillFailed => "load failed",
        LogKind::FillCancelled => "load cancelled",
        LogKind::Evicted => "left",
    }
}

/// Why, for people.
pub fn because(cause: Cause) -> &'static str {
    match cause {
        Cause::Demand => "an acquire",
        Cause::Read => "reading failed",
        Cause::Copy => "a copy failed",
        Cause::Closed => "its model, or the cache, was closed",
        Cause::Ahead => "read ahead: a hint, a claim, a pin or a profile",
        Cause::Resize => "its slot is given back",
        Cause::Cancel => "somebody cancelled it",
        Cause::Asked => "somebody asked for it",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_as_they_are_written() {
        assert_eq!(parse_key("17"), Ok((0, 17)));
        assert_eq!(parse_key("2/17"), Ok((2, 17)));
        assert_eq!(parse_key("2.17"), Ok((2, 17)));
        for wrong in ["", "/", "a/1", "1/", "-1", "1/2/3"] {
            assert!(parse_key(wrong).is_err(), "{wrong}");
        }
    }
}
