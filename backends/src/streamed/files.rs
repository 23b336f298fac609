//! Whether a file is behind memory: some drivers copy from such pages ten to a thousand times as slowly.

use spoc_driver::{Error, ErrorKind, Result};

const MAPS: &str = "/proc/self/maps";

/// Refuses memory with a file behind it. Shared memory is none, though it has a name.
///
/// # Errors
/// `InvalidArgument` with the file; `Os` if the process may not know its own memory.
pub(crate) fn refuse(start: usize, len_bytes: usize, doing: &'static str) -> Result<()> {
    let maps = std::fs::read_to_string(MAPS)
        .map_err(|error| Error::new(ErrorKind::Os, doing).with("file", MAPS).because(error))?;
    match behind(&maps, start, start.saturating_add(len_bytes)) {
        None => Ok(()),
        Some(file) => Err(Error::new(ErrorKind::InvalidArgument, doing)
            .with("file", file)
            .with("because", "the memory is a mapping of a file, which the driver copies from too slowly")),
    }
}

/// The first file in the kernel's list of mappings that some of a range is a mapping of.
fn behind(maps: &str, start: usize, end: usize) -> Option<&str> {
    maps.lines().find_map(|line| {
        // Addresses, permissions, offset, device, inode, name.
        let mut fields = line.splitn(6, ' ');
        let (first, last) = fields.next()?.split_once('-')?;
        let first = usize::from_str_radix(first, 16).ok()?;
        let last = usize::from_str_radix(last, 16).ok()?;
        let inode = fields.nth(3)?;
        let name = fields.next().unwrap_or_default().trim_start();
        let is_memory = ["/memfd:", "/dev/zero", "/dev/shm/", "/SYSV", "/anon_hugepage"]
            .iter()
            .any(|known| name.starts_with(known));
        (first < end && start < last && inode != "0" && !is_memory).then_some(name)
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    const LIST: &str = "55d0a0000000-55d0a0002000 r-xp 00000000 fe:00 131 /usr/bin/with a space
7f0000000000-7f0000004000 rw-p 00000000 00:00 0
7f0000004000-7f0000008000 rw-s 00000000 00:01 2051 /memfd:ring (deleted)
7f0000008000-7f000000c000 r--p 00000000 fe:00 77                         /models/a.safetensors
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]";

    #[test]
    fn mappings_are_told_from_memory() {
        assert_eq!(behind(LIST, 0x55d0_a000_1000, 0x55d0_a000_1001), Some("/usr/bin/with a space"));
        assert_eq!(behind(LIST, 0x7f00_0000_0000, 0x7f00_0000_8000), None);
        assert_eq!(behind(LIST, 0x7f00_0000_7fff, 0x7f00_0000_8001), Some("/models/a.safetensors"));
        assert_eq!(behind(LIST, 0x7f00_0000_c000, 0x7f00_0000_d000), None);
        assert_eq!(behind("no list", 0, usize::MAX), None);
    }

    #[test]
    fn a_mapping_of_this_program_is_found() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        // SAFETY: a private mapping, at an address of the kernel's choice.
        let page = unsafe {
            let (read, kept) = (libc::PROT_READ, libc::MAP_PRIVATE);
            libc::mmap(std::ptr::null_mut(), 4096, read, kept, file.as_raw_fd(), 0)
        };
        assert_ne!(page, libc::MAP_FAILED);
        let error = refuse(page.addr(), 4096, "registering host memory").unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::InvalidArgument);
        // SAFETY: mapped above, and used by nobody.
        unsafe { libc::munmap(page, 4096) };
        let own = vec![0_u8; 4096];
        refuse(own.as_ptr().addr(), 4096, "registering host memory").unwrap();
    }
}
