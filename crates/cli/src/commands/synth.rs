//! `deltamux synth`: random weights of a real shape with artifacts, for load tests.

use std::path::PathBuf;
use std::time::Instant;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser as _};
use deltamux_delta::synth::{Made, SHAPES, Shape, Stage};
use deltamux_delta::{SynthOptions, synth};

use crate::progress::Stages;
use crate::{output, ratio, size, threads};

/// Make a base with random weights in a real model's shape and variants of it, for load tests.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux synth --shape qwen2.5-0.5b --variants 32 --out load/qwen05
  deltamux serve --base load/qwen05/base --variants load/qwen05/variants
  deltamux synth --shape qwen2.5-7b --variants 32 --ratio 1/16 --seed 7 --out load/qwen7 --json

The speed and the memory of a model follow from its shape alone; its answers here are noise. DIR gets base/,
variants/v000 … and, with --full, full/v000 …: checkpoints that answer as their variants do. The same options give the
same bytes.")]
pub struct Args {
    /// The model's shape.
    #[arg(long, value_parser = shape())]
    shape: &'static Shape,
    /// Number of variants.
    #[arg(long, value_name = "N", default_value_t = 4)]
    variants: usize,
    /// Full checkpoints of the first K variants too.
    #[arg(long, value_name = "K", default_value_t = 0)]
    full: usize,
    /// Stored bytes of a variant's linears over their bf16 bytes, all metadata counted.
    #[arg(long, default_value = "1/16", value_parser = ratio::parse)]
    ratio: f64,
    /// Seed of all weights.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The directory to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Threads; default: all cores. The result is the same for any number.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = threads::parse)]
    threads: usize,
    /// Replace what an earlier call made at --out.
    #[arg(long)]
    force: bool,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

fn shape() -> impl clap::builder::TypedValueParser<Value = &'static Shape> {
    let names = SHAPES
        .iter()
        .map(|shape| PossibleValue::new(shape.name).help(shape.model));
    PossibleValuesParser::new(names.collect::<Vec<_>>())
        .try_map(|name| Shape::from_name(&name).ok_or_else(|| format!("unknown shape {name}")))
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let started = Instant::now();
    let options = SynthOptions {
        shape: args.shape,
        variants: args.variants,
        full: args.full,
        ratio: args.ratio,
        seed: args.seed,
        threads: args.threads,
        force: args.force,
    };
    let stages = Stages::new();
    let result = synth(&args.out, &options, &|stage, done, total| {
        stages.set(label(stage), done, total);
    });
    stages.finish();
    let made = result?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        let mut document = serde_json::to_value(&made)?;
        document["out"] = serde_json::json!(args.out);
        document["seconds"] = seconds.into();
        return output::json(&document);
    }
    output::text(summary(&made, &args.out, seconds))
}

fn label(stage: Stage) -> &'static str {
    match stage {
        Stage::Base => "base (MiB)",
        Stage::Digest => "digest of the base",
        Stage::Variants => "variants",
        Stage::Full => "full (tensors)",
    }
}

fn summary(made: &Made, out: &std::path::Path, seconds: f64) -> String {
    let mut lines = vec![format!(
        "{}: {} with random weights in {seconds:.1} s",
        out.display(),
        made.shape
    )];
    lines.push(format!(
        "  base       {} weights, {}",
        made.parameters,
        size::format(made.base_bytes)
    ));
    if let Some(first) = made.variants.first() {
        let ratio = first
            .linear_ratio
            .map_or(String::new(), |r| format!(", linears 1/{:.1}", 1.0 / r));
        lines.push(format!(
            "  variants   {}, {} each{ratio}",
            made.variants.len(),
            size::format(first.bytes)
        ));
    }
    if let Some(first) = made.full.first() {
        lines.push(format!(
            "  full       {}, {} each",
            made.full.len(),
            size::format(first.bytes)
        ));
    }
    lines.join("\n")
}
