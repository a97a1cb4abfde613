//! The two ways of letting requests loose: an open loop that keeps a schedule and a closed loop that keeps a number in
//! flight.

mod closed_loop;
mod open_loop;

pub use closed_loop::closed_loop;
pub use open_loop::open_loop;

use crate::bundle::RequestRecord;
use crate::client::Reply;
use crate::plan::PlannedRequest;

/// A request that was sent and what came back.
#[derive(Debug, Clone, PartialEq)]
pub struct Sent {
    /// Request within the repeat, counted from 0 in the order of the plan.
    pub request: u32,
    /// When it was due, ns since the run began.
    pub t_sched_ns: i64,
    /// What came back.
    pub reply: Reply,
}

impl Sent {
    /// The record for the event file.
    pub fn into_record(self, plan: &[PlannedRequest], point: u32, repeat: u32, warmup: bool) -> RequestRecord {
        let planned = &plan[self.request as usize];
        RequestRecord {
            point,
            repeat,
            warmup,
            request: self.request,
            model: planned.model.clone(),
            t_sched_ns: self.t_sched_ns,
            t_send_ns: self.reply.t_send_ns,
            t_done_ns: self.reply.t_done_ns,
            max_tokens: planned.max_tokens,
            prompt_tokens: self.reply.usage.and_then(|u| u.prompt_tokens),
            cached_tokens: self.reply.usage.and_then(|u| u.cached_tokens()),
            completion_tokens: self.reply.usage.and_then(|u| u.completion_tokens),
            finish_reason: self.reply.finish_reason,
            outcome: self.reply.outcome,
            chunks: self.reply.chunks,
        }
    }
}
