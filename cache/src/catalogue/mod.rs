//! A model's tensors as groups with dense numbers: what a cache moves, and where in a slot it lies.

mod rules;

pub use rules::{BadPattern, GroupRules, Pattern};

use spoc_io::{BlockDigests, Extent, Model, PlanBuilder, PlanOptions, ReadPlan, WeightFile};
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
    /// Its place in the order in which the model is visited: embeddings, layers by number, the rest.
    pub position: u32,
    /// Bytes it takes in a slot: the end of the last tensor.
    pub slot_bytes: u64,
    /// Bytes of its tensors.
    pub tensor_bytes: u64,
    tensors: Range<usize>,
    plan: OnceLock<Arc<ReadPlan>>,
}

/// The groups of one model.
#[derive(Debug)]
pub struct Catalogue {
    files: Vec<Arc<WeightFile>>,
    digests: Option<Arc<BlockDigests>>,
    groups: Vec<Group>,
    tensors: Vec<GroupTensor>,
    by_name: HashMap<String, u32>,
}

/// Where a group belongs among the others: embeddings first, then its layer, then everything else by name.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Before(String),
    Layer(String, u32),
    After(String),
}

/// Input embeddings by their usual names: they are wanted before the first layer.
fn is_input(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    last.contains("embed") || last.contains("embd") || matches!(last, "wte" | "wpe" | "tok_embeddings")
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
        let mut places: HashMap<Place, (String, Option<u32>, Vec<u32>)> = HashMap::new();
        for (index, tensor) in model.tensors().iter().enumerate() {
            if !wanted(&tensor.name) {
                continue;
            }
            let group = rules.group(&tensor.name);
            let place = match group.layer {
                Some((stack, number)) => Place::Layer(stack.to_owned(), number),
                None if is_input(group.name) => Place::Before(group.name.to_owned()),
                None => Place::After(group.name.to_owned()),
            };
            let layer = group.layer.map(|(_, number)| number);
            let entry = places.entry(place).or_insert_with(|| (group.name.to_owned(), layer, Vec::new()));
            entry.2.push(u32::try_from(index).map_err(|_| too_large())?);
        }
        let mut ordered: Vec<_> = places.into_iter().collect();
        ordered.sort_by(|a, b| a.0.cmp(&b.0));
        let mut catalogue = Catalogue {
            files: model.files().to_vec(),
            digests: None,
            groups: Vec::with_capacity(ordered.len()),
            tensors: Vec::with_capacity(model.tensors().len()),
            by_name: HashMap::with_capacity(ordered.len()),
        };
        for (_, (name, layer, members)) in ordered {
            catalogue.push(model, name, layer, members).ok_or_else(too_large)?;
        }
        Ok(catalogue)
    }

    /// Tensors in file order, so that neighbours on disk are read together.
    fn push(&mut self, model: &Model, name: String, layer: Option<u32>, mut members: Vec<u32>) -> Option<()> {
        members.sort_by_key(|&index| {
            let extent = &model.tensors()[index as usize].extent;
            (extent.file, extent.offset)
        });
        let first = self.tensors.len();
        let (mut end, mut tensor_bytes) = (0u64, 0u64);
        for tensor in members {
            let extent = model.tensors()[tensor as usize].extent;
            let offset_bytes = align_up(end)?;
            end = offset_bytes.checked_add(extent.len_bytes)?;
            tensor_bytes = tensor_bytes.checked_add(extent.len_bytes)?;
            self.tensors.push(GroupTensor { tensor, offset_bytes, extent });
        }
        let number = u32::try_from(self.groups.len()).ok()?;
        self.by_name.insert(name.clone(), number);
        self.groups.push(Group {
            name,
            layer,
            position: number,
            slot_bytes: end,
            tensor_bytes,
            tensors: first..self.tensors.len(),
            plan: OnceLock::new(),
        });
        Some(())
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
    /// differ never becomes resident, and the fill fails with `digest_mismatch`. For groups of whole tensors; the pump's
    /// reader needs [`check_threads`](spoc_io::ReaderOptions::check_threads). Plans made before are made again.
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
