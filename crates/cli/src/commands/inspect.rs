//! `deltamux inspect`: an artifact's manifest, with its digests checked.

/// An artifact's manifest, with its digests checked.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<()> {
    todo!()
}
