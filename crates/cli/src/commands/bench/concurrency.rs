//! `deltamux bench concurrency`: closed loop at given numbers of requests in flight.

use deltamux_bench::profile::{self, ConcurrencyProfile};

use super::load::{LoadArgs, drive, show};
use super::progress::Bars;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux bench concurrency --url http://127.0.0.1:8080 --levels 1,2,4,8 --output-tokens 128 --ignore-eos")]
pub struct Args {
    #[command(flatten)]
    load: LoadArgs,
    /// Requests in flight, one point each, in this order.
    #[arg(long, value_name = "LEVELS", value_delimiter = ',', default_value = "1,2,4,8")]
    levels: Vec<u32>,
    /// Measured requests in each repeat [default: four for each in flight, at least 16].
    #[arg(long, value_name = "N")]
    requests: Option<u32>,
}

pub fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let settings = args.load.settings()?;
    let profile = ConcurrencyProfile {
        levels: args.levels,
        requests: args.requests,
    };
    let mut bars = Bars::new();
    let finished = drive(profile::concurrency(&settings, &profile, |p| bars.show(&p)));
    bars.clear();
    show(&finished?, json)
}
