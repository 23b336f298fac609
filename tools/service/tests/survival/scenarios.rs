//! What happens, and what has to come of it.

use crate::model;
use crate::process::Process;
use crate::roles::{connect, runtime};
use spoc_page::keep::Keeper;
use spoc_proto::v1 as pb;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_stream::StreamExt;

type Scenario = (&'static str, fn(&Host));

const SCENARIOS: [Scenario; 8] = [
    ("a_client_reads_on_while_its_service_is_killed_and_restarted", reads_on),
    ("a_client_that_died_meanwhile_holds_nothing", died_meanwhile),
    ("a_killed_client_holds_nothing", killed),
    ("a_client_in_a_namespace_of_its_own_is_served_and_its_end_is_seen", namespace),
    ("a_replaced_model_file_is_dropped_and_said", replaced),
    ("damaged_records_are_dropped_and_said", damaged),
    ("without_its_keeper_the_service_goes_on_and_a_new_one_gets_everything", keeper_gone),
    ("without_parking_a_restart_begins_clean", clean),
];

/// Runs those whose names hold the first argument that is no option.
pub fn all(args: &[String]) {
    if args.iter().any(|arg| arg == "--list") {
        SCENARIOS.iter().for_each(|(name, _)| println!("{name}: test"));
        return;
    }
    let filter = args.iter().find(|arg| !arg.starts_with("--"));
    for (name, scenario) in SCENARIOS {
        if filter.is_none_or(|filter| name.contains(filter.as_str())) {
            let began = Instant::now();
            scenario(&Host::new());
            println!("test {name} ... ok ({:.1} s)", began.elapsed().as_secs_f64());
        }
    }
}

/// A folder with a model and sockets.
struct Host {
    folder: tempfile::TempDir,
}

/// The image that `load` makes, by its listing.
const MODEL: &str = "weights";

impl Host {
    fn new() -> Host {
        let host = Host { folder: tempfile::tempdir().expect("a folder") };
        let mib = std::env::var("SPOC_SURVIVAL_MIB").ok().and_then(|mib| mib.parse().ok()).unwrap_or(32u64);
        model::write(&host.model(), mib << 20);
        host
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn model(&self) -> PathBuf {
        self.path("weights.safetensors")
    }

    fn socket(&self) -> PathBuf {
        self.path("spoc.sock")
    }

    fn keeper(&self) -> Process {
        let keeper = Process::role(&["keeper", self.path("keep").to_str().expect("text")]);
        keeper.expect("keeping");
        keeper
    }

    /// A service that parks with the keeper, and what it says of its start.
    fn service(&self) -> (Process, String) {
        self.service_with(&format!("keeper:{}", self.path("keep").display()))
    }

    fn service_with(&self, park: &str) -> (Process, String) {
        let service = Process::role(&["service", self.socket().to_str().expect("text"), park]);
        // The driver's own start is nobody's to shorten.
        service.expect("opened");
        let began = Instant::now();
        let told = service.expect("ready");
        self.call(async |mut control| control.get_info(pb::GetInfoRequest {}).await.map(|_| ()))
            .expect("answers");
        let took = began.elapsed();
        println!(
            "    from the opened device to the first answer: {:.1} ms ({told})",
            took.as_secs_f64() * 1e3
        );
        assert!(took < Duration::from_secs(1), "{took:?}");
        (service, told)
    }

    fn call<T>(&self, work: impl AsyncFnOnce(Control) -> T) -> T {
        runtime().block_on(async { work(connect(&self.socket()).await).await })
    }

    /// Registers and loads the model; the image's name.
    fn load(&self) -> String {
        let source = self.model().to_str().expect("text").to_owned();
        self.call(async |mut control| {
            let asked = pb::RegisterModelRequest {
                source,
                name: MODEL.into(),
                ..pb::RegisterModelRequest::default()
            };
            control.register_model(asked).await.expect("registered");
            let asked = pb::LoadRequest { model: MODEL.into(), ..pb::LoadRequest::default() };
            let mut steps = control.load(asked).await.expect("begun").into_inner();
            let mut image = String::new();
            while let Some(step) = steps.next().await {
                if let Some(done) = step.expect("goes on").done {
                    image = done.image;
                }
            }
            image
        })
    }

    fn client(&self, image: &str) -> Process {
        let client = Process::role(&["client", self.socket().to_str().expect("text"), image]);
        println!("    attached {}", client.expect("attached"));
        client.expect("reading");
        client
    }

    fn images(&self) -> Vec<pb::Image> {
        self.call(async |mut control| {
            control.list_images(pb::ListImagesRequest {}).await.expect("listed").into_inner().images
        })
    }

    fn evict(&self, image: &str) -> Result<(), String> {
        let what = Some(pb::evict_request::What::Image(image.to_owned()));
        let evicted =
            self.call(async |mut control| control.evict(pb::EvictRequest { what }).await.map(|_| ()));
        evicted.map_err(|status| status.message().to_owned())
    }

    fn parking_failures(&self) -> u64 {
        let stats =
            self.call(async |mut control| control.get_stats(pb::GetStatsRequest {}).await).expect("told");
        stats.into_inner().counters.get("parking_failures").copied().expect("counted")
    }

    /// Evicts an image as soon as nobody holds it.
    fn evict_soon(&self, image: &str) {
        let began = Instant::now();
        while let Err(error) = self.evict(image) {
            assert!(began.elapsed() < Duration::from_secs(10), "{error}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What is kept, by name, in the namespace that the service chose.
    fn kept(&self) -> Keeper {
        let namespace =
            format!("{:016x}", xxhash_rust::xxh3::xxh3_64(self.socket().as_os_str().as_encoded_bytes()));
        Keeper::connect(&self.path("keep"), &namespace).expect("connected")
    }

    fn kept_names(&self) -> Vec<String> {
        self.kept().all().expect("listed").into_iter().map(|(name, _)| name).collect()
    }
}

type Control = pb::spoc_client::SpocClient<tonic::transport::Channel>;

fn reads_on(host: &Host) {
    let _keeper = host.keeper();
    let (mut service, told) = host.service();
    assert!(told.starts_with("0 models, 0 images, 0 sessions"), "{told}");
    let image = host.load();
    let mut client = host.client(&image);
    service.kill();
    client.ask("read", "same bytes");
    let (mut service, told) = host.service();
    assert!(told.starts_with("1 models, 1 images, 1 sessions, 1 leases"), "{told}");
    assert!(told.ends_with("dropped []"), "{told}");
    client.ask("read", "same bytes");
    assert!(host.evict(&image).expect_err("held").contains("1 leases hold it"));
    println!("    resumed {}", client.ask("resume", "resumed"));
    assert_eq!(client.expect("lost"), "[]");
    let mut other = host.client(&image);
    // Twice: what was adopted is adopted again.
    service.kill();
    other.ask("read", "same bytes");
    let (_service, told) = host.service();
    assert!(told.starts_with("1 models, 1 images, 2 sessions, 2 leases"), "{told}");
    client.ask("read", "same bytes");
    client.ask("release", "released");
    other.ask("release", "released");
    host.evict_soon(&image);
    let names = host.kept_names();
    assert!(
        !names.iter().any(|name| name.starts_with("segment-") || name.starts_with("image-")),
        "{names:?}"
    );
    assert!(names.iter().any(|name| name.starts_with("session-")), "{names:?}");
    drop((client, other));
    let began = Instant::now();
    while host.kept_names().iter().any(|name| name.contains("session-") || name.contains("words-")) {
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", host.kept_names());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn died_meanwhile(host: &Host) {
    let _keeper = host.keeper();
    let (mut service, _) = host.service();
    let image = host.load();
    let mut client = host.client(&image);
    service.kill();
    client.kill();
    let (_service, told) = host.service();
    assert!(told.starts_with("1 models, 1 images, 0 sessions, 0 leases"), "{told}");
    host.evict(&image).expect("nobody holds it");
}

fn killed(host: &Host) {
    let (_service, _) = host.service_with("");
    let image = host.load();
    let mut client = host.client(&image);
    assert!(host.evict(&image).expect_err("held").contains("1 leases hold it"));
    client.kill();
    host.evict_soon(&image);
}

fn namespace(host: &Host) {
    if !Command::new("unshare")
        .args(["--pid", "--fork", "--mount-proc", "true"])
        .output()
        .is_ok_and(|made| made.status.success())
    {
        println!("    left out: no namespace can be made here");
        return;
    }
    let (_service, _) = host.service_with("");
    let image = host.load();
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe().expect("this program"));
    command.args(["client", host.socket().to_str().expect("text"), &image]);
    let mut client = Process::start(command);
    println!("    attached {}", client.expect("attached"));
    client.expect("reading");
    client.ask("read", "same bytes");
    assert!(host.evict(&image).expect_err("held").contains("1 leases hold it"));
    client.kill();
    host.evict_soon(&image);
}

fn replaced(host: &Host) {
    let _keeper = host.keeper();
    let (mut service, _) = host.service();
    let image = host.load();
    let mut client = host.client(&image);
    service.kill();
    let other = host.path("other");
    std::fs::copy(host.model(), &other).expect("copied");
    std::fs::rename(&other, host.model()).expect("replaced");
    let (_service, told) = host.service();
    assert!(told.starts_with("0 models, 0 images, 1 sessions, 0 leases"), "{told}");
    assert!(told.contains("its files are not those that were loaded"), "{told}");
    assert!(host.images().is_empty());
    client.ask("read", "same bytes");
    client.ask("resume", "resumed");
    let lost = client.expect("lost");
    assert!(lost.contains("its image did not outlive the restart"), "{lost}");
    let names = host.kept_names();
    assert!(
        !names.iter().any(|name| name.starts_with("segment-") || name.starts_with("model-")),
        "{names:?}"
    );
    // And it can be loaded again.
    let image = host.load();
    host.client(&image);
}

fn damaged(host: &Host) {
    let _keeper = host.keeper();
    for broken in ["image-", "segment-", "session-", "words-", "model-", "holds-"] {
        let (mut service, _) = host.service();
        let image = host.load();
        let client = host.client(&image);
        service.kill();
        let name = host.kept_names().into_iter().find(|name| name.starts_with(broken)).expect("parked");
        let rubbish = tempfile::tempfile().expect("a file");
        rubbish.set_len(4096).expect("long enough");
        host.kept().put(&name, std::os::fd::AsFd::as_fd(&rubbish)).expect("damaged");
        let (service, told) = host.service();
        let named = match broken {
            "segment-" => "image-1",
            "words-" | "holds-" => "session-1",
            _ => &name,
        };
        assert!(told.contains(named), "{name}: {told}");
        assert!(!told.ends_with("dropped []"), "{told}");
        let images = usize::from(!["image-", "segment-", "model-"].contains(&broken));
        assert_eq!(host.images().len(), images, "{broken}: {told}");
        drop((client, service));
        // The next round begins with nothing.
        let kept = host.kept();
        host.kept_names().iter().for_each(|name| kept.remove(name).expect("let go"));
    }
}

fn keeper_gone(host: &Host) {
    let mut keeper = host.keeper();
    let (mut service, _) = host.service();
    let image = host.load();
    let mut client = host.client(&image);
    keeper.kill();
    // Seen by the service at its next look, and counted.
    let began = Instant::now();
    while host.parking_failures() == 0 {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(host.images().len(), 1);
    client.ask("read", "same bytes");
    let keeper = host.keeper();
    let began = Instant::now();
    let is_whole = |names: &[String]| {
        ["image-", "segment-", "model-", "session-"]
            .iter()
            .all(|part| names.iter().any(|name| name.starts_with(part)))
    };
    while !is_whole(&host.kept_names()) {
        assert!(began.elapsed() < Duration::from_secs(15), "{:?}", host.kept_names());
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(200));
    service.kill();
    let (service, told) = host.service();
    assert!(told.starts_with("1 models, 1 images, 1 sessions, 1 leases"), "{told}");
    client.ask("resume", "resumed");
    assert_eq!(client.expect("lost"), "[]");
    drop((service, keeper));
    let socket = host.socket();
    let failed = Process::role(&[
        "service",
        socket.to_str().expect("text"),
        &format!("keeper:{}", host.path("keep").display()),
    ]);
    failed.expect("opened");
    assert!(
        failed.expect("failed").contains("keeper at"),
        "a service that is to park does not begin without its keeper"
    );
}

fn clean(host: &Host) {
    let (mut first, _) = host.service_with("");
    let image = host.load();
    let mut client = host.client(&image);
    first.kill();
    assert!(is_there(&host.socket()), "a leftover");
    let (service, _) = host.service_with("");
    assert!(host.images().is_empty());
    client.ask("read", "same bytes");
    let second = Process::role(&["service", host.socket().to_str().expect("text"), ""]);
    second.expect("opened");
    let told = second.expect("failed");
    assert!(told.contains("socket_in_use") && told.contains(&service.pid().to_string()), "{told}");
}

fn is_there(path: &Path) -> bool {
    File::open(path).is_ok() || std::fs::symlink_metadata(path).is_ok()
}
