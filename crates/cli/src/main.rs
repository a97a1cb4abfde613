//! The `deltamux` binary: flags to calls, no logic.

mod answers;
mod commands;
mod demo;
mod output;
mod progress;
mod ratio;
mod signals;
mod size;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = commands::Cli::parse();
    output::init_logging();
    match commands::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::report(&error),
    }
}
