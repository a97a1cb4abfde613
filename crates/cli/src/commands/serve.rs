//! `deltamux serve`: serve the base and its variants behind an OpenAI-compatible API.

/// Serve the base and its variants behind an OpenAI-compatible API.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<()> {
    todo!()
}
