//! Gates that read the source: formatting, lints, documentation. The fuzz targets, a workspace of their own, are read
//! too: nothing else would notice when they stop compiling.

use super::{Run, Tally};
use crate::workspace::Workspace;

const FUZZ: &str = "fuzz/Cargo.toml";

/// `cargo fmt --check`.
pub fn fmt(workspace: &Workspace, run: &mut Run) {
    run.gate("fmt", || {
        workspace.cargo().args(["fmt", "--all", "--check"]).run()?;
        workspace
            .cargo()
            .args(["fmt", "--check", "--manifest-path", FUZZ])
            .run()?;
        Ok(Tally::one())
    });
}

/// Clippy over every target, warnings denied.
pub fn clippy(workspace: &Workspace, run: &mut Run) {
    run.gate("clippy", || {
        let args = [
            "clippy",
            "--workspace",
            "--all-targets",
            "--locked",
            "--",
            "-D",
            "warnings",
        ];
        workspace.cargo().args(args).run()?;
        Ok(Tally::one())
    });
    // Its lock file follows the crates' dependencies, so it is not held with --locked.
    run.gate("clippy, fuzz", || {
        let clippy = workspace
            .cargo()
            .args(["clippy", "--manifest-path", FUZZ, "--target-dir"])
            .arg(workspace.target());
        clippy.args(["--", "-D", "warnings"]).run()?;
        Ok(Tally::one())
    });
}

/// Documentation, warnings denied. It shares the metadata that clippy built.
pub fn doc(workspace: &Workspace, run: &mut Run) {
    run.gate("doc", || {
        let args = ["doc", "--workspace", "--no-deps", "--locked"];
        workspace.cargo().args(args).env("RUSTDOCFLAGS", "-D warnings").run()?;
        Ok(Tally::one())
    });
}
