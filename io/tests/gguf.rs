//! GGUF files made here, byte by byte: what loads, what is refused, and as what.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::path::{Path, PathBuf};

use spoc_io::{ByteOrder, ErrorKind, GgmlType, GgufArray, GgufValue, Model, OpenOptions, open_model};

/// Writes a GGUF file as told, right or wrong.
struct Maker {
    order: ByteOrder,
    version: u32,
    counts: Option<(u64, u64)>,
    alignment: u64,
    pairs: Vec<Vec<u8>>,
    infos: Vec<Vec<u8>>,
    data: Vec<u8>,
}

impl Maker {
    fn new() -> Self {
        Self {
            order: ByteOrder::Little,
            version: 3,
            counts: None,
            alignment: 32,
            pairs: Vec::new(),
            infos: Vec::new(),
            data: Vec::new(),
        }
    }

    fn u32(&self, value: u32) -> [u8; 4] {
        if self.order == ByteOrder::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    fn u64(&self, value: u64) -> [u8; 8] {
        if self.order == ByteOrder::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    fn text(&self, text: &[u8]) -> Vec<u8> {
        [&self.u64(text.len() as u64)[..], text].concat()
    }

    fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        self.pairs.push([&self.text(key.as_bytes())[..], &self.u32(kind), value].concat());
        self
    }

    fn number(self, key: &str, value: u32) -> Self {
        let bytes = self.u32(value);
        self.pair(key, 4, &bytes)
    }

    fn info(mut self, name: &[u8], shape: &[u64], kind: u32, offset: u64) -> Self {
        let mut bytes = self.text(name);
        bytes.extend(self.u32(u32::try_from(shape.len()).unwrap()));
        shape.iter().for_each(|d| bytes.extend(self.u64(*d)));
        bytes.extend(self.u32(kind));
        bytes.extend(self.u64(offset));
        self.infos.push(bytes);
        self
    }

    /// A tensor after the others, padded to the alignment.
    fn tensor(mut self, name: &str, shape: &[u64], kind: GgmlType, len_bytes: usize) -> Self {
        let alignment = usize::try_from(self.alignment).unwrap();
        self.data.resize(self.data.len().next_multiple_of(alignment), 0);
        let offset = self.data.len() as u64;
        self.data.extend((0..len_bytes).map(|i| u8::try_from(i % 251).unwrap()));
        self.info(name.as_bytes(), shape, kind.id(), offset)
    }

    fn bytes(&self) -> Vec<u8> {
        let (tensors, pairs) = self.counts.unwrap_or((self.infos.len() as u64, self.pairs.len() as u64));
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.u32(self.version));
        bytes.extend(self.u64(tensors));
        bytes.extend(self.u64(pairs));
        bytes.extend(self.pairs.concat());
        bytes.extend(self.infos.concat());
        let start = (bytes.len() as u64).next_multiple_of(self.alignment);
        bytes.resize(usize::try_from(start).unwrap(), 0);
        bytes.extend(&self.data);
        bytes
    }
}

fn open(bytes: &[u8]) -> Result<Model, spoc_io::Error> {
    open_with(bytes, &OpenOptions::default())
}

fn open_with(bytes: &[u8], options: &OpenOptions) -> Result<Model, spoc_io::Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    open_model(&path, options)
}

fn refused(bytes: &[u8]) -> ErrorKind {
    let error = open(bytes).expect_err("the file must be refused");
    assert!(error.to_string().contains("model.gguf"), "{error} names no file");
    error.kind()
}

#[test]
fn every_type_takes_its_blocks() {
    let mut maker = Maker::new();
    for kind in GgmlType::ALL {
        let row = kind.block_elements() * 2;
        let bytes = usize::try_from(kind.block_bytes() * 2 * 3).unwrap();
        maker = maker.tensor(kind.name(), &[row, 3], *kind, bytes);
    }
    let model = open(&maker.bytes()).unwrap();
    assert_eq!(model.tensors().len(), GgmlType::ALL.len());
    for kind in GgmlType::ALL {
        let tensor = model.tensor(kind.name()).unwrap();
        assert_eq!(tensor.dtype.name(), kind.name());
        assert_eq!(tensor.extent.len_bytes, kind.block_bytes() * 6);
        assert_eq!(tensor.shape, [kind.block_elements() * 2, 3], "dimensions stay in file order");
    }
}

