//! The tests of the workspace, built once in the release profile.

use fs_err as fs;

use super::{Run, Tally, junit, libtest};
use crate::models::Models;
use crate::workspace::Workspace;

/// Proptest's variable, and the seed when nobody sets it: every run of the gates judges a change by the same cases.
/// Exploring others is what other seeds and the fuzz targets are for.
const PROPERTY_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20260731");

/// The variable with its value.
pub(super) fn property_seed() -> (&'static str, String) {
    let seed = std::env::var(PROPERTY_SEED.0).unwrap_or_else(|_| PROPERTY_SEED.1.to_owned());
    (PROPERTY_SEED.0, seed)
}

/// Unit and integration tests with nextest where it is installed, else with cargo's own runner; then the documentation
/// tests, which only cargo runs.
pub fn all(workspace: &Workspace, models: &Models, run: &mut Run) {
    run.gate("tests", || {
        if workspace.cargo().args(["nextest", "--version"]).quiet().is_ok() {
            nextest(workspace, models)
        } else {
            let args = ["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"];
            cargo_test(workspace, models, &args)
        }
    });
    run.gate("doctests", || {
        cargo_test(workspace, models, &["test", "--workspace", "--doc", "--no-fail-fast"])
    });
}

fn nextest(workspace: &Workspace, models: &Models) -> anyhow::Result<Tally> {
    // The store and the profile `ci` of .config/nextest.toml say that this file is written, wherever cargo builds.
    let report = workspace.root().join("target/nextest/ci/junit.xml");
    if report.exists() {
        fs::remove_file(&report)?;
    }
    let args = [
        "nextest",
        "run",
        "--workspace",
        "--release",
        "--locked",
        "--profile",
        "ci",
    ];
    let succeeded = workspace
        .cargo()
        .args(args)
        .envs([property_seed()])
        .envs(models.vars().iter().cloned())
        .succeeds()?;
    anyhow::ensure!(report.is_file(), "the tests do not build");
    let tally = junit::read(&fs::read_to_string(&report)?)?;
    anyhow::ensure!(
        succeeded || !tally.failed.is_empty(),
        "nextest failed, but reports no failed test"
    );
    Ok(tally)
}

fn cargo_test(workspace: &Workspace, models: &Models, args: &[&str]) -> anyhow::Result<Tally> {
    let mut output = libtest::Output::default();
    let command = workspace
        .cargo()
        .args(args)
        .args(["--release", "--locked", "--", "--show-output"])
        .envs([property_seed()]);
    let succeeded = command.envs(models.vars().iter().cloned()).lines(|line| {
        println!("{line}");
        output.line(line);
    })?;
    let tally = output.tally();
    anyhow::ensure!(succeeded || !tally.failed.is_empty(), "the tests do not build");
    Ok(tally)
}
