//! The text side of a made model: a byte-level tokenizer that fills the whole vocabulary, and a chat template.
//!
//! A model with random weights samples any id of its vocabulary, so every id must stand for something: after the 256
//! bytes come strings of letters, each with the merge that makes it, shortest first; special tokens have the ids that
//! the model's own tokenizer gives them.

use serde_json::{Map, Value, json};

use crate::artifact::{ArtifactError, Target};

/// Special tokens and chat template of a family of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextFamily {
    /// Qwen2.5 and Qwen3: ChatML.
    Qwen,
    /// SmolLM2: ChatML, special tokens first.
    Smol,
    /// Llama 3.
    Llama3,
    /// Mistral v0.3.
    Mistral,
}

const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + \
                      '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}\
                      {% endif %}";
const LLAMA3: &str = "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + \
                      '<|end_header_id|>\n\n' + message['content'] + '<|eot_id|>' }}{% endfor %}\
                      {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";
const MISTRAL: &str = "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'assistant' %}\
                       {{ ' ' + message['content'] + eos_token }}{% else %}{{ '[INST] ' + message['content'] + \
                       '[/INST]' }}{% endif %}{% endfor %}";

impl TextFamily {
    /// The special tokens with their ids, lowest first.
    pub fn special(self) -> &'static [(u32, &'static str)] {
        match self {
            Self::Qwen => &[
                (151_643, "<|endoftext|>"),
                (151_644, "<|im_start|>"),
                (151_645, "<|im_end|>"),
            ],
            Self::Smol => &[(0, "<|endoftext|>"), (1, "<|im_start|>"), (2, "<|im_end|>")],
            Self::Llama3 => &[
                (128_000, "<|begin_of_text|>"),
                (128_001, "<|end_of_text|>"),
                (128_006, "<|start_header_id|>"),
                (128_007, "<|end_header_id|>"),
                (128_009, "<|eot_id|>"),
            ],
            Self::Mistral => &[(0, "<unk>"), (1, "<s>"), (2, "</s>"), (3, "[INST]"), (4, "[/INST]")],
        }
    }

    /// The id that begins a text.
    pub fn bos(self) -> u32 {
        match self {
            Self::Qwen => 151_643,
            Self::Llama3 => 128_000,
            Self::Smol | Self::Mistral => 1,
        }
    }

    /// The ids that end an answer, the one of a chat turn first.
    pub fn eos(self) -> &'static [u32] {
        match self {
            Self::Qwen => &[151_645, 151_643],
            Self::Smol => &[2, 0],
            Self::Llama3 => &[128_009, 128_001],
            Self::Mistral => &[2],
        }
    }

    fn template(self) -> &'static str {
        match self {
            Self::Qwen | Self::Smol => CHATML,
            Self::Llama3 => LLAMA3,
            Self::Mistral => MISTRAL,
        }
    }

    fn token(self, id: u32) -> Option<&'static str> {
        self.special().iter().find(|token| token.0 == id).map(|token| token.1)
    }

    /// Writes `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` for a vocabulary of `size` ids
    /// and texts of at most `positions` tokens.
    pub fn write(self, size: usize, positions: usize, target: &Target) -> Result<(), ArtifactError> {
        let eos = self.eos();
        let config = json!({
            "additional_special_tokens": self.special().iter().map(|token| token.1).collect::<Vec<_>>(),
            "bos_token": self.token(self.bos()),
            "chat_template": self.template(),
            "clean_up_tokenization_spaces": false,
            "eos_token": self.token(eos[0]),
            "model_max_length": positions,
            "pad_token": self.token(eos[eos.len() - 1]),
            "tokenizer_class": "PreTrainedTokenizerFast",
        });
        let generation = json!({
            "bos_token_id": self.bos(),
            "eos_token_id": eos,
            "pad_token_id": eos[eos.len() - 1],
        });
        target.write("tokenizer.json", &self.tokenizer(size).to_string().into_bytes())?;
        target.write("tokenizer_config.json", &super::pretty(&config)?)?;
        target.write("generation_config.json", &super::pretty(&generation)?)?;
        Ok(())
    }

    /// The document of a `tokenizer.json` with exactly the ids below `size`.
    pub fn tokenizer(self, size: usize) -> Value {
        let special = self.special();
        let (ordinary, merges) = ordinary_tokens(size - special.len());
        let mut ordinary = ordinary.into_iter();
        let vocabulary: Map<String, Value> = (0..size as u32)
            .map_while(|id| {
                let token = match self.token(id) {
                    Some(special) => special.to_owned(),
                    None => ordinary.next()?,
                };
                Some((token, id.into()))
            })
            .collect();
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
        });
        json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": special.iter().map(|&(id, content)| json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })).collect::<Vec<_>>(),
            "normalizer": null,
            "pre_tokenizer": byte_level,
            "post_processor": null,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": false,
                "vocab": vocabulary,
                "merges": merges,
            },
        })
    }
}

