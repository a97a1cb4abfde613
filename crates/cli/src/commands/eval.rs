//! `deltamux eval`: exact match of greedy answers on a file of tasks.

/// Exact match of greedy answers on a file of tasks.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(_args: Args) -> anyhow::Result<()> {
    todo!()
}
