//! `server.json`: what the server said about itself before and after the run.

use serde::{Deserialize, Serialize};

/// The server's own report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerReport {
    /// Id of the run.
    pub run: String,
    /// `GET /v1/models` before the run.
    pub models: Answer,
    /// `GET /version` before the run.
    pub version: Answer,
    /// `GET /metrics` before the run.
    pub metrics_before: Answer,
    /// `GET /metrics` after the run.
    pub metrics_after: Answer,
}

/// An answer as it came, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// HTTP status; absent when there was no answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The text of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Why there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// One sample of a Prometheus text.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the metric.
    pub name: String,
    /// What stands between the braces; empty without labels.
    pub labels: String,
    /// Its value.
    pub value: f64,
}

impl Answer {
    /// The text of an answer with status 200.
    pub fn ok(&self) -> Option<&str> {
        self.text.as_deref().filter(|_| self.status == Some(200))
    }

    /// The samples, when the answer is a Prometheus text; lines that are none are left out.
    pub fn samples(&self) -> Vec<Sample> {
        self.ok().unwrap_or_default().lines().filter_map(sample).collect()
    }

    /// Sum of the samples called `name`, over all labels; `None` when there is none.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.samples()
            .into_iter()
            .filter(|s| s.name == name)
            .map(|s| s.value)
            .reduce(|a, b| a + b)
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (name, labels, rest) = match line.split_once('{') {
        // A label's value may hold a brace: the last one ends the labels.
        Some((name, rest)) => rest.rsplit_once('}').map(|(labels, rest)| (name, labels, rest))?,
        None => line.split_once(' ').map(|(name, rest)| (name, "", rest))?,
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample {
        name: name.trim().to_owned(),
        labels: labels.to_owned(),
        value,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_a_prometheus_text_are_read() {
        let text = "# HELP x y\n# TYPE x counter\nx{model=\"a}b\"} 2\nx{model=\"c\"} 3 1700000000\ny 1.5e3\nrubbish\n";
        let answer = Answer {
            status: Some(200),
            text: Some(text.into()),
            error: None,
        };
        assert_eq!(answer.samples().len(), 3);
        assert_eq!(answer.samples()[0].labels, "model=\"a}b\"");
        assert_eq!(
            (answer.metric("x"), answer.metric("y"), answer.metric("z")),
            (Some(5.0), Some(1500.0), None)
        );
    }
}
