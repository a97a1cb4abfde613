//! Gates: each has a heading, a duration and a result; the summary counts over all of them.

pub mod e2e;
pub mod junit;
pub mod libtest;
pub mod lint;
pub mod memcheck;
pub mod test;

use std::time::{Duration, Instant};

/// A test that could not run here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotRun {
    /// The test.
    pub test: String,
    /// Why it did not run.
    pub why: String,
}

/// What a gate counted.
#[derive(Debug, Default)]
pub struct Tally {
    /// Checks that passed.
    pub passed: usize,
    /// Names of the checks that failed.
    pub failed: Vec<String>,
    /// Tests that could not run here. They are not among the passed.
    pub not_run: Vec<NotRun>,
}

impl Tally {
    /// One passed check: a gate that is a single check.
    pub fn one() -> Self {
        Self {
            passed: 1,
            ..Self::default()
        }
    }

    /// Counts `other` too.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.not_run.extend(other.not_run);
    }
}

/// The beginning of a line by which a test says that it could not run.
pub const NOT_RUN: &str = "not run: ";

struct Gate {
    name: &'static str,
    took: Duration,
    tally: Tally,
}

/// The gates that ran.
#[derive(Default)]
pub struct Run {
    gates: Vec<Gate>,
    notes: Vec<String>,
}

impl Run {
    /// Runs a gate. An error fails it as a whole and counts as one failed check; the next gates run all the same.
    pub fn gate(&mut self, name: &'static str, work: impl FnOnce() -> anyhow::Result<Tally>) {
        println!("\n=== {name} ===");
        let started = Instant::now();
        let tally = work().unwrap_or_else(|error| {
            println!("{name}: {error:#}");
            Tally {
                failed: vec![format!("{error:#}")],
                ..Tally::default()
            }
        });
        let took = started.elapsed();
        println!("=== {name}: {} after {} ===", verdict(&tally), human(took));
        self.gates.push(Gate { name, took, tally });
    }

    /// Adds lines to the summary.
    pub fn note(&mut self, notes: Vec<String>) {
        self.notes.extend(notes);
    }

    /// Prints what ran, what failed, what could not run and why, and last the plain count; `false` when a check failed.
    pub fn summary(&self) -> bool {
        println!("\n=== summary ===");
        for Gate { name, took, tally } in &self.gates {
            println!("{name:<18} {:<30} {:>8}", verdict(tally), human(*took));
        }
        println!(
            "{:<18} {:<30} {:>8}",
            "all",
            "",
            human(self.gates.iter().map(|g| g.took).sum())
        );
        for note in &self.notes {
            println!("{note}");
        }
        let not_run: Vec<_> = self.gates.iter().flat_map(|g| &g.tally.not_run).collect();
        if !not_run.is_empty() {
            println!("\n{} tests did not run here:", not_run.len());
            for NotRun { test, why } in not_run {
                println!("  {test}: {why}");
            }
        }
        let passed: usize = self.gates.iter().map(|g| g.tally.passed).sum();
        let failed: usize = self.gates.iter().map(|g| g.tally.failed.len()).sum();
        if failed > 0 {
            println!("\nfailed:");
            for Gate { name, tally, .. } in &self.gates {
                for what in &tally.failed {
                    println!("  {name}: {what}");
                }
            }
        }
        println!("\n{passed} passed, {failed} failed");
        failed == 0
    }
}

fn verdict(tally: &Tally) -> String {
    let mut text = if tally.failed.is_empty() {
        "ok".to_owned()
    } else {
        "FAILED".to_owned()
    };
    if tally.passed + tally.failed.len() > 1 {
        text += &format!(", {} passed, {} failed", tally.passed, tally.failed.len());
    }
    text
}

fn human(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        format!("{}:{:02} min", time.as_secs() / 60, time.as_secs() % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_gate_does_not_stop_the_next_and_fails_the_run() {
        let mut run = Run::default();
        run.gate("first", || anyhow::bail!("broken"));
        run.gate("second", || Ok(Tally::one()));
        assert_eq!(run.gates.len(), 2);
        assert_eq!(run.gates[0].tally.failed, ["broken"]);
        assert!(!run.summary());
    }

    #[test]
    fn a_run_without_failures_passes() {
        let mut run = Run::default();
        run.gate("only", || Ok(Tally::one()));
        assert!(run.summary());
    }
}
