//! Templates to pages. Everything from a bundle is escaped: as HTML by the template engine, and inside embedded JSON so
//! that no text can close the element it stands in.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, ErrorKind, UndefinedBehavior, context};
use serde::Serialize;

use crate::error::ReportError;
use crate::language::{Language, Texts};
use crate::page::{Overview, RunPage};

const TEMPLATES: [(&str, &str); 4] = [
    ("base.html", include_str!("../assets/templates/base.html")),
    ("blocks.html", include_str!("../assets/templates/blocks.html")),
    ("index.html", include_str!("../assets/templates/index.html")),
    ("run.html", include_str!("../assets/templates/run.html")),
];

/// Where a page stands in the site.
#[derive(Debug, Clone, Serialize)]
pub struct Place {
    /// From the page to the site's root, such as `../` or nothing.
    pub root: String,
    /// From the page to the list of runs in its language.
    pub home: String,
    /// The same page in the other languages.
    pub translations: Vec<Translation>,
}

/// A page in another language.
#[derive(Debug, Clone, Serialize)]
pub struct Translation {
    /// BCP 47 tag.
    pub language: Language,
    /// The language's name in itself.
    pub name: String,
    /// From here to there.
    pub href: String,
}

/// Pages of one language.
pub struct Renderer {
    environment: Environment<'static>,
    language: Language,
}

impl Renderer {
    /// Compiles the templates.
    pub fn new(texts: Texts) -> Result<Self, ReportError> {
        let language = texts.language();
        let texts = Arc::new(texts);
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
        environment.add_function("t", move |key: &str, values: Kwargs| translate(&texts, key, &values));
        environment.add_filter("embedded_json", |value: Value| embedded_json(&value));
        for (name, source) in TEMPLATES {
            environment.add_template(name, source)?;
        }
        Ok(Self { environment, language })
    }

    /// The list of runs.
    pub fn index(&self, overview: &Overview, place: &Place) -> Result<String, ReportError> {
        self.page(
            "index.html",
            context! { overview => Value::from(Serde(overview)), place => Value::from(Serde(place)) },
        )
    }

    /// A run's page.
    pub fn run(&self, run: &RunPage, place: &Place) -> Result<String, ReportError> {
        self.page(
            "run.html",
            context! { run => Value::from(Serde(run)), place => Value::from(Serde(place)) },
        )
    }

    fn page(&self, template: &str, content: Value) -> Result<String, ReportError> {
        let frame = context! { language => self.language.tag(), version => env!("CARGO_PKG_VERSION"), ..content };
        Ok(self.environment.get_template(template)?.render(frame)?)
    }
}

fn translate(texts: &Texts, key: &str, values: &Kwargs) -> Result<String, minijinja::Error> {
    let pattern = texts
        .find(key)
        .ok_or_else(|| minijinja::Error::new(ErrorKind::InvalidOperation, format!("no text for `{key}`")))?;
    let mut pairs = Vec::new();
    for name in values.args() {
        pairs.push((name, values.get::<Value>(name)?.to_string()));
    }
    let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (*name, value.as_str())).collect();
    Ok(crate::language::fill(pattern, &pairs))
}

/// JSON for a `<script type="application/json">`: `<`, `>` and `&` as escapes that JSON undoes, so neither `</script>`
/// nor `<!--` can occur in it, and the two line separators that are no JSON white space.
fn embedded_json(value: &Value) -> Result<Value, minijinja::Error> {
    let json =
        serde_json::to_string(value).map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    Ok(Value::from_safe_string(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_json_cannot_close_its_element_and_means_the_same() {
        let hostile = "</script><script>alert(1)</script><!-- & \u{2028}";
        let out = embedded_json(&Value::from(Serde(serde_json::json!({ "name": hostile }))))
            .unwrap()
            .to_string();
        assert!(!out.contains(['<', '>', '&', '\u{2028}']), "{out}");
        let back: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(back["name"], hostile);
    }

    #[test]
    fn templates_compile_in_every_language() {
        for language in Language::ALL {
            Renderer::new(Texts::load(language).unwrap()).unwrap();
        }
    }
}
