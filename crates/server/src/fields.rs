//! Reading a request's fields: types and ranges checked, the field named in every refusal.
//!
//! OpenAI's API takes `null` for "not given" and ignores unknown fields, so fields are asked for by name here rather
//! than derived: each refusal then says the path, what was expected and what was found.

use std::fmt::Display;
use std::ops::RangeInclusive;

use axum::http::StatusCode;
use serde_json::{Map, Value};

use crate::errors::{ApiError, codes};

/// Parses a body that must be a JSON object.
pub fn parse_body(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            codes::INVALID_TYPE,
            format!("the body must be a JSON object, found {}", describe(&other)),
        )),
        Err(error) => Err(ApiError::new(
            StatusCode::BAD_REQUEST,
            codes::INVALID_JSON,
            format!("the body is not valid JSON: {error}"),
        )),
    }
}

/// A value in words, for messages; long strings are not repeated.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(b) => format!("the boolean {b}"),
        Value::Number(n) => format!("the number {n}"),
        Value::String(s) if s.chars().count() <= 40 => format!("the string {s:?}"),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

/// The fields of an object at a path of the body.
#[derive(Debug, Clone)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// The fields of the body itself.
    pub fn body(map: &'a Map<String, Value>) -> Self {
        Self {
            map,
            path: String::new(),
        }
    }

    /// The fields of a value at `path`, which must be an object.
    pub fn of(value: &'a Value, path: String) -> Result<Self, ApiError> {
        match value {
            Value::Object(map) => Ok(Self { map, path }),
            other => Err(ApiError::invalid_type(&path, "an object", &describe(other))),
        }
    }

    /// The path of a field.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// A field's value; `null` is as good as absent.
    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn wrong_type(&self, name: &str, expected: &str, found: &Value) -> ApiError {
        ApiError::invalid_type(&self.path(name), expected, &describe(found))
    }

    /// A string.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.wrong_type(name, "a string", other)),
        }
    }

    /// A string that must be there.
    pub fn required_string(&self, name: &str) -> Result<&'a str, ApiError> {
        self.string(name)?.ok_or_else(|| ApiError::missing(&self.path(name)))
    }

    /// A boolean.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.wrong_type(name, "a boolean", other)),
        }
    }

    /// A number in a range.
    pub fn number(&self, name: &str, allowed: RangeInclusive<f64>) -> Result<Option<f32>, ApiError> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        let number = value.as_f64().ok_or_else(|| self.wrong_type(name, "a number", value))?;
        in_range(&self.path(name), number, &allowed)?;
        Ok(Some(number as f32))
    }

    /// An integer in a range.
    pub fn integer(&self, name: &str, allowed: RangeInclusive<i64>) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.value(name) else {
            return Ok(None);
        };
        integer_at(value, &self.path(name), &allowed).map(Some)
    }

    /// A list.
    pub fn list(&self, name: &str) -> Result<Option<&'a [Value]>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Array(items)) => Ok(Some(items)),
            Some(other) => Err(self.wrong_type(name, "a list", other)),
        }
    }

    /// An object.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>, ApiError> {
        match self.value(name) {
            None => Ok(None),
            Some(value) => Fields::of(value, self.path(name)).map(Some),
        }
    }

    /// The entries of the object.
    pub fn entries(&self) -> &'a Map<String, Value> {
        self.map
    }

    /// Refuses a field that is given and not one of the `harmless` values.
    pub fn refuse(&self, name: &str, harmless: &[Value], why: &str) -> Result<(), ApiError> {
        match self.value(name) {
            Some(value) if !harmless.contains(value) => Err(ApiError::unsupported(&self.path(name), why)),
            _ => Ok(()),
        }
    }
}

/// An integer in a range, at a path.
pub fn integer_at(value: &Value, path: &str, allowed: &RangeInclusive<i64>) -> Result<i64, ApiError> {
    let Value::Number(number) = value else {
        return Err(ApiError::invalid_type(path, "an integer", &describe(value)));
    };
    if let Some(integer) = number.as_i64() {
        in_range(path, integer, allowed)?;
        Ok(integer)
    } else if number.is_u64() {
        Err(out_of_range(path, number, allowed))
    } else {
        Err(ApiError::invalid_type(path, "an integer", &describe(value)))
    }
}

