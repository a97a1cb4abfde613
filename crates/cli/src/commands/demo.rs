//! `deltamux demo`: everything on the bundled tiny family, end to end, in about a minute.

/// Everything on the bundled tiny family, end to end, in about a minute.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<()> {
    todo!()
}
