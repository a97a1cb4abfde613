//! `deltamux compress`: compress a fine-tune's difference to its base into an artifact.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use deltamux_delta::artifact::{LinearInfo, RelError, Storage};
use deltamux_delta::compress::{Compressed, work_dir};
use deltamux_delta::{
    Budget, CalibrationSource, CompressError, CompressOptions, EmbeddingPolicy, Method, Shard, Stage, WidthLimits,
    compress,
};
use serde::Serialize;

use crate::progress::Stages;
use crate::{output, ratio, size, threads};

/// Compress a fine-tune's difference to its base into an artifact.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux compress --base models/tiny/base --finetuned models/tiny/sql --out variants/sql \\
      --calibration models/tiny/data/sql.calibration.jsonl
  deltamux compress --base org/base --finetuned ./my-finetune --out variants/mine --ratio 1/32 --json
  deltamux compress --base org/base --finetuned ./my-finetune --out variants/mine --resume
  deltamux compress --base org/base --finetuned ./my-finetune --out shards/3 --shard 3/8

Calibration lines are {\"text\": …} or {\"messages\": […]} with an optional \"answer\"; some hundred of the fine-tune's
own task give the best result. Every other line is held out to measure the error on.

A run that was interrupted leaves what it had finished in .NAME.work beside --out; the same command with --resume goes
on from there, and the artifact is the same. Shards (--shard i/n) are put together by `deltamux merge`.")]
pub struct Args {
    /// The base model: a directory or a hub id.
    #[arg(long, value_name = "DIR")]
    base: String,
    /// The fine-tune of that base: a directory or a hub id, or the directory of a LoRA adapter in PEFT's format.
    #[arg(long, value_name = "DIR")]
    finetuned: String,
    /// The artifact directory to make.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Compression method: best (the least error at the same bytes), prinmix, delta-come, low-rank or bitdelta (signs and
    /// one scale a matrix).
    #[arg(long, default_value = "best", value_parser = method)]
    method: Method,
    /// Stored bytes of the changed linears over their bf16 bytes, all metadata counted; default: 1/16, with bitdelta the
    /// 1 bit a weight that it takes.
    #[arg(long, value_parser = ratio::parse)]
    ratio: Option<f64>,
    /// Whether bits may move between matrices or each keeps its own budget.
    #[arg(long, value_enum, default_value_t = BudgetArg::Model)]
    budget: BudgetArg,
    /// Bits a weight that ranks may have, some of 2,3,4,8 (prinmix only); default: all.
    #[arg(long, value_delimiter = ',', value_name = "N,N")]
    bits: Option<Vec<u8>>,
    /// Distinct widths that are used at most (prinmix only); default: as many as --bits allows.
    #[arg(long, value_name = "N")]
    f_max: Option<usize>,
    /// Codes that share a scale; 128 is what the kernels read.
    #[arg(long, value_name = "N")]
    group_size: Option<usize>,
    /// Calibration texts, one JSON object a line; without it a small general set is used.
    #[arg(long, value_name = "FILE.jsonl")]
    calibration: Option<PathBuf>,
    /// What becomes of a changed embedding or untied head.
    #[arg(long, value_enum, default_value_t = EmbeddingsArg::Auto)]
    embeddings: EmbeddingsArg,
    /// Name in the manifest; default: the name of the output directory. A server calls a variant by its folder's name.
    #[arg(long)]
    name: Option<String>,
    /// Threads; default: all cores. The artifact is the same for any number.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = threads::parse)]
    threads: usize,
    /// Go on although the base looks like the wrong one, and replace an artifact at --out.
    #[arg(long)]
    force: bool,
    /// Go on with what an interrupted run of the same command has finished.
    #[arg(long)]
    resume: bool,
    /// Compress one of n parts of the model, i from 1 to n, on this machine; see `deltamux merge`.
    #[arg(long, value_name = "i/n", value_parser = shard)]
    shard: Option<Shard>,
    /// Keep the second moments of the calibration here, for other methods and ratios of the same fine-tune and texts.
    #[arg(long, value_name = "DIR")]
    calibration_cache: Option<PathBuf>,
    /// Memory for the matrices that are worked on at a time; default: most of what the machine has left.
    #[arg(long, value_name = "BYTES", value_parser = size::parse)]
    memory: Option<u64>,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BudgetArg {
    /// One budget for the model.
    Model,
    /// One budget for each matrix.
    Matrix,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum EmbeddingsArg {
    /// Nothing when unchanged, changed rows when few, else factors (bitdelta: signs).
    Auto,
    /// Every changed row exactly.
    Exact,
    /// Quantised factors; with bitdelta signs and a scale for each row.
    Factored,
    /// The base's.
    Base,
}

fn method(text: &str) -> Result<Method, String> {
    Method::from_name(text).map_err(|e| e.to_string())
}

fn shard(text: &str) -> Result<Shard, String> {
    text.parse().map_err(|e: CompressError| e.to_string())
}

/// The document of `--json`.
#[derive(Debug, Serialize)]
struct Report<'a> {
    method: &'a str,
    ratio_requested: f64,
    linear_bytes: u64,
    linear_bf16_bytes: u64,
    linear_ratio: Option<f64>,
    other_bytes: u64,
    total_bytes: u64,
    rel_output_error: RelError,
    allocation_gap: Option<f64>,
    seconds: f64,
    peak_rss_bytes: Option<u64>,
    tensors: Vec<Tensor<'a>>,
}

#[derive(Debug, Serialize)]
struct Tensor<'a> {
    name: &'a str,
    shape: [usize; 2],
    ranks: usize,
    bits: &'a std::collections::BTreeMap<String, usize>,
    bits_u: &'a std::collections::BTreeMap<String, usize>,
    storage: Storage,
    bytes: u64,
    rel_output_error_heldout: Option<f64>,
    residual_energy: Option<f64>,
}

impl<'a> From<&'a LinearInfo> for Tensor<'a> {
    fn from(linear: &'a LinearInfo) -> Self {
        Self {
            name: &linear.name,
            shape: linear.shape,
            ranks: linear.ranks,
            bits: &linear.bits,
            bits_u: &linear.bits_u,
            storage: linear.storage,
            bytes: linear.bytes,
            rel_output_error_heldout: linear.rel_output_error.heldout,
            residual_energy: linear.residual_energy,
        }
    }
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let started = Instant::now();
    if let Some(size) = args.group_size {
        WidthLimits::check_group_size(size)?;
    }
    let options = CompressOptions {
        widths: WidthLimits::new(args.bits.as_deref(), args.f_max)?,
        method: args.method,
        ratio: args.ratio,
        budget: match args.budget {
            BudgetArg::Model => Budget::Model,
            BudgetArg::Matrix => Budget::Matrix,
        },
        calibration: args
            .calibration
            .map_or(CalibrationSource::General, CalibrationSource::File),
        embeddings: match args.embeddings {
            EmbeddingsArg::Auto => EmbeddingPolicy::Auto,
            EmbeddingsArg::Exact => EmbeddingPolicy::Exact,
            EmbeddingsArg::Factored => EmbeddingPolicy::Factored,
            EmbeddingsArg::Base => EmbeddingPolicy::Base,
        },
        name: args.name,
        threads: args.threads,
        force: args.force,
        shard: args.shard.unwrap_or(Shard::WHOLE),
        resume: args.resume,
        calibration_cache: args.calibration_cache,
        memory: args.memory,
        ..CompressOptions::new()
    };
    let base = deltamux_model::hub::resolve(&args.base)?;
    let finetuned = deltamux_model::hub::resolve(&args.finetuned)?;
    let work = work_dir(&args.out);
    if work.join("inputs.json").is_file() && !args.resume {
        eprintln!(
            "note: {} holds the work of an interrupted run; starting afresh (--resume goes on with it)",
            work.display()
        );
    }
    let stages = Stages::new();
    let result = compress(&base, &finetuned, &args.out, &options, &|stage, done, total| {
        stages.set(label(stage), done, total);
    });
    stages.finish();
    let kept = result.as_ref().is_err_and(CompressError::may_pass) && work.is_dir();
    let compressed = result.map_err(|error| match kept {
        true => anyhow::anyhow!(
            "{error}; what is finished is kept in {}, and the same command with --resume goes on with it",
            work.display()
        ),
        false => error.into(),
    })?;
    let seconds = started.elapsed().as_secs_f64();
    print(&compressed, &args.out, seconds, args.json)
}

