//! The C programs of this package, built by the system's compiler against the libraries that users get, and run.

#![allow(clippy::expect_used, clippy::panic, clippy::print_stderr)] // helpers of tests are tests

use spoc_io::{Dtype, SafetensorsHeader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The system's C compiler, or none.
fn compiler() -> Option<&'static str> {
    static FOUND: OnceLock<Option<&'static str>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let works =
            |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
        ["cc", "gcc", "clang"].into_iter().find(works)
    })
}

fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// The folder with `libspoc_cache.so` and `libspoc_cache.a`: no test depends on them, so cargo is asked for them.
fn libraries() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("a target folder");
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(package()).args(["build", "--offline", "--lib", "--target-dir"]).arg(target);
        if !cfg!(debug_assertions) {
            cargo.arg("--release");
        }
        run(&mut cargo);
        target.join(if cfg!(debug_assertions) { "debug" } else { "release" })
    };
    BUILT.get_or_init(build).clone()
}

/// Builds a program and links it, by name or by file.
fn build(compiler: &str, source: &str, folder: &Path, static_library: bool) -> PathBuf {
    let (library, program) = (libraries(), folder.join("program"));
    let mut cc = Command::new(compiler);
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-O1", "-g", "-pthread"]);
    cc.arg("-I").arg(package().join("include")).arg(package().join(source)).arg("-o").arg(&program);
    if static_library {
        cc.arg(library.join("libspoc_cache.a")).args(["-ldl", "-lm"]);
    } else {
        let mut rpath = std::ffi::OsString::from("-Wl,-rpath,");
        rpath.push(&library);
        cc.arg("-L").arg(&library).arg("-lspoc_cache").arg(rpath);
    }
    run(&mut cc);
    program
}

/// A safetensors file of byte tensors: embeddings, layers, a head.
fn write_model(folder: &Path, layers: usize, bytes: usize) -> PathBuf {
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), bytes / 2)];
    for layer in 0..layers {
        tensors.push((format!("model.layers.{layer}.mlp.weight"), bytes));
        tensors.push((format!("model.layers.{layer}.norm.weight"), 129));
    }
    tensors.push(("lm_head.weight".to_owned(), bytes / 4));
    let mut header = SafetensorsHeader::new();
    for (name, len) in &tensors {
        header.add(name, Dtype::U8, &[*len as u64]).expect("a tensor");
    }
    let mut file = header.bytes();
    let mut state = 1u32;
    file.extend((0..header.data_bytes()).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    }));
    let path = folder.join("model.safetensors");
    std::fs::write(&path, file).expect("the model can be written");
    path
}

/// Runs `check` with a C compiler, or says that there is none.
fn with_compiler(check: impl FnOnce(&str)) {
    match compiler() {
        Some(compiler) => check(compiler),
        None => eprintln!("not run: the C programs (no cc, gcc or clang)"),
    }
}

#[test]
fn the_example_streams_and_compares() {
    with_compiler(|compiler| {
        let folder = tempfile::tempdir().expect("a folder");
        let model = write_model(folder.path(), 9, 300_000);
        let program = build(compiler, "examples/stream.c", folder.path(), false);
        let output = run(Command::new(&program).arg(&model).args(["native", "3"]));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("device native:0 "), "{text}");
        assert!(text.contains("model 20 tensors in 11 groups, 2926161 bytes\n"), "{text}");
        assert!(text.contains("streamed 33 groups through 3 slots: "), "{text}");
        assert!(text.ends_with("equal 2926161 bytes\n"), "{text}");
        let evictions = text.split(" misses, ").nth(1).and_then(|rest| rest.split(' ').next());
        assert!(evictions.and_then(|n| n.parse::<u32>().ok()).is_some_and(|n| n >= 8), "{text}");

        let output = Command::new(&program).arg(folder.path().join("none")).output().expect("it runs");
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("not_found: "), "{output:?}");
    });
}

#[test]
fn misuse_is_answered_with_codes_from_the_static_library_too() {
    with_compiler(|compiler| {
        let folder = tempfile::tempdir().expect("a folder");
        let model = write_model(folder.path(), 4, 2_000_000);
        let program = build(compiler, "tests/misuse.c", folder.path(), true);
        let output = run(Command::new(&program).arg(&model));
        assert_eq!(String::from_utf8_lossy(&output.stdout), "no failures\n", "{output:?}");
    });
}
