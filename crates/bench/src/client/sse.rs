//! Server-sent events out of a byte stream, however it is cut.

/// An event's name and data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SseEvent {
    /// The `event:` field, if there was one.
    pub event: Option<String>,
    /// The `data:` lines, joined by newlines.
    pub data: String,
}

/// Longest event that is accepted, bytes.
pub const MAX_EVENT: usize = 16 << 20;

/// Cuts events out of bytes as they arrive.
#[derive(Debug, Default)]
pub struct SseParser {
    /// Bytes of a line whose end has not arrived.
    line: Vec<u8>,
    /// The last byte was `\r`: a `\n` that follows belongs to it.
    after_cr: bool,
    event: Option<String>,
    data: String,
    has_data: bool,
}

impl SseParser {
    /// Takes bytes and gives the events they complete; `None` when an event is longer than [`MAX_EVENT`].
    pub fn push(&mut self, bytes: &[u8]) -> Option<Vec<SseEvent>> {
        let mut events = Vec::new();
        for &byte in bytes {
            match byte {
                b'\n' if self.after_cr => self.after_cr = false,
                b'\n' | b'\r' => {
                    self.after_cr = byte == b'\r';
                    events.extend(self.end_line());
                }
                _ => {
                    self.after_cr = false;
                    self.line.push(byte);
                }
            }
        }
        (self.line.len() + self.data.len() <= MAX_EVENT).then_some(events)
    }

    /// A blank line ends an event; any other is a field of it.
    fn end_line(&mut self) -> Option<SseEvent> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            let event = self.event.take();
            let data = std::mem::take(&mut self.data);
            return std::mem::take(&mut self.has_data).then_some(SseEvent { event, data });
        }
        let line = String::from_utf8_lossy(&line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            "event" => self.event = Some(value.to_owned()),
            // Comments (an empty name), `id`, `retry` and what is unknown.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str =
        ": keep-alive\n\ndata: {\"a\":1}\r\n\r\nevent: error\ndata: one\ndata: zwölf\n\ndata:[DONE]\r\rdata: cut";

    fn parse(pieces: &[&[u8]]) -> Vec<(Option<String>, String)> {
        let mut parser = SseParser::default();
        pieces
            .iter()
            .flat_map(|p| parser.push(p).unwrap())
            .map(|e| (e.event, e.data))
            .collect()
    }

    #[test]
    fn events_end_at_blank_lines_in_all_three_line_endings() {
        let expected = [
            (None, "{\"a\":1}".into()),
            (Some("error".into()), "one\nzwölf".into()),
            (None, "[DONE]".into()),
        ];
        assert_eq!(parse(&[STREAM.as_bytes()]), expected);
    }

    #[test]
    fn where_the_stream_is_cut_does_not_matter() {
        let bytes = STREAM.as_bytes();
        let whole = parse(&[bytes]);
        for cut in 0..bytes.len() {
            assert_eq!(parse(&[&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let mut parser = SseParser::default();
        let piece = vec![b'x'; 1 << 20];
        assert!((0..20).any(|_| parser.push(&piece).is_none()));
    }
}
