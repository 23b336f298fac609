//! Weight files that load and weight files that must not, each made here byte by byte.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use spoc_io::{Dtype, ElementType, Error, ErrorKind, Model, OpenOptions, open_model};

fn open(path: &Path) -> Result<Model, Error> {
    open_model(path, &OpenOptions::default())
}

/// A safetensors file with this header and this many bytes after it.
fn safetensors(header: impl AsRef<[u8]>, data_bytes: usize) -> Vec<u8> {
    let header = header.as_ref();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend((0..data_bytes).map(|i| i.to_le_bytes()[0]));
    bytes
}

/// A file whose tensors, one byte each, have these names.
fn with_tensors(names: &[&str]) -> Vec<u8> {
    let entries: Vec<String> = (0..)
        .zip(names)
        .map(|(i, n)| format!(r#""{n}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#, i + 1))
        .collect();
    safetensors(format!("{{{}}}", entries.join(",")), names.len())
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn kind_of(bytes: &[u8]) -> (ErrorKind, String) {
    let folder = Folder::new();
    let error = open(&folder.put("m.safetensors", bytes)).expect_err("must not load");
    let text = error.to_string();
    assert!(text.contains("m.safetensors") && !text.contains('\n'), "{text}");
    (error.kind(), text)
}

fn entry(dtype: &str, shape: &str, begin: u64, end: u64) -> String {
    format!(r#"{{"a":{{"dtype":{dtype},"shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
}

#[test]
fn malformed_headers_have_their_category() {
    let u8s = |shape: &str, begin, end| entry("\"U8\"", shape, begin, end);
    let two = |first: (u64, u64), second: (u64, u64)| {
        let one = |name, (begin, end)| {
            format!(r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#, end - begin)
        };
        format!("{{{},{}}}", one("a", first), one("b", second))
    };
    let cases: Vec<(String, usize, ErrorKind)> = vec![
        (u8s("[8]", 0, 8), 7, ErrorKind::Truncated),
        (u8s("[8]", 0, 8), 0, ErrorKind::Truncated),
        (u8s("[8]", 0, 8), 9, ErrorKind::TrailingData),
        ("{}".into(), 1, ErrorKind::TrailingData),
        (u8s("[8]", 8, 16), 16, ErrorKind::Hole),
        (two((0, 4), (5, 8)), 8, ErrorKind::Hole),
        (two((0, 5), (4, 8)), 8, ErrorKind::Overlap),
        (two((0, 8), (0, 8)), 8, ErrorKind::Overlap),
        (two((0, 8), (4, 4)), 8, ErrorKind::Overlap),
        (u8s("[8]", 8, 0), 8, ErrorKind::InvalidOffsets),
        (u8s("[8]", u64::MAX - 8, u64::MAX), 8, ErrorKind::OffsetOutOfBounds),
        (u8s("[8]", 100, 108), 8, ErrorKind::OffsetOutOfBounds),
        (u8s("[7]", 0, 8), 8, ErrorKind::ShapeMismatch),
        (u8s("[1]", 0, 0), 0, ErrorKind::ShapeMismatch),
        (u8s("[4294967296,4294967296]", 0, 0), 0, ErrorKind::ShapeOverflow),
        (entry("\"F64\"", "[4611686018427387904]", 0, 0), 0, ErrorKind::ShapeOverflow),
        (entry("\"F4\"", "[3]", 0, 2), 2, ErrorKind::SubbyteMisaligned),
        (entry("\"F6_E2M3\"", "[2]", 0, 2), 2, ErrorKind::SubbyteMisaligned),
        (entry("\"F7\"", "[8]", 0, 8), 8, ErrorKind::BadDtype),
        (entry("\"u8\"", "[8]", 0, 8), 8, ErrorKind::BadDtype),
        (entry("null", "[8]", 0, 8), 8, ErrorKind::BadDtype),
        (entry("[1]", "[8]", 0, 8), 8, ErrorKind::BadDtype),
        (entry("{}", "[8]", 0, 8), 8, ErrorKind::BadDtype),
        (entry("7", "[8]", 0, 8), 8, ErrorKind::BadDtype),
        (u8s("[-1]", 0, 8), 8, ErrorKind::InvalidHeader),
        (u8s("8", 0, 8), 8, ErrorKind::InvalidHeader),
        (u8s("[8.0]", 0, 8), 8, ErrorKind::InvalidHeader),
        (u8s("[18446744073709551616]", 0, 8), 8, ErrorKind::InvalidHeader),
        (r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8,9]}}"#.into(), 8, ErrorKind::InvalidHeader),
        (r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0]}}"#.into(), 8, ErrorKind::InvalidHeader),
        (r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":{"0":0}}}"#.into(), 8, ErrorKind::InvalidHeader),
        (r#"{"a":{"dtype":"U8","shape":[8]}}"#.into(), 8, ErrorKind::InvalidHeader),
        (r#"{"a":null}"#.into(), 8, ErrorKind::InvalidHeader),
        ("[]".into(), 0, ErrorKind::InvalidHeader),
        ("{} {}".into(), 0, ErrorKind::InvalidHeader),
        (" {}".into(), 0, ErrorKind::InvalidHeader),
        ("{}\0".into(), 0, ErrorKind::InvalidHeader),
        (r#"{"\ud800":{}}"#.into(), 0, ErrorKind::InvalidHeader),
        ("{\"a\":".repeat(100_000), 0, ErrorKind::InvalidHeader),
        ("[".repeat(100_000), 0, ErrorKind::InvalidHeader),
        (
            r#"{"__metadata__":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#.into(),
            8,
            ErrorKind::InvalidHeader,
        ),
        (r#"{"__metadata__":{"a":"1","a":"1"}}"#.into(), 0, ErrorKind::DuplicateKey),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), 0, ErrorKind::DuplicateKey),
        (
            r#"{"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#.into(),
            8,
            ErrorKind::DuplicateKey,
        ),
    ];
    for (header, data, expected) in cases {
        let (kind, text) = kind_of(&safetensors(&header, data));
        assert_eq!(kind, expected, "{}: {text}", &header[..header.len().min(200)]);
    }
}

#[test]
fn a_name_is_the_same_however_it_is_escaped() {
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    let (kind, text) = kind_of(&safetensors(header, 2));
    assert_eq!(kind, ErrorKind::DuplicateKey);
    assert!(text.contains("'a'"), "{text}");
}

#[test]
fn lengths_that_lie_cost_nothing() {
    for (prefix, expected) in [
        (u64::MAX - 7, ErrorKind::HeaderTooLarge),
        (1 << 63, ErrorKind::HeaderTooLarge),
        (100_000_001, ErrorKind::HeaderTooLarge),
        (100_000_000, ErrorKind::Truncated),
        (9, ErrorKind::Truncated),
        (0, ErrorKind::InvalidHeader),
    ] {
        let mut bytes = prefix.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"{}      ");
        assert_eq!(kind_of(&bytes).0, expected, "{prefix}");
    }
    for short in [&b""[..], b"1234567"] {
        assert_eq!(kind_of(short).0, ErrorKind::HeaderTooSmall);
    }
}

#[test]
fn the_cap_of_headers_is_a_setting() {
    let folder = Folder::new();
    let path = folder.put("m.safetensors", safetensors(r#"{"__metadata__":{"k":"v"}}"#, 0));
    let options = OpenOptions { header_bytes_max: 10, ..OpenOptions::default() };
    let error = open_model(&path, &options).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::HeaderTooLarge);
    assert!(error.to_string().contains("26") && error.to_string().contains("10"), "{error}");
}

#[test]
fn text_that_is_not_utf8_is_named_with_its_place() {
    for bad in [&b"\xff"[..], b"\xc0\xaf", b"\xed\xa0\x80", b"\xe2\x82"] {
        let header = [b"{\"", bad, b"\":{}}"].concat();
        let folder = Folder::new();
        let error = open(&folder.put("m.safetensors", safetensors(header, 0))).unwrap_err();
        assert_eq!((error.kind(), error.offset()), (ErrorKind::BadUtf8, Some(10)), "{error}");
    }
}

/// Headers this long are parsed as they are read.
#[test]
fn long_headers_are_read_in_pieces() {
    const LONG: usize = 9 << 20;
    let folder = Folder::new();
    // Characters of three bytes lie across the borders of any piece whose length is a power of two.
    let header = |filling: &[u8]| [b"{\"__metadata__\":{\"k\":\"", filling, b"\"}}"].concat();
    let filling = "ﬁ".repeat(LONG / 3);
    let path = folder.put("ok.safetensors", safetensors(header(filling.as_bytes()), 0));
    assert_eq!(open(&path).unwrap().metadata(), [("k".to_owned(), filling.clone())]);

    for place in [0, 65_535, 65_536, 131_071, LONG / 3 * 3 - 1] {
        let mut bad = filling.clone().into_bytes();
        bad[place] = 0xff;
        let error = open(&folder.put("bad.safetensors", safetensors(header(&bad), 0))).unwrap_err();
        let start = 8 + 22;
        let found = error.offset().unwrap();
        let first_bad = (start + place / 3 * 3) as u64;
        assert_eq!(error.kind(), ErrorKind::BadUtf8, "{error}");
        assert!((first_bad..=(start + place) as u64).contains(&found), "{place}: {error}");
    }
    let cut = [header(filling.as_bytes()), b" \xe2\x82".to_vec()].concat();
    assert_eq!(
        open(&folder.put("cut.safetensors", safetensors(cut, 0))).unwrap_err().kind(),
        ErrorKind::BadUtf8
    );
}

#[test]
fn a_long_header_of_nothing_costs_no_memory() {
    let folder = Folder::new();
    let path = folder.path("m.safetensors");
    let mut file = File::create(&path).unwrap();
    file.write_all(&90_000_000u64.to_le_bytes()).unwrap();
    file.write_all(b"{").unwrap();
    file.set_len(90_000_008).unwrap();
    assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::InvalidHeader);
}

#[test]
fn valid_files_load_as_they_are() {
    let header = r#"{"__metadata__":null,"z":{"dtype":"F4","shape":[3,2],"data_offsets":[0,3],"later":[{}]},
        "e":{"shape":[0,9223372036854775807,4],"dtype":"F64","data_offsets":[3,3]},
        "s":{"data_offsets":[3,5],"dtype":"BF16","shape":[]}}   "#;
    let folder = Folder::new();
    let model = open(&folder.put("m.safetensors", safetensors(header, 5))).unwrap();
    let start = 8 + header.len() as u64;
    let found: Vec<_> = model
        .tensors()
        .iter()
        .map(|t| (t.name.as_str(), t.dtype.name(), t.extent.offset, t.extent.len_bytes))
        .collect();
    assert_eq!(found, [("z", "F4", start, 3), ("e", "F64", start + 3, 0), ("s", "BF16", start + 3, 2)]);
    assert_eq!(model.tensor("z").unwrap().shape, [3, 2]);
    assert!(model.tensor("s").unwrap().shape.is_empty());
    assert!(model.tensor("nothing").is_none());
}

#[test]
fn every_dtype_has_its_width() {
    assert_eq!(Dtype::ALL.len(), 22);
    for dtype in Dtype::ALL {
        let header = entry(&format!("\"{dtype}\""), "[8]", 0, u64::from(dtype.bits()));
        let folder = Folder::new();
        let model = open(&folder.put("m.safetensors", safetensors(header, dtype.bits() as usize))).unwrap();
        assert_eq!(model.tensors()[0].dtype, ElementType::Safetensors(*dtype));
    }
}

#[test]
fn a_file_of_terabytes_opens_at_once() {
    let folder = Folder(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap());
    let len = 1u64 << 40;
    let header = entry("\"U8\"", &format!("[{len}]"), 0, len);
    let path = folder.put("m.safetensors", safetensors(&header, 0));
    let mut file = File::options().write(true).open(&path).unwrap();
    if file.seek(SeekFrom::End(0)).and_then(|end| file.set_len(end + len)).is_err() {
        return;
    }
    assert_eq!(open(&path).unwrap().tensor_bytes(), len);
}

fn index(entries: &[(&str, &str)]) -> String {
    let entries: Vec<String> =
        entries.iter().map(|(t, s)| format!("\"{t}\":{}", serde_json::json!(s))).collect();
    format!(r#"{{"metadata":{{"total_size":"wrong"}},"weight_map":{{{}}}}}"#, entries.join(","))
}

const INDEX: &str = "model.safetensors.index.json";

#[test]
fn an_index_says_which_tensor_comes_from_which_file() {
    let folder = Folder::new();
    folder.put("one.safetensors", with_tensors(&["a", "stale"]));
    folder.put("sub/two.safetensors", with_tensors(&["stale", "b"]));
    folder.put("consolidated.safetensors", with_tensors(&["other"]));
    let entries = [("b", "sub/two.safetensors"), ("a", "one.safetensors")];
    let path = folder.put(INDEX, index(&entries));
    for path in [path.as_path(), folder.0.path()] {
        let model = open(path).unwrap();
        let names: Vec<&str> = model.tensors().iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(
            model.file_of(model.tensor("b").unwrap()).unwrap().path(),
            folder.path("sub/two.safetensors")
        );
    }
}

#[test]
fn a_wrong_index_has_its_category() {
    let folder = Folder::new();
    folder.put("one.safetensors", with_tensors(&["a"]));
    folder.put("cut.safetensors", &with_tensors(&["a"])[..40]);
    folder.put("lfs.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
    std::fs::create_dir(folder.path("folder.safetensors")).unwrap();
    symlink("nowhere", folder.path("dangling.safetensors")).unwrap();
    let cases: Vec<(String, ErrorKind, &str)> = vec![
        (index(&[("a", "gone.safetensors")]), ErrorKind::MissingShard, "gone.safetensors"),
        (index(&[("a", "dangling.safetensors")]), ErrorKind::MissingShard, "nowhere"),
        (index(&[("b", "one.safetensors")]), ErrorKind::MissingTensor, "'b'"),
        (index(&[("a", "cut.safetensors")]), ErrorKind::Truncated, "cut.safetensors"),
        (index(&[("a", "lfs.safetensors")]), ErrorKind::LfsPointer, "lfs.safetensors"),
        (index(&[("a", "folder.safetensors")]), ErrorKind::NotARegularFile, "folder"),
        (index(&[]), ErrorKind::IndexInvalid, "empty"),
        (index(&[("a", "one.safetensors"), ("a", "one.safetensors")]), ErrorKind::DuplicateKey, "'a'"),
        (r#"{"weight_map":{},"weight_map":{}}"#.into(), ErrorKind::DuplicateKey, "weight_map"),
        ("{}".into(), ErrorKind::IndexInvalid, "weight_map"),
        (String::new(), ErrorKind::IndexInvalid, ""),
        ("[]".into(), ErrorKind::IndexInvalid, ""),
        (r#"{"weight_map":["a"]}"#.into(), ErrorKind::IndexInvalid, ""),
        (r#"{"weight_map":{"a":1}}"#.into(), ErrorKind::IndexInvalid, ""),
        ("version https://git-lfs.github.com/spec/v1\n".into(), ErrorKind::LfsPointer, ""),
    ];
    for (text, expected, mention) in cases {
        let error = open(&folder.put(INDEX, &text)).unwrap_err();
        assert_eq!(error.kind(), expected, "{text}: {error}");
        assert!(error.to_string().contains(mention), "{error}");
    }
}

#[test]
fn an_index_cannot_lead_out_of_its_folder() {
    let folder = Folder::new();
    folder.put("outside.safetensors", with_tensors(&["a"]));
    for name in [
        "../outside.safetensors",
        "/etc/passwd",
        "sub/../../outside.safetensors",
        "..",
        ".",
        "",
        "~/m",
        "a//b",
        "./a",
        "..\\outside.safetensors",
        "C:\\m",
        "one\0.txt",
    ] {
        let path = folder.put(&format!("m/{INDEX}"), index(&[("a", name)]));
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::PathEscape, "{name:?}");
    }
}

#[test]
fn a_folder_without_index_is_one_model_or_refused() {
    type Files = &'static [(&'static str, &'static [&'static str])];
    let cases: [(Files, Result<&[&str], ErrorKind>); 10] = [
        (&[("model.safetensors", &["a"])], Ok(&["a"])),
        (&[("model.safetensors", &["a"]), (".hidden.safetensors", &["b"])], Ok(&["a"])),
        (
            &[("m-00002-of-00002.safetensors", &["b"]), ("m-00001-of-00002.safetensors", &["a"])],
            Ok(&["a", "b"]),
        ),
        (&[("m-00001-of-00002.safetensors", &["a"])], Err(ErrorKind::MissingShard)),
        (
            &[("m-00001-of-00003.safetensors", &["a"]), ("m-00003-of-00003.safetensors", &["b"])],
            Err(ErrorKind::MissingShard),
        ),
        (
            &[("m-00001-of-00002.safetensors", &["a"]), ("m-00002-of-00002.safetensors", &["a"])],
            Err(ErrorKind::DuplicateTensor),
        ),
        (
            &[("model.safetensors", &["a"]), ("consolidated.safetensors", &["b"])],
            Err(ErrorKind::AmbiguousWeights),
        ),
        (
            &[("m-00001-of-00001.safetensors", &["a"]), ("n-00001-of-00001.safetensors", &["b"])],
            Err(ErrorKind::AmbiguousWeights),
        ),
        (&[("pytorch_model.bin", &[])], Err(ErrorKind::NoWeights)),
        (&[], Err(ErrorKind::NoWeights)),
    ];
    for (files, expected) in cases {
        let folder = Folder::new();
        std::fs::create_dir(folder.path("old.safetensors")).unwrap();
        for (name, tensors) in files {
            folder.put(name, with_tensors(tensors));
        }
        let found = open(folder.0.path());
        match (expected, found) {
            (Ok(names), Ok(model)) => {
                assert_eq!(model.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), names);
            }
            (Err(kind), Err(error)) => assert_eq!(error.kind(), kind, "{files:?}: {error}"),
            (expected, found) => panic!("{files:?}: expected {expected:?}, found {found:?}"),
        }
    }
}

#[test]
fn a_hugging_face_cache_is_followed() {
    let folder = Folder::new();
    folder.put("blobs/b1", with_tensors(&["a"]));
    folder.put("blobs/b2", with_tensors(&["b"]));
    for (commit, blob) in [("c0ffee", "b1"), ("decaf", "b2")] {
        std::fs::create_dir_all(folder.path(&format!("snapshots/{commit}"))).unwrap();
        let link = folder.path(&format!("snapshots/{commit}/model.safetensors"));
        symlink(format!("../../blobs/{blob}"), link).unwrap();
    }
    assert_eq!(open(folder.0.path()).unwrap_err().kind(), ErrorKind::AmbiguousWeights, "no refs/main");
    folder.put("refs/main", "decaf\n");
    let model = open(folder.0.path()).unwrap();
    assert_eq!(model.tensors()[0].name, "b");
    assert!(model.root().ends_with("snapshots/decaf"));
    assert_eq!(open(&folder.path("snapshots/c0ffee")).unwrap().tensors()[0].name, "a");
    assert_eq!(open(&folder.path("blobs/b1")).unwrap().tensors()[0].name, "a", "a blob has no extension");
    folder.put("refs/main", "../../elsewhere");
    assert_eq!(open(folder.0.path()).unwrap_err().kind(), ErrorKind::PathEscape);
    folder.put("refs/main", "gone");
    assert_eq!(open(folder.0.path()).unwrap_err().kind(), ErrorKind::NoWeights);
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let folder = Folder::new();
    symlink("loop.safetensors", folder.path("loop.safetensors")).unwrap();
    symlink("/dev/zero", folder.path("zero.safetensors")).unwrap();
    symlink("/proc/version", folder.path("proc.safetensors")).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(folder.path("socket.safetensors")).unwrap();
    for (name, kind) in [
        ("loop", ErrorKind::IoError),
        ("zero", ErrorKind::NotARegularFile),
        ("proc", ErrorKind::HeaderTooSmall),
        ("socket", ErrorKind::NotARegularFile),
        ("gone", ErrorKind::NotFound),
    ] {
        let error = open(&folder.path(&format!("{name}.safetensors"))).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn many_shards_are_one_model() {
    let folder = Folder::new();
    let names: Vec<String> = (0..40).map(|i| format!("s{i}.safetensors")).collect();
    for (i, name) in (0..).zip(&names) {
        folder.put(name, with_tensors(&[&format!("t{i}")]));
    }
    let tensors: Vec<String> = (0..names.len()).map(|i| format!("t{i}")).collect();
    let entries: Vec<(&str, &str)> =
        tensors.iter().zip(&names).map(|(t, n)| (t.as_str(), n.as_str())).collect();
    let path = folder.put(INDEX, index(&entries));
    assert_eq!(open(&path).unwrap().files().len(), 40);
}
