//! The two products of attention on a register tile of query rows: scores `Q Kᵀ` and mixtures `P V`.
//!
//! Both keep one accumulator for each output element and add its terms in order, one fused multiply-add each, so the
//! tile's shape does not change a result. The shape follows the number of vector registers: rows × panels of sixteen
//! lanes must fit in them beside what they are multiplied with.

use super::{BLOCK, BLOCK_STRIPS, STRIP};
use crate::isa::{Isa, isa};
use crate::lanes::LANES;
use crate::vector::{Vector, for_each_vector};

/// Most rows of a tile on any instruction set.
pub(super) const MAX_ROWS: usize = 14;

/// Most rows of a tile on the instruction set in use.
pub(super) fn max_rows() -> usize {
    match isa() {
        Isa::Avx512 => 14,
        Isa::Avx2 | Isa::Portable => 6,
    }
}

/// Panels of sixteen columns that a tile of `rows` rows computes at once.
const fn panels_at_once(registers: usize, rows: usize) -> usize {
    match (registers, rows) {
        (32, 0..=7) => 4,
        (32, _) => 2,
        (_, 1) => 4,
        (_, 2 | 3) => 2,
        _ => 1,
    }
}

/// Scores, then probabilities, of a query row for the positions of a block.
pub(super) type Scores = [f32; BLOCK];

/// Runs `$tile::<V, rows>($args)` for a number of rows known at run time.
macro_rules! for_rows {
    ($vector:ident, $rows:expr, $tile:ident($($arg:expr),* $(,)?)) => {
        for_rows!(@ $vector, $rows, $tile, ($($arg),*), 1 2 3 4 5 6, 7 8 9 10 11 12 13 14)
    };
    (@ $vector:ident, $rows:expr, $tile:ident, $args:tt, $($few:literal)*, $($many:literal)*) => {
        match $rows {
            $($few => for_rows!(@call $tile, $vector, $few, $args),)*
            $($many if $vector::REGISTERS >= 32 => for_rows!(@call $tile, $vector, $many, $args),)*
            rows => panic!("a tile of {rows} rows"),
        }
    };
    (@call $tile:ident, $vector:ident, $rows:literal, ($($arg:expr),*)) => {
        $tile::<$vector, $rows>($($arg),*)
    };
}

for_each_vector! {
    /// `scores[m][t] = Σ_d queries[d][m] · keys[t][d]`, dimensions in order, for the positions of 1 to 4 strips.
    ///
    /// `keys` are strips of [`STRIP`] positions, `[dimensions, STRIP]` each; `queries` is `[dimensions, rows]`. Where
    /// strips lack, what lies in the scores afterwards means nothing.
    pub(super) fn score<vector V>(keys: &[&[u16]], queries: &[f32], rows: usize, scores: &mut [Scores]) {
        for_rows!(V, rows, score_rows(keys, queries, scores))
    }
}

#[inline(always)]
fn score_rows<V: Vector, const ROWS: usize>(keys: &[&[u16]], queries: &[f32], scores: &mut [Scores]) {
    let queries = queries.as_chunks::<ROWS>().0;
    // A group of strips that is not full computes its last one again.
    let strip = |i: usize| keys[i.min(keys.len() - 1)].as_chunks::<LANES>().0;
    let mut at = 0;
    while at < keys.len() {
        match panels_at_once(V::REGISTERS, ROWS) {
            4 if keys.len() > 2 => {
                score_tile::<V, ROWS, 4>([strip(0), strip(1), strip(2), strip(3)], queries, scores, 0);
                return;
            }
            2 | 4 => {
                score_tile::<V, ROWS, 2>([strip(at), strip(at + 1)], queries, scores, at);
                at += 2;
            }
            _ => {
                score_tile::<V, ROWS, 1>([strip(at)], queries, scores, at);
                at += 1;
            }
        }
    }
}

