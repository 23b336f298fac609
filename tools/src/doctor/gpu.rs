//! GPUs on the PCI bus: kernel modules, device nodes, link, BAR, NUMA node.

use nix::unistd::{AccessFlags, access};

use super::{Finding, Status, System};
use crate::units;

const PCI: &str = "/sys/bus/pci/devices";
/// Cards without resizable BAR show this window, whatever their memory.
const SMALL_BAR_BYTES: u64 = 256 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vendor {
    Nvidia,
    Amd,
    Intel,
}

impl Vendor {
    fn name(self) -> &'static str {
        match self {
            Vendor::Nvidia => "NVIDIA",
            Vendor::Amd => "AMD",
            Vendor::Intel => "Intel",
        }
    }
}

#[derive(Debug)]
struct Gpu {
    /// The address on the bus, `0000:01:00.0`.
    slot: String,
    vendor: Vendor,
}

pub(super) fn findings(system: &System) -> Vec<Finding> {
    let gpus = gpus(system);
    let has = |vendor| gpus.iter().any(|gpu| gpu.vendor == vendor);
    let (nvidia, amd) = (has(Vendor::Nvidia), has(Vendor::Amd));
    let mut findings = vec![
        module(system, "nvidia", nvidia, "install NVIDIA's driver, then: sudo modprobe nvidia"),
        module(system, "nvidia_uvm", nvidia, "sudo modprobe nvidia_uvm"),
        nvidia_fs(system, nvidia),
        module(system, "amdgpu", amd, "sudo modprobe amdgpu"),
        kfd(system, amd),
    ];
    if nvidia || system.exists("/dev/nvidiactl") {
        for node in ["/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"] {
            findings.push(node_access(
                system,
                node,
                "run nvidia-modprobe -u -c 0; in a container: --gpus all",
            ));
        }
    }
    if amd || system.exists("/dev/kfd") {
        findings.push(node_access(
            system,
            "/dev/kfd",
            "sudo usermod -aG render $USER; in a container: --device /dev/kfd",
        ));
    }
    findings.extend(render_nodes(system));
    if gpus.is_empty() {
        findings.push(match system.exists(PCI) {
            true => Finding::ok("gpu", "none on the PCI bus; the native backend uses host memory"),
            false => Finding::unknown("gpu", "the PCI bus cannot be read", "mount /sys"),
        });
    }
    let nodes =
        system.names("/sys/devices/system/node").iter().filter(|name| name.starts_with("node")).count();
    for gpu in &gpus {
        findings.extend([link(system, gpu), bar(system, gpu), numa_node(system, gpu, nodes)]);
    }
    findings
}

/// Display controllers (class 03) and processing accelerators (class 12) of vendors with a compute API.
fn gpus(system: &System) -> Vec<Gpu> {
    let slots = system.names(PCI).into_iter();
    slots
        .filter_map(|slot| {
            let class = system.text(&format!("{PCI}/{slot}/class"))?;
            if !class.starts_with("0x03") && !class.starts_with("0x12") {
                return None;
            }
            let vendor = match system.text(&format!("{PCI}/{slot}/vendor"))?.as_str() {
                "0x10de" => Vendor::Nvidia,
                "0x1002" => Vendor::Amd,
                "0x8086" => Vendor::Intel,
                _ => return None,
            };
            Some(Gpu { slot, vendor })
        })
        .collect()
}

fn loaded(system: &System, module: &str) -> Option<String> {
    let folder = format!("/sys/module/{module}");
    system.exists(&folder).then(|| match system.text(&format!("{folder}/version")) {
        Some(version) => format!("loaded, version {version}"),
        None => "loaded".to_owned(),
    })
}

fn module(system: &System, module: &str, needed: bool, fix: &str) -> Finding {
    let check = format!("module.{module}");
    match (loaded(system, module), needed) {
        (Some(found), _) => Finding::ok(check, found),
        (None, false) => Finding::ok(check, "not loaded; no such GPU here"),
        (None, true) => Finding::fail(check, "not loaded", fix),
    }
}

