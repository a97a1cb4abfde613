//! Methods of Python's texts that templates call and the engine's own collection lacks.

use minijinja::value::{Tuple, Value, from_args};
use minijinja::{Error, State};
use minijinja_contrib::pycompat::unknown_method_callback;

/// Calls a method of a text or a list as Python does.
pub(super) fn call(state: &mut State<'_, '_>, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return unknown_method_callback(state, value, method, args);
    };
    match method {
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(args)?;
            Ok(Value::from(rsplit(text, separator, most)))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            Ok(triple(before, &text[before.len()..text.len() - after.len()], after))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
            Ok(triple(before, &text[before.len()..text.len() - after.len()], after))
        }
        _ => unknown_method_callback(state, value, method, args),
    }
}

fn triple(before: &str, separator: &str, after: &str) -> Value {
    Value::from(Tuple::from([before, separator, after].map(Value::from)))
}

/// `str.rsplit`: from the end, at most `most` times; without a separator at runs of white space.
fn rsplit(text: &str, separator: Option<&str>, most: Option<i64>) -> Vec<String> {
    let mut left = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX);
    let mut parts = Vec::new();
    let mut rest = if separator.is_some() { text } else { text.trim_end() };
    while left > 0 {
        let cut = match separator {
            Some(separator) => rest.rsplit_once(separator),
            None => rest.rsplit_once(char::is_whitespace),
        };
        let Some((before, after)) = cut else { break };
        parts.push(after.to_owned());
        rest = if separator.is_some() { before } else { before.trim_end() };
        left -= 1;
    }
    if separator.is_some() || !rest.is_empty() {
        parts.push(rest.to_owned());
    }
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_from_the_end_as_python_splits_them() {
        // The right column is what CPython 3.11 gives.
        for (text, separator, most, parts) in [
            ("a,b,c", Some(","), None, &["a", "b", "c"][..]),
            ("a,b,c", Some(","), Some(1), &["a,b", "c"]),
            ("a,b,c", Some(","), Some(-1), &["a", "b", "c"]),
            ("abc", Some(","), None, &["abc"]),
            ("", Some(","), None, &[""]),
            ("a,", Some(","), None, &["a", ""]),
            ("  a  b c ", None, None, &["a", "b", "c"]),
            ("  a  b c ", None, Some(1), &["  a  b", "c"]),
            ("   ", None, None, &[]),
        ] {
            assert_eq!(rsplit(text, separator, most), parts, "{text:?} {separator:?} {most:?}");
        }
    }
}
