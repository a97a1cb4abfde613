//! What holds for every way to apply a difference.

use super::arithmetic::Arithmetic;
use super::terms::add_terms_by;
use super::testing::{random, random_apart};
use super::{LowRankDelta, Term, add_terms};
use crate::Threads;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Lengths at and around the group's and the layouts' borders, and any other.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        1usize..420,
        proptest::sample::select(vec![64, 128, 192, 256, 576, 1024, 1152, 1153, 1344])
    ]
}

/// Ranks of each width, some widths without any.
fn widths() -> impl Strategy<Value = Vec<(u8, usize)>> {
    (0usize..4, 0usize..12, 0usize..20, 0usize..40, 0usize..70).prop_map(|(f16, eight, four, three, two)| {
        let all = [(16, f16), (8, eight), (4, four), (3, three), (2, two)];
        all.into_iter().filter(|w| w.1 > 0).collect()
    })
}

fn values(count: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn every_instruction_set_gives_the_same_bits(
        inputs in length(), outputs in length(), widths in widths(), rows in 1usize..4, seed: u64,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let delta = random(inputs, outputs, &widths, &mut rng);
        let x = values(rows * inputs, &mut rng);
        let term = [Term { delta: &delta, rows: 0..rows, column: 0 }];
        let threads = Threads::new(1);
        let run = |arithmetic| {
            let mut y = vec![0.5; rows * outputs];
            add_terms_by(arithmetic, &x, rows, &term, &mut y, outputs, &threads);
            y
        };
        let expected = run(Arithmetic::Portable);
        for arithmetic in Arithmetic::all() {
            prop_assert!(run(arithmetic) == expected, "{:?}", arithmetic);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_in_a_batch_and_among_terms(
        inputs in length(), outputs in length(), widths in widths(), other in widths(), rows in 1usize..9,
        threads in 1usize..4, seed: u64,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let delta = random(inputs, outputs, &widths, &mut rng);
        let other = random(inputs, outputs / 2 + 1, &other, &mut rng);
        let x = values(rows * inputs, &mut rng);
        let mut together = vec![0.5; rows * outputs];
        delta.add_to(&x, rows, &mut together, &Threads::new(threads));
        for (x, expected) in x.chunks_exact(inputs).zip(together.chunks_exact(outputs)) {
            let mut alone = vec![0.5; outputs];
            delta.add_to(x, 1, &mut alone, &Threads::new(1));
            prop_assert_eq!(&alone, expected);
        }
        // The first rows are this difference's, the last ones the other's, and those columns all rows' once more.
        let split = rng.random_range(0..=rows);
        let stride = 3 + 2 * outputs + 1 + other.outputs;
        let terms = [
            Term { delta: &other, rows: 0..rows, column: 4 + 2 * outputs },
            Term { delta: &delta, rows: 0..split, column: 3 },
            Term { delta: &other, rows: split..rows, column: 3 },
            Term { delta: &delta, rows: split..rows, column: 4 + outputs },
        ];
        let mut y = vec![0.5; rows * stride];
        add_terms(&x, rows, &terms, &mut y, stride, &Threads::new(threads));
        let mut expected = vec![0.5; rows * stride];
        for term in &terms {
            for m in term.rows.clone() {
                let y = &mut expected[m * stride + term.column..][..term.delta.outputs];
                term.delta.add_to(&x[m * inputs..][..inputs], 1, y, &Threads::new(1));
            }
        }
        prop_assert_eq!(y, expected);
    }
}

/// Widths that are whole groups have ways of their own, for one row more than for several.
#[test]
fn every_instruction_set_gives_the_same_bits_where_groups_are_whole() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    let threads = Threads::new(1);
    for (inputs, outputs) in [(128, 256), (256, 896), (1152, 1152), (384, 4096), (128, 4864)] {
        let delta = random(inputs, outputs, &[(8, 3), (4, 5), (3, 39), (2, 70)], &mut rng);
        for rows in [1, 2] {
            let x = values(rows * inputs, &mut rng);
            let term = [Term {
                delta: &delta,
                rows: 0..rows,
                column: 0,
            }];
            let results: Vec<_> = Arithmetic::all()
                .into_iter()
                .map(|arithmetic| {
                    let mut y = vec![0.5; rows * outputs];
                    add_terms_by(arithmetic, &x, rows, &term, &mut y, outputs, &threads);
                    y
                })
                .collect();
            assert!(
                results.windows(2).all(|two| two[0] == two[1]),
                "[{outputs}, {inputs}], {rows} rows"
            );
        }
    }
}

/// `U (s ⊙ (V x))` in f64 from the exact weights.
fn exact(delta: &LowRankDelta, x: &[f32]) -> Vec<f64> {
    let mut y = vec![0.0; delta.outputs];
    let (mut v_row, mut u_row) = (vec![0.0; delta.inputs], vec![0.0; delta.outputs]);
    for (((v, v_rank), (u, u_rank)), s) in delta.rows().zip(&delta.s) {
        v.row(v_rank, &mut v_row);
        u.row(u_rank, &mut u_row);
        let dot: f64 = v_row.iter().zip(x).map(|(v, x)| f64::from(*v) * f64::from(*x)).sum();
        for (y, u) in y.iter_mut().zip(&u_row) {
            *y += f64::from(*u) * f64::from(*s) * dot;
        }
    }
    y
}

/// The largest relative error over shapes, with singular values that fall as `i^-power`; three of the activations are
/// `outliers` times as large as the others.
fn largest_error(v_bands: &[(u8, usize)], u_bands: &[(u8, usize)], power: f32, outliers: f32) -> f64 {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let threads = Threads::new(2);
    let mut largest = 0.0f64;
    for (inputs, outputs) in [(576, 1536), (896, 300), (100, 333), (8, 8), (131, 129)] {
        let mut delta = random_apart(inputs, outputs, v_bands, u_bands, &mut rng);
        for (i, s) in delta.s.iter_mut().enumerate() {
            *s = ((i + 1) as f32).powf(-power);
        }
        let (mut error, mut all) = (0.0, 0.0);
        // The result for one x may be next to nothing.
        for _ in 0..4 {
            let mut x = values(inputs, &mut rng);
            for i in [3, inputs / 2, inputs - 1] {
                x[i] *= outliers;
            }
            let mut y = vec![0.0; outputs];
            delta.add_to(&x, 1, &mut y, &threads);
            for (y, exact) in y.iter().zip(exact(&delta, &x)) {
                error += (f64::from(*y) - exact).powi(2);
                all += exact.powi(2);
            }
        }
        largest = largest.max((error / all).sqrt());
    }
    largest
}

/// Flat singular values, falling as in fine-tunes, and steeply; without and with outliers among the activations.
const CASES: [(f32, f32, f64); 4] = [(0.0, 1.0, 1e-4), (0.7, 1.0, 1e-4), (3.0, 1.0, 1e-4), (0.7, 50.0, 2e-4)];

#[test]
fn two_bytes_cost_no_accuracy() {
    let bands = [(16, 2), (8, 9), (4, 40)];
    // U as wide as V, and wider.
    for u_bands in [bands, [(16, 2), (8, 20), (4, 29)]] {
        for (power, outliers, bound) in CASES {
            let error = largest_error(&bands, &u_bands, power, outliers);
            assert!(
                error < bound,
                "{u_bands:?}, s = i^-{power}, outliers {outliers}: {error:e}"
            );
        }
    }
}

/// Codes of 3 and 2 bits differ from what they stand for by a fifth to a third of each weight; one byte of an activation
/// adds at most a tenth of that, a fifth where outliers leave few steps for the others.
#[test]
fn one_byte_costs_little_beside_the_codes_own_error() {
    let bands = [(16, 2), (8, 9), (4, 20), (3, 40), (2, 100)];
    let wider = [(16, 2), (8, 20), (4, 33), (3, 66), (2, 50)];
    for (v_bands, u_bands) in [(&bands[..], &bands[..]), (&bands, &wider), (&[(2, 100)], &[(2, 100)])] {
        for (power, outliers, _) in CASES {
            let bound = if outliers > 1.0 { 4e-2 } else { 2e-2 };
            let error = largest_error(v_bands, u_bands, power, outliers);
            assert!(
                error < bound,
                "{v_bands:?}, {u_bands:?}, s = i^-{power}, outliers {outliers}: {error:e}"
            );
        }
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let delta = random(200, 150, &[(8, 3), (2, 9)], &mut rng);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = values(200, &mut rng);
        x[70] = bad;
        let threads = Threads::new(1);
        let term = [Term {
            delta: &delta,
            rows: 0..1,
            column: 0,
        }];
        for arithmetic in Arithmetic::all() {
            let mut y = vec![0.0; 150];
            add_terms_by(arithmetic, &x, 1, &term, &mut y, 150, &threads);
            assert!(y.iter().all(|y| !y.is_finite()), "{arithmetic:?}");
        }
    }
}

#[test]
fn nothing_to_do_is_done() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (threads, none) = (Threads::new(2), random(70, 90, &[], &mut rng));
    let mut y = vec![1.0; 90];
    none.add_to(&[0.5; 70], 1, &mut y, &threads);
    none.add_to(&[], 0, &mut [], &threads);
    add_terms(&[], 0, &[], &mut [], 0, &threads);
    assert_eq!(y, [1.0; 90]);
}

