//! Which tensors of a model, and which experts of those that hold several.

use std::ops::Range;

use globset::{Glob, GlobSet, GlobSetBuilder};

use super::SliceRuns;
use crate::{Error, ErrorKind, Result, Tensor};

/// Parts of a name that a layer's number follows.
const LAYER_WORDS: [&str; 5] = ["layers", "blk", "h", "blocks", "block"];
/// The part of a name that an expert's number follows, or that holds all experts.
const EXPERTS_WORD: &str = "experts";
/// How GGUF ends the part of a name that holds all experts.
const STACKED_ENDING: &str = "_exps";

/// A set of tensors by name, layer and expert. Empty, it takes everything.
#[derive(Clone, Debug, Default)]
pub struct TensorFilter {
    include: Option<GlobSet>,
    exclude: GlobSet,
    layers: Option<Range<u64>>,
    experts: Option<Range<u64>>,
}

impl TensorFilter {
    /// Tensors whose whole name fits one of the patterns (`*`, `?`, `[…]`, `{…,…}`; a dot is no border), and none of
    /// those that begin with `!`. Without one that does not begin so, every name fits.
    ///
    /// # Errors
    /// `invalid_argument` for a pattern that is none.
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self> {
        let (mut include, mut exclude, mut all) = (GlobSetBuilder::new(), GlobSetBuilder::new(), true);
        for pattern in patterns.iter().map(AsRef::as_ref) {
            let (set, text) = match pattern.strip_prefix('!') {
                Some(rest) => (&mut exclude, rest),
                None => (&mut include, pattern),
            };
            set.add(Glob::new(text).map_err(|e| refused(&e))?);
            all &= pattern.starts_with('!');
        }
        let include = if all { None } else { Some(include.build().map_err(|e| refused(&e))?) };
        let exclude = exclude.build().map_err(|e| refused(&e))?;
        Ok(Self { include, exclude, layers: None, experts: None })
    }

    /// Only tensors of these layers, by the number after `layers`, `blk`, `h`, `block` or `blocks` in their name.
    #[must_use]
    pub fn with_layers(self, layers: Range<u64>) -> Self {
        Self { layers: Some(layers), ..self }
    }

    /// Only these experts: tensors with such a number after `experts` in their name, and of tensors that hold all
    /// experts of a layer (`experts` without a number, or a part that ends in `_exps`) this range of the outermost
    /// dimension.
    #[must_use]
    pub fn with_experts(self, experts: Range<u64>) -> Self {
        Self { experts: Some(experts), ..self }
    }

    /// What is wanted of a tensor, if anything is.
    ///
    /// # Errors
    /// Those of [`SliceRuns::of`], where the experts of a tensor cannot be told apart in its bytes.
    pub fn pick(&self, tensor: &Tensor) -> Result<Option<SliceRuns>> {
        let name = tensor.name.as_str();
        let named =
            self.include.as_ref().is_none_or(|set| set.is_match(name)) && !self.exclude.is_match(name);
        let inside = |number: Option<u64>, range: &Range<u64>| number.is_some_and(|n| range.contains(&n));
        if !named || self.layers.as_ref().is_some_and(|layers| !inside(layer(name), layers)) {
            return Ok(None);
        }
        let Some(experts) = &self.experts else { return Ok(Some(SliceRuns::whole(tensor))) };
        match expert(name) {
            Expert::None => Ok(None),
            Expert::One(number) => Ok(experts.contains(&number).then(|| SliceRuns::whole(tensor))),
            Expert::Stacked => stacked(tensor, experts),
        }
    }
}

/// These places of the outermost dimension.
fn stacked(tensor: &Tensor, experts: &Range<u64>) -> Result<Option<SliceRuns>> {
    let Some(count) = tensor.outermost_first().next() else { return Ok(None) };
    let wanted = experts.start.min(count)..experts.end.min(count);
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut ranges: Vec<Range<u64>> = tensor.shape.iter().map(|dimension| 0..*dimension).collect();
    let outermost = match tensor.dtype {
        crate::ElementType::Ggml(_) => ranges.last_mut(),
        crate::ElementType::Safetensors(_) => ranges.first_mut(),
    };
    if let Some(range) = outermost {
        *range = wanted;
    }
    SliceRuns::of(tensor, &ranges).map(Some)
}

