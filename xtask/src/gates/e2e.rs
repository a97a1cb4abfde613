//! End to end: the real binary as a user has it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use fs_err as fs;

use super::{Run, Tally, junit};
use crate::shell::Cmd;
use crate::workspace::Workspace;

/// Far beyond what the demo takes on two cores; it ends a hang, it measures nothing.
const DEMO_LIMIT: Duration = Duration::from_secs(900);

/// Builds the binary as `cargo run --release` does and runs every end-to-end gate.
pub fn all(workspace: &Workspace, run: &mut Run) {
    run.gate("release build", || {
        workspace
            .cargo()
            .args(["build", "--release", "--locked", "--bin", "deltamux"])
            .run()?;
        Ok(Tally::one())
    });
    run.gate("openai client", || openai_client(workspace));
    run.gate("demo", || demo(workspace));
}

/// The official Python client against a real server.
fn openai_client(workspace: &Workspace) -> anyhow::Result<Tally> {
    let report = scratch(workspace, "clients")?.join("junit.xml");
    let mut junit_arg = std::ffi::OsString::from("--junitxml=");
    junit_arg.push(&report);
    let succeeded = Cmd::new(workspace.venv().join("bin/python"))
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/clients"])
        .arg(junit_arg)
        .dir(workspace.root())
        .env("DELTAMUX_BIN", workspace.binary())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .succeeds()
        .context("run `cargo xtask setup` first")?;
    let tally = junit::read(&fs::read_to_string(&report).context("pytest did not get as far as a report")?)?;
    anyhow::ensure!(
        succeeded || !tally.failed.is_empty(),
        "pytest failed, but reports no failed test"
    );
    Ok(tally)
}

/// The demo, and that each bundle it made verifies, and stops verifying when one byte of it changes.
fn demo(workspace: &Workspace) -> anyhow::Result<Tally> {
    let dir = scratch(workspace, "demo")?;
    let out = dir.join("out");
    let (status, stdout) = Cmd::new(workspace.binary())
        .args(["demo", "--json", "--out"])
        .arg(&out)
        .dir(&dir)
        .limited(DEMO_LIMIT)?;
    anyhow::ensure!(status.success(), "deltamux demo failed ({status})");
    let report: serde_json::Value = serde_json::from_str(&stdout).context("deltamux demo --json prints JSON")?;
    anyhow::ensure!(report["ok"] == true, "deltamux demo --json says {report}");
    let path = |value: &serde_json::Value| value.as_str().map(|p| dir.join(p));
    let site = path(&report["site"]).context("deltamux demo --json names no site")?;
    anyhow::ensure!(site.is_file(), "{} is not there", site.display());
    let runs: Vec<PathBuf> = report["runs"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(path)
        .collect();
    anyhow::ensure!(!runs.is_empty(), "deltamux demo --json names no run bundle");

    let mut tally = Tally::one();
    for bundle in &runs {
        let name = bundle.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !verifies(workspace, bundle)? {
            tally.failed.push(format!("bench verify of {name}"));
            continue;
        }
        tally.passed += 1;
        for file in [
            "run.json",
            "events.parquet",
            "environment.json",
            "server.json",
            "SHA256SUMS",
        ] {
            if !bundle.join(file).is_file() {
                tally.failed.push(format!("{name} has no {file}"));
                continue;
            }
            let copy = dir.join("changed").join(&name);
            copy_dir(bundle, &copy)?;
            change_a_byte(&copy.join(file))?;
            if verifies(workspace, &copy)? {
                tally
                    .failed
                    .push(format!("bench verify of {name} passes although {file} was changed"));
            } else {
                tally.passed += 1;
            }
            fs::remove_dir_all(&copy)?;
        }
    }
    Ok(tally)
}

fn verifies(workspace: &Workspace, bundle: &Path) -> anyhow::Result<bool> {
    let command = Cmd::new(workspace.binary()).args(["bench", "verify"]).arg(bundle);
    Ok(command.limited(DEMO_LIMIT)?.0.success())
}

/// An empty directory for one gate.
fn scratch(workspace: &Workspace, name: &str) -> anyhow::Result<PathBuf> {
    let dir = workspace.target().join("e2e").join(name);
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn copy_dir(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_dir(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

/// Changes the byte in the middle: a digit stays a digit, so that JSON stays JSON wherever it can.
fn change_a_byte(path: &Path) -> anyhow::Result<()> {
    let mut bytes = fs::read(path)?;
    let at = bytes.iter().rposition(u8::is_ascii_digit).unwrap_or(bytes.len() / 2);
    let byte = bytes
        .get_mut(at)
        .with_context(|| format!("{} is empty", path.display()))?;
    *byte = if *byte == b'7' { b'8' } else { b'7' };
    fs::write(path, bytes)?;
    Ok(())
}
