//! Which tensors move together: rules on their names.

use super::experts::{self, Experts};
use std::fmt;

/// How tensors are grouped by their names. A name is its parts between dots.
///
/// The user's patterns are tried first, in their order; then a layer stack is looked for (a number after
/// `layers`, `h`, `blk`, … as in `model.layers.7.` or `blk.7.`); what is left is grouped by the module below
/// the model's root (`model.norm`, `lm_head`).
///
/// By [`per_expert`](GroupRules::per_expert) the experts of a mixture are groups of their own: see there.
#[derive(Debug, Clone, Default)]
pub struct GroupRules {
    patterns: Vec<Pattern>,
    only_patterns: bool,
    per_expert: bool,
}

/// A group as the rules see it: its name and, for a member of a stack, which one and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GroupName<'a> {
    /// The leading part of the tensor's name that all members share.
    pub name: &'a str,
    /// The stack and its number in it.
    pub layer: Option<(&'a str, u32)>,
    /// Which experts of the layer it belongs to.
    pub experts: Experts,
}

/// A pattern for the leading parts of a tensor's name.
///
/// `{layer}` and `{expert}` stand for a part of digits, `*` for any one part; every other part stands for itself. The
/// group is the matched part of the name, so `enc.*.block.{layer}` makes a group of `enc.text.block.3`. A last part that
/// ends in `[]` matches tensors that hold every expert of a layer, one behind another along their outermost dimension:
/// `layers.{layer}.moe.*[]` cuts `layers.3.moe.w1` and `layers.3.moe.w2` into groups `layers.3.moe.0`, `layers.3.moe.1`, …
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    parts: Vec<Part>,
    stacked: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Word(String),
    Any,
    Layer,
    Expert,
}

/// Why a pattern is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("group pattern {pattern:?}: {why}")]
pub struct BadPattern {
    pattern: String,
    why: &'static str,
}

impl std::str::FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Pattern, BadPattern> {
        let bad = |why| BadPattern { pattern: text.to_owned(), why };
        let whole = text.trim_end_matches('.');
        let (text, stacked) = whole.strip_suffix("[]").map_or((whole, false), |text| (text, true));
        let parts: Vec<Part> = text
            .split('.')
            .map(|part| match part {
                "" => Err(bad("it has an empty part")),
                "{layer}" => Ok(Part::Layer),
                "{expert}" => Ok(Part::Expert),
                "*" => Ok(Part::Any),
                word if word.contains(['{', '}', '*', '[', ']']) => {
                    Err(bad("a part is a word, *, {layer} or {expert}, never a mixture"))
                }
                word => Ok(Part::Word(word.to_owned())),
            })
            .collect::<Result<_, _>>()?;
        let count = |wanted| parts.iter().filter(|part| **part == wanted).count();
        if count(Part::Layer) > 1 || count(Part::Expert) > 1 {
            return Err(bad("{layer} and {expert} may stand once"));
        }
        if count(Part::Expert) + usize::from(stacked) > 0 && count(Part::Layer) == 0 {
            return Err(bad("experts belong to a {layer}"));
        }
        if stacked && (count(Part::Expert) > 0 || !matches!(parts.last(), Some(Part::Word(_) | Part::Any))) {
            return Err(bad("[] stands behind a word or *, and not beside {expert}"));
        }
        Ok(Pattern { parts, stacked })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, part) in self.parts.iter().enumerate() {
            let dot = if index == 0 { "" } else { "." };
            match part {
                Part::Word(word) => write!(f, "{dot}{word}")?,
                Part::Any => write!(f, "{dot}*")?,
                Part::Layer => write!(f, "{dot}{{layer}}")?,
                Part::Expert => write!(f, "{dot}{{expert}}")?,
            }
        }
        f.write_str(if self.stacked { "[]" } else { "" })
    }
}

impl Pattern {
    fn group<'a>(&self, name: &'a str) -> Option<GroupName<'a>> {
        let mut rest = name;
        let (mut layer, mut expert) = (None, None);
        let (mut end, mut before_last) = (0, 0);
        for (index, part) in self.parts.iter().enumerate() {
            if index > 0 {
                rest = rest.strip_prefix('.')?;
                before_last = end;
                end += 1;
            }
            let word = rest.split('.').next().filter(|word| !word.is_empty())?;
            match part {
                Part::Word(own) if own != word => return None,
                Part::Layer => layer = Some((name[..end].trim_end_matches('.'), number(word)?)),
                Part::Expert => expert = Some(number(word)?),
                Part::Word(_) | Part::Any => {}
            }
            end += word.len();
            rest = &rest[word.len()..];
        }
        // What is left must begin a new part: `h.1` does not match `h.12`, which `word` has settled already.
        let experts = match (expert, self.stacked) {
            (Some(expert), _) => Experts::One(expert),
            (None, true) => Experts::Stacked,
            (None, false) => Experts::None,
        };
        let end = if self.stacked { before_last } else { end };
        Some(GroupName { name: &name[..end], layer, experts })
    }
}

/// Names under which layer stacks go in published models.
const STACKS: [&str; 8] = ["layers", "layer", "h", "blk", "blocks", "block", "resblocks", "decoder_layers"];

/// Modules that only wrap the model: grouping stops one part below them.
const ROOTS: [&str; 5] = ["model", "transformer", "language_model", "text_model", "backbone"];

pub(super) fn number(word: &str) -> Option<u32> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

