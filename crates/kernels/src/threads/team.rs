//! Fork and join in about a microsecond.
//!
//! A decoder layer is a dozen parallel regions of 10 µs to 1 ms each, so waking a sleeping thread (20 to 50 µs) for
//! each would cost more than the work. The team's workers therefore wait for the next region by spinning for
//! [`SPIN`], longer than the serial work between two regions of a step, and only then sleep. The caller never waits
//! for a worker to wake: it starts at once and takes over whatever a late worker has not begun.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker spins for the next region before it sleeps.
const SPIN: Duration = Duration::from_micros(50);

/// Spins between two looks at the clock.
const SPINS_A_LOOK: usize = 64;

/// A region is open: workers may enter.
const OPEN: u64 = 1 << 16;

/// Regions are counted above the flag, modulo 2^47; the bits below it count the workers inside.
const REGION: u64 = 1 << 17;

/// The calling thread and the workers that help it.
pub(super) struct Team {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One region at a time.
    driver: Mutex<()>,
}

struct Shared {
    /// `region · REGION + open + workers inside`.
    state: AtomicU64,
    /// The open region's work.
    job: Slot,
    /// One share of the task numbers for each thread.
    shares: Vec<Share>,
    sleepers: Vec<AtomicBool>,
    quit: AtomicBool,
    /// What a worker panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A range of task numbers, begun by its thread and finished by whoever is free; alone on its cache lines.
#[repr(align(128))]
struct Share {
    next: AtomicUsize,
    end: AtomicUsize,
}

type Job = *const (dyn Fn(usize) + Sync);

/// The work of the open region.
struct Slot(std::cell::UnsafeCell<Option<Job>>);

// SAFETY: written by the driver while the region is closed and nobody is inside, read by workers inside only.
unsafe impl Sync for Slot {}
// SAFETY: the pointee is `Sync`, and it is used only while the driver keeps it alive.
unsafe impl Send for Slot {}

impl Team {
    /// A team of `count` threads, 1 to 65,535, the caller of [`Team::run`] included.
    pub(super) fn new(count: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            job: Slot(std::cell::UnsafeCell::new(None)),
            shares: (0..count)
                .map(|_| Share {
                    next: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                })
                .collect(),
            sleepers: (1..count).map(|_| AtomicBool::new(false)).collect(),
            quit: AtomicBool::new(false),
            panic: Mutex::new(None),
        });
        let workers = (1..count)
            .map(|place| {
                let shared = shared.clone();
                std::thread::Builder::new()
                    .name(format!("kernel-{place}"))
                    .spawn(move || shared.serve(place))
                    .expect("the operating system provides threads")
            })
            .collect();
        Self {
            shared,
            workers,
            driver: Mutex::new(()),
        }
    }

    /// Threads of the team, the caller included.
    pub(super) fn count(&self) -> usize {
        self.shared.shares.len()
    }

    /// Calls `work(i)` for every `i` in `0..count`, in no particular order, and returns when all calls have.
    pub(super) fn run(&self, count: usize, work: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return (0..count).for_each(work);
        }
        // Busy: another thread's region, or the one that this very call is made from.
        let _driver = match self.driver.try_lock() {
            Ok(guard) => guard,
            // A region's work panicked; the region was closed all the same.
            Err(TryLockError::Poisoned(guard)) => guard.into_inner(),
            Err(TryLockError::WouldBlock) => return (0..count).for_each(work),
        };
        let shared = &*self.shared;
        shared.open(count, work, &self.workers);
        // Closes the region also when `work` panics in this thread.
        let region = OpenRegion(shared);
        shared.work_through(0, work);
        drop(region);
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.quit.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches what its work panics with, so this only waits.
            let _ = worker.join();
        }
    }
}

/// While it lives the region is open.
struct OpenRegion<'a>(&'a Shared);

