//! The list of all runs.

use serde::Serialize;

use super::{masthead, quality};
use crate::language::Texts;
use crate::number;
use crate::source::Source;

/// The start page.
#[derive(Debug, Clone, Serialize)]
pub struct Overview {
    /// The runs, newest first.
    pub runs: Vec<Line>,
    /// The filters: their name and the values that occur.
    pub filters: Vec<Filter>,
}

/// A filter of the list.
#[derive(Debug, Clone, Serialize)]
pub struct Filter {
    /// Name of the rows' data attribute.
    pub name: &'static str,
    /// What it filters by.
    pub label: String,
    /// Values that occur, each once, in their order.
    pub values: Vec<String>,
}

/// A run in the list.
#[derive(Debug, Clone, Serialize)]
pub struct Line {
    /// Its page.
    pub href: String,
    /// What was served.
    pub title: String,
    /// Its id.
    pub id: String,
    /// Profile in words.
    pub profile: String,
    /// Engine with version.
    pub engine: Option<String>,
    /// Topology and device.
    pub device: Option<String>,
    /// Precision.
    pub precision: Option<String>,
    /// Exclusive or shared.
    pub operation: Option<String>,
    /// Models asked for.
    pub models: usize,
    /// Measured points.
    pub points: usize,
    /// The best figure with its unit.
    pub best: Option<String>,
    /// The same as a bare number.
    pub best_value: Option<f64>,
    /// At which load.
    pub best_at: String,
    /// When it began, for sorting.
    pub began: String,
    /// The same for reading.
    pub began_text: String,
    /// Status in words.
    pub status: String,
    /// Whether every figure could be recomputed.
    pub validated: bool,
    /// What the filters look at, by filter name: JSON lists.
    pub keys: std::collections::BTreeMap<&'static str, String>,
}

/// The list, with each run's page at the address beside it.
#[must_use]
pub fn overview(texts: &Texts, sources: &[(String, &Source)]) -> Overview {
    let mut runs: Vec<Line> = sources.iter().map(|(href, source)| line(texts, href, source)).collect();
    runs.sort_by(|a, b| b.began.cmp(&a.began).then_with(|| a.id.cmp(&b.id)));
    type Pick = fn(&Line) -> Option<&str>;
    let kinds: [(&'static str, Pick); 5] = [
        ("profile", |run| Some(&run.profile)),
        ("engine", |run| run.engine.as_deref()),
        ("device", |run| run.device.as_deref()),
        ("precision", |run| run.precision.as_deref()),
        ("status", |run| Some(&run.status)),
    ];
    for run in &mut runs {
        let keys = kinds.iter().map(|(name, pick)| {
            let list: Vec<&str> = pick(run).into_iter().collect();
            (*name, serde_json::Value::from(list).to_string())
        });
        let keys = keys.collect();
        run.keys = keys;
    }
    let filters = kinds
        .iter()
        .filter_map(|(name, pick)| {
            let values: std::collections::BTreeSet<&str> = runs.iter().filter_map(|run| pick(run)).collect();
            // One value leaves nothing to choose.
            (values.len() > 1).then(|| Filter {
                name,
                label: texts.get(&format!("overview.{name}")),
                values: values.into_iter().map(str::to_owned).collect(),
            })
        })
        .collect();
    Overview { runs, filters }
}

fn line(texts: &Texts, href: &str, source: &Source) -> Line {
    let language = texts.language();
    let run = &source.run;
    let best = masthead::best(run);
    let load = best
        .and_then(|(_, _, x)| number::plain(language, x))
        .unwrap_or_default();
    let right = quality::best(texts, run);
    Line {
        href: href.to_owned(),
        title: masthead::title(texts, run),
        id: run.id.clone(),
        profile: texts.get(&format!("profile.{}", run.profile)),
        engine: masthead::engine(run),
        device: masthead::device(run),
        precision: run.engine.precision.clone(),
        operation: masthead::operation(texts, run),
        models: run.models.len(),
        points: run.points.len(),
        best: best
            .and_then(|(value, unit, _)| {
                let text = number::fixed(language, value, number::decimals_for([value]))?;
                Some(number::with_unit(language, &text, unit))
            })
            .or_else(|| right.as_ref().map(|best| best.text.clone())),
        best_value: best
            .map(|(value, _, _)| value)
            .or_else(|| right.as_ref().map(|best| best.value)),
        best_at: best.map_or(right.map(|best| best.at).unwrap_or_default(), |(_, unit, _)| {
            let key = if unit == "req/s" {
                "headline.at_rate"
            } else {
                "headline.at_concurrency"
            };
            texts.with(key, &[("load", &load)])
        }),
        began: run.started_at.clone(),
        began_text: number::moment(language, &run.started_at),
        status: texts.get(if source.verdict.validated {
            "status.validated"
        } else {
            "status.unvalidated"
        }),
        validated: source.verdict.validated,
        keys: std::collections::BTreeMap::new(),
    }
}
