//! Whether host memory may be imported: drivers accept unmapped, read-only and file-backed ranges and fail
//! later, in the kernel. So it is asked of the kernel first.

use std::fs;

use spoc_driver::{Error, ErrorKind, Result};

/// Refuses a range that is not wholly private anonymous memory, readable and writable.
pub(super) fn check_importable(start: usize, len_bytes: usize) -> Result<()> {
    let maps = fs::read_to_string("/proc/self/maps")
        .map_err(|error| Error::new(ErrorKind::Os, "reading the memory map").because(error))?;
    match refusal(&maps, start, start.saturating_add(len_bytes)) {
        None => Ok(()),
        Some(reason) => Err(Error::new(ErrorKind::InvalidArgument, "registering host memory with Vulkan")
            .with("because", reason)
            .with("bytes", len_bytes)),
    }
}

/// Why the range is refused, by the text of a process's memory map.
fn refusal(maps: &str, start: usize, end: usize) -> Option<String> {
    let mut reached = start;
    for line in maps.lines() {
        let Some(mapping) = Mapping::parse(line) else { continue };
        if mapping.end <= reached {
            continue;
        }
        if reached >= end || mapping.start > reached {
            break;
        }
        if !mapping.is_writable {
            return Some("part of it cannot be read and written".to_owned());
        }
        if !mapping.is_anonymous {
            return Some("part of it belongs to a file or is shared".to_owned());
        }
        reached = mapping.end;
    }
    (reached < end).then(|| "part of it is not mapped".to_owned())
}

struct Mapping {
    start: usize,
    end: usize,
    is_writable: bool,
    is_anonymous: bool,
}

impl Mapping {
    /// One line: `start-end perms offset dev inode path`, as proc(5) describes it.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let permissions = fields.next()?;
        let inode = fields.nth(2)?;
        Some(Self {
            start: usize::from_str_radix(start, 16).ok()?,
            end: usize::from_str_radix(end, 16).ok()?,
            is_writable: permissions.starts_with("rw"),
            is_anonymous: inode == "0" && permissions.ends_with('p'),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-2000 rw-p 00000000 00:00 0 \n\
2000-4000 rw-p 00000000 00:00 0                          [heap]\n\
5000-6000 r--p 00000000 00:00 0 \n\
6000-7000 rw-p 00000000 08:01 42                         /model.safetensors\n\
7000-8000 rw-s 00000000 00:01 0 \n";

    #[test]
    fn only_private_anonymous_writable_memory_passes() {
        assert_eq!(refusal(MAPS, 0x1000, 0x4000), None);
        assert_eq!(refusal(MAPS, 0x1800, 0x1900), None);
        let refused = |start, end, why| assert!(refusal(MAPS, start, end).unwrap().contains(why));
        refused(0x3000, 0x6000, "not mapped");
        refused(0x5000, 0x6000, "read and written");
        refused(0x6000, 0x7000, "file");
        refused(0x7000, 0x8000, "shared");
        refused(0x9000, 0xa000, "not mapped");
        refused(0x0, 0x2000, "not mapped");
    }

    #[test]
    fn this_process_is_read() {
        let memory = spoc_driver::HostBuffer::allocate(8192, spoc_driver::HostMemoryOptions::default());
        let memory = memory.unwrap();
        assert!(check_importable(memory.as_ptr().addr(), 8192).is_ok());
        assert!(check_importable(refusal as *const () as usize, 16).is_err());
    }
}
