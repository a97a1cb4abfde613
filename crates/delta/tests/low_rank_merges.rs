//! Fine-tunes that are a low-rank update merged into the base's weights.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{copy_dir, options, run, tensors, tiny};
use deltamux_delta::artifact::{ArtifactWriter, Target};
use deltamux_delta::{Artifact, CompressOptions, Method, restore};
use deltamux_model::{Checkpoint, LinearId};
use half::bf16;
use rand::{Rng as _, SeedableRng as _};

const RANK: usize = 4;
/// Linears with an update of `RANK` ranks.
const LOW: [&str; 3] = [
    "model.layers.0.self_attn.q_proj.weight",
    "model.layers.1.mlp.gate_proj.weight",
    "model.layers.3.mlp.down_proj.weight",
];
/// A linear with an update of full rank.
const FULL: &str = "model.layers.2.mlp.up_proj.weight";

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| rng.random_range(-0.05f32..0.05)).collect()
}

/// `B A` for the linears of `LOW`, all that is there for `FULL`.
fn updates(with_full: bool) -> BTreeMap<String, Vec<f32>> {
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let mut updates = BTreeMap::new();
    for (seed, name) in (0..).zip(LOW) {
        let (outputs, inputs) = base.config().linear_shape(LinearId::from_weight(name).unwrap().kind);
        let (a, b) = (random(RANK * inputs, seed), random(outputs * RANK, 100 + seed));
        let element = |i: usize, j: usize| (0..RANK).map(|k| b[i * RANK + k] * a[k * inputs + j]).sum::<f32>();
        let all = (0..outputs * inputs).map(|at| element(at / inputs, at % inputs));
        updates.insert(name.to_string(), all.collect());
    }
    if with_full {
        let (outputs, inputs) = base.config().linear_shape(LinearId::from_weight(FULL).unwrap().kind);
        updates.insert(FULL.to_string(), random(outputs * inputs, 50));
    }
    updates
}

/// The tiny base with `updates` added, every tensor in f32 or in bf16.
fn merged(out: &Path, updates: &BTreeMap<String, Vec<f32>>, wide: bool) {
    copy_dir(&tiny("base"), out);
    let target = Target::new(&out.join("made"), false, "x").unwrap();
    let mut writer = ArtifactWriter::new();
    for tensor in tensors(&tiny("base").join("model.safetensors")) {
        let mut values: Vec<f32> = tensor
            .bytes
            .chunks_exact(2)
            .map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32())
            .collect();
        if let Some(update) = updates.get(&tensor.name) {
            values.iter_mut().zip(update).for_each(|(w, u)| *w += u);
        }
        let (dtype, bytes) = if wide {
            ("F32", values.iter().flat_map(|x| x.to_le_bytes()).collect())
        } else {
            let rounded = values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes());
            ("BF16", rounded.collect())
        };
        writer.raw(&tensor.name, dtype, tensor.shape, bytes);
    }
    writer.write(&target).unwrap();
    target.publish().unwrap();
    fs_err::rename(out.join("made/delta.safetensors"), out.join("model.safetensors")).unwrap();
    fs_err::remove_dir_all(out.join("made")).unwrap();
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let square = |x: f64| x * x;
    let rest: f64 = a.iter().zip(b).map(|(x, y)| square(f64::from(x - y))).sum();
    let size: f64 = b.iter().map(|&x| square(f64::from(x))).sum();
    (rest / size).sqrt()
}

#[test]
fn merged_in_f32_it_is_stored_as_its_ranks_in_f16() {
    let dir = tempfile::tempdir().unwrap();
    let (base, tuned) = (dir.path().join("base"), dir.path().join("tuned"));
    let updates = updates(false);
    merged(&base, &BTreeMap::new(), true);
    merged(&tuned, &updates, true);
    for method in [Method::Best, Method::Prinmix, Method::DeltaCome, Method::LowRank] {
        let out = dir.path().join(method.name());
        let options = CompressOptions {
            method,
            ..options("sql", 6, dir.path())
        };
        let made = run(&base, &tuned, &out, &options).unwrap();
        assert_eq!(made.manifest.linears.len(), LOW.len());
        for linear in &made.manifest.linears {
            assert_eq!(linear.ranks, RANK, "{} {}", method.name(), linear.name);
            assert_eq!(linear.bits["16"], RANK);
            assert!(linear.residual_energy.unwrap() < 1e-9, "{linear:?}");
            assert!((linear.bytes as usize) < linear.shape[0] * linear.shape[1] * 2 / 16);
        }
        Artifact::open(&out).unwrap().inspect().unwrap();
        // The difference to the precision of f16, the merged weights to that of the difference.
        let checkpoint = Checkpoint::open(&base).unwrap();
        let variant = Artifact::open(&out)
            .unwrap()
            .load(checkpoint.config(), &checkpoint.digest())
            .unwrap();
        let restored = dir.path().join(format!("{}-restored", method.name()));
        restore(&base, &out, &restored, false, &|_, _| {}).unwrap();
        let (restored, tuned) = (Checkpoint::open(&restored).unwrap(), Checkpoint::open(&tuned).unwrap());
        for (name, update) in &updates {
            let id = LinearId::from_weight(name).unwrap();
            assert!(distance(&variant.linears[&id].to_dense(), update) < 1e-3, "{name}");
            let weights = |c: &Checkpoint| c.tensor(name).unwrap().to_f32();
            assert!(distance(&weights(&restored), &weights(&tuned)) < 1e-4, "{name}");
        }
    }
}

#[test]
fn what_it_does_not_need_of_its_budget_goes_to_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let (base, tuned) = (dir.path().join("base"), dir.path().join("tuned"));
    merged(&base, &BTreeMap::new(), true);
    merged(&tuned, &updates(true), true);
    let made = run(&base, &tuned, &dir.path().join("out"), &options("sql", 6, dir.path())).unwrap();
    let totals = made.manifest.totals;
    let ratio = totals.linear_ratio.unwrap();
    assert!(ratio <= 1.0 / 16.0 && ratio > 0.95 / 16.0, "{ratio}");
    let full = made
        .manifest
        .linears
        .iter()
        .find(|l| FULL.starts_with(&l.name))
        .unwrap();
    let own = full.shape[0] * full.shape[1] * 2 / 16;
    assert!(full.bytes as usize > own * 6 / 5, "{} of {own}", full.bytes);
    assert!(!full.bits.contains_key("16"));
    assert!(full.residual_energy.unwrap() > 0.0);
}

#[test]
fn merged_in_bf16_it_is_of_full_rank_and_goes_the_usual_way() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    merged(&tuned, &updates(false), false);
    let made = run(
        &tiny("base"),
        &tuned,
        &dir.path().join("out"),
        &options("sql", 6, dir.path()),
    )
    .unwrap();
    for linear in &made.manifest.linears {
        assert!(!linear.bits.contains_key("16") && linear.ranks > RANK, "{linear:?}");
    }
}
