//! The forward pass agrees with transformers: logits within 0.05, the five most likely tokens, greedy continuations.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{models, safetensors_bytes, smollm2, testbed, tiny};
use deltamux_kernels::Threads;
use deltamux_model::backend::PAGE_TOKENS;
use deltamux_model::{Backend, Checkpoint, CpuBackend, DType, LogitRows, SequenceChunk};
use half::f16;
use serde_json::Value;

/// Largest difference of a logit; a continuation whose smallest margin is below it may legitimately differ.
const TOLERANCE: f32 = 0.05;

/// A loaded model with one sequence.
struct Runner {
    backend: CpuBackend,
    pages: Vec<u32>,
}

impl Runner {
    fn new(dir: &Path) -> Self {
        let checkpoint = Checkpoint::open(dir).expect("a checkpoint");
        let mut backend = CpuBackend::load(&checkpoint, Threads::new(0)).expect("a model");
        let pages = 512 / PAGE_TOKENS;
        backend.allocate_kv(pages);
        Self {
            backend,
            pages: (0..pages as u32).collect(),
        }
    }

    fn step(&mut self, tokens: &[u32], start: usize, logits: LogitRows) -> Vec<Vec<f32>> {
        let chunk = SequenceChunk {
            tokens,
            start,
            pages: &self.pages,
            variant: None,
            logits,
        };
        self.backend.forward(&[chunk]).expect("a valid batch")
    }

    /// Logits at every position of a prompt.
    fn prompt(&mut self, ids: &[u32]) -> Vec<Vec<f32>> {
        self.step(ids, 0, LogitRows::All)
    }

    /// The `count` most likely tokens one after another, after a prompt whose last logits are `logits`.
    fn greedy(&mut self, prompt: usize, logits: &[f32], count: usize) -> Vec<u32> {
        let mut ids = vec![top(logits, 1)[0]];
        while ids.len() < count {
            let logits = self.step(&[ids[ids.len() - 1]], prompt + ids.len() - 1, LogitRows::Last);
            ids.push(top(&logits[0], 1)[0]);
        }
        ids
    }
}

/// Ids of the `count` largest logits, largest first.
fn top(logits: &[f32], count: usize) -> Vec<u32> {
    let mut ids: Vec<_> = (0..logits.len() as u32).collect();
    ids.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
    ids.truncate(count);
    ids
}

fn log_probability(logits: &[f32], id: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    f64::from(logits[id as usize] - max) - sum.ln()
}

fn cases(golden: &Path) -> Vec<Value> {
    let golden: Value = serde_json::from_slice(&fs_err::read(golden).expect("a golden")).expect("JSON");
    golden["cases"].as_array().expect("cases").clone()
}

fn list<T: serde::de::DeserializeOwned>(case: &Value, field: &str) -> Vec<T> {
    serde_json::from_value(case[field].clone()).expect("a list")
}

fn check(dir: &Path, golden: &Path) {
    let mut runner = Runner::new(dir);
    for (index, case) in cases(golden).iter().enumerate() {
        let name = format!("{} case {index}", golden.display());
        let ids: Vec<u32> = list(case, "input_ids");
        let rows = runner.prompt(&ids);
        let logits = &rows[ids.len() - 1];
        let top_ids: Vec<u32> = list(case, "top5_ids");
        let expected: Vec<f32> = list(case, "top5_logits");
        assert_eq!(top(logits, 5), top_ids, "{name}");
        for (id, expected) in top_ids.iter().zip(&expected) {
            let found = logits[*id as usize];
            assert!(
                (found - expected).abs() <= TOLERANCE,
                "{name}: token {id}: {found}, expected {expected}"
            );
        }
        for (id, expected) in top_ids.iter().zip(list::<f64>(case, "top5_logprobs")) {
            let found = log_probability(logits, *id);
            assert!(
                (found - expected).abs() <= f64::from(TOLERANCE),
                "{name}: token {id}: {found}, expected {expected}"
            );
        }
        let sum: f64 = ids[1..]
            .iter()
            .zip(&rows)
            .map(|(id, row)| log_probability(row, *id))
            .sum();
        let expected = case["prompt_logprob_sum"].as_f64().expect("a number");
        // Independent errors of the positions add up as the root of their number.
        let allowed = f64::from(TOLERANCE) * (ids.len() as f64).sqrt();
        assert!(
            (sum - expected).abs() <= allowed,
            "{name}: log-probability of the prompt {sum}, expected {expected}"
        );
        check_continuation(&mut runner, case, &ids, logits, &name);
    }
}

