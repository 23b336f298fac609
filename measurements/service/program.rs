//! The service as a process, and the folder that it works in.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use spoc_client::blocking;

/// Groups of the small model, all of which have slots.
pub const GROUPS: u32 = 256;
/// Bytes of each.
const GROUP_BYTES: usize = 4096;

/// A folder with models and sockets.
pub struct Place {
    folder: tempfile::TempDir,
    backend: String,
    program: PathBuf,
}

/// A process that ends with this.
pub struct Running {
    child: Child,
    /// What it said when it was ready.
    pub ready: serde_json::Value,
    pub ready_after: Duration,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(mut command: Command) -> Result<Running> {
        let began = Instant::now();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{command:?}: build it: cargo build --release -p spoc-tools"))?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("piped")?).read_line(&mut line)?;
        let ready = serde_json::from_str(&line).with_context(|| format!("it said {line:?}"))?;
        Ok(Running { child, ready, ready_after: began.elapsed() })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Place {
    pub fn new(backend: &str, model_mib: u64) -> Result<Place> {
        let folder = tempfile::tempdir()?;
        let program = std::env::current_exe()?.with_file_name("spoc-loader");
        ensure!(program.exists(), "{}: build it: cargo build --release -p spoc-tools", program.display());
        write_model(&folder.path().join("small.safetensors"), GROUPS as usize, GROUP_BYTES)?;
        let each = usize::try_from(model_mib << 20)? / 64;
        write_model(&folder.path().join("large.safetensors"), 64, each)?;
        let config = format!(
            "staging = \"64MiB\"\n[quota]\nleases = 65536\n[[arena]]\nname = \"a\"\n\
             classes = [{{ slots = {GROUPS}, slot = \"{GROUP_BYTES}\" }}]\n"
        );
        std::fs::write(folder.path().join("spoc.toml"), config)?;
        Ok(Place { folder, backend: backend.to_owned(), program })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("spoc.sock")
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--json", name]).env_remove("SPOC_LOG");
        command
    }

    /// A service; one that parks with the keeper if asked.
    pub fn serve(&self, parks: bool) -> Result<Running> {
        let mut command = self.command("serve");
        command.arg("--config").arg(self.path("spoc.toml")).arg("--socket").arg(self.socket());
        command.args(["--devices", &format!("{}:0", self.backend)]);
        if parks {
            command.arg("--park").arg(format!("keeper:{}", self.path("keep").display()));
        }
        Running::start(command)
    }

    pub fn keeper(&self) -> Result<Running> {
        let mut command = self.command("keeper");
        command.arg("--socket").arg(self.path("keep"));
        Running::start(command)
    }

    pub fn client(&self) -> Result<blocking::Client> {
        Ok(blocking::Client::connect(self.socket())?)
    }

    /// Registers a model by its file's name.
    pub fn register(&self, client: &blocking::Client, name: &str, arena: &str) -> Result<()> {
        let path = self.path(&format!("{name}.safetensors"));
        client.register(path.to_str().context("a path of text")?, name, arena)?;
        Ok(())
    }
}

fn write_model(path: &Path, layers: usize, len: usize) -> Result<()> {
    let entry = |layer: usize| {
        let (from, to) = (layer * len, (layer + 1) * len);
        format!("\"layers.{layer}.w\":{{\"dtype\":\"U8\",\"shape\":[{len}],\"data_offsets\":[{from},{to}]}}")
    };
    let header = format!("{{{}}}", (0..layers).map(entry).collect::<Vec<_>>().join(","));
    let mut file = std::io::BufWriter::new(std::fs::File::create(path)?);
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut bytes = vec![0; len];
    for layer in 0..layers {
        bytes.iter_mut().enumerate().for_each(|(at, byte)| *byte = ((at >> 3) ^ layer).to_le_bytes()[0]);
        file.write_all(&bytes)?;
    }
    file.into_inner()?.sync_all()?;
    Ok(())
}
