//! The `deltamux` binary: flags to calls, no logic.

mod answers;
mod commands;
mod demo;
mod output;
mod precision;
mod progress;
mod ratio;
mod signals;
mod size;
mod threads;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match commands::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(&error),
    };
    output::init_logging();
    // A panic is a broken invariant of ours: one line and exit code 1, as for every internal error.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("error: internal error: {}", panic.to_string().replace('\n', " "));
    }));
    match std::panic::catch_unwind(|| commands::run(cli)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) => output::report(&error),
        Err(_) => ExitCode::from(1),
    }
}
