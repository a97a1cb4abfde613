//! What handles and step thread share.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, RwLock};

use crate::registry::Registry;
use crate::request::{EngineStats, Mode, SubmitError};

/// State behind every handle.
#[derive(Debug)]
pub(crate) struct Shared {
    /// How variants are held.
    pub(crate) mode: Mode,
    /// Longest sequence.
    pub(crate) max_model_len: usize,
    /// Waiting requests at most.
    pub(crate) max_queue: usize,
    /// Names to models.
    pub(crate) registry: RwLock<Registry>,
    /// As of the last step.
    pub(crate) stats: Mutex<EngineStats>,
    /// Set once nothing is admitted any more, with what to answer.
    pub(crate) closed: Mutex<Option<SubmitError>>,
    queued: AtomicUsize,
}

impl Shared {
    /// The state of an engine that starts.
    pub(crate) fn new(
        mode: Mode,
        max_model_len: usize,
        max_queue: usize,
        registry: Registry,
        stats: EngineStats,
    ) -> Self {
        Self {
            mode,
            max_model_len,
            max_queue,
            registry: RwLock::new(registry),
            stats: Mutex::new(stats),
            closed: Mutex::new(None),
            queued: AtomicUsize::new(0),
        }
    }

    /// Takes a place in the queue.
    pub(crate) fn enter_queue(&self) -> Result<(), SubmitError> {
        self.queued
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < self.max_queue).then_some(n + 1)
            })
            .map(drop)
            .map_err(|waiting| SubmitError::QueueFull { waiting })
    }

    /// Gives a place back: the request runs, or has ended before it ran.
    pub(crate) fn leave_queue(&self) {
        self.queued.fetch_sub(1, Ordering::AcqRel);
    }
}