/// `count` tokens, and the merges that make those longer than a byte: the 256 bytes, then every token of letters with
/// one more letter behind it, in order.
fn ordinary_tokens(count: usize) -> (Vec<String>, Vec<String>) {
    let mut tokens: Vec<String> = byte_alphabet().into_iter().map(String::from).collect();
    tokens.truncate(count);
    let mut merges = Vec::new();
    // What may be lengthened: letters, and the space before a word.
    let mut stems: Vec<String> = ('a'..='z').chain(['Ġ']).map(String::from).collect();
    let mut next = 0;
    while tokens.len() < count {
        let stem = stems[next].clone();
        for letter in ('a'..='z').take(count - tokens.len()) {
            let token = format!("{stem}{letter}");
            merges.push(format!("{stem} {letter}"));
            stems.push(token.clone());
            tokens.push(token);
        }
        next += 1;
    }
    (tokens, merges)
}

/// The characters that stand for the bytes in a byte-level vocabulary, the printable ones first as in GPT-2 (Radford
/// et al. 2019, `bytes_to_unicode` of the released encoder).
fn byte_alphabet() -> Vec<char> {
    let printable = ('!'..='~').chain('\u{a1}'..='\u{ac}').chain('\u{ae}'..='\u{ff}');
    let others = 256 - printable.clone().count() as u32;
    printable
        .chain((0..others).filter_map(|i| char::from_u32(256 + i)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use deltamux_model::{ChatTemplate, Tokenizer};

    use super::*;

    fn tokenizer(family: TextFamily, size: usize) -> Tokenizer {
        let text = family.tokenizer(size).to_string();
        Tokenizer::from_json(text.as_bytes(), Path::new("tokenizer.json")).unwrap()
    }

    #[test]
    fn every_id_of_the_vocabulary_stands_for_something() {
        for (family, size) in [
            (TextFamily::Smol, 1024),
            (TextFamily::Mistral, 32_768),
            (TextFamily::Llama3, 128_256),
            (TextFamily::Qwen, 151_936),
        ] {
            let tokenizer = tokenizer(family, size);
            assert_eq!(tokenizer.vocab_size(), size, "{family:?}");
            let mut texts: Vec<_> = (0..size as u32).map(|id| tokenizer.token_bytes(id)).collect();
            texts.sort_unstable();
            texts.dedup();
            assert_eq!(texts.len(), size, "{family:?}: no two ids alike");
            assert!(!texts[0].is_empty(), "{family:?}");
            for &(id, token) in family.special() {
                assert_eq!(tokenizer.token_to_id(token), Some(id));
                assert!(tokenizer.is_special(id));
            }
            let named = [&[family.bos()], family.eos()].concat();
            assert!(named.iter().all(|&id| tokenizer.is_special(id)));
        }
    }

    #[test]
    fn any_text_survives_and_words_are_fewer_tokens_than_bytes() {
        let tokenizer = tokenizer(TextFamily::Qwen, 151_936);
        for text in ["The cat  sat.\n\tOn 12 mats!", "Füße – 猫 🐈\u{0}\u{7f}", " \u{fffd}ĠĊ"] {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, true).unwrap(), text);
        }
        let text = "serving many fine tunes of one base model";
        assert!(tokenizer.encode(text, false).unwrap().len() * 3 < text.len() * 2);
    }

    #[test]
    fn a_turn_of_each_template_is_read_as_special_tokens() {
        let messages = [json!({ "role": "user", "content": "Hi" })];
        for (family, size, expected) in [
            (
                TextFamily::Smol,
                1024,
                "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                TextFamily::Llama3,
                128_256,
                "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>\
                 <|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (TextFamily::Mistral, 32_768, "<s>[INST] Hi[/INST]"),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let target = Target::new(&dir.path().join("base"), false, "config.json").unwrap();
            family.write(size, 512, &target).unwrap();
            let template = ChatTemplate::from_dir(target.dir()).unwrap().unwrap();
            let text = template.render(&messages, None, true, &Map::new()).unwrap();
            assert_eq!(text, expected);
            let ids = tokenizer(family, size).encode(&text, false).unwrap();
            let special = family.special();
            let marked = ids
                .iter()
                .filter(|id| special.iter().any(|token| token.0 == **id))
                .count();
            assert_eq!(marked, expected.matches(['<', '[']).count());
        }
    }
}
