//! Models by name, in a Hugging Face cache, offline.
//!
//! Layout: <https://huggingface.co/docs/huggingface_hub/guides/manage-cache>. A repository `org/name` is the folder
//! `models--org--name`; `refs/REVISION` holds the commit of a branch or tag; `snapshots/COMMIT` holds links to its files.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind as IoErrorKind;
use std::path::{Path, PathBuf};

use crate::error::quoted;
use crate::{Error, ErrorKind, Result};

/// Shortest piece of a commit that stands for it.
const COMMIT_DIGITS_MIN: usize = 7;
/// Names listed in a message.
const SHOWN: usize = 6;

/// `org/name` or `org/name@revision`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name<'a> {
    organisation: &'a str,
    model: &'a str,
    revision: Option<&'a str>,
}

impl<'a> Name<'a> {
    /// `None` for text that can only be a path.
    fn parse(text: &'a str) -> Option<Self> {
        let (name, revision) = match text.split_once('@') {
            Some((name, revision)) => (name, Some(revision)),
            None => (text, None),
        };
        let (organisation, model) = name.split_once('/')?;
        let plain = |part: &str| {
            !part.is_empty()
                && !part.starts_with(['.', '-'])
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        (plain(organisation) && plain(model)).then_some(Self { organisation, model, revision })
    }
}

/// Where the cache is: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in `huggingface` of `XDG_CACHE_HOME`, else of
/// `~/.cache`.
fn cache_folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let folder = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = || {
        folder("HF_HOME").or_else(|| {
            let caches = folder("XDG_CACHE_HOME").or_else(|| folder("HOME").map(|home| home.join(".cache")));
            caches.map(|caches| caches.join("huggingface"))
        })
    };
    folder("HF_HUB_CACHE")
        .or_else(|| folder("HUGGINGFACE_HUB_CACHE"))
        .or_else(|| home().map(|home| home.join("hub")))
}

/// The snapshot folder that a name means; `None` for what can only be a path. `cache` is the cache's folder, by
/// default what the environment says.
///
/// # Errors
/// `not_found` when the cache has no such model or revision, `invalid_argument` for an impossible revision, and those of
/// a damaged repository.
pub(super) fn resolve(text: &Path, cache: Option<&Path>) -> Option<Result<PathBuf>> {
    let name = Name::parse(text.to_str()?)?;
    let cache = match cache {
        Some(folder) => folder.to_path_buf(),
        None => cache_folder(|variable| std::env::var_os(variable))?,
    };
    Some(in_cache(name, &cache))
}

fn in_cache(name: Name<'_>, cache: &Path) -> Result<PathBuf> {
    let Name { organisation, model, revision } = name;
    let repository = cache.join(format!("models--{organisation}--{model}"));
    if repository.join("snapshots").is_dir() {
        return snapshot(&repository, revision);
    }
    let message = format!(
        "no such file, and no model {organisation}/{model} in the Hugging Face cache {} (HF_HUB_CACHE or HF_HOME name \
         another; nothing is downloaded here)",
        cache.display()
    );
    Err(Error::new(ErrorKind::NotFound, message))
}

/// The snapshot of a repository folder: of a branch, tag or commit, else of `main`, else the only one there is.
///
/// # Errors
/// As of [`resolve`]; `path_escape` for a reference that leads elsewhere, `no_weights` and `ambiguous_weights`.
pub(super) fn snapshot(repository: &Path, revision: Option<&str>) -> Result<PathBuf> {
    let name = revision.unwrap_or("main");
    let inside = !name.is_empty() && name.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
    if !inside || name.contains(['\\', '\0']) {
        let message = format!("expected a branch, tag or commit after '@', found {}", quoted(name));
        return Err(Error::new(ErrorKind::InvalidArgument, message).in_file(repository));
    }
    let snapshots = repository.join("snapshots");
    let reference = repository.join("refs").join(name);
    match fs::read_to_string(&reference) {
        Ok(text) => referred(&snapshots, &reference, name, text.trim()),
        // A tag `v1/x` is a folder for the tag `v1`.
        Err(e)
            if matches!(
                e.kind(),
                IoErrorKind::NotFound | IoErrorKind::NotADirectory | IoErrorKind::IsADirectory
            ) =>
        {
            match revision {
                None => only_snapshot(&snapshots),
                Some(commit) => by_commit(repository, &snapshots, commit),
            }
        }
        Err(e) => Err(Error::from_os(e, "reading").in_file(&reference)),
    }
}

