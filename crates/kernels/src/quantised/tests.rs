use half::bf16;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::layout::{BLOCK, MIDDLE, SCALE_BYTES};
use super::tile::Kernel;
use super::*;
use crate::isa::{Isa, isa, vnni};
use crate::threads::DisjointRows;
use crate::{AlignedBytes, Bytes, Threads};

const BOTH: [Bits; 2] = [Bits::Eight, Bits::Four];

/// All that this machine runs.
fn kernels() -> Vec<Kernel> {
    let mut kernels = vec![Kernel::Portable];
    if isa() != Isa::Portable {
        kernels.push(Kernel::Avx2);
    }
    if vnni() {
        kernels.push(Kernel::Vnni);
    }
    kernels
}

/// Roughly normal.
fn random(n: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    (0..n)
        .map(|_| (0..6).map(|_| rng.random_range(-0.7f32..0.7)).sum())
        .collect()
}

/// A matrix of random codes and scales, zeros and the ends of the range among them.
fn random_matrix(outputs: usize, inputs: usize, bits: Bits, rng: &mut ChaCha8Rng) -> QuantisedMatrix {
    let mut packed = AlignedBytes::zeroed(bits.packed_bytes(outputs, inputs).expect("small"));
    rng.fill(&mut packed[..]);
    let (head, block) = (bits.head_bytes(), bits.block_bytes());
    for panel in packed.chunks_exact_mut(bits.panel_bytes(inputs)) {
        for unit in panel[..head].as_chunks_mut::<4>().0 {
            *unit = rng.random_range(-1.0f32..1.0).to_le_bytes();
        }
        for block in panel[head..].chunks_exact_mut(block) {
            if bits == Bits::Eight {
                for scale in block[..SCALE_BYTES].as_chunks_mut::<2>().0 {
                    *scale = bf16::from_f32(rng.random_range(-1.0f32..1.0)).to_le_bytes();
                }
            }
            // Whole chunks at the ends of the range.
            let at = SCALE_BYTES + rng.random_range(0..2) * 64;
            let byte = [0x00, 0xff][rng.random_range(0..2)];
            block[at..at + 64].fill(byte);
        }
    }
    QuantisedMatrix::from_packed(packed.into(), outputs, inputs, bits).expect("the right length")
}

/// The product on one kernel, in one task.
fn product(kernel: Kernel, matrix: &QuantisedMatrix, x: &[f32], rows: usize) -> Vec<f32> {
    let mut quantised = QuantisedRows::new();
    quantised.quantise_for(kernel, x, rows, matrix.inputs(), &Threads::new(1));
    let mut y = vec![f32::NAN; rows * matrix.outputs()];
    let panels = 0..matrix.outputs().div_ceil(16);
    let parts = DisjointRows::new(&mut y, matrix.outputs());
    // SAFETY: nobody else is there.
    unsafe { matrix.columns_on(kernel, panels, &quantised, 0..rows, &parts, 0) };
    y
}

