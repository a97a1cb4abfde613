//! `deltamux bench kernels`: the machine's limits and each kernel's share of them.

use clap::builder::PossibleValuesParser;
use comfy_table::{CellAlignment, Table, presets};
use deltamux_bench::machine::{Bound, KernelOptions, KernelReport, kernels, models};

use super::forward::positive;
use crate::progress::Stages;
use crate::{output, threads};

/// Measure this machine's read bandwidth and arithmetic peaks, and what share of them each kernel reaches on the products
/// of public models.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  deltamux bench kernels
  deltamux bench kernels --shape qwen2.5-0.5b --rows 1,32 --json")]
pub struct Args {
    /// Models whose products are measured; may be given several times. Default: all.
    #[arg(long, value_name = "MODEL", value_parser = PossibleValuesParser::new(models()))]
    shape: Vec<String>,
    /// Numbers of rows.
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,2,4,8,16,32,128,512", value_parser = positive)]
    rows: Vec<usize>,
    /// Timed rounds that each median is taken of.
    #[arg(long, value_name = "N", default_value = "5", value_parser = positive)]
    rounds: usize,
    /// Threads of the arithmetic; default: all cores.
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = threads::parse)]
    threads: usize,
}

pub fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let models = match args.shape.is_empty() {
        true => models().map(str::to_owned).collect(),
        false => args.shape,
    };
    let options = KernelOptions {
        models,
        rows: args.rows,
        rounds: args.rounds,
        threads: args.threads,
    };
    let bar = Stages::new();
    let report = kernels(&options, &|done, total| bar.set("kernels", done, total));
    bar.finish();
    if json {
        output::json(&report)
    } else {
        output::text(table(&report))
    }
}

fn table(report: &KernelReport) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "kernel", "dtype", "m", "k", "n", "GB/s", "GFLOP/s", "bound by", "of limit",
    ]);
    for point in &report.kernels {
        table.add_row([
            point.name.clone(),
            point.dtype.to_owned(),
            point.m.to_string(),
            point.k.to_string(),
            point.n.to_string(),
            format!("{:.1}", point.gbps),
            format!("{:.0}", point.gflops),
            match point.bound {
                Bound::Memory => "reading".to_owned(),
                Bound::Compute => "arithmetic".to_owned(),
            },
            format!("{:.0} %", 100.0 * point.share_of_limit),
        ]);
    }
    for i in 2..9 {
        if let Some(column) = table.column_mut(i) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let machine = &report.machine;
    let bf16 = machine
        .bf16_gflops
        .map_or_else(String::new, |peak| format!(", bf16 pairs {peak:.0} GFLOP/s"));
    format!(
        "{} threads, {}: reads {:.1} GB/s, f32 {:.0} GFLOP/s{bf16}, int8 {:.0} Gop/s; fork and join {:.1} µs\n{table}",
        machine.threads, machine.isa, machine.read_gbps, machine.f32_gflops, machine.int8_gops, report.fork_join_us
    )
}
