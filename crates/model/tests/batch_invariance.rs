//! A position's logits depend on its sequence and variant only, bit for bit.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltamux_kernels::lowrank::Band;
use deltamux_kernels::{LowRankDelta, SignDelta, Threads, lowbit, signs};
use deltamux_model::{
    Backend, Checkpoint, CpuBackend, EmbeddingDelta, LinearId, LoadOptions, LogitRows, MatrixDelta, ModelConfig,
    Precision, SequenceChunk, VariantWeights,
};
use proptest::prelude::*;

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/base")
}

fn backend(threads: usize) -> CpuBackend {
    backend_in(threads, Precision::Stored)
}

fn backend_in(threads: usize, precision: Precision) -> CpuBackend {
    let checkpoint = Checkpoint::open(&tiny()).unwrap();
    let options = LoadOptions {
        precision,
        ..LoadOptions::default()
    };
    let mut backend = CpuBackend::load_with(&checkpoint, Threads::new(threads), &options).unwrap();
    backend.allocate_kv(64);
    backend
}

/// Every precision that this processor computes in.
fn precisions() -> impl Iterator<Item = Precision> {
    let pairs = deltamux_kernels::isa::bf16_dot().then_some(Precision::Bf16Activations);
    if pairs.is_none() {
        println!("not run: activations in bf16, which this processor does not multiply in pairs");
    }
    [Precision::Stored, Precision::Q8, Precision::Q4]
        .into_iter()
        .chain(pairs)
}

/// A variant whose every part differs from the base, made without a compressor: what matters here is the arithmetic.
fn variant(config: &ModelConfig, salt: u32) -> Arc<VariantWeights> {
    let mut state = salt;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut variant = VariantWeights {
        generation: salt.to_string(),
        ..VariantWeights::default()
    };
    for id in config.linears() {
        let (outputs, inputs) = config.linear_shape(id.kind);
        let (mut v, mut u) = (Vec::new(), Vec::new());
        for (bits, ranks) in [(8, 1), (3, 3), (2, 4)] {
            let mut band = |len: usize| {
                let mut packed = Vec::new();
                for _ in 0..ranks {
                    let codes: Vec<u8> = (0..len).map(|_| next() & ((1u16 << bits) - 1) as u8).collect();
                    lowbit::pack_row(&codes, bits, &mut packed);
                }
                let groups = ranks * lowbit::groups(len);
                Band {
                    bits,
                    ranks,
                    codes: packed.into(),
                    scales: vec![0.01 / (1 << bits) as f32; groups],
                    zeros: vec![1 << bits; groups],
                }
            };
            v.push(band(inputs));
            u.push(band(outputs));
        }
        let factors = LowRankDelta {
            inputs,
            outputs,
            s: vec![20.0; 8],
            v,
            u,
        };
        variant.linears.insert(id, MatrixDelta::LowRank(factors));
    }
    variant
        .vectors
        .insert("model.norm.weight".into(), vec![1.25; config.hidden_size]);
    variant.vectors.insert(
        "model.layers.0.self_attn.q_proj.bias".into(),
        vec![0.01; config.hidden_size],
    );
    let exact = (0..config.hidden_size).map(|i| (i % 7) as f32 / 50.0).collect();
    variant.embedding = EmbeddingDelta::Rows([(5, exact)].into());
    Arc::new(variant)
}

/// Pseudo-random signs with one scale, or one for each output.
fn sign_delta(inputs: usize, outputs: usize, scales: usize, salt: u32) -> MatrixDelta {
    let mut state = salt;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 31 == 1
    };
    let negative: Vec<bool> = (0..inputs * outputs).map(|_| next()).collect();
    MatrixDelta::Signs(SignDelta {
        inputs,
        outputs,
        scales: (0..scales).map(|i| 0.002 + (i % 5) as f32 / 10_000.0).collect(),
        codes: signs::pack(inputs, outputs, |output, input| negative[output * inputs + input]).into(),
    })
}

/// A variant of signs, embedding included; with `mixed`, every third linear keeps low-rank factors.
fn of_signs(config: &ModelConfig, salt: u32, mixed: bool) -> Arc<VariantWeights> {
    let factors = variant(config, salt);
    let mut made = VariantWeights {
        generation: format!("signs {salt}"),
        vectors: factors.vectors.clone(),
        ..VariantWeights::default()
    };
    for (i, id) in config.linears().enumerate() {
        let (outputs, inputs) = config.linear_shape(id.kind);
        let delta = if mixed && i % 3 == 0 {
            factors.linears[&id].clone()
        } else {
            sign_delta(inputs, outputs, 1, salt + i as u32)
        };
        made.linears.insert(id, delta);
    }
    let rows = sign_delta(config.hidden_size, config.vocab_size, config.vocab_size, salt);
    let exact = (0..config.hidden_size).map(|i| (i % 5) as f32 / 40.0).collect();
    made.embedding = EmbeddingDelta::Added(rows, [(7, exact)].into());
    Arc::new(made)
}

