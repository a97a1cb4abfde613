//! Collecting a whole answer before it is sent.

use deltamux_engine::{Event, FinishReason, TokenLogProbs};
use futures::StreamExt as _;

use super::completion_stream::{Merged, cut_off};
use super::sse::Plan;
use super::usage::UsageReport;
use crate::app::Shared;
use crate::errors::ApiError;

/// One finished choice.
#[derive(Debug, Default)]
pub struct Choice {
    /// Its text.
    pub text: String,
    /// Log-probabilities of its tokens, if wanted.
    pub logprobs: Vec<TokenLogProbs>,
    /// Why it ended.
    pub reason: Option<FinishReason>,
}

/// Waits for all choices.
pub async fn collect(shared: &Shared, mut events: Merged, plan: Plan) -> Result<(Vec<Choice>, UsageReport), ApiError> {
    let mut choices: Vec<Choice> = (0..plan.count).map(|_| Choice::default()).collect();
    let mut usage_report = UsageReport::default();
    while let Some((index, event)) = events.next().await {
        let choice = &mut choices[index];
        match event {
            Event::Token { text, logprobs, .. } => {
                choice.text.push_str(&text);
                choice.logprobs.extend(logprobs);
            }
            Event::Done {
                reason, text, usage, ..
            } => {
                choice.text.push_str(&text);
                choice.reason = Some(reason);
                usage_report.add(index, plan.n, &usage);
            }
            Event::Failed(error) => return Err(ApiError::from_submit(error, plan.prompt_field)),
        }
    }
    if choices.iter().any(|choice| choice.reason.is_none()) {
        return Err(cut_off(shared));
    }
    Ok((choices, usage_report))
}
