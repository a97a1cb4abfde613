//! `deltamux bench quality`: exact match on tasks with known answers, by model and file, and with a base of one's own how
//! near its variants' predictions are to those of full fine-tunes.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use deltamux_bench::agreement::{AgreementOptions, compare};
use deltamux_bench::bundle::Reference;
use deltamux_bench::machine::artifacts_in;
use deltamux_bench::profile::Settings;
use deltamux_bench::quality::{Comparison, QualityProfile, TaskSet, answered, quality};
use deltamux_engine::EngineConfig;
use deltamux_model::{Precision, hub};

use super::load::{AboutArgs, command_line, drive, show, timeout};
use super::local::LocalServer;
use super::progress::Bars;
use crate::output;
use crate::precision::PrecisionArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux bench quality --url http://127.0.0.1:8080 --tasks models/tiny/data/sql.heldout.jsonl --variants sql
  deltamux bench quality --url http://127.0.0.1:8080 --tasks sql=sql.jsonl route=route.jsonl --limit 100
  deltamux bench quality --base models/tiny/base --variants variants --base-dtype q8 \\
                         --tasks sql=models/tiny/data/sql.heldout.jsonl --full sql=models/tiny/sql

Exits 1 when no request at all was answered; the bundle is written all the same.")]
pub struct Args {
    /// Base URL of an OpenAI-compatible server.
    #[arg(long, value_name = "URL", required_unless_present = "base", conflicts_with = "base")]
    url: Option<String>,
    /// Serve this base in this process instead: a directory or a hub id (org/name).
    #[arg(long, value_name = "DIR")]
    base: Option<String>,
    /// With --url: the variants to ask by name, or `all` [default: all]. With --base: the folder that holds them.
    #[arg(long, value_name = "NAMES|DIR")]
    variants: Option<String>,
    /// Ask only these models; the base, too, has a name.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    models: Vec<String>,
    /// Files of tasks, one {\"messages\": […], \"answer\": \"…\"} a line; NAME=FILE asks them of that model only.
    #[arg(long, value_name = "[NAME=]FILE", required = true, num_args = 1..)]
    tasks: Vec<String>,
    /// The first tasks of each file only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Completion tokens of an answer at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Requests in flight.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    /// Also compare the predictions of the variant NAME along the right answers with those of this full fine-tune: mean
    /// KL divergence, agreement on the most likely token, perplexity. Both are in memory then.
    #[arg(long, value_name = "NAME=DIR", requires = "base", conflicts_with = "url")]
    full: Vec<String>,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// Sent as a bearer token; never recorded.
    #[arg(long, value_name = "KEY", env = "DELTAMUX_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Seconds after which a request counts as failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 600.0)]
    timeout: f64,
    /// Folder that the bundle's folder is written into.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    out: PathBuf,
    /// What the run stands for in a comparison, e.g. PrinMix.
    #[arg(long)]
    label: Option<String>,
    #[command(flatten)]
    about: AboutArgs,
}

pub fn run(args: &Args, json: bool) -> anyhow::Result<()> {
    let mut profile = QualityProfile {
        tasks: args.read_tasks()?,
        concurrency: args.concurrency,
        max_tokens: args.max_tokens,
        comparisons: Vec::new(),
        not_compared: "a server gives answers, not distributions: use --base and --full NAME=DIR".to_owned(),
    };
    let mut settings = Settings::new(String::new(), args.out.clone());
    settings.timeout = timeout(args.timeout)?;
    settings.api_key = args.api_key.clone().filter(|key| !key.is_empty());
    settings.label = args.label.clone();
    settings.engine = args.about.engine();
    settings.command = command_line(std::env::args());
    let server = match (&args.base, &args.url) {
        (Some(base), _) => {
            let local = Local::of(args, base, &profile.tasks)?;
            settings.models = local.asked.clone();
            settings.engine.precision = Some(args.precision.name().to_owned());
            profile.not_compared = "no --full NAME=DIR was given for it".to_owned();
            // First, as it finds out most that can be wrong with what was given.
            profile.comparisons = local.comparisons(args, &profile.tasks)?;
            let server = LocalServer::start(local.config(args)?)?;
            settings.url.clone_from(&server.url);
            Some(server)
        }
        (None, Some(url)) => {
            settings.url.clone_from(url);
            settings.models = args.names()?;
            None
        }
        (None, None) => bail!("--url or --base is needed"),
    };
    let mut bars = Bars::new();
    let finished = drive(quality(&settings, &profile, |p| bars.show(&p)));
    bars.clear();
    drop(server);
    let finished = finished?;
    let shown = show(&finished, json);
    // Before a closed pipe: exit code 0 must mean that there are answers even when nobody reads.
    if answered(&finished) == 0 {
        let failures = finished.run.points.iter().flat_map(|point| &point.counts.failures);
        let mut kinds: Vec<&str> = failures.map(|(kind, _)| kind.as_str()).collect();
        kinds.dedup();
        return Err(output::Fruitless(format!(
            "no request was answered ({}); the bundle {} says so",
            kinds.join(", "),
            finished.bundle.display()
        ))
        .into());
    }
    shown
}

impl Args {
    fn read_tasks(&self) -> anyhow::Result<Vec<TaskSet>> {
        let limit = self.limit.map(|n| n as usize);
        let sets = self.tasks.iter().map(|text| {
            // A file may have an equals sign in its name.
            let (name, path) = match text.split_once('=') {
                // And a model may have a slash in its name.
                Some((name, path))
                    if !name.is_empty()
                        && !Path::new(text).exists()
                        && (!name.contains('/') || Path::new(path).exists()) =>
                {
                    (Some(name.to_owned()), path)
                }
                _ => (None, text.as_str()),
            };
            Ok(TaskSet::read(Path::new(path), limit, name)?)
        });
        sets.collect()
    }

