//! The real binary and a server of it.
#![allow(dead_code)] // Each test binary uses its own part.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

/// A file or folder of the tiny family.
pub fn tiny(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/tiny")
        .join(path)
}

/// The binary, with no logs.
pub fn deltamux(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltamux"));
    command.args(args).env_remove("RUST_LOG").env_remove("DELTAMUX_API_KEY");
    command
}

/// Runs to the end and gives the JSON on stdout; the exit code must be 0.
pub fn json(command: &mut Command) -> Value {
    let output = command.arg("--json").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The one line that a user's error prints; the exit code must be 2 and stdout empty.
pub fn refusal(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(output.stdout.is_empty());
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

/// A running server of the tiny base, stopped when it goes out of scope.
pub struct Server {
    child: Child,
    /// Its address.
    pub url: String,
}

impl Server {
    /// Starts it on a free port.
    pub fn start() -> Self {
        Self::of(
            deltamux(&["serve", "--threads", "1", "--kv-memory", "16MiB"])
                .arg("--base")
                .arg(tiny("base")),
        )
    }

    /// Starts `deltamux serve` with these arguments on a free port.
    pub fn of(serve: &mut Command) -> Self {
        let mut child = serve.args(["--port", "0"]).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        let url = line
            .split_whitespace()
            .find(|word| word.starts_with("http://"))
            .unwrap()
            .to_owned();
        Self { child, url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
