//! The two products of attention on a register tile of query rows: scores `Q Kᵀ` and mixtures `P V`.
//!
//! Both keep one accumulator for each output element and add its terms in order, one fused multiply-add each, so the
//! tile's shape does not change a result. The shape follows the number of vector registers: rows × panels of sixteen
//! lanes must fit in them beside what they are multiplied with.

use std::ops::Range;

use super::{BLOCK, BLOCK_STRIPS, STRIP};
use crate::isa::{Isa, isa};
use crate::lanes::LANES;
use crate::vector::{Vector, for_each_vector, prefetch};

/// Most rows of a tile on any instruction set.
pub(super) const MAX_ROWS: usize = 14;

/// Most rows of a tile on the instruction set in use.
fn max_rows() -> usize {
    match isa() {
        Isa::Avx512 => 14,
        Isa::Avx2 | Isa::Portable => 6,
    }
}

/// Divides the queries of a task into tiles of about the same number of rows.
pub(super) fn tiles(queries: usize) -> impl Iterator<Item = Range<usize>> {
    let max = max_rows();
    let count = queries.div_ceil(max);
    // With few registers three rows are slow: one panel of them has too few chains of additions to keep the units
    // busy, two need one register too many.
    let first = match (max, queries) {
        (6, 3) => Some(2),
        (6, 7) => Some(5),
        _ => None,
    };
    let parts = first.map_or(count, |_| 2);
    let bound = move |i: usize| match (first, i) {
        (Some(first), 1) => first,
        _ => queries * i / parts,
    };
    (0..parts).map(move |i| bound(i)..bound(i + 1))
}

/// Panels of sixteen columns that a tile of `rows` rows computes at once.
const fn panels_at_once(registers: usize, rows: usize) -> usize {
    match (registers, rows) {
        (32, 0..=7) => 4,
        (32, _) => 2,
        (_, 1) => 4,
        (_, 2) => 2,
        _ => 1,
    }
}

/// Scores, then probabilities, of a query row for the positions of a block.
pub(super) type Scores = [f32; BLOCK];

/// Runs `$tile::<V, rows, AHEAD>($args)` for a number of rows known at run time.
macro_rules! for_rows {
    ($vector:ident, $rows:expr, $ahead:ident, $tile:ident($($arg:expr),* $(,)?)) => {
        for_rows!(@ $vector, $rows, $ahead, $tile, ($($arg),*), 1 2 3 4 5 6, 7 8 9 10 11 12 13 14)
    };
    (@ $vector:ident, $rows:expr, $ahead:ident, $tile:ident, $args:tt, $($few:literal)*, $($many:literal)*) => {
        match $rows {
            $($few => for_rows!(@call $tile, $vector, $few, $ahead, $args),)*
            $($many if $vector::REGISTERS >= 32 => for_rows!(@call $tile, $vector, $many, $ahead, $args),)*
            rows => panic!("a tile of {rows} rows"),
        }
    };
    (@call $tile:ident, $vector:ident, $rows:literal, $ahead:ident, ($($arg:expr),*)) => {
        $tile::<$vector, $rows, $ahead>($($arg),*)
    };
}

/// `acc[m][p] += left(m) · right(p)`.
#[inline(always)]
fn multiply_add<V: Vector, L, const ROWS: usize, const PANELS: usize>(
    acc: &mut [[V; PANELS]; ROWS],
    left: &L,
    element: impl Fn(&L, usize) -> f32,
    right: impl Fn(usize) -> V,
) {
    if ROWS * PANELS + PANELS < V::REGISTERS {
        let right: [V; PANELS] = std::array::from_fn(right);
        for (m, acc) in acc.iter_mut().enumerate() {
            let left = V::splat(element(left, m));
            for p in 0..PANELS {
                acc[p] = acc[p].fma(left, right[p]);
            }
        }
    } else {
        // One panel after the other, with the left side read again for each: else the compiler keeps all in registers,
        // and accumulators on the stack instead.
        for p in 0..PANELS {
            let (left, right) = (opaque(left), right(p));
            for (m, acc) in acc.iter_mut().enumerate() {
                acc[p] = acc[p].fma(V::splat(element(left, m)), right);
            }
        }
    }
}

/// The same reference, but the compiler does not know.
#[inline(always)]
fn opaque<T>(reference: &T) -> &T {
    let mut address: *const T = reference;
    // SAFETY: the assembly is empty, so the address stays that of the reference.
    unsafe {
        std::arch::asm!("/* {0} */", inout(reg) address, options(readonly, nostack, preserves_flags));
        &*address
    }
}

/// `scores[m][t] = Σ_d queries[d][m] · keys[t][d]`, dimensions in order, for the positions of 1 to 4 strips.
///
/// `keys` are strips of [`STRIP`] positions, `[dimensions, STRIP]` each; `queries` is `[dimensions, rows]`. Where strips
/// lack, what lies in the scores afterwards means nothing. The strips `ahead` are asked for meanwhile.
pub(super) fn score(keys: &[&[u16]], ahead: Option<&[&[u16]; BLOCK_STRIPS]>, queries: &[f32], scores: &mut [Scores]) {
    match ahead {
        Some(ahead) => score_dispatch::<true>(keys, ahead, queries, scores),
        None => score_dispatch::<false>(keys, &[&[]; BLOCK_STRIPS], queries, scores),
    }
}

for_each_vector! {
    fn score_dispatch<vector V, const AHEAD: bool>(
        keys: &[&[u16]],
        ahead: &[&[u16]; BLOCK_STRIPS],
        queries: &[f32],
        scores: &mut [Scores],
    ) {
        for_rows!(V, scores.len(), AHEAD, score_rows(keys, ahead, queries, scores))
    }
}

