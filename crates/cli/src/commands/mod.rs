//! One file a command.

mod bench;
mod compress;
mod demo;
mod eval;
mod generate;
mod inspect;
mod merge;
mod report;
mod restore;
mod serve;
mod synth;

pub(crate) use bench::command_line;

/// Serve dozens of full-parameter fine-tunes of one base LLM from a single copy of its weights, and prove how well that
/// goes.
#[derive(Debug, clap::Parser)]
#[command(name = "deltamux", version, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Measure a server, verify and compare run bundles.
    Bench(Box<bench::Args>),
    /// Compress a fine-tune's difference to its base into an artifact.
    Compress(compress::Args),
    /// Everything on the bundled tiny family, end to end, in about a minute.
    Demo(demo::Args),
    /// Exact match of greedy answers on a file of tasks.
    Eval(eval::Args),
    /// Answer one prompt.
    Generate(generate::Args),
    /// An artifact's manifest, with its digests checked.
    Inspect(inspect::Args),
    /// Put the shards of one compression together into an artifact.
    Merge(merge::Args),
    /// Run bundles to a static site.
    Report(report::Args),
    /// Turn an artifact back into a full checkpoint for other engines.
    Restore(restore::Args),
    /// Serve the base and its variants behind an OpenAI-compatible API.
    Serve(Box<serve::Args>),
    /// Make a base with random weights in a real model's shape and variants of it, for load tests.
    Synth(synth::Args),
}

/// Runs the command.
pub fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Bench(args) => bench::run(*args),
        Command::Compress(args) => compress::run(args),
        Command::Demo(args) => demo::run(&args),
        Command::Eval(args) => eval::run(args),
        Command::Generate(args) => generate::run(args),
        Command::Inspect(args) => inspect::run(args),
        Command::Merge(args) => merge::run(args),
        Command::Report(args) => report::run(args),
        Command::Restore(args) => restore::run(args),
        Command::Serve(args) => serve::run(&args),
        Command::Synth(args) => synth::run(&args),
    }
}
