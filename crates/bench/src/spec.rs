//! Values that are written the same way on the command line and in `run.json`.

/// Why a value was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{found}` is no {what}: expected {expected}")]
pub struct SpecError {
    /// What was being read.
    pub what: &'static str,
    /// What was found.
    pub found: String,
    /// The forms that are understood.
    pub expected: &'static str,
}

/// Gives a type with `Display` and `FromStr<Err = SpecError>` its serde form: the same text.
macro_rules! serde_as_text {
    ($name:ty) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <String as serde::Deserialize>::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }

        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!({ "type": "string", "description": Self::FORMS })
            }
        }
    };
}

pub(crate) use serde_as_text;

/// A finite number above zero.
pub(crate) fn positive(text: &str) -> Option<f64> {
    text.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x > 0.0)
}
