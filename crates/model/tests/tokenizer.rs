//! Token ids equal transformers', and streams of pieces equal the decoded whole.

mod common;

use std::path::Path;
use std::sync::LazyLock;

use common::{models, smollm2, tiny};
use deltamux_model::{Tokenizer, TokenizerError};
use proptest::prelude::*;
use serde_json::Value;

fn tokenizer(dir: &Path) -> Tokenizer {
    Tokenizer::from_dir(dir).expect("a tokenizer")
}

/// The pieces of a stream, the last one from `finish`.
fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    let mut stream = tokenizer.decode_stream();
    let mut pieces: Vec<_> = ids.iter().map(|id| stream.push(*id).expect("a piece")).collect();
    pieces.push(stream.finish().expect("the rest"));
    pieces
}

fn check_golden(golden: &Path, model: &Path) {
    let tokenizer = tokenizer(model);
    let golden: Value = serde_json::from_slice(&fs_err::read(golden).expect("a golden")).expect("JSON");
    for case in golden["cases"].as_array().expect("cases") {
        let ids = |field: &str| -> Vec<u32> { serde_json::from_value(case[field].clone()).expect("ids") };
        let prompt = case["prompt"].as_str().expect("a prompt");
        assert_eq!(
            tokenizer.encode(prompt, false).expect("ids"),
            ids("input_ids"),
            "{prompt:?}"
        );
        assert_eq!(tokenizer.decode(&ids("input_ids"), false).expect("text"), prompt);
        let greedy = ids("greedy_ids");
        assert_eq!(
            tokenizer.decode(&greedy, false).expect("text"),
            case["greedy_text"].as_str().expect("text")
        );
    }
}

#[test]
fn ids_and_texts_equal_those_of_transformers() {
    for name in ["base", "route", "date", "json", "sql"] {
        check_golden(&models().join(format!("golden/tiny-{name}.json")), &tiny(name));
    }
    if let Some(dir) = smollm2() {
        check_golden(&models().join("golden/base.json"), &dir);
    }
}

/// Made by `models/golden/make/tokenizer.py`.
#[test]
fn difficult_texts_have_the_ids_that_transformers_gives_them() {
    let golden = fs_err::read(models().join("golden/tokenizer.json")).expect("a golden");
    let golden: Value = serde_json::from_slice(&golden).expect("JSON");
    for (name, dir) in [("tiny", Some(tiny("base"))), ("smollm2", smollm2())] {
        let Some(dir) = dir else { continue };
        let tokenizer = tokenizer(&dir);
        for case in golden[name].as_array().expect("cases") {
            let text = case["text"].as_str().expect("a text");
            let ids: Vec<u32> = serde_json::from_value(case["ids"].clone()).expect("ids");
            assert_eq!(tokenizer.encode(text, false).expect("ids"), ids, "{name} {text:?}");
            let decoded = case["decoded"].as_str().expect("a text");
            assert_eq!(tokenizer.decode(&ids, true).expect("text"), decoded, "{name} {text:?}");
            assert_eq!(pieces(&tokenizer, &ids).concat(), decoded, "{name} {text:?}");
        }
    }
}

/// Texts with what breaks naive detokenisers.
const TEXTS: [&str; 9] = [
    "客单价",
    "A family: 👨‍👩‍👧‍👦, a flag: 🇩🇪!",
    "cafe\u{301} n\u{303} — combining marks",
    "  two leading spaces, a\ttab\r\n\n\nand lines ",
    "نص عربي، עברית, हिन्दी, ไทย",
    "U+FFFD itself: \u{fffd}\u{fffd} and on",
    "\u{2028}line separator",
    "naïve façade œuvre Straße",
    "",
];

