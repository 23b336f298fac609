//! Writes starting points for the targets into `corpus/`: small files made here, and those of the folder that
//! `SPOC_CASES` names, if it does. Run in `tests/fuzz`.

use std::fs;
use std::path::{Path, PathBuf};

/// Larger files would only make every run slow.
const CASE_BYTES_MAX: u64 = 16 << 10;

fn main() -> std::io::Result<()> {
    let corpus = PathBuf::from("corpus");
    for target in ["safetensors", "gguf", "index", "planner"] {
        fs::create_dir_all(corpus.join(target))?;
    }
    for (i, bytes) in safetensors().into_iter().enumerate() {
        fs::write(corpus.join(format!("safetensors/made-{i}")), bytes)?;
    }
    for (i, bytes) in gguf().into_iter().enumerate() {
        fs::write(corpus.join(format!("gguf/made-{i}")), bytes)?;
    }
    for (i, text) in INDEXES.iter().enumerate() {
        fs::write(corpus.join(format!("index/made-{i}")), text)?;
    }
    for i in 0..16u8 {
        let bytes: Vec<u8> = (0..200u8).map(|b| b.wrapping_mul(i.wrapping_mul(37) | 1)).collect();
        fs::write(corpus.join(format!("planner/made-{i}")), bytes)?;
    }
    if let Some(cases) = std::env::var_os("SPOC_CASES") {
        take_cases(Path::new(&cases), &corpus)?;
    }
    Ok(())
}

fn safetensors() -> Vec<Vec<u8>> {
    let with = |header: &str, hole: u16| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&hole.to_le_bytes());
        bytes
    };
    let mut made = vec![
        with("{}", 0),
        with(
            r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}"#,
            16,
        ),
        with(r#"{"__metadata__":null,"a":{"dtype":"U8","shape":[0,9],"data_offsets":[0,0]}}"#, 0),
        with(r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#, 2),
        with(
            r#"{"\u0061":{"dtype":"BF16","shape":[1],"data_offsets":[0,2],"more":{"x":[1,null,true,-1.5e9]}}}"#,
            2,
        ),
        with(r#"{"a":{"dtype":"I64","shape":[18446744073709551615,2],"data_offsets":[0,8]}}"#, 8),
    ];
    for dtype in spoc_io::Dtype::ALL {
        let bytes = dtype.bits(); // 8 elements
        let header = format!(r#"{{"t":{{"dtype":"{dtype}","shape":[8],"data_offsets":[0,{bytes}]}}}}"#);
        made.push(with(&header, u16::try_from(bytes).unwrap_or(0)));
    }
    made
}

/// Without the magic, which the target puts in front.
fn gguf() -> Vec<Vec<u8>> {
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend_from_slice(&(text.len() as u64).to_le_bytes());
        out.extend_from_slice(text.as_bytes());
    };
    let mut made = Vec::new();
    for kind in spoc_io::GgmlType::ALL {
        let mut out = 3u32.to_le_bytes().to_vec();
        out.extend_from_slice(&1u64.to_le_bytes());
        out.extend_from_slice(&3u64.to_le_bytes());
        text(&mut out, "general.alignment");
        out.extend_from_slice(&4u32.to_le_bytes());
        out.extend_from_slice(&32u32.to_le_bytes());
        text(&mut out, "k");
        out.extend_from_slice(&8u32.to_le_bytes());
        text(&mut out, "value");
        text(&mut out, "list");
        out.extend_from_slice(&9u32.to_le_bytes());
        out.extend_from_slice(&8u32.to_le_bytes());
        out.extend_from_slice(&2u64.to_le_bytes());
        text(&mut out, "x");
        text(&mut out, "y");
        text(&mut out, "blk.0.weight");
        out.extend_from_slice(&2u32.to_le_bytes());
        out.extend_from_slice(&kind.block_elements().to_le_bytes());
        out.extend_from_slice(&2u64.to_le_bytes());
        out.extend_from_slice(&kind.id().to_le_bytes());
        out.extend_from_slice(&0u64.to_le_bytes());
        let hole = u16::try_from(2 * kind.block_bytes() + 64).unwrap_or(u16::MAX);
        out.extend_from_slice(&hole.to_le_bytes());
        made.push(out);
    }
    made
}

const INDEXES: &[&str] = &[
    r#"{"metadata":{"total_size":4},"weight_map":{"a1":"a.safetensors","b1":"b.safetensors","both":"b.safetensors"}}"#,
    r#"{"weight_map":{"a1":"../a.safetensors"}}"#,
    r#"{"weight_map":{"a1":"missing.safetensors"}}"#,
    r#"{"weight_map":{"c1":"a.safetensors"}}"#,
    r#"{"weight_map":{},"weight_map":{}}"#,
    r#"{"weight_map":{"a1":"a.safetensors","a1":"a.safetensors"}}"#,
    "{",
];

fn take_cases(cases: &Path, corpus: &Path) -> std::io::Result<()> {
    let mut folders = vec![cases.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)?.flatten() {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && entry.metadata()?.len() <= CASE_BYTES_MAX {
                take_case(&path, corpus)?;
            }
        }
    }
    Ok(())
}

fn take_case(path: &Path, corpus: &Path) -> std::io::Result<()> {
    let bytes = fs::read(path)?;
    let name: String =
        path.to_string_lossy().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let (target, bytes) = match bytes.strip_prefix(b"GGUF") {
        Some(rest) => ("gguf", [rest, &[0, 0]].concat()),
        None if path.extension().is_some_and(|e| e == "json") => ("index", bytes),
        None => ("safetensors", [&bytes[..], &[0, 0]].concat()),
    };
    let name = &name[name.len().saturating_sub(120)..];
    fs::write(corpus.join(target).join(name), bytes)
}