#[inline(always)]
fn score_tile<V: Vector, const ROWS: usize, const STRIPS: usize>(
    keys: [&[[u16; LANES]]; STRIPS],
    queries: &[[f32; ROWS]],
    scores: &mut [Scores],
    first: usize,
) {
    let mut acc = [[V::splat(0.0); STRIPS]; ROWS];
    let keys: [&[[u16; LANES]]; STRIPS] = keys.map(|strip| &strip[..queries.len()]);
    for (d, query) in queries.iter().enumerate() {
        let mut key = [V::splat(0.0); STRIPS];
        for s in 0..STRIPS {
            key[s] = V::f16(&keys[s][d]);
        }
        for m in 0..ROWS {
            let query = V::splat(query[m]);
            for s in 0..STRIPS {
                acc[m][s] = acc[m][s].fma(query, key[s]);
            }
        }
    }
    for (acc, scores) in acc.iter().zip(scores) {
        for (acc, scores) in acc.iter().zip(&mut scores.as_chunks_mut::<LANES>().0[first..]) {
            acc.store(scores);
        }
    }
}

for_each_vector! {
    /// `mixed[m] = mixed[m] · scale[m] + Σ_t probabilities[m][t] · values[t]`, positions `from .. to` of the block in
    /// order.
    ///
    /// `values` are strips of [`STRIP`] positions, `[STRIP, width]` each; `mixed` is `[rows, width]`, and `width` a
    /// multiple of sixteen.
    pub(super) fn mix<vector V>(
        values: &[&[u16]],
        from: usize,
        to: usize,
        probabilities: &[Scores],
        scale: &[f32],
        width: usize,
        mixed: &mut [f32],
    ) {
        for_rows!(V, probabilities.len(), mix_rows(values, from, to, probabilities, scale, width, mixed))
    }
}

#[inline(always)]
fn mix_rows<V: Vector, const ROWS: usize>(
    values: &[&[u16]],
    from: usize,
    to: usize,
    probabilities: &[Scores],
    scale: &[f32],
    width: usize,
    mixed: &mut [f32],
) {
    let (Ok(probabilities), Ok(scale)) = (probabilities.try_into(), scale.try_into()) else {
        panic!("probabilities and scales for {ROWS} rows");
    };
    let mut column = 0;
    while column < width {
        let panels = ((width - column) / LANES).min(panels_at_once(V::REGISTERS, ROWS));
        column += match panels {
            4 => mix_tile::<V, ROWS, 4>(values, from, to, probabilities, scale, width, column, mixed),
            2 | 3 => mix_tile::<V, ROWS, 2>(values, from, to, probabilities, scale, width, column, mixed),
            _ => mix_tile::<V, ROWS, 1>(values, from, to, probabilities, scale, width, column, mixed),
        }
    }
}

/// Returns the number of columns computed.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn mix_tile<V: Vector, const ROWS: usize, const PANELS: usize>(
    values: &[&[u16]],
    from: usize,
    to: usize,
    probabilities: &[Scores; ROWS],
    scale: &[f32; ROWS],
    width: usize,
    column: usize,
    mixed: &mut [f32],
) -> usize {
    let mut acc = [[V::splat(0.0); PANELS]; ROWS];
    for m in 0..ROWS {
        let (mixed, _) = mixed[m * width + column..][..PANELS * LANES].as_chunks::<LANES>();
        for p in 0..PANELS {
            acc[m][p] = V::load(&mixed[p]).mul(V::splat(scale[m]));
        }
    }
    let mut t = from;
    while t < to {
        let strip = values[t / STRIP];
        let end = to.min(t / STRIP * STRIP + STRIP);
        while t < end {
            let (strip, _) = strip[t % STRIP * width + column..][..PANELS * LANES].as_chunks::<LANES>();
            let mut value = [V::splat(0.0); PANELS];
            for p in 0..PANELS {
                value[p] = V::f16(&strip[p]);
            }
            for m in 0..ROWS {
                let probability = V::splat(probabilities[m][t]);
                for p in 0..PANELS {
                    acc[m][p] = acc[m][p].fma(probability, value[p]);
                }
            }
            t += 1;
        }
    }
    for m in 0..ROWS {
        let (mixed, _) = mixed[m * width + column..][..PANELS * LANES].as_chunks_mut::<LANES>();
        for p in 0..PANELS {
            acc[m][p].store(&mut mixed[p]);
        }
    }
    PANELS * LANES
}

const _: () = assert!(STRIP == LANES && BLOCK == BLOCK_STRIPS * STRIP);
