//! The threads that kernels spread their work over.

mod disjoint;
mod team;

use std::sync::{Arc, OnceLock};

pub(crate) use disjoint::DisjointRows;
use team::Team;

/// Multiply-adds below which one thread is done before another has begun (about 1 µs).
const WORTH_SHARING: usize = 1 << 15;

/// A number of threads: a team for the kernels' many short parallel regions, and a rayon pool, made when it is first
/// asked for, for long work. Cloning shares both.
#[derive(Clone)]
pub struct Threads {
    shared: Arc<Shared>,
}

struct Shared {
    team: Team,
    pool: OnceLock<rayon::ThreadPool>,
}

impl Threads {
    /// `count` threads; 0 means one for each available core.
    ///
    /// # Panics
    /// If the operating system refuses to create the threads.
    pub fn new(count: usize) -> Self {
        let count = match count {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => count,
        };
        let team = Team::new(count);
        Self {
            shared: Arc::new(Shared {
                team,
                pool: OnceLock::new(),
            }),
        }
    }

    /// Number of threads, the calling one included.
    pub fn count(&self) -> usize {
        self.shared.team.count()
    }

    /// Runs `work` inside a rayon pool of this many threads, so that rayon's iterators use them.
    ///
    /// # Panics
    /// If the operating system refuses to create the threads.
    pub fn install<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let pool = self.shared.pool.get_or_init(|| {
            rayon::ThreadPoolBuilder::new()
                .num_threads(self.count())
                .thread_name(|i| format!("pool-{i}"))
                .build()
                .expect("the operating system provides threads")
        });
        pool.install(work)
    }

    /// Calls `work(i)` for every `i` in `0..count`, spread over the threads if `cost`, the multiply-adds of all calls
    /// together, is worth it. Returns when all calls have. While another thread uses this team, or inside of `work`,
    /// the calling thread does everything itself.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn for_each(&self, count: usize, cost: usize, work: impl Fn(usize) + Sync) {
        if count <= 1 || cost < WORTH_SHARING {
            (0..count).for_each(work);
        } else {
            self.shared.team.run(count, &work);
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.count()).finish()
    }
}
