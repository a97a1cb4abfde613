//! `deltamux merge`: put the shards of one compression together.

use std::path::PathBuf;
use std::time::Instant;

use deltamux_delta::merge;

/// Put the shards of one compression together into an artifact.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  for i in 1 2 3 4; do
    deltamux compress --base org/base --finetuned ./my-finetune --out shards/$i --shard $i/4
  done
  deltamux merge shards/1 shards/2 shards/3 shards/4 --out variants/mine

The shards may be made on different machines; deploy/ has jobs for Slurm and Kubernetes. With --budget matrix the
artifact is byte for byte what one run makes; with --budget model every shard shares out its own part of the budget.")]
pub struct Args {
    /// Directories that `compress --shard` made, all of one run, in any order.
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<PathBuf>,
    /// The artifact directory to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Name in the manifest; default: the name of the output directory.
    #[arg(long)]
    name: Option<String>,
    /// Replace an artifact at --out.
    #[arg(long)]
    force: bool,
    /// One JSON document on stdout instead of text, of the form that `compress --json` has.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let merged = merge(&args.shards, &args.out, args.name.as_deref(), args.force)?;
    super::compress::print(&merged, &args.out, started.elapsed().as_secs_f64(), args.json)
}
