//! `deltamux restore`: turn an artifact back into a full checkpoint for other engines.

/// Turn an artifact back into a full checkpoint for other engines.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<()> {
    todo!()
}
