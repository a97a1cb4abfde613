//! The differences of several variants, each for its own rows of a step, in two parallel regions.

use super::LowRankDelta;
use super::activations::{Activations, CHUNK};
use super::arithmetic::Arithmetic;
use super::coefficients::{BLOCK, Coefficients};
use super::factor::Factor;
use super::tile::Tile;
use crate::Threads;
use crate::isa::for_each_isa;
use crate::lanes;
use crate::lowbit::{GROUP, groups};
use crate::placement::{self, Place};
use crate::threads::DisjointRows;
use std::cell::Cell;
use std::ops::Range;

/// One variant's difference for some rows of a step.
#[derive(Debug, Clone)]
pub struct Term<'a> {
    /// The difference.
    pub delta: &'a LowRankDelta,
    /// The rows it is for.
    pub rows: Range<usize>,
    /// The column of the results at which the difference's first output is.
    pub column: usize,
}

/// Rows that one task takes: their integers stay in the second-level cache.
const TASK_ROWS: usize = 64;

/// Tasks for each thread, at least: threads that start late or run slowly do less.
const TASKS_A_THREAD: usize = 4;

/// Ranks of V that one task takes, at least: streams long enough for the hardware to read ahead.
const TASK_RANKS: usize = 8;

/// Adds every term: `y[m][column ..] += U (s ⊙ (V x[m]))` for each `m` of its rows. `x` is `[rows, inputs]` and shared
/// by all terms, `y` is `[rows, stride]`.
///
/// All products with V run in one parallel region and all products with U in another. A row's result depends neither on
/// the other rows nor on the other terms.
///
/// # Panics
/// If `x` or `y` has another length, a term lies outside of them, two terms share an element of `y`, or a band's parts
/// do not fit its difference's shape.
pub fn add_terms(x: &[f32], rows: usize, terms: &[Term<'_>], y: &mut [f32], stride: usize, threads: &Threads) {
    add_terms_by(Arithmetic::best(), x, rows, terms, y, stride, threads);
}

/// [`add_terms`] by the given instructions.
pub(super) fn add_terms_by(
    arithmetic: Arithmetic,
    x: &[f32],
    rows: usize,
    terms: &[Term<'_>],
    y: &mut [f32],
    stride: usize,
    threads: &Threads,
) {
    let Some(first) = terms.first() else { return };
    let inputs = first.delta.inputs;
    assert_eq!(x.len(), rows * inputs, "x is [rows, inputs]");
    assert_eq!(y.len(), rows * stride, "y is [rows, stride]");
    check(terms, rows, inputs, stride);
    let mut scratch = SCRATCH.take();
    let mut wanted = vec![false; rows];
    for term in terms.iter().filter(|t| t.delta.v.iter().any(|b| b.bits != 16)) {
        wanted[term.rows.clone()].fill(true);
    }
    scratch.activations.quantise(x, inputs, &wanted, threads);
    scratch.project(arithmetic, x, terms, threads);
    scratch.mix(arithmetic, terms, y, stride, threads);
    SCRATCH.set(scratch);
}

/// Refuses terms that do not fit the matrices or each other.
fn check(terms: &[Term<'_>], rows: usize, inputs: usize, stride: usize) {
    for term in terms {
        let delta = term.delta;
        assert_eq!(delta.inputs, inputs, "all terms have the same inputs");
        for ranks in [
            delta.v_factors().map(|v| v.ranks()).sum::<usize>(),
            delta.u_factors().map(|u| u.ranks()).sum(),
        ] {
            assert_eq!(
                ranks,
                delta.ranks(),
                "the bands hold as many ranks as there are singular values"
            );
        }
    }
    let place = |term: &Term<'_>| Place {
        rows: term.rows.clone(),
        column: term.column,
        outputs: term.delta.outputs,
    };
    placement::check(terms.iter().map(place).collect(), rows, stride);
}

thread_local! {
    /// Memory of the last call, for the next.
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// What lies between the two regions.
#[derive(Default)]
struct Scratch {
    activations: Activations,
    /// `s ⊙ (V x)` of each term, `[rows, ranks]`, terms one after another.
    h: Vec<f32>,
}

/// Part of a term that one task takes.
struct Task {
    term: usize,
    /// Place of the term's first value in `h`.
    h: usize,
    /// The band, or none for U, which takes all of them.
    band: usize,
    /// Place of the band's first rank among all ranks of the term.
    first_rank: usize,
    /// Ranks of the band (V), or groups of outputs (U).
    part: Range<usize>,
    /// Rows of the step.
    rows: Range<usize>,
}

impl Scratch {
    /// `h = s ⊙ (V x)` for all terms.
    fn project(&mut self, arithmetic: Arithmetic, x: &[f32], terms: &[Term<'_>], threads: &Threads) {
        let cost: usize = terms
            .iter()
            .map(|t| t.rows.len() * t.delta.ranks() * t.delta.inputs)
            .sum();
        let mut tasks = Vec::new();
        let mut h = 0;
        for (index, term) in terms.iter().enumerate() {
            let row_cost = term.rows.len().min(TASK_ROWS) * term.delta.inputs;
            let ranks = cost / (threads.count() * TASKS_A_THREAD) / row_cost.max(1);
            let ranks = ranks.max(TASK_RANKS).next_multiple_of(TASK_RANKS);
            let mut first_rank = 0;
            for (band_index, band) in term.delta.v.iter().enumerate() {
                for part in pieces(0..band.ranks, ranks) {
                    tasks.extend(pieces(term.rows.clone(), TASK_ROWS).map(|rows| Task {
                        term: index,
                        h,
                        band: band_index,
                        first_rank,
                        part: part.clone(),
                        rows,
                    }));
                }
                first_rank += band.ranks;
            }
            h += term.rows.len() * term.delta.ranks();
        }
        // Old contents may stay: all of it is written before it is read.
        self.h.resize(h, 0.0);
        let activations = &self.activations;
        let h = DisjointRows::new(&mut self.h, h);
        threads.for_each(tasks.len(), cost, |i| {
            let task = &tasks[i];
            let term = &terms[task.term];
            let delta = term.delta;
            let v = Factor::new(&delta.v[task.band], delta.inputs);
            let s = &delta.s[task.first_rank..][task.part.clone()];
            let out = |m: usize, rank: usize, count: usize| {
                let place = task.h + (m - term.rows.start) * delta.ranks() + task.first_rank + rank;
                // SAFETY: tasks own different rows or ranks of different terms, and hold one part at a time.
                unsafe { h.part(0, place, count) }
            };
            if v.bits() == 16 {
                let mut weights = vec![0.0; v.len()];
                for (rank, s) in task.part.clone().zip(s) {
                    v.row(rank, &mut weights);
                    for m in task.rows.clone() {
                        out(m, rank, 1)[0] = s * dot(&weights, &x[m * v.len()..][..v.len()]);
                    }
                }
            } else {
                for m in task.rows.clone() {
                    let h = out(m, task.part.start, task.part.len());
                    arithmetic.dots(&v, task.part.clone(), activations.row(m), h);
                    h.iter_mut().zip(s).for_each(|(h, s)| *h *= s);
                }
            }
        });
    }

    /// `y += U h` for all terms.
    fn mix(&self, arithmetic: Arithmetic, terms: &[Term<'_>], y: &mut [f32], stride: usize, threads: &Threads) {
        let cost = terms
            .iter()
            .map(|t| t.rows.len() * t.delta.ranks() * t.delta.outputs)
            .sum();
        let mut tasks = Vec::new();
        let mut h = 0;
        for (index, term) in terms.iter().enumerate() {
            let count = groups(term.delta.outputs);
            // Rows that are read from end to end, if there are enough terms for all threads.
            let pieces_of_one = if terms.len() < TASKS_A_THREAD * threads.count() {
                threads.count()
            } else {
                1
            };
            let count = count.div_ceil(pieces_of_one);
            for part in pieces(0..groups(term.delta.outputs), count) {
                tasks.extend(pieces(term.rows.clone(), TASK_ROWS).map(|rows| Task {
                    term: index,
                    h,
                    band: 0,
                    first_rank: 0,
                    part: part.clone(),
                    rows,
                }));
            }
            h += term.rows.len() * term.delta.ranks();
        }
        let y = DisjointRows::new(y, stride);
        threads.for_each(tasks.len(), cost, |i| {
            let task = &tasks[i];
            let term = &terms[task.term];
            let delta = term.delta;
            let h = |m: usize, ranks: Range<usize>| {
                let place = task.h + (m - term.rows.start) * delta.ranks();
                &self.h[place..][ranks]
            };
            let out = |m: usize, group: usize, count: usize| {
                let len = (delta.outputs - group * GROUP).min(count * GROUP);
                // SAFETY: tasks own different rows or outputs of terms that share none, and hold one part at a time.
                unsafe { y.part(m, term.column + group * GROUP, len) }
            };
            let mut scratch = MIX_SCRATCH.take().unwrap_or_else(|| {
                Box::new(Tiles {
                    tile: Tile::ZERO,
                    coefficients: Coefficients::ZERO,
                })
            });
            let Tiles { tile, coefficients } = &mut *scratch;
            let mut first_rank = 0;
            let mut blocks = Vec::new();
            for u in delta.u_factors() {
                let size = if u.bits() == 16 { u.ranks() } else { BLOCK };
                blocks.extend(pieces(0..u.ranks(), size).map(|ranks| (u, first_rank, ranks)));
                first_rank += u.ranks();
            }
            for (i, (u, first_rank, ranks)) in blocks.iter().enumerate() {
                let h = |m| h(m, first_rank + ranks.start..first_rank + ranks.end);
                if u.bits() == 16 {
                    let mut weights = [0.0; GROUP];
                    for rank in ranks.clone() {
                        for group in task.part.clone() {
                            u.weights(rank, group, &mut weights);
                            for m in task.rows.clone() {
                                add_scaled(h(m)[rank], &weights, out(m, group, 1));
                            }
                        }
                    }
                    continue;
                }
                let tiled = arithmetic.needs_tile(u, task.rows.len());
                let (next, next_rank) = match blocks.get(i + 1) {
                    Some((next, _, ranks)) => (next, ranks.start),
                    None => (u, ranks.start),
                };
                for chunk in pieces(task.part.clone(), CHUNK) {
                    if tiled {
                        arithmetic.fill(tile, u, ranks.clone(), chunk.clone());
                    }
                    for m in task.rows.clone() {
                        coefficients.quantise(
                            arithmetic,
                            u,
                            h(m),
                            ranks.start,
                            chunk.start,
                            next.ahead(next_rank, chunk.start),
                        );
                        let mut lane = 0;
                        while lane < chunk.len() {
                            let group = chunk.start + lane;
                            let ahead = next.ahead(next_rank, group);
                            if !tiled && lane + 1 < chunk.len() {
                                let y = out(m, group, 2);
                                if arithmetic.mix_two(u, coefficients, lane, ahead, y) {
                                    lane += 2;
                                    continue;
                                }
                            }
                            arithmetic.mix(u, tiled.then_some(&*tile), coefficients, lane, ahead, out(m, group, 1));
                            lane += 1;
                        }
                    }
                }
            }
            MIX_SCRATCH.set(Some(scratch));
        });
    }
}

struct Tiles {
    tile: Tile,
    coefficients: Coefficients,
}
thread_local! { static MIX_SCRATCH: Cell<Option<Box<Tiles>>> = const { Cell::new(None) }; }

/// Cuts a range in pieces of `size`, of which the last may be shorter.
fn pieces(range: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range
        .step_by(size.max(1))
        .map(move |start| start..(start + size).min(end))
}

for_each_isa! {
    /// Dot product in the lanes' fixed order.
    fn dot(weights: &[f32], x: &[f32]) -> f32 {
        lanes::dot(weights, x)
    }
}

for_each_isa! {
    /// `out += a · w`, fused.
    fn add_scaled(a: f32, w: &[f32], out: &mut [f32]) {
        for (out, w) in out.iter_mut().zip(w) {
            *out = a.mul_add(*w, *out);
        }
    }
}
