//! Prompts equal transformers' byte for byte.

mod common;

use std::path::Path;

use common::{models, smollm2, tiny};
use deltamux_model::{ChatTemplate, TemplateError, Tokenizer};
use serde_json::{Map, Value, json};

#[derive(serde::Deserialize)]
struct Golden {
    template: String,
    case: String,
    messages: Vec<Value>,
    tools: Option<Vec<Value>>,
    add_generation_prompt: bool,
    kwargs: Map<String, Value>,
    special: Map<String, Value>,
    rendered: Option<String>,
    error: Option<String>,
}

/// The template of a golden; `None` for SmolLM2's where there is no SmolLM2.
fn template(golden: &Golden, smollm2: Option<&Path>) -> Option<ChatTemplate> {
    if golden.template == "smollm2" {
        return Some(ChatTemplate::from_dir(smollm2?).expect("valid").expect("a template"));
    }
    let path = models().join("templates").join(format!("{}.jinja", golden.template));
    let source = fs_err::read_to_string(&path).expect("the template");
    let special: Vec<_> = golden
        .special
        .iter()
        .map(|(name, token)| (name.clone(), token.as_str().expect("a token").to_owned()))
        .collect();
    Some(ChatTemplate::new(&source, &special, &path).expect("a valid template"))
}

/// Among them case o11, github.com/ollama/ollama/issues/6873: a system prompt on Qwen2.5.
#[test]
fn case_o11_every_golden_is_rendered_byte_for_byte() {
    let goldens: Vec<Golden> =
        serde_json::from_slice(&fs_err::read(models().join("golden/templates.json")).expect("goldens")).expect("JSON");
    let smollm2 = smollm2();
    let mut rendered = 0;
    for golden in &goldens {
        let Some(template) = template(golden, smollm2.as_deref()) else {
            continue;
        };
        let result = template.render(
            &golden.messages,
            golden.tools.as_deref(),
            golden.add_generation_prompt,
            &golden.kwargs,
        );
        let name = format!("{} {} {}", golden.template, golden.case, golden.add_generation_prompt);
        match (result, &golden.rendered, &golden.error) {
            (Ok(text), Some(expected), _) => assert_eq!(&text, expected, "{name}"),
            (Err(TemplateError::Render(what)), None, Some(expected)) => {
                assert!(what.contains(expected), "{name}: {what}")
            }
            (result, _, _) => panic!("{name}: {result:?}"),
        }
        rendered += 1;
    }
    assert!(rendered >= 70, "{rendered} goldens");
}

/// Made by `models/golden/make/template_constructs.py`.
#[test]
fn every_construct_gives_what_transformers_gives() {
    let path = models().join("golden/template-constructs.json");
    let golden: Value = serde_json::from_slice(&fs_err::read(path).expect("goldens")).expect("JSON");
    for case in golden["cases"].as_array().expect("cases") {
        let source = case["template"].as_str().expect("a template");
        let result = render(source, golden["messages"].clone(), json!({}));
        match (result, case["rendered"].as_str()) {
            (Ok(text), Some(expected)) => assert_eq!(text, expected, "{source}"),
            (Err(_), None) => {}
            (result, expected) => panic!("{source}: {result:?}, expected {expected:?} ({})", case["error"]),
        }
    }
}

fn render(source: &str, messages: Value, kwargs: Value) -> Result<String, TemplateError> {
    let special = [("bos_token".to_owned(), "<s>".to_owned())];
    let template = ChatTemplate::new(source, &special, Path::new("chat_template.jinja"))?;
    let messages = messages.as_array().expect("a list").clone();
    template.render(&messages, None, true, kwargs.as_object().expect("an object"))
}

/// Case o1: github.com/vllm-project/vllm/pull/27515. The template writes the BOS; encoding must not add another.
#[test]
fn case_o1_a_llama_3_prompt_has_exactly_one_bos() {
    let path = models().join("templates/llama3-format.jinja");
    let special = [("bos_token".to_owned(), "<|im_start|>".to_owned())];
    let template =
        ChatTemplate::new(&fs_err::read_to_string(&path).expect("the template"), &special, &path).expect("valid");
    let prompt = template
        .render(&[json!({"role": "user", "content": "Hi"})], None, true, &Map::new())
        .expect("a prompt");
    let tokenizer = Tokenizer::from_dir(&tiny("base")).expect("a tokenizer");
    let ids = tokenizer.encode(&prompt, false).expect("ids");
    let bos = tokenizer.token_to_id("<|im_start|>").expect("the token");
    assert_eq!(ids.iter().filter(|id| **id == bos).count(), 1);
    assert_eq!(ids.first(), Some(&bos));
}

