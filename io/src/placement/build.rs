//! Building a map from tensors and how each is divided.

use std::ops::Range;

use super::plan::share;
use super::{MapEntry, MapTarget, PlacementMap};
use crate::error::quoted;
use crate::{ElementType, Error, ErrorKind, Model, Result, SliceRuns, Tensor};

/// Collects targets and the slices that fill them. Ranks are devices 0 to `ranks − 1`. Dimensions are counted from the
/// outermost, whatever the format.
#[derive(Debug)]
pub struct MapBuilder<'a> {
    model: &'a Model,
    ranks: u32,
    map: PlacementMap,
}

impl<'a> MapBuilder<'a> {
    /// A builder for `ranks` devices.
    ///
    /// # Errors
    /// `invalid_argument` for no rank, or more than [`MAP_DEVICES_MAX`](super::MAP_DEVICES_MAX).
    pub fn new(model: &'a Model, ranks: u32) -> Result<Self> {
        if ranks == 0 || ranks > super::MAP_DEVICES_MAX {
            let most = super::MAP_DEVICES_MAX;
            return Err(invalid(format!("expected 1 to {most} devices, found {ranks}")));
        }
        Ok(Self { model, ranks, map: PlacementMap::default() })
    }

    /// The map so far.
    #[must_use]
    pub fn finish(self) -> PlacementMap {
        self.map
    }

    /// How many devices there are.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The whole tensor on one device.
    ///
    /// # Errors
    /// `missing_tensor`.
    pub fn whole(&mut self, tensor: &str, device: u32) -> Result<()> {
        let len_bytes = self.find(tensor)?.extent.len_bytes;
        let target = self.target(tensor, device, len_bytes);
        self.map.entries.push(MapEntry {
            tensor: tensor.to_owned(),
            slice: None,
            target,
            offset_bytes: 0,
            pitch: None,
        });
        Ok(())
    }

    /// The whole tensor on every device.
    ///
    /// # Errors
    /// As of [`MapBuilder::whole`].
    pub fn replicate(&mut self, tensor: &str) -> Result<()> {
        (0..self.ranks).try_for_each(|device| self.whole(tensor, device))
    }

    /// One dimension divided evenly: 0 is column-parallel for a matrix that is stored output × input, its last is
    /// row-parallel, and 0 of stacked experts puts whole experts on each device.
    ///
    /// # Errors
    /// `missing_tensor`; `invalid_argument` for a dimension that is not there or does not divide; `block_misaligned`.
    pub fn divide(&mut self, tensor: &str, dimension: usize) -> Result<()> {
        let ranks = self.ranks;
        self.shares(tensor, dimension, |count, rank| share(count, ranks, rank))
    }

    /// As [`MapBuilder::divide`], with the last device getting fewer where the dimension does not divide: a vocabulary.
    ///
    /// # Errors
    /// As of [`MapBuilder::divide`].
    pub fn divide_uneven(&mut self, tensor: &str, dimension: usize) -> Result<()> {
        let ranks = u64::from(self.ranks);
        self.shares(tensor, dimension, |count, rank| {
            let each = count.div_ceil(ranks);
            let start = (each * u64::from(rank)).min(count);
            Some(start..(start + each).min(count))
        })
    }

    /// Keys or values of `heads` heads, outermost: divided, or each head on several devices where there are more of them
    /// than heads.
    ///
    /// # Errors
    /// As of [`MapBuilder::divide`].
    pub fn divide_heads(&mut self, tensor: &str, heads: u32) -> Result<()> {
        let ranks = self.ranks;
        self.shares(tensor, 0, |count, rank| head_share(count, heads, ranks, rank))
    }

