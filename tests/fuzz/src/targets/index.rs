//! Any text as a shard index beside two small shards, `a.safetensors` and `b.safetensors`.
use std::path::PathBuf;
use std::sync::LazyLock;

use super::super::open;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = PathBuf::from(format!("/dev/shm/spoc-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder in memory");
    for name in ["a", "b"] {
        let header = format!(
            r#"{{"{name}1":{{"dtype":"U8","shape":[1],"data_offsets":[0,1]}},"both":{{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}}}"#
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(&[1, 2]);
        std::fs::write(folder.join(format!("{name}.safetensors")), bytes).expect("memory");
    }
    folder
});

/// One execution.
pub fn run(data: &[u8]) {
    let index = FOLDER.join("model.safetensors.index.json");
    std::fs::write(&index, data).expect("memory");
    open(&index, data.len());
}

/// Removes the folder that the target works in. Nothing must run afterwards.
pub fn clean_up() {
    let _ = std::fs::remove_dir_all(&*FOLDER);
}
