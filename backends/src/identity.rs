//! Names of what has none of its own, and what the CPU is called.

use std::fs;

use spoc_driver::DeviceUuid;

/// What drives the devices that are the CPU.
pub(crate) const OURS: &str = concat!("spoc ", env!("CARGO_PKG_VERSION"));

const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A UUID that this machine keeps: derived from its id, or from the boot's where it has none.
pub(crate) fn uuid(index: u32) -> DeviceUuid {
    derived_uuid(&format!("native {index}"))
}

/// A UUID for what has none of its own: the same for the same words on this machine.
pub(crate) fn derived_uuid(words: &str) -> DeviceUuid {
    let machine = first_line(&MACHINE_ID).or_else(|| first_line(&[BOOT_ID])).unwrap_or_default();
    DeviceUuid(digest(&format!("spoc {} {words}", machine.trim())).to_be_bytes())
}

/// Whether the machine has an id that outlives a restart.
pub(crate) fn has_machine_id() -> bool {
    first_line(&MACHINE_ID).is_some()
}

fn first_line(paths: &[&str]) -> Option<String> {
    paths.iter().find_map(|path| fs::read_to_string(path).ok().filter(|text| !text.trim().is_empty()))
}

/// FNV-1a with 128 bits (offset basis and prime as its authors publish them). Not secret, only stable.
pub(crate) fn digest(text: &str) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    text.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}

/// The processor's name as the kernel gives it.
pub(crate) fn name() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    model.map_or_else(|| format!("CPU ({})", std::env::consts::ARCH), |(_, name)| name.trim().to_owned())
}

/// The only NUMA node there is. With several, the device spans them and has none.
pub(crate) fn numa_node() -> Option<u32> {
    let online = fs::read_to_string("/sys/devices/system/node/online").ok()?;
    online.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uuid_is_stable_and_differs_by_index() {
        assert_eq!(uuid(0), uuid(0));
        assert_ne!(uuid(0), uuid(1));
    }

    #[test]
    fn the_digest_is_fnv_1a() {
        // From the reference implementation's published vectors: the empty text is the basis.
        assert_eq!(digest(""), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(digest("a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }
}
