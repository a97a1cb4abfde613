//! Rows of activations as integers: what V's codes are multiplied with.
//!
//! A group of [`GROUP`] values shares one scale, the largest magnitude over [`LARGEST`]; a value is then an integer
//! `256 · high + low` whose two bytes fit the byte dot products of every instruction set. Codes of 8 and 4 bits are
//! multiplied with both bytes: the error, 2⁻¹⁶ of a group's largest value, is less than that of the codes by orders of
//! magnitude. Codes of 3 and 2 bits are multiplied with the high byte alone ([`coarse`]): 2⁻⁸ of the largest value is
//! still far less than the codes' own error, a fifth to a third of each weight, and it halves the arithmetic.

use crate::Threads;
use crate::isa::for_each_isa;
use crate::lowbit::{GROUP, groups};
use std::sync::Mutex;

/// The largest magnitude of a quantised value, `127 · 256 + 127`: its high byte is still an i8.
pub(super) const LARGEST: f32 = 32_639.0;

/// Values up to here become zeros: a reciprocal would overflow.
pub(super) const SMALLEST: f32 = 1e-30;

/// 1.5 · 2²³: added to a number it leaves the nearest integer in the low bits of the mantissa.
pub(super) const SHIFT: f32 = 12_582_912.0;

/// What a coarse integer, a high byte alone, is worth in integers.
pub(super) const COARSE: f32 = 256.0;

/// Whether codes of that many bits are multiplied with high bytes alone.
pub(super) const fn coarse(bits: u8) -> bool {
    (1usize << bits) - 1 <= COARSEST
}

/// The largest code that is multiplied with high bytes alone.
pub(super) const COARSEST: usize = 7;

/// Groups whose sums are reduced together, one in each lane.
pub(super) const CHUNK: usize = 8;

/// Values of one group, split in bytes: `256 · high + low`.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct InputGroup {
    pub(super) high: [i8; GROUP],
    pub(super) low: [i8; GROUP],
}

impl InputGroup {
    const ZERO: Self = Self {
        high: [0; GROUP],
        low: [0; GROUP],
    };

    /// The value at `i`.
    #[inline(always)]
    pub(super) fn value(&self, i: usize) -> i32 {
        256 * i32::from(self.high[i]) + i32::from(self.low[i])
    }
}

/// The quantised rows of one matrix; only those that were asked for hold anything.
#[derive(Default)]
pub(super) struct Activations {
    groups: usize,
    values: Vec<InputGroup>,
    chunks: Vec<InputChunk>,
}

/// What the groups of a chunk have besides their values, one in each lane; 0 beyond the row.
#[derive(Clone, Copy, Default)]
pub(super) struct InputChunk {
    /// Sum of a group's integers.
    pub(super) sums: [i32; CHUNK],
    /// Sum of a group's high bytes.
    pub(super) coarse_sums: [i32; CHUNK],
    /// What an integer of a group is worth.
    pub(super) scales: [f32; CHUNK],
}

/// One quantised row.
#[derive(Clone, Copy)]
pub(super) struct InputRow<'a> {
    /// One element for each group.
    pub(super) values: &'a [InputGroup],
    /// One element for each chunk of groups.
    pub(super) chunks: &'a [InputChunk],
}

impl Activations {
    /// Quantises the rows of `x`, `[wanted.len(), inputs]`, for which `wanted` is true.
    pub(super) fn quantise(&mut self, x: &[f32], inputs: usize, wanted: &[bool], threads: &Threads) {
        let chunks = groups(inputs).div_ceil(CHUNK);
        self.groups = groups(inputs);
        // Old contents may stay: rows are written before they are read.
        self.values.resize(wanted.len() * self.groups, InputGroup::ZERO);
        self.chunks.resize(wanted.len() * chunks, InputChunk::default());
        let rows = x
            .chunks_exact(inputs)
            .zip(self.values.chunks_exact_mut(self.groups))
            .zip(self.chunks.chunks_exact_mut(chunks))
            .zip(wanted)
            .filter(|(_, wanted)| **wanted)
            .map(|(((x, values), chunks), _)| (x, values, chunks));
        let count = wanted.iter().filter(|w| **w).count();
        // A value costs about as much as two multiply-adds.
        let cost = 2 * count * inputs;
        if count == 1 {
            rows.for_each(|(x, values, chunks)| quantise_row(x, values, chunks));
            return;
        }
        let rows: Vec<_> = rows.map(|row| Mutex::new(Some(row))).collect();
        threads.for_each(count, cost, |i| {
            // Each is taken once, by its own task.
            let row = rows[i].lock().map_or(None, |mut row| row.take());
            if let Some((x, values, chunks)) = row {
                quantise_row(x, values, chunks);
            }
        });
    }