/// What was made, as text or as one JSON document.
pub(super) fn print(compressed: &Compressed, out: &Path, seconds: f64, json: bool) -> anyhow::Result<()> {
    if json {
        return output::json(&report(compressed, seconds));
    }
    output::text(summary(compressed, out, seconds))
}

fn label(stage: Stage) -> &'static str {
    match stage {
        Stage::Read => "reading checkpoints",
        Stage::Calibrate => "calibrating (layers)",
        Stage::Factor => "factoring (linears)",
        Stage::Quantise => "quantising (linears)",
        Stage::Write => "writing",
    }
}

fn report(compressed: &Compressed, seconds: f64) -> Report<'_> {
    let manifest = &compressed.manifest;
    Report {
        method: &manifest.method,
        ratio_requested: manifest.ratio,
        linear_bytes: manifest.totals.linear_bytes,
        linear_bf16_bytes: manifest.totals.linear_bf16_bytes,
        linear_ratio: manifest.totals.linear_ratio,
        other_bytes: compressed.total_bytes - manifest.totals.linear_bytes,
        total_bytes: compressed.total_bytes,
        rel_output_error: manifest.rel_output_error,
        allocation_gap: manifest.allocation_gap,
        seconds,
        peak_rss_bytes: peak_rss_bytes(),
        tensors: manifest.linears.iter().map(Tensor::from).collect(),
    }
}

fn summary(compressed: &Compressed, out: &Path, seconds: f64) -> String {
    let manifest = &compressed.manifest;
    let totals = &manifest.totals;
    let mut lines = vec![format!(
        "{}: {} by {} in {seconds:.1} s",
        out.display(),
        size::format(compressed.total_bytes),
        manifest.method
    )];
    match totals.linear_ratio {
        Some(ratio) => lines.push(format!(
            "  {} linears  {} of {} in bf16: 1/{:.1} (asked for 1/{:.1}); everything else {}",
            manifest.linears.len(),
            size::format(totals.linear_bytes),
            size::format(totals.linear_bf16_bytes),
            1.0 / ratio,
            1.0 / manifest.ratio,
            size::format(compressed.total_bytes - totals.linear_bytes)
        )),
        None => lines.push("  no linear differs from the base's".to_string()),
    }
    if let Some(error) = manifest.rel_output_error.heldout {
        lines.push(format!("  relative output error on held-out texts {error:.4}"));
    }
    if let Some(gap) = manifest.allocation_gap {
        lines.push(format!(
            "  bit allocation within {:.4} % of its lower bound",
            gap * 100.0
        ));
    }
    lines.join("\n")
}

/// Peak resident memory of this process, where the system tells (Linux).
fn peak_rss_bytes() -> Option<u64> {
    let status = fs_err::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
