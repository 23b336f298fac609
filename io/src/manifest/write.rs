//! From a manifest's parts to its text, and into a file at once or not at all.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use super::{IN_A_FOLDER, Manifest, ManifestFile, ManifestTensor, VERSION};
use crate::{Error, ErrorKind, Result};

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
    /// As of [`Unwritten::at`] and [`Unwritten::write`].
    pub fn write(&self, path: &Path) -> Result<()> {
        Unwritten::at(path)?.write(self)
    }
}

/// A place that a manifest can be written to: a file beside it is there already. That file goes when this is dropped.
#[derive(Debug)]
pub struct Unwritten {
    path: PathBuf,
    temporary: PathBuf,
    file: Option<File>,
}

impl Unwritten {
    /// Makes the file beside `path`, or beside the file that a link at `path` leads to: the link stays, as it does where a
    /// file is written to. What lies at `path` is replaced only if it is a manifest, by its name or by how it
    /// begins: never a weight file, nor a device.
    ///
    /// # Errors
    /// `not_a_regular_file`; `invalid_argument` for a file that is no manifest; `io_error` and `not_found`, naming the
    /// file: a folder that may not be written to, a full disk.
    pub fn at(path: &Path) -> Result<Self> {
        let Some(name) = path.file_name() else {
            return Err(failed(path, "naming")(io::Error::from_raw_os_error(libc::EISDIR)));
        };
        let target = behind_links(path)?;
        // By the name of what would be replaced: a link is called as somebody likes.
        let target_name = target.file_name().unwrap_or(name);
        check_replaceable(path, target_name)?;
        let (path, name) = (target.as_path(), target_name);
        let mut temporary = std::ffi::OsString::from(".");
        temporary.push(name);
        // Containers that share a folder have processes of one number; what one of them left must not stop the next.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        temporary.push(format!(".{}-{:x}.tmp", std::process::id(), now.as_nanos()));
        let temporary = folder(path).join(temporary);
        let created = File::options().write(true).create_new(true).open(&temporary);
        let file = created.map_err(failed(path, "creating"))?;
        Ok(Self { path: path.to_path_buf(), temporary, file: Some(file) })
    }

    /// The file beside the place.
    #[must_use]
    pub fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Writes the manifest and moves it to its place.
    ///
    /// # Errors
    /// As of [`Unwritten::at`].
    pub fn write(mut self, manifest: &Manifest) -> Result<()> {
        let Some(file) = self.file.take() else { return Ok(()) };
        let moved = fill(manifest, file).and_then(|()| std::fs::rename(&self.temporary, &self.path));
        if let Err(error) = moved {
            let _ = std::fs::remove_file(&self.temporary);
            return Err(failed(&self.path, "writing")(error));
        }
        // The name must survive a crash as the bytes do.
        let synced = File::open(folder(&self.path)).and_then(|folder| folder.sync_all());
        synced.map_err(failed(&self.path, "syncing the folder of"))
    }
}

impl Drop for Unwritten {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = std::fs::remove_file(&self.temporary);
        }
    }
}

fn failed<'a>(path: &'a Path, doing: &'static str) -> impl Fn(io::Error) -> Error + 'a {
    move |error| Error::from_os(error, format!("{doing} the manifest")).in_file(path)
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Where the links at `path` lead. A link to nothing leads nowhere.
fn behind_links(path: &Path) -> Result<PathBuf> {
    match std::fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() => {
            std::fs::canonicalize(path).map_err(failed(path, "following the link in the place of"))
        }
        _ => Ok(path.to_path_buf()),
    }
}

/// Whether a manifest may take the place of what lies at `path`.
fn check_replaceable(path: &Path, name: &OsStr) -> Result<()> {
    // How much of a manifest shows that it is one: its first field comes first, also where somebody indented it.
    const BEGINNING: u64 = 256;
    let there = match std::fs::metadata(path) {
        Ok(there) => there,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(path, "looking at the place of")(error)),
    };
    if !there.is_file() {
        let message = "expected a regular file, or none, in the manifest's place";
        return Err(Error::new(ErrorKind::NotARegularFile, message).in_file(path));
    }
    if there.len() == 0 || name.as_encoded_bytes().ends_with(IN_A_FOLDER.as_bytes()) {
        return Ok(());
    }
    let mut beginning = Vec::new();
    let read = File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut beginning));
    read.map_err(failed(path, "looking at the place of"))?;
    const FIELD: &[u8] = b"\"spoc_manifest\"";
    if beginning.windows(FIELD.len()).any(|bytes| bytes == FIELD) {
        return Ok(());
    }
    let message = "expected a manifest to replace, or no file, and there is another file: it stays as it is";
    Err(Error::new(ErrorKind::InvalidArgument, message).in_file(path))
}

fn fill(manifest: &Manifest, file: File) -> io::Result<()> {
    let mut out = BufWriter::new(file);
    manifest.write_to(&mut out)?;
    out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
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
