//! A model's tensors as groups with dense numbers: what a cache moves, and where in a slot it lies.

mod experts;
mod rules;
#[cfg(test)]
mod tests;

pub use experts::ExpertReport;
pub use rules::{BadPattern, GroupRules, Pattern};

use experts::Experts;

use spoc_io::{BlockDigests, Extent, Format, Model, PlanBuilder, PlanOptions, ReadPlan, WeightFile};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Every tensor begins at a multiple of this in device memory.
pub const TENSOR_ALIGN_BYTES: u64 = 256;

/// Rounds up to the next tensor start; `None` past 64 bits.
#[must_use]
pub fn align_up(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(TENSOR_ALIGN_BYTES)
}

/// One tensor of a group.
#[derive(Debug, Clone)]
pub struct GroupTensor {
    /// Its index in [`Model::tensors`](spoc_io::Model).
    pub tensor: u32,
    /// Where it begins in its slot, bytes; a multiple of [`TENSOR_ALIGN_BYTES`].
    pub offset_bytes: u64,
    /// Where its bytes are in the model's files.
    pub extent: Extent,
}

/// Tensors that move as one.
#[derive(Debug)]
pub struct Group {
    /// The part of their names that all members share.
    pub name: String,
    /// Number in its layer stack, if it is of one.
    pub layer: Option<u32>,
    /// Number among the experts of its layer, if it is one.
    pub expert: Option<u32>,
    /// Its place in the order in which the model is visited: embeddings, layers by number, the rest. A layer's experts
    /// share one, behind that of the layer's other tensors.
    pub position: u32,
    /// Bytes it takes in a slot: the end of the last tensor.
    pub slot_bytes: u64,
    /// Bytes of its tensors.
    pub tensor_bytes: u64,
    tensors: Range<usize>,
    plan: OnceLock<Arc<ReadPlan>>,
}

impl Group {
    fn at(position: u32) -> Group {
        Group {
            name: String::new(),
            layer: None,
            expert: None,
            position,
            slot_bytes: 0,
            tensor_bytes: 0,
            tensors: 0..0,
            plan: OnceLock::new(),
        }
    }
}

/// The groups of one model.
#[derive(Debug)]
pub struct Catalogue {
    files: Vec<Arc<WeightFile>>,
    digests: Option<Arc<BlockDigests>>,
    groups: Vec<Group>,
    tensors: Vec<GroupTensor>,
    by_name: HashMap<String, u32>,
    report: ExpertReport,
}

/// Where a group belongs among the others: embeddings first, then its layer, then everything else by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Before(String),
    Layer(String, u32, Option<u32>),
    After(String),
}

impl Place {
    /// Whether both are visited together: experts of one layer.
    fn is_visited_with(&self, other: &Place) -> bool {
        match (self, other) {
            (Place::Layer(stack, layer, Some(_)), Place::Layer(others, other, Some(_))) => {
                (stack, layer) == (others, other)
            }
            _ => self == other,
        }
    }
}

/// A tensor, or the part of one that is an expert's.
#[derive(Debug, Clone, Copy)]
struct Member {
    tensor: u32,
    extent: Extent,
}

/// What is gathered of one group.
#[derive(Debug, Default)]
struct Gathered {
    name: String,
    layer: Option<u32>,
    expert: Option<u32>,
    members: Vec<Member>,
}

/// Input embeddings by their usual names: they are wanted before the first layer.
fn is_input(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.contains("embed") || last.contains("embd") || matches!(last, "wte" | "wpe" | "tok_embeddings")
}

