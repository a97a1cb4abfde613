//! Sixteen f32 lanes: the width in which every kernel reduces, whatever the instruction set.

/// Lanes of a reduction.
pub(crate) const LANES: usize = 16;

/// One accumulator.
pub(crate) type Lanes = [f32; LANES];

/// `acc + a · b`, lane by lane, each fused.
#[inline(always)]
pub(crate) fn fma(acc: &mut Lanes, a: f32, b: &Lanes) {
    for j in 0..LANES {
        acc[j] = a.mul_add(b[j], acc[j]);
    }
}

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
}