/// Only GPUDirect Storage uses it, and spoc stages through pinned memory, so its absence is worth a word, not a fix.
fn nvidia_fs(system: &System, nvidia: bool) -> Finding {
    match (loaded(system, "nvidia_fs"), nvidia) {
        (Some(found), _) => Finding::ok("module.nvidia_fs", format!("{found}; not used by spoc")),
        (None, true) => {
            Finding::ok("module.nvidia_fs", "not loaded; not needed (reads are staged in pinned memory)")
        }
        (None, false) => Finding::ok("module.nvidia_fs", "not loaded; no such GPU here"),
    }
}

/// The compute side of amdgpu; it shows itself as a class, not as a module of its own.
fn kfd(system: &System, amd: bool) -> Finding {
    match (system.exists("/sys/class/kfd"), amd) {
        (true, _) => Finding::ok("module.kfd", "present"),
        (false, false) => Finding::ok("module.kfd", "not present; no such GPU here"),
        (false, true) => Finding::fail(
            "module.kfd",
            "not present",
            "use a kernel with CONFIG_HSA_AMD, then: sudo modprobe amdgpu",
        ),
    }
}

fn node_access(system: &System, node: &str, fix: &str) -> Finding {
    let check = format!("node.{}", node.trim_start_matches("/dev/"));
    match access(&system.path(node), AccessFlags::R_OK | AccessFlags::W_OK) {
        Ok(()) => Finding::ok(check, "readable and writable"),
        Err(nix::Error::ENOENT) => Finding::fail(check, format!("{node} does not exist"), fix),
        Err(errno) => Finding::fail(check, format!("{node}: {}", errno.desc()), fix),
    }
}

/// Vulkan, HIP and OpenCL open these.
fn render_nodes(system: &System) -> Vec<Finding> {
    let nodes = system.names("/dev/dri").into_iter().filter(|name| name.starts_with("renderD"));
    nodes
        .map(|name| {
            node_access(
                system,
                &format!("/dev/dri/{name}"),
                "sudo usermod -aG render $USER; in a container: --device /dev/dri",
            )
        })
        .collect()
}

fn check_of(gpu: &Gpu, what: &str) -> String {
    format!("gpu.{}.{what}", gpu.slot)
}

fn link(system: &System, gpu: &Gpu) -> Finding {
    let check = check_of(gpu, "link");
    let read = |name: &str| system.text(&format!("{PCI}/{}/{name}", gpu.slot));
    let width = |name: &str| read(name)?.parse::<u32>().ok();
    let (Some(speed), Some(speed_max)) = (read("current_link_speed"), read("max_link_speed")) else {
        return Finding::unknown(
            check,
            format!("{} GPU shows no link", gpu.vendor.name()),
            "spoc-loader bench link",
        );
    };
    let (Some(lanes), Some(lanes_max)) = (width("current_link_width"), width("max_link_width")) else {
        return Finding::unknown(
            check,
            format!("{} GPU shows no link width", gpu.vendor.name()),
            "spoc-loader bench link",
        );
    };
    let found = format!("{}: {speed} ×{lanes} of {speed_max} ×{lanes_max}", gpu.vendor.name());
    // Virtual machines and integrated GPUs often show ×0 or ×255.
    if lanes == 0 || lanes > 32 {
        return Finding::unknown(check, found, "spoc-loader bench link");
    }
    if lanes < lanes_max {
        let fix = "put the card in a slot with all lanes, or change the slot's bifurcation in the firmware";
        return Finding::warn(check, found, fix);
    }
    if speed != speed_max {
        // An idle GPU lowers its link speed, so only a measurement under load tells.
        return Finding::unknown(check, format!("{found} (lower when idle)"), "spoc-loader bench link");
    }
    Finding::ok(check, found)
}

/// The largest region in `resource` (lines of start, end, flags).
fn largest_region_bytes(resource: &str) -> Option<u64> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let sizes = resource.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = (hex(fields.next()?)?, hex(fields.next()?)?);
        (end > start).then(|| end - start + 1)
    });
    sizes.max()
}