impl Drop for OpenRegion<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Shared {
    fn open(&self, count: usize, work: &(dyn Fn(usize) + Sync), workers: &[JoinHandle<()>]) {
        let threads = self.shares.len();
        for (i, share) in self.shares.iter().enumerate() {
            share.next.store(count * i / threads, Ordering::Relaxed);
            share.end.store(count * (i + 1) / threads, Ordering::Relaxed);
        }
        // SAFETY: only the lifetime changes; `close` returns before `work` goes, and after it nobody is inside.
        let job: Job = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work) };
        // SAFETY: the region is closed with nobody inside, and the driver's lock keeps other drivers out.
        unsafe { *self.job.0.get() = Some(job) };
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(state.wrapping_add(REGION + OPEN), Ordering::SeqCst);
        for (asleep, worker) in self.sleepers.iter().zip(workers) {
            if asleep.load(Ordering::SeqCst) {
                worker.thread().unpark();
            }
        }
    }

    /// Lets nobody in any more and waits until the last has left.
    fn close(&self) {
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0usize;
        while !self.state.load(Ordering::Acquire).is_multiple_of(OPEN) {
            spins += 1;
            // A worker may have lost its core to another process, perhaps to this thread.
            if spins.is_multiple_of(1024) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }

    /// Takes tasks, first of one's own share, then of the others', until none is left.
    fn work_through(&self, place: usize, work: &(dyn Fn(usize) + Sync)) {
        for offset in 0..self.shares.len() {
            let share = &self.shares[(place + offset) % self.shares.len()];
            let end = share.end.load(Ordering::Relaxed);
            while share.next.load(Ordering::Relaxed) < end {
                let task = share.next.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                work(task);
            }
        }
    }

    /// A worker's life.
    fn serve(&self, place: usize) {
        let mut last = 0;
        while let Some(region) = self.wait(place, last) {
            last = region;
            if !self.enter(region) {
                continue;
            }
            // SAFETY: inside the region the slot is not written, and its work lives until the last has left.
            let work = unsafe { (*self.job.0.get()).map(|job| &*job) };
            if let Some(work) = work
                && let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.work_through(place, work)))
            {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(payload);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Enters the region unless it has closed.
    fn enter(&self, region: u64) -> bool {
        self.state
            .fetch_update(Ordering::Acquire, Ordering::Relaxed, |state| {
                (state / REGION == region && state & OPEN != 0).then_some(state + 1)
            })
            .is_ok()
    }

    /// Waits for an open region other than `last`; `None` when the team is dissolved.
    fn wait(&self, place: usize, last: u64) -> Option<u64> {
        let asleep = &self.sleepers[place - 1];
        loop {
            let began = Instant::now();
            while began.elapsed() < SPIN {
                for _ in 0..SPINS_A_LOOK {
                    if let Some(region) = self.news(last) {
                        return Some(region);
                    }
                    std::hint::spin_loop();
                }
            }
            // The flag is up before the last look, and the driver looks at the flag after opening: one sees the other.
            asleep.store(true, Ordering::SeqCst);
            while self.news(last).is_none() {
                if self.quit.load(Ordering::SeqCst) {
                    return None;
                }
                std::thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
    }

    /// The open region, if it is another than `last`.
    fn news(&self, last: u64) -> Option<u64> {
        let state = self.state.load(Ordering::SeqCst);
        (state & OPEN != 0 && state / REGION != last).then_some(state / REGION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        for threads in [1, 2, 3, 8] {
            let team = Team::new(threads);
            for count in [0, 1, 2, 7, 100] {
                for _ in 0..50 {
                    let runs: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
                    team.run(count, &|i| {
                        runs[i].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(runs.iter().all(|r| r.load(Ordering::Relaxed) == 1), "{threads} threads");
                }
            }
        }
    }

    #[test]
    fn workers_that_sleep_wake_for_the_next_region() {
        let team = Team::new(2);
        for _ in 0..3 {
            std::thread::sleep(4 * SPIN);
            // Each task waits for the other to have begun, so both threads must take part.
            let begun = AtomicUsize::new(0);
            team.run(2, &|_| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_region_within_a_region_or_beside_one_runs_to_its_end() {
        let team = Team::new(3);
        let total = AtomicUsize::new(0);
        let inner = |_| {
            total.fetch_add(1, Ordering::Relaxed);
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| team.run(10, &|_| team.run(10, &inner)));
            }
        });
        assert_eq!(total.load(Ordering::Relaxed), 400);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        let team = Team::new(2);
        for bad in [0, 99] {
            let result = catch_unwind(AssertUnwindSafe(|| {
                team.run(100, &|i| assert_ne!(i, bad, "task {i}"));
            }));
            assert!(result.is_err());
            // Both threads must take part again.
            let begun = AtomicUsize::new(0);
            team.run(2, &|_| {
                begun.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) < 2 {
                    std::thread::yield_now();
                }
            });
        }
    }
}
