//! `deltamux inspect`: an artifact's manifest, with its digests checked.

use std::path::PathBuf;

use comfy_table::{Cell, CellAlignment, Table, presets};
use deltamux_delta::Artifact;
use deltamux_delta::artifact::{Inspection, Manifest, Storage};

use crate::{output, size};

/// An artifact's manifest, with its digests checked and its bytes counted again.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux inspect variants/sql
  deltamux inspect variants/sql --json | jq '.tensors[0]'")]
pub struct Args {
    /// The artifact directory.
    #[arg(value_name = "ARTIFACT")]
    artifact: PathBuf,
    /// One JSON document on stdout instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let artifact = Artifact::open(&args.artifact)?;
    let found = artifact.inspect()?;
    if args.json {
        return output::json(&document(&artifact, &found));
    }
    output::text(table(artifact.manifest(), &artifact, &found))
}

fn document(artifact: &Artifact, found: &Inspection) -> serde_json::Value {
    let manifest = artifact.manifest();
    let tensors: Vec<_> = manifest
        .linears
        .iter()
        .map(|l| {
            serde_json::json!({
                "name": l.name,
                "shape": l.shape,
                "ranks": l.ranks,
                "bits": l.bits,
                "bits_u": l.bits_u,
                "storage": l.storage,
                "bytes": found.linears.get(&l.name).copied().unwrap_or(0),
                "rel_output_error_heldout": l.rel_output_error.heldout,
                "residual_energy": l.residual_energy,
            })
        })
        .collect();
    serde_json::json!({
        "name": manifest.name,
        "generation": artifact.generation(),
        "method": manifest.method,
        "ratio_requested": manifest.ratio,
        "budget": manifest.budget,
        "base": manifest.base,
        "vocab_size": manifest.vocab_size,
        "linear_bytes": found.totals.linear_bytes,
        "linear_bf16_bytes": found.totals.linear_bf16_bytes,
        "linear_ratio": found.totals.linear_ratio,
        "other_bytes": found.totals.other_bytes,
        "total_bytes": found.total_bytes,
        "resident_bytes": artifact.resident_bytes(),
        "rel_output_error": manifest.rel_output_error,
        "allocation_gap": manifest.allocation_gap,
        "calibration": manifest.calibration,
        "unchanged_linears": manifest.unchanged_linears,
        "embedding": manifest.embedding,
        "head": manifest.head,
        "vectors": manifest.vectors,
        "files": manifest.files,
        "tensors": tensors,
    })
}

fn table(manifest: &Manifest, artifact: &Artifact, found: &Inspection) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "linear", "shape", "ranks", "16", "8", "4", "3", "2", "bytes", "share", "error",
    ]);
    for linear in &manifest.linears {
        let bytes = found.linears.get(&linear.name).copied().unwrap_or(0);
        let bf16 = 2 * linear.shape[0] * linear.shape[1];
        let mut row = vec![
            Cell::new(&linear.name),
            right(format!("{}×{}", linear.shape[0], linear.shape[1])),
            match linear.storage {
                Storage::Factors => right(linear.ranks),
                Storage::Signs => right("signs"),
            },
        ];
        for bits in ["16", "8", "4", "3", "2"] {
            // Of V, and of U where that is another number.
            let [v, u] = [&linear.bits, &linear.bits_u].map(|widths| widths.get(bits).copied().unwrap_or(0));
            row.push(right(if v == u { v.to_string() } else { format!("{v}/{u}") }));
        }
        row.push(right(bytes));
        row.push(right(format!("1/{:.1}", bf16 as f64 / bytes.max(1) as f64)));
        row.push(right(match linear.rel_output_error.heldout {
            Some(error) => format!("{error:.4}"),
            None => "not measured".to_string(),
        }));
        table.add_row(row);
    }
    let totals = &found.totals;
    let ratio = totals
        .linear_ratio
        .map_or("no linear changed".to_string(), |r| format!("1/{:.2}", 1.0 / r));
    format!(
        "{} ({}), generation {}\nbase {} ({} layers, digest {})\n{table}\nlinears {} of {} in bf16: {ratio}; everything else {}; in all {}; digests match",
        manifest.name,
        manifest.method,
        artifact.generation(),
        manifest.base.architecture,
        manifest.base.num_layers,
        manifest.base.digest,
        size::format(totals.linear_bytes),
        size::format(totals.linear_bf16_bytes),
        size::format(totals.other_bytes),
        size::format(found.total_bytes),
    )
}

fn right(value: impl std::fmt::Display) -> Cell {
    Cell::new(value.to_string()).set_alignment(CellAlignment::Right)
}
