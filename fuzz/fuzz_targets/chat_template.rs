//! A foreign chat template on foreign messages: never panics. The input is the template's text, a zero byte, and the
//! messages as JSON.
#![no_main]

use std::path::Path;

use deltamux_model::ChatTemplate;
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.splitn(2, |&byte| byte == 0);
    let (Some(source), Some(messages)) = (parts.next(), parts.next()) else {
        return;
    };
    let Ok(source) = std::str::from_utf8(source) else {
        return;
    };
    let Ok(messages) = serde_json::from_slice::<Vec<Value>>(messages) else {
        return;
    };
    let special = [("bos_token".to_owned(), "<s>".to_owned())];
    if let Ok(template) = ChatTemplate::new(source, &special, Path::new("chat_template.jinja")) {
        let _ = template.render(&messages, None, true, &Map::new());
    }
});
