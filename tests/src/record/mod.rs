//! Records of what the suite found on a device: made by a run, kept as JSON, shown as the table of a page.

mod suite;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

pub use suite::{Sought, record};
pub use table::{page, render};

/// Goes up when an older reader would misread a record.
pub const FORMAT: u32 = 1;

/// What the suite found on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// [`FORMAT`].
    pub format: u32,
    /// The API family by its name.
    pub backend: String,
    /// The vendor's name of the device.
    pub device: String,
    /// Name and version of what drives it; empty where nothing tells.
    pub driver: String,
    /// Processor, cores, memory and kernel of the machine.
    pub host: String,
    /// The day of the run, `2026-12-31`.
    pub date: String,
    /// For each capability nothing, or why the device lacks it: that much the checks saw refused by name.
    pub capabilities: BTreeMap<String, Option<String>>,
    /// How many checks passed.
    pub passed: usize,
    /// Those that did not, and why.
    pub failed: BTreeMap<String, String>,
}

impl Record {
    /// The name of its file: a newer run of the same device takes the place of an older one.
    #[must_use]
    pub fn file_name(&self) -> String {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' };
        let words: String = self.device.chars().map(plain).collect();
        let words: Vec<&str> = words.split_whitespace().take(6).collect();
        format!("{}-{}.json", self.backend, words.join("-"))
    }

    /// Writes it into a folder, which is made if it is not there.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn write_into(&self, folder: &Path) -> Result<()> {
        let path = folder.join(self.file_name());
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
        let text = serde_json::to_string_pretty(self)? + "\n";
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }
}

/// The records of a folder, by backend as [`spoc_driver::BackendKind::ALL`] lists them, then by device.
///
/// # Errors
/// A file that cannot be read, is no record, or is of another format.
pub fn read_folder(folder: &Path) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let record: Record =
                serde_json::from_str(&text).with_context(|| format!("{}: no record", path.display()))?;
            let found = record.format;
            ensure!(found == FORMAT, "{}: format {found}, expected {FORMAT}", path.display());
            records.push(record);
        }
    }
    let place =
        |record: &Record| spoc_driver::BackendKind::ALL.iter().position(|k| k.as_str() == record.backend);
    records.sort_by_key(|record| (place(record), record.device.clone()));
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record with one refusal and one failure.
    pub(super) fn sample(backend: &str, device: &str) -> Record {
        Record {
            format: FORMAT,
            backend: backend.to_owned(),
            device: device.to_owned(),
            driver: "made-up 1.0".to_owned(),
            host: "a host".to_owned(),
            date: "2026-12-31".to_owned(),
            capabilities: [
                ("launch".to_owned(), None),
                ("reserve".to_owned(), Some("unavailable: no".to_owned())),
            ]
            .into(),
            passed: 161,
            failed: [("stress_many_small_copies".to_owned(), "a | b".to_owned())].into(),
        }
    }

    #[test]
    fn records_survive_a_folder_in_the_order_of_backends() {
        let folder = std::env::temp_dir().join(format!("spoc-records-{}", std::process::id()));
        let (native, cuda) = (sample("native", "A (CPU)"), sample("cuda", "B"));
        native.write_into(&folder).unwrap();
        cuda.write_into(&folder).unwrap();
        assert_eq!(native.file_name(), "native-a-cpu.json");
        assert_eq!(read_folder(&folder).unwrap(), [cuda, native]);
        fs::write(folder.join("x.json"), "{}").unwrap();
        assert!(read_folder(&folder).unwrap_err().to_string().contains("x.json"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
