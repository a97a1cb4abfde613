//! Quantises factors: V by GPTQ, then U against what V really became, then packs both.

use std::cmp::Reverse;

use half::f16;

use super::factor::Factors;
use super::gptq::{Hessian, Quantised, quantise_ranks, quantise_rows};
use super::linalg::{LinalgError, Matrix, product, solve};
use crate::artifact::{Coding, Packed, PackedBand, PackedLinear};

/// Share of the mean diagonal that GPTQ adds to the Hessian of V's columns.
pub(crate) const V_DAMPING: f64 = 0.01;
/// The same for the Hessian over ranks.
pub(crate) const U_DAMPING: f64 = 0.001;
/// The same for the system of the target correction.
const TARGET_DAMPING: f64 = 1e-4;

/// Singular values are stored in f16 multiples of a unit that puts the largest near this value.
const LARGEST_STORED: f64 = 16384.0;

/// The second moments of a linear's inputs, and what is derived from them.
#[derive(Debug)]
pub(crate) struct InputMoments {
    /// `C = X Xᵀ / n`.
    pub c: Matrix<f64>,
    /// `C`, damped and factored for V.
    pub hessian: Hessian,
}

impl InputMoments {
    pub fn new(c: Matrix<f64>) -> Result<Self, LinalgError> {
        let hessian = Hessian::new(&c, V_DAMPING)?;
        Ok(Self { c, hessian })
    }
}

/// A quantised difference and what it stands for.
#[derive(Debug)]
pub(crate) struct Approximation {
    pub packed: Packed,
    /// The dense difference that the packed one stands for.
    pub dense: Matrix<f32>,
}

#[cfg(test)]
impl Approximation {
    /// The packed factors.
    pub fn factors(&self) -> &PackedLinear {
        match &self.packed {
            Packed::Factors(factors) => factors,
            Packed::Signs(_) => panic!("signs"),
        }
    }
}

/// Quantises the ranks `chosen` (rank, bits) of `factors`. With `correct`, U is first re-solved against the quantised
/// V (PrinMix's reconstruction target correction).
pub(crate) fn quantise(
    delta: &Matrix<f32>,
    moments: &InputMoments,
    factors: &Factors,
    chosen: &[(usize, u8)],
    correct: bool,
) -> Result<Approximation, LinalgError> {
    let outputs = delta.rows;
    let indices: Vec<usize> = chosen.iter().map(|&(rank, _)| rank).collect();
    let bits: Vec<u8> = chosen.iter().map(|&(_, bits)| bits).collect();
    let (unit, s) = store_singular_values(indices.iter().map(|&i| factors.s[i]));
    let v = quantise_rows(Coding::Affine, factors.v.select_rows(&indices), &bits, &moments.hessian);

    // G = diag(ŝ) V̂, H = G C Gᵀ.
    let g = scaled(&v.values, unit, &s);
    let wide = g.to_f64();
    let gc = product(wide.view(), moments.c.view());
    let h = product(gc.view(), wide.view().transpose());
    // Inputs that are zero throughout leave nothing to correct for.
    let target = if correct && h.mean_diagonal() > 0.0 {
        corrected(&h, product(gc.view(), delta.to_f64().view().transpose()))?.to_f32()
    } else {
        factors.u.select_rows(&indices)
    };
    let u = if chosen.is_empty() {
        Quantised::empty(0, outputs)
    } else {
        quantise_ranks(Coding::Affine, target, &bits, &Hessian::new(&h, U_DAMPING)?)
    };
    let dense = product(u.values.view().transpose(), g.view());
    Ok(Approximation {
        packed: Packed::Factors(pack(
            Coding::Affine,
            unit,
            &s,
            [(&v, bits.as_slice()), (&u, bits.as_slice())],
        )),
        dense,
    })
}