    /// A row that was asked for.
    pub(super) fn row(&self, row: usize) -> InputRow<'_> {
        let chunks = self.groups.div_ceil(CHUNK);
        InputRow {
            values: &self.values[row * self.groups..][..self.groups],
            chunks: &self.chunks[row * chunks..][..chunks],
        }
    }
}

for_each_isa! {
    /// Quantises one row; groups and chunks that it does not fill are completed with zeros.
    fn quantise_row(x: &[f32], values: &mut [InputGroup], chunks: &mut [InputChunk]) {
        chunks.fill(InputChunk::default());
        let (whole, rest) = x.as_chunks::<GROUP>();
        let mut padded = [0.0; GROUP];
        padded[..rest.len()].copy_from_slice(rest);
        for (g, values) in values.iter_mut().enumerate() {
            let x = whole.get(g).unwrap_or(&padded);
            let mut largest = 0;
            for x in x {
                largest = magnitude(*x).max(largest);
            }
            let (scale, inverse) = scale(f32::from_bits(largest));
            let (mut sum, mut coarse_sum) = (0i32, 0i32);
            for (i, x) in x.iter().enumerate() {
                let integer = round(x * inverse);
                values.low[i] = integer as i8;
                let high = high(integer);
                values.high[i] = high as i8;
                sum = sum.wrapping_add(integer);
                coarse_sum = coarse_sum.wrapping_add(high);
            }
            let (chunk, lane) = (&mut chunks[g / CHUNK], g % CHUNK);
            chunk.sums[lane] = sum;
            chunk.coarse_sums[lane] = coarse_sum;
            chunk.scales[lane] = scale;
        }
    }
}

/// Bits of `|x|`: ordered as the magnitudes are, with infinity and NaN above all numbers.
#[inline(always)]
pub(super) fn magnitude(x: f32) -> u32 {
    x.to_bits() & 0x7fff_ffff
}

/// What an integer is worth, and integers per unit, for values up to `largest`.
///
/// If one is infinite or NaN the scale is too, and with it every result.
#[inline(always)]
pub(super) fn scale(largest: f32) -> (f32, f32) {
    let inverse = if largest > SMALLEST { LARGEST / largest } else { 0.0 };
    (largest * (1.0 / LARGEST), inverse)
}

/// The nearest multiple of 256, in units of it: it leaves a signed low byte.
#[inline(always)]
pub(super) fn high(integer: i32) -> i32 {
    integer.wrapping_add(128) >> 8
}

/// The nearest integer, ties to even, for magnitudes below 2²²; every bit pattern gives some integer.
#[inline(always)]
pub(super) fn round(x: f32) -> i32 {
    (x + SHIFT).to_bits().wrapping_sub(SHIFT.to_bits()) as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn quantised(x: &[f32]) -> Activations {
        let mut activations = Activations::default();
        activations.quantise(x, x.len(), &[true], &Threads::new(1));
        activations
    }

    proptest! {
        #[test]
        fn values_come_back_within_half_a_step(
            x in proptest::collection::vec(-1e3f32..1e3, 1..400),
            unit in -20i32..20,
        ) {
            let x: Vec<f32> = x.iter().map(|x| x * (unit as f32).exp2()).collect();
            let activations = quantised(&x);
            let row = activations.row(0);
            for (g, x) in x.chunks(GROUP).enumerate() {
                let (chunk, lane) = (&row.chunks[g / CHUNK], g % CHUNK);
                let scale = f64::from(chunk.scales[lane]);
                let largest = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
                prop_assert!((scale * 32_639.0 - f64::from(largest)).abs() <= 1e-6 * f64::from(largest));
                for i in 0..GROUP {
                    let exact = x.get(i).copied().map_or(0.0, f64::from);
                    prop_assert!((f64::from(row.values[g].value(i)) * scale - exact).abs() <= 0.51 * scale);
                }
                let sum: i32 = (0..GROUP).map(|i| row.values[g].value(i)).sum();
                prop_assert_eq!(chunk.sums[lane], sum);
                let high: i32 = row.values[g].high.iter().map(|h| i32::from(*h)).sum();
                prop_assert_eq!(chunk.coarse_sums[lane], high);
            }
        }
    }

    #[test]
    fn both_ends_of_the_range_fit_in_bytes() {
        let activations = quantised(&[-2.0, 2.0, 0.0]);
        let values: Vec<i32> = (0..3).map(|i| activations.row(0).values[0].value(i)).collect();
        assert_eq!(values, [-32_639, 32_639, 0]);
    }

    #[test]
    fn nothing_is_made_of_nothing_and_nan_stays_visible() {
        for tiny in [0.0, 1e-40, 1e-31] {
            let activations = quantised(&[tiny; 5]);
            assert_eq!(activations.row(0).chunks[0].sums, [0; CHUNK]);
            assert!(activations.row(0).chunks[0].scales[0] < 1e-30);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let activations = quantised(&[1.0, bad, 2.0]);
            assert!(!activations.row(0).chunks[0].scales[0].is_finite());
        }
    }
}
