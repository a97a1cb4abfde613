//! Sixteen f32 lanes: the width in which every kernel reduces, whatever the instruction set.

/// Lanes of a reduction.
pub(crate) const LANES: usize = 16;

/// One accumulator.
pub(crate) type Lanes = [f32; LANES];

/// Sum of the lanes, as a fixed tree.
#[inline(always)]
pub(crate) fn sum(lanes: &Lanes) -> f32 {
    let mut v = *lanes;
    let mut width = LANES / 2;
    while width > 0 {
        for j in 0..width {
            v[j] += v[j + width];
        }
        width /= 2;
    }
    v[0]
}

/// Dot product: lane `j` accumulates elements `j`, `j + 16`, … in order, then the fixed tree.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut acc = [0.0; LANES];
    let (a_blocks, a_rest) = a.as_chunks::<LANES>();
    let (b_blocks, b_rest) = b.as_chunks::<LANES>();
    for (x, y) in a_blocks.iter().zip(b_blocks) {
        for j in 0..LANES {
            acc[j] = x[j].mul_add(y[j], acc[j]);
        }
    }
    for (j, (x, y)) in a_rest.iter().zip(b_rest).enumerate() {
        acc[j] = x.mul_add(*y, acc[j]);
    }
    sum(&acc)
}

/// `eˣ` within 2 ulp for x in −87 … 88, saturating outside (0 is never returned): a polynomial that vectorises and gives
/// the same bits on every instruction set.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 · 2^23 rounds to the nearest integer, which then sits in the low mantissa bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, x));
    // Taylor terms up to r⁷/7!; |r| ≤ ln 2 / 2.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, c);
    }
    let power = (shifted.to_bits().wrapping_sub(ROUND.to_bits())).wrapping_add(127) << 23;
    p * f32::from_bits(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_matches_f64_arithmetic() {
        for n in [0, 1, 15, 16, 17, 100, 576] {
            let a: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 17.0).collect();
            let b: Vec<f32> = (0..n).map(|i| ((i * 53 % 97) as f32 - 48.0) / 13.0).collect();
            let exact: f64 = a.iter().zip(&b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
            assert!((f64::from(dot(&a, &b)) - exact).abs() < 1e-3, "n = {n}");
        }
    }

    #[test]
    fn exp_is_within_two_ulp() {
        for i in -87_000..=88_000 {
            let x = i as f32 / 1000.0;
            let exact = f64::from(x).exp();
            let error = (f64::from(exp(x)) - exact).abs() / exact;
            assert!(error < 2.5e-7, "exp({x}) is off by {error:e}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) > 0.0 && exp(-1e30) < 1e-37);
    }
}
