//! Identifiers of requests and responses.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// The process's own secret, so that identifiers of two servers do not meet.
static PROCESS: LazyLock<RandomState> = LazyLock::new(RandomState::new);
static COUNTER: AtomicU64 = AtomicU64::new(0);

/// A new identifier: 32 hexadecimal digits, different for each call.
pub fn unique() -> String {
    let count = COUNTER.fetch_add(1, Ordering::Relaxed);
    // The count keeps identifiers of one process apart, the keyed hash those of two processes.
    format!("{:016x}{count:016x}", PROCESS.hash_one(count))
}

/// Seconds since 1970, as OpenAI's `created`.
pub fn unix_seconds() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_differ() {
        let all: std::collections::HashSet<String> = (0..1000).map(|_| unique()).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|id| id.len() == 32));
    }
}
