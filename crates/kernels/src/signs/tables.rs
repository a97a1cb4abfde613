//! The sums of four inputs with every combination of signs.

use super::GROUP;
use super::layout::CODE;
use crate::isa::for_each_isa;

/// Codes of four signs.
const CODES: usize = 1 << CODE;

/// Codes of a word, each with a table of its own.
pub(super) const TABLES: usize = GROUP / CODE;

/// The sum of four inputs under every code; the last eight are the first eight negated.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Table(pub(super) [f32; CODES]);

impl Table {
    pub(super) const ZERO: Self = Self([0.0; CODES]);
}

/// The sign bits that each code flips: of the second, third and fourth input, and of the sum.
const FLIPS: [[u32; CODES]; CODE] = {
    let mut flips = [[0; CODES]; CODE];
    let mut code = 0;
    while code < CODES {
        let mut bit = 0;
        while bit < CODE {
            flips[bit][code] = ((code >> bit & 1) as u32) << 31;
            bit += 1;
        }
        code += 1;
    }
    flips
};

/// Fills every `stride`-th of `tables`, from the first on, for the inputs `x`; those beyond the last are 0. `tables`
/// holds [`TABLES`] for each group.
pub(super) fn fill(x: &[f32], stride: usize, tables: &mut [Table]) {
    let groups = tables.chunks_mut(stride * TABLES);
    for (x, tables) in x.chunks(GROUP).zip(groups) {
        match x.try_into() {
            Ok(x) => fill_group(x, stride, tables),
            Err(_) => {
                let mut padded = [0.0; GROUP];
                padded[..x.len()].copy_from_slice(x);
                fill_group(&padded, stride, tables);
            }
        }
    }
}

for_each_isa! {
    fn fill_group(x: &[f32; GROUP], stride: usize, tables: &mut [Table]) {
        for (x, table) in x.as_chunks::<CODE>().0.iter().zip(tables.iter_mut().step_by(stride)) {
            for (code, found) in table.0.iter_mut().enumerate() {
                let flip = |value: f32, by: usize| f32::from_bits(value.to_bits() ^ FLIPS[by][code]);
                let sum = (x[0] + flip(x[1], 0)) + (flip(x[2], 1) + flip(x[3], 2));
                *found = flip(sum, 3);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_hold_the_sums_of_their_four_inputs() {
        let x: Vec<f32> = (0..38).map(|i| (i * i) as f32 - 100.5).collect();
        let mut tables = vec![Table([7.0; CODES]); 2 * 2 * TABLES];
        fill(&x, 2, &mut tables);
        for n in 0..2 * TABLES {
            let input = |i: usize| x.get(CODE * n + i).copied().unwrap_or(0.0);
            for code in 0..CODES {
                let sign = |bit: usize| if code >> bit & 1 == 1 { -1.0 } else { 1.0 };
                let sum = input(0) + sign(0) * input(1) + sign(1) * input(2) + sign(2) * input(3);
                assert_eq!(tables[2 * n].0[code], sign(3) * sum, "table {n}, code {code}");
                assert_eq!(tables[2 * n + 1].0[code], 7.0, "the other row's");
            }
        }
    }
}
