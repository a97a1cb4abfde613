//! The differences of several variants, each for its own rows of a step, in one parallel region.

use super::layout::GROUP_BYTES;
use super::sums::{LookUp, PANELS, ROWS, Sums};
use super::tables::{self, TABLES, Table};
use super::{GROUP, PANEL, SignDelta};
use crate::Threads;
use crate::isa::for_each_isa;
use crate::placement::{self, Place};
use crate::threads::DisjointRows;
use std::cell::Cell;
use std::ops::Range;

/// One variant's difference for some rows of a step.
#[derive(Debug, Clone)]
pub struct Term<'a> {
    /// The difference.
    pub delta: &'a SignDelta,
    /// The rows it is for.
    pub rows: Range<usize>,
    /// The column of the results at which the difference's first output is.
    pub column: usize,
}

/// Rows that one task takes, at most.
const TASK_ROWS: usize = 16;

/// Tasks for each thread, at least, where there is work for them: each fills the tables of its rows anew.
const TASKS_A_THREAD: usize = 2;

/// Inputs whose tables are filled at a time: those of [`ROWS`] rows take half a megabyte of the second-level cache at
/// most.
const BLOCK: usize = 8192;

/// Adds every term: `y[m][column ..] += scale ⊙ (B x[m])` for each `m` of its rows. `x` is `[rows, inputs]` and shared
/// by all terms, `y` is `[rows, stride]`.
///
/// A row's result depends neither on the other rows nor on the other terms.
///
/// # Panics
/// If `x` or `y` has another length, a term lies outside of them, two terms share an element of `y`, or a difference's
/// parts do not fit its shape.
pub fn add_terms(x: &[f32], rows: usize, terms: &[Term<'_>], y: &mut [f32], stride: usize, threads: &Threads) {
    add_terms_by(LookUp::best(), x, rows, terms, y, stride, threads);
}

/// [`add_terms`] by the given instructions.
pub(super) fn add_terms_by(
    look_up: LookUp,
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
    for term in terms {
        assert_eq!(term.delta.inputs, inputs, "all terms have the same inputs");
        term.delta.check();
    }
    let place = |term: &Term<'_>| Place {
        rows: term.rows.clone(),
        column: term.column,
        outputs: term.delta.outputs,
    };
    placement::check(terms.iter().map(place).collect(), rows, stride);

    let cost = terms.iter().map(|t| t.rows.len() * t.delta.outputs * inputs).sum();
    let tasks = tasks(terms, threads.count());
    let y = DisjointRows::new(y, stride);
    threads.for_each(tasks.len(), cost, |i| {
        let task = &tasks[i];
        let term = &terms[task.term];
        let out = |m: usize, output: usize, count: usize| {
            // SAFETY: tasks own different rows or outputs of terms that share none, and hold one part at a time.
            unsafe { y.part(m, term.column + output, count) }
        };
        let mut scratch = SCRATCH.take();
        for first in task.rows.clone().step_by(ROWS) {
            let rows = first..task.rows.end.min(first + ROWS);
            scratch.look_up(look_up, term.delta, x, rows.clone(), task.panels.clone());
            for (i, sums) in scratch.sums.iter().enumerate() {
                let (panel, m) = (task.panels.start + i / rows.len(), rows.start + i % rows.len());
                let output = panel * PANEL;
                let y = out(m, output, PANEL.min(term.delta.outputs - output));
                match &*term.delta.scales {
                    [one] => add_scaled(&[*one; PANEL], sums, y),
                    each => add_scaled(&each[output..output + y.len()], sums, y),
                }
            }
        }
        SCRATCH.set(scratch);
    });
}

/// Part of a term that one task takes.
struct Task {
    term: usize,
    rows: Range<usize>,
    panels: Range<usize>,
}

/// Cuts the terms by rows, and by panels where that gives too few tasks.
fn tasks(terms: &[Term<'_>], threads: usize) -> Vec<Task> {
    let pieces = |range: Range<usize>, size: usize| {
        let end = range.end;
        range.step_by(size).map(move |start| start..end.min(start + size))
    };
    let by_rows: usize = terms.iter().map(|t| t.rows.len().div_ceil(TASK_ROWS)).sum();
    let pieces_of_one = (TASKS_A_THREAD * threads).div_ceil(by_rows.max(1));
    let mut tasks = Vec::new();
    for (index, term) in terms.iter().enumerate() {
        let panels = term.delta.outputs.div_ceil(PANEL);
        let size = panels.div_ceil(pieces_of_one).next_multiple_of(PANELS);
        for rows in pieces(term.rows.clone(), TASK_ROWS) {
            tasks.extend(pieces(0..panels, size.max(1)).map(|panels| Task {
                term: index,
                rows: rows.clone(),
                panels,
            }));
        }
    }
    tasks
}

thread_local! {
    /// Memory of the last task, for the next.
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// What a task computes on the way.
#[derive(Default)]
struct Scratch {
    /// `[groups, TABLES, rows]`.
    tables: Vec<Table>,
    /// `[panels, rows]`.
    sums: Vec<Sums>,
}

impl Scratch {
    /// `sums = B x` for these rows and panels.
    fn look_up(&mut self, by: LookUp, delta: &SignDelta, x: &[f32], rows: Range<usize>, panels: Range<usize>) {
        let (inputs, count) = (delta.inputs, rows.len());
        let stride = inputs.div_ceil(GROUP) * GROUP_BYTES;
        self.sums.clear();
        self.sums.resize(panels.len() * count, [0.0; PANEL]);
        for first in (0..inputs).step_by(BLOCK) {
            let len = BLOCK.min(inputs - first);
            // Old contents may stay: all of it is written before it is read.
            self.tables.resize(len.div_ceil(GROUP) * TABLES * count, Table::ZERO);
            for (i, m) in rows.clone().enumerate() {
                let x = &x[m * inputs + first..][..len];
                tables::fill(x, count, &mut self.tables[i..]);
            }
            let codes = &delta.codes[panels.start * stride + first / GROUP * GROUP_BYTES..];
            by.add(codes, stride, &self.tables, count, &mut self.sums);
        }
    }
}

for_each_isa! {
    /// `y += scale · sum`, fused.
    fn add_scaled(scales: &[f32], sums: &Sums, y: &mut [f32]) {
        for ((y, scale), sum) in y.iter_mut().zip(scales).zip(sums) {
            *y = scale.mul_add(*sum, *y);
        }
    }
}
