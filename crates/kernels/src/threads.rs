//! The threads that kernels spread their output columns over.

use rayon::prelude::*;

/// Multiply-adds below which one thread is done before another is awake (about 10 µs).
const WORTH_WAKING: usize = 1 << 18;

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

    /// Calls `work(i)` for every `i` in `0..count`, spread over the pool if `cost`, the multiply-adds of all calls
    /// together, is worth waking the threads for.
    pub fn for_each(&self, count: usize, cost: usize, work: impl Fn(usize) + Sync + Send) {
        if count <= 1 || cost < WORTH_WAKING || self.count() == 1 {
            (0..count).for_each(work);
        } else {
            self.pool.install(|| (0..count).into_par_iter().for_each(work));
        }
    }

    /// Calls `work(row index, row)` for every row of `width` elements, spread over the pool.
    pub fn for_each_row(&self, matrix: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync + Send) {
        if matrix.len() <= width || self.count() == 1 {
            matrix
                .chunks_exact_mut(width)
                .enumerate()
                .for_each(|(i, row)| work(i, row));
        } else {
            self.pool.install(|| {
                matrix
                    .par_chunks_exact_mut(width)
                    .enumerate()
                    .for_each(|(i, row)| work(i, row))
            });
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("count", &self.count()).finish()
    }
}

/// A row-major matrix that several threads write at once, each its own columns.
pub(crate) struct DisjointRows<'a> {
    start: *mut f32,
    len: usize,
    width: usize,
    matrix: std::marker::PhantomData<&'a mut [f32]>,
}

// SAFETY: the only access is `part`, whose callers promise not to overlap.
unsafe impl Sync for DisjointRows<'_> {}
// SAFETY: it stands for a `&mut [f32]`, which is `Send`.
unsafe impl Send for DisjointRows<'_> {}

impl<'a> DisjointRows<'a> {
    pub(crate) fn new(matrix: &'a mut [f32], width: usize) -> Self {
        Self {
            start: matrix.as_mut_ptr(),
            len: matrix.len(),
            width,
            matrix: std::marker::PhantomData,
        }
    }

    /// Elements `from .. from + count` of a row.
    ///
    /// # Safety
    /// No two live parts may overlap.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn part(&self, row: usize, from: usize, count: usize) -> &mut [f32] {
        let offset = row * self.width + from;
        assert!(from + count <= self.width && offset + count <= self.len);
        // SAFETY: inside the matrix by the assertion; the caller keeps parts apart.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(offset), count) }
    }
}
