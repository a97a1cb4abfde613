//! `deltamux bench`: measure a server, verify run bundles.

mod arrivals;
mod concurrency;
mod forward;
mod kernels;
mod load;
mod local;

pub(crate) use load::command_line;
mod progress;
mod quality;
mod scores;
mod table;
mod verify;

use crate::output;

/// Measure a server, verify run bundles.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    /// One JSON document on stdout instead of text.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Open loop: requests come at given rates whatever the server does.
    Arrivals(arrivals::Args),
    /// Closed loop: a fixed number of requests in flight.
    Concurrency(concurrency::Args),
    /// Tasks with known answers: the share answered right, and how near variants are to full fine-tunes.
    Quality(Box<quality::Args>),
    /// Each kernel's share of this machine's read bandwidth and arithmetic peaks.
    Kernels(kernels::Args),
    /// Steps of the forward pass in this process, against the machine's limits.
    Forward(forward::Args),
    /// Recompute every figure of run bundles from their raw events and check their digests.
    Verify(verify::Args),
    /// The JSON Schema of run.json.
    Schema,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Arrivals(command) => arrivals::run(command, args.json),
        Command::Concurrency(command) => concurrency::run(command, args.json),
        Command::Quality(command) => quality::run(&command, args.json),
        Command::Kernels(command) => kernels::run(command, args.json),
        Command::Forward(command) => forward::run(command, args.json),
        Command::Verify(command) => verify::run(command, args.json),
        Command::Schema => output::json(&deltamux_bench::bundle::run_schema()),
    }
}
