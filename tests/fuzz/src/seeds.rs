//! Starting points for the targets: small files made here, and those of a folder of cases.

use std::fs;
use std::path::Path;

use super::targets;

/// Larger files would only make every run slow.
const CASE_BYTES_MAX: u64 = 16 << 10;

/// A target's name, a name for the file, and its bytes.
pub type Seed = (&'static str, String, Vec<u8>);

/// Every seed; those of the folder of cases too, if there is one.
///
/// # Errors
/// Of reading that folder.
pub fn all(cases: Option<&Path>) -> std::io::Result<Vec<Seed>> {
    let indexes = INDEXES.iter().map(|text| text.as_bytes().to_vec()).collect();
    let plans =
        (0..16u8).map(|i| (0..200u8).map(|b| b.wrapping_mul(i.wrapping_mul(37) | 1)).collect()).collect();
    let mut seeds = Vec::new();
    let made: [(&str, Vec<Vec<u8>>); 5] = [
        ("safetensors", safetensors()),
        ("gguf", gguf()),
        ("index", indexes),
        ("planner", plans),
        ("manifest", targets::manifest::seeds()),
    ];
    for (target, made) in made {
        seeds.extend(made.into_iter().enumerate().map(|(i, bytes)| (target, format!("made-{i}"), bytes)));
    }
    if let Some(cases) = cases {
        take_cases(cases, &mut seeds)?;
    }
    Ok(seeds)
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

fn take_cases(cases: &Path, seeds: &mut Vec<Seed>) -> std::io::Result<()> {
    let mut folders = vec![cases.to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)?.flatten() {
            let (path, kind) = (entry.path(), entry.file_type()?);
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && entry.metadata()?.len() <= CASE_BYTES_MAX {
                seeds.push(take_case(&path)?);
            }
        }
    }
    Ok(())
}

fn take_case(path: &Path) -> std::io::Result<Seed> {
    let bytes = fs::read(path)?;
    let name: String =
        path.to_string_lossy().chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let (target, bytes) = match bytes.strip_prefix(b"GGUF") {
        Some(rest) => ("gguf", [rest, &[0, 0]].concat()),
        None if path.extension().is_some_and(|e| e == "json") => ("index", bytes),
        None => ("safetensors", [&bytes[..], &[0, 0]].concat()),
    };
    Ok((target, name[name.len().saturating_sub(120)..].to_owned(), bytes))
}
