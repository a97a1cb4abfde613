//! The threads that kernels spread their output columns over.

use rayon::prelude::*;

/// A pool of worker threads. Cloning shares the pool.
#[derive(Clone)]
pub struct Threads {
    pool: std::sync::Arc<rayon::ThreadPool>,
}

impl Threads {
    /// A pool of `count` threads; 0 means one for each available core.
    ///
    /// # Panics
    /// If the operating system refuses to create the threads.
    pub fn new(count: usize) -> Self {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("kernel-{i}"))
            .build()
            .expect("the operating system provides threads");
        Self {
            pool: std::sync::Arc::new(pool),
        }
    }

    /// Number of threads in the pool.
    pub fn count(&self) -> usize {
        self.pool.current_num_threads()
    }

    /// Runs `work` inside the pool, so that rayon's iterators use these threads.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.pool.install(work)
    }

    /// Calls `work(i)` for every `i` in `0..count`, spread over the pool.
    pub fn for_each(&self, count: usize, work: impl Fn(usize) + Sync + Send) {
        if count <= 1 || self.count() == 1 {
            (0..count).for_each(work);
        } else {
            self.pool.install(|| (0..count).into_par_iter().for_each(work));
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.count()).finish()
    }
}
