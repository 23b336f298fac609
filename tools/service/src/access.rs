//! Who may connect, and which paths may be named.

use crate::config::Access;
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};

pub use spoc_page::lend::Peer;

impl Access {
    /// Whether this peer may connect.
    ///
    /// # Errors
    /// `not_permitted`, with its numbers.
    pub(crate) fn check(&self, peer: Peer) -> Result<()> {
        let own = nix::unistd::geteuid().as_raw();
        let listed = self.uids.contains(&peer.uid) || self.gids.contains(&peer.gid);
        if peer.uid == own || peer.uid == 0 || listed {
            return Ok(());
        }
        let Peer { uid, gid, .. } = peer;
        Err(Error::new("not_permitted", format!("user {uid} of group {gid} is in no list of [access]")))
    }
}

/// Checks that what a model's name leads to lies below one of the roots, links resolved. A name that is no path (of the
/// Hugging Face cache) is checked by the files that it leads to.
///
/// # Errors
/// `path_not_allowed`, which says nothing about what is there.
pub fn check_path(roots: &[PathBuf], path: &Path) -> Result<()> {
    if roots.is_empty() {
        return Ok(());
    }
    let refuse =
        || Error::new("path_not_allowed", format!("{}: below none of the configured roots", path.display()));
    let real = path.canonicalize().map_err(|_| refuse())?;
    let below = |root: &PathBuf| root.canonicalize().is_ok_and(|root| real.starts_with(root));
    if roots.iter().any(below) { Ok(()) } else { Err(refuse()) }
}

/// Names go into lists, logs and labels.
///
/// # Errors
/// `usage`.
pub fn check_name(what: &str, name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_alphanumeric() || "-_.:+".contains(c);
    if !name.is_empty() && name.len() <= 200 && name.chars().all(is_plain) {
        return Ok(());
    }
    let shown: String = name.chars().take(200).collect();
    Err(Error::new("usage", format!("{what} {shown:?}: expected a name of letters, digits and -_.:+")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_let_in_and_nothing_else_does() {
        let access = Access { uids: vec![4001], gids: vec![5001] };
        let peer = |uid, gid| Peer { pid: 1, uid, gid };
        for (uid, gid, allowed) in [(4001, 1, true), (9, 5001, true), (0, 0, true), (4002, 5002, false)] {
            assert_eq!(access.check(peer(uid, gid)).is_ok(), allowed, "{uid} {gid}");
        }
        assert!(Access::default().check(peer(nix::unistd::geteuid().as_raw(), 77)).is_ok());
    }

    #[test]
    fn names_are_plain_and_short() {
        assert!(check_name("model", "Llama-3.1_8B:q4+x").is_ok() && check_name("image", "größe").is_ok());
        for bad in ["", "a b", "a/b", "a\nb", "a\"b", "m@0123", "m#*", &"x".repeat(201)] {
            let error = check_name("model", bad).expect_err(bad);
            assert_eq!(error.kind(), "usage");
            assert!(error.message().len() < 400 && !error.message().contains('\n'));
        }
    }

    #[test]
    fn links_out_of_the_roots_are_not_followed() {
        let (inside, outside) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        std::fs::write(inside.path().join("a"), "").expect("written");
        std::fs::write(outside.path().join("b"), "").expect("written");
        std::os::unix::fs::symlink(outside.path().join("b"), inside.path().join("b")).expect("linked");
        let roots = [inside.path().to_owned()];
        assert!(check_path(&roots, &inside.path().join("a")).is_ok());
        for path in [
            inside.path().join("b"),
            outside.path().join("b"),
            inside.path().join("../b"),
            "/etc/passwd".into(),
        ] {
            let error = check_path(&roots, &path).expect_err("outside");
            assert_eq!(error.kind(), "path_not_allowed");
        }
        assert!(check_path(&[], &outside.path().join("b")).is_ok());
    }
}
