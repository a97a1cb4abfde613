//! A server of our own in a process of its own, as a user would start it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// A running `deltamux serve`; dropping it stops the process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Base URL.
    pub url: String,
}

/// How long a server may take to stop once asked.
const STOP: Duration = Duration::from_secs(5);

impl Server {
    /// Starts `deltamux serve` with the base, a folder of variants and further flags, on a free port.
    pub fn start(base: &Path, variants: &Path, flags: &[&str]) -> anyhow::Result<Self> {
        let binary = std::env::current_exe().context("the path of this binary")?;
        let mut child = Command::new(binary)
            .args(["serve", "--json", "--port", "0", "--base"])
            .arg(base)
            .arg("--variants")
            .arg(variants)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start deltamux serve")?;
        let Some(stdout) = child.stdout.take() else {
            bail!("deltamux serve has no output")
        };
        let mut server = Self {
            child,
            url: String::new(),
        };
        // `--json` prints one document when ready; its last line closes it.
        let mut document = String::new();
        for line in BufReader::new(stdout).lines() {
            document.push_str(&line?);
            document.push('\n');
            if let Ok(ready) = serde_json::from_str::<serde_json::Value>(&document) {
                let url = ready["url"].as_str().context("deltamux serve printed no url")?;
                server.url = url.trim_end_matches('/').to_owned();
                return Ok(server);
            }
        }
        bail!("deltamux serve ended before it was ready")
    }

    /// Stops the server: lets it drain, kills it if it does not.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = Command::new("kill")
            .args(["-TERM", &self.child.id().to_string()])
            .status();
        let deadline = Instant::now() + STOP;
        while Instant::now() < deadline {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end();
        }
    }
}