#[inline(always)]
fn score_rows<V: Vector, const ROWS: usize, const AHEAD: bool>(
    keys: &[&[u16]],
    ahead: &[&[u16]; BLOCK_STRIPS],
    queries: &[f32],
    scores: &mut [Scores],
) {
    let queries = queries.as_chunks::<ROWS>().0;
    // A group of strips that is not full computes its last one again.
    let strip = |i: usize| keys[i.min(keys.len() - 1)].as_chunks::<LANES>().0;
    let ahead = |i: usize| ahead[i.min(BLOCK_STRIPS - 1)].as_ptr();
    let mut at = 0;
    while at < keys.len() {
        match panels_at_once(V::REGISTERS, ROWS) {
            4 if keys.len() > 2 => {
                score_tile::<V, ROWS, 4, AHEAD>(
                    [strip(0), strip(1), strip(2), strip(3)],
                    [ahead(0), ahead(1), ahead(2), ahead(3)],
                    queries,
                    scores,
                    0,
                );
                return;
            }
            2 | 4 => {
                score_tile::<V, ROWS, 2, AHEAD>(
                    [strip(at), strip(at + 1)],
                    [ahead(at), ahead(at + 1)],
                    queries,
                    scores,
                    at,
                );
                at += 2;
            }
            _ => {
                score_tile::<V, ROWS, 1, AHEAD>([strip(at)], [ahead(at)], queries, scores, at);
                at += 1;
            }
        }
    }
}

#[inline(always)]
fn score_tile<V: Vector, const ROWS: usize, const STRIPS: usize, const AHEAD: bool>(
    keys: [&[[u16; LANES]]; STRIPS],
    ahead: [*const u16; STRIPS],
    queries: &[[f32; ROWS]],
    scores: &mut [Scores],
    first: usize,
) {
    let mut acc = [[V::splat(0.0); STRIPS]; ROWS];
    let keys: [&[[u16; LANES]]; STRIPS] = keys.map(|strip| &strip[..queries.len()]);
    for (d, query) in queries.iter().enumerate() {
        if AHEAD {
            for strip in ahead {
                prefetch(strip.wrapping_add(d * LANES));
            }
        }
        multiply_add(&mut acc, query, |query, m| query[m], |s| V::f16(&keys[s][d]));
    }
    for m in 0..ROWS {
        let (scores, _) = scores[m][first * LANES..][..STRIPS * LANES].as_chunks_mut::<LANES>();
        for s in 0..STRIPS {
            acc[m][s].store(&mut scores[s]);
        }
    }
}

/// `mixed[m] = mixed[m] · scale[m] + Σ_t probabilities[m][t] · values[t]`, for the given positions of the block in order.
///
/// `values` are strips of [`STRIP`] positions, `[STRIP, width]` each; `mixed` is `[rows, width]`, and `width` a multiple
/// of sixteen. The strips `ahead` are asked for meanwhile.
pub(super) fn mix(
    values: &[&[u16]; BLOCK_STRIPS],
    ahead: Option<&[&[u16]; BLOCK_STRIPS]>,
    positions: Range<usize>,
    probabilities: &[Scores],
    scale: &[f32],
    width: usize,
    mixed: &mut [f32],
) {
    match ahead {
        Some(ahead) => mix_dispatch::<true>(values, ahead, positions, probabilities, scale, width, mixed),
        None => mix_dispatch::<false>(values, values, positions, probabilities, scale, width, mixed),
    }
}

for_each_vector! {
    fn mix_dispatch<vector V, const AHEAD: bool>(
        values: &[&[u16]; BLOCK_STRIPS],
        ahead: &[&[u16]; BLOCK_STRIPS],
        positions: Range<usize>,
        probabilities: &[Scores],
        scale: &[f32],
        width: usize,
        mixed: &mut [f32],
    ) {
        for_rows!(
            V,
            probabilities.len(),
            AHEAD,
            mix_rows(values, ahead, positions, probabilities, scale, width, mixed)
        )
    }
}

#[inline(always)]
fn mix_rows<V: Vector, const ROWS: usize, const AHEAD: bool>(
    values: &[&[u16]; BLOCK_STRIPS],
    ahead: &[&[u16]; BLOCK_STRIPS],
    positions: Range<usize>,
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
            4 => mix_tile::<V, ROWS, 4, AHEAD>(
                values,
                ahead,
                positions.clone(),
                probabilities,
                scale,
                width,
                column,
                mixed,
            ),
            2 | 3 => mix_tile::<V, ROWS, 2, AHEAD>(
                values,
                ahead,
                positions.clone(),
                probabilities,
                scale,
                width,
                column,
                mixed,
            ),
            _ => mix_tile::<V, ROWS, 1, AHEAD>(
                values,
                ahead,
                positions.clone(),
                probabilities,
                scale,
                width,
                column,
                mixed,
            ),
        }
    }
}

/// Returns the number of columns computed.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn mix_tile<V: Vector, const ROWS: usize, const PANELS: usize, const AHEAD: bool>(
    values: &[&[u16]; BLOCK_STRIPS],
    ahead: &[&[u16]; BLOCK_STRIPS],
    positions: Range<usize>,
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
    let mut t = positions.start;
    while t < positions.end {
        let (strip, ahead) = (values[t / STRIP], ahead[t / STRIP].as_ptr());
        let end = positions.end.min(t / STRIP * STRIP + STRIP);
        while t < end {
            let (strip, _) = strip[t % STRIP * width + column..][..PANELS * LANES].as_chunks::<LANES>();
            if AHEAD {
                for p in 0..PANELS {
                    prefetch(ahead.wrapping_add(t % STRIP * width + column + p * LANES));
                }
            }
            multiply_add(&mut acc, probabilities, |rows, m| rows[m][t], |p| V::f16(&strip[p]));
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
