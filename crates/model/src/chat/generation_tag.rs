//! The tag `{% generation %}`, with which transformers marks an assistant's tokens for training.
//!
//! The template engine has no tags of its users' making. Rendering to text, the tag is a scope and nothing else, and so
//! is `{% with %}`: the one is replaced by the other, with its whitespace control.

/// The source with `generation` and `endgeneration` tags replaced by `with` and `endwith`.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        result.push_str(before);
        rest = tag;
        for (name, replacement) in [("generation", "with"), ("endgeneration", "endwith")] {
            if let Some(after) = after_tag(tag, name) {
                let inside = &tag[..tag.len() - after.len()];
                result.push_str(&inside.replacen(name, replacement, 1));
                rest = after;
            }
        }
    }
    result.push_str(rest);
    result
}

/// What follows a tag that consists of `name` only; `tag` begins after its `{%`.
fn after_tag<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let inner = tag.strip_prefix(['-', '+']).unwrap_or(tag);
    let inner = inner.trim_start().strip_prefix(name)?.trim_start();
    inner.strip_prefix(['-', '+']).unwrap_or(inner).strip_prefix("%}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_become_scopes_and_keep_their_whitespace_control() {
        assert_eq!(
            without_generation_tags("a {%- generation -%} b {% endgeneration %} {%endgeneration-%}{%+ generation %}"),
            "a {%- with -%} b {% endwith %} {%endwith-%}{%+ with %}"
        );
    }

    #[test]
    fn everything_else_stays() {
        for source in [
            "{% if generation %}x{% endif %}",
            "generation {{ generation }}",
            "{% generation",
            "{%",
            "ü{%-",
        ] {
            assert_eq!(without_generation_tags(source), source);
        }
    }
}
