//! The output of cargo's own test runner, line by line.

use super::{NOT_RUN, NotRun, Tally};

/// Reads the lines of one or more test binaries, run with `--show-output`.
#[derive(Debug, Default)]
pub struct Output {
    passed: usize,
    failed: Vec<String>,
    not_run: Vec<NotRun>,
    /// The test whose output is being shown.
    showing: String,
}

impl Output {
    /// Takes one line.
    pub fn line(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("---- ").and_then(|l| l.strip_suffix(" stdout ----")) {
            self.showing = name.to_owned();
        } else if let Some(why) = line.strip_prefix(NOT_RUN) {
            self.not_run.push(NotRun {
                test: self.showing.clone(),
                why: why.to_owned(),
            });
        } else if let Some((name, result)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) {
            match result.split_whitespace().next() {
                Some("ok") => self.passed += 1,
                Some("FAILED") => self.failed.push(name.to_owned()),
                _ => {}
            }
        }
    }

    /// What was counted.
    pub fn tally(self) -> Tally {
        Tally {
            passed: self.passed.saturating_sub(self.not_run.len()),
            failed: self.failed,
            not_run: self.not_run,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_failed_and_not_run_are_told_apart() {
        let mut output = Output::default();
        for line in "\
running 3 tests
test a::one ... ok
test a::two ... ok
test a::three ... FAILED

successes:

---- a::two stdout ----
not run: DELTAMUX_TESTBED is not set

failures:

---- a::three stdout ----
assertion failed: not run: today

test result: FAILED. 2 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s"
            .lines()
        {
            output.line(line);
        }
        let tally = output.tally();
        assert_eq!(tally.passed, 1);
        assert_eq!(tally.failed, ["a::three"]);
        let expected = NotRun {
            test: "a::two".to_owned(),
            why: "DELTAMUX_TESTBED is not set".to_owned(),
        };
        assert_eq!(tally.not_run, [expected]);
    }
}