fn referred(snapshots: &Path, reference: &Path, name: &str, commit: &str) -> Result<PathBuf> {
    let plain = !commit.is_empty()
        && commit.len() <= 255
        && !commit.starts_with('.')
        && commit.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
    if !plain {
        return Err(Error::new(ErrorKind::PathEscape, "expected the name of a snapshot").in_file(reference));
    }
    let path = snapshots.join(commit);
    if path.is_dir() {
        return Ok(path);
    }
    let message = format!("'refs/{name}' names snapshot {commit}, which is not there");
    Err(Error::new(ErrorKind::NoWeights, message).in_file(&path))
}

fn by_commit(repository: &Path, snapshots: &Path, commit: &str) -> Result<PathBuf> {
    let all = names(snapshots)?;
    let digits = commit.len() >= COMMIT_DIGITS_MIN && commit.bytes().all(|b| b.is_ascii_hexdigit());
    let fits = |name: &&String| **name == commit || (digits && name.starts_with(commit));
    let mut found = all.iter().filter(fits);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(snapshots.join(one)),
        (Some(_), Some(_)) => {
            let message = format!("several snapshots begin with {commit}");
            Err(Error::new(ErrorKind::AmbiguousWeights, message).in_file(snapshots))
        }
        (None, _) => {
            let known = names(&repository.join("refs")).unwrap_or_default();
            let known: Vec<&str> = known.iter().chain(&all).take(SHOWN).map(String::as_str).collect();
            let message = format!("no revision {} here, there are {}", quoted(commit), known.join(", "));
            Err(Error::new(ErrorKind::NotFound, message).in_file(repository))
        }
    }
}

fn only_snapshot(snapshots: &Path) -> Result<PathBuf> {
    let mut found = names(snapshots)?;
    found.retain(|name| snapshots.join(name).is_dir());
    let kind = match found.as_slice() {
        [only] => return Ok(snapshots.join(only)),
        [] => ErrorKind::NoWeights,
        _ => ErrorKind::AmbiguousWeights,
    };
    Err(Error::new(kind, "expected one snapshot, or 'refs/main' to name one").in_file(snapshots))
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Result<Vec<String>> {
    let entries =
        fs::read_dir(folder).map_err(|e| Error::from_os(e, "listing the folder").in_file(folder))?;
    let mut names: Vec<String> = entries.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        let of = |text| Name::parse(text).map(|n| (n.organisation, n.model, n.revision));
        assert_eq!(of("org/Model-7B.v1"), Some(("org", "Model-7B.v1", None)));
        assert_eq!(of("org/m@refs/pr/3"), Some(("org", "m", Some("refs/pr/3"))));
        for path in ["m", "/org/m", "./m", "../m", "a/b/c", "org/", "a b/c", "org/m\\x", "~/m"] {
            assert_eq!(of(path), None, "{path}");
        }
    }

    #[test]
    fn the_environment_says_where_the_cache_is() {
        let of = |set: &[(&str, &str)]| {
            let found = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
            cache_folder(found).map(|p| p.display().to_string())
        };
        let home = ("HOME", "/h");
        assert_eq!(of(&[home]).as_deref(), Some("/h/.cache/huggingface/hub"));
        assert_eq!(of(&[home, ("XDG_CACHE_HOME", "/x")]).as_deref(), Some("/x/huggingface/hub"));
        assert_eq!(of(&[home, ("HF_HOME", "/f")]).as_deref(), Some("/f/hub"));
        assert_eq!(of(&[("HF_HOME", "/f"), ("HF_HUB_CACHE", "/c")]).as_deref(), Some("/c"));
        assert_eq!(of(&[home, ("HF_HOME", "")]).as_deref(), Some("/h/.cache/huggingface/hub"));
        assert_eq!(of(&[]), None);
    }
}
