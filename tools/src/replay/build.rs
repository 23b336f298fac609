//! Rows of (prompt, step, layer, experts) in any order become routing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use spoc_cache::replay::{Prompt, Routing};

use crate::failure::{Failure, Result};

/// More than any model has; what a broken file claims beyond this is refused before memory is taken.
const LAYERS_MAX: u64 = 4_096;
const EXPERTS_MAX: u64 = 65_536;
const ITEMS_MAX: usize = 1 << 22;

/// Collects rows.
pub struct Builder<'a> {
    path: &'a Path,
    tokens: BTreeMap<(u64, u64), Token>,
    layers: BTreeSet<u32>,
    experts_seen: u32,
    /// What the file says about itself.
    pub experts: Option<u32>,
    pub expert_bytes: BTreeMap<u32, u64>,
}

#[derive(Default)]
struct Token {
    /// The last line that told of it.
    line: usize,
    layers: BTreeMap<u32, Vec<u32>>,
}

/// A failure at a line of a text trace, counted from 1.
pub fn at_line(path: &Path, line: usize, what: impl std::fmt::Display) -> Failure {
    Failure::new("malformed_trace", format_args!("{}: line {line}: {what}", path.display())).at(path)
}

impl<'a> Builder<'a> {
    pub fn new(path: &'a Path) -> Builder<'a> {
        Builder {
            path,
            tokens: BTreeMap::new(),
            layers: BTreeSet::new(),
            experts_seen: 0,
            experts: None,
            expert_bytes: BTreeMap::new(),
        }
    }

    /// A layer number that can be one.
    pub fn layer(&self, line: usize, layer: u64) -> Result<u32> {
        let layer = u32::try_from(layer).ok().filter(|&layer| u64::from(layer) < LAYERS_MAX);
        layer.ok_or_else(|| at_line(self.path, line, format_args!("a layer below {LAYERS_MAX} is expected")))
    }

    /// A count of experts that can be one.
    pub fn expert_count(&self, line: usize, experts: u64) -> Result<u32> {
        let experts =
            u32::try_from(experts).ok().filter(|&experts| (1..=EXPERTS_MAX).contains(&experts.into()));
        experts
            .ok_or_else(|| at_line(self.path, line, format_args!("1 to {EXPERTS_MAX} experts are expected")))
    }

    /// Adds experts of one prompt's step on one layer.
    pub fn row(
        &mut self,
        line: usize,
        (prompt, step): (u64, u64),
        layer: u64,
        experts: impl IntoIterator<Item = u64>,
    ) -> Result<()> {
        let layer = self.layer(line, layer)?;
        let most = u64::from(self.experts.unwrap_or(u32::MAX)).min(EXPERTS_MAX);
        self.layers.insert(layer);
        let token = self.tokens.entry((prompt, step)).or_default();
        token.line = line;
        let set = token.layers.entry(layer).or_default();
        for expert in experts {
            let known = u32::try_from(expert).ok().filter(|&expert| u64::from(expert) < most);
            let Some(expert) = known else {
                return Err(at_line(
                    self.path,
                    line,
                    format_args!("expert {expert}: one below {most} is expected"),
                ));
            };
            self.experts_seen = self.experts_seen.max(expert + 1);
            set.push(expert);
        }
        Ok(())
    }

    /// Routing over the layers that have experts. Every token must tell of each of them.
    pub fn finish(self) -> Result<Routing> {
        let experts = self.experts.unwrap_or(self.experts_seen) as usize;
        let layers = self.layers.len();
        if layers * experts > ITEMS_MAX {
            let what =
                format_args!("{layers} layers × {experts} experts: at most {ITEMS_MAX} in all are expected");
            return Err(Failure::new("malformed_trace", format_args!("{}: {what}", self.path.display()))
                .at(self.path));
        }
        let mut prompts: Vec<Prompt> = Vec::new();
        let mut current = None;
        for ((number, step), token) in &self.tokens {
            if current != Some(number) {
                prompts.push(Prompt::new(layers));
                current = Some(number);
            }
            let Some(prompt) = prompts.last_mut() else { continue };
            for (layer, place) in self.layers.iter().zip(0u32..) {
                let Some(set) = token.layers.get(layer) else {
                    let what = format_args!(
                        "step {step} of prompt {number} ends here without layer {layer}: cut off?"
                    );
                    return Err(at_line(self.path, token.line, what));
                };
                // `layers · experts` is within ITEMS_MAX.
                #[allow(clippy::cast_possible_truncation)]
                prompt.push(set.iter().map(|&expert| place * experts as u32 + expert));
            }
        }
        let known = self.layers.iter().map(|layer| self.expert_bytes.get(layer).copied());
        let expert_bytes = known.collect::<Option<Vec<u64>>>().unwrap_or_default();
        Ok(Routing { layers, experts, expert_bytes, prompts })
    }
}
