//! `deltamux restore`: turn an artifact back into a full checkpoint for other engines.

use std::path::PathBuf;

use deltamux_delta::restore;

use crate::progress::Stages;
use crate::{output, size};

/// Turn an artifact back into a full checkpoint for other engines.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux restore --base models/tiny/base --variant variants/sql --out restored/sql")]
pub struct Args {
    /// The base model: a directory or a hub id.
    #[arg(long, value_name = "DIR")]
    base: String,
    /// The artifact.
    #[arg(long, value_name = "ARTIFACT")]
    variant: PathBuf,
    /// The checkpoint directory to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Replace a checkpoint at --out.
    #[arg(long)]
    force: bool,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let base = deltamux_model::hub::resolve(&args.base)?;
    let stages = Stages::new();
    let result = restore(&base, &args.variant, &args.out, args.force, &|done, total| {
        stages.set("restoring (tensors)", done, total);
    });
    stages.finish();
    let restored = result?;
    if args.json {
        return output::json(&serde_json::json!({
            "name": restored.name,
            "out": args.out,
            "tensors": restored.tensors,
            "bytes": restored.bytes,
        }));
    }
    output::text(format!(
        "{}: checkpoint of {} with {} tensors, {}",
        args.out.display(),
        restored.name,
        restored.tensors,
        size::format(restored.bytes)
    ))
}
