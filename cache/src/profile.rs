//! Which groups of a model were hot, to be read first next time.

use std::fmt;
use std::str::FromStr;

const HEADER: &str = "spoc-profile 1";

/// Names of groups, most used first. As text it is a line `spoc-profile 1`, then a line `USES NAME` a group.
///
/// ```
/// let text = "spoc-profile 1\n12 model.layers.3\n5 model.layers.0\n";
/// let profile: spoc_cache::Profile = text.parse()?;
/// assert_eq!(profile.groups[0], ("model.layers.3".to_owned(), 12));
/// assert_eq!(profile.to_string(), text);
/// # Ok::<(), spoc_cache::BadProfile>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    /// Name of the group, and how often it was leased since its last fill.
    pub groups: Vec<(String, u64)>,
}

/// Why a text is no profile.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("profile, line {line}: {why}")]
pub struct BadProfile {
    line: usize,
    why: &'static str,
}

impl FromStr for Profile {
    type Err = BadProfile;

    fn from_str(text: &str) -> Result<Profile, BadProfile> {
        let mut lines = (1..).zip(text.lines());
        match lines.next() {
            Some((_, HEADER)) => {}
            _ => return Err(BadProfile { line: 1, why: "must be `spoc-profile 1`" }),
        }
        let group = |(line, text): (usize, &str)| {
            let bad = || BadProfile { line, why: "must be a count, a space and a group's name" };
            let (uses, name) = text.split_once(' ').ok_or_else(bad)?;
            Ok((name.to_owned(), uses.parse().map_err(|_| bad())?))
        };
        Ok(Profile {
            groups: lines.filter(|(_, text)| !text.is_empty()).map(group).collect::<Result<_, _>>()?,
        })
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        self.groups.iter().try_for_each(|(name, uses)| writeln!(f, "{uses} {name}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_profile_is_told_by_line() {
        for (text, line) in [("", 1), ("spoc-profile 2\n", 1), ("spoc-profile 1\n3 a\nb\n", 3)] {
            assert_eq!(text.parse::<Profile>().unwrap_err().line, line, "{text:?}");
        }
        assert!("spoc-profile 1\n-1 a\n".parse::<Profile>().is_err());
    }
}
