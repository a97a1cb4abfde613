//! `cargo xtask`: every gate by name, or all of them.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::gates::{self, Run};
use xtask::models::{self, Models};
use xtask::workspace::Workspace;
use xtask::{setup, smollm2};

/// The gates of deltamux.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum Command {
    /// Installs what the tests need, then runs every gate; what CI runs.
    Ci,
    /// Formatting (rustfmt --check).
    Fmt,
    /// Lints, warnings denied.
    Clippy,
    /// Documentation of every crate, warnings denied.
    Doc,
    /// Unit, integration and documentation tests, in the release profile.
    Test,
    /// The kernels' tests under valgrind.
    Memcheck,
    /// The real binary: official OpenAI client, demo, run bundles, browser.
    E2e,
    /// Installs system packages (when missing) and the Python environment under the target directory.
    Setup,
    /// Makes the SmolLM2 base model under the target directory and prints its path.
    Smollm2,
    /// Lays out the test bed with the SmolLM2 fine-tunes, where its sources lie beside the repository, and prints its
    /// path.
    Testbed,
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command; `false` when a gate failed.
fn run(command: Command) -> anyhow::Result<bool> {
    let workspace = Workspace::find()?;
    let mut run = Run::default();
    match command {
        Command::Setup => {
            setup::all(&workspace)?;
            return Ok(true);
        }
        Command::Smollm2 => {
            println!("{}", smollm2::build(&workspace.smollm2())?.display());
            return Ok(true);
        }
        Command::Testbed => {
            println!("{}", models::testbed(&workspace)?.display());
            return Ok(true);
        }
        Command::Fmt => gates::lint::fmt(&workspace, &mut run),
        Command::Clippy => gates::lint::clippy(&workspace, &mut run),
        Command::Doc => gates::lint::doc(&workspace, &mut run),
        Command::Test => test(&workspace, &mut run),
        Command::Memcheck => gates::memcheck::all(&workspace, &mut run),
        Command::E2e => gates::e2e::all(&workspace, &mut run),
        Command::Ci => {
            run.gate("setup", || setup::all(&workspace).map(|()| gates::Tally::one()));
            gates::lint::fmt(&workspace, &mut run);
            gates::lint::clippy(&workspace, &mut run);
            gates::lint::doc(&workspace, &mut run);
            test(&workspace, &mut run);
            gates::memcheck::all(&workspace, &mut run);
            gates::e2e::all(&workspace, &mut run);
        }
    }
    Ok(run.summary())
}

fn test(workspace: &Workspace, run: &mut Run) {
    let mut models = Models::default();
    run.gate("test models", || {
        models = Models::prepare(workspace);
        Ok(gates::Tally::default())
    });
    gates::test::all(workspace, &models, run);
    run.note(models.notes());
}
