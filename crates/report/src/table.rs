//! Tables: what a page shows, what it is sorted by, and the same values as CSV.

use serde::Serialize;

use crate::language::Texts;
use crate::number;

/// A table of a page.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// Unique on its page; also the end of the CSV's file name.
    pub id: String,
    /// What it shows, for screen readers and the scrolling frame.
    pub caption: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, each as long as `columns`.
    pub rows: Vec<Row>,
    /// The whole table as a `data:` URL of type `text/csv`.
    pub csv: String,
}

/// A column.
#[derive(Debug, Clone, Serialize)]
pub struct Column {
    /// Name in the CSV: English, lower case, with the unit, such as `ttft_p50_ms`.
    pub key: String,
    /// Heading in the page's language.
    pub label: String,
    /// Unit, below the heading.
    pub unit: String,
    /// What the figure means, shown on hovering.
    pub meaning: Option<String>,
    /// Whether it holds numbers: set right, sorted by value.
    pub numeric: bool,
    /// Whether long text may break.
    pub wrap: bool,
}

impl Column {
    /// A column of numbers.
    pub fn number(key: impl Into<String>, label: impl Into<String>, unit: &str) -> Self {
        Self {
            key: key.into(),
            label: label.into(),
            unit: unit.to_owned(),
            meaning: None,
            numeric: true,
            wrap: false,
        }
    }

    /// A column of text.
    pub fn text(key: impl Into<String>, label: impl Into<String>) -> Self {
        Self {
            numeric: false,
            ..Self::number(key, label, "")
        }
    }

    /// The same column with a definition to hover over.
    #[must_use]
    pub fn meaning(self, text: impl Into<String>) -> Self {
        Self {
            meaning: Some(text.into()),
            ..self
        }
    }

    /// The same column with text that may break.
    #[must_use]
    pub fn wrapping(self) -> Self {
        Self { wrap: true, ..self }
    }
}

/// A row.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Row {
    /// One cell a column.
    pub cells: Vec<Cell>,
    /// Whether the row is marked, such as an invalid point.
    pub flagged: bool,
}

impl From<Vec<Cell>> for Row {
    fn from(cells: Vec<Cell>) -> Self {
        Self { cells, flagged: false }
    }
}

/// A cell.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cell {
    /// What is shown; empty when absent.
    pub text: String,
    /// What it is sorted by and what the CSV holds; absent when nothing was measured.
    pub value: Option<String>,
    /// Where it leads.
    pub href: Option<String>,
    /// Whether it is set in the digest's face.
    pub digest: bool,
}

impl Cell {
    /// Nothing was measured.
    #[must_use]
    pub fn absent() -> Self {
        Self::default()
    }

    /// Text.
    pub fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        Self {
            value: Some(text.clone()),
            text,
            ..Self::default()
        }
    }

    /// Text, or nothing.
    pub fn maybe(text: Option<&str>) -> Self {
        text.map_or_else(Self::absent, Self::text)
    }

    /// A number shown as `text`.
    pub fn number(value: f64, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            value: Some(value.to_string()),
            ..Self::default()
        }
    }

    /// A count.
    #[must_use]
    pub fn count(texts: &Texts, value: u64) -> Self {
        Self {
            text: number::count(texts.language(), value),
            value: Some(value.to_string()),
            ..Self::default()
        }
    }

    /// A digest in its own face.
    pub fn digest(text: impl Into<String>) -> Self {
        Self {
            digest: true,
            ..Self::text(text)
        }
    }

    /// The same cell as a link.
    #[must_use]
    pub fn linked(self, href: impl Into<String>) -> Self {
        Self {
            href: Some(href.into()),
            ..self
        }
    }
}

/// A column of figures before it is formatted: all values decide on the decimals together.
pub struct Figures {
    column: Column,
    values: Vec<Option<f64>>,
}

/// Builds a table column by column; each figure column formats itself by its own values.
pub struct TableBuilder<'a> {
    texts: &'a Texts,
    columns: Vec<Column>,
    cells: Vec<Vec<Cell>>,
    flagged: Vec<bool>,
}

impl<'a> TableBuilder<'a> {
    /// A table of so many rows.
    #[must_use]
    pub fn new(texts: &'a Texts, rows: usize) -> Self {
        Self {
            texts,
            columns: Vec::new(),
            cells: vec![Vec::new(); rows],
            flagged: vec![false; rows],
        }
    }

    /// Columns so far.
    #[must_use]
    pub fn width(&self) -> usize {
        self.columns.len()
    }

    /// Marks a row.
    pub fn flag(&mut self, row: usize) {
        if let Some(flag) = self.flagged.get_mut(row) {
            *flag = true;
        }
    }

    /// Adds a column whose cells are ready.
    pub fn cells(&mut self, column: Column, cells: impl IntoIterator<Item = Cell>) -> &mut Self {
        let mut cells = cells.into_iter();
        self.columns.push(column);
        for row in &mut self.cells {
            row.push(cells.next().unwrap_or_default());
        }
        self
    }

