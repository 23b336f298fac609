//! Maps for the usual ways of dividing a model, by the names of its tensors.

use std::collections::{BTreeMap, HashSet};

use super::build::invalid;
use super::names::{Division, Expert, role};
use super::{MapBuilder, PlacementMap};
use crate::error::quoted;
use crate::{Model, Result, Tensor};

/// What becomes of a model's experts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertSplit {
    /// Each is divided as any other matrix.
    #[default]
    Within,
    /// Each device has whole experts, the first of them the first.
    Across,
}

/// How to divide a model.
#[derive(Clone, Debug)]
pub struct LayoutOptions {
    /// Devices, numbered from 0.
    pub ranks: u32,
    /// Whether matrices outside experts are divided; otherwise every device has them whole. Default yes.
    pub dense: bool,
    /// What becomes of experts. Default [`ExpertSplit::Within`].
    pub experts: ExpertSplit,
    /// One target `qkv_proj` for `q_proj`, `k_proj` and `v_proj` of a module, and `gate_up_proj` for `gate_proj` and
    /// `up_proj`, as engines with fused projections have them. Default no.
    pub fused: bool,
    /// Heads of keys and values. Needed where there are fewer than devices: several then share one.
    pub kv_heads: Option<u32>,
    /// Puts matrices whose names say nothing on every device. Default no: they are refused, since a matrix that should
    /// have been divided would be wrong without a sign of it.
    pub replicate_unknown: bool,
}

impl LayoutOptions {
    /// The defaults for so many devices.
    #[must_use]
    pub fn new(ranks: u32) -> Self {
        Self {
            ranks,
            dense: true,
            experts: ExpertSplit::Within,
            fused: false,
            kv_heads: None,
            replicate_unknown: false,
        }
    }
}

/// What is put together, and out of what.
const FUSED: [(&str, &[&str]); 2] =
    [("qkv_proj", &["q_proj", "k_proj", "v_proj"]), ("gate_up_proj", &["gate_proj", "up_proj"])];

/// A map of the whole model.
///
/// # Errors
/// `invalid_argument`, naming the tensor, for a matrix whose name does not say how it is divided, or that does not divide
/// among the devices; `block_misaligned` where that would cut a block of its type.
pub fn layout(model: &Model, options: &LayoutOptions) -> Result<PlacementMap> {
    let mut builder = MapBuilder::new(model, options.ranks)?;
    let experts = expert_counts(model);
    let mut done = HashSet::new();
    for tensor in model.tensors() {
        let name = tensor.name.as_str();
        let role = role(name);
        match role.expert {
            Expert::None if !options.dense => builder.replicate(name)?,
            Expert::One { of, number } if options.experts == ExpertSplit::Across => {
                let count = experts.get(of).copied().unwrap_or(0);
                if !count.is_multiple_of(options.ranks) {
                    let ranks = options.ranks;
                    let message =
                        format!("{count} experts of {} do not divide among {ranks} devices", quoted(of));
                    return Err(invalid(message));
                }
                builder.whole(name, number / (count / options.ranks))?;
            }
            Expert::Stacked if options.experts == ExpertSplit::Across => builder.divide(name, 0)?,
            _ if done.contains(name) => {}
            _ => match fused(model, tensor, options) {
                Some((target, parts)) => {
                    let heads = options.kv_heads.filter(|_| parts.len() > 2);
                    let parts: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
                    builder.fuse(&target, &parts, heads)?;
                    done.extend(parts);
                }
                None => divide(&mut builder, tensor, role.division, options)?,
            },
        }
    }
    Ok(builder.finish())
}

fn divide(
    builder: &mut MapBuilder<'_>,
    tensor: &Tensor,
    division: Option<Division>,
    options: &LayoutOptions,
) -> Result<()> {
    let (name, rank) = (tensor.name.as_str(), tensor.shape.len());
    let innermost = rank.saturating_sub(1);
    // A figure for the whole tensor, and one for each output in a matrix of one column, have nothing to divide there.
    let is_one = |dimension: usize| tensor.outermost_first().nth(dimension).is_none_or(|count| count == 1);
    match division {
        Some(Division::Column) => {
            let dimension = innermost.saturating_sub(1);
            if is_one(dimension) { builder.replicate(name) } else { builder.divide(name, dimension) }
        }
        Some(Division::KeyValue) if is_one(0) => builder.replicate(name),
        Some(Division::KeyValue) => match options.kv_heads {
            Some(heads) => builder.divide_heads(name, heads),
            None => builder.divide(name, 0),
        },
        Some(Division::Row) if is_one(innermost) => builder.replicate(name),
        Some(Division::Row) => builder.divide(name, innermost),
        Some(Division::Vocabulary) => builder.divide_uneven(name, 0),
        Some(Division::Replicate) => builder.replicate(name),
        None if rank < 2 || options.replicate_unknown => builder.replicate(name),
        None => Err(invalid(format!(
            "tensor {}: its name does not say how it is divided, expected a map that does",
            quoted(name)
        ))),
    }
}

/// The target that this tensor is a part of, and its parts in order.
fn fused<'a>(
    model: &'a Model,
    tensor: &Tensor,
    options: &LayoutOptions,
) -> Option<(String, Vec<&'a Tensor>)> {
    if !options.fused {
        return None;
    }
    let (rest, kind) = tensor.name.rsplit_once('.')?;
    let (prefix, module) = rest.rsplit_once('.')?;
    role(&tensor.name).division?;
    let (target, parts) = FUSED.iter().find(|(_, parts)| parts.contains(&module))?;
    let parts = parts.iter().map(|part| model.tensor(&format!("{prefix}.{part}.{kind}")));
    let parts = parts.collect::<Option<Vec<_>>>()?;
    // One figure for a whole tensor is no row of a matrix.
    let has_rows = |part: &&Tensor| part.outermost_first().next().is_some_and(|count| count > 1);
    parts.iter().all(has_rows).then(|| (format!("{prefix}.{target}.{kind}"), parts))
}

/// How many experts each module has.
fn expert_counts(model: &Model) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for tensor in model.tensors() {
        if let Expert::One { of, number } = role(&tensor.name).expert {
            let count: &mut u32 = counts.entry(of).or_default();
            *count = (*count).max(number.saturating_add(1));
        }
    }
    counts
}
