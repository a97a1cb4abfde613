//! Progress bars on stderr; nothing when stderr is not a terminal.

use std::sync::Mutex;

use indicatif::{ProgressBar, ProgressStyle};

/// One bar that changes its label and length with the stage.
pub struct Stages {
    bar: ProgressBar,
    label: Mutex<&'static str>,
}

impl Stages {
    /// A bar without a stage.
    pub fn new() -> Self {
        let bar = ProgressBar::new(0);
        let style = ProgressStyle::with_template("{msg:<22} {wide_bar} {pos}/{len} {elapsed}")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        Self {
            bar,
            label: Mutex::new(""),
        }
    }

    /// `done` of `total` in the stage `label`.
    pub fn set(&self, label: &'static str, done: usize, total: usize) {
        let mut current = match self.label.lock() {
            Ok(current) => current,
            Err(poisoned) => poisoned.into_inner(),
        };
        if *current != label {
            *current = label;
            self.bar.reset();
            self.bar.set_message(label);
        }
        self.bar.set_length(total as u64);
        // Threads report out of order; a bar only moves forward.
        if done as u64 > self.bar.position() {
            self.bar.set_position(done as u64);
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// Shows a bar while `work` loads weights; it is given what to call with the bytes done and all bytes.
pub fn loading<R>(work: impl FnOnce(&dyn Fn(u64, u64)) -> R) -> R {
    let bar = ProgressBar::new(0);
    let style = ProgressStyle::with_template("{msg:<22} {wide_bar} {bytes}/{total_bytes} {elapsed}")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.set_style(style);
    bar.set_message("loading weights");
    let result = work(&|done, total| {
        bar.set_length(total);
        bar.set_position(done);
    });
    bar.finish_and_clear();
    result
}
