//! The pipeline end to end on the bundled tiny family.

mod common;

use std::path::Path;

use common::{artifact, options, run, tensors, tiny};
use deltamux_delta::artifact::{EmbeddingInfo, Storage};
use deltamux_delta::{Artifact, Budget, CompressOptions, EmbeddingPolicy, Method, WidthLimits, restore};
use deltamux_model::{Checkpoint, EmbeddingDelta, LinearId, MatrixDelta};

#[test]
fn every_method_keeps_the_budget_and_reports_what_the_file_holds() {
    let dir = tempfile::tempdir().unwrap();
    for (method, budget) in [
        (Method::Prinmix, Budget::Model),
        (Method::Prinmix, Budget::Matrix),
        (Method::Best, Budget::Model),
        (Method::DeltaCome, Budget::Model),
        (Method::LowRank, Budget::Model),
    ] {
        for ratio in [1.0 / 8.0, 1.0 / 16.0, 1.0 / 32.0] {
            let out = dir.path().join(format!("{}-{}-{ratio}", method.name(), budget.name()));
            let options = CompressOptions {
                method,
                budget,
                ratio: Some(ratio),
                ..options("sql", 12, dir.path())
            };
            let made = run(&tiny("base"), &tiny("sql"), &out, &options).unwrap();
            let found = Artifact::open(&out).unwrap().inspect().unwrap();
            assert_eq!(found.totals.linear_bytes, made.manifest.totals.linear_bytes);
            assert_eq!(found.total_bytes, made.total_bytes);
            let files: u64 = fs_err::read_dir(&out)
                .unwrap()
                .map(|e| e.unwrap().metadata().unwrap().len())
                .sum();
            assert_eq!(found.total_bytes, files);
            let achieved = found.totals.linear_ratio.unwrap();
            assert!(achieved <= ratio, "{} {achieved} {ratio}", out.display());
            if budget == Budget::Matrix {
                for l in &made.manifest.linears {
                    assert!(
                        l.bytes as f64 <= ratio * 2.0 * (l.shape[0] * l.shape[1]) as f64,
                        "{}",
                        l.name
                    );
                }
            }
            assert!(achieved > 0.75 * ratio, "{} leaves too much: {achieved}", out.display());
        }
    }
}