fn stack(name: &str) -> Option<GroupName<'_>> {
    let mut end = 0;
    let mut previous = None;
    for word in name.split('.') {
        let start = end;
        end += word.len();
        if let (Some(stack), Some(number)) = (previous, number(word))
            && STACKS.contains(&stack)
            && end < name.len()
        {
            let layer = Some((&name[..start - 1], number));
            return Some(GroupName { name: &name[..end], layer, experts: Experts::None });
        }
        previous = Some(word);
        end += 1;
    }
    None
}

fn module(name: &str) -> GroupName<'_> {
    let mut end = 0;
    for word in name.split('.') {
        end += word.len();
        if !ROOTS.contains(&word) || end == name.len() {
            break;
        }
        end += 1;
    }
    GroupName { name: &name[..end], layer: None, experts: Experts::None }
}

impl GroupRules {
    /// The built-in rules behind these patterns.
    #[must_use]
    pub fn with_patterns(patterns: Vec<Pattern>) -> GroupRules {
        GroupRules { patterns, only_patterns: false, per_expert: false }
    }

    /// Only these patterns; what none matches is grouped by its module.
    #[must_use]
    pub fn only(patterns: Vec<Pattern>) -> GroupRules {
        GroupRules { patterns, only_patterns: true, per_expert: false }
    }

    /// The same rules, with every expert of a mixture as a group of its own: its matrices with their scales, zeros and
    /// biases. What else a layer has, its router and shared experts among it, stays the layer's group. Known are
    ///
    /// - an expert a module, `….experts.7.…` (Mixtral, Qwen3, DeepSeek V3, GLM, OLMoE; quantised or not),
    /// - experts stacked in one tensor, `….experts.gate_up_proj…` (gpt-oss, Gemma, newer Qwen) and gpt-oss's first
    ///   names `….mlp.mlp1_weight…`, cut along the outermost dimension,
    /// - GGUF's `blk.N.ffn_*_exps…`, cut likewise, and the older `blk.N.ffn_gate.7.…`.
    ///
    /// [`Catalogue::experts`](super::Catalogue::experts) says what was found, and which names look like experts but are
    /// of none of these: those stay with their layer.
    #[must_use]
    pub fn per_expert(mut self) -> GroupRules {
        self.per_expert = true;
        self
    }

    pub(super) fn is_per_expert(&self) -> bool {
        self.per_expert
    }

    /// The layer that a tensor belongs to by the built-in rules.
    pub(super) fn layer_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        stack(name).map(|layer| layer.name)
    }

    pub(super) fn group<'a>(&self, name: &'a str) -> GroupName<'a> {
        let own = self.patterns.iter().find_map(|pattern| pattern.group(name));
        own.or_else(|| {
            let layer = if self.only_patterns { None } else { stack(name) }?;
            Some(if self.per_expert { experts::within(name, layer) } else { layer })
        })
        .unwrap_or_else(|| module(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(name: &str) -> (String, Option<(String, u32)>) {
        let group = GroupRules::default().group(name);
        (group.name.to_owned(), group.layer.map(|(stack, number)| (stack.to_owned(), number)))
    }

    #[test]
    fn published_names() {
        for (tensor, group, layer) in [
            ("model.layers.7.self_attn.q_proj.weight", "model.layers.7", Some(("model.layers", 7))),
            ("layers.0.attention.wq.weight", "layers.0", Some(("layers", 0))),
            ("transformer.h.11.mlp.c_fc.weight", "transformer.h.11", Some(("transformer.h", 11))),
            ("h.3.ln_1.bias", "h.3", Some(("h", 3))),
            ("blk.31.ffn_gate.weight", "blk.31", Some(("blk", 31))),
            (
                "model.language_model.layers.2.x",
                "model.language_model.layers.2",
                Some(("model.language_model.layers", 2)),
            ),
            (
                "bert.encoder.layer.5.output.dense.bias",
                "bert.encoder.layer.5",
                Some(("bert.encoder.layer", 5)),
            ),
            ("model.layers.3.mlp.experts.12.w1", "model.layers.3", Some(("model.layers", 3))),
            ("model.embed_tokens.weight", "model.embed_tokens", None),
            ("model.norm.weight", "model.norm", None),
            ("lm_head.weight", "lm_head", None),
            ("output_norm.weight", "output_norm", None),
            ("weight", "weight", None),
            ("model", "model", None),
            ("layers.5", "layers", None),
            ("", "", None),
            ("layers.99999999999.w", "layers", None),
        ] {
            let layer = layer.map(|(stack, number): (&str, u32)| (stack.to_owned(), number));
            assert_eq!(plain(tensor), (group.to_owned(), layer), "{tensor}");
        }
    }

    #[test]
    fn patterns_of_the_user_come_first() {
        let pattern: Pattern = "enc.*.{layer}.".parse().unwrap();
        assert_eq!(pattern.to_string(), "enc.*.{layer}");
        let rules = GroupRules::with_patterns(vec![pattern]);
        let group = rules.group("enc.text.12.layers.3.w");
        assert_eq!((group.name, group.layer), ("enc.text.12", Some(("enc.text", 12))));
        assert_eq!(rules.group("enc.text.x.layers.3.w").name, "enc.text.x.layers.3");
        let none = GroupRules::only(Vec::new());
        assert_eq!(none.group("model.layers.3.w").name, "model.layers");
        let leading: Pattern = "{layer}.a".parse().unwrap();
        assert_eq!(leading.group("4.a.b").unwrap().layer, Some(("", 4)));
        assert_eq!(leading.group("4"), None);
    }

    #[test]
    fn bad_patterns_say_why() {
        for text in ["", "a..b", "a.{layer}.{layer}", "a.x*", "{expert}"] {
            let error = text.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.starts_with("group pattern"), "{error}");
        }
    }
}
