//! Attention of a step's rows, spread over threads.

use std::ops::Range;

use super::cache::padded;
use super::plan::{Joined, Piece, Plan};
use super::softmax::{Running, Total, exponentials};
use super::tile::{MAX_ROWS, Scores, max_rows, mix, score};
use super::{BLOCK, BLOCK_STRIPS, Columns, MAX_HEAD_DIM, PagedCache, QueryRow, Rotation, SEGMENT, STRIP};
use crate::lanes;
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

impl Step<'_> {
    /// Computes a piece: to `out` if it has all segments of its rows, else to its states.
    fn attend(&self, piece: &Piece, states: &DisjointRows<'_>) {
        let width = padded(self.cache.head_dim);
        let queries = piece.rows.len() * self.group;
        if let Some(first) = piece.first_state {
            self.segments(piece, |segment, query, total, mixed| {
                // SAFETY: every segment of a piece that is split has its own states.
                let state = unsafe { states.part(first + segment * queries + query, 0, width + 2) };
                state[..width].copy_from_slice(mixed);
                state[width..].copy_from_slice(&[total.max, total.sum]);
            });
            return;
        }
        let mut totals = vec![Total::EMPTY; queries];
        let mut sums = vec![0.0; queries * width];
        self.segments(piece, |_, query, total, mixed| {
            totals[query].add(&mut sums[query * width..][..width], total, mixed);
        });
        for (query, (total, mixed)) in totals.iter().zip(sums.chunks_exact(width)).enumerate() {
            let row = piece.rows.start + query / self.group;
            self.finish(row, piece.head * self.group + query % self.group, *total, mixed);
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

    /// Calls `done(segment, query, softmax, mixture)` for every segment of the piece and every query (row of the piece
    /// · group + head of the group) that sees some of it, segments of a query in order.
    fn segments(&self, piece: &Piece, mut done: impl FnMut(usize, usize, Total, &[f32])) {
        let width = padded(self.cache.head_dim);
        let rows = &self.rows[piece.rows.clone()];
        let cache = self.cache.head(piece.head);
        let (pages, last) = (rows[0].pages, rows[rows.len() - 1].count);
        let queries = rows.len() * self.group;
        let tiles = self.query_tiles(piece);
        let mut running = vec![Running::EMPTY; tiles.len()];
        let mut mixed = vec![0.0; queries * width];
        let mut scores: [Scores; MAX_ROWS] = [[0.0; BLOCK]; MAX_ROWS];
        for segment in piece.segments.clone() {
            let start = segment * SEGMENT;
            running.fill(Running::EMPTY);
            mixed.fill(0.0);
            for block in (start..last.min(start + SEGMENT)).step_by(BLOCK) {
                let strips = (last - block).div_ceil(STRIP).min(BLOCK_STRIPS);
                let mut keys: [&[u16]; BLOCK_STRIPS] = [&[]; BLOCK_STRIPS];
                let mut values = keys;
                for i in 0..strips {
                    (keys[i], values[i]) = cache.strip(pages, block / STRIP + i);
                }
                for (tile, running) in tiles.iter().zip(&mut running) {
                    let n = tile.queries.len();
                    let mut visible = [0; MAX_ROWS];
                    for (visible, query) in visible.iter_mut().zip(tile.queries.clone()) {
                        *visible = rows[query / self.group].count.saturating_sub(block).min(BLOCK);
                    }
                    let visible = &visible[..n];
                    if visible[n - 1] == 0 {
                        continue;
                    }
                    let strips = visible[n - 1].div_ceil(STRIP);
                    let scores = &mut scores[..n];
                    score(&keys[..strips], &tile.packed, n, scores);
                    let scale = exponentials(scores, visible, running);
                    let mixed = &mut mixed[tile.queries.start * width..tile.queries.end * width];
                    // What all rows see, then what only later rows see.
                    mix(&values, 0, visible[0], scores, &scale[..n], width, mixed);
                    for m in 1..n {
                        if visible[m] > visible[0] {
                            let mixed = &mut mixed[m * width..][..width];
                            mix(&values, visible[0], visible[m], &scores[m..=m], &[1.0], width, mixed);
                        }
                    }
                }
            }
            for (tile, running) in tiles.iter().zip(&running) {
                for (m, query) in tile.queries.clone().enumerate() {
                    if rows[query / self.group].count > start {
                        let total = Total {
                            max: running.max[m],
                            sum: lanes::sum(&running.sums[m]),
                        };
                        done(segment, query, total, &mixed[query * width..][..width]);
                    }
                }
            }
        }
    }

    /// The queries of a piece, rotated and scaled by `1 / √head_dim`, in register tiles.
    fn query_tiles(&self, piece: &Piece) -> Vec<QueryTile> {
        let dim = self.cache.head_dim;
        let scale = 1.0 / (dim as f32).sqrt();
        let queries = piece.rows.len() * self.group;
        let count = queries.div_ceil(max_rows());
        let mut wide = [0.0; MAX_HEAD_DIM];
        (0..count)
            .map(|i| {
                let range = queries * i / count..queries * (i + 1) / count;
                let mut packed = vec![0.0; range.len() * dim];
                for (m, query) in range.clone().enumerate() {
                    let row = piece.rows.start + query / self.group;
                    let head = piece.head * self.group + query % self.group;
                    wide[..dim].copy_from_slice(&self.queries.row(row)[head * dim..][..dim]);
                    if let Some(rotation) = self.rotation {
                        let (cos, sin) = rotation.row(row, dim);
                        ops::rotate(&mut wide[..dim], cos, sin);
                    }
                    for (packed, wide) in packed.chunks_exact_mut(range.len()).zip(&wide) {
                        packed[m] = wide * scale;
                    }
                }
                QueryTile { queries: range, packed }
            })
            .collect()
    }
}

/// Some neighbouring queries of a piece.
struct QueryTile {
    queries: Range<usize>,
    /// `[head_dim, queries]`.
    packed: Vec<f32>,
}