fn bits_of(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

/// What quantised rows stand for.
fn dequantised(x: &QuantisedRows) -> Vec<f64> {
    let blocks = x.inputs().div_ceil(BLOCK);
    let mut values = Vec::new();
    for row in 0..x.rows() {
        let group = x.group(row / 8 * 8, 0);
        let row = row % 8;
        let code = |k: usize| group.codes[(k / BLOCK * group.rows + row) * BLOCK + k % BLOCK];
        let scale = |k: usize| group.scales[k / GROUP * group.rows + row];
        values.extend((0..x.inputs()).map(|k| f64::from(code(k)) * f64::from(scale(k))));
        assert!(
            (x.inputs()..blocks * BLOCK).all(|k| code(k) == 0),
            "padding counts as 0"
        );
    }
    values
}

#[test]
fn products_match_f64_arithmetic_on_the_quantised_values() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let threads = Threads::new(2);
    for (outputs, inputs) in [(16, 64), (1, 1), (33, 70), (192, 576), (100, 31), (5, 97)] {
        for bits in BOTH {
            let weights = random(outputs * inputs, &mut rng);
            let matrix = QuantisedMatrix::quantise(&weights, outputs, inputs, bits, &threads);
            let rows = 11;
            let x = random(rows * inputs, &mut rng);
            let mut y = vec![f32::NAN; rows * outputs];
            matrix.matmul(&x, rows, &mut y, &threads);
            let mut quantised = QuantisedRows::new();
            quantised.quantise(&x, rows, inputs, &threads);
            let mut row = vec![0.0; inputs];
            for (x, y) in dequantised(&quantised)
                .chunks_exact(inputs)
                .zip(y.chunks_exact(outputs))
            {
                for (o, y) in y.iter().enumerate() {
                    matrix.row(o, &mut row);
                    let exact: f64 = row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
                    let size: f64 = row.iter().zip(x).map(|(w, x)| (f64::from(*w) * x).abs()).sum();
                    let error = (f64::from(*y) - exact).abs();
                    assert!(
                        error <= 1e-5 * size + 1e-30,
                        "{bits:?} {outputs}x{inputs}: {error:e} of {size}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_error_is_that_of_the_codes() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let threads = Threads::new(2);
    let (outputs, inputs) = (64, 512);
    let weights = random(outputs * inputs, &mut rng);
    // A little above what normal weights have: 0.54 % and 7.15 %.
    for (bits, bound) in [(Bits::Eight, 0.006), (Bits::Four, 0.076)] {
        let matrix = QuantisedMatrix::quantise(&weights, outputs, inputs, bits, &threads);
        let (mut error, mut size) = (0.0, 0.0);
        let mut row = vec![0.0; inputs];
        for (o, weights) in weights.chunks_exact(inputs).enumerate() {
            matrix.row(o, &mut row);
            error += row
                .iter()
                .zip(weights)
                .map(|(a, b)| f64::from(a - b).powi(2))
                .sum::<f64>();
            size += weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>();
        }
        let relative = (error / size).sqrt();
        assert!(relative < bound, "{bits:?}: {relative}");
    }
}

#[test]
fn weights_on_the_grid_of_the_codes_are_exact() {
    let threads = Threads::new(1);
    let mut row = [0.0; 32];
    let eight: Vec<f32> = (0..32).map(|k| 0.25 * ((k * 37 % 255) as f32 - 127.0)).collect();
    assert!(eight.contains(&(0.25 * -127.0)));
    QuantisedMatrix::quantise(&eight, 1, 32, Bits::Eight, &threads).row(0, &mut row);
    assert_eq!(eight, row);
    // Zero points between two codes, and at the ends of the range.
    for zero in [0.0, 7.0, 7.5, 8.25, 15.0] {
        let four: Vec<f32> = (0..32).map(|k| 0.5 * ((k * 7 % 16) as f32 - zero)).collect();
        QuantisedMatrix::quantise(&four, 1, 32, Bits::Four, &threads).row(0, &mut row);
        for (exact, w) in four.iter().zip(&row) {
            assert!((exact - w).abs() < 1e-5, "{exact} became {w} around {zero}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Also codes that no weights would have given: a file may hold anything.
    #[test]
    fn every_kernel_gives_the_same_bits_for_any_codes(
        (outputs, inputs, rows) in (1usize..50, 1usize..300, 1usize..20),
        (four, seed, unit) in (any::<bool>(), any::<u64>(), -20i32..20),
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let matrix = random_matrix(outputs, inputs, BOTH[usize::from(four)], &mut rng);
        let mut x = random(rows * inputs, &mut rng);
        for x in &mut x {
            *x *= (unit as f32).exp2();
        }
        // Groups at the ends of the range.
        x.iter_mut().take(70).for_each(|x| *x = x.signum());
        let expected = product(Kernel::Portable, &matrix, &x, rows);
        prop_assert!(expected.iter().all(|y| y.is_finite()));
        for kernel in kernels() {
            prop_assert_eq!(bits_of(&product(kernel, &matrix, &x, rows)), bits_of(&expected), "{:?}", kernel);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_and_in_any_part_of_a_batch(
        (outputs, inputs, rows) in (1usize..90, 1usize..1500, 1usize..20),
        (four, seed, threads) in (any::<bool>(), any::<u64>(), 1usize..4),
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let threads = Threads::new(threads);
        let matrix = random_matrix(outputs, inputs, BOTH[usize::from(four)], &mut rng);
        let x = random(rows * inputs, &mut rng);
        let mut together = vec![f32::NAN; rows * outputs];
        matrix.matmul(&x, rows, &mut together, &threads);
        for (x, expected) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
            let mut alone = vec![f32::NAN; outputs];
            matrix.matmul(x, 1, &mut alone, &Threads::new(1));
            prop_assert_eq!(&alone[..], expected);
        }
        // Panel by panel, eight rows by eight rows, with a column before and one after.
        let mut quantised = QuantisedRows::new();
        quantised.quantise(&x, rows, inputs, &threads);
        let mut apart = vec![7.0; rows * (outputs + 2)];
        let parts = DisjointRows::new(&mut apart, outputs + 2);
        for panel in 0..outputs.div_ceil(16) {
            for first in (0..rows).step_by(8) {
                let rows = first..rows.min(first + 8);
                // SAFETY: nobody else is there.
                unsafe { matrix.columns(panel..panel + 1, &quantised, rows, &parts, 1) };
            }
        }
        for (apart, together) in apart.chunks_exact(outputs + 2).zip(together.chunks_exact(outputs)) {
            prop_assert_eq!(&apart[1..=outputs], together);
            prop_assert!(apart[0] == 7.0 && apart[outputs + 1] == 7.0);
        }
    }

    #[test]
    fn activations_come_back_within_half_a_step(
        (inputs, rows, seed, unit) in (1usize..200, 1usize..20, any::<u64>(), -100i32..100),
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let x: Vec<f32> = random(rows * inputs, &mut rng).iter().map(|x| x * (unit as f32).exp2()).collect();
        let mut all = Vec::new();
        for kernel in kernels() {
            let mut quantised = QuantisedRows::new();
            quantised.quantise_for(kernel, &x, rows, inputs, &Threads::new(2));
            all.push(dequantised(&quantised));
        }
        for values in &all {
            prop_assert_eq!(values, &all[0]);
        }
        for (x, values) in x.chunks_exact(inputs).zip(all[0].chunks_exact(inputs)) {
            for (x, values) in x.chunks(GROUP).zip(values.chunks(GROUP)) {
                let step = f64::from(x.iter().fold(0.0f32, |m, x| m.max(x.abs()))) / 127.0;
                for (x, value) in x.iter().zip(values) {
                    prop_assert!((f64::from(*x) - value).abs() <= 0.501 * step);
                }
            }
        }
    }
}

#[test]
fn rows_are_used_again_for_other_shapes() {
    let threads = Threads::new(1);
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut used = QuantisedRows::new();
    for (rows, inputs) in [(9, 200), (1, 3), (20, 64), (0, 5), (2, 0), (8, 65)] {
        let x = random(rows * inputs, &mut rng);
        used.quantise(&x, rows, inputs, &threads);
        let mut fresh = QuantisedRows::new();
        fresh.quantise(&x, rows, inputs, &threads);
        assert_eq!((used.rows(), used.inputs()), (rows, inputs));
        if rows * inputs > 0 {
            assert_eq!(dequantised(&used), dequantised(&fresh));
        }
    }
}

#[test]
fn what_is_not_finite_stays_visible_in_its_row_alone() {
    let threads = Threads::new(1);
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let (outputs, inputs, rows) = (20, 100, 3);
    for bits in BOTH {
        let weights = random(outputs * inputs, &mut rng);
        let matrix = QuantisedMatrix::quantise(&weights, outputs, inputs, bits, &threads);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7f80_0001)] {
            let mut x = random(rows * inputs, &mut rng);
            x[inputs + 99] = bad;
            for kernel in kernels() {
                let y = product(kernel, &matrix, &x, rows);
                let finite: Vec<bool> = y.chunks(outputs).map(|y| y.iter().all(|y| y.is_finite())).collect();
                assert_eq!(finite, [true, false, true]);
                assert!(y[outputs..2 * outputs].iter().all(|y| y.is_nan()));
            }
            // Of weights: the output that they belong to.
            let mut weights = weights.clone();
            weights[7 * inputs + 50] = bad;
            let matrix = QuantisedMatrix::quantise(&weights, outputs, inputs, bits, &threads);
            for kernel in kernels() {
                let y = product(kernel, &matrix, &random(inputs, &mut rng), 1);
                assert!(y.iter().enumerate().all(|(o, y)| y.is_nan() == (o == 7)), "{y:?}");
            }
        }
    }
}

#[test]
fn values_at_the_ends_of_the_range() {
    let threads = Threads::new(1);
    let (outputs, inputs) = (3, 64);
    for bits in BOTH {
        // Products of largest codes, all of one sign: no sum of theirs may overflow.
        let ones = QuantisedMatrix::quantise(&[1.0; 3 * 64], outputs, inputs, bits, &threads);
        for kernel in kernels() {
            for x in [1.0f32, -1.0, 1e30, 1e-30] {
                for y in product(kernel, &ones, &[x; 64], 1) {
                    assert!((y / x - 64.0).abs() < 0.3, "{kernel:?} {bits:?}: {y}");
                }
            }
            // Activations too small to count, and none at all.
            for x in [0.0f32, -0.0, 1e-37, 1e-45] {
                assert_eq!(product(kernel, &ones, &[x; 64], 1), [0.0; 3]);
            }
        }
        for w in [1e-30f32, 1e30] {
            let matrix = QuantisedMatrix::quantise(&[w; 3 * 64], outputs, inputs, bits, &threads);
            let mut row = [0.0; 64];
            matrix.row(1, &mut row);
            assert!(
                row.iter().all(|r| (r / w - 1.0).abs() < 0.01),
                "{bits:?}: {w:e} became {row:?}"
            );
        }
        for w in [0.0f32, 1e-44] {
            let matrix = QuantisedMatrix::quantise(&[w; 3 * 64], outputs, inputs, bits, &threads);
            let mut row = [7.0; 64];
            matrix.row(1, &mut row);
            assert!(row.iter().all(|r| r.abs() <= 2e-44));
        }
    }
}

#[test]
fn packed_bytes_make_the_same_matrix_and_other_lengths_none() {
    let threads = Threads::new(2);
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let (outputs, inputs) = (37, 150);
    for bits in BOTH {
        let weights = random(outputs * inputs, &mut rng);
        let matrix = QuantisedMatrix::quantise(&weights, outputs, inputs, bits, &threads);
        let copy: Vec<u8> = matrix.packed().to_vec();
        assert_eq!(copy.len(), matrix.bytes());
        assert!(QuantisedMatrix::from_packed(copy[1..].to_vec().into(), outputs, inputs, bits).is_none());
        assert!(QuantisedMatrix::from_packed(copy.clone().into(), outputs + 16, inputs, bits).is_none());
        for (outputs, inputs) in [(usize::MAX, 1), (usize::MAX, usize::MAX), (1, usize::MAX)] {
            assert!(QuantisedMatrix::from_packed(copy.clone().into(), outputs, inputs, bits).is_none());
        }
        // A mapped window need not be aligned.
        let mut shifted = vec![0];
        shifted.extend_from_slice(&copy);
        let window = Bytes::window(std::sync::Arc::new(shifted), 1, copy.len());
        let back = QuantisedMatrix::from_packed(window, outputs, inputs, bits).expect("the right length");
        assert_eq!((back.outputs(), back.inputs(), back.bits()), (outputs, inputs, bits));
        let x = random(9 * inputs, &mut rng);
        for kernel in kernels() {
            assert_eq!(product(kernel, &back, &x, 9), product(kernel, &matrix, &x, 9));
        }
    }
}

#[test]
fn outputs_and_inputs_beyond_the_matrix_are_zero() {
    let threads = Threads::new(1);
    let mut rng = ChaCha8Rng::seed_from_u64(6);
    let weights = random(5 * 33, &mut rng);
    for bits in BOTH {
        let small = QuantisedMatrix::quantise(&weights, 5, 33, bits, &threads);
        let mut padded = vec![0.0; 16 * 64];
        for (row, weights) in padded.chunks_exact_mut(64).zip(weights.chunks_exact(33)) {
            row[..33].copy_from_slice(weights);
        }
        let large = QuantisedMatrix::quantise(&padded, 16, 64, bits, &threads);
        assert_eq!(&small.packed()[..], &large.packed()[..]);
    }
    let zero = QuantisedMatrix::quantise(&[0.0; 16 * 64], 16, 64, Bits::Eight, &threads);
    assert!(zero.packed()[SCALE_BYTES..].iter().all(|code| *code == MIDDLE));
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let threads = Threads::new(1);
    let matrix = QuantisedMatrix::quantise(&[1.0; 6], 2, 3, Bits::Eight, &threads);
    let message = |call: &mut dyn FnMut()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).expect_err("a refusal");
        let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
        text.or_else(|| panic.downcast_ref::<String>().cloned())
            .expect("a message")
    };
    let refused = message(&mut || matrix.matmul(&[1.0; 5], 2, &mut [0.0; 4], &threads));
    assert!(refused.contains("x is [rows, inputs]"), "{refused}");
    let refused = message(&mut || matrix.matmul(&[1.0; 6], 2, &mut [0.0; 3], &threads));
    assert!(refused.contains("y is [rows, outputs]"), "{refused}");
    let refused = message(&mut || matrix.row(2, &mut [0.0; 3]));
    assert!(refused.contains("row 2 of 2 outputs"), "{refused}");
    let refused = message(&mut || matrix.row(1, &mut [0.0; 4]));
    assert!(refused.contains("row is [inputs]"), "{refused}");
    let refused = message(&mut || drop(QuantisedMatrix::quantise(&[1.0; 5], 2, 3, Bits::Four, &threads)));
    assert!(refused.contains("weights are [outputs, inputs]"), "{refused}");
    let mut other = QuantisedRows::new();
    other.quantise(&[1.0; 4], 1, 4, &threads);
    let refused = message(&mut || matrix.matmul_quantised(&other, &mut [0.0; 2], &threads));
    assert!(refused.contains("rows of x are as long"), "{refused}");
}

#[test]
fn products_without_rows_inputs_or_outputs() {
    let threads = Threads::new(2);
    for bits in BOTH {
        QuantisedMatrix::quantise(&[1.0; 6], 2, 3, bits, &threads).matmul(&[], 0, &mut [], &threads);
        let mut y = [7.0; 6];
        QuantisedMatrix::quantise(&[], 3, 0, bits, &threads).matmul(&[], 2, &mut y, &threads);
        assert_eq!(y, [0.0; 6]);
        QuantisedMatrix::quantise(&[], 0, 3, bits, &threads).matmul(&[1.0; 6], 2, &mut [], &threads);
    }
}
