//! `deltamux report`: run bundles to a static site.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::Context as _;
use deltamux_report::{BuildOptions, Language, ReportError};

use crate::output;

/// Run bundles to a static site.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Build the site: a list of all runs and a page for each.
    ///
    /// Every bundle is verified; one that fails is shown as `unvalidated`, with the reasons. The pages open from disk
    /// without a network. An existing --out is replaced as a whole, and only if it is such a site (or empty).
    #[command(after_help = "Examples:\n  \
        deltamux report build runs/* --out site\n  \
        deltamux report build runs/20260908T145751Z-arrivals-1f3a --out site --lang de")]
    Build(Build),
    /// Hand a site out over HTTP until interrupted.
    #[command(after_help = "Example:\n  deltamux report serve site --port 8000")]
    Serve(Serve),
}

#[derive(Debug, clap::Args)]
struct Build {
    /// Folders of run bundles (each holds a run.json).
    #[arg(required = true, value_name = "BUNDLE")]
    bundles: Vec<PathBuf>,
    /// Folder of the site.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only this language; without it English at the root and German in `de/`.
    #[arg(long)]
    lang: Option<Lang>,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct Serve {
    /// Folder of the site.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Port; 0 picks a free one.
    #[arg(long, default_value_t = 8000)]
    port: u16,
    /// Address to listen on.
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Lang {
    En,
    De,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Build(args) => build(args),
        Command::Serve(args) => serve(args),
    }
}

fn build(args: Build) -> anyhow::Result<()> {
    let language = args.lang.map(|lang| match lang {
        Lang::En => Language::En,
        Lang::De => Language::De,
    });
    let options = BuildOptions {
        bundles: args.bundles,
        out: args.out,
        language,
    };
    let site = deltamux_report::build(&options).map_err(classify)?;
    if args.json {
        return output::json(&serde_json::json!({
            "ok": true,
            "site": site.index,
            "languages": site.languages,
            "runs": site.runs,
        }));
    }
    for run in &site.runs {
        output::text(format_args!("{}  {}", run.status, run.id))?;
        for reason in &run.reasons {
            output::text(format_args!("             {reason}"))?;
        }
    }
    output::text(site.index.display())
}

fn serve(args: Serve) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new().context("cannot start the server's threads")?;
    runtime.block_on(async {
        let server = deltamux_report::serve(&args.dir, SocketAddr::new(args.host, args.port))
            .await
            .map_err(classify)?;
        let url = format!("http://{}/", server.address());
        if args.json {
            output::json(&serde_json::json!({ "url": url }))?;
        } else {
            output::text(&url)?;
        }
        let interrupted = async {
            // Without a signal handler the server simply runs until it is killed.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        server.run(interrupted).await.map_err(classify)
    })
}

/// A fault of deltamux itself exits with 1, everything else with 2.
fn classify(error: ReportError) -> anyhow::Error {
    if error.is_internal() {
        output::Internal(error.to_string()).into()
    } else {
        error.into()
    }
}
