//! Model directories that are damaged or not what they seem: each is refused in one line that names what is wrong, with
//! exit code 2, and nothing is written.

use crate::support::{Broken, join, names, refused, split, tiny};
use serde_json::json;

/// A model given as base and as fine-tune is refused with the same words, and `compress` leaves nothing behind.
#[track_caller]
fn refused_everywhere(model: &Broken, words: &[&str]) {
    refused(
        args![
            "generate",
            "--base",
            model.path(),
            "--prompt",
            "hello",
            "--max-tokens",
            "1"
        ],
        words,
    );
    for (base, finetuned) in [
        (tiny("base"), model.path().to_owned()),
        (model.path().to_owned(), tiny("route")),
    ] {
        let out = tempfile::tempdir().expect("a temporary folder");
        refused(
            args![
                "compress",
                "--base",
                base,
                "--finetuned",
                finetuned,
                "--calibration",
                tiny("data").join("route.calibration.jsonl"),
                "--out",
                out.path().join("artifact"),
            ],
            words,
        );
        assert_eq!(names(out.path()), Vec::<String>::new(), "nothing is left behind");
    }
}

#[test]
fn truncated_weights() {
    let model = Broken::copy("base").weights(|bytes| bytes[..bytes.len() / 2].to_vec());
    refused_everywhere(&model, &["model.safetensors", "truncated"]);
}

#[test]
fn weights_cut_in_the_length_field() {
    let model = Broken::copy("base").weights(|bytes| bytes[..5].to_vec());
    refused_everywhere(&model, &["model.safetensors", "5 bytes"]);
}

#[test]
fn empty_weights() {
    let model = Broken::copy("base").weights(|_| Vec::new());
    refused_everywhere(&model, &["model.safetensors", "0 bytes"]);
}

#[test]
fn a_header_length_beyond_the_file() {
    let model = Broken::copy("base").weights(|mut bytes| {
        bytes[..8].copy_from_slice(&(99_000_000u64).to_le_bytes());
        bytes
    });
    refused_everywhere(&model, &["model.safetensors", "header length 99000000"]);
}

#[test]
fn a_header_that_is_no_json() {
    let model = Broken::copy("base").weights(|bytes| {
        let (header, data) = split(&bytes);
        let mut header = header.to_vec();
        header[40] = 0;
        join(&header, data)
    });
    refused_everywhere(&model, &["model.safetensors", "header"]);
}

#[test]
fn a_name_twice_in_the_header() {
    // https://github.com/safetensors/safetensors/issues/401
    let model = Broken::copy("base").weights(|bytes| {
        let (header, data) = split(&bytes);
        let header = String::from_utf8(header.to_vec()).expect("UTF-8");
        let norm = json!({"dtype": "BF16", "shape": [0], "data_offsets": [0, 0]});
        join(
            header
                .replacen('{', &format!("{{\"model.norm.weight\":{norm},"), 1)
                .as_bytes(),
            data,
        )
    });
    refused_everywhere(&model, &["model.safetensors", "duplicate key", "model.norm.weight"]);
}

#[test]
fn a_pickle_renamed_to_safetensors() {
    // https://github.com/safetensors/safetensors/issues/414
    for magic in [&b"\x80\x02}q\x00X\x04"[..], b"PK\x03\x04\x00\x00\x08\x08"] {
        let model = Broken::copy("base").weights(|mut bytes| {
            bytes[..magic.len()].copy_from_slice(magic);
            bytes
        });
        refused_everywhere(&model, &["model.safetensors", "not a safetensors file"]);
    }
}

#[test]
fn a_tensor_of_another_shape() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let model = Broken::copy("base").header(|header| header[name]["shape"] = json!([256, 512]));
    refused_everywhere(&model, &[name, "[256, 512]", "[512, 256]"]);
}

#[test]
fn a_missing_tensor() {
    let (name, other) = (
        "model.layers.2.self_attn.k_proj.bias",
        "model.layers.2.self_attn.k_proj.bios",
    );
    let model = Broken::copy("base").header(|header| {
        let entry = header
            .as_object_mut()
            .expect("an object")
            .remove(name)
            .expect("an entry");
        header[other] = entry;
    });
    refused_everywhere(&model, &[name]);
}

#[test]
fn weights_that_are_not_finite() {
    for (bits, word) in [(0x7fc0, "NaN"), (0x7f80, "inf")] {
        let name = "model.layers.3.mlp.down_proj.weight";
        let model = Broken::copy("base").first_weight(name, bits);
        refused_everywhere(&model, &[name, word]);
    }
}

#[test]
fn an_unknown_architecture() {
    let model = Broken::copy("base").config("config.json", |config| {
        config["architectures"] = json!(["MambaForCausalLM"]);
        config["model_type"] = json!("mamba");
    });
    refused_everywhere(&model, &["config.json", "MambaForCausalLM"]);
}

#[test]
fn an_unknown_rope_scaling() {
    let model = Broken::copy("base").config("config.json", |config| {
        config["rope_scaling"] = json!({"rope_type": "yarn", "factor": 4.0});
    });
    refused_everywhere(&model, &["config.json", "yarn"]);
}

#[test]
fn a_configuration_that_is_no_json() {
    let model = Broken::copy("base");
    fs_err::write(model.file("config.json"), "{\"architectures\": [").expect("written");
    refused_everywhere(&model, &["config.json"]);
}

#[test]
fn a_folder_in_place_of_a_file() {
    let model = Broken::copy("base");
    fs_err::remove_file(model.file("model.safetensors")).expect("removed");
    fs_err::create_dir_all(model.file("model.safetensors")).expect("created");
    refused_everywhere(&model, &["model.safetensors"]);
}

#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere() {
    for file in ["model.safetensors", "config.json", "tokenizer.json"] {
        let model = Broken::copy("base");
        fs_err::remove_file(model.file(file)).expect("removed");
        fs_err::os::unix::fs::symlink("nowhere", model.file(file)).expect("linked");
        refused_everywhere(&model, &[file]);
    }
}

#[test]
fn a_directory_that_does_not_exist() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let missing = dir.path().join("missing");
    refused(args!["generate", "--base", &missing, "--prompt", "hello"], &["missing"]);
    refused(args!["serve", "--base", &missing, "--port", "0"], &["missing"]);
    refused(
        args![
            "eval",
            "--base",
            &missing,
            "--tasks",
            tiny("data").join("route.heldout.jsonl")
        ],
        &["missing"],
    );
}
