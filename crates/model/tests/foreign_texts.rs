//! Configurations and chat templates of any content are read or refused: never a panic.

use std::path::Path;

use deltamux_model::{ChatTemplate, ModelConfig};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

const CONFIG: &str = r#"{"architectures":["LlamaForCausalLM"],"hidden_size":64,"intermediate_size":128,
"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"vocab_size":100,"max_position_embeddings":64,
"rms_norm_eps":1e-5,"rope_theta":10000.0,"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,
"high_freq_factor":4.0,"original_max_position_embeddings":32},"eos_token_id":[1,2]}"#;

const TEMPLATE: &str = "{% for m in messages %}{% if loop.first and m['role'] != 'system' %}{{ bos_token }}{% endif %}\
{{ m.role ~ '\\n' + m['content'] | trim }}{{ m['content'].split('x')[0][1:-1] }}{% endfor %}";

fn with_byte(text: &str, at: prop::sample::Index, byte: u8) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes[at.index(text.len())] = byte;
    bytes
}

fn render(source: &str, messages: &[Value]) {
    let special = [("bos_token".to_owned(), "<s>".to_owned())];
    if let Ok(template) = ChatTemplate::new(source, &special, Path::new("chat_template.jinja")) {
        let _ = template.render(messages, None, true, &Map::new());
    }
}

proptest! {
    #[test]
    fn configurations(bytes in prop::collection::vec(any::<u8>(), 0..100), at: prop::sample::Index, byte: u8) {
        let path = Path::new("config.json");
        let _ = ModelConfig::from_json(&bytes, path);
        let _ = ModelConfig::from_json(&with_byte(CONFIG, at, byte), path);
    }

    #[test]
    fn configurations_with_any_numbers(field in "[a-z_]+_size|num_[a-z_]+|head_dim|factor", number: i64) {
        let mut config: Value = serde_json::from_str(CONFIG).expect("JSON");
        config[field.as_str()] = json!(number);
        for key in ["hidden_size", "num_attention_heads", "num_key_value_heads", "vocab_size", "num_hidden_layers"] {
            let mut config = config.clone();
            config[key] = json!(number);
            let _ = ModelConfig::from_json(config.to_string().as_bytes(), Path::new("config.json"));
        }
    }

    #[test]
    fn templates(at: prop::sample::Index, byte in 0x20u8..0x7f, source in "(\\{\\{|\\{%|%\\}|\\}\\}|[a-z' .\\[\\]()|]){0,24}") {
        let messages = [json!({"role": "user", "content": "éx"})];
        render(&source, &messages);
        render(&String::from_utf8_lossy(&with_byte(TEMPLATE, at, byte)), &messages);
    }

    #[test]
    fn messages_of_any_shape(role in ".{0,8}", number: i64) {
        for content in [json!(null), json!(number), json!([role]), json!({"type": role}), json!(role)] {
            render(TEMPLATE, &[json!({"role": role, "content": content}), content]);
        }
    }
}
