//! Compiled kernels on disk, as OpenCL's and Vulkan's devices use them: the next process takes what is there, and
//! compiles again what is damaged.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stderr)]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use spoc_driver::{
    Arguments, BackendKind, DeviceVector, ElementKind, Grid, Kernel, KindRule, Language, Parameter, Source,
};

const KIND: &str = "SPOC_TEST_KIND";
const TEXT: &str = "
@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
@compute @workgroup_size(4)
fn tripled(@builtin(global_invocation_id) id: vec3<u32>) {
    out[id.x] = 3u * x[id.x];
}";

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The files by name, with the number of each, which another file under the name does not have, and its length.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, u64)> {
    let file = |entry: fs::DirEntry| {
        let found = entry.metadata().unwrap();
        (entry.path(), (found.ino(), found.len()))
    };
    fs::read_dir(folder).unwrap().map(|entry| file(entry.unwrap())).collect()
}

/// Launches on every device of the backend in a process of its own, whose kernels are kept in the folder.
fn launch_elsewhere(kind: BackendKind, folder: &Path) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "the_other_process", "--ignored"])
        .env("SPOC_KERNEL_CACHE", folder)
        .env(KIND, kind.as_str())
        .output()
        .unwrap();
    assert!(output.status.success(), "{kind}: {}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn what_is_kept_is_taken_and_what_is_damaged_is_compiled_again() {
    for kind in [BackendKind::OpenCl, BackendKind::Vulkan] {
        let devices = common::devices(kind).len();
        if devices == 0 {
            continue;
        }
        let name = format!("spoc-kept-{kind}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        launch_elsewhere(kind, &folder.0);
        let kept = files(&folder.0);
        assert!(!kept.is_empty() && kept.len() <= devices, "{kind}: {kept:?} for {devices} devices");
        launch_elsewhere(kind, &folder.0);
        assert_eq!(files(&folder.0), kept, "{kind}: what was kept was made again");
        for (path, (_, len_bytes)) in &kept {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len_bytes / 2).unwrap();
        }
        launch_elsewhere(kind, &folder.0);
        let again = files(&folder.0);
        assert!(again.keys().eq(kept.keys()), "{kind}: {again:?}");
        for (path, (_, len_bytes)) in &again {
            assert!(*len_bytes > kept[path].1 / 2, "{kind}: {} is still cut", path.display());
        }
    }
}

#[test]
#[ignore = "what what_is_kept_is_taken_and_what_is_damaged_is_compiled_again starts"]
fn the_other_process() {
    let Ok(name) = std::env::var(KIND) else { return };
    let kind =
        [BackendKind::OpenCl, BackendKind::Vulkan].into_iter().find(|kind| kind.as_str() == name).unwrap();
    let source =
        Source { language: Language::Wgsl, text: Arc::from(TEXT.as_bytes()), entry: "tripled".to_owned() };
    let words = KindRule::Exactly(ElementKind::U32);
    let parameters = [Parameter::read(words), Parameter::write(words)];
    // SAFETY: four threads, four numbers each way.
    let kernel = unsafe { Kernel::from_sources("tripled", &parameters, vec![source]) }.unwrap();
    for device in common::devices(kind) {
        let from = DeviceVector::<u32>::allocate(&device, 4).unwrap();
        let mut to = DeviceVector::<u32>::allocate(&device, 4).unwrap();
        from.write(0, &[1, 2, 3, 4]).unwrap();
        let grid = Grid { groups: [1; 3], group: [4, 1, 1] };
        device.launch(&kernel, grid, &Arguments::new().read_view(&from).write_view(&mut to)).unwrap();
        device.flush().unwrap();
        let mut words = [0; 4];
        to.read(0, &mut words).unwrap();
        assert_eq!(words, [3, 6, 9, 12], "{}", device.info().name);
    }
}
