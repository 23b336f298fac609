//! From a manifest's parts to its text, and into a file at once or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use super::{Manifest, ManifestFile, ManifestTensor, VERSION};
use crate::{Error, Result};

#[derive(Serialize)]
struct FileText<'a> {
    name: &'a str,
    bytes: u64,
    header_bytes: u64,
    header: String,
}

#[derive(Serialize)]
struct TensorText<'a> {
    name: &'a str,
    dtype: &'a str,
    shape: &'a [u64],
    file: u32,
    offset: u64,
    bytes: u64,
    digest: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    blocks: String,
}

impl Manifest {
    /// The manifest's text: JSON, a line for each file and tensor.
    ///
    /// # Errors
    /// What `out` says.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let text = |text: &str| serde_json::to_string(text).map_err(io::Error::from);
        write!(out, "{{\"spoc_manifest\":{VERSION},\"made_by\":")?;
        write!(out, "{},\n\"digest\":", text(concat!("spoc ", env!("CARGO_PKG_VERSION")))?)?;
        write!(out, "{},\"block_bytes\":{},", text(self.digest.as_str())?, self.block_bytes)?;
        write!(out, "\"format\":{},\n\"files\":[", text(&self.format)?)?;
        lines(out, self.files.iter().map(FileText::from))?;
        write!(out, "],\n\"tensors\":[")?;
        lines(out, self.tensors.iter().map(TensorText::from))?;
        writeln!(out, "]}}")
    }

    /// Writes the manifest beside `path` and moves it there: whoever looks finds all of it, the one that was there
    /// before, or none.
    ///
    /// # Errors
    /// `io_error` and `not_found`, naming the file: a folder that may not be written to, a full disk.
    pub fn write(&self, path: &Path) -> Result<()> {
        let failed = |doing: &'static str| {
            let path = path.to_path_buf();
            move |error: io::Error| Error::from_os(error, format!("{doing} the manifest")).in_file(&path)
        };
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Some(name) = path.file_name() else {
            return Err(failed("naming")(io::Error::from_raw_os_error(libc::EISDIR)));
        };
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        temporary.push(format!(".{}.tmp", std::process::id()));
        let temporary = folder.join(temporary);
        let file =
            File::options().write(true).create_new(true).open(&temporary).map_err(failed("creating"))?;
        let done =
            self.fill(file).and_then(|()| std::fs::rename(&temporary, path)).map_err(failed("writing"));
        if done.is_err() {
            let _ = std::fs::remove_file(&temporary);
            return done;
        }
        // The name must survive a crash as the bytes do.
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("syncing the folder of"))
    }

    fn fill(&self, file: File) -> io::Result<()> {
        let mut out = BufWriter::new(file);
        self.write_to(&mut out)?;
        out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }
}

fn lines<T: Serialize>(out: &mut impl Write, items: impl Iterator<Item = T>) -> io::Result<()> {
    for (at, item) in items.enumerate() {
        out.write_all(if at == 0 { b"\n" } else { b",\n" })?;
        serde_json::to_writer(&mut *out, &item)?;
    }
    Ok(())
}

impl<'a> From<&'a ManifestFile> for FileText<'a> {
    fn from(file: &'a ManifestFile) -> Self {
        Self {
            name: &file.name,
            bytes: file.len_bytes,
            header_bytes: file.header_bytes,
            header: file.header.to_string(),
        }
    }
}

impl<'a> From<&'a ManifestTensor> for TensorText<'a> {
    fn from(tensor: &'a ManifestTensor) -> Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
        Self {
            name: &tensor.name,
            dtype: &tensor.dtype,
            shape: &tensor.shape,
            file: tensor.file,
            offset: tensor.offset,
            bytes: tensor.len_bytes,
            digest: tensor.digest.to_string(),
            blocks: tensor.blocks.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect(),
        }
    }
}
