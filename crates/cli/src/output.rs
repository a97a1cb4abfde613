//! What the commands print: one JSON document or text on stdout, everything else on stderr.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

/// An error that is deltamux's own fault (exit code 1); everything else is the user's (exit code 2).
#[derive(Debug, thiserror::Error)]
#[error("internal error: {0}")]
pub struct Internal(pub String);

/// What was to be done was done, and came to nothing that could be used (exit code 1).
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Fruitless(pub String);

/// Logs go to stderr; `RUST_LOG` sets the level.
pub fn init_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

/// Prints an error chain as one line and picks the exit code. A closed pipe is no error.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(|e| {
        e.downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
    }) {
        return ExitCode::SUCCESS;
    }
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !line.contains(&text) {
            if !line.is_empty() {
                line.push_str(": ");
            }
            line.push_str(&text);
        }
    }
    let _ = writeln!(std::io::stderr(), "error: {}", line.replace('\n', " "));
    if error.chain().any(|e| e.is::<Internal>() || e.is::<Fruitless>()) {
        ExitCode::from(1)
    } else {
        ExitCode::from(2)
    }
}

/// Prints help where it was asked for; else what is wrong with the command line, as one line.
pub fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(error.exit_code() as u8);
    }
    let text = error.render().to_string();
    // The message proper ends before the usage; tips stay.
    let message = text
        .split("\nUsage:")
        .next()
        .unwrap_or_default()
        .split("\nFor more information")
        .next();
    let words: Vec<&str> = message.unwrap_or_default().split_whitespace().collect();
    let _ = writeln!(std::io::stderr(), "{} (see --help)", words.join(" "));
    ExitCode::from(2)
}

/// Prints one JSON document on stdout.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value).map_err(std::io::Error::from)?;
    writeln!(out)?;
    Ok(())
}

/// Prints text on stdout.
pub fn text(value: impl std::fmt::Display) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{value}")?;
    Ok(())
}