/// Signs take a sixteenth and some bytes: reported as what was asked for, and the least that may be asked for.
#[test]
fn bitdelta_takes_one_bit_a_weight_and_names_the_least_ratio() {
    let dir = tempfile::tempdir().unwrap();
    let options = |ratio| CompressOptions {
        method: Method::Bitdelta,
        ratio,
        ..options("sql", 12, dir.path())
    };
    let out = dir.path().join("signs");
    let made = run(&tiny("base"), &tiny("sql"), &out, &options(None)).unwrap();
    let found = Artifact::open(&out).unwrap().inspect().unwrap();
    assert_eq!(found.totals.linear_bytes, made.manifest.totals.linear_bytes);
    assert_eq!(found.total_bytes, made.total_bytes);
    let achieved = found.totals.linear_ratio.unwrap();
    assert!((1.0 / 16.0..1.02 / 16.0).contains(&achieved), "{achieved}");
    assert_eq!(made.manifest.ratio, achieved);
    assert!(
        made.manifest
            .linears
            .iter()
            .all(|l| l.storage == Storage::Signs && l.ranks == 0)
    );
    assert_eq!(made.manifest.allocation_gap, None);
    // What is resident is the file and next to nothing.
    let file = fs_err::metadata(out.join("delta.safetensors")).unwrap().len();
    assert_eq!(Artifact::open(&out).unwrap().resident_bytes(), file);

    let error = refused(
        &tiny("base"),
        &tiny("sql"),
        &dir.path().join("x/less"),
        &options(Some(1.0 / 16.0)),
    );
    let least: f64 = error
        .split("at least ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!(least >= achieved && least < 1.005 * achieved, "{least} {achieved}");
    let out = dir.path().join("enough");
    let made = run(&tiny("base"), &tiny("sql"), &out, &options(Some(least))).unwrap();
    assert_eq!(
        (made.manifest.ratio, made.manifest.totals.linear_ratio),
        (least, Some(achieved))
    );
}

/// An embedding becomes signs with a scale for each row; restored, the whole is base plus difference.
#[test]
fn bitdelta_keeps_an_embedding_as_signs_of_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("json");
    let options = CompressOptions {
        method: Method::Bitdelta,
        embeddings: EmbeddingPolicy::Factored,
        ..options("json", 8, dir.path())
    };
    let made = run(&tiny("base"), &tiny("json"), &out, &options).unwrap();
    assert!(
        matches!(made.manifest.embedding, EmbeddingInfo::Signs { rows: 0, rel_error: Some(e), .. } if e < 0.9),
        "{:?}",
        made.manifest.embedding
    );
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let artifact = Artifact::open(&out).unwrap();
    let variant = artifact.load(base.config(), &base.digest()).unwrap();
    let EmbeddingDelta::Added(delta @ MatrixDelta::Signs(signs), _) = &variant.embedding else {
        panic!("signs")
    };
    assert_eq!(signs.scales.len(), base.config().vocab_size);
    let file = fs_err::metadata(out.join("delta.safetensors")).unwrap().len();
    assert_eq!(artifact.resident_bytes(), file + 4 * base.config().vocab_size as u64);

    let full = dir.path().join("full");
    restore(&tiny("base"), &out, &full, false, &|_, _| {}).unwrap();
    let full = Checkpoint::open(&full).unwrap();
    let linears = variant.linears.iter().map(|(id, delta)| (id.weight(), delta));
    for (name, delta) in linears.chain([("model.embed_tokens.weight".to_string(), delta)]) {
        let (w, r) = (
            base.tensor(&name).unwrap().to_f32(),
            full.tensor(&name).unwrap().to_f32(),
        );
        for ((w, d), r) in w.iter().zip(delta.to_dense()).zip(r) {
            assert_eq!(half::bf16::from_f32(w + d).to_f32(), r, "{name}");
        }
    }
}

#[test]
fn prinmix_keeps_to_the_widths_that_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let made = |name: &str, widths: WidthLimits, budget: Budget| {
        let options = CompressOptions {
            method: Method::Prinmix,
            budget,
            widths,
            ..options("sql", 12, dir.path())
        };
        let out = dir.path().join(format!("{name}-{}", budget.name()));
        run(&tiny("base"), &tiny("sql"), &out, &options).unwrap().manifest
    };
    for budget in [Budget::Model, Budget::Matrix] {
        let free = made("free", WidthLimits::default(), budget);
        let two = made("two", WidthLimits::new(None, Some(2)).unwrap(), budget);
        let only = made("only", WidthLimits::new(Some(&[3, 8]), None).unwrap(), budget);
        let used = |linear: &deltamux_delta::artifact::LinearInfo| {
            let widths = linear.widths().unwrap().v;
            widths
                .into_iter()
                .map(|(bits, _)| bits)
                .collect::<std::collections::BTreeSet<u8>>()
        };
        assert!(two.linears.iter().all(|l| used(l).len() <= 2));
        assert!(only.linears.iter().all(|l| used(l).is_subset(&[3, 8].into())));
        assert!(free.linears.iter().any(|l| used(l).len() > 2));
        for limited in [two, only] {
            assert!(limited.rel_output_error.calibration > free.rel_output_error.calibration);
            assert!(limited.totals.linear_ratio.unwrap() <= 1.0 / 16.0);
        }
    }
    let best = CompressOptions {
        widths: WidthLimits::new(None, Some(2)).unwrap(),
        ..options("sql", 12, dir.path())
    };
    let error = run(&tiny("base"), &tiny("sql"), &dir.path().join("x"), &best)
        .unwrap_err()
        .to_string();
    assert!(error.contains("--method prinmix"), "{error}");
}

