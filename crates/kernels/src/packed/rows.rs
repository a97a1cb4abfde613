//! Activations laid out as the tiles read them.

use crate::Threads;
use crate::isa::for_each_isa;
use crate::scratch::{Element, Scratch};
use crate::threads::DisjointRows;

/// Rows that a tile of the widest register file holds.
pub(super) const MAX_ROWS: usize = 12;

/// Tile heights with 32 vector registers: two panels wide, so 12 rows take 24 accumulators.
const TALL: [usize; 7] = [12, 8, 6, 4, 3, 2, 1];

/// Tile heights with 16 vector registers, where a panel is two registers wide.
const LOW: [usize; 5] = [6, 4, 3, 2, 1];

/// Rows `[rows, inputs]` cut into tiles; within a tile element-major: element `k · tile rows + row`. An element is an
/// f32 input, or two inputs rounded to bf16, the first in the low half.
pub(super) struct RowTiles<E> {
    data: Scratch,
    tiles: Vec<RowTile>,
    /// Elements of a row.
    width: usize,
    element: std::marker::PhantomData<E>,
}

/// Which rows a tile holds.
#[derive(Clone, Copy)]
pub(super) struct RowTile {
    pub(super) first: usize,
    pub(super) rows: usize,
}

/// Inputs, their number rounded up to an even one with zeros.
impl RowTiles<f32> {
    /// Cuts `x` into tiles that suit this number of vector registers.
    pub(super) fn floats(x: &[f32], rows: usize, inputs: usize, registers: usize, threads: &Threads) -> Self {
        let mut tiles = Self::empty(rows, inputs.next_multiple_of(2), registers);
        tiles.fill::<1>(x, inputs, threads, |x, out| {
            let (out, rest) = out.split_at_mut(x.len());
            out.copy_from_slice(x);
            rest.fill(0.0);
        });
        tiles
    }
}

/// Pairs of inputs rounded to bf16; an odd last one has a zero beside it.
impl RowTiles<u32> {
    /// Cuts `x` into tiles that suit this number of vector registers.
    pub(super) fn bf16_pairs(x: &[f32], rows: usize, inputs: usize, registers: usize, threads: &Threads) -> Self {
        let mut tiles = Self::empty(rows, inputs.div_ceil(2), registers);
        tiles.fill::<2>(x, inputs, threads, round_pairs);
        tiles
    }
}

for_each_isa! {
    /// Rounds to bf16, to nearest even; an odd last input has a zero beside it.
    fn round_pairs(x: &[f32], out: &mut [u32]) {
        let (pairs, rest) = x.as_chunks::<2>();
        for (out, [low, high]) in out.iter_mut().zip(pairs) {
            *out = round(*low) >> 16 | round(*high) & 0xffff_0000;
        }
        if let ([last], Some(out)) = (rest, out.last_mut()) {
            *out = round(*last) >> 16;
        }
    }
}

/// bf16 in the high half; the low half is not cleared.
#[inline(always)]
fn round(x: f32) -> u32 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    // The carry would turn a NaN into something else.
    if x.is_nan() { bits | 0x40_0000 } else { rounded }
}

/// Elements of each row that are laid out at a time.
const PIECE: usize = 64;

impl<E: Element> RowTiles<E> {
    fn empty(rows: usize, width: usize, registers: usize) -> Self {
        let heights: &[usize] = if registers >= 32 { &TALL } else { &LOW };
        let mut tiles = Vec::with_capacity(rows / heights[0] + heights.len());
        let mut first = 0;
        for &height in heights {
            while rows - first >= height {
                tiles.push(RowTile { first, rows: height });
                first += height;
            }
        }
        Self {
            data: Scratch::new(rows * width),
            tiles,
            width,
            element: std::marker::PhantomData,
        }
    }

    /// Lets `convert(inputs, elements)` make elements, each of `PER` inputs, of pieces of rows.
    fn fill<const PER: usize>(
        &mut self,
        x: &[f32],
        inputs: usize,
        threads: &Threads,
        convert: impl Fn(&[f32], &mut [E]) + Sync,
    ) {
        let data = self.data.get_mut();
        let (tiles, width, cost) = (&self.tiles, self.width, data.len());
        let out: DisjointRows<'_, E> = DisjointRows::new(data, width);
        threads.for_each(tiles.len(), cost, |t| {
            let RowTile { first, rows } = tiles[t];
            // SAFETY: tiles hold different rows, and those of one lie together.
            let out = unsafe { out.rows(first, rows) };
            let x = &x[first * inputs..(first + rows) * inputs];
            if rows == 1 {
                return convert(x, out);
            }
            let mut pieces = [[E::zeroed(); PIECE]; MAX_ROWS];
            for from in (0..width).step_by(PIECE) {
                let count = (width - from).min(PIECE);
                for (x, piece) in x.chunks_exact(inputs).zip(&mut pieces) {
                    let x = &x[from * PER..inputs.min((from + count) * PER)];
                    convert(x, &mut piece[..count]);
                }
                let out = out[from * rows..(from + count) * rows].chunks_exact_mut(rows);
                for (k, out) in out.enumerate() {
                    for (out, piece) in out.iter_mut().zip(&pieces) {
                        *out = piece[k];
                    }
                }
            }
        });
    }

    pub(super) fn tiles(&self) -> &[RowTile] {
        &self.tiles
    }

    /// Elements `from .. to` of a tile's rows, `[to - from, tile rows]`.
    pub(super) fn elements(&self, tile: RowTile, from: usize, to: usize) -> &[E] {
        let start = tile.first * self.width;
        &self.data.get()[start + from * tile.rows..start + to * tile.rows]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn pairs_are_rounded_as_the_half_crate_rounds() {
        let threads = Threads::new(1);
        let special = [
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MAX,
            f32::MIN_POSITIVE,
            -0.0,
            1e-45,
        ];
        for inputs in [1, 2, 63, 64, 129, 300] {
            let x: Vec<f32> = (0..inputs as u32)
                .map(|i| match special.get(i as usize) {
                    Some(special) => *special,
                    None => f32::from_bits(0x3f80_0000 + i.wrapping_mul(2_654_435_761) % 0x80_0000),
                })
                .collect();
            for rows in [1, 5, 30] {
                let all = x.repeat(rows);
                let pairs = RowTiles::bf16_pairs(&all, rows, inputs, 32, &threads);
                let floats = RowTiles::floats(&all, rows, inputs, 32, &threads);
                for tile in pairs.tiles() {
                    let found = pairs.elements(*tile, 0, inputs.div_ceil(2));
                    for (k, found) in found.iter().enumerate() {
                        let part = |i: usize| {
                            x.get(2 * (k / tile.rows) + i)
                                .map_or(0, |x| bf16::from_f32(*x).to_bits())
                        };
                        assert_eq!(*found, u32::from(part(0)) | u32::from(part(1)) << 16);
                    }
                    let found = floats.elements(*tile, 0, inputs.next_multiple_of(2));
                    for (k, found) in found.iter().enumerate() {
                        assert_eq!(found.to_bits(), x.get(k / tile.rows).map_or(0, |x| x.to_bits()));
                    }
                }
            }
        }
    }
}
