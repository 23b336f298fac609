//! What the service is told: flag, then `SPOC_*` variable, then file, then default.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use spoc_cache::policy::PolicyKind;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Bytes, as every size of this project is written: `64MiB`, `64M`, `1.5GiB`, `2GB`, `4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Size(pub u64);

/// How a size is written.
const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Size, String> {
        spoc_backends::parse_size(text).map(Size)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = UNITS.iter().find(|(_, factor)| self.0 > 0 && self.0.is_multiple_of(*factor));
        match found {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<Size, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(from)? {
            Written::Number(bytes) => Ok(Size(bytes)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// The whole configuration. docs/service.md lists every key.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Control socket; the lending socket is beside it, with `.lend` behind its name.
    pub socket: PathBuf,
    /// Permission bits of both sockets, in octal, as text.
    pub socket_mode: String,
    /// Devices by UUID, or `backend:index`; empty for the first GPU found, else native.
    pub devices: Vec<String>,
    /// Staging ring of each device.
    pub staging: Size,
    /// Folders that models may lie in, links resolved; empty for any that the service can read.
    pub roots: Vec<PathBuf>,
    /// Where metrics and health are served: `127.0.0.1:PORT` or a path; empty for nowhere.
    pub metrics: String,
    /// Where descriptors of weights are parked, so that they outlive the service: `keeper:PATH` of a `spoc-loader keeper`,
    /// `systemd` for its descriptor store; empty for nowhere.
    pub park: String,
    /// Who may connect.
    pub access: Access,
    /// What each client may have.
    pub quota: Quota,
    /// Slot caches made at the start.
    #[serde(rename = "arena", skip_serializing_if = "Vec::is_empty")]
    pub arenas: Vec<ArenaConfig>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            socket: default_socket(),
            socket_mode: "0600".to_owned(),
            devices: Vec::new(),
            staging: Size(64 << 20),
            roots: Vec::new(),
            metrics: String::new(),
            park: String::new(),
            access: Access::default(),
            quota: Quota::default(),
            arenas: Vec::new(),
        }
    }
}

/// Who may connect: the service's own user and root always may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Access {
    /// Users, by number.
    pub uids: Vec<u32>,
    /// Groups, by number.
    pub gids: Vec<u32>,
}

/// Bounds of one client, and of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Quota {
    /// Sessions of all clients together.
    pub sessions: u32,
    /// Leases that a session holds.
    pub leases: u32,
    /// Bytes that a session holds, what two of its leases hold counted twice; 0 for no bound.
    pub held: Size,
    /// Groups in one request.
    pub keys: u32,
    /// Acquires of all clients that wait for disk or room.
    pub waiting: u32,
    /// Requests of one process that are not answered yet, acquires on streams among them.
    pub in_flight: u32,
    /// Bytes of a message.
    pub message: Size,
}

impl Default for Quota {
    fn default() -> Quota {
        Quota {
            sessions: 1024,
            leases: 4096,
            held: Size(0),
            keys: 65_536,
            waiting: 256,
            in_flight: 128,
            message: Size(4 << 20),
        }
    }
}

/// A slot cache.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ArenaConfig {
    /// What it is called by models.
    pub name: String,
    /// One of `devices`; empty for the first.
    #[serde(default)]
    pub device: String,
    /// Eviction policy, as `spoc-loader replay --policy` names them; empty for the default.
    #[serde(default)]
    pub policy: String,
    /// Device memory to leave to others.
    #[serde(default)]
    pub headroom: Size,
    /// Widths of slots, and how many of each.
    pub classes: Vec<ClassConfig>,
}

/// Slots of one width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClassConfig {
    /// How many.
    pub slots: u32,
    /// How wide.
    pub slot: Size,
}

/// Flags and variables: each wins over the file.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// See [`Config::socket`].
    pub socket: Option<PathBuf>,
    /// See [`Config::socket_mode`].
    pub socket_mode: Option<String>,
    /// See [`Config::devices`].
    pub devices: Vec<String>,
    /// See [`Config::staging`].
    pub staging: Option<Size>,
    /// See [`Config::roots`].
    pub roots: Vec<PathBuf>,
    /// See [`Config::metrics`].
    pub metrics: Option<String>,
    /// See [`Config::park`].
    pub park: Option<String>,
}

