//! End to end: the real binary as a user has it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use fs_err as fs;

use super::{Run, Tally, junit};
use crate::setup;
use crate::shell::{Cmd, python};
use crate::workspace::Workspace;

/// Far beyond what the demo takes on two cores; it ends a hang, it measures nothing.
const DEMO_LIMIT: Duration = Duration::from_secs(900);
/// The files of a run bundle.
const BUNDLE: [&str; 5] = [
    "run.json",
    "events.parquet",
    "environment.json",
    "server.json",
    "SHA256SUMS",
];

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
    run.gate("browser", || browser(workspace));
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

/// Where the demo gate leaves its results.
fn demo_out(workspace: &Workspace) -> PathBuf {
    workspace.target().join("e2e/demo/out")
}

/// The demo, and that each bundle it made verifies, and stops verifying when one byte of it changes.
fn demo(workspace: &Workspace) -> anyhow::Result<Tally> {
    let dir = scratch(workspace, "demo")?;
    let command = Cmd::new(workspace.binary())
        .args(["demo", "--json", "--out"])
        .arg(demo_out(workspace));
    let (status, stdout) = command.dir(workspace.root()).limited(DEMO_LIMIT)?;
    anyhow::ensure!(status.success(), "deltamux demo failed ({status})");
    let report: serde_json::Value = serde_json::from_str(&stdout).context("deltamux demo --json prints JSON")?;
    anyhow::ensure!(report["ok"] == true, "deltamux demo --json says {report}");
    let path = |value: &serde_json::Value| value.as_str().map(|p| workspace.root().join(p));
    let site = path(&report["site"]).context("deltamux demo --json names no site")?;
    anyhow::ensure!(site.is_file(), "{} is not there", site.display());
    let runs = report["runs"].as_array().into_iter().flatten();
    let runs: Vec<PathBuf> = runs.filter_map(path).collect();
    anyhow::ensure!(!runs.is_empty(), "deltamux demo --json names no run bundle");

    let mut tally = Tally::one();
    for bundle in &runs {
        tally.add(tamper(workspace, bundle, &dir.join("changed"))?);
    }
    Ok(tally)
}

/// A bundle verifies as it is, and not with one byte of any of its files changed.
fn tamper(workspace: &Workspace, bundle: &Path, copy: &Path) -> anyhow::Result<Tally> {
    let name = bundle.file_name().unwrap_or_default().to_string_lossy();
    let mut tally = Tally::default();
    if verifies(workspace, bundle)? {
        tally.passed += 1;
    } else {
        tally.failed.push(format!("bench verify of {name}"));
    }
    for file in BUNDLE {
        anyhow::ensure!(bundle.join(file).is_file(), "{name} has no {file}");
        copy_dir(bundle, copy)?;
        change_a_byte(&copy.join(file))?;
        if verifies(workspace, copy)? {
            let failure = format!("bench verify of {name} passes although {file} was changed");
            tally.failed.push(failure);
        } else {
            tally.passed += 1;
        }
        fs::remove_dir_all(copy)?;
    }
    Ok(tally)
}

/// The site that the demo made, opened in a real browser.
fn browser(workspace: &Workspace) -> anyhow::Result<Tally> {
    let chromium = setup::browser().context("no browser is installed; run `cargo xtask setup` first")?;
    let site = demo_out(workspace).join("site");
    anyhow::ensure!(site.is_dir(), "the demo made no site");
    let command = Cmd::new(python())
        .arg("tests/browser/site.py")
        .arg(&site)
        .args(["--chromium", chromium]);
    let mut failed = Vec::new();
    let succeeded = command.dir(workspace.root()).lines(|line| {
        println!("{line}");
        failed.extend(line.strip_prefix("failed: ").map(str::to_owned));
    })?;
    anyhow::ensure!(succeeded || !failed.is_empty(), "the checks did not run to their end");
    Ok(Tally {
        passed: usize::from(succeeded),
        failed,
        ..Tally::default()
    })
}

fn verifies(workspace: &Workspace, bundle: &Path) -> anyhow::Result<bool> {
    let command = Cmd::new(workspace.binary()).args(["bench", "verify"]).arg(bundle);
    Ok(command.without_stderr().limited(DEMO_LIMIT)?.0.success())
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
