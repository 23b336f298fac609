//! Commands in a memory control group that is smaller than what they would like to have.

#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Place, answer, failure, mixed_tensors, output, safetensors, stderr, tensor};

/// A control group of version 1 with a limit of memory, removed in the end.
struct Group(PathBuf);

impl Group {
    /// The reason why not, where there can be none.
    fn new(limit_bytes: u64) -> Result<Group, String> {
        if !nix::unistd::geteuid().is_root() {
            return Err("only root makes control groups".into());
        }
        let own = std::fs::read_to_string("/proc/self/cgroup").map_err(|error| error.to_string())?;
        let own = own.lines().find_map(|line| line.split_once(":memory:")).map(|(_, path)| path.to_owned());
        let own = own.ok_or("no memory controller of version 1")?;
        let parent = Path::new("/sys/fs/cgroup/memory").join(own.trim_start_matches('/'));
        let path = parent.join(format!("spoc-test-{}-{limit_bytes}", std::process::id()));
        let told = |error: std::io::Error| format!("{}: {error}", path.display());
        std::fs::create_dir(&path).map_err(told)?;
        let group = Group(path.clone());
        std::fs::write(path.join("memory.limit_in_bytes"), limit_bytes.to_string()).map_err(told)?;
        Ok(group)
    }

    /// The same command, inside.
    fn run(&self, command: &Command) -> Command {
        let mut inside = Command::new("sh");
        inside.args(["-c", "echo $$ > \"$GROUP/cgroup.procs\" && exec \"$0\" \"$@\""]);
        inside.arg(command.get_program()).args(command.get_args()).env("GROUP", &self.0);
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What has ended leaves its group a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn the_ring_shrinks_or_is_refused_and_nobody_is_killed() {
    let groups = Group::new(160 << 20).and_then(|narrow| Ok((narrow, Group::new(48 << 20)?)));
    let (narrow, tiny) = match groups {
        Ok(groups) => groups,
        Err(reason) => {
            println!("not run: {reason}");
            return;
        }
    };
    let place = Place::new();
    let path = place.write("m.safetensors", &safetensors(&mixed_tensors(), 0));
    let commands = |more: &[&str]| {
        [
            &["load", "--backend", "native", "--check"][..],
            &["bench", "read"],
            &["bench", "link", "--backend", "native"],
        ]
        .map(|args| {
            let mut command = place.loader();
            command.args(args).args(more);
            if !args.contains(&"link") {
                command.arg(&path);
            }
            command
        })
    };
    for mut command in commands(&["--json"]).map(|command| narrow.run(&command)) {
        let report = answer(&mut command);
        let staging = report["staging_bytes"].as_u64().expect("staging_bytes");
        assert!((1 << 20..=48 << 20).contains(&staging), "{report}");
        let told = stderr(&output(&mut command));
        assert!(told.lines().count() == 1 && told.contains("the staging ring is"), "{told}");
    }
    for command in commands(&["--staging-bytes", "1G"]).map(|command| narrow.run(&command)) {
        let (kind, message) = failure(command, 2);
        assert!(kind == "staging_too_small" && message.contains("needs 1073741824 bytes"), "{message}");
    }
    for mut command in commands(&["--staging-bytes", "16M", "--json"]).map(|command| narrow.run(&command)) {
        let report = answer(&mut command);
        assert_eq!(report["staging_bytes"], 16 << 20, "{report}");
    }
    let mut demo = place.loader();
    demo.arg("demo");
    for command in commands(&[]).iter().chain([&demo]).map(|command| tiny.run(command)) {
        assert_eq!(failure(command, 2).0, "staging_too_small");
    }
    assert!(!place.path("run").exists() || common::files_below(&place.path("run")) == 0);
}

/// Files whose tensors begin in the middle of an element cannot be taken as they lie: their bytes are shifted on the way,
/// a chunk at a time, and never as a second model in memory.
#[test]
fn tensors_that_are_not_aligned_take_the_ring_and_no_second_model() {
    const MODEL_BYTES: usize = 120 << 20;
    let group = match Group::new(MODEL_BYTES as u64 + (72 << 20)) {
        Ok(group) => group,
        Err(reason) => {
            println!("not run: {reason}");
            return;
        }
    };
    let place = Place::new();
    let each = MODEL_BYTES / 8;
    let tensors: Vec<_> =
        (0..8).map(|n| tensor(&format!("t.{n}"), "F32", &[each as u64 / 4], each)).collect();
    // The data begins one byte behind a multiple of everything.
    let odd = |shift: &usize| (safetensors(&tensors, *shift).len() - MODEL_BYTES) % 4 == 1;
    let path = place.write("m.safetensors", &safetensors(&tensors, (0..4).find(odd).expect("a shift")));
    drop(tensors);
    let mut command = place.loader();
    command.args(["load", "--json", "--backend", "native", "--staging-bytes", "16M"]).arg(&path);
    let report = answer(&mut group.run(&command));
    assert_eq!((&report["bytes"], &report["in_place_bytes"]), (&MODEL_BYTES.into(), &0.into()), "{report}");
    assert_eq!(report["stages"]["copied_bytes"], MODEL_BYTES, "{report}");
    assert_eq!(
        report["copied_because"], "a tensor begins in the middle of an element of the file",
        "{report}"
    );
}
