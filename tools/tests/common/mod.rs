//! Running the real programs and making them something to read.

#![allow(dead_code, clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use spoc_io::{Dtype, SafetensorsHeader};

/// A place for one test: models, and a runtime folder that no other process uses.
pub struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("temporary folder") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        std::fs::write(&path, bytes).expect("write");
        path
    }

    pub fn loader(&self) -> Command {
        self.command(env!("CARGO_BIN_EXE_spoc-loader"))
    }

    pub fn cachestat(&self) -> Command {
        self.command(env!("CARGO_BIN_EXE_cachestat"))
    }

    /// The program with none of the caller's settings and this place's runtime folder.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SPOC_")) {
            command.env_remove(name);
        }
        command.env("SPOC_RUNTIME_DIR", self.path("run")).env("TMPDIR", self.dir.path());
        command
    }
}

pub fn output(command: &mut Command) -> Output {
    command.output().expect("the program starts")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8 on standard error")
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8 on standard output")
}

/// The JSON answer of a command that must succeed.
pub fn answer(command: &mut Command) -> Value {
    let output = output(command);
    assert!(output.status.success(), "{command:?}: {}{}", stdout(&output), stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("one JSON value")
}

/// A tensor to write.
pub struct TensorSpec {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

pub fn tensor(name: &str, dtype: &'static str, shape: &[u64], len_bytes: usize) -> TensorSpec {
    let seed = name.bytes().fold(17u32, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
    let bytes =
        (0..len_bytes).map(|at| noise(seed.wrapping_add(u32::try_from(at / 4).unwrap()), at)).collect();
    TensorSpec { name: name.into(), dtype, shape: shape.to_vec(), bytes }
}

fn noise(word: u32, at: usize) -> u8 {
    word.wrapping_mul(2_654_435_761).rotate_left(13).wrapping_mul(2_246_822_519).to_le_bytes()[at % 4]
}

/// The bytes of a safetensors file whose data starts `shift` bytes after the shortest header.
pub fn safetensors(tensors: &[TensorSpec], shift: usize) -> Vec<u8> {
    let mut header = SafetensorsHeader::new();
    for tensor in tensors {
        let dtype = Dtype::from_name(tensor.dtype).expect("a type of the format");
        let range = header.add(&tensor.name, dtype, &tensor.shape).expect("a tensor");
        assert_eq!(range.end - range.start, tensor.bytes.len() as u64);
    }
    let shortest = header.bytes_until(1, 0).len();
    let mut file = header.bytes_until(shortest + shift + 1, shortest + shift);
    tensors.iter().for_each(|tensor| file.extend(&tensor.bytes));
    file
}

pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&u64::try_from(header.len()).unwrap().to_le_bytes(), header.as_bytes(), data].concat()
}

/// Several megabytes in sizes that meet every edge of a chunk.
pub fn mixed_tensors() -> Vec<TensorSpec> {
    let mut tensors: Vec<TensorSpec> = (0..6)
        .flat_map(|layer| {
            [
                tensor(&format!("model.layers.{layer}.mlp.weight"), "F32", &[611, 401], 611 * 401 * 4),
                tensor(&format!("model.layers.{layer}.norm.weight"), "BF16", &[401], 401 * 2),
                tensor(&format!("model.layers.{layer}.bias"), "U8", &[1], 1),
            ]
        })
        .collect();
    tensors.push(tensor("embed.weight", "F16", &[1 << 20], 2 << 20));
    tensors.push(tensor("empty", "F32", &[0, 4], 0));
    tensors
}

/// Runs a command that must fail in the agreed form, and returns the kind.
pub fn failure(mut command: Command, exit: i32) -> (String, String) {
    let output = output(command.arg("--json"));
    let told = stderr(&output);
    assert_eq!(output.status.code(), Some(exit), "{command:?}: {told}");
    assert_eq!(told.lines().count(), 1, "{command:?}: {told}");
    let answer: Value = serde_json::from_str(&stdout(&output)).expect("one JSON value");
    let text = |key: &str| answer["error"][key].as_str().map(str::to_owned);
    let (kind, message) = (text("kind").expect("kind"), text("message").expect("message"));
    assert_eq!(told.trim_end(), format!("error: {message}"));
    assert!(answer["error"].as_object().expect("object").contains_key("file"));
    (kind, message)
}

pub fn files_below(dir: &Path) -> usize {
    std::fs::read_dir(dir).map_or(0, Iterator::count)
}