#[test]
fn an_exception_of_the_template_is_its_message_alone() {
    let path = models().join("templates/mistral-nemo.jinja");
    let source = fs_err::read_to_string(&path).expect("the template");
    let messages = json!([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]);
    let error = render(&source, messages, json!({}))
        .expect_err("roles do not alternate")
        .to_string();
    assert_eq!(
        error,
        "chat template: After the optional system message, conversation roles must alternate \
         user/assistant/user/assistant/..."
    );
}

#[test]
fn other_failures_name_the_line() {
    let error = render(
        "a\n{{ messages[0].role.nothing.at.all }}",
        json!([{"role": "x"}]),
        json!({}),
    );
    let error = error.expect_err("no such attribute").to_string();
    assert!(
        error.contains("undefined") && error.contains(":2)") && !error.contains('\n'),
        "{error}"
    );
    let error = ChatTemplate::new("{% if %}", &[], Path::new("x/chat_template.jinja")).expect_err("no condition");
    assert!(
        error
            .to_string()
            .starts_with("x/chat_template.jinja: chat template: syntax error"),
        "{error}"
    );
}

#[test]
fn variables_of_the_request_cannot_be_replaced() {
    let error = render("x", json!([]), json!({"messages": []}))
        .expect_err("reserved")
        .to_string();
    assert!(error.contains("argument messages"), "{error}");
    assert_eq!(
        render("{{ bos_token }}", json!([]), json!({"bos_token": "B"})).expect("text"),
        "B"
    );
}

#[test]
fn a_hostile_template_ends() {
    for source in [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 'a' * 100000000000 }}",
        "{% macro f(x) %}{{ f(x) }}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    ] {
        let error = render(source, json!([]), json!({})).expect_err(source).to_string();
        assert!(error.starts_with("chat template: "), "{error}");
    }
}

#[test]
fn the_date_of_today_is_written_in_the_asked_format() {
    let text = render("{{ strftime_now('%Y-%m-%d %d %b %Y') }}", json!([]), json!({})).expect("a date");
    let (iso, long) = text.split_once(' ').expect("two dates");
    assert_eq!(iso.len(), 10);
    assert!(long.starts_with(&iso[8..]) && long.ends_with(&iso[..4]), "{text}");
    let error = render("{{ strftime_now('%') }}", json!([]), json!({}))
        .expect_err("half a directive")
        .to_string();
    assert!(error.contains("strftime_now"), "{error}");
}

/// What directories hold, and where each part is read from.
mod directories {
    use super::*;

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            fs_err::write(dir.path().join(name), text).expect("written");
        }
        dir
    }

    fn text(dir: &Path, tools: Option<&[Value]>) -> String {
        let template = ChatTemplate::from_dir(dir).expect("valid").expect("a template");
        template.render(&[], tools, false, &Map::new()).expect("text")
    }

    #[test]
    fn the_file_goes_before_the_field() {
        let dir = dir(&[
            (
                "chat_template.jinja",
                "file {{ bos_token }}{{ eos_token }}{{ pad_token }}",
            ),
            (
                "tokenizer_config.json",
                r#"{"chat_template": "field", "bos_token": {"content": "B"}, "eos_token": "E", "pad_token": null}"#,
            ),
            ("special_tokens_map.json", r#"{"eos_token": "other", "pad_token": "P"}"#),
        ]);
        assert_eq!(text(dir.path(), None), "file BE");
    }

    #[test]
    fn a_list_may_have_a_template_for_tools() {
        let dir = dir(&[(
            "tokenizer_config.json",
            r#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]}"#,
        )]);
        assert_eq!(text(dir.path(), None), "plain");
        assert_eq!(text(dir.path(), Some(&[])), "tools");
    }

    #[test]
    fn a_model_without_a_template_has_none() {
        assert!(ChatTemplate::from_dir(dir(&[]).path()).expect("no error").is_none());
        let null = dir(&[("tokenizer_config.json", r#"{"chat_template": null}"#)]);
        assert!(ChatTemplate::from_dir(null.path()).expect("no error").is_none());
    }

    #[test]
    fn malformed_files_are_refused_by_name() {
        for (config, expected) in [
            (
                "[1]",
                "tokenizer_config.json: chat template: the file is not a valid JSON object",
            ),
            (
                r#"{"chat_template": 1}"#,
                "expected a string, or a list of named templates",
            ),
            (
                r#"{"chat_template": [{"name": "default"}]}"#,
                "lacks its name or its template",
            ),
            (
                r#"{"chat_template": [{"name": "rag", "template": ""}]}"#,
                "no entry named \"default\"",
            ),
            (
                r#"{"chat_template": "{% endif %}"}"#,
                "tokenizer_config.json: chat template: syntax error",
            ),
        ] {
            let dir = dir(&[("tokenizer_config.json", config)]);
            let error = ChatTemplate::from_dir(dir.path()).expect_err(config).to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
