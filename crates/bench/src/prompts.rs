//! Prompts: seeded, of about the wanted length, and no two of a run alike.

use rand::Rng as _;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

/// What a request asks.
#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// A text; over the chat endpoint it becomes one user message.
    Text(String),
    /// Chat messages; only for the chat endpoint.
    Messages(Vec<Value>),
}

impl Prompt {
    /// The prompt as chat messages.
    pub fn messages(&self) -> Value {
        match self {
            Self::Text(text) => json!([{ "role": "user", "content": text }]),
            Self::Messages(messages) => Value::Array(messages.clone()),
        }
    }
}

/// How many tokens the server makes of words: `fixed + per_word · words`. The client has no tokenizer; it asks the
/// server twice and draws the line through its own counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokensOfWords {
    /// Tokens of the chat template.
    pub fixed: f64,
    /// Tokens of a word.
    pub per_word: f64,
}

impl Default for TokensOfWords {
    /// One token a word: what is assumed of a server that does not count.
    fn default() -> Self {
        Self {
            fixed: 0.0,
            per_word: 1.0,
        }
    }
}

impl TokensOfWords {
    /// The line through two counts (words, tokens); `None` when they do not rise.
    pub fn through(short: (u32, u32), long: (u32, u32)) -> Option<Self> {
        let words = long.0.checked_sub(short.0).filter(|w| *w > 0)?;
        let tokens = long.1.checked_sub(short.1).filter(|t| *t > 0)?;
        let per_word = f64::from(tokens) / f64::from(words);
        Some(Self {
            fixed: f64::from(short.1) - per_word * f64::from(short.0),
            per_word,
        })
    }

    /// Words that make about `tokens` tokens; at least 1.
    pub fn words(&self, tokens: u32) -> u32 {
        ((f64::from(tokens) - self.fixed) / self.per_word).round().max(1.0) as u32
    }
}

/// A prompt of at least `words` words. Its first words spell `number`, so that prompts of different numbers differ
/// from the first token on and no prefix cache can answer one with another.
pub fn synthetic(number: u64, words: u32, rng: &mut ChaCha8Rng) -> Prompt {
    let base = WORDS.len() as u64;
    let mut parts: Vec<&str> = Vec::with_capacity(words as usize);
    let mut rest = number;
    loop {
        parts.push(WORDS[(rest % base) as usize]);
        rest /= base;
        if rest == 0 {
            break;
        }
    }
    while parts.len() < words as usize {
        parts.push(WORDS[rng.random_range(0..WORDS.len())]);
    }
    Prompt::Text(parts.join(" "))
}

/// Short common English words; most vocabularies hold each as one token.
const WORDS: [&str; 128] = [
    "river", "stone", "light", "paper", "green", "table", "music", "water", "house", "night", "world", "plant",
    "story", "north", "south", "train", "money", "glass", "horse", "earth", "field", "voice", "color", "metal",
    "sound", "cloud", "bread", "ocean", "apple", "chair", "clock", "dream", "engine", "forest", "garden", "hammer",
    "island", "jacket", "kitchen", "ladder", "market", "needle", "office", "pencil", "quarter", "rabbit", "school",
    "ticket", "uncle", "valley", "window", "yellow", "animal", "bridge", "camera", "dinner", "energy", "family",
    "ground", "history", "insect", "journey", "kettle", "letter", "mirror", "nature", "orange", "planet", "queen",
    "report", "silver", "tower", "union", "village", "winter", "yard", "zone", "author", "bottle", "castle", "doctor",
    "effort", "flower", "guitar", "harbor", "image", "judge", "king", "lemon", "mountain", "number", "order", "people",
    "question", "road", "summer", "theory", "user", "vessel", "weather", "year", "answer", "beach", "circle", "desert",
    "event", "future", "grain", "hotel", "idea", "jewel", "knife", "lake", "motor", "novel", "object", "picture",
    "record", "season", "temple", "value", "wheel", "youth", "artist", "border", "corner", "degree", "signal",
];

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;
    use std::collections::HashSet;

    #[test]
    fn no_two_prompts_are_alike_however_short() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let texts: HashSet<String> = (0..1000).map(|i| format!("{:?}", synthetic(i, 1, &mut rng))).collect();
        assert_eq!(texts.len(), 1000);
    }

    #[test]
    fn the_word_list_has_no_word_twice() {
        assert_eq!(WORDS.iter().collect::<HashSet<_>>().len(), WORDS.len());
    }

    #[test]
    fn one_seed_fixes_the_prompts() {
        let draw = |seed| synthetic(7, 20, &mut ChaCha8Rng::seed_from_u64(seed));
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn two_counts_of_the_server_give_the_words_for_a_length() {
        // 10 words gave 35 tokens, 50 words 115: 15 for the template and 2 a word.
        let line = TokensOfWords::through((10, 35), (50, 115)).unwrap();
        assert_eq!(
            line,
            TokensOfWords {
                fixed: 15.0,
                per_word: 2.0
            }
        );
        assert_eq!(line.words(215), 100);
        assert_eq!(line.words(3), 1);
        assert_eq!(TokensOfWords::through((10, 35), (50, 35)), None);
    }
}
