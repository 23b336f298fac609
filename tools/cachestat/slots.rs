//! What every slot holds.

use std::fmt;

use serde::Serialize;
use serde_json::json;
use spoc_cache::stats::Reader;
use spoc_tools::units;

/// A slot for people and programs.
#[derive(Debug, Serialize)]
pub struct Row {
    slot: usize,
    state: &'static str,
    model: Option<u32>,
    group: Option<u32>,
    layer: u32,
    bytes: u64,
    generation: u64,
    leases: u32,
    uses: u64,
    /// Seconds from the making of the page to the last use.
    last_use_seconds: f64,
}

/// Every slot of a page.
#[derive(Debug, Serialize)]
pub struct Table {
    slot_bytes: u64,
    slots: Vec<Row>,
}

/// Reads all slots. Each is consistent, the table is not one instant.
pub fn table(reader: &Reader<'_>) -> Table {
    let rows = (0..reader.slots()).filter_map(|slot| {
        let record = reader.slot(slot)?;
        Some(Row {
            slot,
            state: record.state.as_str(),
            model: record.key.map(|(model, _)| model),
            group: record.key.map(|(_, group)| group),
            layer: record.layer,
            bytes: record.bytes,
            generation: record.generation,
            leases: record.leases,
            uses: record.uses,
            last_use_seconds: units::seconds(record.last_use_ns),
        })
    });
    Table { slot_bytes: reader.header().stride_bytes, slots: rows.collect() }
}

impl Table {
    /// The same as rows.
    pub fn table(&self) -> crate::table::Table {
        let mut table = crate::table::Table::new(&[
            "slot",
            "state",
            "model",
            "group",
            "layer",
            "bytes",
            "generation",
            "leases",
            "uses",
            "last_use_seconds",
        ]);
        for row in &self.slots {
            table.push(vec![
                json!(row.slot),
                json!(row.state),
                json!(row.model),
                json!(row.group),
                json!(row.layer),
                json!(row.bytes),
                json!(row.generation),
                json!(row.leases),
                json!(row.uses),
                json!(row.last_use_seconds),
            ]);
        }
        table
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  SLOT STATE     MODEL  GROUP  LAYER       BYTES  FILLS LEASES     USES  LAST USE")?;
        for row in &self.slots {
            let number =
                |number: Option<u32>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
            write!(
                f,
                "\n{:6} {:9} {:>5} {:>6} {:6} {:>11} {:6} {:6} {:8} {:7.2} s",
                row.slot,
                row.state,
                number(row.model),
                number(row.group),
                row.layer,
                units::bytes(row.bytes),
                row.generation,
                row.leases,
                row.uses,
                row.last_use_seconds
            )?;
        }
        Ok(())
    }
}
