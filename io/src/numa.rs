//! Keeping a reader's threads and memory beside the device they serve.

#[cfg(target_os = "linux")]
use std::io;
#[cfg(target_os = "linux")]
use std::path::Path;

/// Processors of a NUMA node, as the kernel lists them; `None` where it knows no such node.
#[cfg(target_os = "linux")]
fn processors_of(node: u32) -> Option<Vec<usize>> {
    let path = format!("/sys/devices/system/node/node{node}/cpulist");
    parse(std::fs::read_to_string(Path::new(&path)).ok()?.trim())
}

/// `0-3,8,10-11`.
#[cfg(target_os = "linux")]
fn parse(list: &str) -> Option<Vec<usize>> {
    let mut processors = Vec::new();
    for range in list.split(',').filter(|range| !range.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        processors.extend(first.parse::<usize>().ok()?..=last.parse().ok()?);
    }
    Some(processors)
}

/// Binds the calling thread, and those it starts, to the node's processors, as far as it may use them.
///
/// # Errors
/// Why not, in words.
#[cfg(not(target_os = "linux"))]
pub(crate) fn bind_thread(node: u32) -> Result<(), String> {
    Err(format!("this system lists no NUMA node {node}"))
}

/// Asks for the memory of a mapping, none of which was touched yet, on the node.
///
/// # Errors
/// Why not, in words.
#[cfg(not(target_os = "linux"))]
pub(crate) fn prefer_memory(_: *mut u8, _: usize, node: u32) -> Result<(), String> {
    bind_thread(node)
}

/// Binds the calling thread, and those it starts, to the node's processors, as far as it may use them.
///
/// # Errors
/// Why not, in words.
#[cfg(target_os = "linux")]
pub(crate) fn bind_thread(node: u32) -> Result<(), String> {
    let wanted = processors_of(node).ok_or_else(|| format!("the kernel lists no NUMA node {node}"))?;
    // SAFETY: all-zero bytes are an empty set of processors.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set is live, writable and as long as said; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size, &raw mut allowed) } != 0 {
        return Err(format!("reading the thread's processors: {}", io::Error::last_os_error()));
    }
    let mut both = allowed;
    // SAFETY: a plain bit set, as below.
    unsafe { libc::CPU_ZERO(&mut both) };
    for processor in wanted.into_iter().filter(|p| *p < 8 * size) {
        // SAFETY: the number is inside the set.
        if unsafe { libc::CPU_ISSET(processor, &allowed) } {
            // SAFETY: as above.
            unsafe { libc::CPU_SET(processor, &mut both) };
        }
    }
    // SAFETY: a plain bit set.
    if unsafe { libc::CPU_COUNT(&both) } == 0 {
        return Err(format!("the process may use no processor of NUMA node {node}"));
    }
    // SAFETY: the set is live and as long as said.
    match unsafe { libc::sched_setaffinity(0, size, &raw const both) } {
        0 => Ok(()),
        _ => Err(format!("binding to NUMA node {node}: {}", io::Error::last_os_error())),
    }
}

/// Asks for the memory of a mapping, none of which was touched yet, on the node.
///
/// # Errors
/// Why not, in words. The memory then lies wherever it is first touched.
#[cfg(target_os = "linux")]
pub(crate) fn prefer_memory(start: *mut u8, len_bytes: usize, node: u32) -> Result<(), String> {
    const MPOL_PREFERRED: libc::c_int = 1;
    const NODES_MAX: usize = 1024;
    let mut mask = [0u64; NODES_MAX / 64];
    let Some(word) = mask.get_mut(node as usize / 64) else {
        return Err(format!("no NUMA node {node}"));
    };
    *word = 1 << (node % 64);
    // SAFETY: the kernel reads NODES_MAX bits of a live mask and changes where pages of the caller's own mapping come
    // from, not what they hold.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_mbind,
            start,
            len_bytes,
            MPOL_PREFERRED,
            mask.as_ptr(),
            // It counts one less than it is told.
            NODES_MAX + 1,
            0,
        )
    };
    if rc == 0 {
        Ok(())
    } else {
        Err(format!("placing memory on NUMA node {node}: {}", io::Error::last_os_error()))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(parse("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse(""), Some(Vec::new()), "a node of memory alone");
        assert_eq!(parse("x"), None);
    }

    #[test]
    fn a_thread_stays_on_its_node_and_a_node_that_is_not_there_is_said() {
        std::thread::spawn(|| {
            assert!(bind_thread(100_000).unwrap_err().contains("100000"));
            let Some(processors) = processors_of(0) else { return };
            bind_thread(0).unwrap();
            // SAFETY: takes and gives plain integers.
            let here = unsafe { libc::sched_getcpu() };
            assert!(processors.contains(&usize::try_from(here).unwrap()));
        })
        .join()
        .unwrap();
    }
}
