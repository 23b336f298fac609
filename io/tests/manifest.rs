//! Manifests: made, written, read, compared; and chunks checked against them on their way.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
#![allow(clippy::cast_possible_truncation, reason = "test sizes are small")]

mod common;

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{next, noise};
use spoc_io::{
    AnonymousRegion, BlockDigests, DigestKind, Error, ErrorKind, IoMode, Manifest, Model, OpenOptions,
    PlanBuilder, PlanOptions, ReadClass, ReadRequest, Reader, ReaderOptions, Unwritten, open_model,
};

const CHUNK: u32 = 256 << 10;

/// Lengths that meet every edge: of blocks, of chunks, of nothing.
const LENGTHS: [usize; 9] = [700_001, 0, 3, 262_144, 1, 2_000_000, 0, 17, 500_000];

fn write_file(path: &Path, prefix: &str, lengths: &[usize], shift: usize) -> Vec<u8> {
    let (mut header, mut at) = (String::from("{\"__metadata__\":{\"format\":\"pt\"}"), 0);
    for (i, len) in lengths.iter().enumerate() {
        let end = at + len;
        header += &format!(r#","{prefix}{i}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{at},{end}]}}"#);
        at = end;
    }
    header += &format!("}}{}", " ".repeat(shift));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&noise(at, 7 + lengths.len() as u64));
    std::fs::write(path, &bytes).unwrap();
    bytes
}

struct Fixture {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("m.safetensors");
        write_file(&path, "t", &LENGTHS, 3);
        Self { _folder: folder, path }
    }

    fn model(&self) -> Model {
        open_model(&self.path, &OpenOptions::default()).unwrap()
    }

    fn manifest(&self, kind: DigestKind) -> Manifest {
        Manifest::of(&self.model(), kind, &|_| {}).unwrap()
    }

    /// Changes one byte of the file.
    fn spoil(&self, at: u64) {
        let file = std::fs::OpenOptions::new().read(true).write(true).open(&self.path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    }
}

/// Reads all tensors, or those of these positions, against the digests; the errors, by place.
fn read_all(
    model: &Model,
    digests: &Arc<BlockDigests>,
    mode: IoMode,
    only: Option<&[usize]>,
) -> Vec<Arc<Error>> {
    let mut builder =
        PlanBuilder::new(model.files(), PlanOptions { chunk_bytes: CHUNK, ..PlanOptions::default() });
    builder.check_against(digests).unwrap();
    let mut wanted = 0;
    for (target, tensor) in (0..).zip(model.tensors()) {
        if only.is_none_or(|only| only.contains(&(target as usize))) {
            builder.add(target, tensor.extent, 0).unwrap();
            builder.add_on(1, target + 100, tensor.extent, 0).unwrap();
            wanted += tensor.extent.len_bytes;
        }
    }
    let plan = Arc::new(builder.build().unwrap());
    let region = Arc::new(AnonymousRegion::new(8 * CHUNK as usize).unwrap());
    let options = ReaderOptions { mode, chunk_bytes: CHUNK, check_threads: 2, ..ReaderOptions::default() };
    let reader = Reader::start(region, options).unwrap();
    reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
    let mut errors: Vec<_> = plan.reads().iter().filter_map(|_| next(&reader).outcome.err()).collect();
    errors.sort_by_key(|error| error.offset());
    let report = reader.report();
    assert!(!errors.is_empty() || report.checked_bytes >= wanted, "{report:?}");
    assert_eq!(report.chunks_free, 8);
    errors
}