fn check_continuation(runner: &mut Runner, case: &Value, ids: &[u32], logits: &[f32], name: &str) {
    let expected: Vec<u32> = list(case, "greedy_ids");
    let found = runner.greedy(ids.len(), logits, expected.len());
    let margin = case["greedy_min_margin"].as_f64().expect("a number");
    if margin >= f64::from(TOLERANCE) {
        assert_eq!(found, expected, "{name}");
    } else {
        assert_eq!(found[0], expected[0], "{name}");
    }
}

#[test]
fn the_tiny_family_agrees_with_transformers() {
    for name in ["base", "route", "date", "json", "sql"] {
        check(&tiny(name), &models().join(format!("golden/tiny-{name}.json")));
    }
}

#[test]
fn smollm2_agrees_with_transformers() {
    let Some(dir) = smollm2() else { return };
    check(&dir, &models().join("golden/base.json"));
}

#[test]
fn the_fine_tunes_of_smollm2_agree_with_transformers() {
    let Some(dir) = testbed() else { return };
    for name in ["route", "sql", "multi"] {
        check(
            &dir.join("variants").join(name),
            &dir.join(format!("golden/{name}.json")),
        );
    }
}

/// The random models of `models/golden/make/architectures.py`.
const ARCHITECTURES: [&str; 4] = ["llama-3-scaling", "mistral-head-dim", "qwen2-untied", "qwen3-qk-norm"];

#[test]
fn every_architecture_agrees_with_transformers() {
    for name in ARCHITECTURES {
        let dir = models().join("golden/architectures").join(name);
        let mut runner = Runner::new(&dir);
        for (index, case) in cases(&dir.join("golden.json")).iter().enumerate() {
            let ids: Vec<u32> = list(case, "input_ids");
            let rows = runner.prompt(&ids);
            let logits = &rows[ids.len() - 1];
            let worst = largest_difference(logits, &list::<f32>(case, "logits"));
            assert!(worst <= TOLERANCE, "{name} case {index}: a logit is off by {worst}");
            check_continuation(&mut runner, case, &ids, logits, &format!("{name} case {index}"));
        }
    }
}