#[test]
fn metadata_of_every_type_is_kept() {
    let one = |value: u64| value.to_le_bytes()[..].to_vec();
    let array =
        |kind: u32, count: u64, items: &[u8]| [&kind.to_le_bytes()[..], &count.to_le_bytes(), items].concat();
    let nested = array(9, 1, &array(0, 2, &[7, 8]));
    let maker = Maker::new()
        .pair("bool", 7, &[1])
        .pair("text", 8, &[&one(2)[..], b"\xff\xfe"].concat())
        .pair("i64", 11, &one(u64::MAX))
        .pair("words", 9, &array(8, 2, &[&one(1)[..], b"a", &one(0)].concat()))
        .pair("nested", 9, &nested);
    let model = open(&maker.bytes()).unwrap();
    let info = model.gguf().unwrap();
    let value = |key: &str| &info.metadata.iter().find(|(k, _)| k == key).unwrap().1;
    assert_eq!(value("bool"), &GgufValue::Bool(true));
    assert_eq!(value("text"), &GgufValue::Bytes(vec![0xff, 0xfe]), "text that is not UTF-8 is kept");
    assert_eq!(value("i64").as_u64(), None);
    assert_eq!(value("words"), &GgufValue::Array(GgufArray::Bytes(vec![b"a".to_vec(), vec![]])));
    let inner = GgufArray::Array(vec![GgufArray::U8(vec![7, 8])]);
    assert_eq!(value("nested"), &GgufValue::Array(inner));
}

#[test]
fn data_begin_at_the_next_multiple_of_the_alignment() {
    for alignment in [1, 8, 32, 64, 4096] {
        for key in ["x", "xx", "xxxxxxx"] {
            let mut maker = Maker::new().number("general.alignment", alignment).number(key, 0);
            maker.alignment = alignment.into();
            let maker = maker.tensor("a", &[3], GgmlType::I8, 3).tensor("b", &[5], GgmlType::I8, 5);
            let bytes = maker.bytes();
            let model = open(&bytes).unwrap();
            let a = model.tensor("a").unwrap().extent;
            assert_eq!(a.offset % u64::from(alignment), 0);
            assert_eq!(bytes[usize::try_from(a.offset).unwrap()..][..3], [0, 1, 2]);
            assert_eq!(model.gguf().unwrap().alignment, alignment);
        }
    }
}

#[test]
fn big_endian_files_are_listed_when_asked_and_refused_otherwise() {
    let mut maker = Maker::new();
    maker.order = ByteOrder::Big;
    let bytes = maker.number("k", 7).tensor("w", &[4], GgmlType::F32, 16).bytes();
    assert_eq!(refused(&bytes), ErrorKind::UnsupportedEndianness);
    let model =
        open_with(&bytes, &OpenOptions { foreign_byte_order: true, ..OpenOptions::default() }).unwrap();
    let info = model.gguf().unwrap();
    assert_eq!((info.byte_order, info.version), (ByteOrder::Big, 3));
    assert_eq!(info.metadata, [("k".to_owned(), GgufValue::U32(7))]);
    assert_eq!(model.tensor("w").unwrap().shape, [4]);
}