    /// Parts behind one another in one target a device: the rank's share of the outermost dimension of each tensor, in
    /// this order, as fused projections of queries, keys and values, or of gate and up, have them. `kv_heads` says how
    /// many heads the tensors behind the first have, where they are keys and values.
    ///
    /// # Errors
    /// As of [`MapBuilder::divide`]; `invalid_argument` for tensors of different types or rows.
    pub fn fuse(&mut self, name: &str, tensors: &[&str], kv_heads: Option<u32>) -> Result<()> {
        let first = match tensors.first() {
            Some(first) => self.find(first)?,
            None => return Err(invalid(format!("target {}: expected tensors to fuse", quoted(name)))),
        };
        let row = |tensor: &Tensor| tensor.outermost_first().skip(1).collect::<Vec<_>>();
        for tensor in tensors {
            let found = self.find(tensor)?;
            if found.dtype != first.dtype || row(found) != row(first) {
                return Err(invalid(format!(
                    "target {}: tensor {} is fused with {}, expected one type and rows of one shape",
                    quoted(name),
                    quoted(tensor),
                    quoted(&first.name)
                )));
            }
        }
        let ranks = self.ranks;
        for rank in 0..ranks {
            let (mut parts, mut len_bytes) = (Vec::with_capacity(tensors.len()), 0);
            for (number, tensor) in tensors.iter().enumerate() {
                let range = |count| match kv_heads.filter(|_| number > 0) {
                    Some(heads) => head_share(count, heads, ranks, rank),
                    None => share(count, ranks, rank),
                };
                let found = self.find(tensor)?;
                let slice = slice_of(found, 0, ranks, range)?;
                parts.push((*tensor, len_bytes, slice.clone()));
                len_bytes += SliceRuns::of(found, &slice)?.len_bytes();
            }
            let target = self.target(name, rank, len_bytes);
            for (tensor, offset_bytes, slice) in parts {
                let (tensor, slice) = (tensor.to_owned(), Some(slice));
                self.map.entries.push(MapEntry { tensor, slice, target, offset_bytes, pitch: None });
            }
        }
        Ok(())
    }

    fn shares(
        &mut self,
        tensor: &str,
        dimension: usize,
        range: impl Fn(u64, u32) -> Option<Range<u64>>,
    ) -> Result<()> {
        let found = self.find(tensor)?;
        for rank in 0..self.ranks {
            let slice = slice_of(found, dimension, self.ranks, |count| range(count, rank))?;
            let len_bytes = SliceRuns::of(found, &slice)?.len_bytes();
            let target = self.target(tensor, rank, len_bytes);
            let (tensor, slice) = (tensor.to_owned(), Some(slice));
            self.map.entries.push(MapEntry { tensor, slice, target, offset_bytes: 0, pitch: None });
        }
        Ok(())
    }

    pub(super) fn find(&self, name: &str) -> Result<&'a Tensor> {
        self.model.tensor(name).ok_or_else(|| {
            let message = format!("the model has no tensor {}", quoted(name));
            Error::new(ErrorKind::MissingTensor, message)
        })
    }

    fn target(&mut self, name: &str, device: u32, len_bytes: u64) -> u32 {
        self.map.targets.push(MapTarget { name: name.to_owned(), device, len_bytes, complete: true });
        u32::try_from(self.map.targets.len() - 1).unwrap_or(u32::MAX)
    }
}

pub(super) fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Rows of `heads` heads that a rank gets; ranks that outnumber heads share them.
fn head_share(count: u64, heads: u32, ranks: u32, rank: u32) -> Option<Range<u64>> {
    if heads == 0 || !count.is_multiple_of(heads.into()) {
        return None;
    }
    if heads >= ranks {
        return share(count, ranks, rank).filter(|_| heads.is_multiple_of(ranks));
    }
    share(count, heads, rank / (ranks / heads)).filter(|_| ranks.is_multiple_of(heads))
}

/// Ranges of all of a tensor but for one dimension.
fn slice_of(
    tensor: &Tensor,
    dimension: usize,
    ranks: u32,
    range: impl FnOnce(u64) -> Option<Range<u64>>,
) -> Result<Vec<Range<u64>>> {
    let rank = tensor.shape.len();
    let Some(count) = tensor.outermost_first().nth(dimension) else {
        return Err(invalid(format!(
            "tensor {} has {rank} dimensions, and none of number {dimension} to divide",
            quoted(&tensor.name)
        )));
    };
    let mut slice: Vec<Range<u64>> = tensor.shape.iter().map(|count| 0..*count).collect();
    let place = if matches!(tensor.dtype, ElementType::Ggml(_)) { rank - 1 - dimension } else { dimension };
    slice[place] = range(count).ok_or_else(|| {
        invalid(format!(
            "tensor {}: {count} places of dimension {dimension} do not divide among {ranks} devices",
            quoted(&tensor.name)
        ))
    })?;
    Ok(slice)
}