/// `T = ΔW C Gᵀ (H + λI)⁻¹`, transposed, from `H = G C Gᵀ` and `G C ΔWᵀ`: the U that is best with the quantised V.
pub(crate) fn corrected(h: &Matrix<f64>, mut gcd: Matrix<f64>) -> Result<Matrix<f64>, LinalgError> {
    let mut damped = h.clone();
    let lambda = TARGET_DAMPING * h.mean_diagonal();
    for i in 0..damped.rows {
        damped.row_mut(i)[i] += lambda;
    }
    solve(&damped, &mut gcd)?;
    Ok(gcd)
}

/// Stores the factors of the ranks in f16, without codes: the low-rank baseline.
pub(crate) fn store_f16(delta: &Matrix<f32>, factors: &Factors) -> Approximation {
    let (inputs, outputs) = (delta.cols, delta.rows);
    let (unit, s) = store_singular_values(factors.s.iter().copied());
    let halve = |m: &Matrix<f32>| {
        let data = m.data.iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>();
        Matrix::from_vec(m.rows, m.cols, data)
    };
    let widen = |m: &Matrix<f16>| Matrix::from_vec(m.rows, m.cols, m.data.iter().map(|x| x.to_f32()).collect());
    let (u, v) = (halve(&factors.u), halve(&factors.v));
    let dense = product(widen(&u).view().transpose(), scaled(&widen(&v), unit, &s).view());
    let bands = |m: &Matrix<f16>| -> Vec<PackedBand> {
        let band = PackedBand {
            bits: 16,
            ranks: m.rows,
            codes: pack_f16(m),
            ..PackedBand::default()
        };
        if m.rows == 0 { Vec::new() } else { vec![band] }
    };
    Approximation {
        packed: Packed::Factors(PackedLinear {
            inputs,
            outputs,
            unit,
            s,
            coding: Coding::Affine,
            v: bands(&v),
            u: bands(&u),
        }),
        dense,
    }
}

fn pack_f16(m: &Matrix<f16>) -> Vec<u8> {
    let padded = deltamux_kernels::lowbit::row_bytes(m.cols, 16);
    let mut out = Vec::with_capacity(m.rows * padded);
    for i in 0..m.rows {
        out.extend(m.row(i).iter().flat_map(|x| x.to_le_bytes()));
        out.resize((i + 1) * padded, 0);
    }
    out
}

/// A unit, and the singular values in multiples of it.
pub(crate) fn store_singular_values(s: impl Iterator<Item = f64> + Clone) -> (f32, Vec<f16>) {
    let largest = s.clone().fold(0.0, f64::max);
    let unit = if largest > 0.0 {
        (largest / LARGEST_STORED) as f32
    } else {
        1.0
    };
    // A rank that is stored at all must not vanish: the target correction can still make use of it.
    let stored = s.map(|s| f16::from_f64(s / f64::from(unit)).max(f16::MIN_POSITIVE));
    (unit, stored.collect())
}

pub(crate) fn scaled(v: &Matrix<f32>, unit: f32, s: &[f16]) -> Matrix<f32> {
    let mut g = v.clone();
    for (i, s) in s.iter().enumerate() {
        let s = s.to_f32() * unit;
        g.row_mut(i).iter_mut().for_each(|x| *x *= s);
    }
    g
}

/// Packs V and Uᵀ, each with the bits of its rows, after sorting the ranks: widest first. A rank that is wider than
/// another in one factor may not be narrower in the other.
pub(crate) fn pack(coding: Coding, unit: f32, s: &[f16], factors: [(&Quantised, &[u8]); 2]) -> PackedLinear {
    let [(v, v_bits), (u, u_bits)] = factors;
    let mut order: Vec<usize> = (0..s.len()).collect();
    order.sort_by_key(|&i| (Reverse(v_bits[i]), Reverse(u_bits[i])));
    let bands = |q: &Quantised, bits: &[u8]| {
        debug_assert!(order.is_sorted_by_key(|&i| Reverse(bits[i])), "widths form a chain");
        let mut bands: Vec<PackedBand> = Vec::new();
        for same in order.chunk_by(|&a, &b| bits[a] == bits[b]) {
            let mut band = PackedBand {
                bits: bits[same[0]],
                ranks: same.len(),
                ..PackedBand::default()
            };
            for &i in same {
                deltamux_kernels::lowbit::pack_row(q.codes.row(i), band.bits, &mut band.codes);
                band.scales.extend(q.row_grids(i).iter().map(|grid| grid.stored));
                if coding == Coding::Affine {
                    band.zeros.extend(q.row_grids(i).iter().map(|grid| grid.zero as u8));
                }
            }
            bands.push(band);
        }
        bands
    };
    PackedLinear {
        inputs: v.codes.cols,
        outputs: u.codes.cols,
        unit,
        s: order.iter().map(|&i| s[i]).collect(),
        coding,
        v: bands(v, v_bits),
        u: bands(u, u_bits),
    }
}