/// Case o2: github.com/deepjavalibrary/djl-serving/pull/3085. Tokens that hold parts of characters must not reach a
/// client as U+FFFD, and what reaches it is the whole text.
#[test]
fn case_o2_no_piece_has_a_replacement_character_and_the_pieces_are_the_whole() {
    let mut dirs = vec![tiny("base")];
    dirs.extend(smollm2());
    for dir in dirs {
        let tokenizer = tokenizer(&dir);
        for text in TEXTS {
            let ids = tokenizer.encode(text, false).expect("ids");
            let pieces = pieces(&tokenizer, &ids);
            assert_eq!(pieces.concat(), text);
            if !text.contains('\u{fffd}') {
                assert!(pieces.iter().all(|p| !p.contains('\u{fffd}')), "{pieces:?}");
                assert_eq!(
                    pieces.last().map(String::as_str),
                    Some(""),
                    "nothing was held back to the end"
                );
            }
        }
        // The characters are cut into several tokens, so the test sees what it is about.
        assert!(tokenizer.encode("客单价", false).expect("ids").len() > 3);
        assert!(tokenizer.encode("😀", false).expect("ids").len() > 1);
    }
}

#[test]
fn special_tokens_are_read_from_the_text_and_left_out_of_streams() {
    let tokenizer = tokenizer(&tiny("base"));
    let end = tokenizer.token_to_id("<|im_end|>").expect("the token");
    let ids = tokenizer.encode("Hi<|im_end|>\n", false).expect("ids");
    assert!(ids.contains(&end));
    assert!(tokenizer.is_special(end));
    assert_eq!(pieces(&tokenizer, &ids).concat(), "Hi\n");
    assert_eq!(tokenizer.decode(&ids, true).expect("text"), "Hi\n");
    assert_eq!(tokenizer.token_text(end), "<|im_end|>");
    assert_eq!(tokenizer.token_text(u32::MAX), "");
    assert!(!tokenizer.is_special(u32::MAX));
}

#[test]
fn the_vocabulary_fits_the_embedding() {
    let tokenizer = tokenizer(&tiny("base"));
    assert_eq!(tokenizer.vocab_size(), 1454);
}

#[test]
fn a_token_text_keeps_its_leading_space() {
    let tokenizer = tokenizer(&tiny("base"));
    let ids = tokenizer.encode("a the the", false).expect("ids");
    let texts: Vec<_> = ids.iter().map(|id| tokenizer.token_text(*id)).collect();
    assert_eq!(texts.concat(), "a the the");
    assert!(texts.contains(&" the".to_owned()));
}

/// A vocabulary in the manner of Llama 2: `▁` for the space, bytes as `<0x..>`, the first space of a text stripped.
fn byte_fallback_tokenizer() -> Tokenizer {
    let mut vocabulary: Vec<Value> = vec![
        serde_json::json!(["<unk>", 0.0]),
        serde_json::json!(["<s>", 0.0]),
        serde_json::json!(["</s>", 0.0]),
    ];
    vocabulary.extend((0..=255).map(|b| serde_json::json!([format!("<0x{b:02X}>"), -10.0])));
    for token in ["▁", "▁Hello", "▁world", "H", "e", "l", "o", ",", "é"] {
        vocabulary.push(serde_json::json!([token, -1.0]));
    }
    let special = [1, 2].map(|id: usize| {
        serde_json::json!({
            "id": id, "content": vocabulary[id][0], "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        })
    });
    let json = serde_json::json!({
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": null,
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ]},
        "pre_tokenizer": null,
        "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ]},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocabulary, "byte_fallback": true},
    });
    let text = serde_json::to_vec(&json).expect("JSON");
    Tokenizer::from_json(&text, Path::new("tokenizer.json")).expect("a tokenizer")
}

#[test]
fn byte_fallback_streams_equal_the_decoded_whole() {
    let tokenizer = byte_fallback_tokenizer();
    for text in TEXTS.into_iter().chain(["Hello world, Hello", "  Hello", "客客 é客😀"]) {
        let ids = tokenizer.encode(text, false).expect("ids");
        let pieces = pieces(&tokenizer, &ids);
        assert_eq!(pieces.concat(), tokenizer.decode(&ids, true).expect("text"), "{text:?}");
        assert_eq!(pieces.concat(), text);
        assert!(
            text.contains('\u{fffd}') || pieces.iter().all(|p| !p.contains('\u{fffd}')),
            "{pieces:?}"
        );
    }
    let world = tokenizer.token_to_id("▁world").expect("the token");
    assert_eq!(tokenizer.token_text(world), " world");
    assert_eq!(
        tokenizer.token_bytes(tokenizer.token_to_id("<0xE5>").expect("the token")),
        [0xe5]
    );
}

