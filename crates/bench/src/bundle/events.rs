//! `events.parquet`: the raw events that every figure is recomputed from, one row per request and per chunk.
//!
//! A request's row (`kind = "request"`) is followed by the rows of its chunks (`kind = "chunk"`), in order of arrival.
//! All times are nanoseconds of the client's monotonic clock since the run began.

use std::sync::Arc;

use arrow_array::builder::{BooleanBuilder, Int64Builder, StringBuilder, UInt32Builder};
use arrow_array::cast::AsArray as _;
use arrow_array::types::{Int64Type, UInt32Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

/// Why events could not be written or read.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// The Parquet layer.
    #[error("events.parquet: {0}")]
    Parquet(#[from] ParquetError),
    /// The Arrow layer.
    #[error("events.parquet: {0}")]
    Arrow(#[from] ArrowError),
    /// The columns are not those of an event file.
    #[error("events.parquet: column `{column}`: {what}")]
    Column {
        /// The column.
        column: &'static str,
        /// What is wrong with it.
        what: String,
    },
    /// The file's inner structure is broken.
    #[error("events.parquet: the file is damaged")]
    Damaged,
    /// A row that cannot be what was recorded.
    #[error("events.parquet: row {row}: {what}")]
    Row {
        /// Row, counted from 0.
        row: usize,
        /// What is wrong with it.
        what: String,
    },
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Its stream came to its end.
    Completed,
    /// It failed; the kind is what failures are counted by.
    Failed {
        /// `connect`, `timeout`, `http_503`, `error_event`, `truncated`, `malformed`, ….
        kind: String,
        /// What was seen, for a person.
        error: String,
    },
}

impl Outcome {
    /// Name in the file: `completed`, or the kind of failure.
    pub fn name(&self) -> &str {
        match self {
            Self::Completed => COMPLETED,
            Self::Failed { kind, .. } => kind,
        }
    }
}

/// What a chunk of the stream carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkKind {
    /// Text of the answer.
    Text,
    /// Reasoning.
    Reasoning,
    /// A piece of a tool call.
    ToolCall,
    /// No text, but the reason why the answer ended. When that is not the length, it stands for the end-of-sequence
    /// token, which servers count in usage.
    Finish,
    /// Neither (the role, or usage).
    Empty,
    /// An error event.
    Error,
    /// The end of the stream (`[DONE]`).
    Done,
}

impl ChunkKind {
    const ALL: [(Self, &'static str); 7] = [
        (Self::Text, "text"),
        (Self::Reasoning, "reasoning"),
        (Self::ToolCall, "tool_call"),
        (Self::Finish, "finish"),
        (Self::Empty, "empty"),
        (Self::Error, "error"),
        (Self::Done, "done"),
    ];

    /// Name in the file.
    pub fn name(self) -> &'static str {
        Self::ALL
            .iter()
            .find(|(kind, _)| *kind == self)
            .map_or("", |(_, name)| name)
    }

    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, n)| *n == name).map(|(kind, _)| *kind)
    }
}

/// One chunk of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// Arrival, ns since the run began.
    pub t_ns: i64,
    /// What it carries.
    pub kind: ChunkKind,
    /// Characters of text in it.
    pub chars: u32,
}

/// One request and what came back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestRecord {
    /// Point, counted from 0.
    pub point: u32,
    /// Repeat within the point, counted from 0.
    pub repeat: u32,
    /// Whether it is a warm-up request, which no figure counts.
    pub warmup: bool,
    /// Request within the repeat, counted from 0 in the order of the schedule (warm-up requests on their own).
    pub request: u32,
    /// Model that was asked for.
    pub model: String,
    /// When it was due, ns since the run began.
    pub t_sched_ns: i64,
    /// When its first byte was handed to the socket; absent when it never was.
    pub t_send_ns: Option<i64>,
    /// When its stream ended or it failed.
    pub t_done_ns: i64,
    /// Completion tokens that were asked for at most.
    pub max_tokens: Option<u32>,
    /// Prompt tokens, from the server's usage.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens found in the prefix cache, from the server's usage.
    pub cached_tokens: Option<u32>,
    /// Completion tokens, from the server's usage.
    pub completion_tokens: Option<u32>,
    /// Reason why the answer ended, as the server gave it.
    pub finish_reason: Option<String>,
    /// Completed, or why not.
    pub outcome: Outcome,
    /// Chunks in order of arrival.
    pub chunks: Vec<Chunk>,
}

