//! The demo, and cachestat looking at it.

#![allow(clippy::expect_used, clippy::panic)]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Place, answer, failure, files_below, output, stderr, stdout};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// A process that is ended when the test is, stopped or not.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts"))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).expect("pid"))
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("signal");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(60) {
        if let Some(found) = ask() {
            return found;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen within a minute");
}

fn slow_demo(place: &Place) -> Command {
    let mut command = place.loader();
    command.args(["demo", "--rounds", "1000", "--pace-ms", "5"]);
    command
}

fn once(place: &Place, pid: Pid) -> Option<Value> {
    let run = output(place.cachestat().args([&pid.to_string(), "--once", "--json"]));
    run.status.success().then(|| serde_json::from_str(&stdout(&run)).expect("JSON"))
}

#[test]
fn the_demo_proves_itself_and_cleans_up() {
    let place = Place::new();
    let answer = answer(place.loader().args(["demo", "--json", "--rounds", "3", "--slots", "8"]));
    assert_eq!(answer["check"]["equal"], true, "{answer}");
    assert!(answer["bytes"].as_u64().is_some_and(|bytes| bytes >= 200_000_000), "{answer}");
    assert_eq!(answer["tensors"], 36);
    let cache = &answer["cache"];
    let count = |key: &str| cache[key].as_u64().unwrap_or_else(|| panic!("{key} in {answer}"));
    assert_eq!(count("hits") + count("misses"), 3 * 12);
    assert_eq!(count("evictions"), count("misses") - 8);
    assert!(count("hits") > 0, "cycle has no cliff: {answer}");
    assert!(answer["load"]["io_path"].is_string() && answer["load"]["io_path_reason"].is_string());
    assert!(answer["load"]["stages"].is_object());
    assert!(answer["load"]["gb_per_s"].as_f64().is_some_and(|rate| rate > 0.0));
    assert_eq!(files_below(&place.path("run")), 0, "the statistics page is gone");
    let left: Vec<_> =
        std::fs::read_dir(place.path("")).unwrap().map(|item| item.unwrap().file_name()).collect();
    assert_eq!(left, ["run"], "the model is gone");
}

#[test]
fn lru_falls_off_its_cliff() {
    let place = Place::new();
    let answer =
        answer(place.loader().args(["demo", "--json", "--rounds", "2", "--slots", "11", "--policy", "lru"]));
    assert_eq!(answer["cache"]["hits"], 0, "{answer}");
}

fn is_ignored(signal: Signal) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).expect("SigIgn");
    u64::from_str_radix(mask.trim(), 16).expect("hex") >> (signal as i32 - 1) & 1 == 1
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    let place = Place::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        if is_ignored(signal) {
            println!("not run: whoever started this test ignores {signal}, and so does the demo then");
            continue;
        }
        let running = Running::start(&mut slow_demo(&place));
        wait_for("the model's folder", || (files_below(&place.path("")) > 1).then_some(()));
        std::thread::sleep(Duration::from_millis(100));
        running.signal(signal);
        let mut running = running;
        let status = running.0.wait().expect("ends");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(signal as i32));
        assert_eq!(files_below(&place.path("run")), 0);
        assert_eq!(files_below(&place.path("")), usize::from(place.path("run").exists()));
    }
}

/// What is left in a place when the model and the page are gone.
fn left_in(place: &Place) -> Vec<std::ffi::OsString> {
    assert_eq!(files_below(&place.path("run")), 0, "the statistics page is gone");
    let names = std::fs::read_dir(place.path("")).expect("list").map(|item| item.expect("item").file_name());
    names.filter(|name| name != "run").collect()
}

#[test]
fn a_demo_whose_output_fails_leaves_nothing() {
    let place = Place::new();
    // Read one line and leave, as `head -1` does.
    let mut running = Running::start(place.loader().args(["demo", "--rounds", "1"]));
    let mut first = String::new();
    BufReader::new(running.0.stdout.take().expect("pipe")).read_line(&mut first).expect("a line");
    assert!(first.starts_with("wrote"), "{first}");
    assert_eq!(running.0.wait().expect("ends").code(), Some(141));
    assert!(left_in(&place).is_empty(), "{:?}", left_in(&place));

    for json in [false, true] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let mut command = place.loader();
        command.args(["demo", "--rounds", "1"]).args(json.then_some("--json")).stdout(full);
        let run = output(&mut command);
        assert_eq!(run.status.code(), Some(2));
        let told = stderr(&run);
        assert!(told.starts_with("error: standard output: ") && told.lines().count() == 1, "{told}");
        assert!(left_in(&place).is_empty(), "{:?}", left_in(&place));
    }
}

