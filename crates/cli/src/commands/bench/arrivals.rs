//! `deltamux bench arrivals`: open loop at given rates.

use deltamux_bench::arrival::Arrivals;
use deltamux_bench::profile::{self, ArrivalsProfile};

use super::load::{LoadArgs, drive, show};
use super::progress::Bars;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  deltamux bench arrivals --url http://127.0.0.1:8080 --rates 0.5,1.0 --requests 100 --variants zipf:1.5
  deltamux bench arrivals --url http://127.0.0.1:8080 --rates 1 --find-knee --slo-ttft-ms 500 --slo-tpot-ms 100
  deltamux bench arrivals --url http://127.0.0.1:8080 --workload trace.jsonl --model-map map.json")]
pub struct Args {
    #[command(flatten)]
    load: LoadArgs,
    /// Requests a second, one point each, in this order.
    #[arg(long, alias = "rate", value_name = "RATES", value_delimiter = ',')]
    rates: Vec<f64>,
    /// Measured requests in each repeat [default: 100, or all of the workload file].
    #[arg(long, value_name = "N")]
    requests: Option<u32>,
    /// Arrival process: poisson, gamma:SHAPE (below 1 is burstier), constant, or trace (the times of the workload file)
    /// [default: poisson with --rates, trace without].
    #[arg(long, value_name = "PROCESS")]
    arrivals: Option<Arrivals>,
    /// Go on, upwards and then between, until the highest rate is found that the server keeps up with.
    #[arg(long)]
    find_knee: bool,
    /// Hold requests back so that at most this many are in flight. It shows what such a client would hide; an open loop
    /// has no such limit.
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
}

pub fn run(args: Args, json: bool) -> anyhow::Result<()> {
    let settings = args.load.settings()?;
    let from_file = settings.workload.as_ref().map(|w| w.requests.len() as u32);
    let process = args.arrivals.unwrap_or(match (from_file, args.rates.is_empty()) {
        (Some(_), true) => Arrivals::Trace,
        _ => Arrivals::Poisson,
    });
    if process == Arrivals::Trace && !args.rates.is_empty() {
        anyhow::bail!("--rates does not go with --arrivals trace: the workload file's times are its rate");
    }
    let profile = ArrivalsProfile {
        process,
        rates: args.rates,
        requests: args.requests.or(from_file).unwrap_or(100),
        find_knee: args.find_knee,
        max_in_flight: args.max_in_flight,
    };
    let mut bars = Bars::new();
    let finished = drive(profile::arrivals(&settings, &profile, |p| bars.show(&p)));
    bars.clear();
    show(&finished?, json)
}
