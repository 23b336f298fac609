//! What is in the slots: as a grid, and the busiest first.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use serde_json::json;
use spoc_cache::State;
use spoc_cache::stats::Reader;
use spoc_tools::units;

use crate::table::Table;

/// Groups of a layer that a row of the grid has room for; a damaged page may name any.
const COLUMNS_MAX: u32 = 1024;

/// One layer of one model.
#[derive(Debug, Serialize)]
struct Layer {
    model: u32,
    layer: u32,
    /// The lowest group of the layer that was seen in a slot or in the event log: the first column.
    first_group: u32,
    resident: usize,
    /// One letter a group.
    groups: String,
}

/// Layers × groups.
#[derive(Debug, Serialize)]
pub struct Grid {
    layers: Vec<Layer>,
}

/// Reads the slots into a grid.
pub fn grid(reader: &Reader<'_>) -> Grid {
    let mut cells: BTreeMap<(u32, u32), BTreeMap<u32, State>> = BTreeMap::new();
    for record in (0..reader.slots()).filter_map(|slot| reader.slot(slot)) {
        if let Some((model, group)) = record.key {
            cells.entry((model, record.layer)).or_default().insert(group, record.state);
        }
    }
    let layers = cells.into_iter().filter_map(|((model, layer), groups)| {
        let first = *groups.first_key_value()?.0;
        let last = (*groups.last_key_value()?.0).min(first.saturating_add(COLUMNS_MAX - 1));
        let letters = (first..=last).map(|group| groups.get(&group).map_or('.', |&state| letter(state)));
        Some(Layer { model, layer, first_group: first, resident: groups.len(), groups: letters.collect() })
    });
    Grid { layers: layers.collect() }
}

fn letter(state: State) -> char {
    match state {
        State::Free => '.',
        State::Loading => '+',
        State::Resident => '#',
        State::Leased => 'L',
        State::Draining => '~',
        State::Failed => '!',
    }
}

impl Grid {
    /// The same as rows.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&["model", "layer", "first_group", "resident", "groups"]);
        for row in &self.layers {
            table.push(vec![
                json!(row.model),
                json!(row.layer),
                json!(row.first_group),
                json!(row.resident),
                json!(row.groups),
            ]);
        }
        table
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MODEL LAYER  HELD  FROM GROUP  # resident, L leased, + loading, ~ draining, ! failed, . absent"
        )?;
        for row in &self.layers {
            write!(
                f,
                "\n{:5} {:5} {:5} {:11}  {}",
                row.model, row.layer, row.resident, row.first_group, row.groups
            )?;
        }
        Ok(())
    }
}

/// The groups used most since they were loaded.
pub fn hot(reader: &Reader<'_>, most: usize) -> Table {
    let mut held: Vec<_> = (0..reader.slots())
        .filter_map(|slot| reader.slot(slot).map(|record| (slot, record)))
        .filter(|(_, record)| record.key.is_some())
        .collect();
    held.sort_by_key(|(slot, record)| (std::cmp::Reverse(record.uses), *slot));
    let mut table = Table::new(&["key", "layer", "uses", "fills", "state", "bytes", "idle_s", "slot"]);
    let now = reader
        .header()
        .heartbeat_ns
        .max(held.iter().map(|(_, record)| record.last_use_ns).max().unwrap_or(0));
    for (slot, record) in held.iter().take(most) {
        let (model, group) = record.key.unwrap_or_default();
        table.push(vec![
            json!(format!("{model}/{group}")),
            json!(record.layer),
            json!(record.uses),
            json!(record.generation),
            json!(record.state.as_str()),
            json!(record.bytes),
            json!(units::seconds(now.saturating_sub(record.last_use_ns))),
            json!(slot),
        ]);
    }
    table
}
