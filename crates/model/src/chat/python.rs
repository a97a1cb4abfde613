//! Python's texts of values: `json.dumps` and `repr` of floats.

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Nesting at which `json.dumps` is refused; messages from JSON nest at most 128 deep.
const MAX_DEPTH: usize = 256;

/// The arguments of `json.dumps` that transformers' `tojson` takes.
#[derive(Debug, Clone)]
pub(super) struct JsonStyle {
    /// Write everything beyond ASCII as `\u` escapes.
    pub(super) ensure_ascii: bool,
    /// Text of one level of indentation; without it everything is on one line.
    pub(super) indent: Option<String>,
    /// Between items, and between key and value.
    pub(super) separators: (String, String),
    /// Sort keys.
    pub(super) sort_keys: bool,
}

/// A JSON value as the template engine's; objects keep the order of their keys.
pub(super) fn from_json(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(integer), _, _) => Value::from(integer),
            (None, Some(integer), _) => Value::from(integer),
            (None, None, float) => Value::from(float.unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(from_json).collect::<Vec<_>>().into(),
        Json::Object(entries) => Value::from_pairs(entries.iter().map(|(key, item)| (key.as_str(), from_json(item)))),
    }
}

/// `json.dumps(value, …)`.
pub(super) fn json_dumps(value: &Value, style: &JsonStyle) -> Result<String, Error> {
    let mut out = String::new();
    dump(value, style, 0, &mut out)?;
    Ok(out)
}

fn dump(value: &Value, style: &JsonStyle, depth: usize, out: &mut String) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(invalid(format!("tojson: values nest deeper than {MAX_DEPTH}")));
    }
    match value.kind() {
        ValueKind::None => out.push_str("null"),
        ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
        ValueKind::Number => out.push_str(&number(value)),
        ValueKind::String => string(value.as_str().unwrap_or_default(), style.ensure_ascii, out),
        ValueKind::Seq | ValueKind::Iterable => {
            let items: Vec<_> = value.try_iter()?.collect();
            items_between('[', ']', &items, style, depth, out, |item, out| {
                dump(item, style, depth + 1, out)
            })?;
        }
        ValueKind::Map => {
            let mut entries = Vec::new();
            for key in value.try_iter()? {
                let item = value.get_item(&key)?;
                entries.push((key_text(&key)?, item));
            }
            if style.sort_keys {
                entries.sort_by(|a, b| a.0.cmp(&b.0));
            }
            items_between('{', '}', &entries, style, depth, out, |(key, item), out| {
                string(key, style.ensure_ascii, out);
                out.push_str(&style.separators.1);
                dump(item, style, depth + 1, out)
            })?;
        }
        kind => {
            return Err(invalid(format!(
                "tojson: an object of type {kind} is not JSON serializable"
            )));
        }
    }
    Ok(())
}

/// Writes a list or an object with its brackets, separators and line breaks.
fn items_between<T>(
    open: char,
    close: char,
    items: &[T],
    style: &JsonStyle,
    depth: usize,
    out: &mut String,
    mut write: impl FnMut(&T, &mut String) -> Result<(), Error>,
) -> Result<(), Error> {
    let new_line = |depth: usize, out: &mut String| {
        if let Some(indent) = &style.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    };
    out.push(open);
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(&style.separators.0);
        }
        new_line(depth + 1, out);
        write(item, out)?;
    }
    if !items.is_empty() {
        new_line(depth, out);
    }
    out.push(close);
    Ok(())
}

/// A key as `json.dumps` writes it: strings as they are, numbers, booleans and None as their JSON.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => Ok(number(key)),
        ValueKind::Bool => Ok(key.is_true().to_string()),
        ValueKind::None => Ok("null".to_owned()),
        kind => Err(invalid(format!(
            "tojson: a key of type {kind} is not JSON serializable"
        ))),
    }
}

fn string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if c < ' ' || (ensure_ascii && c > '~') => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    out.push_str(&format!("\\u{unit:04x}"));
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

fn number(value: &Value) -> String {
    match as_float(value) {
        Some(float) if float.is_nan() => "NaN".to_owned(),
        Some(float) if float.is_infinite() => format!("{}Infinity", if float < 0.0 { "-" } else { "" }),
        Some(float) => float_repr(float),
        None => value.to_string(),
    }
}

/// The number, when it is a float.
pub(super) fn as_float(value: &Value) -> Option<f64> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    is_float.then(|| f64::try_from(value.clone()).ok())?
}

/// `repr(float)`: the shortest digits that read back, in exponent form below 1e-4 and from 1e16.
pub(super) fn float_repr(float: f64) -> String {
    if !float.is_finite() {
        let sign = if float < 0.0 { "-" } else { "" };
        return if float.is_nan() {
            "nan".to_owned()
        } else {
            format!("{sign}inf")
        };
    }
    let scientific = format!("{float:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if float != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    let plain = float.to_string();
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

pub(super) fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_python_writes_them() {
        // The right column is what CPython 3.11 prints.
        for (float, text) in [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5e-5, "-2.5e-05"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (123456789012345680.0, "1.2345678901234568e+17"),
            (1e300, "1e+300"),
            (5e-324, "5e-324"),
            (f64::INFINITY, "inf"),
            (f64::NAN, "nan"),
        ] {
            assert_eq!(float_repr(float), text);
        }
    }

    fn style() -> JsonStyle {
        JsonStyle {
            ensure_ascii: false,
            indent: None,
            separators: (", ".to_owned(), ": ".to_owned()),
            sort_keys: false,
        }
    }

    fn value(json: &str) -> Value {
        from_json(&serde_json::from_str(json).expect("JSON"))
    }

    #[test]
    fn json_is_written_as_json_dumps_writes_it() {
        let source = r#"{"b": [1, 2.0, null, true], "a": {"é\"\n\u0001": "<&>'😀\u007f"}, "empty": [[], {}]}"#;
        let value = value(source);
        assert_eq!(
            json_dumps(&value, &style()).expect("JSON"),
            "{\"b\": [1, 2.0, null, true], \"a\": {\"é\\\"\\n\\u0001\": \"<&>'😀\u{7f}\"}, \"empty\": [[], {}]}"
        );
        let ascii = JsonStyle {
            ensure_ascii: true,
            sort_keys: true,
            separators: (",".to_owned(), ":".to_owned()),
            ..style()
        };
        assert_eq!(
            json_dumps(&value, &ascii).expect("JSON"),
            r#"{"a":{"\u00e9\"\n\u0001":"<&>'\ud83d\ude00\u007f"},"b":[1,2.0,null,true],"empty":[[],{}]}"#
        );
        let indented = JsonStyle {
            indent: Some("  ".to_owned()),
            separators: (",".to_owned(), ": ".to_owned()),
            ..style()
        };
        assert_eq!(
            json_dumps(&self::value(r#"{"a": [1, {}], "b": []}"#), &indented).expect("JSON"),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}"
        );
    }

    #[test]
    fn undefined_values_are_refused() {
        let error = json_dumps(&Value::UNDEFINED, &style()).expect_err("not JSON");
        assert!(error.to_string().contains("not JSON serializable"), "{error}");
    }
}