#[test]
fn prinmix_beats_delta_come_beats_low_rank() {
    let dir = tempfile::tempdir().unwrap();
    let error = |method: Method| {
        let options = CompressOptions {
            method,
            ..options("route", 60, dir.path())
        };
        let made = run(&tiny("base"), &tiny("route"), &dir.path().join(method.name()), &options).unwrap();
        made.manifest.rel_output_error.heldout.unwrap()
    };
    let (prinmix, delta_come, low_rank) = (error(Method::Prinmix), error(Method::DeltaCome), error(Method::LowRank));
    assert!(prinmix < 0.8 * delta_come, "{prinmix} {delta_come}");
    assert!(delta_come < 0.8 * low_rank, "{delta_come} {low_rank}");
}

#[test]
fn the_same_inputs_give_the_same_bytes_for_any_number_of_threads() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = |threads: usize| {
        let out = dir.path().join(threads.to_string());
        let options = CompressOptions {
            threads,
            name: Some("route".to_string()),
            ..options("route", 12, dir.path())
        };
        run(&tiny("base"), &tiny("route"), &out, &options).unwrap();
        ["delta.safetensors", "manifest.json"].map(|f| fs_err::read(out.join(f)).unwrap())
    };
    let one = bytes(1);
    assert!(one == bytes(2));
    assert!(one == bytes(5));
}

#[test]
fn a_loaded_variant_approximates_the_fine_tune() {
    let dir = tempfile::tempdir().unwrap();
    let out = artifact("date", dir.path());
    let (base, tuned) = (
        Checkpoint::open(&tiny("base")).unwrap(),
        Checkpoint::open(&tiny("date")).unwrap(),
    );
    let artifact = Artifact::open(&out).unwrap();
    assert_eq!(artifact.name(), "date");
    let variant = artifact.load(base.config(), &base.digest()).unwrap();
    assert_eq!(variant.generation, artifact.generation());
    let id = LinearId::from_weight("model.layers.1.mlp.gate_proj.weight").unwrap();
    let (w, t) = (
        base.tensor(&id.weight()).unwrap().to_f32(),
        tuned.tensor(&id.weight()).unwrap().to_f32(),
    );
    let dense = variant.linears[&id].to_dense();
    let square = |f: &dyn Fn(usize) -> f32| (0..w.len()).map(|i| f64::from(f(i)).powi(2)).sum::<f64>();
    let rest = square(&|i| t[i] - w[i] - dense[i]);
    assert!(rest < 0.5 * square(&|i| t[i] - w[i]));
    // Norms and biases are exact.
    let norm = "model.layers.0.input_layernorm.weight";
    assert_eq!(variant.vectors[norm], tuned.tensor(norm).unwrap().to_f32());
    assert!(matches!(variant.embedding, EmbeddingDelta::Unchanged));
}

#[test]
fn the_generation_follows_the_content_not_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let make = |out: &str, lines: usize| {
        let out = dir.path().join(out);
        run(
            &tiny("base"),
            &tiny("route"),
            &out,
            &options("route", lines, dir.path()),
        )
        .unwrap();
        Artifact::open(&out).unwrap().generation().to_string()
    };
    assert_eq!(make("a", 8), make("b", 8));
    assert_ne!(make("c", 8), make("d", 16));
}

#[test]
fn a_trained_embedding_is_stored_by_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let make = |policy: EmbeddingPolicy| {
        let out = dir.path().join(policy.name());
        let options = CompressOptions {
            embeddings: policy,
            ..options("json", 8, dir.path())
        };
        let made = run(&tiny("base"), &tiny("json"), &out, &options).unwrap();
        let base = Checkpoint::open(&tiny("base")).unwrap();
        let variant = Artifact::open(&out)
            .unwrap()
            .load(base.config(), &base.digest())
            .unwrap();
        (made.manifest.embedding, variant.embedding)
    };
    let (info, loaded) = make(EmbeddingPolicy::Factored);
    assert!(
        matches!(info, EmbeddingInfo::Factored { rel_error: Some(e), .. } if e < 0.5),
        "{info:?}"
    );
    assert!(matches!(loaded, EmbeddingDelta::Added(MatrixDelta::LowRank(_), _)));
    let (info, loaded) = make(EmbeddingPolicy::Base);
    assert_eq!(info, EmbeddingInfo::Base);
    assert!(matches!(loaded, EmbeddingDelta::Unchanged));
    let (info, loaded) = make(EmbeddingPolicy::Exact);
    assert!(matches!(
        (info, loaded),
        (EmbeddingInfo::Full { .. }, EmbeddingDelta::Full(_)) | (EmbeddingInfo::Rows { .. }, EmbeddingDelta::Rows(_))
    ));
}

