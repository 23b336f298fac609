//! Recorded routing, and the events that a batch of prompts makes of it.

use std::collections::VecDeque;

/// What one prompt's decoding used: for each token and layer, the experts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompt {
    /// Items of all tokens, layer by layer.
    items: Vec<u32>,
    /// Ends in `items`, one a (token, layer).
    ends: Vec<usize>,
    layers: usize,
}

impl Prompt {
    /// A prompt without tokens on a model of `layers` layers.
    #[must_use]
    pub fn new(layers: usize) -> Prompt {
        Prompt { layers, ..Prompt::default() }
    }

    /// Adds the next layer's items, layers in order, tokens one after another.
    pub fn push(&mut self, items: impl IntoIterator<Item = u32>) {
        self.items.extend(items);
        self.ends.push(self.items.len());
    }

    /// Whole tokens.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.ends.len() / self.layers.max(1)
    }

    /// The items of a token on a layer; nothing beyond the end.
    #[must_use]
    pub fn set(&self, token: usize, layer: usize) -> &[u32] {
        let at = token * self.layers + layer;
        let Some(&end) = self.ends.get(at).filter(|_| layer < self.layers) else { return &[] };
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[start..end]
    }
}

/// Recorded routing of a model: item = layer · experts + expert.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// Layers with experts.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Bytes of one expert, a layer.
    pub expert_bytes: Vec<u64>,
    /// In the order in which they were recorded.
    pub prompts: Vec<Prompt>,
}

impl Routing {
    /// Items there are.
    #[must_use]
    pub fn items(&self) -> usize {
        self.layers * self.experts
    }

    /// Tokens of all prompts.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.prompts.iter().map(Prompt::tokens).sum()
    }

    /// Only these prompts.
    #[must_use]
    pub fn only(&self, mut wanted: impl FnMut(usize) -> bool) -> Routing {
        let prompts = self
            .prompts
            .iter()
            .enumerate()
            .filter(|(number, _)| wanted(*number))
            .map(|(_, prompt)| prompt.clone());
        Routing { prompts: prompts.collect(), expert_bytes: self.expert_bytes.clone(), ..*self }
    }

    /// Keeps the first `most` tokens of all prompts together.
    pub fn cut(&mut self, most: usize) {
        let mut left = most;
        for prompt in &mut self.prompts {
            let tokens = left.min(prompt.tokens());
            let ends = tokens * self.layers;
            prompt.items.truncate(ends.checked_sub(1).map_or(0, |last| prompt.ends[last]));
            prompt.ends.truncate(ends);
            left -= tokens;
        }
        self.prompts.retain(|prompt| prompt.tokens() > 0);
    }

    /// The events of `batch` prompts at a time, `tokens` consecutive ones of each in one event.
    ///
    /// Prompts are taken in order; one that ends is replaced at the next step. Its last event may be shorter.
    #[must_use]
    pub fn events(&self, batch: usize, tokens: usize) -> Events {
        let (batch, tokens) = (batch.max(1), tokens.max(1));
        let mut events = Events::new(self);
        let mut waiting: VecDeque<&Prompt> =
            self.prompts.iter().filter(|prompt| prompt.tokens() > 0).collect();
        let mut running: Vec<(&Prompt, usize)> = Vec::new();
        loop {
            while running.len() < batch
                && let Some(prompt) = waiting.pop_front()
            {
                running.push((prompt, 0));
            }
            if running.is_empty() {
                return events;
            }
            for layer in 0..self.layers {
                for &(prompt, at) in &running {
                    let until = (at + tokens).min(prompt.tokens());
                    (at..until).for_each(|token| events.add(prompt.set(token, layer)));
                }
                events.close();
            }
            for (prompt, at) in &mut running {
                let step = tokens.min(prompt.tokens() - *at);
                events.tokens += step as u64;
                *at += step;
            }
            running.retain(|&(prompt, at)| at < prompt.tokens());
        }
    }
}

/// Sets in the order in which they are wanted.
#[derive(Debug, Clone)]
pub struct Events {
    /// Place of each item's layer.
    pub positions: Vec<u32>,
    /// Bytes of each item.
    pub bytes: Vec<u64>,
    /// Tokens served by all events.
    pub tokens: u64,
    items: Vec<u32>,
    ends: Vec<usize>,
}

impl Events {
    #[allow(clippy::cast_possible_truncation)] // layers are few
    fn new(routing: &Routing) -> Events {
        let layers = 0..routing.layers;
        let bytes = |layer: usize| routing.expert_bytes.get(layer).copied().unwrap_or(1);
        Events {
            positions: layers.clone().flat_map(|layer| vec![layer as u32; routing.experts]).collect(),
            bytes: layers.flat_map(|layer| vec![bytes(layer); routing.experts]).collect(),
            tokens: 0,
            items: Vec::new(),
            ends: Vec::new(),
        }
    }

    fn add(&mut self, items: &[u32]) {
        self.items.extend(items);
    }

    /// The set is whole: distinct members in order; none that is empty.
    fn close(&mut self) {
        let start = self.ends.last().copied().unwrap_or(0);
        self.items[start..].sort_unstable();
        let mut kept = start;
        for at in start..self.items.len() {
            if at == start || self.items[at] != self.items[kept - 1] {
                self.items[kept] = self.items[at];
                kept += 1;
            }
        }
        self.items.truncate(kept);
        if kept > start {
            self.ends.push(kept);
        }
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Layers of the model.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.positions.last().map_or(0, |&last| last as usize + 1)
    }

    /// Items of the model.
    #[must_use]
    pub fn item_count(&self) -> usize {
        self.positions.len()
    }

    /// The sets, distinct members in rising order.
    pub fn sets(&self) -> impl DoubleEndedIterator<Item = &[u32]> + ExactSizeIterator {
        (0..self.ends.len()).map(|at| {
            let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.items[start..self.ends[at]]
        })
    }
}