#[test]
fn signals_that_were_ignored_stay_ignored() {
    let place = Place::new();
    let slow = slow_demo(&place);
    // As `nohup` and a shell's `&` start programs.
    let mut ignoring = Command::new("sh");
    ignoring
        .args(["-c", "trap '' HUP INT; exec \"$0\" \"$@\""])
        .arg(slow.get_program())
        .args(slow.get_args());
    for (name, value) in slow.get_envs() {
        match value {
            Some(value) => ignoring.env(name, value),
            None => ignoring.env_remove(name),
        };
    }
    let mut running = Running::start(&mut ignoring);
    wait_for("a page", || once(&place, running.pid()));
    for signal in [Signal::SIGHUP, Signal::SIGINT] {
        running.signal(signal);
        std::thread::sleep(Duration::from_millis(200));
        assert!(running.0.try_wait().expect("asks").is_none(), "{signal} ended it");
    }
    running.signal(Signal::SIGTERM);
    let status = running.0.wait().expect("ends");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(Signal::SIGTERM as i32));
    assert!(left_in(&place).is_empty(), "{:?}", left_in(&place));
}

#[test]
fn cachestat_shows_every_view_of_a_demo() {
    let place = Place::new();
    let running = Running::start(&mut slow_demo(&place));
    let pid = running.pid();
    let busy = |stat: &Value| stat["evictions"].as_u64().is_some_and(|evictions| evictions > 12);
    let stat = wait_for("a busy cache", || once(&place, pid).filter(busy));
    let before = place.write("before.json", stat.to_string().as_bytes());
    let pid = pid.to_string();
    let views: [(&[&str], &str); 7] = [
        (&["map"], "FROM GROUP"),
        (&["hot", "-n", "3"], "IDLE_S"),
        (&["why", "0/3"], "an acquire"),
        (&["misses"], "requested:"),
        (&["advise"], "found with 9 slots so far"),
        (&["slots"], "LAST USE"),
        (&["diff", before.to_str().expect("UTF-8")], "DIFFERENCE"),
    ];
    for (view, said) in views {
        let run = |more: &[&str]| {
            let run = output(place.cachestat().args(view).arg(&pid).args(more));
            assert!(run.status.success(), "{view:?}: {}", stderr(&run));
            stdout(&run)
        };
        assert!(run(&[]).contains(said), "{view:?}: {}", run(&[]));
        let value: Value = serde_json::from_str(&run(&["--json"])).expect("one JSON value");
        assert!(value.is_object(), "{view:?}");
        let csv = run(&["--csv"]);
        let columns = csv.lines().next().expect("a header").split(',').count();
        assert!(columns >= 4 && csv.lines().count() > 1, "{view:?}: {csv}");
    }
    let misses: Value = answer(place.cachestat().args(["misses", &pid, "--json"]));
    assert_eq!(misses["rows"][0]["count"], 12, "every layer was new once: {misses}");
    let csv = stdout(&output(place.cachestat().args([&pid, "0.1", "2", "--csv"])));
    let fields: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
    assert!(fields.len() == 3 && fields.iter().all(|&count| count == fields[0]), "{csv}");
    let wrong = output(place.cachestat().args(["why", "x", &pid]));
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn cachestat_watches_several_processes_on_one_screen() {
    let place = Place::new();
    let running = [Running::start(&mut slow_demo(&place)), Running::start(&mut slow_demo(&place))];
    for process in &running {
        wait_for("a page", || once(&place, process.pid()));
    }
    let pids: Vec<u32> = running.iter().map(|process| process.0.id()).collect();
    let all = answer(place.cachestat().args(["top", "--once", "--json"]));
    let mut seen: Vec<u64> =
        all["pages"].as_array().expect("pages").iter().filter_map(|page| page["pid"].as_u64()).collect();
    seen.sort_unstable();
    let mut expected: Vec<u64> = pids.iter().map(|&pid| pid.into()).collect();
    expected.sort_unstable();
    assert_eq!(seen, expected, "{all}");
    let list = answer(place.cachestat().args(["list", "--json"]));
    assert_eq!(list["rows"].as_array().map(Vec::len), Some(2), "{list}");
    let one = output(place.cachestat().args(["top", "--once", &pids[1].to_string()]));
    assert!(
        stdout(&one).contains(" 1 page,") && stdout(&one).contains(&pids[1].to_string()),
        "{}",
        stdout(&one)
    );
    let (kind, _) = failure(command(&place, &["top", "--once", "nobody"]), 2);
    assert_eq!(kind, "no_target");
    let (kind, message) = failure(command(&place, &["top"]), 2);
    assert!(kind == "usage" && message.contains("--once"), "{message}");
}

fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.cachestat();
    command.args(args);
    command
}