#[cfg(test)]
mod tests {
    use super::super::factor::{Norm, Order, factor};
    use super::*;
    use crate::artifact::packed_bytes;
    use proptest::prelude::*;
    use rand::{Rng as _, SeedableRng as _};

    /// A random difference with random second moments.
    fn make(outputs: usize, inputs: usize, seed: u64) -> (Matrix<f32>, InputMoments, Factors) {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut random = |rows: usize, cols: usize| {
            let data = (0..rows * cols).map(|_| rng.random_range(-1.0f32..1.0)).collect();
            Matrix::from_vec(rows, cols, data)
        };
        let delta = random(outputs, inputs);
        let x = random(2 * inputs, inputs).to_f64();
        let moments = InputMoments::new(product(x.view().transpose(), x.view())).unwrap();
        let factors = factor(&delta, &moments.c, Norm::Weights, Order::Energy, 64).unwrap();
        (delta, moments, factors)
    }

    fn assert_close(found: &[f32], expected: &[f32]) -> Result<(), TestCaseError> {
        prop_assert_eq!(found.len(), expected.len());
        let largest = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
        for (a, b) in found.iter().zip(expected) {
            prop_assert!((a - b).abs() <= 1e-5 * largest.max(1e-3), "{} {}", a, b);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Whatever the shape (multiples of 8 and 128 or not), what the kernels read is what was quantised.
        #[test]
        fn packed_factors_read_back_as_the_approximation(
            outputs in 1..300usize,
            inputs in 1..300usize,
            widths in proptest::collection::vec(proptest::sample::select(vec![8u8, 4, 3, 2]), 1..12),
            correct: bool,
            seed: u64,
        ) {
            let (delta, moments, factors) = make(outputs, inputs, seed);
            let chosen: Vec<(usize, u8)> = widths.into_iter().take(factors.s.len()).enumerate().collect();
            let made = quantise(&delta, &moments, &factors, &chosen, correct).unwrap();
            let packed = made.factors();
            let bytes = packed.encode();
            prop_assert_eq!(Some(bytes.len()), packed_bytes(inputs, outputs, packed.coding, &packed.widths()));
            assert_close(&packed.to_delta().unwrap().to_dense(), &made.dense.data)?;
        }

        #[test]
        fn f16_factors_read_back_as_the_approximation(outputs in 1..150usize, inputs in 1..150usize, seed: u64) {
            let (delta, _, factors) = make(outputs, inputs, seed);
            let made = store_f16(&delta, &factors);
            let packed = made.factors();
            prop_assert_eq!(
                Some(packed.encode().len()),
                packed_bytes(inputs, outputs, packed.coding, &packed.widths())
            );
            assert_close(&packed.to_delta().unwrap().to_dense(), &made.dense.data)?;
        }
    }

    #[test]
    fn inputs_that_are_always_zero_are_no_obstacle() {
        let (delta, _, factors) = make(24, 40, 5);
        let moments = InputMoments::new(Matrix::zeros(40, 40)).unwrap();
        let made = quantise(&delta, &moments, &factors, &[(0, 3), (1, 2)], true).unwrap();
        assert!(made.dense.data.iter().all(|x| x.is_finite()));
    }
}
