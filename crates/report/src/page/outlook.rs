//! Chapters that no bundle fills yet. They stay on the page and say so: a reader must see what was not measured.

use deltamux_bench::bundle::Profile;

use super::{Block, Fact, Section};
use crate::language::Texts;

/// Profiles of `measurement` besides the one that was run.
pub fn other_profiles(texts: &Texts, run: Profile) -> Section {
    let run = run.to_string();
    let facts = [
        "arrivals",
        "concurrency",
        "quality",
        "decode",
        "ttft",
        "context",
        "prefix",
        "correctness",
    ]
    .into_iter()
    .filter(|name| *name != run)
    .map(|name| Fact {
        absent: texts.get("absent.not_in_this_run"),
        ..Fact::stated(texts, &format!("profile.{name}"), None)
    })
    .collect();
    Section::new(texts, "other_profiles", vec![Block::Facts { facts }])
}

/// A section of terms that were not measured.
pub fn unmeasured(texts: &Texts, key: &str, terms: &[&str]) -> Section {
    let facts = terms
        .iter()
        .map(|term| Fact::measured(texts, &format!("{key}.{term}"), None))
        .collect();
    Section::new(texts, key, vec![Block::Facts { facts }])
}

/// Quality of the answers, and quality against speed.
pub fn quality(texts: &Texts) -> Vec<Section> {
    vec![
        unmeasured(
            texts,
            "answers",
            &[
                "exact_match",
                "mean_kl",
                "agreement",
                "perplexity",
                "throughput",
                "memory",
            ],
        ),
        absent(texts, "quality_speed", "absent.no_evaluation"),
    ]
}

/// Speculation, requested and effective, and correctness cases.
pub fn speculation(texts: &Texts) -> Vec<Section> {
    let mut section = unmeasured(texts, "speculative", &["proposed", "accepted", "rejected", "unused"]);
    if let Some(Block::Facts { facts }) = section.blocks.first_mut() {
        facts.insert(0, Fact::stated(texts, "speculative.requested", None));
        facts.insert(1, Fact::stated(texts, "speculative.effective", None));
    }
    vec![section, absent(texts, "correctness", "absent.no_cases")]
}

/// Single tokens.
pub fn tokens(texts: &Texts) -> Vec<Section> {
    vec![
        absent(texts, "acceptance_map", "absent.no_tokens"),
        absent(texts, "token_latency", "absent.no_tokens"),
        absent(texts, "token_heatmap", "absent.no_tokens"),
    ]
}

fn absent(texts: &Texts, key: &str, text: &str) -> Section {
    Section::new(texts, key, vec![Block::Absent { text: texts.get(text) }])
}
