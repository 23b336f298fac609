//! Experts to replay with: a file of matrices whose rows can be told from each other by their sums.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use spoc_cache::replay::Events;
use spoc_io::{Dtype, SafetensorsHeader};

/// Columns of the matrices: rows of 16 KiB.
pub const COLUMNS: u64 = 4096;
pub const ROW_BYTES: u64 = COLUMNS * 4;
/// Numbers that mark rows. With them, sums of rows stay whole numbers that an f32 holds, in whatever order they are added.
const MARKS: u64 = 1 << 22;
/// Where the data begins: experts then lie at multiples of a page.
const DATA_ALIGN: usize = 4096;

/// Where each expert's rows are among all.
#[derive(Debug)]
pub struct Experts {
    /// First row of each item, and the end of the last.
    starts: Vec<u64>,
    /// Sum of a row without its mark.
    base: u64,
}

impl Experts {
    /// Of as many bytes each as the trace knows, or `expert_bytes`, rounded up to whole rows.
    pub fn of(events: &Events, known: bool, expert_bytes: Option<u64>) -> Experts {
        const DEFAULT_BYTES: u64 = 1 << 20;
        let mut starts = vec![0];
        let mut end = 0;
        for &recorded in &events.bytes {
            let bytes = expert_bytes.unwrap_or(if known { recorded } else { DEFAULT_BYTES });
            end += bytes.div_ceil(ROW_BYTES).max(1);
            starts.push(end);
        }
        Experts { starts, base: (0..COLUMNS).map(column).sum() }
    }

    pub fn count(&self) -> usize {
        self.starts.len() - 1
    }

    /// Rows of an expert.
    pub fn rows(&self, item: u32) -> u64 {
        self.starts[item as usize + 1] - self.starts[item as usize]
    }

    /// Bytes of all.
    pub fn bytes(&self) -> u64 {
        self.starts.last().map_or(0, |rows| rows * ROW_BYTES)
    }

    /// The sum of a row of an expert.
    #[allow(clippy::cast_precision_loss)] // below 2^24
    pub fn sum(&self, item: u32, row: u64) -> f32 {
        (self.base + self.mark(item, row)) as f32
    }

    fn mark(&self, item: u32, row: u64) -> u64 {
        (self.starts[item as usize] + row) % MARKS
    }

    /// The name of an expert's group in a catalogue.
    pub fn group_name(item: u32, experts: usize) -> String {
        let experts = u32::try_from(experts).unwrap_or(u32::MAX).max(1);
        format!("model.layers.{}.mlp.experts.{}", item / experts, item % experts)
    }

    /// Writes them all; `progress` hears of the bytes.
    pub fn write(&self, path: &Path, experts: usize, mut progress: impl FnMut(u64)) -> io::Result<()> {
        let mut header = SafetensorsHeader::new();
        let items = 0..u32::try_from(self.count()).unwrap_or(u32::MAX);
        for item in items.clone() {
            let name = format!("{}.weight", Experts::group_name(item, experts));
            header.add(&name, Dtype::F32, &[self.rows(item), COLUMNS]).map_err(io::Error::other)?;
        }
        let mut file = BufWriter::with_capacity(1 << 20, File::create_new(path)?);
        file.write_all(&header.bytes_until(DATA_ALIGN, 0))?;
        let mut line: Vec<u8> = (0..COLUMNS).flat_map(|at| exact(column(at)).to_le_bytes()).collect();
        for item in items {
            for row in 0..self.rows(item) {
                line[..4].copy_from_slice(&exact(column(0) + self.mark(item, row)).to_le_bytes());
                file.write_all(&line)?;
            }
            progress(self.rows(item) * ROW_BYTES);
        }
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_data()
    }
}

/// A row's number in this column; its mark is added to the first.
fn column(at: u64) -> u64 {
    at * 7 % 16
}

#[allow(clippy::cast_precision_loss)] // below 2^24
fn exact(number: u64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;
    use spoc_cache::replay::{Prompt, Routing};
    use spoc_io::OpenOptions;

    #[test]
    fn every_row_has_a_sum_of_its_own_and_is_where_its_name_says() {
        let mut prompt = Prompt::new(2);
        prompt.push([0]);
        prompt.push([3]);
        let routing = Routing { layers: 2, experts: 2, expert_bytes: vec![1, 40_000], prompts: vec![prompt] };
        let experts = Experts::of(&routing.events(1, 1), true, None);
        assert_eq!(
            (experts.count(), experts.rows(0), experts.rows(3), experts.bytes()),
            (4, 1, 3, 8 * ROW_BYTES)
        );
        let folder = tempfile::tempdir().expect("temporary folder");
        let path = folder.path().join("experts.safetensors");
        let mut heard = 0;
        experts.write(&path, routing.experts, |bytes| heard += bytes).expect("written");
        assert_eq!(heard, experts.bytes());
        let model = spoc_io::open_model(&path, &OpenOptions::default()).expect("a model");
        let mut sums = Vec::new();
        for item in 0..4 {
            let name = format!("{}.weight", Experts::group_name(item, 2));
            let tensor = model.tensor(&name).expect("its tensor");
            let file = model.file_of(tensor).expect("its file");
            let mut bytes = vec![0; usize::try_from(tensor.extent.len_bytes).expect("small")];
            file.read_exact_at(&mut bytes, tensor.extent.offset).expect("read");
            let row_bytes = usize::try_from(ROW_BYTES).expect("small");
            for (row, line) in (0..).zip(bytes.chunks(row_bytes)) {
                let sum: f32 = line.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).sum();
                assert!(sum.to_bits() == experts.sum(item, row).to_bits(), "{item} {row}: {sum}");
                sums.push(sum.to_bits());
            }
        }
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), 8);
    }
}
