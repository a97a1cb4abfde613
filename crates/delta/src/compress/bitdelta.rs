//! BitDelta (arXiv 2402.10193): the signs of the difference and one scale for the matrix, 1 bit a weight.
//!
//! The paper takes `mean |ΔW|` as the scale, which is best for the weights, and then trains all scales of the model. Here
//! the scale is the one with the least output error on the calibration inputs, in closed form: with the signs B and the
//! inputs' second moments C, `a = tr(ΔW C Bᵀ) / tr(B C Bᵀ)`. C = I gives `mean |ΔW|` again.

use deltamux_kernels::signs;
use deltamux_model::LinearId;

use super::account::LARGEST_OFFSET;
use super::error::CompressError;
use super::linalg::{Matrix, dot, product};
use super::quantise::Approximation;
use crate::artifact::{Packed, PackedSigns, header_entry_bytes, sign_bytes};

/// Signs of `delta` with the scale that loses least of the outputs; `c` are the inputs' second moments. Inputs that are
/// zero throughout leave `mean |ΔW|`.
pub(crate) fn quantise(delta: &Matrix<f32>, c: &Matrix<f64>) -> Approximation {
    let b = signs_of(delta);
    let bc = product(b.view(), c.to_f32().view());
    let scale = (dot(&bc.data, &delta.data) / dot(&bc.data, &b.data)) as f32;
    let scale = if scale.is_finite() {
        scale
    } else {
        mean_magnitude(&delta.data)
    };
    approximation(b, vec![scale])
}

/// Signs of an embedding's difference with a scale for each row: tokens that the fine-tune hardly saw have moved little
/// or not at all, and a common scale would only add noise to them.
pub(crate) fn quantise_rows(delta: &Matrix<f32>) -> Approximation {
    let scales = (0..delta.rows).map(|row| mean_magnitude(delta.row(row)));
    approximation(signs_of(delta), scales.collect())
}

/// 1 and −1. What did not change gets both in turn along each row, so that it adds up to little.
fn signs_of(delta: &Matrix<f32>) -> Matrix<f32> {
    let mut b = Matrix::zeros(delta.rows, delta.cols);
    for row in 0..delta.rows {
        let mut zero = 1.0;
        for (b, &d) in b.row_mut(row).iter_mut().zip(delta.row(row)) {
            *b = if d == 0.0 {
                zero = -zero;
                zero
            } else {
                d.signum()
            };
        }
    }
    b
}

fn mean_magnitude(values: &[f32]) -> f32 {
    let sum: f64 = values.iter().map(|x| f64::from(x.abs())).sum();
    (sum / values.len().max(1) as f64) as f32
}

/// Packs the signs `b` with one scale, or one for each row.
fn approximation(b: Matrix<f32>, scales: Vec<f32>) -> Approximation {
    let (outputs, inputs) = (b.rows, b.cols);
    let codes = signs::pack(inputs, outputs, |output, input| b.row(output)[input] < 0.0);
    let mut dense = b;
    for row in 0..outputs {
        let scale = scales[if scales.len() == 1 { 0 } else { row }];
        dense.row_mut(row).iter_mut().for_each(|x| *x *= scale);
    }
    Approximation {
        packed: Packed::Signs(PackedSigns {
            inputs,
            outputs,
            scales,
            codes,
        }),
        dense,
    }
}

/// The share of their bf16 bytes that these linears take, `(id, [outputs, inputs])` each, at most: 1/16, and some bytes
/// for headers, scales and the ends of rows.
fn least_ratio(linears: impl Iterator<Item = (LinearId, (usize, usize))>) -> f64 {
    let (mut stored, mut bf16) = (0.0, 0.0);
    for (id, (outputs, inputs)) in linears {
        let bytes = sign_bytes(inputs, outputs, 1).unwrap_or(usize::MAX);
        stored += bytes as f64 + header_entry_bytes(&id.to_string(), bytes, LARGEST_OFFSET) as f64;
        bf16 += 2.0 * outputs as f64 * inputs as f64;
    }
    if bf16 > 0.0 { stored / bf16 } else { 0.0 }
}

