//! The template engine, set up as transformers sets up Jinja2.
//!
//! transformers renders in Jinja2's sandbox with `trim_blocks`, `lstrip_blocks`, loop controls, a `tojson` that is
//! `json.dumps(…, ensure_ascii=False)`, `raise_exception` and `strftime_now`.

use std::error::Error as _;
use std::fmt;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, State};

use super::methods;
use super::python::{JsonStyle, as_float, float_repr, invalid, json_dumps};

/// Work that one rendering may do, in the engine's instructions and units of 64 bytes: far more than any real
/// conversation needs (one of 10,000 messages takes about a million), and done in a second or two.
const FUEL: u64 = 5_000_000;
/// Widest indentation of `tojson`.
const MAX_INDENT: usize = 64;

/// An environment without templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("the default delimiters are distinct"));
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_fuel(Some(FUEL));
    environment.set_debug(false);
    environment.set_unknown_method_callback(methods::call);
    environment.set_formatter(|out, state, value| match as_float(value) {
        Some(float) => out.write_str(&float_repr(float)).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    });
    environment.add_filter("tojson", tojson);
    environment.add_filter("escape", escape);
    environment.add_filter("e", escape);
    environment.add_test("sequence", is_sequence);
    environment.add_test("iterable", is_iterable);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    environment
}

/// The message of a template error, on one line: that of `raise_exception` alone, else the engine's with the line.
pub(super) fn message(error: &Error) -> String {
    let mut source = error.source();
    while let Some(inner) = source {
        if let Some(raised) = inner.downcast_ref::<Raised>() {
            return one_line(&raised.to_string());
        }
        source = inner.source();
    }
    one_line(&error.to_string())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What `raise_exception` was called with.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: &Value) -> Result<Value, Error> {
    let raised = Raised(message.to_string());
    Err(Error::new(ErrorKind::InvalidOperation, "raise_exception").with_source(raised))
}

/// `datetime.now().strftime(format)`.
fn strftime_now(format: &str) -> Result<String, Error> {
    let now = jiff::ZonedDateTime::now();
    jiff::fmt::strtime::format(format, &now).map_err(|e| invalid(format!("strftime_now({format:?}): {e}")))
}

/// `json.dumps` with transformers' arguments and defaults.
fn tojson(state: &State<'_, '_>, value: &Value, ensure_ascii: Option<bool>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs
        .get::<Option<Value>>("indent")?
        .filter(|indent| !indent.is_none())
    {
        None => None,
        Some(indent) => Some(match (indent.as_str(), indent.as_usize()) {
            (Some(text), _) if text.len() <= MAX_INDENT => text.to_owned(),
            (None, Some(width)) if width <= MAX_INDENT => " ".repeat(width),
            _ => {
                return Err(invalid(format!(
                    "tojson: indent is {indent}: expected at most {MAX_INDENT}"
                )));
            }
        }),
    };
    let separators = match kwargs.get::<Option<Vec<String>>>("separators")? {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some(pair) => <[String; 2]>::try_from(pair)
            .map(Into::into)
            .map_err(|_| invalid("tojson: separators must be a pair of texts".to_owned()))?,
    };
    let style = JsonStyle {
        ensure_ascii: match ensure_ascii {
            Some(ascii) => ascii,
            None => kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        },
        indent,
        separators,
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    kwargs.assert_all_used()?;
    let text = json_dumps(value, &style)?;
    state.consume_fuel(text.len() as u64 / 64)?;
    Ok(Value::from(text))
}

/// Jinja2's `sequence` test: everything with a length and an index operator, which in Python includes texts and
/// dictionaries.
fn is_sequence(value: &Value) -> bool {
    matches!(
        value.kind(),
        ValueKind::Seq | ValueKind::String | ValueKind::Map | ValueKind::Undefined
    )
}

/// Jinja2's `iterable` test; the engine itself would let None pass.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// HTML escapes as markupsafe writes them.
fn escape(value: &Value) -> String {
    let mut escaped = String::new();
    for c in value.to_string().chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\'' => escaped.push_str("&#39;"),
            '"' => escaped.push_str("&#34;"),
            c => escaped.push(c),
        }
    }
    escaped
}
