//! Any text as a manifest, by itself and against a small model.

use std::sync::LazyLock;

use spoc_io::{DigestKind, Manifest, Model, OpenOptions};

use super::super::{MemoryFile, within_limit};

static MODEL: LazyLock<(MemoryFile, Model)> = LazyLock::new(|| {
    let header = concat!(
        r#"{"a":{"dtype":"U8","shape":[300000],"data_offsets":[0,300000]},"#,
        r#""b":{"dtype":"F16","shape":[2,1],"data_offsets":[300000,300004]},"#,
        r#""c":{"dtype":"BF16","shape":[0],"data_offsets":[300004,300004]}}"#
    );
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    let file = MemoryFile::new(&bytes, bytes.len() as u64 + 300_004);
    let model = spoc_io::open_model(&file.path(), &OpenOptions::default()).expect("a model");
    (file, model)
});

/// Manifests of the small model.
pub fn seeds() -> Vec<Vec<u8>> {
    let made = DigestKind::ALL.map(|kind| {
        let mut text = Vec::new();
        let manifest = Manifest::of(&MODEL.1, kind, &|_| {}).expect("a manifest");
        manifest.write_to(&mut text).expect("memory");
        text
    });
    made.into()
}

/// One execution.
pub fn run(data: &[u8]) {
    LazyLock::force(&MODEL);
    match within_limit(data.len(), || Manifest::parse(data)) {
        Ok(manifest) => {
            let mut text = Vec::new();
            manifest.write_to(&mut text).expect("memory");
            assert_eq!(Manifest::parse(&text).expect("what was written is read"), manifest);
            match manifest.expectations(&MODEL.1) {
                Ok(digests) => assert!(digests.block_bytes().is_power_of_two()),
                Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error:?}"),
    }
}
