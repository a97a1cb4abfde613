//! `deltamux eval`: exact match of greedy answers on a file of tasks, and how near the predictions are to a full
//! fine-tune's.

use std::path::PathBuf;

use anyhow::anyhow;
use deltamux_bench::agreement::{Agreement, AgreementOptions, agreement};
use deltamux_bench::tasks::{Task, read_tasks, score};
use deltamux_engine::EngineConfig;
use deltamux_model::hub;
use serde_json::json;

use crate::answers::{self, Answers};
use crate::output;
use crate::precision::PrecisionArgs;

/// Exact match of greedy answers on a file of tasks.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux eval --base models/tiny/base --variant variants/sql --tasks models/tiny/data/sql.heldout.jsonl
  deltamux eval --base models/tiny/base --full models/tiny/sql --tasks models/tiny/data/sql.heldout.jsonl --limit 50
  deltamux eval --base models/tiny/base --variant variants/sql --against models/tiny/sql \
                --tasks models/tiny/data/sql.heldout.jsonl")]
pub struct Args {
    /// Directory of the base model, or its id on the hub (org/name).
    #[arg(long, value_name = "DIR")]
    base: String,
    /// Answer with this variant, an artifact of `deltamux compress`.
    #[arg(long, value_name = "ARTIFACT", conflicts_with = "full")]
    variant: Option<PathBuf>,
    /// Answer with this full checkpoint instead of the base.
    #[arg(long, value_name = "DIR")]
    full: Option<String>,
    /// Also compare the predictions along the right answers with this full fine-tune's: mean KL divergence, agreement on
    /// the most likely token, perplexity. Both models are in memory then, this one as it is stored.
    #[arg(long, value_name = "DIR")]
    against: Option<String>,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// Tasks: one {"messages": […], "answer": "…"} a line.
    #[arg(long, value_name = "FILE")]
    tasks: PathBuf,
    /// The first tasks only.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    limit: Option<u32>,
    /// Completion tokens at most.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let tasks = read_tasks(&args.tasks, args.limit.map(|n| n as usize))?;
    let model = hub::resolve(args.full.as_ref().unwrap_or(&args.base))?;
    let agreement = args.against.as_ref().map(|reference| {
        let options = AgreementOptions {
            model: model.clone(),
            variant: args.variant.clone(),
            reference: hub::resolve(reference)?,
            precision: args.precision.precision()?,
            weight_cache: args.precision.weight_cache(),
        };
        compare(&options, &tasks)
    });
    let agreement = agreement.transpose()?;
    let config = EngineConfig {
        precision: args.precision.precision()?,
        weight_cache: args.precision.weight_cache(),
        ..EngineConfig::new(model)
    };
    let bar = indicatif::ProgressBar::new(tasks.len() as u64);
    let answers = answers::greedy(
        config,
        args.variant.as_deref(),
        &tasks,
        args.max_tokens as usize,
        || bar.inc(1),
    );
    bar.finish_and_clear();
    let Answers { texts, tokens, seconds } = answers?;
    let score = score(&tasks, &texts).ok_or_else(|| anyhow!("{}: holds no task", args.tasks.display()))?;

    if args.json {
        let mut document = serde_json::to_value(&score)?;
        document["seconds"] = json!(seconds);
        document["completion_tokens"] = json!(tokens);
        if let Some(agreement) = &agreement {
            document["agreement"] = json!(agreement);
        }
        return output::json(&document);
    }
    output::text(format!(
        "exact match {:.1} % ({} of {}) in {seconds:.1} s",
        100.0 * score.exact_match,
        score.correct,
        score.n
    ))?;
    if let Some(agreement) = &agreement {
        output::text(format!(
            "against the full fine-tune, over {} tokens of right answers: mean KL {:.5} nats, same most likely token {:.2} \
             %, perplexity {:.4} ({:.4})",
            agreement.positions,
            agreement.mean_kl,
            100.0 * agreement.top1_agreement,
            agreement.perplexity,
            agreement.reference_perplexity
        ))?;
    }
    for wrong in &score.wrong {
        output::text(format!(
            "  line {}: expected {:?}, found {:?}",
            wrong.line, wrong.expected, wrong.found
        ))?;
    }
    Ok(())
}

fn compare(options: &AgreementOptions, tasks: &[Task]) -> anyhow::Result<Agreement> {
    let bar = indicatif::ProgressBar::new(tasks.len() as u64);
    let agreement = agreement(options, tasks, &|done| bar.set_position(done as u64));
    bar.finish_and_clear();
    Ok(agreement?)
}