/// The goldens can tell: without the scaling of its rotary frequencies the model computes something else.
#[test]
fn the_rotary_scaling_shows_in_the_logits() {
    let source = models().join("golden/architectures/llama-3-scaling");
    let dir = tempfile::tempdir().expect("a directory");
    let config = fs_err::read(source.join("config.json")).expect("the configuration");
    let mut config: Value = serde_json::from_slice(&config).expect("JSON");
    config["rope_parameters"] = serde_json::json!({"rope_type": "default", "rope_theta": 10000.0});
    fs_err::write(dir.path().join("config.json"), config.to_string()).expect("written");
    fs_err::copy(source.join("model.safetensors"), dir.path().join("model.safetensors")).expect("copied");
    let case = cases(&source.join("golden.json")).pop().expect("a case");
    let ids: Vec<u32> = list(&case, "input_ids");
    let rows = Runner::new(dir.path()).prompt(&ids);
    assert!(largest_difference(&rows[ids.len() - 1], &list::<f32>(&case, "logits")) > 0.5);
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Copies of the tiny base that hold the same model in other forms.
mod copies {
    use super::*;

    type Tensors = BTreeMap<String, (&'static str, Vec<usize>, Vec<u8>)>;

    /// The tensors of the tiny base, in their stored type or converted.
    fn tensors(dtype: DType) -> Tensors {
        let base = Checkpoint::open(&tiny("base")).expect("a checkpoint");
        let convert = |name: &str| {
            let view = base.tensor(name).expect("a tensor");
            let bytes = match dtype {
                DType::Bf16 => view.bytes.to_vec(),
                DType::F16 => view
                    .to_f32()
                    .iter()
                    .flat_map(|v| f16::from_f32(*v).to_le_bytes())
                    .collect(),
                DType::F32 => view.to_f32().iter().flat_map(|v| v.to_le_bytes()).collect(),
            };
            (name.to_owned(), (dtype.name(), view.shape.to_vec(), bytes))
        };
        base.names().into_iter().map(convert).collect()
    }

    /// A directory with the tiny base's configuration, changed.
    fn directory(change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        let config = fs_err::read(tiny("base").join("config.json")).expect("the configuration");
        let mut config: Value = serde_json::from_slice(&config).expect("JSON");
        change(&mut config);
        fs_err::write(dir.path().join("config.json"), config.to_string()).expect("written");
        dir
    }

    fn write(dir: &Path, file: &str, tensors: &Tensors) {
        fs_err::write(dir.join(file), safetensors_bytes(tensors)).expect("written");
    }

    /// Last logits of each golden prompt.
    fn logits(dir: &Path) -> Vec<Vec<f32>> {
        let mut runner = Runner::new(dir);
        let golden = models().join("golden/tiny-base.json");
        let prompts = cases(&golden);
        prompts
            .iter()
            .map(|case| runner.prompt(&list::<u32>(case, "input_ids")).pop().expect("a row"))
            .collect()
    }

    #[test]
    fn f32_weights_agree_with_transformers() {
        let dir = directory(|_| {});
        write(dir.path(), "model.safetensors", &tensors(DType::F32));
        check(dir.path(), &models().join("golden/tiny-base.json"));
        // The same numbers and the same arithmetic, so nothing but the order of sums could differ.
        for (found, expected) in logits(dir.path()).iter().zip(logits(&tiny("base"))) {
            assert!(largest_difference(found, &expected) < 1e-3);
        }
    }

    #[test]
    fn f16_weights_agree_with_transformers() {
        let dir = directory(|_| {});
        write(dir.path(), "model.safetensors", &tensors(DType::F16));
        check(dir.path(), &models().join("golden/tiny-base.json"));
    }

    #[test]
    fn shards_of_several_types_agree_with_transformers() {
        let dir = directory(|_| {});
        let mut shards = [Tensors::new(), Tensors::new(), Tensors::new()];
        let mut weight_map = serde_json::Map::new();
        for (dtype, shard) in [DType::Bf16, DType::F16, DType::F32].into_iter().zip(0..) {
            for (index, (name, tensor)) in tensors(dtype).into_iter().enumerate() {
                if index % 3 == shard {
                    weight_map.insert(name.clone(), format!("model-{shard}.safetensors").into());
                    shards[shard].insert(name, tensor);
                }
            }
        }
        for (shard, tensors) in shards.iter().enumerate() {
            write(dir.path(), &format!("model-{shard}.safetensors"), tensors);
        }
        let index = serde_json::json!({ "weight_map": weight_map }).to_string();
        fs_err::write(dir.path().join("model.safetensors.index.json"), index).expect("written");
        check(dir.path(), &models().join("golden/tiny-base.json"));
    }

    #[test]
    fn an_untied_copy_of_the_embedding_gives_the_same_logits() {
        let dir = directory(|config| config["tie_word_embeddings"] = false.into());
        let mut tensors = tensors(DType::Bf16);
        let head = tensors["model.embed_tokens.weight"].clone();
        tensors.insert("lm_head.weight".to_owned(), head);
        write(dir.path(), "model.safetensors", &tensors);
        assert_eq!(logits(dir.path()), logits(&tiny("base")));
    }
}