#[test]
fn restore_writes_the_base_plus_the_difference() {
    let dir = tempfile::tempdir().unwrap();
    for task in ["sql", "json"] {
        let from = artifact(task, dir.path());
        let out = dir.path().join(format!("{task}-restored"));
        let restored = restore(&tiny("base"), &from, &out, false, &|_, _| {}).unwrap();
        assert_eq!(restored.name, task);
        let base = Checkpoint::open(&tiny("base")).unwrap();
        let full = Checkpoint::open(&out).unwrap();
        full.check_finite().unwrap();
        let variant = Artifact::open(&from)
            .unwrap()
            .load(base.config(), &base.digest())
            .unwrap();
        for (id, delta) in &variant.linears {
            let (w, r) = (
                base.tensor(&id.weight()).unwrap().to_f32(),
                full.tensor(&id.weight()).unwrap().to_f32(),
            );
            for ((w, d), r) in w.iter().zip(delta.to_dense()).zip(r) {
                assert_eq!(half::bf16::from_f32(w + d).to_f32(), r);
            }
        }
        for (name, values) in &variant.vectors {
            assert_eq!(&full.tensor(name).unwrap().to_f32(), values);
        }
        for name in [
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "config.json",
        ] {
            assert!(out.join(name).is_file(), "{name}");
        }
    }
}

/// Writes a checkpoint like `from` with its tensors and configuration changed.
fn checkpoint(from: &Path, to: &Path, change: impl FnOnce(&mut Vec<common::Tensor>, &mut serde_json::Value)) {
    common::copy_dir(from, to);
    let mut all = tensors(&to.join("model.safetensors"));
    let path = to.join("config.json");
    let mut config = serde_json::from_slice(&fs_err::read(&path).unwrap()).unwrap();
    change(&mut all, &mut config);
    fs_err::write(&path, serde_json::to_vec(&config).unwrap()).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for t in all {
        let start = data.len();
        data.extend(t.bytes);
        let entry = serde_json::json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]});
        header.insert(t.name, entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs_err::write(to.join("model.safetensors"), file).unwrap();
}

#[test]
fn added_tokens_are_stored_exactly_and_restored() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    let hidden = 256;
    checkpoint(&tiny("route"), &tuned, |tensors, config| {
        let embedding = tensors
            .iter_mut()
            .find(|t| t.name == "model.embed_tokens.weight")
            .unwrap();
        for row in 0..3 {
            let value = half::bf16::from_f32(0.25 * (row as f32 + 1.0)).to_le_bytes();
            embedding.bytes.extend(value.repeat(hidden));
        }
        embedding.shape[0] += 3;
        config["vocab_size"] = (1454 + 3).into();
    });
    let out = dir.path().join("artifact");
    let made = run(&tiny("base"), &tuned, &out, &options("route", 8, dir.path())).unwrap();
    assert_eq!(made.manifest.vocab_size, Some(1457));
    assert!(matches!(made.manifest.embedding, EmbeddingInfo::Rows { rows: 3, .. }));
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let variant = Artifact::open(&out)
        .unwrap()
        .load(base.config(), &base.digest())
        .unwrap();
    let EmbeddingDelta::Rows(rows) = &variant.embedding else {
        panic!("rows")
    };
    assert_eq!(rows.keys().copied().collect::<Vec<_>>(), [1454, 1455, 1456]);
    assert_eq!(rows[&1455], vec![0.5; hidden]);

    let full = dir.path().join("full");
    restore(&tiny("base"), &out, &full, false, &|_, _| {}).unwrap();
    let full = Checkpoint::open(&full).unwrap();
    assert_eq!(full.config().vocab_size, 1457);
    assert_eq!(
        full.tensor("model.embed_tokens.weight").unwrap().row_f32(1456),
        vec![0.75; hidden]
    );
}

