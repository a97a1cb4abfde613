//! How many matrices are worked on at a time: as many as memory holds.

use std::sync::{Condvar, Mutex, PoisonError};

/// Share of the available memory that matrices in work may take when no limit is given.
const SHARE: f64 = 0.7;

/// Memory that is handed out in parts.
#[derive(Debug)]
pub(crate) struct Permits {
    limit: u64,
    taken: Mutex<u64>,
    freed: Condvar,
}

/// A part that is given back when dropped.
#[derive(Debug)]
pub(crate) struct Permit<'a> {
    permits: &'a Permits,
    bytes: u64,
}

impl Permits {
    /// `limit` bytes, or a share of what the machine has available.
    pub fn new(limit: Option<u64>) -> Self {
        let limit = limit.or_else(|| deltamux_model::memory::available().map(|bytes| (bytes as f64 * SHARE) as u64));
        Self {
            limit: limit.unwrap_or(u64::MAX),
            taken: Mutex::new(0),
            freed: Condvar::new(),
        }
    }

    /// Waits until `bytes` are free, or nobody holds any: what is larger than the limit runs alone.
    ///
    /// A thread that holds a part must not wait for another, nor run other work of the pool meanwhile.
    pub fn take(&self, bytes: u64) -> Permit<'_> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken > 0 && taken.saturating_add(bytes) > self.limit {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = taken.saturating_add(bytes);
        Permit { permits: self, bytes }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        let mut taken = self.permits.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_sub(self.bytes);
        self.permits.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn parts_never_add_up_to_more_than_the_limit_and_a_larger_one_runs_alone() {
        let permits = Permits::new(Some(10));
        let (now, most) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for bytes in [4, 7, 3, 25, 5, 5, 10, 1, 6] {
                let (permits, now, most) = (&permits, &now, &most);
                scope.spawn(move || {
                    for _ in 0..50 {
                        let _permit = permits.take(bytes);
                        let together = now.fetch_add(bytes, Ordering::SeqCst) + bytes;
                        assert!(together <= 10 || together == 25, "{together}");
                        most.fetch_max(together, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(bytes, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 25);
    }
}