impl RequestRecord {
    /// Whether the stream came to its end.
    pub fn completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }

    /// Arrivals of the chunks that carry tokens: text, reasoning, tool calls, and a finish without text that stands
    /// for an end-of-sequence token.
    pub fn token_chunks(&self) -> impl DoubleEndedIterator<Item = i64> + '_ {
        let eos = self.finish_reason.as_deref() != Some("length");
        self.chunks
            .iter()
            .filter(move |chunk| match chunk.kind {
                ChunkKind::Text | ChunkKind::Reasoning | ChunkKind::ToolCall => true,
                ChunkKind::Finish => eos,
                ChunkKind::Empty | ChunkKind::Error | ChunkKind::Done => false,
            })
            .map(|chunk| chunk.t_ns)
    }

    /// t_1: arrival of the first chunk with any token.
    pub fn t_first_ns(&self) -> Option<i64> {
        self.token_chunks().next()
    }

    /// t_n: arrival of the chunk that carries the last token.
    pub fn t_last_ns(&self) -> Option<i64> {
        self.token_chunks().next_back()
    }
}

/// Columns in order: name, type, nullable.
const COLUMNS: [(&str, DataType, bool); 19] = [
    ("kind", DataType::Utf8, false),
    ("point", DataType::UInt32, false),
    ("repeat", DataType::UInt32, false),
    ("warmup", DataType::Boolean, false),
    ("request", DataType::UInt32, false),
    ("model", DataType::Utf8, true),
    ("t_sched_ns", DataType::Int64, true),
    ("t_send_ns", DataType::Int64, true),
    ("t_done_ns", DataType::Int64, true),
    ("max_tokens", DataType::UInt32, true),
    ("prompt_tokens", DataType::UInt32, true),
    ("cached_tokens", DataType::UInt32, true),
    ("completion_tokens", DataType::UInt32, true),
    ("finish_reason", DataType::Utf8, true),
    ("outcome", DataType::Utf8, true),
    ("error", DataType::Utf8, true),
    ("t_ns", DataType::Int64, true),
    ("chunk", DataType::Utf8, true),
    ("chars", DataType::UInt32, true),
];

const REQUEST: &str = "request";
const CHUNK: &str = "chunk";
const COMPLETED: &str = "completed";

fn schema() -> Arc<Schema> {
    Arc::new(Schema::new(
        COLUMNS
            .iter()
            .map(|(n, t, null)| Field::new(*n, t.clone(), *null))
            .collect::<Vec<_>>(),
    ))
}

/// One builder a column, in the order of [`COLUMNS`].
#[derive(Default)]
struct Builders {
    kind: StringBuilder,
    point: UInt32Builder,
    repeat: UInt32Builder,
    warmup: BooleanBuilder,
    request: UInt32Builder,
    model: StringBuilder,
    t_sched_ns: Int64Builder,
    t_send_ns: Int64Builder,
    t_done_ns: Int64Builder,
    max_tokens: UInt32Builder,
    prompt_tokens: UInt32Builder,
    cached_tokens: UInt32Builder,
    completion_tokens: UInt32Builder,
    finish_reason: StringBuilder,
    outcome: StringBuilder,
    error: StringBuilder,
    t_ns: Int64Builder,
    chunk: StringBuilder,
    chars: UInt32Builder,
}

impl Builders {
    fn key(&mut self, kind: &str, record: &RequestRecord) {
        self.kind.append_value(kind);
        self.point.append_value(record.point);
        self.repeat.append_value(record.repeat);
        self.warmup.append_value(record.warmup);
        self.request.append_value(record.request);
    }

    fn request(&mut self, record: &RequestRecord) {
        let (outcome, error) = match &record.outcome {
            Outcome::Completed => (COMPLETED, None),
            Outcome::Failed { kind, error } => (kind.as_str(), Some(error.as_str())),
        };
        self.key(REQUEST, record);
        self.model.append_value(&record.model);
        self.t_sched_ns.append_value(record.t_sched_ns);
        self.t_send_ns.append_option(record.t_send_ns);
        self.t_done_ns.append_value(record.t_done_ns);
        self.max_tokens.append_option(record.max_tokens);
        self.prompt_tokens.append_option(record.prompt_tokens);
        self.cached_tokens.append_option(record.cached_tokens);
        self.completion_tokens.append_option(record.completion_tokens);
        self.finish_reason.append_option(record.finish_reason.as_deref());
        self.outcome.append_value(outcome);
        self.error.append_option(error);
        self.t_ns.append_null();
        self.chunk.append_null();
        self.chars.append_null();
    }

