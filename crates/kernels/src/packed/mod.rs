//! Weight matrices packed in panels of output columns.
//!
//! A panel holds [`PANEL`] consecutive output columns, two inputs of each column side by side: what one broadcast of an
//! activation multiplies lies in two vectors, and one row reads the weights from end to end. A product keeps one accumulator for each output element and adds
//! the inputs in order, so the result depends neither on how many rows or panels are computed together, nor on where
//! the inputs are cut into blocks that fit a cache.

mod matrix;
mod product;
mod rows;
mod tile;

pub use matrix::{PackedMatrix, Precision};
pub use product::{Product, multiply};

use crate::lanes::LANES;

/// Output columns of a panel.
pub const PANEL: usize = 2 * LANES;

/// Version of the packed bytes of all precisions. Raised whenever the same weights are packed into other bytes, be it by
/// their order or by how they are quantised: packed matrices that were stored before must not be read by it.
pub const LAYOUT: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Threads;
    use half::bf16;
    use proptest::prelude::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn random(n: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
        (0..n).map(|_| rng.random_range(-1.0..1.0)).collect()
    }

    fn both(weights: &[f32], outputs: usize, inputs: usize) -> [PackedMatrix; 2] {
        let exact: Vec<bf16> = weights.iter().map(|w| bf16::from_f32(*w)).collect();
        [
            PackedMatrix::from_bf16(&exact, outputs, inputs, &Threads::new(1)),
            PackedMatrix::from_f32(weights, outputs, inputs, &Threads::new(2)),
        ]
    }

    #[test]
    fn products_match_f64_arithmetic() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let threads = Threads::new(2);
        for (outputs, inputs) in [(16, 8), (1, 1), (33, 70), (192, 576), (100, 31)] {
            let weights = random(outputs * inputs, &mut rng);
            for matrix in both(&weights, outputs, inputs) {
                let mut row = vec![0.0; inputs];
                for rows in [1, 2, 3, 5, 7, 8, 9, 21] {
                    let x = random(rows * inputs, &mut rng);
                    let mut y = vec![f32::NAN; rows * outputs];
                    matrix.matmul(&x, rows, &mut y, &threads);
                    for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                        for (o, y) in y.iter().enumerate() {
                            matrix.row(o, &mut row);
                            let exact: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                            assert!((f64::from(*y) - exact).abs() < 1e-4, "{outputs}x{inputs}, {rows} rows");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_in_a_batch() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        // Large enough to be spread over threads.
        let (outputs, inputs, rows) = (275, 130, 23);
        for matrix in both(&random(outputs * inputs, &mut rng), outputs, inputs) {
            let x = random(rows * inputs, &mut rng);
            let mut together = vec![0.0; rows * outputs];
            matrix.matmul(&x, rows, &mut together, &Threads::new(3));
            for (x, expected) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
                let mut alone = vec![0.0; outputs];
                matrix.matmul(x, 1, &mut alone, &Threads::new(1));
                assert_eq!(alone, expected);
            }
        }
    }

    /// The scalar twin: one fused multiply-add an input, in order.
    #[test]
    fn every_instruction_set_gives_the_scalar_result() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let (outputs, inputs, rows) = (40, 57, 11);
        for matrix in both(&random(outputs * inputs, &mut rng), outputs, inputs) {
            let x = random(rows * inputs, &mut rng);
            let mut y = vec![0.0; rows * outputs];
            matrix.matmul(&x, rows, &mut y, &Threads::new(2));
            let mut row = vec![0.0; inputs];
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                for (o, y) in y.iter().enumerate() {
                    matrix.row(o, &mut row);
                    let scalar = row.iter().zip(x).fold(0.0f32, |acc, (w, x)| x.mul_add(*w, acc));
                    assert_eq!(*y, scalar);
                }
            }
        }
    }

    /// Rounded activations: against f64 on the rounded values, and the same alone and in a batch.
    #[test]
    fn products_of_bf16_pairs_match_f64_arithmetic_where_the_processor_has_them() {
        let mut rng = ChaCha8Rng::seed_from_u64(4);
        for (outputs, inputs) in [(16, 8), (33, 71), (100, 600)] {
            let [bf16, f32] = both(&random(outputs * inputs, &mut rng), outputs, inputs);
            assert!(f32.with_bf16_activations().is_none(), "only bf16 weights");
            let Some(matrix) = bf16.with_bf16_activations() else {
                assert!(!crate::isa::bf16_dot());
                return println!("not run: this processor does not multiply pairs of bf16");
            };
            let rows = 23;
            let x = random(rows * inputs, &mut rng);
            let mut y = vec![0.0; rows * outputs];
            matrix.matmul(&x, rows, &mut y, &Threads::new(3));
            let mut row = vec![0.0; inputs];
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(outputs)) {
                for (o, y) in y.iter().enumerate() {
                    matrix.row(o, &mut row);
                    let products = row
                        .iter()
                        .zip(x)
                        .map(|(w, x)| f64::from(*w) * bf16::from_f32(*x).to_f64());
                    assert!((f64::from(*y) - products.sum::<f64>()).abs() < 1e-4);
                }
                let mut alone = vec![0.0; outputs];
                matrix.matmul(x, 1, &mut alone, &Threads::new(1));
                assert_eq!(alone, y);
            }
        }
    }

    proptest! {
        #[test]
        fn columns_of_joint_products_are_those_of_each(
            (inputs, outputs, rows) in (1usize..300, proptest::collection::vec(1usize..70, 1..4), 1usize..40),
            (gap, threads, seed) in (0usize..3, 1usize..4, 0u64..1000),
        ) {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let threads = Threads::new(threads);
            let x = random(rows * inputs, &mut rng);
            let matrices: Vec<PackedMatrix> = outputs
                .iter()
                .enumerate()
                .map(|(i, n)| both(&random(n * inputs, &mut rng), *n, inputs)[i % 2].clone())
                .collect();
            let mut stride = 0;
            let mut products = Vec::new();
            for matrix in &matrices {
                products.push(Product { matrix, column: stride + gap });
                stride += gap + matrix.outputs();
            }
            let mut y = vec![7.0; rows * stride];
            multiply(&products, &x, rows, &mut y, stride, &threads);
            for (x, y) in x.chunks_exact(inputs).zip(y.chunks_exact(stride)) {
                for Product { matrix, column } in &products {
                    let mut alone = vec![0.0; matrix.outputs()];
                    matrix.matmul(x, 1, &mut alone, &Threads::new(1));
                    prop_assert_eq!(&alone, &y[*column..column + matrix.outputs()]);
                    prop_assert!(y[column - gap..*column].iter().all(|v| *v == 7.0), "gaps are left alone");
                }
            }
        }
    }

    /// Stored matrices are read by [`LAYOUT`] alone, so what is packed may not change without it.
    #[test]
    fn the_packed_bytes_are_those_of_the_layout_version() {
        // Sixteenths are exact in every precision's arithmetic, on every machine.
        let weight = |o: usize, i: usize| ((o * 37 + i * 11) % 61) as f32 / 16.0 - 1.875;
        let (outputs, inputs) = (37, 75);
        let weights: Vec<f32> = (0..outputs * inputs).map(|n| weight(n / inputs, n % inputs)).collect();
        let threads = Threads::new(2);
        let row = |o: usize, row: &mut [f32]| row.copy_from_slice(&weights[o * inputs..][..inputs]);
        let quantised = |bits| PackedMatrix::quantised(bits, outputs, inputs, &threads, row);
        let [bf16, f32] = both(&weights, outputs, inputs);
        let found = [bf16, f32, quantised(crate::Bits::Eight), quantised(crate::Bits::Four)].map(|matrix| {
            // FNV-1a.
            let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
            (
                matrix.precision(),
                matrix.packed().iter().fold(0xcbf2_9ce4_8422_2325, hash),
            )
        });
        let expected = match LAYOUT {
            1 => [
                (Precision::Bf16, 10_874_471_799_772_158_437),
                (Precision::F32, 11_913_419_736_085_320_349),
                (Precision::Q8, 4_805_164_098_845_185_154),
                (Precision::Q4, 16_277_717_585_853_171_468),
            ],
            version => panic!("add the bytes of version {version}"),
        };
        assert_eq!(found, expected, "raise LAYOUT if the packed bytes change");
    }

    #[test]
    fn sizes_beyond_memory_are_none() {
        for precision in [Precision::Bf16, Precision::F32, Precision::Q8, Precision::Q4] {
            for (outputs, inputs) in [
                (usize::MAX, 64),
                (64, usize::MAX),
                (usize::MAX, usize::MAX),
                (1 << 40, 1 << 40),
            ] {
                assert_eq!(precision.checked_packed_bytes(outputs, inputs), None, "{precision:?}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let threads = Threads::new(1);
        let matrix = PackedMatrix::from_f32(&[1.0; 6], 2, 3, &threads);
        let message = |call: &mut dyn FnMut()| {
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).expect_err("a refusal");
            let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
            text.or_else(|| panic.downcast_ref::<String>().cloned())
                .expect("a message")
        };
        let mut y = [0.0; 4];
        let refused = message(&mut || matrix.matmul(&[1.0; 5], 2, &mut [0.0; 4], &threads));
        assert!(refused.contains("x is [rows, inputs]"), "{refused}");
        let refused = message(&mut || matrix.matmul(&[1.0; 6], 2, &mut [0.0; 3], &threads));
        assert!(refused.contains("y is [rows, stride]"), "{refused}");
        let refused = message(&mut || matrix.row(2, &mut [0.0; 3]));
        assert!(refused.contains("row 2 of 2 outputs"), "{refused}");
        let refused = message(&mut || drop(PackedMatrix::from_f32(&[1.0; 5], 2, 3, &threads)));
        assert!(refused.contains("weights are [outputs, inputs]"), "{refused}");
        let two = [0, 1].map(|column| Product {
            matrix: &matrix,
            column,
        });
        let refused = message(&mut || multiply(&two, &[1.0; 3], 1, &mut y, 4, &threads));
        assert!(refused.contains("columns of products neither overlap"), "{refused}");
    }
}