#[test]
fn layers_that_stayed_frozen_store_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    let base = tensors(&tiny("base").join("model.safetensors"));
    checkpoint(&tiny("sql"), &tuned, |tensors, _| {
        for t in tensors.iter_mut().filter(|t| !t.name.contains("layers.3.mlp")) {
            t.bytes = base.iter().find(|b| b.name == t.name).unwrap().bytes.clone();
        }
    });
    let made = run(
        &tiny("base"),
        &tuned,
        &dir.path().join("out"),
        &options("sql", 8, dir.path()),
    )
    .unwrap();
    let names: Vec<&str> = made.manifest.linears.iter().map(|l| l.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "model.layers.3.mlp.gate_proj",
            "model.layers.3.mlp.up_proj",
            "model.layers.3.mlp.down_proj"
        ]
    );
    assert_eq!(made.manifest.unchanged_linears, 25);
    assert_eq!(made.manifest.totals.linear_bf16_bytes, 3 * 2 * 256 * 512);
}

#[test]
fn a_fine_tune_equal_to_the_base_is_an_empty_artifact() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("same");
    let made = run(&tiny("base"), &tiny("base"), &out, &CompressOptions::new()).unwrap();
    assert_eq!(made.manifest.totals.linear_bytes, 0);
    assert_eq!(made.manifest.totals.linear_ratio, None);
    assert_eq!(made.manifest.rel_output_error.heldout, None);
    let base = Checkpoint::open(&tiny("base")).unwrap();
    let variant = Artifact::open(&out)
        .unwrap()
        .load(base.config(), &base.digest())
        .unwrap();
    assert!(variant.linears.is_empty() && variant.vectors.is_empty());
}

#[test]
fn the_bundled_calibration_set_serves_when_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let made = run(
        &tiny("base"),
        &tiny("route"),
        &dir.path().join("x"),
        &CompressOptions::new(),
    )
    .unwrap();
    assert_eq!(made.manifest.calibration.source, "general");
    assert!(made.manifest.calibration.texts >= 50);
    assert!(made.manifest.rel_output_error.heldout.unwrap() < 0.3);
}

/// Nothing may be left of a run that failed.
fn refused(base: &Path, tuned: &Path, out: &Path, options: &CompressOptions) -> String {
    let error = run(base, tuned, out, options).unwrap_err().to_string();
    assert!(!error.contains('\n'), "{error}");
    let parent = out.parent().unwrap();
    if parent.is_dir() {
        let left: Vec<_> = fs_err::read_dir(parent)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|n| n.contains(".partial-"))
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
    error
}

#[test]
fn unrelated_weights_are_refused_with_the_measured_ratio() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    checkpoint(&tiny("sql"), &tuned, |tensors, _| {
        for t in tensors.iter_mut().filter(|t| t.name.contains("_proj.weight")) {
            t.bytes.chunks_exact_mut(2).for_each(|b| b[1] ^= 0x80); // every sign turned: ΔW = −2 W
        }
    });
    let options = options("sql", 8, dir.path());
    let error = refused(&tiny("base"), &tuned, &dir.path().join("out/x"), &options);
    assert!(error.contains("‖ΔW‖/‖W‖") && error.contains("--force"), "{error}");
    let ratio: f64 = error
        .split(" by ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1.8..2.4).contains(&ratio), "{error}");
    let forced = CompressOptions { force: true, ..options };
    run(&tiny("base"), &tuned, &dir.path().join("out/x"), &forced).unwrap();
}

#[test]
fn nan_weights_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    checkpoint(&tiny("sql"), &tuned, |tensors, _| {
        let t = tensors
            .iter_mut()
            .find(|t| t.name == "model.layers.1.self_attn.o_proj.weight")
            .unwrap();
        t.bytes[10..12].copy_from_slice(&[0xc0, 0x7f]);
    });
    let error = refused(
        &tiny("base"),
        &tuned,
        &dir.path().join("out/x"),
        &CompressOptions::new(),
    );
    assert!(
        error.contains("model.layers.1.self_attn.o_proj.weight") && error.contains('5'),
        "{error}"
    );
}