    fn chunk(&mut self, record: &RequestRecord, chunk: &Chunk) {
        self.key(CHUNK, record);
        self.model.append_null();
        self.t_sched_ns.append_null();
        self.t_send_ns.append_null();
        self.t_done_ns.append_null();
        self.max_tokens.append_null();
        self.prompt_tokens.append_null();
        self.cached_tokens.append_null();
        self.completion_tokens.append_null();
        self.finish_reason.append_null();
        self.outcome.append_null();
        self.error.append_null();
        self.t_ns.append_value(chunk.t_ns);
        self.chunk.append_value(chunk.kind.name());
        self.chars.append_value(chunk.chars);
    }

    fn finish(mut self) -> Result<RecordBatch, ArrowError> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(self.kind.finish()),
            Arc::new(self.point.finish()),
            Arc::new(self.repeat.finish()),
            Arc::new(self.warmup.finish()),
            Arc::new(self.request.finish()),
            Arc::new(self.model.finish()),
            Arc::new(self.t_sched_ns.finish()),
            Arc::new(self.t_send_ns.finish()),
            Arc::new(self.t_done_ns.finish()),
            Arc::new(self.max_tokens.finish()),
            Arc::new(self.prompt_tokens.finish()),
            Arc::new(self.cached_tokens.finish()),
            Arc::new(self.completion_tokens.finish()),
            Arc::new(self.finish_reason.finish()),
            Arc::new(self.outcome.finish()),
            Arc::new(self.error.finish()),
            Arc::new(self.t_ns.finish()),
            Arc::new(self.chunk.finish()),
            Arc::new(self.chars.finish()),
        ];
        RecordBatch::try_new(schema(), columns)
    }
}

/// The bytes of an event file with these requests, in their order.
pub fn write_events(records: &[RequestRecord]) -> Result<Vec<u8>, EventsError> {
    let mut builders = Builders::default();
    for record in records {
        builders.request(record);
        for chunk in &record.chunks {
            builders.chunk(record, chunk);
        }
    }
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, schema(), Some(properties))?;
    writer.write(&builders.finish()?)?;
    writer.close()?;
    Ok(bytes)
}

/// The requests in the bytes of an event file.
pub fn read_events(bytes: Vec<u8>) -> Result<Vec<RequestRecord>, EventsError> {
    // The Parquet reader panics on some damaged files instead of refusing them (parquet 60: "Decoder for dict should
    // have been set").
    std::panic::catch_unwind(|| read(bytes)).unwrap_or(Err(EventsError::Damaged))
}

fn read(bytes: Vec<u8>) -> Result<Vec<RequestRecord>, EventsError> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes))?;
    check_columns(reader.schema())?;
    let mut records: Vec<RequestRecord> = Vec::new();
    let mut row = 0;
    for batch in reader.build()? {
        let batch = batch?;
        let rows = Rows(&batch);
        for i in 0..batch.num_rows() {
            rows.read(i, &mut records)
                .map_err(|what| EventsError::Row { row, what })?;
            row += 1;
        }
    }
    Ok(records)
}

fn check_columns(found: &Schema) -> Result<(), EventsError> {
    for (i, (name, kind, _)) in COLUMNS.iter().enumerate() {
        let what = match found.fields().get(i) {
            Some(field) if field.name() != name => format!("found `{}` in its place", field.name()),
            Some(field) if field.data_type() != kind => format!("is {}, expected {kind}", field.data_type()),
            Some(_) => continue,
            None => "is missing".to_owned(),
        };
        return Err(EventsError::Column { column: name, what });
    }
    match found.fields().get(COLUMNS.len()) {
        None => Ok(()),
        Some(field) => Err(EventsError::Column {
            column: "chars",
            what: format!("is followed by an unknown `{}`", field.name()),
        }),
    }
}

/// Access to a batch whose columns were checked.
struct Rows<'a>(&'a RecordBatch);

