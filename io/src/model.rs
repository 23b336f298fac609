//! A model as its files and tensors, whatever format they came from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::file::WeightFile;
use crate::format::{Dtype, GgmlType, GgufInfo};

/// Settings for [`crate::open_model`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Longest header of one file that is parsed, in bytes. Default 100,000,000, the format's usual cap.
    pub header_bytes_max: u64,
    /// Longest shard index that is parsed, in bytes. Default 256 MiB.
    pub index_bytes_max: u64,
    /// Opens weights whose numbers are in the other byte order than this machine's. Their bytes are handed out as they
    /// are stored, so only who looks at them, or swaps them, should say so. Default no.
    pub foreign_byte_order: bool,
    /// Folder of the Hugging Face cache that names like `org/name` are looked up in. Default: what `HF_HUB_CACHE`,
    /// `HF_HOME` or `XDG_CACHE_HOME` say, else `~/.cache/huggingface/hub`.
    pub hub_cache: Option<PathBuf>,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            header_bytes_max: 100_000_000,
            index_bytes_max: 256 << 20,
            foreign_byte_order: false,
            hub_cache: None,
        }
    }
}

/// File format of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// safetensors, one file or several.
    Safetensors,
    /// GGUF, one file or split.
    Gguf,
}

/// Element type of a tensor, in the terms of its format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ElementType {
    /// Of a safetensors file.
    Safetensors(Dtype),
    /// Of a GGUF file: plain, or quantised in blocks.
    Ggml(GgmlType),
}

impl ElementType {
    /// Name in the format's terms, such as `BF16` or `Q4_K`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Safetensors(dtype) => dtype.name(),
            Self::Ggml(kind) => kind.name(),
        }
    }
}

impl ElementType {
    /// The smallest number of elements that ends on a byte, or a block, and the bytes it takes.
    #[must_use]
    pub const fn block(self) -> (u64, u64) {
        match self {
            Self::Ggml(kind) => (kind.block_elements(), kind.block_bytes()),
            Self::Safetensors(dtype) => match dtype.bits() {
                4 => (2, 1),
                6 => (4, 3),
                bits => (1, bits as u64 / 8),
            },
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Safetensors => f.write_str("safetensors"),
            Self::Gguf => f.write_str("gguf"),
        }
    }
}

/// A range of bytes of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// Position of the file in [`Model::files`], or in the list a [`crate::PlanBuilder`] was given.
    pub file: u32,
    /// First byte, from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

impl Extent {
    /// The first byte after it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(self.len_bytes)
    }
}

/// One tensor: what it is and where its bytes lie. Its whole extent was checked to lie inside its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Name, unique in the model.
    pub name: String,
    /// Element type.
    pub dtype: ElementType,
    /// Dimensions in the order of the file, empty for a scalar: outermost first in safetensors, contiguous first in
    /// GGUF.
    pub shape: Vec<u64>,
    /// Its bytes. Length 0 when a dimension is 0.
    pub extent: Extent,
}

impl Tensor {
    /// Dimensions outermost first, whatever the format.
    pub(crate) fn outermost_first(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        let (shape, reverse) = (&self.shape, matches!(self.dtype, ElementType::Ggml(_)));
        (0..shape.len()).map(move |i| if reverse { shape[shape.len() - 1 - i] } else { shape[i] })
    }
}

/// An opened model: every file open and every header parsed and checked.
#[derive(Debug)]
pub struct Model {
    format: Format,
    root: PathBuf,
    files: Vec<Arc<WeightFile>>,
    tensors: Vec<Tensor>,
    /// Made when it is first asked for: whoever goes through all tensors needs none.
    by_name: OnceLock<Vec<u32>>,
    metadata: Metadata,
}

/// What a model's files say beside the tensors.
#[derive(Debug)]
pub(crate) enum Metadata {
    Text(Vec<(String, String)>),
    Gguf(GgufInfo),
}

impl Model {
    pub(crate) fn new(
        format: Format,
        root: PathBuf,
        files: Vec<Arc<WeightFile>>,
        mut tensors: Vec<Tensor>,
        metadata: Metadata,
    ) -> Self {
        tensors.sort_by_key(|t| t.extent);
        Self { format, root, files, tensors, by_name: OnceLock::new(), metadata }
    }

    fn by_name(&self) -> &[u32] {
        self.by_name.get_or_init(|| {
            let count = u32::try_from(self.tensors.len()).unwrap_or(u32::MAX);
            let mut by_name: Vec<u32> = (0..count).collect();
            by_name.sort_by(|a, b| self.tensors[*a as usize].name.cmp(&self.tensors[*b as usize].name));
            by_name
        })
    }

    /// File format.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// The file or folder that was opened, after a Hugging Face repository folder was resolved to its snapshot.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The files, in the order of their names. [`Extent::file`] counts here.
    #[must_use]
    pub fn files(&self) -> &[Arc<WeightFile>] {
        &self.files
    }

    /// The tensors, in the order of file and offset.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        let by_name = self.by_name();
        let at = by_name.binary_search_by(|i| self.tensors[*i as usize].name.as_str().cmp(name)).ok()?;
        Some(&self.tensors[by_name[at] as usize])
    }

    /// The file that holds this tensor.
    #[must_use]
    pub fn file_of(&self, tensor: &Tensor) -> Option<&Arc<WeightFile>> {
        self.files.get(tensor.extent.file as usize)
    }

    /// Textual metadata of the first safetensors file that has any, in the order of the file.
    #[must_use]
    pub fn metadata(&self) -> &[(String, String)] {
        match &self.metadata {
            Metadata::Text(pairs) => pairs,
            Metadata::Gguf(_) => &[],
        }
    }

    /// Version, byte order, alignment and metadata of a GGUF model; `None` for other formats.
    #[must_use]
    pub fn gguf(&self) -> Option<&GgufInfo> {
        match &self.metadata {
            Metadata::Gguf(info) => Some(info),
            Metadata::Text(_) => None,
        }
    }

    /// Sum of all tensors, in bytes.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.tensors.iter().map(|t| t.extent.len_bytes).sum()
    }
}
