//! `deltamux bench verify`: digests and figures of run bundles.

use std::path::PathBuf;

use anyhow::bail;
use deltamux_bench::verify::{Status, Verification, verify};

use crate::output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux bench verify runs/*
Exits 0 only if every bundle is validated.")]
pub struct Args {
    /// Folders of run bundles.
    #[arg(required = true, value_name = "BUNDLE")]
    bundles: Vec<PathBuf>,
}

pub fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let verifications = args
        .bundles
        .iter()
        .map(|path| verify(path))
        .collect::<Result<Vec<_>, _>>()?;
    let bad: Vec<_> = verifications
        .iter()
        .filter(|v| v.status == Status::Unvalidated)
        .collect();
    let status = if bad.is_empty() {
        Status::Validated
    } else {
        Status::Unvalidated
    };
    let printed = if json {
        output::json(&serde_json::json!({ "status": status, "bundles": verifications }))
    } else {
        verifications.iter().try_for_each(print)
    };
    // The verdict comes before a closed pipe: exit code 0 must mean `validated` even when nobody reads.
    match bad.first() {
        None => printed,
        Some(first) => bail!(
            "{} of {} bundles unvalidated; {}: {}",
            bad.len(),
            verifications.len(),
            first.bundle,
            first.reasons.first().map_or("", String::as_str)
        ),
    }
}

fn print(verification: &Verification) -> anyhow::Result<()> {
    let status = match verification.status {
        Status::Validated => "validated",
        Status::Unvalidated => "unvalidated",
    };
    output::text(format!("{}: {status}", verification.bundle))?;
    verification
        .reasons
        .iter()
        .try_for_each(|reason| output::text(format!("  {reason}")))
}
