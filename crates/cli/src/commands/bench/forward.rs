//! `deltamux bench forward`: steps of the forward pass against the machine's limits.

use std::path::PathBuf;

use comfy_table::{CellAlignment, Table, presets};
use deltamux_bench::machine::{ForwardOptions, ForwardReport, artifacts_in, forward};
use deltamux_model::CacheUse;

use crate::precision::PrecisionArgs;
use crate::progress::Stages;
use crate::{output, threads};

/// Time prefill and decode steps of a model in this process, without a server, and compare them with the read bandwidth
/// and the f32 peak measured between the steps.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  deltamux synth --shape qwen2.5-0.5b --variants 32 --out load
  deltamux bench forward --base load/base --variants load/variants
  deltamux bench forward --base org/name --sequences 1,16 --context 4096 --json")]
pub struct Args {
    /// The base: a directory or a hub id (org/name).
    #[arg(long, value_name = "DIR")]
    base: String,
    /// Folder of artifacts: decode steps are also timed with another variant for each sequence.
    #[arg(long, value_name = "DIR")]
    variants: Option<PathBuf>,
    /// Prompt lengths of prefill steps, tokens.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "128,512", value_parser = positive)]
    prefill: Vec<usize>,
    /// Numbers of sequences of decode steps.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8,32", value_parser = positive)]
    sequences: Vec<usize>,
    /// Tokens of each sequence before a decode step.
    #[arg(long, value_name = "N", default_value_t = 128)]
    context: usize,
    #[command(flatten)]
    precision: PrecisionArgs,
    /// Steps that each median is taken of.
    #[arg(long, value_name = "N", default_value = "9", value_parser = positive)]
    steps: usize,
    /// Threads of the arithmetic; default: all cores.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = threads::parse)]
    threads: usize,
}

/// A whole number from 1 on.
pub(super) fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected a whole number from 1 on".to_owned()),
        Ok(number) => Ok(number),
    }
}

pub fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let variants = match &args.variants {
        Some(folder) => {
            let found = artifacts_in(folder)?;
            anyhow::ensure!(
                !found.is_empty(),
                "{}: holds no artifact; make some with deltamux compress or deltamux synth",
                folder.display()
            );
            found
        }
        None => Vec::new(),
    };
    let options = ForwardOptions {
        base: deltamux_model::hub::resolve(&args.base)?,
        variants,
        prefill: args.prefill,
        sequences: args.sequences,
        context: args.context,
        precision: args.precision.precision()?,
        weight_cache: args.precision.weight_cache(),
        steps: args.steps,
        threads: args.threads,
    };
    let bar = Stages::new();
    let report = forward(&options, &|done, total| bar.set("steps", done, total));
    bar.finish();
    let report = report?;
    if json {
        output::json(&report)
    } else {
        output::text(table(&report))
    }
}

fn table(report: &ForwardReport) -> String {
    let machine = &report.machine;
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "step",
        "sequences",
        "tokens",
        "context",
        "variants",
        "ms",
        "tokens/s",
        "of read",
        "of f32",
        "× base",
    ]);
    for step in &report.steps {
        table.add_row([
            step.kind.to_owned(),
            step.sequences.to_string(),
            step.tokens.to_string(),
            step.context.to_string(),
            step.variants.to_string(),
            format!("{:.2}", step.step_ms),
            format!("{:.1}", step.tokens_per_second),
            format!("{:.0} %", 100.0 * step.share_of_read_bandwidth),
            format!("{:.0} %", 100.0 * step.share_of_f32_peak),
            step.times_the_base
                .map_or("–".to_owned(), |ratio| format!("{ratio:.2}")),
        ]);
    }
    for i in 1..10 {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!(
        "{} threads, {}: reads {:.1} GB/s, f32 {:.0} GFLOP/s; weights loaded in {:.2} s{}\n{table}",
        machine.threads,
        machine.isa,
        machine.read_gbps,
        machine.f32_gflops,
        report.load_seconds,
        match report.weight_cache {
            CacheUse::Read => " from the cache",
            CacheUse::Written => " and written to the cache",
            CacheUse::Off | CacheUse::NotWritten => "",
        },
    )
}