impl Rows<'_> {
    fn u32(&self, name: &str, row: usize) -> Option<u32> {
        let column = self.0.column_by_name(name)?.as_primitive_opt::<UInt32Type>()?;
        column.is_valid(row).then(|| column.value(row))
    }

    fn i64(&self, name: &str, row: usize) -> Option<i64> {
        let column = self.0.column_by_name(name)?.as_primitive_opt::<Int64Type>()?;
        column.is_valid(row).then(|| column.value(row))
    }

    fn text(&self, name: &str, row: usize) -> Option<&str> {
        let column = self.0.column_by_name(name)?.as_string_opt::<i32>()?;
        column.is_valid(row).then(|| column.value(row))
    }

    fn flag(&self, name: &str, row: usize) -> Option<bool> {
        let column = self.0.column_by_name(name)?.as_boolean_opt()?;
        column.is_valid(row).then(|| column.value(row))
    }

    fn read(&self, row: usize, records: &mut Vec<RequestRecord>) -> Result<(), String> {
        fn need<T>(value: Option<T>, name: &str) -> Result<T, String> {
            value.ok_or_else(|| format!("`{name}` is empty"))
        }
        let point = need(self.u32("point", row), "point")?;
        let repeat = need(self.u32("repeat", row), "repeat")?;
        let warmup = need(self.flag("warmup", row), "warmup")?;
        let request = need(self.u32("request", row), "request")?;
        match self.text("kind", row) {
            Some(REQUEST) => {
                let outcome = match need(self.text("outcome", row), "outcome")? {
                    COMPLETED => Outcome::Completed,
                    kind => Outcome::Failed {
                        kind: kind.to_owned(),
                        error: self.text("error", row).unwrap_or_default().to_owned(),
                    },
                };
                records.push(RequestRecord {
                    point,
                    repeat,
                    warmup,
                    request,
                    model: need(self.text("model", row), "model")?.to_owned(),
                    t_sched_ns: need(self.i64("t_sched_ns", row), "t_sched_ns")?,
                    t_send_ns: self.i64("t_send_ns", row),
                    t_done_ns: need(self.i64("t_done_ns", row), "t_done_ns")?,
                    max_tokens: self.u32("max_tokens", row),
                    prompt_tokens: self.u32("prompt_tokens", row),
                    cached_tokens: self.u32("cached_tokens", row),
                    completion_tokens: self.u32("completion_tokens", row),
                    finish_reason: self.text("finish_reason", row).map(str::to_owned),
                    outcome,
                    chunks: Vec::new(),
                });
                Ok(())
            }
            Some(CHUNK) => {
                let name = need(self.text("chunk", row), "chunk")?;
                let chunk = Chunk {
                    t_ns: need(self.i64("t_ns", row), "t_ns")?,
                    kind: ChunkKind::from_name(name).ok_or_else(|| format!("unknown kind of chunk `{name}`"))?,
                    chars: need(self.u32("chars", row), "chars")?,
                };
                match records.last_mut() {
                    Some(r) if (r.point, r.repeat, r.warmup, r.request) == (point, repeat, warmup, request) => {
                        r.chunks.push(chunk);
                        Ok(())
                    }
                    _ => Err("a chunk that does not follow its request".to_owned()),
                }
            }
            other => Err(format!("kind is {other:?}, expected `{REQUEST}` or `{CHUNK}`")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(request: u32, outcome: Outcome) -> RequestRecord {
        RequestRecord {
            point: 0,
            repeat: 1,
            warmup: request == 0,
            request,
            model: "sql".into(),
            t_sched_ns: 5,
            t_send_ns: (request != 1).then_some(7),
            t_done_ns: 90,
            max_tokens: Some(8),
            prompt_tokens: None,
            cached_tokens: Some(0),
            completion_tokens: Some(2),
            finish_reason: Some("stop".into()),
            outcome,
            chunks: vec![
                Chunk {
                    t_ns: 10,
                    kind: ChunkKind::Empty,
                    chars: 0,
                },
                Chunk {
                    t_ns: 20,
                    kind: ChunkKind::Text,
                    chars: 3,
                },
                Chunk {
                    t_ns: 30,
                    kind: ChunkKind::Finish,
                    chars: 0,
                },
                Chunk {
                    t_ns: 31,
                    kind: ChunkKind::Done,
                    chars: 0,
                },
            ],
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let failed = Outcome::Failed {
            kind: "http_503".into(),
            error: "no room".into(),
        };
        let records = vec![
            record(0, Outcome::Completed),
            record(1, failed),
            record(2, Outcome::Completed),
        ];
        let bytes = write_events(&records).unwrap();
        assert_eq!(read_events(bytes).unwrap(), records);
    }

    #[test]
    fn a_finish_stands_for_a_token_unless_the_length_ended_the_answer() {
        let mut r = record(0, Outcome::Completed);
        assert_eq!((r.t_first_ns(), r.t_last_ns()), (Some(20), Some(30)));
        r.finish_reason = Some("length".into());
        assert_eq!((r.t_first_ns(), r.t_last_ns()), (Some(20), Some(20)));
    }

    #[test]
    fn bytes_that_are_no_parquet_are_refused() {
        assert!(matches!(
            read_events(b"PAR1 but no more".to_vec()),
            Err(EventsError::Parquet(_))
        ));
    }
}