fn layer(name: &str) -> Option<u64> {
    let mut parts = name.split('.');
    parts.find(|part| LAYER_WORDS.contains(part))?;
    parts.next()?.parse().ok()
}

enum Expert {
    None,
    One(u64),
    Stacked,
}

fn expert(name: &str) -> Expert {
    let mut parts = name.split('.');
    match parts.find(|part| *part == EXPERTS_WORD || part.ends_with(STACKED_ENDING)) {
        None => Expert::None,
        Some(EXPERTS_WORD) => parts.next().and_then(|p| p.parse().ok()).map_or(Expert::Stacked, Expert::One),
        Some(_) => Expert::Stacked,
    }
}

fn refused(error: &globset::Error) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("expected a pattern of names: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Dtype, ElementType, Extent, GgmlType};

    fn tensor(name: &str, dtype: ElementType, shape: &[u64]) -> Tensor {
        let elements: u64 = shape.iter().product();
        let (block, bytes) = dtype.block();
        let extent = Extent { file: 0, offset: 1000, len_bytes: elements / block * bytes };
        Tensor { name: name.to_owned(), dtype, shape: shape.to_vec(), extent }
    }

    fn picked(filter: &TensorFilter, tensor: &Tensor) -> Option<(u64, u64)> {
        filter.pick(tensor).unwrap().map(|runs| (runs.stretch().offset - 1000, runs.len_bytes()))
    }

    const BF16: ElementType = ElementType::Safetensors(Dtype::BF16);

    #[test]
    fn names_fit_patterns_whole_and_exclusions_win() {
        let of = |patterns: &[&str]| TensorFilter::new(patterns).unwrap();
        let weight = tensor("model.layers.3.mlp.up_proj.weight", BF16, &[4]);
        let bias = tensor("model.layers.3.mlp.up_proj.bias", BF16, &[4]);
        for (patterns, expected) in [
            (&[][..], [true, true]),
            (&["*"], [true, true]),
            (&["*.weight"], [true, false]),
            (&["!*.weight"], [false, true]),
            (&["*.mlp.*", "!*.bias"], [true, false]),
            (&["mlp"], [false, false]),
            (&["*layers.[0-3].*.{weight,scale}"], [true, false]),
        ] {
            let found = [&weight, &bias].map(|t| of(patterns).pick(t).unwrap().is_some());
            assert_eq!(found, expected, "{patterns:?}");
        }
        assert_eq!(TensorFilter::new(&["a["]).unwrap_err().kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn layers_are_told_by_their_number() {
        let filter = TensorFilter::default().with_layers(2..4);
        for (name, wanted) in [
            ("model.layers.2.self_attn.q_proj.weight", true),
            ("model.layers.12.self_attn.q_proj.weight", false),
            ("blk.3.ffn_up.weight", true),
            ("transformer.h.4.ln_1.weight", false),
            ("lm_head.weight", false),
            ("model.layers", false),
        ] {
            assert_eq!(filter.pick(&tensor(name, BF16, &[4])).unwrap().is_some(), wanted, "{name}");
        }
    }

    #[test]
    fn experts_are_whole_tensors_or_cut_out_of_stacked_ones() {
        let filter = TensorFilter::default().with_experts(1..3);
        let one = |n: u64| tensor(&format!("model.layers.0.mlp.experts.{n}.up_proj.weight"), BF16, &[4, 4]);
        assert_eq!(picked(&filter, &one(0)), None);
        assert_eq!(picked(&filter, &one(2)), Some((0, 32)));
        assert_eq!(picked(&filter, &tensor("model.layers.0.mlp.gate.weight", BF16, &[4, 4])), None);
        let stacked = tensor("model.layers.0.mlp.experts.gate_up_proj", BF16, &[4, 8, 2]);
        assert_eq!(picked(&filter, &stacked), Some((32, 64)));
        let gguf = tensor("blk.0.ffn_up_exps.weight", ElementType::Ggml(GgmlType::Q4_0), &[64, 3, 4]);
        assert_eq!(picked(&filter, &gguf), Some((3 * 36, 2 * 3 * 36)));
        let few = tensor("blk.0.ffn_up_exps.weight", ElementType::Ggml(GgmlType::F32), &[2, 1]);
        assert_eq!(picked(&filter, &few), None, "it has no such expert");
    }
}
