//! Token counts as OpenAI reports them.

use deltamux_engine::Usage;
use serde::Serialize;

/// The `usage` of a response.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct UsageReport {
    /// Tokens of the prompts, each counted once however many completions it has.
    pub prompt_tokens: usize,
    /// Tokens of all completions.
    pub completion_tokens: usize,
    /// Their sum.
    pub total_tokens: usize,
    /// Where prompt tokens came from.
    pub prompt_tokens_details: PromptDetails,
}

/// Details of the prompt's tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PromptDetails {
    /// Found in the prefix cache.
    pub cached_tokens: usize,
}

impl UsageReport {
    /// Adds choice `index` of a request with `n` choices a prompt.
    pub fn add(&mut self, index: usize, n: usize, usage: &Usage) {
        if index.is_multiple_of(n) {
            self.prompt_tokens += usage.prompt_tokens;
            self.prompt_tokens_details.cached_tokens += usage.cached_tokens;
        }
        self.completion_tokens += usage.completion_tokens;
        self.total_tokens = self.prompt_tokens + self.completion_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_once_for_all_its_choices() {
        let one = Usage {
            prompt_tokens: 10,
            cached_tokens: 4,
            completion_tokens: 3,
        };
        let mut report = UsageReport::default();
        for index in [1, 0, 2, 3] {
            report.add(index, 2, &one);
        }
        assert_eq!(
            (report.prompt_tokens, report.completion_tokens, report.total_tokens),
            (20, 12, 32)
        );
        assert_eq!(report.prompt_tokens_details.cached_tokens, 8);
    }
}