#[test]
fn what_was_made_is_read_back_and_every_chunk_agrees_in_every_mode() {
    let fixture = Fixture::new();
    for kind in DigestKind::ALL {
        let manifest = fixture.manifest(kind);
        let model = fixture.model();
        let path = Manifest::default_path(&model);
        assert_eq!(path, fixture.path.with_file_name("m.safetensors.spoc-manifest.json"));
        manifest.write(&path).unwrap();
        let read = Manifest::read(&path, &model).unwrap();
        assert_eq!(read, manifest);
        for (tensor, entry) in model.tensors().iter().zip(&read.tensors) {
            let file = std::fs::read(&fixture.path).unwrap();
            let bytes = &file[tensor.extent.offset as usize..tensor.extent.end() as usize];
            assert_eq!(entry.digest, kind.of(bytes));
        }
        let digests = read.expectations(&model).unwrap();
        for mode in [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread] {
            assert!(read_all(&model, &digests, mode, None).is_empty(), "{kind} {mode}");
            assert!(read_all(&model, &digests, mode, Some(&[0, 3, 8])).is_empty(), "{kind} {mode}");
        }
    }
}

#[test]
fn a_bad_byte_anywhere_is_found_and_its_block_is_named() {
    let fixture = Fixture::new();
    let digests = fixture.manifest(DigestKind::Xxh3);
    let model = fixture.model();
    for tensor in model.tensors().iter().filter(|t| t.extent.len_bytes > 0) {
        let (start, end) = (tensor.extent.offset, tensor.extent.end());
        for at in [start, start + (end - start) / 2, end - 1] {
            fixture.spoil(at);
            // Opened after the change: nothing but the digest can tell.
            let model = fixture.model();
            let errors = read_all(&model, &digests.clone().expectations(&model).unwrap(), IoMode::Auto, None);
            assert_eq!(errors.len(), 1, "{errors:?}");
            let error = &errors[0];
            let block = digests.block_bytes;
            let from = (at / block * block).max(start);
            assert_eq!(error.kind(), ErrorKind::DigestMismatch, "{error}");
            assert_eq!(error.offset(), Some(from), "{error}");
            assert_eq!(error.file(), Some(&*fixture.path));
            let place = format!("tensor '{}'", tensor.name);
            assert!(error.message().contains(&place), "{error}");
            assert!(error.message().contains(&format!("at byte {} of the tensor", from - start)), "{error}");
            assert!(
                error.message().contains("expected xxh3 ") && error.message().contains("found "),
                "{error}"
            );
            fixture.spoil(at);
        }
    }
}

#[test]
fn a_file_written_to_after_it_was_opened_has_changed_and_is_not_called_damaged() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let digests = fixture.manifest(DigestKind::Xxh3).expectations(&model).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fixture.spoil(model.tensors()[3].extent.offset);
    let errors = read_all(&model, &digests, IoMode::Pread, None);
    assert!(!errors.is_empty() && errors.iter().all(|e| e.kind() == ErrorKind::Changed), "{errors:?}");
}

#[test]
fn a_header_that_differs_is_found_before_a_tensor_is_read() {
    let fixture = Fixture::new();
    let manifest = fixture.manifest(DigestKind::Blake3);
    let text = std::fs::read(&fixture.path).unwrap();
    let at = text.windows(4).position(|w| w == b"\"pt\"").unwrap() as u64 + 1;
    fixture.spoil(at);
    let error = manifest.expectations(&fixture.model()).unwrap_err();
    assert_eq!((error.kind(), error.offset()), (ErrorKind::DigestMismatch, Some(0)), "{error}");
    assert!(error.message().contains("header") && error.message().contains("expected blake3 "), "{error}");
}

