//! `deltamux demo`: everything on the bundled tiny family, end to end.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::{demo, output};

/// Everything on the bundled tiny family, end to end, in about a minute: compress the variants, check their answers,
/// serve them beside the Naive baseline, measure, verify the bundles and write the site.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux demo
  deltamux demo --out my-demo --open
  deltamux demo --json")]
pub struct Args {
    /// Folder for artifacts, run bundles and the site; replaced if an earlier demo made it.
    #[arg(long, value_name = "DIR", default_value = "demo")]
    out: PathBuf,
    /// Another model family: base/, route/, date/, json/, sql/ and data/.
    #[arg(long, value_name = "DIR")]
    family: Option<PathBuf>,
    /// Open the site in the browser afterwards.
    #[arg(long)]
    open: bool,
    /// One JSON document on stdout instead of tables.
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let report = demo::run(&args.out, args.family.as_deref())?;
    if args.json {
        output::json(&report)?;
    } else {
        output::text(demo::tables(&report))?;
    }
    if args.open {
        let opener = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
        let opened = Command::new(opener)
            .arg(&report.site)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        if let Err(error) = opened {
            anyhow::bail!("cannot open {} with {opener}: {error}", report.site.display());
        }
    }
    Ok(())
}