/// Where the service listens unless it is told otherwise: in the user's runtime folder, or `/run/spoc` for root.
#[must_use]
pub fn default_socket() -> PathBuf {
    if let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        return Path::new(&folder).join("spoc/spoc.sock");
    }
    if nix::unistd::geteuid().is_root() {
        return PathBuf::from("/run/spoc/spoc.sock");
    }
    PathBuf::from(format!("/tmp/spoc-{}/spoc.sock", nix::unistd::geteuid()))
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// `not_found`; `config`, with line and what was expected.
    pub fn read(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let kind = if error.kind() == std::io::ErrorKind::NotFound { "not_found" } else { "os" };
            Error::new(kind, format!("{}: {error}", path.display()))
        })?;
        Config::parse(&text)
            .map_err(|error| Error::new("config", format!("{}: {}", path.display(), error.message())))
    }

    /// Reads text.
    ///
    /// # Errors
    /// `config`, with line and what was expected.
    pub fn parse(text: &str) -> Result<Config> {
        let config: Config = toml::from_str(text).map_err(|error| {
            let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let place = line.map_or_else(String::new, |line| format!("line {line}: "));
            Error::new("config", format!("{place}{}", error.message()))
        })?;
        config.check()?;
        Ok(config)
    }

    /// As a file would have it.
    #[must_use]
    pub fn print(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }

    /// With what flags and variables say.
    ///
    /// # Errors
    /// `config` for a value that cannot be.
    pub fn with(mut self, over: Overrides) -> Result<Config> {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut self.socket, over.socket);
        set(&mut self.socket_mode, over.socket_mode);
        set(&mut self.staging, over.staging);
        set(&mut self.metrics, over.metrics);
        set(&mut self.park, over.park);
        if !over.devices.is_empty() {
            self.devices = over.devices;
        }
        if !over.roots.is_empty() {
            self.roots = over.roots;
        }
        self.check()?;
        Ok(self)
    }

    /// Permission bits of the sockets.
    #[must_use]
    pub fn mode(&self) -> u32 {
        u32::from_str_radix(&self.socket_mode, 8).unwrap_or(0o600)
    }

    /// Path of the lending socket.
    #[must_use]
    pub fn lend_path(&self) -> PathBuf {
        let mut path = self.socket.clone().into_os_string();
        path.push(".lend");
        path.into()
    }

    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::new("config", what));
        match u32::from_str_radix(&self.socket_mode, 8) {
            Ok(mode) if mode <= 0o777 => {}
            _ => {
                return wrong(format!(
                    "socket_mode = {:?}: expected octal bits, as \"0660\"",
                    self.socket_mode
                ));
            }
        }
        if !matches!(self.park.as_str(), "" | "systemd") {
            crate::park::check(&self.park)?;
        }
        if self.socket.as_os_str().len() > 90 {
            return wrong(format!("socket = {}: longer than 90 bytes", self.socket.display()));
        }
        if self.staging.0 < 8192 {
            return wrong(format!("staging = {}: expected 8192 bytes or more", self.staging));
        }
        for (at, arena) in self.arenas.iter().enumerate() {
            let name = &arena.name;
            if name.is_empty() || self.arenas[..at].iter().any(|other| other.name == *name) {
                return wrong(format!("arena {name:?}: expected a name of its own"));
            }
            if arena.classes.is_empty()
                || arena.classes.iter().any(|class| class.slots == 0 || class.slot.0 == 0)
            {
                return wrong(format!("arena {name:?}: expected classes of some slots of some bytes"));
            }
            arena.policy()?;
        }
        Ok(())
    }
}

impl ArenaConfig {
    /// Its policy.
    ///
    /// # Errors
    /// `config` for a name that is none.
    pub fn policy(&self) -> Result<PolicyKind> {
        if self.policy.is_empty() {
            return Ok(PolicyKind::default());
        }
        let unknown = |_| Error::new("config", format!("arena {:?}: no policy {:?}", self.name, self.policy));
        self.policy.parse().map_err(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("4096", 4096),
            ("64MiB", 64 << 20),
            ("1.5GiB", 3 << 29),
            ("2 G", 2 << 30),
            ("2GB", 2_000_000_000),
        ] {
            assert_eq!(text.parse::<Size>().map(|size| size.0), Ok(bytes), "{text}");
        }
        for text in ["", "x", "-1", "1e30", "12 parsecs", "99999999999TiB", "NaN"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert_eq!(Size(64 << 20).to_string(), "64MiB");
        assert_eq!(Size(1000).to_string(), "1000");
        assert_eq!(Size(0).to_string(), "0");
    }

    #[test]
    fn what_is_printed_is_read_again() {
        let text = "socket = \"/tmp/x.sock\"\nstaging = \"128MiB\"\n[[arena]]\nname = \"experts\"\npolicy = \"lru\"\n\
                    classes = [{ slots = 10, slot = \"24MiB\" }]\n";
        let config = Config::parse(text).expect("read");
        assert_eq!((config.staging, config.arenas[0].classes[0].slot), (Size(128 << 20), Size(24 << 20)));
        assert_eq!(Config::parse(&config.print()).expect("read again"), config);
        assert_eq!(Config::parse("").expect("empty"), Config::default());
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, named) in [
            ("socket = 3", "line 1"),
            ("\n\nsokcet = \"x\"", "line 3"),
            ("[quota]\nleases = -1", "line 2"),
            ("staging = \"many\"", "is not a size"),
            ("socket_mode = \"999\"", "socket_mode"),
            ("park = \"attic\"", "park = \"attic\""),
            ("[[arena]]\nname = \"a\"\nclasses = []", "arena \"a\""),
            (
                "[[arena]]\nname = \"a\"\npolicy = \"best\"\nclasses = [{slots=1,slot=1}]",
                "no policy \"best\"",
            ),
        ] {
            let error = Config::parse(text).expect_err(text);
            assert_eq!(error.kind(), "config");
            assert!(error.message().contains(named), "{error}");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let config = Config::parse("socket_mode = \"0660\"\nstaging = \"1MiB\"").expect("read");
        let over = Overrides {
            socket_mode: Some("0640".into()),
            devices: vec!["native:0".into()],
            ..Overrides::default()
        };
        let config = config.with(over).expect("checked");
        assert_eq!((config.mode(), config.staging.0, config.devices.len()), (0o640, 1 << 20, 1));
        assert!(
            Config::default()
                .with(Overrides { socket_mode: Some("x".into()), ..Overrides::default() })
                .is_err()
        );
    }
}