#[test]
fn configurations_with_other_arithmetic_are_refused_by_field() {
    let dir = tempfile::tempdir().unwrap();
    let tuned = dir.path().join("tuned");
    checkpoint(&tiny("sql"), &tuned, |_, config| config["rope_theta"] = 50000.0.into());
    let error = refused(
        &tiny("base"),
        &tuned,
        &dir.path().join("out/x"),
        &CompressOptions::new(),
    );
    assert!(error.contains("rope_theta is 50000, but 10000"), "{error}");
}

#[test]
fn empty_or_broken_calibration_is_refused_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let try_file = |text: &str| {
        let path = dir.path().join("c.jsonl");
        fs_err::write(&path, text).unwrap();
        let options = CompressOptions {
            calibration: deltamux_delta::CalibrationSource::File(path),
            ..CompressOptions::new()
        };
        refused(&tiny("base"), &tiny("sql"), &dir.path().join("out/x"), &options)
    };
    assert!(try_file("").contains("has no texts"));
    assert!(try_file("\n  \n").contains("has no texts"));
    assert!(try_file("{\"text\":\"a\"}\n{\"texts\":\"b\"}\n").contains("line 2"));
    let missing = CompressOptions {
        calibration: deltamux_delta::CalibrationSource::File(dir.path().join("none.jsonl")),
        ..CompressOptions::new()
    };
    assert!(refused(&tiny("base"), &tiny("sql"), &dir.path().join("out/x"), &missing).contains("none.jsonl"));
}

#[test]
fn an_existing_directory_is_replaced_only_with_force_and_only_if_it_is_an_artifact() {
    let dir = tempfile::tempdir().unwrap();
    let out = artifact("route", dir.path());
    let options = options("sql", 8, dir.path());
    assert!(refused(&tiny("base"), &tiny("sql"), &out, &options).contains("--force"));
    let before = Artifact::open(&out).unwrap().generation().to_string();
    let forced = CompressOptions { force: true, ..options };
    run(&tiny("base"), &tiny("sql"), &out, &forced).unwrap();
    assert_ne!(Artifact::open(&out).unwrap().generation(), before);

    let mine = dir.path().join("mine");
    fs_err::create_dir_all(&mine).unwrap();
    fs_err::write(mine.join("thesis.txt"), "years of work").unwrap();
    assert!(refused(&tiny("base"), &tiny("sql"), &mine, &forced).contains("not ours to replace"));
    assert!(mine.join("thesis.txt").is_file());
    let entries = fs_err::read_dir(dir.path()).unwrap().count();
    assert_eq!(
        entries, 4,
        "two calibration files, the artifact and the foreign directory"
    );
}

#[test]
fn an_unwritable_target_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs_err::write(&file, "").unwrap();
    let error = refused(&tiny("base"), &tiny("sql"), &file.join("x"), &CompressOptions::new());
    assert!(error.contains("file"), "{error}");
    assert!(refused(&tiny("base"), &tiny("sql"), &file, &CompressOptions::new()).contains("not a directory"));
}

#[test]
fn ratios_and_names_out_of_range_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for ratio in [0.0, -0.5, 1.5, f64::NAN] {
        let options = CompressOptions {
            ratio: Some(ratio),
            ..CompressOptions::new()
        };
        assert!(refused(&tiny("base"), &tiny("sql"), &dir.path().join("x"), &options).contains("ratio"));
    }
    let options = CompressOptions {
        name: Some("a/b".to_string()),
        ..CompressOptions::new()
    };
    assert!(refused(&tiny("base"), &tiny("sql"), &dir.path().join("x"), &options).contains("a/b"));
    let unknown = Method::from_name("bit-delta").unwrap_err().to_string();
    assert!(
        unknown.contains("bit-delta") && unknown.contains("bitdelta"),
        "{unknown}"
    );
}
