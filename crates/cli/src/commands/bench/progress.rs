//! A bar on stderr while a profile runs.

use std::time::Duration;

use deltamux_bench::bundle::Load;
use deltamux_bench::profile::Progress;
use indicatif::{ProgressBar, ProgressStyle};

/// The bar of the repeat that runs; hidden where stderr is no terminal.
pub struct Bars {
    bar: ProgressBar,
    failed: u64,
}

impl Bars {
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{msg} {bar:30} {pos}/{len} {elapsed} {prefix}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Self { bar, failed: 0 }
    }

    pub fn show(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Repeat {
                load,
                repeat,
                repeats,
                requests,
                ..
            } => {
                self.failed = 0;
                self.bar.reset();
                self.bar.set_length(*requests);
                self.bar
                    .set_message(format!("{}, repeat {}/{repeats}", name(load), repeat + 1));
            }
            Progress::Request { completed } => {
                self.bar.inc(1);
                self.failed += u64::from(!completed);
                if self.failed > 0 {
                    self.bar.set_prefix(format!("{} failed", self.failed));
                }
            }
            Progress::Point(_) => {}
            Progress::Tasks { model, tasks, requests } => {
                self.failed = 0;
                self.bar.reset();
                self.bar.set_prefix("");
                self.bar.set_length(*requests);
                self.bar.set_message(format!("{model}, {tasks}"));
            }
        }
    }

    pub fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// A load in a few words.
pub fn name(load: &Load) -> String {
    match load {
        Load::Open {
            rate_req_per_s: Some(rate),
            arrivals,
        } => format!("{rate} req/s ({arrivals})"),
        Load::Open {
            rate_req_per_s: None,
            arrivals,
        } => arrivals.to_string(),
        Load::Closed { concurrency } => format!("{concurrency} in flight"),
    }
}