#[test]
fn cachestat_sees_a_demo_even_when_it_is_stopped() {
    let place = Place::new();
    let running = Running::start(&mut slow_demo(&place));
    let pid = running.pid();
    let busy = |stat: &Value| stat["misses"].as_u64().is_some_and(|misses| misses > 12);
    let stat = wait_for("a busy cache", || once(&place, pid).filter(busy));
    for key in
        ["hits", "loads", "mb_per_s", "stall_ms_per_s", "evictions", "in_flight", "leased", "free", "slots"]
    {
        assert!(stat[key].is_number(), "{key}: {stat}");
    }
    assert_eq!(stat["command"], "spoc-loader");
    assert_eq!(stat["slots"], 9);

    let lines = output(place.cachestat().args(["spoc-loader", "0.1", "3"]));
    let text = stdout(&lines);
    assert!(lines.status.success(), "{}", stderr(&lines));
    let columns: Vec<&str> = text.lines().next().expect("header").split_whitespace().collect();
    assert_eq!(
        columns,
        ["HITS", "MISS", "HIT%", "LOADS", "MB/s", "STALL", "EVICT", "INFLIGHT", "LEASED", "FREE/SLOTS"]
    );
    assert_eq!(text.lines().count(), 4, "{text}");

    running.signal(Signal::SIGSTOP);
    let stopped = format!("/proc/{pid}/stat");
    wait_for("the stop", || std::fs::read_to_string(&stopped).ok().filter(|stat| stat.contains(") T ")));
    let first = once(&place, pid).expect("readable while stopped");
    let second = once(&place, pid).expect("readable while stopped");
    assert_eq!(first["counters"], second["counters"], "nothing moves");
    let slots = answer(place.cachestat().args(["slots", "--json"]));
    let slots = slots["slots"].as_array().expect("slots");
    assert_eq!(slots.len(), 9);
    assert!(
        slots.iter().any(|slot| slot["state"] == "resident" && slot["uses"].as_u64() > Some(0)),
        "{slots:?}"
    );

    running.signal(Signal::SIGKILL);
    drop(running);
    let (kind, _) = failure(with(place.cachestat(), &[&pid.to_string()]), 2);
    assert_eq!(kind, "no_target");
    assert_eq!(files_below(&place.path("run")), 0, "the page of a killed process is cleared away");
}

fn with(mut command: Command, args: &[&str]) -> Command {
    command.args(args);
    command
}

#[test]
fn no_target_and_wrong_version_have_their_exit_codes() {
    let place = Place::new();
    let (kind, message) = failure(place.cachestat(), 2);
    assert_eq!(kind, "no_target");
    assert!(message.contains("none in"), "{message}");

    std::fs::create_dir(place.path("run")).unwrap();
    let page = spoc_page::Page::create_in(&place.path("run"), 4096).expect("page");
    let store = spoc_cache::stats::layout::MAGIC;
    page.words()[spoc_cache::stats::layout::H_VERSION].store(999, std::sync::atomic::Ordering::Relaxed);
    page.words()[0].store(store, std::sync::atomic::Ordering::Release);
    page.publish().expect("publish");
    let own = std::process::id().to_string();
    let (kind, message) = failure(with(place.cachestat(), &[&own, "--once"]), 3);
    assert_eq!(kind, "version_mismatch");
    assert!(message.contains("999"), "{message}");
    let (kind, message) = failure(with(place.cachestat(), &["somebody-else"]), 2);
    assert_eq!(kind, "no_target");
    assert!(message.contains(&own), "what was found is listed: {message}");

    page.words()[0].store(7, std::sync::atomic::Ordering::Release);
    assert_eq!(failure(with(place.cachestat(), &[&own, "--once"]), 2).0, "damaged_page");
}

#[test]
fn pages_of_lengths_that_none_has_are_damaged() {
    use nix::fcntl::{Flock, FlockArg};
    let place = Place::new();
    std::fs::create_dir(place.path("run")).expect("folder");
    let process = spoc_page::ProcessIdentity::current().expect("identity");
    let path = place.path("run").join(spoc_page::PageName { process, number: 0 }.to_string());
    for len_bytes in [0, 8, 12, 4096, 1 << 31] {
        let file = std::fs::File::create(&path).expect("create");
        file.set_len(len_bytes).expect("length");
        let held = Flock::lock(file, FlockArg::LockExclusiveNonblock).expect("lock");
        for args in [&["--once"][..], &["slots"], &[]] {
            let (kind, message) = failure(with(place.cachestat(), args), 2);
            assert_eq!(kind, "damaged_page", "{len_bytes}: {message}");
            assert_eq!(message.matches(".page").count(), 1, "{len_bytes}: {message}");
        }
        drop(held);
    }
}

#[test]
fn watching_ends_with_the_process() {
    let place = Place::new();
    let mut demo = Running::start(&mut slow_demo(&place));
    let pid = demo.pid();
    wait_for("a page", || once(&place, pid));
    let mut watching = Running::start(place.cachestat().args([&pid.to_string(), "0.05"]));
    let mut lines = BufReader::new(watching.0.stdout.take().expect("pipe")).lines();
    assert!(lines.next().expect("header").expect("line").contains("HITS"));
    demo.signal(Signal::SIGKILL);
    demo.0.wait().expect("ends");
    assert_eq!(watching.0.wait().expect("ends").code(), Some(0));
    let mut told = String::new();
    watching.0.stderr.take().expect("pipe").read_to_string(&mut told).expect("text");
    assert!(told.contains("has ended"), "{told}");
}