/// Puts a tensor, or each expert's part of it, where it belongs.
fn gather(
    model: &Model,
    index: u32,
    rules: &GroupRules,
    places: &mut HashMap<Place, Gathered>,
    report: &mut ExpertReport,
) {
    let tensor = &model.tensors()[index as usize];
    let group = rules.group(&tensor.name);
    let mut put = |name: String, expert: Option<u32>, extent: Extent| {
        let place = match group.layer {
            Some((stack, number)) => Place::Layer(stack.to_owned(), number, expert),
            None if is_input(&name) => Place::Before(name.clone()),
            None => Place::After(name.clone()),
        };
        let layer = group.layer.map(|(_, number)| number);
        let entry =
            places.entry(place).or_insert_with(|| Gathered { name, layer, expert, members: Vec::new() });
        entry.members.push(Member { tensor: index, extent });
    };
    match group.experts {
        Experts::None => {
            if rules.is_per_expert() && group.layer.is_some() && experts::looks_like_one(&tensor.name) {
                report.unknown.push((tensor.name.clone(), experts::NO_RULE));
            }
            put(group.name.to_owned(), None, tensor.extent);
        }
        // The name of a module ends in the number, that of a GGUF tensor has it behind the matrix.
        Experts::One(expert) => {
            let number = format!(".{expert}");
            let name = group.name.strip_suffix(&number).unwrap_or(group.name);
            put(format!("{name}{number}"), Some(expert), tensor.extent);
        }
        Experts::Stacked => {
            let outermost = match model.format() {
                Format::Gguf => tensor.shape.last(),
                _ => tensor.shape.first(),
            };
            let count = outermost.and_then(|&count| u32::try_from(count).ok()).unwrap_or(0);
            let Some(parts) = cut(tensor.extent, count) else {
                report.unknown.push((tensor.name.clone(), experts::NOT_EVEN));
                let layer = rules.layer_of(&tensor.name).unwrap_or(group.name);
                put(layer.to_owned(), None, tensor.extent);
                return;
            };
            for (expert, part) in (0u32..).zip(parts) {
                put(format!("{}.{expert}", group.name), Some(expert), part);
            }
        }
    }
}

/// An extent in `count` equal parts; `None` if they are none.
fn cut(extent: Extent, count: u32) -> Option<impl Iterator<Item = Extent>> {
    let each = extent.len_bytes.checked_div(u64::from(count))?;
    (each * u64::from(count) == extent.len_bytes).then(|| {
        (0..u64::from(count)).map(move |part| Extent {
            file: extent.file,
            offset: extent.offset + part * each,
            len_bytes: each,
        })
    })
}

impl Catalogue {
    /// Groups the model's tensors by `rules`.
    ///
    /// # Errors
    /// If a group's bytes do not fit 64 bits, or there are more than `u32::MAX` tensors.
    pub fn from_model(model: &Model, rules: &GroupRules) -> crate::Result<Catalogue> {
        Catalogue::from_tensors(model, rules, |_| true)
    }

    /// Groups those of the model's tensors whose name `wanted` takes: the layers that are to be streamed, say,
    /// without the embeddings that stay.
    ///
    /// # Errors
    /// As [`from_model`](Catalogue::from_model).
    pub fn from_tensors(
        model: &Model,
        rules: &GroupRules,
        wanted: impl Fn(&str) -> bool,
    ) -> crate::Result<Catalogue> {
        let too_large = || crate::Error::new(crate::ErrorKind::CatalogueTooLarge);
        let mut places: HashMap<Place, Gathered> = HashMap::new();
        let mut report = ExpertReport::default();
        for (index, tensor) in model.tensors().iter().enumerate() {
            if wanted(&tensor.name) {
                let index = u32::try_from(index).map_err(|_| too_large())?;
                gather(model, index, rules, &mut places, &mut report);
            }
        }
        let mut ordered: Vec<_> = places.into_iter().collect();
        ordered.sort_by(|a, b| a.0.cmp(&b.0));
        let mut catalogue = Catalogue {
            files: model.files().to_vec(),
            digests: None,
            groups: Vec::with_capacity(ordered.len()),
            tensors: Vec::with_capacity(model.tensors().len()),
            by_name: HashMap::with_capacity(ordered.len()),
            report,
        };
        let mut position = 0;
        for (index, (place, _)) in ordered.iter().enumerate() {
            let new = index > 0 && !place.is_visited_with(&ordered[index - 1].0);
            position += u32::from(new);
            // Filled in below, in the same order.
            catalogue.groups.push(Group::at(position));
        }
        for (number, (_, gathered)) in (0u32..).zip(ordered) {
            catalogue.fill(number, gathered).ok_or_else(too_large)?;
        }
        catalogue.count_experts();
        if !catalogue.report.unknown.is_empty() {
            let (count, first) = (catalogue.report.unknown.len(), &catalogue.report.unknown[0]);
            tracing::warn!(
                count,
                name = first.0,
                why = first.1,
                "tensors look like experts and stay with their layer"
            );
        }
        Ok(catalogue)
    }