#[test]
fn bytes_that_never_complete_are_shown_in_the_end() {
    let tokenizer = byte_fallback_tokenizer();
    let byte = |b: u8| 3 + u32::from(b);
    let hello = tokenizer.token_to_id("▁Hello").expect("the token");
    assert_eq!(
        pieces(&tokenizer, &[hello, byte(0xe5), byte(0xae)])
            .last()
            .expect("the rest"),
        "\u{fffd}\u{fffd}"
    );
    // Wrong bytes after right ones take nothing back, and do not hold the stream up for ever.
    let mut ids = vec![byte(0xe5), byte(0xae), byte(0xa2), byte(0xff), hello];
    assert_eq!(pieces(&tokenizer, &ids).concat(), "客\u{fffd} Hello");
    ids.extend([byte(0xff); 100]);
    let pieces = pieces(&tokenizer, &ids);
    assert_eq!(pieces.concat().matches('\u{fffd}').count(), 101);
    assert!(pieces[..60].concat().matches('\u{fffd}').count() > 30);
}

#[test]
fn a_missing_or_damaged_tokenizer_is_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let error = Tokenizer::from_dir(dir.path()).expect_err("no file");
    assert!(matches!(error, TokenizerError::Io(_)));
    assert!(error.to_string().contains("tokenizer.json"), "{error}");

    fs_err::write(dir.path().join("tokenizer.model"), b"sentencepiece").expect("written");
    let error = Tokenizer::from_dir(dir.path()).expect_err("no file").to_string();
    assert!(error.contains("tokenizer.model is not read"), "{error}");

    for damaged in ["", "{", "[]", "{\"model\": {}}"] {
        fs_err::write(dir.path().join("tokenizer.json"), damaged).expect("written");
        let error = Tokenizer::from_dir(dir.path()).expect_err("damaged").to_string();
        assert!(
            error.contains("tokenizer.json: not a valid tokenizer") && !error.contains('\n'),
            "{error}"
        );
    }
}

static TINY: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer(&tiny("base")));

/// The library panics where JSON ends inside a decoder.
#[test]
fn a_tokenizer_cut_anywhere_is_refused() {
    let json = fs_err::read(tiny("base").join("tokenizer.json")).expect("the file");
    let head = json.len().min(4096);
    let cuts = (0..head).chain((head..json.len()).step_by(1009));
    for end in cuts {
        let error = Tokenizer::from_json(&json[..end], Path::new("tokenizer.json")).expect_err("cut JSON");
        assert!(error.to_string().contains("not JSON"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn pieces_of_any_ids_concatenate_to_the_decoded_whole(ids in proptest::collection::vec(0u32..1460, 0..80)) {
        let tokenizer = &*TINY;
        prop_assert_eq!(pieces(tokenizer, &ids).concat(), tokenizer.decode(&ids, true).expect("text"));
    }

    #[test]
    fn any_text_survives_the_round_trip(text in "\\PC{0,40}") {
        let tokenizer = &*TINY;
        let ids = tokenizer.encode(&text, false).expect("ids");
        prop_assert_eq!(pieces(tokenizer, &ids).concat(), tokenizer.decode(&ids, true).expect("text"));
    }

    #[test]
    fn damaged_tokenizers_do_not_panic(at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()) {
        let mut json = fs_err::read(tiny("base").join("tokenizer.json")).expect("the file");
        let at = at.index(json.len());
        if cut { json.truncate(at) } else { json[at] = byte }
        let _ = Tokenizer::from_json(&json, Path::new("tokenizer.json"));
    }
}
