//! `deltamux compress`: compress a fine-tune's difference to its base into an artifact.

/// Compress a fine-tune's difference to its base into an artifact.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<()> {
    todo!()
}