    /// Tensors in file order, so that neighbours on disk are read together.
    fn fill(&mut self, number: u32, mut gathered: Gathered) -> Option<()> {
        gathered.members.sort_by_key(|member| (member.extent.file, member.extent.offset));
        let first = self.tensors.len();
        let (mut end, mut tensor_bytes) = (0u64, 0u64);
        for Member { tensor, extent } in gathered.members {
            let offset_bytes = align_up(end)?;
            end = offset_bytes.checked_add(extent.len_bytes)?;
            tensor_bytes = tensor_bytes.checked_add(extent.len_bytes)?;
            self.tensors.push(GroupTensor { tensor, offset_bytes, extent });
        }
        self.by_name.insert(gathered.name.clone(), number);
        let group = self.groups.get_mut(number as usize)?;
        (group.name, group.layer, group.expert) = (gathered.name, gathered.layer, gathered.expert);
        (group.slot_bytes, group.tensor_bytes) = (end, tensor_bytes);
        group.tensors = first..self.tensors.len();
        Some(())
    }

    fn count_experts(&mut self) {
        let experts = || self.groups.iter().filter(|group| group.expert.is_some());
        let groups = u32::try_from(experts().count()).unwrap_or(u32::MAX);
        let mut of_position: HashMap<u32, u32> = HashMap::new();
        experts().for_each(|group| *of_position.entry(group.position).or_default() += 1);
        let experts_max = of_position.into_values().max().unwrap_or(0);
        (self.report.groups, self.report.experts_max) = (groups, experts_max);
    }

    /// What is known of the model's experts; of interest for rules that are [per expert](GroupRules::per_expert).
    #[must_use]
    pub fn experts(&self) -> &ExpertReport {
        &self.report
    }

    /// Every group; its index is its number in a [`Key`](crate::Key).
    #[must_use]
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// One group.
    #[must_use]
    pub fn group(&self, group: u32) -> Option<&Group> {
        self.groups.get(group as usize)
    }

    /// The number of the group with this name.
    #[must_use]
    pub fn group_named(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// A group's tensors in the order in which they lie in its slot; empty for an unknown group.
    #[must_use]
    pub fn tensors(&self, group: u32) -> &[GroupTensor] {
        self.group(group).map_or(&[], |group| &self.tensors[group.tensors.clone()])
    }

    /// The files that the groups are read from.
    #[must_use]
    pub fn files(&self) -> &[Arc<WeightFile>] {
        &self.files
    }

    /// Has every fill of a group compared with these digests, chunk by chunk, before it is copied: a slot whose bytes
    /// differ never becomes resident, and the fill fails with `digest_mismatch`. Of groups that
    /// are parts of tensors, the blocks that they touch are read whole. The pump's reader needs [`check_threads`](spoc_io::ReaderOptions::check_threads). Plans made before are made again.
    pub fn check_against(&mut self, digests: Arc<BlockDigests>) {
        self.digests = Some(digests);
        for group in &mut self.groups {
            group.plan = OnceLock::new();
        }
    }

    /// Bytes that the widest group takes in a slot.
    #[must_use]
    pub fn widest_slot_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.slot_bytes).max().unwrap_or(0)
    }

    /// Bytes of all tensors.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.tensor_bytes).sum()
    }

    /// How to read a group into a slot (target 0), planned on first use and kept.
    pub(crate) fn plan(&self, group: u32, options: &PlanOptions) -> crate::Result<Arc<ReadPlan>> {
        let entry =
            self.group(group).ok_or_else(|| crate::Error::new(crate::ErrorKind::NoSuchGroup { group }))?;
        if let Some(plan) = entry.plan.get() {
            return Ok(Arc::clone(plan));
        }
        let mut builder = PlanBuilder::new(&self.files, *options);
        if let Some(digests) = &self.digests {
            builder.check_against(digests)?;
        }
        for tensor in self.tensors(group) {
            builder.add(0, tensor.extent, tensor.offset_bytes)?;
        }
        let plan = Arc::new(builder.build()?);
        Ok(Arc::clone(entry.plan.get_or_init(|| plan)))
    }
}
