//! What goes to which device: options of `load --devices`, `plan` and `bench multi`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use spoc_io::{CheckedMap, ExpertSplit, LayoutOptions, Model, PlacementMap, layout};

use crate::cli::parse_switch;
use crate::failure::{Failure, Result};

/// The usual ways of dividing a model, by the names of its tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Layout {
    /// Every device has all of it
    Whole,
    /// Tensor-parallel: outputs of q, k, v, gate and up, inputs of o and down, the vocabulary
    Tp,
    /// The same with q, k, v in one target, and gate and up in one
    TpFused,
    /// Expert-parallel: whole experts on each device, everything else on all
    Ep,
    /// Whole experts on each device, everything else tensor-parallel
    TpEp,
}

impl Layout {
    /// Its name on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Layout::Whole => "whole",
            Layout::Tp => "tp",
            Layout::TpFused => "tp-fused",
            Layout::Ep => "ep",
            Layout::TpEp => "tp-ep",
        }
    }
}

/// Which map.
#[derive(Clone, Debug, Args)]
pub struct PlacementArgs {
    /// A placement map to follow (docs/placement.md); devices are numbered as --devices lists them
    #[arg(long, env = "SPOC_MAP", value_name = "FILE", conflicts_with_all = ["layout", "kv_heads", "replicate_unknown"])]
    pub map: Option<PathBuf>,
    /// How to divide the model [default: whole]
    #[arg(long, env = "SPOC_LAYOUT", value_enum)]
    pub layout: Option<Layout>,
    /// Devices to divide it among [default: as many as --devices has]
    #[arg(long, alias = "tp", env = "SPOC_MAP_RANKS", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub ranks: Option<u32>,
    /// Heads of keys and values, where there are fewer than devices: several then share one
    #[arg(long, env = "SPOC_KV_HEADS", allow_negative_numbers = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_heads: Option<u32>,
    /// Put matrices whose names do not say how they are divided on every device, instead of refusing them
    #[arg(long, env = "SPOC_REPLICATE_UNKNOWN", value_parser = parse_switch, action = clap::ArgAction::SetTrue)]
    pub replicate_unknown: bool,
}

impl PlacementArgs {
    /// Whether anything of it was asked for.
    pub fn is_set(&self) -> bool {
        self.map.is_some() || self.layout.is_some() || self.ranks.is_some() || self.kv_heads.is_some()
    }

    /// The map, compared with the model, and what it is called. `devices` is how many there are, if that is known.
    ///
    /// # Errors
    /// `usage` without a number of devices, or with one that is not theirs; what reading and checking the map says.
    pub fn map(&self, model: &Model, devices: Option<usize>) -> Result<(PlacementMap, CheckedMap, String)> {
        if let Some(path) = &self.map {
            let text = std::fs::read(path).map_err(|error| Failure::io(path, "reading", &error))?;
            let map = PlacementMap::parse(&text).map_err(|error| Failure::from(error).at(path))?;
            let checked = map.check(model).map_err(|error| Failure::from(error).at(path))?;
            return Ok((map, checked, path.to_string_lossy().into_owned()));
        }
        let given = devices.and_then(|devices| u32::try_from(devices).ok());
        let ranks = match (self.ranks, given) {
            (Some(ranks), Some(devices)) if ranks > devices => {
                let message = format!("--ranks {ranks}: --devices has {devices}");
                return Err(Failure::usage(message));
            }
            (Some(ranks), _) | (None, Some(ranks)) => ranks,
            (None, None) => return Err(Failure::usage("expected --map, --ranks or --devices")),
        };
        let map = divided(model, self.layout.unwrap_or(Layout::Whole), ranks, self)?;
        let checked = map.check(model)?;
        let name = self.layout.unwrap_or(Layout::Whole).as_str();
        Ok((map, checked, format!("{name}, {ranks} devices")))
    }
}

/// A layout's map.
///
/// # Errors
/// What [`layout`] says of the model.
pub fn divided(model: &Model, how: Layout, ranks: u32, args: &PlacementArgs) -> Result<PlacementMap> {
    if how == Layout::Whole {
        let mut builder = spoc_io::MapBuilder::new(model, ranks)?;
        for tensor in model.tensors() {
            builder.replicate(&tensor.name)?;
        }
        return Ok(builder.finish());
    }
    let experts = match how {
        Layout::Ep | Layout::TpEp => ExpertSplit::Across,
        _ => ExpertSplit::Within,
    };
    let options = LayoutOptions {
        dense: how != Layout::Ep,
        experts,
        fused: how == Layout::TpFused,
        kv_heads: args.kv_heads,
        replicate_unknown: args.replicate_unknown,
        ..LayoutOptions::new(ranks)
    };
    Ok(layout(model, &options)?)
}
