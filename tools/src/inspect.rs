//! `spoc-loader inspect`: a model's tensors, and on demand their digests.

use std::fmt::Write;

use serde::Serialize;
use spoc_cache::{Catalogue, GroupRules};
use spoc_io::{Model, OpenOptions, Tensor, WeightFile, digest_extent, open_model};

use crate::cli::{Digest, InspectArgs};
use crate::failure::{Failure, Result};
use crate::out::Out;
use crate::units;

#[derive(Debug, Serialize)]
struct Listing<'a> {
    format: String,
    root: String,
    files: Vec<String>,
    bytes: u64,
    tensors: Vec<Row<'a>>,
}

#[derive(Debug, Serialize)]
struct Row<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [u64],
    bytes: u64,
    file: String,
    offset: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// What opening and reading the model says.
pub fn run(args: &InspectArgs, out: Out) -> Result<u8> {
    let model = open_model(&args.model, &OpenOptions::default())?;
    if args.groups {
        out.answer(&groups(&model)?, render_groups);
        return Ok(0);
    }
    let rows =
        model.tensors().iter().map(|tensor| row(&model, tensor, args.digest)).collect::<Result<Vec<_>>>()?;
    for file in model.files() {
        file.check_unchanged()?;
    }
    let listing = Listing {
        format: model.format().to_string(),
        root: model.root().to_string_lossy().into_owned(),
        files: model.files().iter().map(|file| shown(file)).collect(),
        bytes: model.tensor_bytes(),
        tensors: rows,
    };
    out.answer(&listing, render);
    Ok(0)
}

#[derive(Debug, Serialize)]
struct Groups {
    /// What a slot must hold to take any of them.
    widest_slot_bytes: u64,
    groups: Vec<GroupRow>,
}

#[derive(Debug, Serialize)]
struct GroupRow {
    name: String,
    layer: Option<u32>,
    tensors: usize,
    bytes: u64,
    slot_bytes: u64,
}

fn groups(model: &Model) -> Result<Groups> {
    let catalogue = Catalogue::from_model(model, &GroupRules::default())?;
    let rows = (0..).zip(catalogue.groups()).map(|(number, group)| GroupRow {
        name: group.name.clone(),
        layer: group.layer,
        tensors: catalogue.tensors(number).len(),
        bytes: group.tensor_bytes,
        slot_bytes: group.slot_bytes,
    });
    Ok(Groups { widest_slot_bytes: catalogue.widest_slot_bytes(), groups: rows.collect() })
}

fn render_groups(groups: &Groups) -> String {
    let mut text = String::new();
    for group in &groups.groups {
        let name = crate::failure::one_line(&group.name);
        // Writing to a string does not fail.
        let _ =
            writeln!(text, "{name:40} {:5} tensors  {:>12}", group.tensors, units::bytes(group.slot_bytes));
    }
    let _ =
        write!(text, "{} groups, the widest {}", groups.groups.len(), units::bytes(groups.widest_slot_bytes));
    text
}

fn shown(file: &WeightFile) -> String {
    file.path().to_string_lossy().into_owned()
}

fn row<'a>(model: &Model, tensor: &'a Tensor, digest: Option<Digest>) -> Result<Row<'a>> {
    let file = model
        .file_of(tensor)
        .ok_or_else(|| Failure::new("internal", format_args!("tensor {} has no file", tensor.name)))?;
    Ok(Row {
        name: &tensor.name,
        dtype: tensor.dtype.name(),
        shape: &tensor.shape,
        bytes: tensor.extent.len_bytes,
        file: shown(file),
        offset: tensor.extent.offset,
        digest: digest
            .map(|kind| {
                digest_extent(file, tensor.extent, kind.into(), u64::MAX).map(|digest| digest.to_string())
            })
            .transpose()?,
    })
}

fn render(listing: &Listing<'_>) -> String {
    let width = listing.tensors.iter().map(|row| row.name.chars().count()).max().unwrap_or(0).min(60);
    let mut text = String::new();
    for row in &listing.tensors {
        let name = crate::failure::one_line(row.name);
        let shape = shape_text(row.shape);
        let size = units::bytes(row.bytes);
        // Writing to a string does not fail.
        let _ = write!(text, "{name:width$}  {:8} {shape:24} {size:>12}  {}", row.dtype, row.offset);
        let _ = match &row.digest {
            Some(digest) => writeln!(text, "  {digest}"),
            None => writeln!(text),
        };
    }
    let _ = write!(
        text,
        "{} tensors, {} in {} files, {}",
        listing.tensors.len(),
        units::bytes(listing.bytes),
        listing.files.len(),
        listing.format
    );
    text
}

/// Long shapes are cut: a header can hold a hundred thousand dimensions.
fn shape_text(shape: &[u64]) -> String {
    const SHOWN: usize = 8;
    let mut text = shape.iter().take(SHOWN).map(u64::to_string).collect::<Vec<_>>().join("×");
    if shape.len() > SHOWN {
        let _ = write!(text, "×… ({} dimensions)", shape.len());
    }
    if text.is_empty() { "scalar".to_owned() } else { text }
}
