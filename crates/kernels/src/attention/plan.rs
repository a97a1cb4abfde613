//! How a step's attention is divided into tasks. Results do not depend on it.

use std::cmp::Reverse;
use std::ops::Range;

use super::{QueryRow, SEGMENT};

/// Elements of a task's accumulators, so that they and its queries stay in the second-level cache.
const TASK_ELEMENTS: usize = 16 * 1024;

/// Tasks wanted for each thread, so that none waits long for the last.
const TASKS_A_THREAD: usize = 4;

/// Rows of a sequence that are not divided to make more tasks, since each part reads all keys and values; with no more
/// rows than these the positions are divided instead.
const FEW_ROWS: usize = 8;

/// The tasks of a step, the longest first.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) pieces: Vec<Piece>,
    /// Rows whose segments are computed by several pieces, once for each key/value head.
    pub(super) joined: Vec<Joined>,
    /// States in all.
    pub(super) states: usize,
}

/// One task: some segments of one key/value head for neighbouring rows of one sequence.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) rows: Range<usize>,
    pub(super) head: usize,
    pub(super) segments: Range<usize>,
    /// Where the states of the rows and this head begin, `[segments of the sequence, rows, query heads of the group]`;
    /// none if `segments` are all that the rows see.
    pub(super) first_state: Option<usize>,
}

/// A row and key/value head whose segments are to be added.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Joined {
    pub(super) row: usize,
    pub(super) head: usize,
    /// Its first state in the first segment.
    pub(super) first_state: usize,
    /// States of a segment.
    pub(super) segment_states: usize,
}

impl Plan {
    /// For `heads` key/value heads with `group` query heads each, which are `width` wide.
    pub(super) fn new(rows: &[QueryRow<'_>], heads: usize, group: usize, width: usize, threads: usize) -> Self {
        let wanted = if threads == 1 { 1 } else { TASKS_A_THREAD * threads };
        let largest = (TASK_ELEMENTS / (width * group)).max(1);
        let tiles = tiles(rows, (rows.len() * heads / wanted).max(FEW_ROWS).min(largest));
        let parts = wanted.div_ceil((tiles.len() * heads).max(1));
        let mut plan = Plan::default();
        for rows_range in tiles {
            let segments = rows[rows_range.end - 1].count.div_ceil(SEGMENT);
            let parts = if rows_range.len() > FEW_ROWS {
                1
            } else {
                parts.min(segments)
            };
            for head in 0..heads {
                let first_state = (parts > 1).then_some(plan.states);
                plan.pieces.extend((0..parts).map(|part| Piece {
                    rows: rows_range.clone(),
                    head,
                    segments: segments * part / parts..segments * (part + 1) / parts,
                    first_state,
                }));
                if let Some(first_state) = first_state {
                    let segment_states = rows_range.len() * group;
                    plan.joined
                        .extend(rows_range.clone().enumerate().map(|(i, row)| Joined {
                            row,
                            head,
                            first_state: first_state + i * group,
                            segment_states,
                        }));
                    plan.states += segments * segment_states;
                }
            }
        }
        plan.pieces.sort_by_key(|piece| {
            let seen = rows[piece.rows.end - 1].count.min(piece.segments.end * SEGMENT);
            Reverse(piece.rows.len() * (seen - piece.segments.start * SEGMENT))
        });
        plan
    }
}

/// Runs of at most `limit` neighbouring rows of one sequence with counts in order.
fn tiles(rows: &[QueryRow<'_>], limit: usize) -> Vec<Range<usize>> {
    let mut tiles = Vec::new();
    let mut start = 0;
    for end in 1..=rows.len() {
        let last = &rows[end - 1];
        let joins = rows
            .get(end)
            .is_some_and(|next| std::ptr::eq(next.pages, last.pages) && next.count >= last.count);
        if !joins || end - start == limit {
            tiles.push(start..end);
            start = end;
        }
    }
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row, head and segment is in one piece, and states do not overlap.
    #[test]
    fn pieces_cover_everything_once() {
        let pages: [&[u32]; 3] = [&[0; 9], &[1; 400], &[2; 80]];
        let chunks = [
            (pages[0], 0..100),
            (pages[1], 6000..6001),
            (pages[2], 600..1200),
            (pages[1], 5000..5008),
        ];
        for chunks in [
            &chunks[..],
            &chunks[..1],
            &chunks[1..2],
            &chunks[2..3],
            &chunks[3..],
            &[],
        ] {
            let rows: Vec<_> = chunks
                .iter()
                .flat_map(|(pages, range)| range.clone().map(|t| QueryRow { pages, count: t + 1 }))
                .collect();
            for threads in [1, 2, 5, 64] {
                let (heads, group) = (2, 3);
                let plan = Plan::new(&rows, heads, group, 64, threads);
                let mut seen = vec![vec![0; 16]; rows.len() * heads];
                let mut states = vec![0; plan.states];
                for piece in &plan.pieces {
                    for row in piece.rows.clone() {
                        for segment in piece.segments.clone() {
                            seen[row * heads + piece.head][segment] += 1;
                        }
                    }
                    assert!(
                        piece
                            .rows
                            .clone()
                            .all(|row| std::ptr::eq(rows[row].pages, rows[piece.rows.start].pages))
                    );
                    let all = rows[piece.rows.end - 1].count.div_ceil(SEGMENT);
                    match piece.first_state {
                        None => assert_eq!(piece.segments, 0..all),
                        Some(first) => {
                            let queries = piece.rows.len() * group;
                            let range = piece.segments.start * queries..piece.segments.end * queries;
                            states[first..][range].iter_mut().for_each(|n| *n += 1);
                        }
                    }
                }
                for (seen, row) in seen.chunks(heads).zip(&rows) {
                    let segments = row.count.div_ceil(SEGMENT);
                    assert!(seen.iter().all(|seen| seen[..segments].iter().all(|n| *n == 1)));
                }
                assert!(states.iter().all(|n| *n == 1));
                let split: usize = plan
                    .pieces
                    .iter()
                    .filter(|p| p.first_state.is_some() && p.segments.start == 0)
                    .map(|p| p.rows.len())
                    .sum();
                assert_eq!(split, plan.joined.len());
            }
        }
    }

    #[test]
    fn one_long_decode_step_has_work_for_all_threads() {
        let rows = [QueryRow {
            pages: &[0; 1024],
            count: 16_384,
        }];
        assert!(Plan::new(&rows, 3, 3, 64, 2).pieces.len() >= 8);
        assert_eq!(Plan::new(&rows, 3, 3, 64, 1).pieces.len(), 3);
    }
}