#[test]
fn terms_that_do_not_fit_are_refused_by_name() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let threads = Threads::new(1);
    let [delta, wide] = [70, 71].map(|inputs| random(inputs, 90, &[(2, 4)], &mut rng));
    let mut broken = delta.clone();
    broken.u[0].scales.pop();
    let mut missing = delta.clone();
    missing.s.pop();
    let term = |delta, rows, column| Term { delta, rows, column };
    let refused = |x: usize, terms: &[Term<'_>], y: usize| {
        let call = || add_terms(&vec![0.0; x], 4, terms, &mut vec![0.0; y], 200, &threads);
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).err();
        panic.map(|p| {
            p.downcast_ref::<String>()
                .cloned()
                .or(p.downcast_ref::<&str>().map(|s| s.to_string()))
        })
    };
    let (x, y) = (4 * 70, 4 * 200);
    let good = [
        term(&delta, 0..3, 0),
        term(&delta, 3..4, 0),
        term(&delta, 1..2, 110),
        term(&delta, 2..2, 0),
    ];
    assert!(refused(x, &good, y).is_none());
    for (x, terms, y, name) in [
        (x - 1, vec![term(&delta, 0..4, 0)], y, "x is [rows, inputs]"),
        (x, vec![term(&delta, 0..4, 0)], y + 1, "y is [rows, stride]"),
        (x, vec![term(&delta, 0..5, 0)], y, "a term's rows"),
        (x, vec![term(&delta, 0..4, 111)], y, "a term's columns"),
        (x, vec![term(&delta, 0..4, usize::MAX)], y, "a term's columns"),
        (
            x,
            vec![term(&delta, 0..2, 0), term(&wide, 2..4, 0)],
            y,
            "the same inputs",
        ),
        (x, vec![term(&broken, 0..4, 0)], y, "scales are [ranks, groups]"),
        (x, vec![term(&missing, 0..4, 0)], y, "as many ranks"),
        (
            x,
            vec![term(&delta, 2..4, 0), term(&delta, 0..3, 89)],
            y,
            "no two terms share",
        ),
        (
            x,
            vec![term(&delta, 0..4, 110), term(&delta, 1..2, 21)],
            y,
            "no two terms share",
        ),
    ] {
        let message = refused(x, &terms, y).flatten().unwrap_or_default();
        assert!(message.contains(name), "{name}: {message}");
    }
}
