//! Every method against an independent implementation in numpy, on the same matrices at the same budget.
//!
//! `tests/golden/make_numpy.py` says how the matrices are made and what the figures are.

use serde::Deserialize;

use super::factor::{Norm, Order, factor};
use super::gptq::quantise_rows;
use super::linalg::{Matrix, product, quadratic};
use super::matrix::prepare;
use super::options::Method;
use super::quantise::InputMoments;
use crate::artifact::Coding;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    outputs: usize,
    inputs: usize,
    seed: u64,
    budget_bits: u64,
    prinmix: f64,
    best: f64,
    delta_come: f64,
    low_rank: f64,
    gptq_3: f64,
}

fn cases() -> Vec<Case> {
    let golden: Golden = serde_json::from_str(include_str!("../../tests/golden/numpy.json")).unwrap();
    golden.cases
}

fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let next = |state: &mut u64| {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*state >> 40) as f64 / f64::from(1 << 23) - 1.0
    };
    (0..count).map(|_| next(&mut state)).collect()
}

fn make(case: &Case) -> (Matrix<f32>, InputMoments) {
    let (outputs, inputs) = (case.outputs, case.inputs);
    let rank = outputs.min(inputs);
    let scale = |mut m: Matrix<f64>, power: f64| {
        for i in 0..m.rows {
            for (j, x) in m.row_mut(i).iter_mut().enumerate() {
                *x *= (j as f64 + 1.0).powf(power);
            }
        }
        m
    };
    let left = scale(Matrix::from_vec(outputs, rank, noise(outputs * rank, case.seed)), -0.8);
    let right = Matrix::from_vec(rank, inputs, noise(rank * inputs, case.seed + 1));
    let delta = product(left.view(), right.view()).to_f32();
    let samples = 4 * inputs;
    let x = scale(
        Matrix::from_vec(samples, inputs, noise(samples * inputs, case.seed + 2)),
        -0.5,
    );
    let mix = Matrix::from_vec(inputs, inputs, noise(inputs * inputs, case.seed + 3));
    let x = product(x.view(), mix.view());
    let mut c = product(x.view().transpose(), x.view());
    c.data.iter_mut().for_each(|x| *x /= samples as f64);
    (delta, InputMoments::new(c).unwrap())
}

fn error(case: &Case, method: Method) -> f64 {
    let (delta, moments) = make(case);
    let c = moments.c.to_f32();
    let energy = quadratic(&delta, &c);
    let candidates = prepare(&delta, &moments, method, case.budget_bits).unwrap();
    let choices = candidates
        .allocate(&moments, energy, case.budget_bits, &super::WidthLimits::default())
        .map(|a| a.choices)
        .unwrap_or_default();
    let approximation = candidates.quantise(&delta, &moments, &choices).unwrap();
    let mut rest = delta;
    rest.data
        .iter_mut()
        .zip(&approximation.dense.data)
        .for_each(|(d, a)| *d -= a);
    quadratic(&rest, &c) / energy
}

fn assert_as_good(what: &str, found: f64, numpy: f64) {
    assert!(found < 1.03 * numpy, "{what}: {found} against numpy's {numpy}");
    assert!(
        found > 0.8 * numpy,
        "{what}: {found} is too good against numpy's {numpy}"
    );
}

#[test]
fn prinmix_reaches_the_errors_of_numpy() {
    for case in cases() {
        assert_as_good("prinmix", error(&case, Method::Prinmix), case.prinmix);
    }
}

#[test]
fn best_is_well_below_whitened_factors_alone() {
    for case in cases() {
        let found = error(&case, Method::Best);
        assert!(found < 0.9 * case.best, "{found} against numpy's {}", case.best);
    }
}

#[test]
fn delta_come_reaches_the_errors_of_numpy() {
    for case in cases() {
        assert_as_good("delta-come", error(&case, Method::DeltaCome), case.delta_come);
    }
}

#[test]
fn low_rank_reaches_the_errors_of_numpy() {
    for case in cases() {
        assert_as_good("low-rank", error(&case, Method::LowRank), case.low_rank);
    }
}

#[test]
fn gptq_leaves_the_output_error_of_numpy() {
    for case in cases() {
        let (delta, moments) = make(&case);
        let factors = factor(&delta, &moments.c, Norm::Weights, Order::SingularValue, 16).unwrap();
        let quantised = quantise_rows(Coding::Affine, factors.v.clone(), &[3; 16], &moments.hessian);
        let mut rounding = factors.v.clone();
        rounding
            .data
            .iter_mut()
            .zip(&quantised.values.data)
            .for_each(|(v, q)| *v -= q);
        // numpy's rows have norm 1, ours the root of their length.
        let mean = quadratic(&rounding, &moments.c.to_f32()) / 16.0 / case.inputs as f64;
        assert_as_good("gptq", mean, case.gptq_3);
    }
}
