//! A line that says on which machine a figure was seen.

use std::fs;

/// Processor, cores, memory and kernel, from `/proc`.
#[must_use]
pub fn describe() -> String {
    let cpuinfo = read("/proc/cpuinfo");
    let model = field(&cpuinfo, "model name").unwrap_or("unknown processor");
    let cores = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
    let meminfo = read("/proc/meminfo");
    let memory_kib: u64 =
        field(&meminfo, "MemTotal").and_then(|v| v.split(' ').next()?.parse().ok()).unwrap_or(0);
    let kernel = read("/proc/sys/kernel/osrelease");
    format!("{model}, {cores} cores, {} GiB, Linux {}", memory_kib / (1 << 20), kernel.trim())
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find(|l| l.starts_with(name)).and_then(|l| l.split_once(':')).map(|(_, value)| value.trim())
}
