//! Checkpoints as they come from outside: whole, in shards, damaged in every way that is known.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use common::safetensors_bytes;
use common::tiny;
use deltamux_model::{Checkpoint, CheckpointError, DType};
use serde_json::{Value, json};

/// A tensor to write: type, shape, bytes.
type Tensor = (&'static str, Vec<usize>, Vec<u8>);

/// A Llama model of one layer with a hidden width of 4, as files that a test may damage before it opens them.
struct Model {
    dir: tempfile::TempDir,
    config: Value,
    tensors: BTreeMap<String, Tensor>,
}

impl Model {
    fn new() -> Self {
        let config = json!({
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 4, "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 2,
            "num_key_value_heads": 1, "vocab_size": 8, "max_position_embeddings": 16, "tie_word_embeddings": true,
        });
        let mut model = Self {
            dir: tempfile::tempdir().expect("a directory"),
            config,
            tensors: BTreeMap::new(),
        };
        for (name, shape) in [
            ("model.embed_tokens.weight", vec![8, 4]),
            ("model.norm.weight", vec![4]),
            ("model.layers.0.input_layernorm.weight", vec![4]),
            ("model.layers.0.post_attention_layernorm.weight", vec![4]),
            ("model.layers.0.self_attn.q_proj.weight", vec![4, 4]),
            ("model.layers.0.self_attn.k_proj.weight", vec![2, 4]),
            ("model.layers.0.self_attn.v_proj.weight", vec![2, 4]),
            ("model.layers.0.self_attn.o_proj.weight", vec![4, 4]),
            ("model.layers.0.mlp.gate_proj.weight", vec![6, 4]),
            ("model.layers.0.mlp.up_proj.weight", vec![6, 4]),
            ("model.layers.0.mlp.down_proj.weight", vec![4, 6]),
        ] {
            model.set(name, shape);
        }
        model
    }

    /// Sets a tensor to numbers that follow from its name and shape.
    fn set(&mut self, name: &str, shape: Vec<usize>) {
        let count: usize = shape.iter().product();
        let bytes = (0..count)
            .flat_map(|i| ((i + name.len()) as f32 / 8.0).to_le_bytes())
            .collect();
        self.tensors.insert(name.to_owned(), ("F32", shape, bytes));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write_config(&self) {
        fs_err::write(self.path("config.json"), self.config.to_string()).expect("written");
    }

    fn write(&self) {
        self.write_config();
        fs_err::write(self.path("model.safetensors"), safetensors_bytes(&self.tensors)).expect("written");
    }

    /// Writes the tensors in shards: `shard` says in which one each lies.
    fn write_shards(&self, shard: impl Fn(&str) -> String) {
        self.write_config();
        let mut shards: BTreeMap<String, BTreeMap<String, Tensor>> = BTreeMap::new();
        let mut weight_map = serde_json::Map::new();
        for (name, tensor) in &self.tensors {
            shards
                .entry(shard(name))
                .or_default()
                .insert(name.clone(), tensor.clone());
            weight_map.insert(name.clone(), shard(name).into());
        }
        for (file, tensors) in shards {
            fs_err::write(self.path(&file), safetensors_bytes(&tensors)).expect("written");
        }
        self.write_index(&json!({"metadata": {"total_size": 1}, "weight_map": weight_map}).to_string());
    }

    fn write_index(&self, text: &str) {
        fs_err::write(self.path("model.safetensors.index.json"), text).expect("written");
    }

    fn open(&self) -> Result<Checkpoint, CheckpointError> {
        Checkpoint::open(self.dir.path())
    }

    /// The error on opening; on one line and with the directory in it.
    fn refusal(&self) -> String {
        let error = self.open().expect_err("a damaged checkpoint").to_string();
        assert!(!error.contains('\n'), "{error}");
        assert!(error.contains(self.dir.path().to_str().expect("UTF-8")), "{error}");
        error
    }

    /// The error on opening when `model.safetensors` consists of these bytes.
    fn refusal_of(&self, file: &[u8]) -> String {
        fs_err::write(self.path("model.safetensors"), file).expect("written");
        let error = self.refusal();
        assert!(error.contains("model.safetensors: "), "{error}");
        error
    }
}

/// A file with this header and this much data.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[track_caller]
fn contains(text: &str, expected: &str) {
    assert!(text.contains(expected), "expected {expected:?} in: {text}");
}

#[test]
fn a_whole_checkpoint_opens_and_gives_its_tensors() {
    let model = Model::new();
    model.write();
    let checkpoint = model.open().expect("a whole checkpoint");
    assert_eq!(
        checkpoint.names(),
        model.tensors.keys().map(String::as_str).collect::<Vec<_>>()
    );
    let q = checkpoint
        .expect("model.layers.0.self_attn.q_proj.weight", &[4, 4])
        .expect("the tensor");
    assert_eq!(
        (q.dtype, q.shape, q.bytes),
        (
            DType::F32,
            &[4usize, 4][..],
            &model.tensors["model.layers.0.self_attn.q_proj.weight"].2[..]
        )
    );
    assert!(checkpoint.tensor("nothing").is_none());
    checkpoint.check_finite().expect("finite weights");
}

#[test]
fn shards_give_the_same_tensors_and_the_same_digest() {
    let model = Model::new();
    model.write();
    let whole = model.open().expect("a whole checkpoint");
    let sharded = Model::new();
    sharded.write_shards(|name| format!("model-0000{}-of-00003.safetensors", name.len() % 3 + 1));
    let checkpoint = sharded.open().expect("a sharded checkpoint");
    assert_eq!(checkpoint.names(), whole.names());
    for name in whole.names() {
        assert_eq!(
            checkpoint.tensor(name).expect("a tensor").bytes,
            whole.tensor(name).expect("a tensor").bytes
        );
    }
    assert_eq!(checkpoint.digest(), whole.digest());
}

#[test]
fn the_digest_follows_weights_and_arithmetic_and_nothing_else() {
    let mut model = Model::new();
    model.write();
    let digest = model.open().expect("a checkpoint").digest();
    assert_eq!(digest.len(), 64);

    model.config["max_position_embeddings"] = 32.into();
    model.set("model.layers.0.self_attn.rotary_emb.inv_freq", vec![1]);
    model.write();
    assert_eq!(model.open().expect("a checkpoint").digest(), digest);

    model.config["rope_theta"] = 20_000.into();
    model.write_config();
    assert_ne!(model.open().expect("a checkpoint").digest(), digest);

    model.config["rope_theta"] = 10_000.into();
    model.tensors.get_mut("model.norm.weight").expect("the norm").2[0] ^= 1;
    model.write();
    assert_ne!(model.open().expect("a checkpoint").digest(), digest);
}

#[test]
fn tensors_that_the_model_does_not_use_are_kept_and_not_in_the_way() {
    let mut model = Model::new();
    model.set("model.layers.0.self_attn.rotary_emb.inv_freq", vec![1]);
    model
        .tensors
        .insert("model.mask".to_owned(), ("I64", vec![2], vec![0; 16]));
    model.write();
    let checkpoint = model.open().expect("a checkpoint");
    assert!(checkpoint.names().contains(&"model.mask"));
    assert!(
        checkpoint
            .tensor("model.layers.0.self_attn.rotary_emb.inv_freq")
            .is_some()
    );
    assert!(
        checkpoint.tensor("model.mask").is_none(),
        "no type that deltamux computes with"
    );
}

/// Case d1: github.com/lm-sys/FastChat/issues/1302. A fine-tune with an added token has one row more than its base.
#[test]
fn case_d1_an_added_vocabulary_row_is_read() {
    let mut model = Model::new();
    model.set("model.embed_tokens.weight", vec![9, 4]);
    model.config["vocab_size"] = 9.into();
    model.write();
    let checkpoint = model.open().expect("a checkpoint");
    let embedding = checkpoint.tensor("model.embed_tokens.weight").expect("the embedding");
    assert_eq!(embedding.row_f32(8), embedding.to_f32()[32..]);

    // A configuration that does not know of the row is refused at the door, not deep inside.
    model.config["vocab_size"] = 8.into();
    model.write_config();
    contains(
        &model.refusal(),
        "tensor model.embed_tokens.weight: shape [9, 4], expected [8, 4]: config.json says vocab_size 8; set it to the \
         number of stored rows if tokens were added",
    );
}

/// Case d2: github.com/safetensors/safetensors/issues/401.
#[test]
fn case_d2_a_duplicate_key_is_named() {
    let model = Model::new();
    model.write();
    let a = r#""a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}"#;
    contains(
        &model.refusal_of(&file(&format!("{{{a}, {a}}}"), 4)),
        "duplicate key `a`",
    );
    let twice = r#"{"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}"#;
    contains(&model.refusal_of(&file(twice, 4)), "tensor a: duplicate field `dtype`");
    let metadata = r#"{"__metadata__": {"k": "1", "k": "2"}}"#;
    contains(&model.refusal_of(&file(metadata, 0)), "duplicate key `k`");
    contains(
        &model.refusal_of(&file(r#"{"__metadata__": {}, "__metadata__": {}}"#, 0)),
        "duplicate key `__metadata__`",
    );
}

/// Case d3: github.com/safetensors/safetensors/issues/414.
#[test]
fn case_d3_other_formats_under_this_name_are_refused() {
    let model = Model::new();
    model.write();
    let torch_legacy = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.";
    for (bytes, expected) in [
        (
            &b"PK\x03\x04\x14\x00\x08\x08archive/data.pkl"[..],
            "a zip archive, as torch.save writes",
        ),
        (torch_legacy, "a Python pickle"),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.", "a Python pickle"),
        (b"GGUF\x03\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00", "a GGUF file"),
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
            "a Git LFS pointer",
        ),
        (b"<!DOCTYPE html><html></html>", "a web page"),
        (b"{\"error\": \"not found\"}", "a JSON text"),
        (b"PK\x03\x04", "a zip archive"),
    ] {
        let error = model.refusal_of(bytes);
        contains(&error, "not a safetensors file");
        contains(&error, expected);
    }
}

/// Case d5: github.com/QwenLM/Qwen3-VL-Embedding/issues/89.
#[test]
fn case_d5_an_untied_model_without_its_head_is_refused() {
    let mut model = Model::new();
    model.config["tie_word_embeddings"] = false.into();
    model.write();
    contains(
        &model.refusal(),
        "tensor lm_head.weight is missing: config.json says tie_word_embeddings false, so the output head must be \
         stored; set tie_word_embeddings to true if the model shares it with the embedding",
    );
    model.set("lm_head.weight", vec![8, 4]);
    model.write();
    model.open().expect("a checkpoint with a head");
}

/// Case d6: github.com/huggingface/transformers/issues/38870.
#[test]
fn case_d6_a_tied_head_fills_the_embedding() {
    let mut model = Model::new();
    model.write();
    let usual = model.open().expect("a checkpoint").digest();
    let embedding = model
        .tensors
        .remove("model.embed_tokens.weight")
        .expect("the embedding");
    model.tensors.insert("lm_head.weight".to_owned(), embedding.clone());
    model.write();
    let checkpoint = model.open().expect("a checkpoint");
    let filled = checkpoint
        .expect("model.embed_tokens.weight", &[8, 4])
        .expect("the embedding");
    assert_eq!(filled.bytes, &embedding.2[..]);
    assert!(checkpoint.tensor("lm_head.weight").is_none());
    assert_eq!(checkpoint.digest(), usual);
}

#[test]
fn a_truncated_file_is_refused_wherever_it_is_cut() {
    let model = Model::new();
    model.write();
    let whole = fs_err::read(model.path("model.safetensors")).expect("the file");
    for length in (0..whole.len()).step_by(5) {
        let error = model.refusal_of(&whole[..length]);
        assert!(error.contains("truncated"), "{length} of {}: {error}", whole.len());
    }
    fs_err::write(model.path("model.safetensors"), &whole).expect("written");
    model.open().expect("the whole file");
}

#[test]
fn headers_that_do_not_fit_are_refused() {
    let model = Model::new();
    model.write();
    let mut beyond = file("{}", 10);
    beyond[..8].copy_from_slice(&1000u64.to_le_bytes());
    contains(
        &model.refusal_of(&beyond),
        "header length 1000 goes beyond the file, which has 12 bytes after it",
    );
    let mut large = file("{}", 10);
    large[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    contains(
        &model.refusal_of(&large),
        "header too large: its length is given as 18446744073709551615 bytes",
    );
    contains(&model.refusal_of(&file("", 0)), "does not begin with `{`");
    contains(&model.refusal_of(&file("[]", 0)), "does not begin with `{`");
    contains(&model.refusal_of(&file("{\"a\": 1,,}", 0)), "header");
    contains(
        &model.refusal_of(&file("{\"a\"", 0)),
        "header: tensor a: EOF while parsing",
    );
    contains(&model.refusal_of(&file("{,}", 0)), "header is not valid JSON");
    contains(
        &model.refusal_of(&file("{\"a\": 1}", 0)),
        "tensor a: invalid type: integer `1`",
    );
    contains(
        &model.refusal_of(&file("{\"a\": {\"dtype\": \"F32\"}}", 0)),
        "tensor a: missing field `shape`",
    );
    contains(
        &model.refusal_of(&file("{\"__metadata__\": {\"a\": 1}}", 0)),
        "invalid type: integer `1`",
    );
    let mut not_utf8 = file("{\"ab\": {}}", 0);
    not_utf8[10] = 0xff;
    contains(&model.refusal_of(&not_utf8), "header");
}

/// A header with these tensors `(name, dtype, shape, offsets)`.
fn header(tensors: &[(&str, &str, &str, &str)]) -> String {
    let entries: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, offsets)| {
            format!(r#""{name}": {{"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}}}"#)
        })
        .collect();
    format!("{{{}}}", entries.join(", "))
}

#[test]
fn offsets_that_lie_are_refused_with_the_tensor_and_the_numbers() {
    let model = Model::new();
    model.write();
    for (tensors, expected) in [
        (
            &[("a", "F32", "[2]", "[0, 16]")][..],
            "tensor a: data_offsets [0, 16] go beyond the data, which has 8 bytes",
        ),
        (
            &[("a", "F32", "[2]", "[8, 0]")],
            "tensor a: data_offsets [8, 0] run backwards",
        ),
        (
            &[("a", "F32", "[1]", "[0, 8]")],
            "tensor a: shape [1] of type F32 needs 4 bytes, but data_offsets [0, 8] hold 8",
        ),
        (&[("a", "F32", "[1]", "[0, 4]")], "the last 4 bytes belong to no tensor"),
        (
            &[("a", "F32", "[1]", "[4, 8]")],
            "bytes 0 to 4 of the data, before tensor a, belong to no tensor",
        ),
        (
            &[("a", "F32", "[2]", "[0, 8]"), ("b", "F32", "[1]", "[4, 8]")],
            "tensors a and b overlap: bytes 4 to 8 of the data belong to both",
        ),
        (
            &[("a", "F32", "[4294967296, 4294967296]", "[0, 8]")],
            "tensor a: shape [4294967296, 4294967296] overflows",
        ),
        (&[("a", "F32", "[9223372036854775807]", "[0, 8]")], "overflows"),
        (&[("a", "F32", "[-1]", "[0, 8]")], "tensor a: invalid value"),
        (
            &[("a", "F32", "[2]", "[0, 18446744073709551615]")],
            "go beyond the data",
        ),
        (&[("a", "Q4_0", "[2]", "[0, 8]")], "tensor a: type Q4_0 is unknown"),
    ] {
        contains(&model.refusal_of(&file(&header(tensors), 8)), expected);
    }
}

#[test]
fn missing_tensors_are_named() {
    let mut model = Model::new();
    model.tensors.remove("model.norm.weight");
    model.write();
    contains(&model.refusal(), ": tensor model.norm.weight is missing");
    model.tensors.retain(|name, _| name == "model.embed_tokens.weight");
    model.write();
    let error = model.refusal();
    contains(&error, "10 tensors are missing: ");
    for name in [
        "model.norm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    ] {
        contains(&error, name);
    }
    model.config["num_hidden_layers"] = 3.into();
    model.write();
    contains(&model.refusal(), "28 tensors are missing: ");
    contains(&model.refusal(), " and 18 more");
}

#[test]
fn tensors_under_foreign_names_are_listed() {
    let mut model = Model::new();
    model.tensors = model
        .tensors
        .into_iter()
        .map(|(name, t)| (format!("transformer.{name}"), t))
        .collect();
    model.write();
    let error = model.refusal();
    contains(&error, "11 tensors are missing: ");
    contains(&error, "; found 11 others: transformer.model.embed_tokens.weight");
}

#[test]
fn a_wrong_shape_is_refused_with_both() {
    let mut model = Model::new();
    model.set("model.layers.0.mlp.up_proj.weight", vec![4, 6]);
    model.write();
    contains(
        &model.refusal(),
        "tensor model.layers.0.mlp.up_proj.weight: shape [4, 6], expected [6, 4] by config.json",
    );
}

#[test]
fn an_unsupported_type_is_refused_by_name() {
    let mut model = Model::new();
    model
        .tensors
        .insert("model.norm.weight".to_owned(), ("F8_E4M3", vec![4], vec![0; 4]));
    model.write();
    contains(
        &model.refusal(),
        "tensor model.norm.weight: type F8_E4M3 is not supported: expected BF16, F16 or F32",
    );
}

#[test]
fn weights_that_are_not_finite_are_refused_with_their_place() {
    for (value, shown) in [(f32::NAN, "NaN"), (f32::NEG_INFINITY, "-inf")] {
        let mut model = Model::new();
        let tensor = model
            .tensors
            .get_mut("model.layers.0.mlp.down_proj.weight")
            .expect("the tensor");
        tensor.2[4 * 15..4 * 16].copy_from_slice(&value.to_le_bytes());
        model.write();
        let error = model
            .open()
            .expect("the header is whole")
            .check_finite()
            .expect_err("not finite")
            .to_string();
        contains(
            &error,
            "model.safetensors: tensor model.layers.0.mlp.down_proj.weight: the element at [2, 3] is ",
        );
        contains(&error, shown);
    }
}

#[test]
fn indexes_that_lie_are_refused() {
    let model = Model::new();
    model.write_shards(|name| format!("{}.safetensors", name.len() % 2));
    model.open().expect("a sharded checkpoint");
    let index: Value =
        serde_json::from_slice(&fs_err::read(model.path("model.safetensors.index.json")).expect("the index"))
            .expect("JSON");
    let damaged = |name: &str, file: &str| {
        let mut index = index.clone();
        index["weight_map"][name] = file.into();
        model.write_index(&index.to_string());
        model.refusal()
    };
    contains(
        &damaged("model.norm.weight", "2.safetensors"),
        "names the file 2.safetensors, which is missing",
    );
    contains(
        &damaged("extra", "0.safetensors"),
        "says that tensor extra is in 0.safetensors, which has no such tensor",
    );
    contains(
        &damaged("model.norm.weight", "0.safetensors"),
        "says that tensor model.norm.weight is in 0.safetensors, but it is in ",
    );
    for outside in ["../0.safetensors", "/etc/passwd", "a/../../b", "", "."] {
        contains(&damaged("model.norm.weight", outside), "leaves the model's directory");
    }
    model.write_index(r#"{"weight_map": {"a": "0.safetensors", "a": "1.safetensors"}}"#);
    contains(&model.refusal(), "not a valid index: duplicate key `a`");
    model.write_index("{}");
    contains(&model.refusal(), "not a valid index: missing field `weight_map`");
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let model = Model::new();
    model.write_shards(|name| format!("{}.safetensors", name.len() % 2));
    fs_err::copy(model.path("0.safetensors"), model.path("1.safetensors")).expect("copied");
    let error = model.refusal();
    contains(&error, "1.safetensors: tensor ");
    contains(&error, "0.safetensors: expected it in one file only");
}

#[test]
fn a_directory_without_weights_says_what_is_expected() {
    let model = Model::new();
    model.write_config();
    contains(
        &model.refusal(),
        "no weights: expected model.safetensors or model.safetensors.index.json",
    );
    fs_err::write(model.path("pytorch_model.bin"), "").expect("written");
    contains(
        &model.refusal(),
        "no model.safetensors but pytorch_model.bin: pickled weights are not read",
    );
    let error = Checkpoint::open(Path::new("/no/such/directory"))
        .expect_err("no directory")
        .to_string();
    contains(&error, "/no/such/directory/config.json");
    fs_err::create_dir_all(model.path("model.safetensors")).expect("created");
    contains(&model.refusal(), "model.safetensors");
}

#[test]
fn a_checkpoint_is_shared_between_threads() {
    let checkpoint = Checkpoint::open(&tiny("base")).expect("a checkpoint");
    let digest = checkpoint.digest();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(checkpoint.digest(), digest));
        }
    });
}