fn in_range<T: PartialOrd + Bound>(path: &str, value: T, allowed: &RangeInclusive<T>) -> Result<(), ApiError> {
    if allowed.contains(&value) {
        Ok(())
    } else {
        Err(out_of_range(path, value, allowed))
    }
}

/// A bound of a range, and whether it is one that a reader has to know.
trait Bound: Display {
    /// Whether the bound is the type's own limit.
    fn is_unbounded(&self) -> bool;
}

impl Bound for i64 {
    fn is_unbounded(&self) -> bool {
        *self == i64::MAX || *self == i64::MIN
    }
}

impl Bound for f64 {
    fn is_unbounded(&self) -> bool {
        self.abs() >= f64::from(f32::MAX)
    }
}

fn out_of_range<T: Bound>(path: &str, found: impl Display, allowed: &RangeInclusive<T>) -> ApiError {
    let (low, high) = (allowed.start(), allowed.end());
    let rule = match (low.is_unbounded(), high.is_unbounded()) {
        (false, true) => format!("at least {low}"),
        (true, false) => format!("at most {high}"),
        _ => format!("between {low} and {high}"),
    };
    ApiError::invalid_value(path, format_args!("must be {rule}, found {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fields(value: &Value) -> Fields<'_> {
        Fields::of(value, String::new()).unwrap()
    }

    #[test]
    fn null_and_absent_fields_are_not_given() {
        let value = json!({"a": null});
        for name in ["a", "b"] {
            assert_eq!(fields(&value).string(name).unwrap(), None);
            assert_eq!(fields(&value).number(name, 0.0..=1.0).unwrap(), None);
            assert_eq!(fields(&value).boolean(name).unwrap(), None);
        }
    }

    #[test]
    fn a_wrong_type_names_the_field_the_expected_and_the_found() {
        let value = json!({"temperature": "hot", "n": 1.5, "options": {"stream": 1}});
        let error = fields(&value).number("temperature", 0.0..=2.0).unwrap_err();
        assert_eq!(
            error.message,
            "`temperature`: expected a number, found the string \"hot\""
        );
        assert_eq!(error.param.as_deref(), Some("temperature"));
        assert_eq!(error.code, codes::INVALID_TYPE);
        let error = fields(&value).integer("n", 1..=8).unwrap_err();
        assert_eq!(error.message, "`n`: expected an integer, found the number 1.5");
        let options = fields(&value).object("options").unwrap().unwrap();
        let error = options.boolean("stream").unwrap_err();
        assert_eq!(error.param.as_deref(), Some("options.stream"));
    }

    #[test]
    fn a_value_out_of_range_is_refused_with_the_range() {
        let value = json!({"temperature": 3.5, "n": 0, "big": u64::MAX, "max_tokens": -1});
        let error = fields(&value).number("temperature", 0.0..=2.0).unwrap_err();
        assert_eq!(error.message, "`temperature`: must be between 0 and 2, found 3.5");
        assert_eq!(error.code, codes::INVALID_VALUE);
        let error = fields(&value).integer("n", 1..=8).unwrap_err();
        assert_eq!(error.message, "`n`: must be between 1 and 8, found 0");
        let error = fields(&value).integer("max_tokens", 1..=i64::MAX).unwrap_err();
        assert_eq!(error.message, "`max_tokens`: must be at least 1, found -1");
        let error = fields(&value).integer("big", 0..=8).unwrap_err();
        assert_eq!(
            error.message,
            "`big`: must be between 0 and 8, found 18446744073709551615"
        );
    }

    #[test]
    fn a_body_that_is_no_object_or_no_json_is_refused() {
        assert_eq!(parse_body(b"{\"model\": ").unwrap_err().code, codes::INVALID_JSON);
        assert_eq!(parse_body(b"").unwrap_err().code, codes::INVALID_JSON);
        assert_eq!(
            parse_body(b"{\"a\": \"\\ud800\"}").unwrap_err().code,
            codes::INVALID_JSON
        );
        assert_eq!(parse_body(b"[]").unwrap_err().code, codes::INVALID_TYPE);
        assert!(parse_body(b"{}").unwrap().is_empty());
    }
}
