//! Running other programs.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// The cargo that runs this tool.
pub fn cargo() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// The system's Python 3.
pub fn python() -> OsString {
    "python3".into()
}

/// Whether a program is on the path.
pub fn on_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// A command to run.
#[derive(Debug)]
pub struct Cmd {
    command: Command,
}

impl Cmd {
    /// A program without arguments. It reads nothing from the terminal.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        Self { command }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Adds arguments.
    pub fn args<I: IntoIterator<Item: AsRef<OsStr>>>(mut self, args: I) -> Self {
        self.command.args(args);
        self
    }

    /// Sets a variable of its environment.
    pub fn env(mut self, key: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Sets variables of its environment.
    pub fn envs<K: AsRef<OsStr>, V: AsRef<OsStr>>(mut self, vars: impl IntoIterator<Item = (K, V)>) -> Self {
        self.command.envs(vars);
        self
    }

    /// Drops what it writes to stderr: for a failure that is expected.
    pub fn without_stderr(mut self) -> Self {
        self.command.stderr(Stdio::null());
        self
    }

    /// Sets its working directory.
    pub fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    /// The command line, for messages.
    fn line(&self) -> String {
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    fn start_failed(&self) -> String {
        format!("cannot start {:?}", self.command.get_program())
    }

    /// Runs it with this tool's output; an error unless it succeeds.
    pub fn run(mut self) -> anyhow::Result<()> {
        let status = self.command.status().with_context(|| self.start_failed())?;
        self.check(status)
    }

    /// Runs it with this tool's output and says whether it succeeded.
    pub fn succeeds(mut self) -> anyhow::Result<bool> {
        Ok(self.command.status().with_context(|| self.start_failed())?.success())
    }

    /// Runs it without output; an error with the last line that it wrote to stderr unless it succeeds.
    pub fn quiet(self) -> anyhow::Result<()> {
        self.stdout().map(drop)
    }

    /// Runs it and returns what it wrote to stdout; an error with its last line on stderr unless it succeeds.
    pub fn stdout(mut self) -> anyhow::Result<String> {
        let output = self.command.output().with_context(|| self.start_failed())?;
        if !output.status.success() {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.lines().rfind(|l| !l.trim().is_empty()).unwrap_or("no message");
            anyhow::bail!("`{}` failed ({}): {last}", self.line(), output.status);
        }
        String::from_utf8(output.stdout).with_context(|| format!("output of `{}`", self.line()))
    }

    /// Runs it, hands each line that it writes to stdout to `line`, and returns whether it succeeded. Its stderr is
    /// this tool's.
    pub fn lines(mut self, mut line: impl FnMut(&str)) -> anyhow::Result<bool> {
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| self.start_failed())?;
        if let Some(stdout) = child.stdout.take() {
            for text in BufReader::new(stdout).split(b'\n') {
                line(&String::from_utf8_lossy(&text?));
            }
        }
        Ok(child.wait()?.success())
    }

    /// Runs it and returns its exit status and what it wrote to stdout; kills it after `limit`. Its stderr is this
    /// tool's.
    pub fn limited(mut self, limit: Duration) -> anyhow::Result<(ExitStatus, String)> {
        let line = self.line();
        let mut child = self
            .command
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| self.start_failed())?;
        let stdout = child.stdout.take();
        let reader = std::thread::spawn(move || {
            let mut text = Vec::new();
            match stdout {
                Some(mut stdout) => std::io::Read::read_to_end(&mut stdout, &mut text).map(|_| text),
                None => Ok(text),
            }
        });
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if started.elapsed() > limit {
                child.kill()?;
                child.wait()?;
                anyhow::bail!("`{line}` did not end within {} s", limit.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let Ok(text) = reader.join() else {
            anyhow::bail!("the reader of `{line}` panicked");
        };
        Ok((status, String::from_utf8_lossy(&text?).into_owned()))
    }

    fn check(&self, status: ExitStatus) -> anyhow::Result<()> {
        anyhow::ensure!(status.success(), "`{}` failed ({status})", self.line());
        Ok(())
    }
}
