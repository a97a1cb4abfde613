//! The loop over blocks of positions.

use std::ops::Range;

use super::cache::{HeadCache, Strips};
use super::queries::QueryTiles;
use super::softmax::{Running, Total, exponentials};
use super::tile::{self, MAX_ROWS, Scores};
use super::{BLOCK, SEGMENT, STRIP};
use crate::lanes;

/// Tiles up to which a task reads keys and values faster than it would find them in the caches by itself.
const FEW_TILES: usize = 2;

/// State of a task: running softmax and mixture of values of every query.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    running: Vec<Running>,
    /// `[queries, padded head_dim]`.
    mixed: Vec<f32>,
    /// Of one tile.
    scores: Vec<Scores>,
}

impl Blocks {
    /// Calls `done(segment, query, softmax, mixture)` for each segment and each query that sees some of it, the segments
    /// of a query in order.
    pub(super) fn run(
        &mut self,
        cache: HeadCache<'_>,
        pages: &[u32],
        segments: Range<usize>,
        queries: &QueryTiles,
        mut done: impl FnMut(usize, usize, Total, &[f32]),
    ) {
        let (width, counts) = (cache.width(), queries.counts());
        let Some(last) = counts.last().copied() else { return };
        self.running.resize(queries.len(), Running::EMPTY);
        self.mixed.resize(counts.len() * width, 0.0);
        self.scores.resize(MAX_ROWS, [0.0; BLOCK]);
        for segment in segments {
            let start = segment * SEGMENT;
            self.running.fill(Running::EMPTY);
            self.mixed.fill(0.0);
            for block in (start..last.min(start + SEGMENT)).step_by(BLOCK) {
                let strips = cache.strips(pages, block, last);
                let mut ahead = (queries.len() <= FEW_TILES).then(|| cache.strips(pages, block + BLOCK, last));
                for ((range, values), running) in queries.iter().zip(&mut self.running) {
                    let mixed = &mut self.mixed[range.start * width..range.end * width];
                    let counts = &counts[range];
                    if counts[counts.len() - 1] > block {
                        let scores = &mut self.scores[..counts.len()];
                        update(block, &strips, ahead.take(), values, counts, scores, running, mixed);
                    }
                }
            }
            for ((range, _), running) in queries.iter().zip(&self.running) {
                for (m, query) in range.enumerate() {
                    if counts[query] > start {
                        let total = Total {
                            max: running.max[m],
                            sum: lanes::sum(&running.sums[m]),
                        };
                        done(segment, query, total, &self.mixed[query * width..][..width]);
                    }
                }
            }
        }
    }
}

/// Adds a block to a tile of queries that see `counts` positions of the sequence, the last of them some of this block.
#[allow(clippy::too_many_arguments)]
fn update(
    block: usize,
    strips: &Strips<'_>,
    ahead: Option<Strips<'_>>,
    queries: &[f32],
    counts: &[usize],
    scores: &mut [Scores],
    running: &mut Running,
    mixed: &mut [f32],
) {
    let (rows, width) = (counts.len(), mixed.len() / counts.len());
    let mut visible = [0; MAX_ROWS];
    for (visible, count) in visible.iter_mut().zip(counts) {
        *visible = count.saturating_sub(block).min(BLOCK);
    }
    let visible = &visible[..rows];
    let ahead = ahead.as_ref();
    let keys = &strips.keys[..visible[rows - 1].div_ceil(STRIP)];
    tile::score(keys, ahead.map(|strips| &strips.keys), queries, scores);
    let scale = exponentials(scores, visible, running);
    // What all queries see, then what only later ones see.
    let values = &strips.values;
    let next = ahead.map(|strips| &strips.values);
    tile::mix(values, next, 0..visible[0], scores, &scale[..rows], width, mixed);
    for m in 1..rows {
        if visible[m] > visible[0] {
            let mixed = &mut mixed[m * width..][..width];
            tile::mix(
                values,
                None,
                visible[0]..visible[m],
                &scores[m..=m],
                &[1.0],
                width,
                mixed,
            );
        }
    }
}
