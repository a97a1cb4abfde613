//! What holds for every way to apply a difference of signs.

use super::sums::LookUp;
use super::terms::add_terms_by;
use super::{SignDelta, Term, add_terms, pack};
use crate::Threads;
use proptest::prelude::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Random signs with one scale, or one for each output.
fn random(inputs: usize, outputs: usize, each: bool, rng: &mut ChaCha8Rng) -> SignDelta {
    let negative: Vec<bool> = (0..inputs * outputs).map(|_| rng.random()).collect();
    SignDelta {
        inputs,
        outputs,
        scales: (0..if each { outputs } else { 1 })
            .map(|_| rng.random_range(0.001..0.1))
            .collect(),
        codes: pack(inputs, outputs, |output, input| negative[output * inputs + input]).into(),
    }
}

fn values(count: usize, rng: &mut ChaCha8Rng) -> Vec<f32> {
    (0..count).map(|_| rng.random_range(-1.0..1.0)).collect()
}

/// Lengths at and around the layout's borders, and any other.
fn length() -> impl Strategy<Value = usize> {
    prop_oneof![
        1usize..300,
        proptest::sample::select(vec![16, 32, 64, 128, 192, 576, 640, 1153])
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_instruction_set_gives_the_same_bits(
        inputs in length(), outputs in length(), rows in 1usize..7, each: bool, seed: u64,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let delta = random(inputs, outputs, each, &mut rng);
        let x = values(rows * inputs, &mut rng);
        let term = [Term { delta: &delta, rows: 0..rows, column: 0 }];
        let threads = Threads::new(1);
        let run = |look_up| {
            let mut y = vec![0.5; rows * outputs];
            add_terms_by(look_up, &x, rows, &term, &mut y, outputs, &threads);
            y
        };
        let expected = run(LookUp::Portable);
        for look_up in LookUp::all() {
            prop_assert!(run(look_up) == expected, "{:?}", look_up);
        }
    }

    #[test]
    fn a_row_is_the_same_alone_in_a_batch_and_among_terms(
        inputs in length(), outputs in length(), rows in 1usize..40, threads in 1usize..4, each: bool, seed: u64,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let delta = random(inputs, outputs, each, &mut rng);
        let other = random(inputs, outputs / 2 + 1, !each, &mut rng);
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

    /// Each of the `inputs / 4` additions and the three of a table lose at most 2⁻²⁴ of the largest sum there can be.
    #[test]
    fn results_are_those_of_f64_within_the_rounding_of_the_sums(
        inputs in length(), outputs in 1usize..40, each: bool, seed: u64,
    ) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let delta = random(inputs, outputs, each, &mut rng);
        let (x, dense) = (values(inputs, &mut rng), delta.to_dense());
        let mut y = vec![0.25; outputs];
        delta.add_to(&x, 1, &mut y, &Threads::new(1));
        let all: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
        for (output, y) in y.iter().enumerate() {
            let row = &dense[output * inputs..][..inputs];
            let exact: f64 = row.iter().zip(&x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let additions = (inputs.div_ceil(4) + 3) as f64;
            let bound = additions * 2f64.powi(-24) * all * f64::from(delta.scale(output)) + 1e-7;
            prop_assert!((f64::from(*y) - 0.25 - exact).abs() <= bound, "{} {} {}", y, exact, bound);
        }
    }
}

/// More inputs than tables are filled for at a time.
#[test]
fn long_rows_are_the_same_by_every_instruction_set_and_right() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (inputs, outputs, rows) = (18_944 + 5, 70, 5);
    let delta = random(inputs, outputs, false, &mut rng);
    let x = values(rows * inputs, &mut rng);
    let term = [Term {
        delta: &delta,
        rows: 0..rows,
        column: 0,
    }];
    let results: Vec<_> = LookUp::all()
        .into_iter()
        .map(|look_up| {
            let mut y = vec![0.0; rows * outputs];
            add_terms_by(look_up, &x, rows, &term, &mut y, outputs, &Threads::new(2));
            y
        })
        .collect();
    assert!(results.windows(2).all(|two| two[0] == two[1]));
    let dense = delta.to_dense();
    for (i, y) in results[0].iter().enumerate() {
        let (m, output) = (i / outputs, i % outputs);
        let weights = dense[output * inputs..][..inputs]
            .iter()
            .zip(&x[m * inputs..][..inputs]);
        let exact: f64 = weights.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
        // The sums are of the size of √inputs.
        let size = f64::from(delta.scales[0]) * (inputs as f64).sqrt();
        assert!((f64::from(*y) - exact).abs() < 1e-4 * size, "{y} {exact}");
    }
}

#[test]
fn rows_of_the_dense_difference_are_scaled_signs() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for each in [false, true] {
        let delta = random(70, 33, each, &mut rng);
        for output in 0..33 {
            let mut row = vec![1.0; 70];
            delta.add_dense_row(output, &mut row);
            let scale = delta.scales[if each { output } else { 0 }];
            assert!(row.iter().all(|w| *w == 1.0 + scale || *w == 1.0 - scale));
        }
    }
}

#[test]
fn what_is_not_finite_stays_visible() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let delta = random(200, 150, false, &mut rng);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut x = values(200, &mut rng);
        x[70] = bad;
        let term = [Term {
            delta: &delta,
            rows: 0..1,
            column: 0,
        }];
        for look_up in LookUp::all() {
            let mut y = vec![0.0; 150];
            add_terms_by(look_up, &x, 1, &term, &mut y, 150, &Threads::new(1));
            assert!(y.iter().all(|y| !y.is_finite()), "{look_up:?}");
        }
    }
}

#[test]
fn nothing_to_do_is_done() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let (threads, some) = (Threads::new(2), random(70, 90, false, &mut rng));
    some.add_to(&[], 0, &mut [], &threads);
    add_terms(&[], 0, &[], &mut [], 0, &threads);
}

#[test]
fn terms_that_do_not_fit_are_refused_by_name() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let threads = Threads::new(1);
    let [delta, wide] = [70, 71].map(|inputs| random(inputs, 90, false, &mut rng));
    let mut short = delta.clone();
    short.codes = delta.codes[..delta.codes.len() - 1].to_vec().into();
    let mut scales = delta.clone();
    scales.scales = vec![1.0; 89];
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
        (
            x,
            vec![term(&delta, 0..2, 0), term(&wide, 2..4, 0)],
            y,
            "the same inputs",
        ),
        (x, vec![term(&short, 0..4, 0)], y, "signs are 64 bytes"),
        (x, vec![term(&scales, 0..4, 0)], y, "one for each output"),
        (
            x,
            vec![term(&delta, 2..4, 0), term(&delta, 0..3, 89)],
            y,
            "no two terms share",
        ),
    ] {
        let message = refused(x, &terms, y).flatten().unwrap_or_default();
        assert!(message.contains(name), "{name}: {message}");
    }
}
