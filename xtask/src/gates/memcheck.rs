//! The kernels' tests under valgrind: nothing is read or written out of bounds, and no branch depends on memory that was
//! never written.

use anyhow::Context as _;

use super::{Run, libtest};
use crate::shell::{Cmd, on_path};
use crate::workspace::Workspace;

/// What valgrind exits with when it found something.
const FOUND: &str = "--error-exitcode=9";

/// Cases of a property test: valgrind runs the same instructions some thirty times slower.
const CASES: &str = "8";

/// Tests over every half and every thousandth of an exponent, which read no memory worth checking.
const SKIPPED: [&str; 2] = ["every_half", "exp_is_within"];

/// Runs the gate.
pub fn all(workspace: &Workspace, run: &mut Run) {
    run.gate("memcheck", || {
        anyhow::ensure!(
            on_path("valgrind"),
            "valgrind is not installed; cargo xtask setup installs it"
        );
        let tests = kernel_tests(workspace)?;
        let mut output = libtest::Output::default();
        let succeeded = Cmd::new("valgrind")
            .args(["-q", FOUND, &tests])
            .args(SKIPPED.iter().flat_map(|test| ["--skip", test]))
            // Valgrind does not know AVX-512.
            .env("DELTAMUX_ISA", "avx2")
            .env("PROPTEST_CASES", CASES)
            .envs([super::test::property_seed()])
            .lines(|line| {
                println!("{line}");
                output.line(line);
            })?;
        let tally = output.tally();
        anyhow::ensure!(
            succeeded || !tally.failed.is_empty(),
            "valgrind found an access that is not allowed; its report is above"
        );
        Ok(tally)
    });
}

/// The kernels' unit tests, built with the workspace's other tests, so that nothing is built twice.
fn kernel_tests(workspace: &Workspace) -> anyhow::Result<String> {
    let messages = workspace
        .cargo()
        .args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"])
        .args(["--release", "--locked", "--message-format=json"])
        .stdout()?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == "deltamux_kernels" && message["profile"]["test"] == true)
        .find_map(|message| message["executable"].as_str().map(str::to_owned))
        .context("cargo names no test binary of deltamux-kernels")
}