    /// Adds a column of measured figures.
    pub fn figures(&mut self, column: Column, values: impl IntoIterator<Item = Option<f64>>) -> &mut Self {
        let figures = Figures {
            column,
            values: values.into_iter().collect(),
        };
        let decimals = number::decimals_for(figures.values.iter().flatten().copied());
        let language = self.texts.language();
        let cells = figures.values.into_iter().map(|value| match value {
            Some(value) => {
                number::fixed(language, value, decimals).map_or_else(Cell::absent, |t| Cell::number(value, t))
            }
            None => Cell::absent(),
        });
        let cells: Vec<_> = cells.collect();
        self.cells(figures.column, cells)
    }

    /// Adds a column of measured figures unless no row has any.
    pub fn figures_if_any(&mut self, column: Column, values: impl IntoIterator<Item = Option<f64>>) -> &mut Self {
        let values: Vec<_> = values.into_iter().collect();
        if values.iter().any(Option::is_some) {
            self.figures(column, values)
        } else {
            self
        }
    }

    /// Adds a column of conditions, such as rates: no superfluous zeros.
    pub fn conditions(&mut self, column: Column, values: impl IntoIterator<Item = Option<f64>>) -> &mut Self {
        let language = self.texts.language();
        let cells: Vec<_> = values
            .into_iter()
            .map(|value| match value {
                Some(value) => number::plain(language, value).map_or_else(Cell::absent, |t| Cell::number(value, t)),
                None => Cell::absent(),
            })
            .collect();
        self.cells(column, cells)
    }

    /// Adds a column of counts.
    pub fn counts(&mut self, column: Column, values: impl IntoIterator<Item = u64>) -> &mut Self {
        let texts = self.texts;
        let cells: Vec<_> = values.into_iter().map(|value| Cell::count(texts, value)).collect();
        self.cells(column, cells)
    }

    /// The table.
    #[must_use]
    pub fn build(self, id: impl Into<String>, caption: impl Into<String>) -> Table {
        let rows: Vec<Row> = self
            .cells
            .into_iter()
            .zip(self.flagged)
            .map(|(cells, flagged)| Row { cells, flagged })
            .collect();
        let csv = data_url(&csv(&self.columns, &rows));
        Table {
            id: id.into(),
            caption: caption.into(),
            columns: self.columns,
            rows,
            csv,
        }
    }
}

/// RFC 4180 with the keys as the first record, plain numbers, and empty fields for what was not measured. Text that a
/// spreadsheet would run as a formula gets an apostrophe in front: names in bundles come from strangers.
fn csv(columns: &[Column], rows: &[Row]) -> String {
    let mut out = String::new();
    push_record(&mut out, columns.iter().map(|column| column.key.as_str().into()));
    for row in rows {
        push_record(
            &mut out,
            row.cells.iter().zip(columns).map(|(cell, column)| {
                let value = cell.value.as_deref().unwrap_or("");
                if !column.numeric && value.starts_with(['=', '+', '-', '@', '\t', '\r']) {
                    format!("'{value}").into()
                } else {
                    value.into()
                }
            }),
        );
    }
    out
}

fn push_record<'a>(out: &mut String, fields: impl Iterator<Item = std::borrow::Cow<'a, str>>) {
    for (i, field) in fields.enumerate() {
        if i > 0 {
            out.push(',');
        }
        if field.contains([',', '"', '\n', '\r']) {
            out.push('"');
            out.push_str(&field.replace('"', "\"\""));
            out.push('"');
        } else {
            out.push_str(&field);
        }
    }
    out.push_str("\r\n");
}

fn data_url(csv: &str) -> String {
    let mut out = String::from("data:text/csv;charset=utf-8,");
    for byte in csv.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~,:;()*!'".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::Language;

    fn decode(url: &str) -> String {
        let mut bytes = Vec::new();
        let mut rest = url.strip_prefix("data:text/csv;charset=utf-8,").unwrap().bytes();
        while let Some(byte) = rest.next() {
            if byte == b'%' {
                let hex = [rest.next().unwrap(), rest.next().unwrap()];
                bytes.push(u8::from_str_radix(std::str::from_utf8(&hex).unwrap(), 16).unwrap());
            } else {
                bytes.push(byte);
            }
        }
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_csv_has_plain_numbers_and_empty_fields_for_what_was_not_measured() {
        let texts = Texts::load(Language::De).unwrap();
        let mut table = TableBuilder::new(&texts, 2);
        table.cells(Column::text("name", "Name"), ["a, \"b\"", "ü"].map(Cell::text));
        table.figures(
            Column::number("speed_tok_per_s", "Tempo", "tok/s"),
            [Some(1453.8), None],
        );
        let table = table.build("t", "T");
        assert_eq!(table.rows[0].cells[1].text, "1.454");
        assert_eq!(table.rows[1].cells[1].value, None);
        assert_eq!(
            decode(&table.csv),
            "name,speed_tok_per_s\r\n\"a, \"\"b\"\"\",1453.8\r\nü,\r\n"
        );
    }

    #[test]
    fn text_that_a_spreadsheet_would_run_is_disarmed_and_numbers_are_not_touched() {
        let texts = Texts::load(Language::En).unwrap();
        let mut table = TableBuilder::new(&texts, 1);
        table.cells(Column::text("name", "Name"), [Cell::text("=HYPERLINK(\"http://x\")")]);
        table.figures(Column::number("x", "x", ""), [Some(-1.5)]);
        assert_eq!(
            decode(&table.build("t", "T").csv),
            "name,x\r\n\"'=HYPERLINK(\"\"http://x\"\")\",-1.5\r\n"
        );
    }
}
