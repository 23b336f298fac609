//! The experts of a mixture, by the names that published models give them.

use super::rules::{GroupName, number};

/// Which experts of its layer a tensor belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Experts {
    /// To none: it is wanted whenever its layer is.
    None,
    /// To this one.
    One(u32),
    /// To all of them: one behind another along its outermost dimension.
    Stacked,
}

/// What a catalogue knows of a mixture's experts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpertReport {
    /// Groups that are experts.
    pub groups: u32,
    /// Experts of the layer that has most.
    pub experts_max: u32,
    /// Tensors whose names look like experts and that stay with their layer all the same, each with the reason.
    pub unknown: Vec<(String, &'static str)>,
}

/// Why such a tensor stays with its layer.
pub(super) const NO_RULE: &str = "no rule knows the name";
pub(super) const NOT_EVEN: &str = "its bytes are no whole number an expert";

/// The expert's part of a tensor of a layer: the group's name then ends before the expert's number.
pub(super) fn within<'a>(name: &'a str, layer: GroupName<'a>) -> GroupName<'a> {
    let at = layer.name.len() + 1;
    let rest = name.get(at..).unwrap_or_default();
    let found = module_of_experts(rest).or_else(|| gguf(rest)).or_else(|| first_gpt_oss(rest));
    let Some((len, experts)) = found else { return layer };
    GroupName { name: &name[..at + len], experts, ..layer }
}

/// `….experts.7.…`, or `….experts.` and anything else for stacked ones.
fn module_of_experts(rest: &str) -> Option<(usize, Experts)> {
    let mut end = 0;
    let mut words = rest.split('.').peekable();
    while let Some(word) = words.next() {
        end += word.len();
        if word == "experts" {
            let next = words.peek()?;
            return Some(match number(next) {
                Some(expert) => (end + 1 + next.len(), Experts::One(expert)),
                None => (end, Experts::Stacked),
            });
        }
        end += 1;
    }
    None
}

/// `ffn_gate_exps.weight`, and before there were these `ffn_gate.7.weight`.
fn gguf(rest: &str) -> Option<(usize, Experts)> {
    let (first, tail) = rest.split_once('.')?;
    let matrix = first.strip_prefix("ffn_")?;
    if matrix.strip_suffix("_exps").is_some_and(|matrix| !matrix.is_empty()) {
        // All matrices of an expert share the name up to here.
        return Some(("ffn".len(), Experts::Stacked));
    }
    let expert = number(tail.split('.').next()?)?;
    matches!(matrix, "gate" | "up" | "down").then_some(("ffn".len(), Experts::One(expert)))
}

/// The names of gpt-oss's own files: `mlp.mlp1_weight.blocks`, `mlp.mlp2_bias`.
fn first_gpt_oss(rest: &str) -> Option<(usize, Experts)> {
    let matrix = rest.strip_prefix("mlp.mlp")?;
    let matrix = matrix.strip_prefix(['1', '2'])?;
    let known = matrix == "_bias" || matrix == "_weight" || matrix.starts_with("_weight.");
    known.then_some(("mlp".len(), Experts::Stacked))
}

/// Whether a name that no rule knows looks like an expert's all the same.
pub(super) fn looks_like_one(name: &str) -> bool {
    name.split('.').any(|word| {
        let word = word.to_ascii_lowercase();
        // Shared experts and what routes to experts are wanted with the layer.
        let with_layer = ["shared", "shexp", "exp_probs", "per_expert", "num_expert", "router", "gate_inp"];
        (word.contains("expert") || word.ends_with("_exps"))
            && !with_layer.iter().any(|known| word.contains(known))
    }) && !name.split('.').any(|word| word.starts_with("shared") || word == "router" || word == "gate")
}