/// One sequence: its tokens and its model.
struct Sequence {
    tokens: Vec<u32>,
    variant: Option<Arc<VariantWeights>>,
    pages: Vec<u32>,
}

fn sequences(config: &ModelConfig) -> Vec<Sequence> {
    let variants = [
        None,
        Some(variant(config, 1)),
        Some(of_signs(config, 2, false)),
        None,
        Some(variant(config, 1)),
        Some(of_signs(config, 3, true)),
    ];
    let lengths = [33, 20, 47, 5, 16, 30];
    let mut next_page = 0;
    let make = |(i, (variant, length)): (usize, (Option<Arc<VariantWeights>>, usize))| {
        let tokens = (0..length)
            .map(|t| ((t * 31 + i * 17 + 5) % config.vocab_size) as u32)
            .collect();
        let pages = (0..length.div_ceil(16) as u32)
            .map(|p| 63 - (next_page + p) * 3 % 64)
            .collect::<Vec<_>>();
        next_page += pages.len() as u32;
        Sequence { tokens, variant, pages }
    };
    variants.into_iter().zip(lengths).enumerate().map(make).collect()
}

/// Logits of every position of every sequence, computed together in chunks of at most `chunk` tokens.
fn together(backend: &mut CpuBackend, sequences: &[Sequence], chunk: usize) -> Vec<Vec<Vec<f32>>> {
    let mut logits = vec![Vec::new(); sequences.len()];
    let longest = sequences.iter().map(|s| s.tokens.len()).max().unwrap();
    for start in (0..longest).step_by(chunk) {
        let running: Vec<usize> = (0..sequences.len())
            .filter(|i| sequences[*i].tokens.len() > start)
            .collect();
        let batch: Vec<SequenceChunk<'_>> = running
            .iter()
            .map(|i| {
                let Sequence { tokens, variant, pages } = &sequences[*i];
                SequenceChunk {
                    tokens: &tokens[start..tokens.len().min(start + chunk)],
                    start,
                    pages,
                    variant: variant.as_ref(),
                    logits: LogitRows::All,
                }
            })
            .collect();
        let mut rows = backend.forward(&batch).unwrap().into_iter();
        for (i, chunk) in running.into_iter().zip(&batch) {
            logits[i].extend(rows.by_ref().take(chunk.tokens.len()));
        }
    }
    logits
}

#[test]
fn logits_do_not_depend_on_batch_chunks_or_threads() {
    precisions().for_each(logits_of_a_precision_are_the_same);
}

