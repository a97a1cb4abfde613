//! Gates that read the source: formatting, lints, documentation.

use super::{Run, Tally};
use crate::workspace::Workspace;

/// `cargo fmt --check`.
pub fn fmt(workspace: &Workspace, run: &mut Run) {
    run.gate("fmt", || {
        workspace.cargo().args(["fmt", "--all", "--check"]).run()?;
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
}

/// Documentation, warnings denied. It shares the metadata that clippy built.
pub fn doc(workspace: &Workspace, run: &mut Run) {
    run.gate("doc", || {
        let args = ["doc", "--workspace", "--no-deps", "--locked"];
        workspace.cargo().args(args).env("RUSTDOCFLAGS", "-D warnings").run()?;
        Ok(Tally::one())
    });
}