/// Refuses a ratio that signs of these linears cannot keep.
pub(crate) fn check_ratio(
    ratio: Option<f64>,
    linears: impl Iterator<Item = (LinearId, (usize, usize))>,
) -> Result<(), CompressError> {
    // In steps that can be typed in again.
    let least = (least_ratio(linears) * 1e5).ceil() / 1e5;
    match ratio {
        Some(ratio) if ratio < least => Err(CompressError::Option(format!(
            "ratio {ratio}: bitdelta stores 1 bit a weight and takes up to {least} of these linears' bf16 bytes; leave \
             --ratio out, raise it to at least {least}, or choose another --method"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::linalg::quadratic;
    use super::*;
    use deltamux_model::LinearKind;
    use proptest::prelude::*;
    use rand::{Rng as _, SeedableRng as _};

    /// A random difference, some of it zero, with random second moments.
    fn make(outputs: usize, inputs: usize, seed: u64) -> (Matrix<f32>, Matrix<f64>) {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut random = |rows: usize, cols: usize| {
            let data = (0..rows * cols).map(|_| rng.random_range(-1.0f32..1.0)).collect();
            Matrix::from_vec(rows, cols, data)
        };
        let mut delta = random(outputs, inputs);
        delta.data.iter_mut().step_by(7).for_each(|d| *d = 0.0);
        let x = random(2 * inputs, inputs).to_f64();
        (delta, product(x.view().transpose(), x.view()))
    }

    fn dense(made: &Approximation) -> Vec<f32> {
        let Packed::Signs(signs) = &made.packed else {
            panic!("signs")
        };
        signs.to_delta().to_dense()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever the shape, what the kernels read is what was measured, and no other scale is better.
        #[test]
        fn the_scale_loses_least_of_the_outputs(outputs in 1..60usize, inputs in 1..80usize, seed: u64) {
            let (delta, c) = make(outputs, inputs, seed);
            let made = quantise(&delta, &c);
            prop_assert_eq!(&dense(&made), &made.dense.data);
            let Packed::Signs(signs) = &made.packed else { panic!("signs") };
            let scale = signs.scales[0];
            for (d, found) in delta.data.iter().zip(&made.dense.data) {
                prop_assert_eq!(found.abs(), scale.abs());
                prop_assert!(*d == 0.0 || found.signum() == d.signum() * scale.signum());
            }
            let c = c.to_f32();
            let loss = |times: f32| {
                let rest = delta.data.iter().zip(&made.dense.data).map(|(d, a)| d - times * a);
                quadratic(&Matrix::from_vec(outputs, inputs, rest.collect()), &c)
            };
            let least = loss(1.0);
            for times in [0.0, 0.9, 0.99, 1.01, 1.1, 2.0] {
                prop_assert!(loss(times) >= least * (1.0 - 1e-4), "{} {} {}", times, loss(times), least);
            }
        }
    }

    #[test]
    fn even_moments_and_absent_inputs_leave_the_mean_magnitude() {
        let (delta, _) = make(20, 24, 3);
        let mut identity = Matrix::zeros(24, 24);
        for i in 0..24 {
            identity.row_mut(i)[i] = 2.0;
        }
        let mean = mean_magnitude(&delta.data);
        for c in [identity, Matrix::zeros(24, 24)] {
            let made = quantise(&delta, &c);
            assert!(made.dense.data.iter().all(|x| (x.abs() - mean).abs() < 1e-6 * mean));
        }
    }

    #[test]
    fn rows_that_did_not_change_stay_as_they_are() {
        let (mut delta, _) = make(9, 33, 4);
        delta.row_mut(5).fill(0.0);
        let made = quantise_rows(&delta);
        assert_eq!(dense(&made), made.dense.data);
        assert!(made.dense.row(5).iter().all(|x| *x == 0.0));
        let mean = mean_magnitude(delta.row(2));
        assert!(made.dense.row(2).iter().all(|x| x.abs() == mean));
    }

    #[test]
    fn the_least_ratio_is_named_and_then_kept() {
        let linear = LinearId {
            layer: 3,
            kind: LinearKind::Up,
        };
        let linears = || [(linear, (1536, 576))].into_iter();
        let error = check_ratio(Some(1.0 / 16.0), linears()).unwrap_err().to_string();
        let least: f64 = error
            .split("at least ")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!(least > 1.0 / 16.0 && least < 1.01 / 16.0, "{error}");
        check_ratio(Some(least), linears()).unwrap();
        check_ratio(None, linears()).unwrap();
        let bytes = sign_bytes(576, 1536, 1).unwrap();
        let stored = bytes + header_entry_bytes(&linear.to_string(), bytes, 123_456);
        assert!(stored as f64 <= least * 2.0 * 1536.0 * 576.0);
    }
}
