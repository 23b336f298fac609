//! A child that is told by lines and answers by lines; it is killed when it is let go.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

pub struct Process {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Process {
    pub fn start(mut command: Command) -> Process {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (told, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if told.send(line).is_err() {
                    return;
                }
            }
        });
        Process { child, input, lines }
    }

    /// This program in a role.
    pub fn role(args: &[&str]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(args);
        Process::start(command)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The rest of the next line, which begins with `word`.
    pub fn expect(&self, word: &str) -> String {
        let line = self.lines.recv_timeout(Duration::from_secs(60));
        let line = line.unwrap_or_else(|error| panic!("waiting for {word:?}: {error}"));
        line.strip_prefix(word).unwrap_or_else(|| panic!("expected {word:?}, not {line:?}")).trim().to_owned()
    }

    pub fn ask(&mut self, line: &str, word: &str) -> String {
        writeln!(self.input, "{line}").expect("told");
        self.expect(word)
    }

    /// SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("ended");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