#[test]
fn a_plan_that_cannot_be_checked_is_refused() {
    let fixture = Fixture::new();
    let model = fixture.model();
    let digests = fixture.manifest(DigestKind::Crc32c).expectations(&model).unwrap();
    let mut small = PlanBuilder::new(model.files(), PlanOptions { chunk_bytes: 4096, gap_bytes: 0 });
    assert_eq!(small.check_against(&digests).unwrap_err().kind(), ErrorKind::StagingTooSmall);
    let other = fixture.model();
    let mut foreign = PlanBuilder::new(other.files(), PlanOptions::default());
    assert_eq!(foreign.check_against(&digests).unwrap_err().kind(), ErrorKind::InvalidArgument);

    let mut builder = PlanBuilder::new(model.files(), PlanOptions::default());
    builder.check_against(&digests).unwrap();
    // The header's last byte is in front of the first tensor, and no tensor's.
    let mut beside = model.tensors()[0].extent;
    beside.offset -= 1;
    builder.add(0, beside, 0).unwrap();
    let plan = Arc::new(builder.build().unwrap());
    let request = || ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 };
    let start = |check_threads| {
        let region = Arc::new(AnonymousRegion::new(4 << 20).unwrap());
        Reader::start(region, ReaderOptions { check_threads, ..ReaderOptions::default() }).unwrap()
    };
    assert_eq!(start(0).submit(request()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let reader = start(1);
    reader.submit(request()).unwrap();
    let error = next(&reader).outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

#[test]
fn parts_of_tensors_are_checked_by_the_blocks_they_touch() {
    let fixture = Fixture::new();
    let manifest = fixture.manifest(DigestKind::Xxh3);
    let block = manifest.block_bytes;
    let long = fixture.model().tensors()[5].extent;
    assert!(long.len_bytes > 4 * block);
    // Two parts of one block, one over an end of a block, the last byte of a tensor.
    let second = (long.offset / block + 1) * block;
    let parts = [(second + 10, 5), (second + 100_000, 7), (second + 2 * block - 1, 2), (long.end() - 1, 1)];
    let read = |mode| {
        let model = fixture.model();
        let digests = manifest.clone().expectations(&model).unwrap();
        let options = PlanOptions { chunk_bytes: CHUNK, gap_bytes: 0 };
        let mut builder = PlanBuilder::new(model.files(), options);
        builder.check_against(&digests).unwrap();
        for (target, (offset, len_bytes)) in (0..).zip(parts) {
            builder.add(target, spoc_io::Extent { offset, len_bytes, ..long }, 0).unwrap();
        }
        let plan = Arc::new(builder.build().unwrap());
        let region = Arc::new(AnonymousRegion::new(8 * CHUNK as usize).unwrap());
        let options =
            ReaderOptions { mode, chunk_bytes: CHUNK, check_threads: 1, ..ReaderOptions::default() };
        let reader = Reader::start(region, options).unwrap();
        reader.submit(ReadRequest { plan: Arc::clone(&plan), class: ReadClass::Demand, token: 0 }).unwrap();
        let file = std::fs::read(&fixture.path).unwrap();
        let (mut pieces, mut errors) = (0, Vec::new());
        for _ in plan.reads() {
            let completion = next(&reader);
            let read = &plan.reads()[completion.read as usize];
            match completion.outcome {
                Err(error) => errors.push(error),
                Ok(chunk) => {
                    for piece in plan.pieces_of(read) {
                        let (at, len) = (piece.chunk_offset as usize, piece.len_bytes as usize);
                        let in_file = read.offset as usize + at;
                        assert_eq!(&chunk.bytes()[at..at + len], &file[in_file..in_file + len]);
                        pieces += 1;
                    }
                }
            }
        }
        (pieces, errors, reader.report().checked_bytes)
    };
    for mode in [IoMode::Auto, IoMode::Direct, IoMode::Buffered, IoMode::Pread] {
        let (pieces, errors, checked) = read(mode);
        assert!(errors.is_empty() && pieces == 5, "{mode}: {errors:?}");
        // Every block once: three that are whole, and the last one.
        assert_eq!(checked, 3 * block + (long.end() - long.end() / block * block), "{mode}");
    }
    // A byte that no part has, in a block that one has.
    fixture.spoil(second + 50_000);
    let (_, errors, _) = read(IoMode::Auto);
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!((errors[0].kind(), errors[0].offset()), (ErrorKind::DigestMismatch, Some(second)));
    fixture.spoil(second + 50_000);
    // One in a block that none has.
    fixture.spoil(second + 3 * block + 5);
    assert!(read(IoMode::Auto).1.is_empty());
}

#[test]
fn a_manifest_of_another_model_says_what_differs() {
    let fixture = Fixture::new();
    let manifest = fixture.manifest(DigestKind::Xxh3);
    let refused = |change: &dyn Fn(&mut Manifest), part: &str| {
        let mut changed = manifest.clone();
        change(&mut changed);
        let error = changed.expectations(&fixture.model()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ManifestMismatch, "{error}");
        assert!(error.message().contains(part), "{part}: {error}");
        assert!(error.file().is_some());
    };
    refused(&|m| m.format = "gguf".into(), "expected 'gguf', found safetensors");
    refused(&|m| m.files.clear(), "expected 0 files, found 1");
    refused(&|m| m.files[0].len_bytes += 1, "bytes, found");
    refused(&|m| m.files[0].header_bytes -= 1, "first tensor at byte");
    refused(&|m| drop(m.tensors.remove(2)), "tensor 't2' is not in the manifest");
    refused(&|m| drop(m.tensors.pop()), "tensor 't8' is not in the manifest");
    let more = |m: &mut Manifest| {
        let mut extra = m.tensors[8].clone();
        extra.name = "extra".into();
        m.tensors.push(extra);
    };
    refused(&more, "tensor 'extra' is not in the model");
    refused(&|m| m.tensors[4].name = "else".into(), "tensor 't4' is not in the manifest");
    refused(&|m| m.tensors[4].dtype = "BF16".into(), "tensor 't4': expected 'BF16' [1] of 1 bytes");
    refused(&|m| m.tensors[0].shape = vec![700_001, 1], "tensor 't0': expected 'U8' [700001, 1]");
    refused(&|m| m.tensors[5].offset += 1, "tensor 't5': expected");
    refused(&|m| m.tensors[5].file = 7, "of file 7, found");
    refused(&|m| m.tensors.swap(4, 5), "listed out of the order");

    let model = fixture.model();
    let path = fixture.path.with_extension("json");
    let missing = Manifest::read(&path, &model).unwrap_err();
    assert_eq!((missing.kind(), missing.file()), (ErrorKind::NoManifest, Some(&*path)));
    std::fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert_eq!(Manifest::read(&path, &model).unwrap_err().kind(), ErrorKind::ManifestMismatch);
    let folder = Manifest::read(path.parent().unwrap(), &model).unwrap_err();
    assert_eq!(folder.kind(), ErrorKind::NotARegularFile);
}

#[test]
fn text_that_is_no_manifest_is_refused_by_kind() {
    let fixture = Fixture::new();
    let mut good = Vec::new();
    fixture.manifest(DigestKind::Xxh3).write_to(&mut good).unwrap();
    let good = String::from_utf8(good).unwrap();
    assert!(Manifest::parse(good.as_bytes()).is_ok());
    // Cut anywhere, it is truncated: or, without its last line break, whole.
    for cut in (0..good.len() - 2).step_by(7) {
        let error = Manifest::parse(&good.as_bytes()[..cut]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Truncated, "{cut}: {error}");
    }
    let kind = |text: &str| {
        let error = Manifest::parse(text.as_bytes()).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
        error.kind()
    };
    let with = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        kind(&good.replacen(from, to, 1))
    };
    assert_eq!(with("\"spoc_manifest\":1", "\"spoc_manifest\":2"), ErrorKind::UnsupportedVersion);
    assert_eq!(kind(r#"{"spoc_manifest":99,"all":["else"]}"#), ErrorKind::UnsupportedVersion);
    for (from, to) in [
        ("\"spoc_manifest\":1,", ""),
        ("\"spoc_manifest\":1", "\"spoc_manifest\":-1"),
        ("\"spoc_manifest\":1", "\"spoc_manifest\":1,\"spoc_manifest\":1"),
        ("\"xxh3\"", "\"md5\""),
        ("\"xxh3\"", "\"sha256\""),
        ("\"block_bytes\":262144", "\"block_bytes\":0"),
        ("\"block_bytes\":262144", "\"block_bytes\":262145"),
        ("\"block_bytes\":262144", "\"block_bytes\":18446744073709551615"),
        ("\"block_bytes\":262144", "\"block_bytes\":131072"),
        ("\"header\":\"", "\"header\":\"0"),
        ("\"digest\":\"", "\"digest\":\"G"),
        ("\"blocks\":\"", "\"blocks\":\"00"),
        ("\"blocks\":\"", "\"blocks\":\"é"),
        ("\"bytes\":700001", "\"bytes\":18446744073709551615"),
        ("\"bytes\":700001", "\"bytes\":18446744073709551616"),
        ("\"shape\":[700001]", "\"shape\":[-1]"),
        ("\"shape\":[700001]", "\"shape\":700001"),
        ("\"file\":0", "\"file\":4294967296"),
        ("\"name\":\"t0\"", "\"name\":null"),
        ("\"name\":\"t0\"", "\"name\":\"t0\",\"name\":\"t1\""),
        ("\"name\":\"t0\"", "\"name\":\"t0\",\"more\":1"),
        ("]}", "]} x"),
    ] {
        assert_eq!(with(from, to), ErrorKind::InvalidManifest, "{from} -> {to}");
    }
    let deep = format!("{{\"spoc_manifest\":1,\"files\":{}", "[".repeat(100_000));
    assert!(matches!(kind(&deep), ErrorKind::Truncated | ErrorKind::InvalidManifest));
    assert_eq!(Manifest::parse(b"\xff\xfe").unwrap_err().kind(), ErrorKind::InvalidManifest);
}

#[test]
fn several_files_and_a_folder_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    write_file(&folder.path().join("model-00001-of-00002.safetensors"), "a", &[300_000, 5], 0);
    write_file(&folder.path().join("model-00002-of-00002.safetensors"), "b", &[0], 1);
    let model = open_model(folder.path(), &OpenOptions::default()).unwrap();
    let manifest = Manifest::of(&model, DigestKind::Sha256, &|_| {}).unwrap();
    assert_eq!(manifest.files.len(), 2);
    assert_eq!(manifest.files[1].header_bytes, manifest.files[1].len_bytes, "only an empty tensor");
    assert_eq!(Manifest::default_path(&model), folder.path().join("spoc-manifest.json"));
    manifest.write(&Manifest::default_path(&model)).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3, "nothing temporary stays");
    // The manifest in the folder does not make the folder another model.
    let model = open_model(folder.path(), &OpenOptions::default()).unwrap();
    let digests = Manifest::read(&Manifest::default_path(&model), &model).unwrap();
    let digests = digests.expectations(&model).unwrap();
    assert!(read_all(&model, &digests, IoMode::Auto, None).is_empty());
}

#[test]
fn a_manifest_that_cannot_be_written_leaves_the_old_one_and_nothing_else() {
    let fixture = Fixture::new();
    let manifest = fixture.manifest(DigestKind::Xxh3);
    let error = manifest.write(Path::new("/proc/spoc-manifest.json")).unwrap_err();
    assert_eq!(error.file(), Some(Path::new("/proc/spoc-manifest.json")), "{error}");
    assert!(error.message().contains("manifest"), "{error}");
    // A folder in its place stays, and nothing is made beside it.
    let folder = tempfile::tempdir().unwrap();
    let taken = folder.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    assert_eq!(manifest.write(&taken).unwrap_err().kind(), ErrorKind::NotARegularFile);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn a_manifest_takes_the_place_of_manifests_alone() {
    let fixture = Fixture::new();
    let manifest = fixture.manifest(DigestKind::Xxh3);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Weights, by themselves and through a link; a device, which is never opened.
    std::fs::write(path("weights"), [7; 1000]).unwrap();
    std::os::unix::fs::symlink(path("weights"), path("link")).unwrap();
    for name in ["weights", "link"] {
        let error = manifest.write(&path(name)).unwrap_err();
        assert_eq!((error.kind(), error.file()), (ErrorKind::InvalidArgument, Some(path(name).as_path())));
    }
    assert_eq!(std::fs::read(path("weights")).unwrap(), [7; 1000]);
    assert!(path("link").is_symlink());
    std::os::unix::fs::symlink("/dev/null", path("device")).unwrap();
    assert_eq!(manifest.write(&path("device")).unwrap_err().kind(), ErrorKind::NotARegularFile);
    assert!(path("device").is_symlink());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 3);
    // An empty file, a manifest that somebody indented, and whatever has a manifest's name.
    for (name, bytes) in
        [("empty", &b""[..]), ("old", b"{\n  \"spoc_manifest\": 1"), ("m.spoc-manifest.json", b"torn")]
    {
        std::fs::write(path(name), bytes).unwrap();
        manifest.write(&path(name)).unwrap();
        manifest.write(&path(name)).unwrap();
        assert_eq!(Manifest::parse(&std::fs::read(path(name)).unwrap()).unwrap(), manifest);
    }
}

#[test]
fn a_link_in_the_place_stays_and_what_it_leads_to_is_replaced() {
    let fixture = Fixture::new();
    let manifest = fixture.manifest(DigestKind::Xxh3);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("store")).unwrap();
    std::fs::write(path("store/old"), b"{\"spoc_manifest\":1").unwrap();
    // By way of a second link, named relative to its folder.
    std::os::unix::fs::symlink("store/old", path("second")).unwrap();
    std::os::unix::fs::symlink("second", path("spoc-manifest.json")).unwrap();
    manifest.write(&path("spoc-manifest.json")).unwrap();
    assert!(path("spoc-manifest.json").is_symlink() && path("second").is_symlink());
    assert!(!path("store/old").is_symlink());
    assert_eq!(Manifest::parse(&std::fs::read(path("store/old")).unwrap()).unwrap(), manifest);
    assert_eq!(std::fs::read_dir(path("store")).unwrap().count(), 1, "nothing temporary is left");

    // The link has a manifest's name, and what it leads to is something else; or is not there.
    std::fs::write(path("weights"), [7; 1000]).unwrap();
    std::os::unix::fs::symlink("weights", path("a.spoc-manifest.json")).unwrap();
    std::os::unix::fs::symlink("gone", path("b.spoc-manifest.json")).unwrap();
    std::os::unix::fs::symlink("c.spoc-manifest.json", path("c.spoc-manifest.json")).unwrap();
    let kind = |name: &str| manifest.write(&path(name)).unwrap_err().kind();
    assert_eq!(kind("a.spoc-manifest.json"), ErrorKind::InvalidArgument);
    assert_eq!(std::fs::read(path("weights")).unwrap(), [7; 1000]);
    assert_eq!(kind("b.spoc-manifest.json"), ErrorKind::NotFound);
    assert_eq!(kind("c.spoc-manifest.json"), ErrorKind::IoError);
    assert!(!path("gone").exists());
}

#[test]
fn a_place_that_is_not_written_to_leaves_nothing() {
    let fixture = Fixture::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.json");
    let place = Unwritten::at(&path).unwrap();
    assert!(place.temporary().exists() && !path.exists());
    // Two at once do not meet.
    let other = Unwritten::at(&path).unwrap();
    drop(place);
    assert!(other.temporary().exists());
    other.write(&fixture.manifest(DigestKind::Xxh3)).unwrap();
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().path()).collect();
    assert_eq!(left, [path]);
}
