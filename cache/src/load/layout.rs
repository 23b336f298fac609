//! How a load lies in device memory: packed, or as in its files.

use super::image::{self, Image};
use super::{LoadOptions, Placement, pack};
use crate::Result;
use spoc_bridge::{InPlace, Within, in_place};
use spoc_driver::{Device, Segment, SegmentOptions};
use spoc_io::{Model, PlanOptions};
use std::sync::Arc;

/// Reads in place are as many chunks long. From the page cache, 2 to 8 MiB gave 11.5 GB/s where a chunk of 1 MiB gave 8.8
/// (2 cores, Zen 4).
const READ_CHUNKS: u32 = 4;

/// Where each tensor goes, and what the reader may fill itself.
pub(super) struct Layout {
    pub placements: Vec<Placement>,
    pub segment_bytes: Vec<u64>,
    /// Why everything is copied; `None` if the reader may fill the targets.
    pub copied_because: Option<&'static str>,
    memory: SegmentOptions,
    targets: Vec<Within>,
}

impl Layout {
    /// As in the files where the host can address the device's memory, since every byte is then moved once; packed
    /// everywhere else, with the reason.
    ///
    /// # Errors
    /// A tensor that no segment holds; what the device says.
    pub fn choose(device: &Device, model: &Model, chosen: &[u32], options: &LoadOptions) -> Result<Layout> {
        let memory = SegmentOptions { exportable: options.exportable };
        let laid = match (options.packed, in_place::reads_in_place(device)) {
            (true, _) => Err("tensors at multiples of 256 were asked for"),
            (false, Err(reason)) => Err(reason),
            (false, Ok(())) => image::lay_out(model, chosen, device.limits())?,
        };
        match laid {
            Ok(image) => {
                let targets = image.targets();
                let Image { placements, segment_bytes, .. } = image;
                Ok(Layout { placements, segment_bytes, copied_because: None, memory, targets })
            }
            Err(reason) => {
                tracing::debug!(reason, "tensors are packed, and copied to the device");
                let (placements, segment_bytes) = pack::pack(model, chosen, device.limits())?;
                Ok(Layout {
                    placements,
                    segment_bytes,
                    copied_because: Some(reason),
                    memory,
                    targets: Vec::new(),
                })
            }
        }
    }

    /// How to plan the reads: those that need no chunk are longer than one, since each costs a wake-up of the copy thread,
    /// and a huge page is best made present by whoever fills the whole of it.
    pub fn plan_options(&self, usual: &PlanOptions) -> PlanOptions {
        match self.copied_because {
            None => PlanOptions { chunk_bytes: usual.chunk_bytes.saturating_mul(READ_CHUNKS), ..*usual },
            Some(_) => *usual,
        }
    }

    /// The segments, and the targets in them.
    ///
    /// # Errors
    /// What the device says.
    pub fn allocate(&self, device: &Device) -> Result<(Vec<Segment>, Option<Arc<InPlace>>)> {
        let (segments, targets) =
            in_place::allocate(device, &self.segment_bytes, &self.targets, self.memory)?;
        Ok((segments, targets.filter(|_| self.copied_because.is_none())))
    }
}
