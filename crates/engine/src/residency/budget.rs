//! A byte budget whose reservations give themselves back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that may be in use at one time.
#[derive(Debug, Clone)]
pub(crate) struct Budget {
    total: u64,
    used: Arc<AtomicU64>,
}

impl Budget {
    /// A budget of `total` bytes.
    pub(crate) fn new(total: u64) -> Self {
        Self {
            total,
            used: Arc::default(),
        }
    }

    /// Takes `bytes`, if they are free.
    pub(crate) fn reserve(&self, bytes: u64) -> Option<Reservation> {
        self.used
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |used| {
                used.checked_add(bytes).filter(|&sum| sum <= self.total)
            })
            .ok()?;
        Some(Reservation {
            bytes,
            used: self.used.clone(),
        })
    }

    /// Bytes in all.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes taken.
    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }
}

/// Bytes taken from a [`Budget`]; dropping it gives them back.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_give_their_bytes_back() {
        let budget = Budget::new(10);
        let six = budget.reserve(6).expect("free");
        assert!(budget.reserve(5).is_none());
        assert_eq!(budget.used(), 6);
        drop(six);
        assert!(budget.reserve(10).is_some());
        assert_eq!(budget.used(), 0);
        assert!(budget.reserve(u64::MAX).is_none());
    }
}
