//! The dense difference in f32, weight by weight: what is stored, without the kernels' quantised activations.

use super::LowRankDelta;
use super::factor::Factor;
use crate::isa::for_each_isa;
use crate::lowbit::{GROUP, groups};

/// A row of a band.
pub(super) type Row<'a> = (Factor<'a>, usize);

impl LowRankDelta {
    /// Adds row `output` of the dense difference to `row` (length `inputs`): what an embedding look-up needs.
    ///
    /// # Panics
    /// If `output` is not below `outputs`, `row` has another length, or a band's parts do not fit the shape.
    pub fn add_dense_row(&self, output: usize, row: &mut [f32]) {
        assert!(output < self.outputs, "the output is below outputs");
        assert_eq!(row.len(), self.inputs, "the row is [inputs]");
        let (mut u, mut v) = ([0.0; GROUP], vec![0.0; self.inputs]);
        for (((v_rows, v_rank), (u_rows, u_rank)), s) in self.rows().zip(&self.s) {
            u_rows.weights(u_rank, output / GROUP, &mut u);
            v_rows.row(v_rank, &mut v);
            add_scaled(u[output % GROUP] * s, &v, row);
        }
    }

    /// The dense difference `[outputs, inputs]`, row-major.
    ///
    /// # Panics
    /// If a band's parts do not fit the shape.
    pub fn to_dense(&self) -> Vec<f32> {
        let mut dense = vec![0.0; self.outputs * self.inputs];
        let (mut u, mut v) = ([0.0; GROUP], vec![0.0; self.inputs]);
        for (((v_rows, v_rank), (u_rows, u_rank)), s) in self.rows().zip(&self.s) {
            v_rows.row(v_rank, &mut v);
            for group in 0..groups(self.outputs) {
                u_rows.weights(u_rank, group, &mut u);
                let rows = dense.chunks_exact_mut(self.inputs).skip(group * GROUP);
                for (row, u) in rows.zip(&u) {
                    add_scaled(u * s, &v, row);
                }
            }
        }
        dense
    }

    /// Where each rank's rows are: the band and the row in it, of V and of Uᵀ.
    pub(super) fn rows(&self) -> impl Iterator<Item = (Row<'_>, Row<'_>)> {
        fn each(factor: Factor<'_>) -> impl Iterator<Item = Row<'_>> {
            (0..factor.ranks()).map(move |rank| (factor, rank))
        }
        self.v_factors().flat_map(each).zip(self.u_factors().flat_map(each))
    }
}

for_each_isa! {
    /// `out += a · w`, fused.
    fn add_scaled(a: f32, w: &[f32], out: &mut [f32]) {
        for (out, w) in out.iter_mut().zip(w) {
            *out = a.mul_add(*w, *out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::random;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn a_row_is_the_dense_differences_row() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for (inputs, outputs) in [(256, 128), (100, 333), (8, 8), (131, 129)] {
            let delta = random(inputs, outputs, &[(16, 2), (8, 3), (4, 9), (3, 5), (2, 11)], &mut rng);
            let dense = delta.to_dense();
            for output in [0, outputs / 2, outputs - 1] {
                let mut row = vec![0.0; inputs];
                delta.add_dense_row(output, &mut row);
                assert_eq!(row, dense[output * inputs..][..inputs]);
            }
        }
    }
}
