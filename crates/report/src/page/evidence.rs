//! The evidence: what was verified, which bytes it was verified from, how to measure again, and on what machine.

use deltamux_bench::bundle::Run;

use super::{Block, Fact, Section};
use crate::language::Texts;
use crate::number;
use crate::source::Source;
use crate::table::{Cell, Column, TableBuilder};

/// The chapter's sections.
pub fn sections(texts: &Texts, source: &Source, raw: &str) -> Vec<Section> {
    vec![
        verification(texts, source),
        artifact(texts, source, raw),
        reproduction(texts, &source.run),
        environment(texts, source),
    ]
}

fn verification(texts: &Texts, source: &Source) -> Section {
    let verdict = &source.verdict;
    let status = texts.get(if verdict.validated {
        "status.validated"
    } else {
        "status.unvalidated"
    });
    let means = texts.get(if verdict.validated {
        "status.validated_means"
    } else {
        "status.unvalidated_means"
    });
    let mut blocks = vec![Block::Facts {
        facts: vec![
            Fact::stated(texts, "verification.status", Some(status)),
            Fact::stated(texts, "verification.means", Some(means)).long(),
        ],
    }];
    if !verdict.reasons.is_empty() {
        blocks.push(Block::Notice {
            title: texts.get("verification.reasons"),
            reasons: verdict.reasons.clone(),
        });
    }
    let command = format!("deltamux bench verify {}", shell_word(&source.run.id));
    blocks.push(Block::Command { command });
    Section::new(texts, "verification", blocks)
}

fn artifact(texts: &Texts, source: &Source, raw: &str) -> Section {
    let language = texts.language();
    let files = &source.files;
    let mut table = TableBuilder::new(texts, files.len());
    table.cells(
        Column::text("file", texts.get("artifact.file")),
        files.iter().map(|file| {
            let cell = Cell::text(file.name);
            if file.bytes.is_some() {
                cell.linked(format!("{raw}/{}", file.name))
            } else {
                cell
            }
        }),
    );
    table.cells(
        Column::number("bytes", texts.get("artifact.size"), ""),
        files.iter().map(|file| {
            file.bytes
                .map_or_else(Cell::absent, |n| Cell::number(n as f64, number::bytes(language, n)))
        }),
    );
    table.cells(
        Column::text("sha256", "SHA-256").wrapping(),
        files
            .iter()
            .map(|file| file.digest.as_deref().map_or_else(Cell::absent, Cell::digest)),
    );
    let table = table.build("artifact", texts.get("artifact.title"));
    Section::new(
        texts,
        "artifact",
        vec![Block::Table {
            table,
            summary: String::new(),
            note: String::new(),
        }],
    )
}

fn reproduction(texts: &Texts, run: &Run) -> Section {
    let language = texts.language();
    let generator = format!("{} {}", run.generator.name, run.generator.version);
    let facts = vec![
        Fact::stated(texts, "reproduction.id", Some(run.id.clone())).mono(),
        Fact::stated(
            texts,
            "reproduction.began",
            Some(number::moment(language, &run.started_at)),
        ),
        Fact::stated(
            texts,
            "reproduction.ended",
            Some(number::moment(language, &run.finished_at)),
        ),
        Fact::stated(texts, "reproduction.generator", Some(generator)),
        Fact::stated(texts, "workload.seed", Some(run.seed.to_string())),
    ];
    let mut blocks = vec![Block::Facts { facts }];
    if run.command.is_empty() {
        blocks.push(Block::Absent {
            text: texts.get("absent.no_command"),
        });
    } else {
        let words: Vec<String> = run.command.iter().map(|word| shell_word(word)).collect();
        blocks.push(Block::Command {
            command: words.join(" "),
        });
    }
    Section::new(texts, "reproduction", blocks)
}

fn environment(texts: &Texts, source: &Source) -> Section {
    let mut rows = Vec::new();
    if let Some(environment) = &source.environment {
        flatten(environment, String::new(), &mut rows);
    }
    if rows.is_empty() {
        return Section::new(
            texts,
            "environment",
            vec![Block::Absent {
                text: texts.get("absent.no_environment"),
            }],
        );
    }
    let mut table = TableBuilder::new(texts, rows.len());
    table.cells(
        Column::text("key", texts.get("environment.key")),
        rows.iter().map(|(key, _)| Cell::text(key)),
    );
    table.cells(
        Column::text("value", texts.get("environment.value")).wrapping(),
        rows.iter().map(|(key, value)| {
            let cell = Cell::maybe(value.as_deref());
            let size = value
                .as_deref()
                .filter(|_| key.ends_with("_bytes"))
                .and_then(|value| value.parse().ok());
            match size {
                Some(size) => Cell {
                    text: number::bytes(texts.language(), size),
                    ..cell
                },
                None => cell,
            }
        }),
    );
    let table = table.build("environment", texts.get("environment.title"));
    Section::new(
        texts,
        "environment",
        vec![Block::Table {
            table,
            summary: String::new(),
            note: String::new(),
        }],
    )
}

/// Deepest level of a recorded environment that becomes rows of its own.
const MAX_DEPTH: usize = 8;

/// Objects become rows with dotted keys, lists of plain values one row, `null` an absent value.
fn flatten(value: &serde_json::Value, key: String, rows: &mut Vec<(String, Option<String>)>) {
    use serde_json::Value;
    match value {
        Value::Object(map) if key.matches('.').count() < MAX_DEPTH => {
            for (name, inner) in map {
                flatten(
                    inner,
                    if key.is_empty() {
                        name.clone()
                    } else {
                        format!("{key}.{name}")
                    },
                    rows,
                );
            }
        }
        Value::Null => rows.push((key, None)),
        Value::String(text) => rows.push((key, Some(text.clone()))),
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| item.as_str().map_or_else(|| item.to_string(), Into::into))
                .collect();
            rows.push((key, Some(items.join(", "))));
        }
        other => rows.push((key, Some(other.to_string()))),
    }
}

/// A word as a POSIX shell needs it.
fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_can_be_pasted_into_a_shell() {
        assert_eq!(shell_word("--rates"), "--rates");
        assert_eq!(shell_word("0.5,1.0"), "0.5,1.0");
        assert_eq!(shell_word("it's; rm -rf"), r"'it'\''s; rm -rf'");
        assert_eq!(shell_word(""), "''");
    }

    #[test]
    fn a_recorded_environment_becomes_rows_and_null_stays_absent() {
        let value = serde_json::json!({"cpu": {"model": "x", "cores": 2}, "load": [0.5, 1], "governor": null});
        let mut rows = Vec::new();
        flatten(&value, String::new(), &mut rows);
        let text = |s: &str| Some(s.to_owned());
        let expected = [
            ("cpu.model", text("x")),
            ("cpu.cores", text("2")),
            ("load", text("0.5, 1")),
            ("governor", None),
        ];
        assert_eq!(rows, expected.map(|(key, value)| (key.to_owned(), value)));
    }
}