#[test]
fn headers_that_lie_are_refused_as_what_they_are() {
    let good = || Maker::new().tensor("w", &[32], GgmlType::F32, 128);
    let with = |change: fn(&mut Maker)| {
        let mut maker = good();
        change(&mut maker);
        maker.bytes()
    };
    let info = |shape: &[u64], kind, offset| Maker::new().info(b"w", shape, kind, offset).bytes();
    let deep = [9u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat().repeat(50_000);
    let table: &[(&str, Vec<u8>, ErrorKind)] = &[
        ("magic", [b"gguf", &good().bytes()[4..]].concat(), ErrorKind::BadMagic),
        ("empty", Vec::new(), ErrorKind::Truncated),
        ("version 0", with(|m| m.version = 0), ErrorKind::UnsupportedVersion),
        ("version 1", with(|m| m.version = 1), ErrorKind::UnsupportedVersion),
        ("version 4", with(|m| m.version = 4), ErrorKind::UnsupportedVersion),
        ("tensors", with(|m| m.counts = Some((u64::MAX, 0))), ErrorKind::CountOutOfBounds),
        ("pairs", with(|m| m.counts = Some((1, 1 << 63))), ErrorKind::CountOutOfBounds),
        ("text", Maker::new().pair("k", 8, &u64::MAX.to_le_bytes()).bytes(), ErrorKind::LengthOutOfBounds),
        ("type", Maker::new().pair("k", 13, &[0; 8]).bytes(), ErrorKind::BadValueType),
        ("nesting", Maker::new().pair("k", 9, &deep).bytes(), ErrorKind::NestingTooDeep),
        ("twice", Maker::new().number("k", 1).number("k", 1).bytes(), ErrorKind::DuplicateKey),
        ("align 0", Maker::new().number("general.alignment", 0).bytes(), ErrorKind::AlignmentInvalid),
        ("align 24", Maker::new().number("general.alignment", 24).bytes(), ErrorKind::AlignmentInvalid),
        ("align type", Maker::new().pair("general.alignment", 7, &[1]).bytes(), ErrorKind::AlignmentInvalid),
        ("rank", info(&[1; 5], 0, 0), ErrorKind::TooManyDims),
        ("removed type", info(&[32], 4, 0), ErrorKind::BadDtype),
        ("product", info(&[1 << 40, 1 << 40], 0, 0), ErrorKind::ShapeOverflow),
        ("bytes", info(&[1 << 62], 0, 0), ErrorKind::ShapeOverflow),
        ("block", info(&[33], GgmlType::Q4_0.id(), 0), ErrorKind::BlockMisaligned),
        ("offset", info(&[4], 0, 1 << 60), ErrorKind::OffsetOutOfBounds),
        ("unaligned", info(&[4], 0, 4), ErrorKind::AlignmentInvalid),
        ("name", Maker::new().info(b"\xff", &[], 0, 0).bytes(), ErrorKind::BadUtf8),
        ("same name", good().info(b"w", &[], 0, 0).bytes(), ErrorKind::DuplicateTensor),
        ("overlap", good().info(b"v", &[8], 0, 96).bytes(), ErrorKind::Overlap),
        ("cut", good().bytes()[..good().bytes().len() - 1].to_vec(), ErrorKind::Truncated),
    ];
    for (what, bytes, kind) in table {
        assert_eq!(refused(bytes), *kind, "{what}");
    }
}

#[test]
fn every_cut_of_a_header_is_refused_without_a_panic() {
    let whole = Maker::new().number("k", 1).pair("t", 8, &[3, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
    let whole = whole.tensor("w", &[32], GgmlType::Q4_0, 18).bytes();
    for length in 0..whole.len() {
        let kind = refused(&whole[..length]);
        assert_eq!(kind, ErrorKind::Truncated, "cut to {length} bytes");
    }
    open(&whole).unwrap();
}

#[test]
fn odd_but_valid_files_load() {
    let zero = Maker::new().info(b"none", &[0, 7], 0, 0).info(b"scalar", &[], GgmlType::I8.id(), 0);
    let mut bytes = zero.bytes();
    bytes.push(1);
    let model = open(&bytes).unwrap();
    assert_eq!(model.tensor("none").unwrap().extent.len_bytes, 0);
    assert_eq!(model.tensor("scalar").unwrap().extent.len_bytes, 1);
    bytes.extend(b"whatever follows the last tensor");
    open(&bytes).unwrap();
    open(&Maker::new().bytes()).unwrap();
}

/// A split model of `count` parts in `folder`; `change` may spoil a part.
#[test]
fn an_empty_tensor_lies_inside_its_file_whatever_its_offset_says() {
    let bytes = Maker::new().info(b"none", &[0, 7], 0, 1 << 20).tensor("w", &[4], GgmlType::I8, 4).bytes();
    let model = open(&bytes).unwrap();
    let none = model.tensor("none").unwrap();
    assert_eq!(none.extent.len_bytes, 0);
    assert!(none.extent.end() <= bytes.len() as u64, "{:?}", none.extent);
}

fn split(folder: &Path, count: u16, mut change: impl FnMut(u16, Maker) -> Option<Maker>) -> PathBuf {
    let path = |part: u16| folder.join(format!("m-{:05}-of-{count:05}.gguf", part + 1));
    for part in 0..count {
        let maker = Maker::new()
            .pair("split.no", 2, &part.to_le_bytes())
            .pair("split.count", 2, &count.to_le_bytes())
            .pair("split.tensors.count", 5, &i32::from(count).to_le_bytes())
            .tensor(&format!("t{part}"), &[4], GgmlType::F32, 16);
        if let Some(maker) = change(part, maker) {
            std::fs::write(path(part), maker.bytes()).unwrap();
        }
    }
    path(0)
}

#[test]
fn split_models_are_joined_by_their_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let first = split(folder.path(), 3, |_, maker| Some(maker));
    let whole = open_model(&first, &OpenOptions::default()).unwrap();
    assert_eq!((whole.files().len(), whole.tensors().len()), (3, 3));
    let by_folder = open_model(folder.path(), &OpenOptions::default()).unwrap();
    assert_eq!(by_folder.tensors(), whole.tensors());
    let second = folder.path().join("m-00002-of-00003.gguf");
    assert_eq!(open_model(&second, &OpenOptions::default()).unwrap_err().kind(), ErrorKind::SplitNotFirst);
    let renamed = folder.path().join("renamed.gguf");
    std::fs::copy(&first, &renamed).unwrap();
    assert_eq!(open_model(&renamed, &OpenOptions::default()).unwrap_err().kind(), ErrorKind::MissingShard);
}

#[test]
fn split_models_that_do_not_fit_together_are_refused() {
    type Change = fn(u16, Maker) -> Option<Maker>;
    let table: &[(Change, ErrorKind)] = &[
        (|part, maker| (part != 1).then_some(maker), ErrorKind::MissingShard),
        (|part, maker| Some(if part == 1 { Maker::new() } else { maker }), ErrorKind::SplitMismatch),
        (
            |part, maker| Some(if part == 2 { maker.tensor("t0", &[1], GgmlType::I8, 1) } else { maker }),
            ErrorKind::DuplicateTensor,
        ),
        (
            |part, maker| Some(if part == 2 { maker.tensor("x", &[1], GgmlType::I8, 1) } else { maker }),
            ErrorKind::SplitMismatch,
        ),
    ];
    for (change, kind) in table {
        let folder = tempfile::tempdir().unwrap();
        let first = split(folder.path(), 3, change);
        assert_eq!(open_model(&first, &OpenOptions::default()).unwrap_err().kind(), *kind);
    }
}

/// A hardened parser that looks at each element by itself becomes slow where it matters: a vocabulary of today.
#[test]
fn a_vocabulary_of_today_is_read_at_once() {
    const WORDS: u64 = 262_144;
    let strings = |len: usize| {
        let mut bytes = [&8u32.to_le_bytes()[..], &WORDS.to_le_bytes()].concat();
        for word in 0..WORDS {
            let text = format!("{word:0len$}");
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        bytes
    };
    let numbers = |kind: u32| {
        let mut bytes = [&kind.to_le_bytes()[..], &WORDS.to_le_bytes()].concat();
        bytes.extend((0..WORDS).flat_map(|_| 1.5_f32.to_le_bytes()));
        bytes
    };
    let maker = Maker::new()
        .pair("tokenizer.ggml.tokens", 9, &strings(9))
        .pair("tokenizer.ggml.merges", 9, &strings(17))
        .pair("tokenizer.ggml.scores", 9, &numbers(6))
        .pair("tokenizer.ggml.token_type", 9, &numbers(5))
        .tensor("w", &[32], GgmlType::F32, 128);
    let bytes = maker.bytes();
    let began = std::time::Instant::now();
    let model = open(&bytes).unwrap();
    let took = began.elapsed();
    let metadata = &model.gguf().unwrap().metadata;
    let tokens = &metadata.iter().find(|(key, _)| key == "tokenizer.ggml.tokens").unwrap().1;
    assert!(matches!(tokens, GgufValue::Array(GgufArray::Bytes(list)) if list.len() as u64 == WORDS));
    // 30 ms optimised. This is neither, and the machine may be busy.
    assert!(took < std::time::Duration::from_secs(5), "{took:?}");
}
