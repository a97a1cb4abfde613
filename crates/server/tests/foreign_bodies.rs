//! The body of a request, whatever its bytes, is read or refused with a field's name: never a panic.

use deltamux_server::check_chat_request;
use proptest::prelude::*;
use serde_json::{Value, json};

const BODY: &str = r#"{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi"}]}],"temperature":0.5,
"stop":["a"],"max_tokens":3,"logit_bias":{"7":1.5},"stream":true,"stream_options":{"include_usage":true},"n":2,"seed":1}"#;

const FIELDS: [&str; 12] = [
    "model",
    "messages",
    "temperature",
    "top_p",
    "stop",
    "max_tokens",
    "logit_bias",
    "stream_options",
    "n",
    "seed",
    "logprobs",
    "chat_template_kwargs",
];

proptest! {
    #[test]
    fn any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, byte: u8) {
        let _ = check_chat_request(&bytes);
        let mut body = BODY.as_bytes().to_vec();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = check_chat_request(&body);
    }

    #[test]
    fn any_value_in_any_field(field in prop::sample::select(FIELDS.to_vec()), number: i64, float: f64, text in ".{0,8}") {
        for value in [json!(number), json!(float), json!(text), json!([number]), json!({text.as_str(): float}), json!(null)] {
            let mut body: Value = serde_json::from_str(BODY).expect("JSON");
            body[field] = value;
            let _ = check_chat_request(body.to_string().as_bytes());
        }
    }
}
