//! The two languages of the site and their string tables.

use std::collections::BTreeMap;

use serde::Serialize;

/// A language that pages are written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// English.
    En,
    /// German.
    De,
}

impl Language {
    /// All of them, the default one first.
    pub const ALL: [Language; 2] = [Language::En, Language::De];

    /// The BCP 47 tag.
    #[must_use]
    pub fn tag(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::De => "de",
        }
    }

    fn source(self) -> &'static str {
        match self {
            Self::En => include_str!("../assets/text/en.json"),
            Self::De => include_str!("../assets/text/de.json"),
        }
    }
}

/// The strings of one language by dotted key, such as `arrivals.title`.
#[derive(Debug, Clone)]
pub struct Texts {
    language: Language,
    strings: BTreeMap<String, String>,
}

impl Texts {
    /// Reads the table that is built into the program.
    pub fn load(language: Language) -> Result<Self, serde_json::Error> {
        let root: serde_json::Value = serde_json::from_str(language.source())?;
        let mut strings = BTreeMap::new();
        flatten(&root, String::new(), &mut strings);
        Ok(Self { language, strings })
    }

    /// The language of the table.
    #[must_use]
    pub fn language(&self) -> Language {
        self.language
    }

    /// The string, if the table has it.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<&str> {
        self.strings.get(key).map(String::as_str)
    }

    /// The string. A key that is missing shows itself: a gap is visible on the page, and a test looks for it.
    #[must_use]
    pub fn get(&self, key: &str) -> String {
        self.find(key).unwrap_or(key).to_owned()
    }

    /// The string with `{name}` replaced by the value given for `name`. Values are not searched for names again.
    #[must_use]
    pub fn with(&self, key: &str, values: &[(&str, &str)]) -> String {
        fill(self.find(key).unwrap_or(key), values)
    }
}

/// Replaces each `{name}` in one pass.
pub(crate) fn fill(pattern: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        let after = &rest[open + 1..];
        let replaced = after.find('}').and_then(|close| {
            let value = values.iter().find(|(name, _)| *name == &after[..close])?.1;
            Some((value, close))
        });
        match replaced {
            Some((value, close)) => {
                out.push_str(value);
                rest = &after[close + 1..];
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

fn flatten(value: &serde_json::Value, key: String, into: &mut BTreeMap<String, String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (name, inner) in map {
                let key = if key.is_empty() {
                    name.clone()
                } else {
                    format!("{key}.{name}")
                };
                flatten(inner, key, into);
            }
        }
        serde_json::Value::String(text) => {
            into.insert(key, text.clone());
        }
        other => {
            into.insert(key, other.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_languages_have_the_same_keys_and_placeholders() {
        let [en, de] = Language::ALL.map(|language| Texts::load(language).unwrap());
        let placeholders = |text: &str| {
            let mut names: Vec<_> = text
                .split('{')
                .skip(1)
                .filter_map(|part| Some(part.split_once('}')?.0.to_owned()))
                .collect();
            names.sort();
            names
        };
        assert_eq!(
            en.strings.keys().collect::<Vec<_>>(),
            de.strings.keys().collect::<Vec<_>>()
        );
        for (key, text) in &en.strings {
            assert_eq!(
                placeholders(text),
                placeholders(&de.strings[key]),
                "placeholders of {key}"
            );
        }
    }

    #[test]
    fn every_key_that_pages_ask_for_is_in_the_tables() {
        let texts = Texts::load(Language::En).unwrap();
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/page");
        let mut seen = 0;
        for entry in fs_err::read_dir(folder).unwrap() {
            let source = fs_err::read_to_string(entry.unwrap().path()).unwrap();
            let source = source.split("#[cfg(test)]").next().unwrap();
            for literal in source.split('"').skip(1).step_by(2) {
                let is_key = literal.contains('.')
                    && literal.starts_with(|c: char| c.is_ascii_lowercase())
                    && literal
                        .bytes()
                        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._".contains(&b));
                if is_key {
                    // Either a whole key, or the start of those that are put together.
                    let start = format!("{literal}.");
                    let known =
                        texts.find(literal).is_some() || texts.strings.keys().any(|key| key.starts_with(&start));
                    assert!(known, "{literal}");
                    seen += 1;
                }
            }
        }
        assert!(
            seen > 50,
            "only {seen} keys found: the search no longer fits the sources"
        );
    }

    #[test]
    fn a_value_that_looks_like_a_placeholder_is_left_alone() {
        assert_eq!(fill("{a} of {b}, {c}", &[("a", "{b}"), ("b", "2")]), "{b} of 2, {c}");
    }
}
