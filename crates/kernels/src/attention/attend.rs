//! Attention of a step's rows, spread over threads.

use std::cell::RefCell;

use super::blocks::Blocks;
use super::cache::padded;
use super::plan::{Joined, Piece, Plan};
use super::queries::QueryTiles;
use super::softmax::Total;
use super::{Columns, MAX_HEAD_DIM, PagedCache, QueryRow, Rotation, SEGMENT};
use crate::threads::DisjointRows;
use crate::{Threads, ops};

/// Attention of every row over the positions it sees; `queries` and `out` are `[rows, query heads, head_dim]`, and
/// neighbouring query heads share a key/value head (grouped-query attention). Queries are rotated first if a `rotation`
/// is given.
///
/// # Panics
/// If lengths do not fit together, or the pages of a row do not cover its positions or lie outside the cache.
pub fn attend(
    cache: &PagedCache,
    rows: &[QueryRow<'_>],
    queries: Columns<'_>,
    rotation: Option<Rotation<'_>>,
    out: &mut [f32],
    threads: &Threads,
) {
    let (width, heads, dim) = (queries.width, cache.heads, cache.head_dim);
    let group = width / (heads * dim);
    assert!(
        group > 0 && group * heads * dim == width,
        "queries: {width} columns are whole heads of {dim} for each of {heads} key/value heads"
    );
    queries.check("queries", rows.len(), width);
    if let Some(rotation) = rotation {
        rotation.check(rows.len(), dim);
    }
    assert_eq!(out.len(), rows.len() * width, "out is [{}, {width}]", rows.len());
    let plan = Plan::new(rows, heads, group, padded(dim), threads.count());
    for piece in &plan.pieces {
        cache.check_all(&rows[piece.rows.end - 1]);
    }

    let step = Step {
        cache,
        rows,
        queries,
        rotation,
        group,
        out: DisjointRows::new(out, width),
    };
    let mut states = vec![0.0; plan.states * state_len(dim)];
    let cost = 2 * width * rows.iter().map(|row| row.count).sum::<usize>();
    let shared = DisjointRows::new(&mut states, state_len(dim));
    threads.for_each(plan.pieces.len(), cost, |task| step.attend(&plan.pieces[task], &shared));
    let joined = plan.joined.len() * group;
    threads.for_each(joined, states.len(), |task| {
        step.join(&plan.joined[task / group], task % group, &states)
    });
}

/// Length of a state: a mixture of values, its softmax's maximum and sum.
fn state_len(dim: usize) -> usize {
    padded(dim) + 2
}

/// What all tasks of a call share.
struct Step<'a> {
    cache: &'a PagedCache,
    rows: &'a [QueryRow<'a>],
    queries: Columns<'a>,
    rotation: Option<Rotation<'a>>,
    /// Query heads that share a key/value head.
    group: usize,
    out: DisjointRows<'a>,
}

/// Buffers of a task, kept by each thread: as large as its largest task, whatever the context.
#[derive(Debug, Default)]
struct Scratch {
    queries: QueryTiles,
    blocks: Blocks,
    totals: Vec<Total>,
    /// `[queries, padded head_dim]`.
    mixed: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

impl Step<'_> {
    /// Computes a piece: to `out` if it has all segments of its rows, else to its states.
    fn attend(&self, piece: &Piece, states: &DisjointRows<'_>) {
        SCRATCH.with_borrow_mut(|scratch| self.attend_in(piece, states, scratch));
    }

    fn attend_in(&self, piece: &Piece, states: &DisjointRows<'_>, scratch: &mut Scratch) {
        let Scratch {
            queries,
            blocks,
            totals,
            mixed,
        } = scratch;
        let (dim, width) = (self.cache.head_dim, padded(self.cache.head_dim));
        let count = piece.rows.len() * self.group;
        // A query is a row and one of the query heads that share the piece's key/value head.
        let place = |query: usize| {
            let row = piece.rows.start + query / self.group;
            (row, piece.head * self.group + query % self.group)
        };
        queries.pack(count, dim, |query, values| {
            let (row, head) = place(query);
            values.copy_from_slice(&self.queries.row(row)[head * dim..][..dim]);
            if let Some(rotation) = self.rotation {
                let (cos, sin) = rotation.row(row, dim);
                ops::rotate(values, cos, sin);
            }
            self.rows[row].count
        });
        let (cache, pages) = (self.cache.head(piece.head), self.rows[piece.rows.start].pages);
        if let Some(first) = piece.first_state {
            blocks.run(
                cache,
                pages,
                piece.segments.clone(),
                queries,
                |segment, query, total, mixed| {
                    // SAFETY: every segment of a piece that is split has its own states.
                    let state = unsafe { states.part(first + segment * count + query, 0, width + 2) };
                    state[..width].copy_from_slice(mixed);
                    state[width..].copy_from_slice(&[total.max, total.sum]);
                },
            );
            return;
        }
        totals.clear();
        totals.resize(count, Total::EMPTY);
        mixed.clear();
        mixed.resize(count * width, 0.0);
        blocks.run(
            cache,
            pages,
            piece.segments.clone(),
            queries,
            |_, query, next, next_mixed| {
                totals[query].add(&mut mixed[query * width..][..width], next, next_mixed);
            },
        );
        for (query, (total, mixed)) in totals.iter().zip(mixed.chunks_exact(width)).enumerate() {
            let (row, head) = place(query);
            self.finish(row, head, *total, mixed);
        }
    }

    /// Adds the segments of one query head of a row.
    fn join(&self, joined: &Joined, head: usize, states: &[f32]) {
        let width = padded(self.cache.head_dim);
        let mut total = Total::EMPTY;
        let mut mixed = [0.0; MAX_HEAD_DIM];
        for segment in 0..self.rows[joined.row].count.div_ceil(SEGMENT) {
            let state = joined.first_state + segment * joined.segment_states + head;
            let (next, softmax) = states[state * (width + 2)..][..width + 2].split_at(width);
            let next_total = Total {
                max: softmax[0],
                sum: softmax[1],
            };
            total.add(&mut mixed[..width], next_total, next);
        }
        self.finish(joined.row, joined.head * self.group + head, total, &mixed[..width]);
    }

    /// Writes the result of a query head of a row.
    fn finish(&self, row: usize, head: usize, total: Total, mixed: &[f32]) {
        let dim = self.cache.head_dim;
        // SAFETY: each query head of each row is finished once.
        let out = unsafe { self.out.part(row, head * dim, dim) };
        let scale = 1.0 / total.sum;
        for (out, mixed) in out.iter_mut().zip(mixed) {
            *out = mixed * scale;
        }
    }
}