fn logits_of_a_precision_are_the_same(precision: Precision) {
    let mut one = backend_in(1, precision);
    let sequences = sequences(one.config());
    let mut alone = Vec::new();
    for sequence in &sequences {
        alone.extend(together(&mut one, std::slice::from_ref(sequence), 1000));
    }
    assert_ne!(alone[1][4], alone[4][4], "different tokens give different logits");
    for threads in [1, 2, 3] {
        let mut backend = backend_in(threads, precision);
        for chunk in [1, 3, 16, 1000] {
            assert!(
                together(&mut backend, &sequences, chunk) == alone,
                "{precision:?}, {threads} threads, chunks of {chunk}"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Steps of any composition: in each, any of the sequences advance by any number of tokens, in any order.
    #[test]
    fn logits_do_not_depend_on_how_steps_are_composed(
        steps in proptest::collection::vec(proptest::collection::vec((0usize..6, 1usize..20), 1..6), 1..20),
        threads in 1usize..4,
        precision in 0usize..4,
    ) {
        let precision = precisions().nth(precision).unwrap_or_default();
        let mut backend = backend_in(threads, precision);
        let sequences = sequences(backend.config());
        let mut logits = vec![Vec::new(); sequences.len()];
        for mut step in steps {
            // One chunk a sequence in each step.
            let mut seen = [false; 6];
            step.retain(|(i, _)| !std::mem::replace(&mut seen[*i], true));
            let parts = step.iter().map(|&(i, count)| (i, logits[i].len(), count));
            let parts: Vec<_> = parts
                .map(|(i, start, count)| (i, start, sequences[i].tokens.len().min(start + count)))
                .filter(|(_, start, end)| start < end)
                .collect();
            let batch: Vec<SequenceChunk<'_>> = parts
                .iter()
                .map(|&(i, start, end)| SequenceChunk {
                    tokens: &sequences[i].tokens[start..end],
                    start,
                    pages: &sequences[i].pages,
                    variant: sequences[i].variant.as_ref(),
                    logits: LogitRows::All,
                })
                .collect();
            let mut rows = backend.forward(&batch).unwrap().into_iter();
            for (i, start, end) in parts {
                logits[i].extend(rows.by_ref().take(end - start));
            }
        }
        let mut one = backend_in(1, precision);
        for (sequence, logits) in sequences.iter().zip(logits) {
            let alone = together(&mut one, std::slice::from_ref(sequence), 1000);
            prop_assert!(alone[0][..logits.len()] == logits, "{:?}, {} threads", precision, threads);
        }
    }
}

/// Fewer bits change the logits a little: q8 by less than q4, and neither by much.
#[test]
fn quantised_logits_stay_near_the_stored_ones() {
    let logits = |precision| {
        let mut backend = backend_in(2, precision);
        let sequences = sequences(backend.config());
        together(&mut backend, &sequences, 1000).concat().concat()
    };
    let exact = logits(Precision::Stored);
    let norm = exact.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let error = |precision| {
        let found = logits(precision);
        let squares = found.iter().zip(&exact).map(|(a, b)| f64::from(a - b).powi(2));
        (squares.sum::<f64>() / norm).sqrt()
    };
    let (q8, q4) = (error(Precision::Q8), error(Precision::Q4));
    assert!(q8 > 0.0 && q8 < 0.02, "q8: {q8}");
    assert!(q4 > q8 && q4 < 0.3, "q4: {q4}");
}

#[test]
fn variants_differ_from_the_base_and_from_each_other() {
    let mut backend = backend(2);
    let variants = [
        None,
        Some(variant(backend.config(), 1)),
        Some(variant(backend.config(), 2)),
    ];
    let tokens = vec![5, 6, 7, 8];
    let sequences: Vec<Sequence> = variants
        .into_iter()
        .enumerate()
        .map(|(i, variant)| Sequence {
            tokens: tokens.clone(),
            variant,
            pages: vec![i as u32],
        })
        .collect();
    let logits = together(&mut backend, &sequences, 1000);
    assert_ne!(logits[0], logits[1]);
    assert_ne!(logits[0], logits[2]);
    assert_ne!(logits[1], logits[2]);
}

/// The same difference as part of the weights of a checkpoint of its own, in f32.
#[test]
fn signs_answer_as_the_full_weights_do() {
    let base = Checkpoint::open(&tiny()).unwrap();
    let config = base.config().clone();
    let variant = of_signs(&config, 5, true);
    let dir = tempfile::tempdir().unwrap();
    fs_err::copy(tiny().join("config.json"), dir.path().join("config.json")).unwrap();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape) in config.tensors() {
        let mut values = base.tensor(&name).unwrap().to_f32();
        let linear = LinearId::from_weight(&name).and_then(|id| variant.linears.get(&id));
        if let Some(delta) = linear {
            values.iter_mut().zip(delta.to_dense()).for_each(|(w, d)| *w += d);
        }
        if let Some(vector) = variant.vectors.get(&name) {
            values.clone_from(vector);
        }
        if let EmbeddingDelta::Added(delta, rows) = &variant.embedding
            && name == "model.embed_tokens.weight"
        {
            values.iter_mut().zip(delta.to_dense()).for_each(|(w, d)| *w += d);
            for (row, exact) in rows {
                values[*row as usize * config.hidden_size..][..config.hidden_size].copy_from_slice(exact);
            }
        }
        let start = data.len();
        data.extend(values.iter().flat_map(|v| v.to_le_bytes()));
        let entry = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
        header.insert(name, entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
    fs_err::write(dir.path().join("model.safetensors"), file).unwrap();
    let full = Checkpoint::open(dir.path()).unwrap();
    let mut full = CpuBackend::load(&full, Threads::new(2)).unwrap();
    full.allocate_kv(64);

    let sequence = |variant| Sequence {
        tokens: (0..40).map(|t| t * 29 % config.vocab_size as u32).collect(),
        variant,
        pages: vec![0, 1, 2],
    };
    let found = together(&mut backend(2), &[sequence(Some(variant.clone()))], 16).concat();
    let exact = together(&mut full, &[sequence(None)], 16).concat();
    let plain = together(&mut backend(2), &[sequence(None)], 16).concat();
    let distance = |a: &[Vec<f32>], b: &[Vec<f32>]| {
        let pairs = a.iter().flatten().zip(b.iter().flatten());
        pairs.map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    };
    // What the factors of every third linear lose by their integers is far more than the signs' rounding.
    let (error, change) = (distance(&found, &exact), distance(&plain, &exact));
    assert!(change > 0.0 && error < 2e-2 * change, "{error} of a change of {change}");
}

#[test]
fn a_batch_that_breaks_the_contract_is_refused() {
    let mut backend = backend(1);
    let vocabulary = backend.config().vocab_size as u32;
    let mut refused = |tokens: &[u32], start, pages: &[u32]| {
        let chunk = SequenceChunk {
            tokens,
            start,
            pages,
            variant: None,
            logits: LogitRows::Last,
        };
        backend.forward(&[chunk]).unwrap_err().to_string()
    };
    assert!(refused(&[], 0, &[0]).contains("no tokens"));
    assert!(refused(&[vocabulary], 0, &[0]).contains("beyond the vocabulary"));
    assert!(refused(&[1; 17], 0, &[0]).contains("do not cover 17 positions"));
    assert!(refused(&[1], 0, &[64]).contains("beyond the 64 allocated"));
    assert!(refused(&[1], 512, &[0; 40]).contains("beyond the context of 512"));
}
