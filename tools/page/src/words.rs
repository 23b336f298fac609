//! Words of 64 bits that two processes share: a memfd whose length nobody can change any more.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};

/// More words than any session needs; keeps a foreign file from being mapped by the terabyte.
const WORDS_MAX: usize = 1 << 20;

/// Shared words, zero at first. Any number of threads of any process that has the descriptor may read and write them.
#[derive(Debug)]
pub struct Words {
    map: MmapRaw,
    count: usize,
    descriptor: OwnedFd,
}

impl Words {
    /// Makes `count` words.
    ///
    /// # Errors
    /// No memory, no descriptor, or a count of 0 or beyond 2²⁰.
    pub fn create(count: usize) -> io::Result<Words> {
        let bytes = bytes_of(count)?;
        let descriptor = memfd_create("spoc-words", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&descriptor, bytes as u64)?;
        fcntl_add_seals(&descriptor, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Words::map(descriptor)
    }

    /// Maps words that another process made. Its length is sealed, so that no access can fault later.
    ///
    /// # Errors
    /// `InvalidData` if it is not a memfd of whole words with its length sealed.
    pub fn map(descriptor: OwnedFd) -> io::Result<Words> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, format!("shared words: {why}"));
        let seals = fcntl_get_seals(&descriptor).map_err(|_| invalid("the descriptor is no memfd"))?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(invalid("the memfd can still be cut off"));
        }
        if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
            return Err(invalid("the memfd cannot be written"));
        }
        let file = File::from(descriptor);
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| invalid("too long"))?;
        if !len.is_multiple_of(8) || bytes_of(len / 8).is_err() {
            return Err(invalid("not whole words, or too many"));
        }
        let map = MmapOptions::new().len(len).map_raw(&file)?;
        Ok(Words { map, count: len / 8, descriptor: file.into() })
    }

    /// The words.
    pub fn words(&self) -> &[AtomicU64] {
        let start = self.map.as_ptr().cast::<AtomicU64>();
        // SAFETY: `map` mapped `count` × 8 bytes, shared and writable, at a page boundary, which is aligned for u64; the
        // memfd's seal keeps it that long for ever; every access in any process is to be atomic, and one that is not could
        // only make values of its own up; the mapping lives as long as `self`, to which the slice is bound.
        unsafe { std::slice::from_raw_parts(start, self.count) }
    }

    /// The descriptor, to be lent.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn bytes_of(count: usize) -> io::Result<usize> {
    match count {
        1..=WORDS_MAX => Ok(count * 8),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "shared words: 1 to 2^20")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::SeqCst;

    #[test]
    fn both_sides_see_the_same_words() {
        let own = Words::create(3).expect("made");
        let theirs = Words::map(own.descriptor().try_clone_to_owned().expect("descriptor")).expect("mapped");
        theirs.words()[2].store(7, SeqCst);
        assert_eq!(own.words()[2].load(SeqCst), 7);
        assert_eq!((own.words().len(), theirs.words().len()), (3, 3));
        assert!(ftruncate(own.descriptor(), 0).is_err(), "sealed");
        assert!(Words::create(0).is_err() && Words::create(WORDS_MAX + 1).is_err());
    }

    #[test]
    fn foreign_descriptors_are_refused() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(64).expect("length");
        assert!(Words::map(file.into()).is_err());
        let unsealed = || memfd_create("x", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memfd");
        let told = |descriptor: OwnedFd| Words::map(descriptor).expect_err("refused").to_string();
        let one = unsealed();
        ftruncate(&one, 64).expect("length");
        assert!(told(one).contains("cut off"));
        for (len, seals) in
            [(7, SealFlags::SHRINK), (0, SealFlags::SHRINK), (64, SealFlags::SHRINK | SealFlags::WRITE)]
        {
            let one = unsealed();
            ftruncate(&one, len).expect("length");
            fcntl_add_seals(&one, seals).expect("sealed");
            told(one);
        }
    }
}
