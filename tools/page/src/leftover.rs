//! Socket files that their makers left behind.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Makes way for a socket at `path`: removes one on which nobody answers, as `answers` finds out. What is no socket stays.
///
/// # Errors
/// `AddrInUse` if somebody answers there, `AlreadyExists` for what is no socket; what the kernel says.
pub fn remove_leftover_socket(path: &Path, answers: impl FnOnce(&Path) -> bool) -> io::Result<()> {
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "is no socket; it stays"));
    }
    if answers(path) {
        return Err(io::ErrorKind::AddrInUse.into());
    }
    std::fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};

    #[test]
    fn only_sockets_that_nobody_answers_on_go() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("here");
        let clear = || remove_leftover_socket(&path, |path| UnixStream::connect(path).is_ok());
        clear().expect("nothing is there");
        let listening = UnixListener::bind(&path).expect("bound");
        assert_eq!(clear().expect_err("answers").kind(), io::ErrorKind::AddrInUse);
        drop(listening);
        clear().expect("left over");
        assert!(!path.exists());
        std::fs::write(&path, "weights").expect("written");
        assert_eq!(clear().expect_err("no socket").kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read(&path).expect("there"), b"weights");
    }
}
