//! The caller's end of a request.

use tokio::sync::mpsc::UnboundedReceiver;

use crate::request::{Event, SubmitError};

/// The events of one request; dropping it cancels the request and frees its pages within one step.
#[derive(Debug)]
pub struct RequestStream {
    /// Events in order; the last is [`Event::Done`] or [`Event::Failed`].
    pub events: UnboundedReceiver<Event>,
    ended: bool,
}

impl RequestStream {
    pub(crate) fn new(events: UnboundedReceiver<Event>) -> Self {
        Self { events, ended: false }
    }

    /// The next event, or `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.events.recv().await;
        self.checked(event)
    }

    /// The next event, for callers without a runtime.
    pub fn blocking_next(&mut self) -> Option<Event> {
        let event = self.events.blocking_recv();
        self.checked(event)
    }

    /// An engine that stopped before it read the request says nothing; its caller is told all the same.
    fn checked(&mut self, event: Option<Event>) -> Option<Event> {
        match event {
            Some(event) => {
                self.ended = matches!(event, Event::Done { .. } | Event::Failed(_));
                Some(event)
            }
            None if self.ended => None,
            None => {
                self.ended = true;
                Some(Event::Failed(SubmitError::ShuttingDown))
            }
        }
    }
}