    /// The models to ask of a server; empty: all.
    fn names(&self) -> anyhow::Result<Vec<String>> {
        ensure!(
            self.precision.precision()? == Precision::Stored,
            "--base-dtype and --activations are of a base that is served here (--base); say with --precision what the \
             server uses"
        );
        match self.variants.as_deref() {
            None | Some("all") => Ok(self.models.clone()),
            Some(_) if !self.models.is_empty() => bail!("--variants and --models both name models: leave one out"),
            Some(names) => Ok(names.split(',').map(str::to_owned).collect()),
        }
    }
}

/// A base that is served here.
struct Local {
    base: PathBuf,
    /// A model of the hub answers under its id.
    base_name: String,
    /// The folder of variants.
    variants: Option<PathBuf>,
    /// Models that are asked.
    asked: Vec<String>,
}

impl Local {
    /// Finds the models, and refuses names that are none.
    fn of(args: &Args, given: &str, sets: &[TaskSet]) -> anyhow::Result<Self> {
        ensure!(
            args.about.precision().is_none(),
            "--precision states what a server uses; with --base, choose it with --base-dtype"
        );
        let base = hub::resolve(given)?;
        let base_name = if base == Path::new(given) {
            let path = fs_err::canonicalize(&base)?;
            path.file_name()
                .map_or_else(|| "base".to_owned(), |name| name.to_string_lossy().into_owned())
        } else {
            given.to_owned()
        };
        let variants = args.variants.as_ref().map(PathBuf::from);
        let mut names: Vec<String> = match &variants {
            Some(folder) => artifacts_in(folder)
                .context("--variants")?
                .iter()
                .filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()))
                .collect(),
            None => Vec::new(),
        };
        if let Some(folder) = variants.as_ref().filter(|_| names.is_empty()) {
            bail!(
                "--variants {}: holds no artifact; make some with deltamux compress",
                folder.display()
            );
        }
        let asked = match (args.models.as_slice(), names.is_empty()) {
            ([], true) => vec![base_name.clone()],
            ([], false) => names.clone(),
            (named, _) => named.to_vec(),
        };
        names.insert(0, base_name.clone());
        for name in asked
            .iter()
            .chain(sets.iter().filter_map(|set| set.file.model.as_ref()))
        {
            ensure!(
                names.contains(name),
                "there is no model `{name}`; there are: {}",
                names.join(", ")
            );
        }
        Ok(Self {
            base,
            base_name,
            variants,
            asked,
        })
    }

    fn config(&self, args: &Args) -> anyhow::Result<EngineConfig> {
        Ok(EngineConfig {
            base_name: Some(self.base_name.clone()),
            variants: self.variants.clone(),
            precision: args.precision.precision()?,
            weight_cache: args.precision.weight_cache(),
            ..EngineConfig::new(self.base.clone())
        })
    }

    /// Compares each variant that has a full fine-tune with it, over each file of tasks that is for it.
    fn comparisons(&self, args: &Args, sets: &[TaskSet]) -> anyhow::Result<Vec<Comparison>> {
        let mut pairs: Vec<(&str, PathBuf, String)> = Vec::new();
        for text in &args.full {
            let Some((name, dir)) = text
                .split_once('=')
                .filter(|(name, dir)| !name.is_empty() && !dir.is_empty())
            else {
                bail!("--full {text}: expected NAME=DIR");
            };
            ensure!(
                self.asked.iter().any(|asked| asked == name),
                "--full {text}: `{name}` is not asked; asked are: {}",
                self.asked.join(", ")
            );
            ensure!(
                pairs.iter().all(|(other, ..)| *other != name),
                "--full: `{name}` has two fine-tunes; leave one out"
            );
            let resolved = hub::resolve(dir).with_context(|| format!("--full {text}"))?;
            let shown = resolved.file_name().filter(|_| resolved == Path::new(dir));
            let shown = shown.map_or_else(|| dir.to_owned(), |name| name.to_string_lossy().into_owned());
            pairs.push((name, resolved, shown));
        }
        let mut comparisons = Vec::new();
        for (name, reference, shown) in &pairs {
            let options = AgreementOptions {
                model: self.base.clone(),
                variant: self
                    .variants
                    .as_ref()
                    .filter(|_| *name != self.base_name)
                    .map(|dir| dir.join(name)),
                reference: reference.clone(),
                precision: args.precision.precision()?,
                weight_cache: args.precision.weight_cache(),
            };
            for (place, set) in sets.iter().enumerate().filter(|(_, set)| set.is_for(name)) {
                let bar = indicatif::ProgressBar::new(set.tasks.len() as u64);
                let compared = compare(&options, &set.tasks, &|done| bar.set_position(done as u64));
                bar.finish_and_clear();
                let compared = compared.with_context(|| format!("{name} against {shown} on {}", set.file.name))?;
                comparisons.push(Comparison {
                    model: (*name).to_owned(),
                    tasks: place,
                    reference: Reference {
                        name: shown.clone(),
                        digest: compared.reference_digest,
                    },
                    sums: compared.tasks.iter().map(|sums| sums.record()).collect(),
                });
            }
        }
        Ok(comparisons)
    }
}