fn bar(system: &System, gpu: &Gpu) -> Finding {
    let check = check_of(gpu, "bar");
    let resource = system.text(&format!("{PCI}/{}/resource", gpu.slot));
    let fix = "enable Above 4G Decoding and Resizable BAR in the firmware";
    match resource.as_deref().and_then(largest_region_bytes) {
        None => Finding::unknown(check, "cannot be read", fix),
        Some(size) if size > SMALL_BAR_BYTES => Finding::ok(check, units::bytes(size)),
        Some(size) => {
            let found = format!("{}: the host sees device memory through a small window", units::bytes(size));
            Finding::new(check, Status::Warn, found).fix(fix)
        }
    }
}

fn numa_node(system: &System, gpu: &Gpu, nodes: usize) -> Finding {
    let check = check_of(gpu, "numa");
    match system.text(&format!("{PCI}/{}/numa_node", gpu.slot)).and_then(|text| text.parse::<i32>().ok()) {
        Some(node) if node >= 0 => Finding::ok(check, format!("node {node}")),
        Some(_) if nodes <= 1 => Finding::ok(check, "one node"),
        _ => Finding::unknown(
            check,
            "the firmware does not say",
            "set the device's node with numactl --cpunodebind",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn machine(dir: &Path, files: &[(&str, &str)]) -> System {
        for (path, text) in files {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
            std::fs::write(path, text).expect("write");
        }
        System::at(dir)
    }

    fn find<'a>(findings: &'a [Finding], check: &str) -> &'a Finding {
        findings
            .iter()
            .find(|finding| finding.check == check)
            .unwrap_or_else(|| panic!("{check} in {findings:?}"))
    }

    const CARD: &str = "sys/bus/pci/devices/0000:01:00.0";

    #[test]
    fn a_card_without_its_driver_fails_with_one_fix() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let at = |name: &str| format!("{CARD}/{name}");
        let files = [
            (at("class"), "0x030200\n"),
            (at("vendor"), "0x10de\n"),
            (at("current_link_speed"), "32.0 GT/s PCIe\n"),
            (at("max_link_speed"), "32.0 GT/s PCIe\n"),
            (at("current_link_width"), "8\n"),
            (at("max_link_width"), "16\n"),
            (
                at("resource"),
                "0x0000000080000000 0x0000000080ffffff 0x40200\n0x0 0x0 0x0\n0x2000000000 0x200fffffff 0x14220c\n",
            ),
            (at("numa_node"), "1\n"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let findings = findings(&machine(dir.path(), &files));
        let nvidia = find(&findings, "module.nvidia");
        assert_eq!(nvidia.status, Status::Fail);
        assert!(nvidia.fix.as_deref().is_some_and(|fix| fix.contains("modprobe nvidia")));
        assert_eq!(find(&findings, "module.amdgpu").status, Status::Ok);
        assert_eq!(find(&findings, "node.nvidiactl").status, Status::Fail);
        assert_eq!(find(&findings, "gpu.0000:01:00.0.link").status, Status::Warn);
        assert_eq!(find(&findings, "gpu.0000:01:00.0.bar").status, Status::Warn);
        assert_eq!(find(&findings, "gpu.0000:01:00.0.numa").found, "node 1");
    }

    #[test]
    fn a_machine_without_gpus_is_fine() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let files = [
            ("sys/bus/pci/devices/0000:00:01.0/class", "0x060000"),
            ("sys/bus/pci/devices/0000:00:01.0/vendor", "0x8086"),
        ];
        let findings = findings(&machine(dir.path(), &files));
        assert!(
            findings.iter().all(|finding| finding.status == Status::Ok && finding.fix.is_none()),
            "{findings:?}"
        );
    }

    #[test]
    fn the_largest_region_counts() {
        assert_eq!(
            largest_region_bytes("0x0 0x0 0x0\n0x1000 0x1fff 0x1\n0x4000000000 0x7fffffffff 0x2"),
            Some(1 << 38)
        );
        assert_eq!(largest_region_bytes(""), None);
    }
}
