//! `deltamux bench`: measure a server, verify and compare run bundles.

/// Measure a server, verify and compare run bundles.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<()> {
    todo!()
}
