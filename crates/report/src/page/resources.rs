//! Memory as the server itself reports it, and what nobody measured yet.

use deltamux_bench::bundle::{Answer, ServerReport};

use super::outlook::unmeasured;
use super::{Block, Fact, Section};
use crate::language::Texts;
use crate::number;
use crate::source::Source;
use crate::table::{Cell, Column, Table, TableBuilder};

/// One quantity of the server's `/metrics`: the key of its name, and the metrics whose product it is.
struct Quantity(&'static str, &'static [&'static str]);

/// What deltamux reports of its memory, in bytes.
const MEMORY: [Quantity; 4] = [
    Quantity("memory.base", &["deltamux_base_bytes"]),
    Quantity("memory.variants", &["deltamux_variant_bytes"]),
    Quantity("memory.kv_reserved", &["deltamux_kv_pages", "deltamux_kv_page_bytes"]),
    Quantity("memory.kv_used", &["deltamux_kv_pages_used", "deltamux_kv_page_bytes"]),
];

/// What deltamux counts while it works.
const COUNTERS: [Quantity; 5] = [
    Quantity("counters.steps", &["deltamux_steps_total"]),
    Quantity("counters.generation", &["deltamux_generation_tokens_total"]),
    Quantity("counters.loads", &["deltamux_variant_loads_total"]),
    Quantity("counters.evictions", &["deltamux_variant_evictions_total"]),
    Quantity("counters.preemptions", &["deltamux_preemptions_total"]),
];

impl Quantity {
    fn read(&self, answer: &Answer) -> Option<f64> {
        let values: Option<Vec<f64>> = self.1.iter().map(|name| answer.metric(name)).collect();
        values
            .map(|values| values.iter().product())
            .filter(|value: &f64| value.is_finite())
    }

    fn source(&self) -> String {
        self.1.join(" × ")
    }
}

/// The chapter's sections.
pub fn sections(texts: &Texts, source: &Source) -> Vec<Section> {
    let mut blocks = Vec::new();
    if let Some(server) = &source.server {
        blocks.extend(memory(texts, server).map(table_block));
    }
    let terms = if blocks.is_empty() {
        &["checkpoint", "idle", "loaded", "kv", "peak", "source"][..]
    } else {
        &["checkpoint", "idle", "peak"][..]
    };
    let facts = terms
        .iter()
        .map(|term| Fact::measured(texts, &format!("memory.{term}"), None))
        .collect();
    blocks.push(Block::Facts { facts });
    let mut sections = vec![Section::new(texts, "memory", blocks)];
    if let Some(table) = source.server.as_ref().and_then(|server| counters(texts, server)) {
        sections.push(Section::new(texts, "counters", vec![table_block(table)]));
    }
    sections.push(unmeasured(texts, "prefix_cache", &["cold", "warm"]));
    let energy = ["device", "phase", "energy", "power", "duration", "source"];
    sections.push(unmeasured(texts, "energy", &energy));
    sections
}

fn table_block(table: Table) -> Block {
    Block::Table {
        table,
        summary: String::new(),
        note: String::new(),
    }
}

fn memory(texts: &Texts, server: &ServerReport) -> Option<Table> {
    let rows: Vec<_> = MEMORY
        .iter()
        .map(|quantity| {
            (
                quantity,
                quantity.read(&server.metrics_before),
                quantity.read(&server.metrics_after),
            )
        })
        .filter(|(_, before, after)| before.is_some() || after.is_some())
        .collect();
    if rows.is_empty() {
        return None;
    }
    let size = |value: Option<f64>| match value.filter(|value| *value >= 0.0) {
        Some(value) => Cell::number(value, number::bytes(texts.language(), value as u64)),
        None => Cell::absent(),
    };
    let mut table = TableBuilder::new(texts, rows.len());
    table.cells(
        Column::text("what", texts.get("memory.what")),
        rows.iter().map(|(q, ..)| Cell::text(texts.get(q.0))),
    );
    let before = Column::number("before_bytes", texts.get("memory.before"), "");
    table.cells(before, rows.iter().map(|(_, before, _)| size(*before)));
    let after = Column::number("after_bytes", texts.get("memory.after"), "");
    table.cells(after, rows.iter().map(|(.., after)| size(*after)));
    table.cells(
        Column::text("source", texts.get("memory.source")),
        rows.iter().map(|(q, ..)| Cell::digest(q.source())),
    );
    Some(table.build("memory", texts.get("memory.title")))
}

/// A counter's difference over the run; a server that was restarted in between has none.
fn counters(texts: &Texts, server: &ServerReport) -> Option<Table> {
    let rows: Vec<(&Quantity, u64)> = COUNTERS
        .iter()
        .filter_map(|quantity| {
            let grown = quantity.read(&server.metrics_after)? - quantity.read(&server.metrics_before)?;
            (grown >= 0.0).then_some((quantity, grown as u64))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let mut table = TableBuilder::new(texts, rows.len());
    table.cells(
        Column::text("what", texts.get("memory.what")),
        rows.iter().map(|(q, _)| Cell::text(texts.get(q.0))),
    );
    table.counts(
        Column::number("count", texts.get("counters.count"), ""),
        rows.iter().map(|(_, grown)| *grown),
    );
    table.cells(
        Column::text("source", texts.get("memory.source")),
        rows.iter().map(|(q, _)| Cell::digest(q.source())),
    );
    Some(table.build("counters", texts.get("counters.title")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Language;

    fn metrics(text: &str) -> Answer {
        Answer {
            status: Some(200),
            text: Some(text.into()),
            error: None,
        }
    }

    fn server(before: &str, after: &str) -> ServerReport {
        ServerReport {
            run: "r".into(),
            models: metrics(""),
            version: metrics(""),
            metrics_before: metrics(before),
            metrics_after: metrics(after),
        }
    }

    #[test]
    fn reserved_memory_is_pages_times_their_size_and_what_is_not_reported_has_no_row() {
        let texts = Texts::load(Language::En).unwrap();
        let report = server(
            "deltamux_kv_pages 4\n",
            "deltamux_kv_pages 4\ndeltamux_kv_page_bytes 1024\n",
        );
        let table = memory(&texts, &report).unwrap();
        assert_eq!(table.rows.len(), 1);
        let cells: Vec<&str> = table.rows[0].cells.iter().map(|cell| cell.text.as_str()).collect();
        assert_eq!(cells[1..3], ["", "4\u{a0}KiB"]);
        assert!(memory(&texts, &server("vllm:x 1\n", "")).is_none());
    }

    #[test]
    fn a_counter_that_fell_says_nothing() {
        let texts = Texts::load(Language::En).unwrap();
        let report = server(
            "deltamux_steps_total 9\ndeltamux_preemptions_total 1\n",
            "deltamux_steps_total 3\ndeltamux_preemptions_total 1\n",
        );
        let table = counters(&texts, &report).unwrap();
        assert_eq!(table.rows.len(), 1, "preemptions, 0 of them, were counted");
        assert_eq!(table.rows[0].cells[1].text, "0");
    }
}
