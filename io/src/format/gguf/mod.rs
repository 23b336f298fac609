//! GGUF, versions 2 and 3: one file, or the files of a split model.

mod cursor;
mod header;
mod split;
mod types;
mod value;

use std::path::Path;
use std::sync::Arc;

pub use cursor::ByteOrder;
use header::Header;
pub use types::GgmlType;
pub use value::{Array, Value};

use crate::file::WeightFile;
use crate::model::{ElementType, Extent, Format, Metadata, Tensor};
use crate::{Error, ErrorKind, Model, OpenOptions, Result};

/// What only GGUF files say of a model; from the first file of a split one.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufInfo {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Order of the bytes of every number in the file, tensors included.
    pub byte_order: ByteOrder,
    /// Alignment of the tensors' offsets in bytes.
    pub alignment: u32,
    /// Every metadata pair, in the order of the file.
    pub metadata: Vec<(String, Value)>,
}

/// Opens the model whose first or only file is `path`.
///
/// # Errors
/// One of the kinds for malformed files, `missing_shard`, `split_not_first`, `split_mismatch`; each names the file.
pub(super) fn open(path: &Path, root: &Path, options: &OpenOptions) -> Result<Model> {
    let file = WeightFile::open(path)?;
    let header = Header::read(&file, options.header_bytes_max)?;
    if header.order != ByteOrder::NATIVE && !options.foreign_byte_order {
        let message = format!("the weights are {}, this machine is {}", header.order, ByteOrder::NATIVE);
        return Err(Error::new(ErrorKind::UnsupportedEndianness, message).in_file(path));
    }
    let mut parts = vec![(file, header)];
    split::complete(path, &mut parts, options)?;
    Ok(model(root, parts))
}

fn model(root: &Path, parts: Vec<(WeightFile, Header)>) -> Model {
    let (mut files, mut tensors, mut info) = (Vec::with_capacity(parts.len()), Vec::new(), None);
    for (number, (file, header)) in (0u32..).zip(parts) {
        tensors.extend(header.tensors.into_iter().map(|tensor| Tensor {
            name: tensor.name,
            dtype: ElementType::Ggml(tensor.kind),
            shape: tensor.shape,
            extent: Extent { file: number, offset: tensor.offset, len_bytes: tensor.len_bytes },
        }));
        files.push(Arc::new(file));
        info.get_or_insert(GgufInfo {
            version: header.version,
            byte_order: header.order,
            alignment: header.alignment,
            metadata: header.metadata,
        });
    }
    let metadata = info.map_or_else(|| Metadata::Text(Vec::new()), Metadata::Gguf);
    Model::new(Format::Gguf, root.to_path_buf(), files, tensors, metadata)
}
