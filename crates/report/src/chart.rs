//! Charts as data: `assets/charts.js` draws them. Values travel as JSON beside the chart's table.

use serde::Serialize;

/// A chart.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    /// Unique on its page.
    pub id: String,
    /// What it shows in one sentence, spoken to those who cannot see it.
    pub summary: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// What is drawn.
    pub series: Vec<Series>,
    /// Labelled lines across the chart.
    pub marks: Vec<Mark>,
}

/// An axis.
#[derive(Debug, Clone, Serialize)]
pub struct Axis {
    /// Name of the quantity.
    pub label: String,
    /// Its unit; empty for a pure number.
    pub unit: String,
    /// How values become positions.
    pub scale: Scale,
    /// For [`Scale::Category`]: the values in their order.
    pub categories: Vec<f64>,
    /// For [`Scale::Category`]: their names, where they are no quantity; else empty.
    pub names: Vec<String>,
    /// For [`Scale::Linear`]: whether the axis begins at 0.
    pub from_zero: bool,
    /// Decimals in the hover box.
    pub decimals: usize,
}

impl Axis {
    /// A linear axis from 0.
    pub fn linear(label: impl Into<String>, unit: &str) -> Self {
        Self {
            label: label.into(),
            unit: unit.to_owned(),
            scale: Scale::Linear,
            categories: Vec::new(),
            names: Vec::new(),
            from_zero: true,
            decimals: 4,
        }
    }

    /// Equal distances between the values.
    pub fn category(label: impl Into<String>, unit: &str, categories: Vec<f64>) -> Self {
        Self {
            scale: Scale::Category,
            categories,
            ..Self::linear(label, unit)
        }
    }

    /// Equal distances between things that have names; the first is at 0.
    pub fn named(label: impl Into<String>, names: Vec<String>) -> Self {
        Self {
            categories: (0..names.len()).map(|i| i as f64).collect(),
            names,
            scale: Scale::Category,
            ..Self::linear(label, "")
        }
    }

    /// Logarithmic when the values span more than this factor and all are above 0: otherwise small ones would lie on
    /// the axis.
    pub const LOG_FROM: f64 = 20.0;

    /// Linear or logarithmic, by the values. The label says which when it is logarithmic.
    pub fn fitting(label: impl Into<String>, logarithmic: &str, unit: &str, values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let decimals = crate::number::decimals_for(values.iter().copied());
        let label = label.into();
        if low > 0.0 && high / low > Self::LOG_FROM {
            let label = format!("{label}, {logarithmic}");
            Self {
                scale: Scale::Log,
                decimals,
                ..Self::linear(label, unit)
            }
        } else {
            Self {
                decimals,
                ..Self::linear(label, unit)
            }
        }
    }
}

/// How values become positions on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// In proportion.
    Linear,
    /// By the logarithm.
    Log,
    /// Equal distances, whatever the values.
    Category,
}

/// A series.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// How it is drawn.
    pub style: Style,
    /// Which colour and symbol of the palette.
    pub color: usize,
    /// Whether its line is dashed.
    pub dash: bool,
    /// The points.
    pub points: Vec<Dot>,
}

impl Series {
    /// Points joined by a line.
    pub fn line(name: impl Into<String>, color: usize, points: Vec<Dot>) -> Self {
        Self {
            name: name.into(),
            style: Style::Line,
            color,
            dash: false,
            points,
        }
    }

    /// Separate points.
    pub fn dots(name: impl Into<String>, color: usize, points: Vec<Dot>) -> Self {
        Self {
            style: Style::Dots,
            ..Self::line(name, color, points)
        }
    }

    /// Vertical bars: the points come in pairs, the lower and the upper end at one x.
    pub fn ranges(name: impl Into<String>, color: usize, ends: Vec<Dot>) -> Self {
        Self {
            style: Style::Range,
            ..Self::line(name, color, ends)
        }
    }

    /// A thin line to compare with; not a measurement.
    pub fn guide(name: impl Into<String>, points: Vec<Dot>) -> Self {
        Self {
            style: Style::Guide,
            ..Self::line(name, 5, points)
        }
    }
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Points joined by a line: medians and quantiles.
    Line,
    /// Separate points: raw values.
    Dots,
    /// A thin line to compare with.
    Guide,
    /// Vertical bars between pairs of points: intervals.
    Range,
}

/// A point: x, y, and what to say about it.
#[derive(Debug, Clone, Serialize)]
pub struct Dot(
    pub f64,
    pub f64,
    #[serde(skip_serializing_if = "String::is_empty")] pub String,
);

impl Dot {
    /// A point that needs no words.
    #[must_use]
    pub fn at(x: f64, y: f64) -> Self {
        Self(x, y, String::new())
    }
}

/// A labelled line across the chart.
#[derive(Debug, Clone, Serialize)]
pub struct Mark {
    /// The axis it stands on, `x` or `y`.
    pub axis: &'static str,
    /// Where.
    pub at: f64,
    /// Its label.
    pub label: String,
}

/// A chart, its table, and the words around them.
#[derive(Debug, Clone, Serialize)]
pub struct Exhibit {
    /// Heading.
    pub title: String,
    /// What to know when reading it.
    pub note: String,
    /// The chart.
    pub chart: Chart,
    /// The same values.
    pub table: crate::table::Table,
    /// Whether the table is short enough to stand beside the chart.
    pub side: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_turns_logarithmic_only_when_its_values_span_far_and_none_is_zero() {
        let axis = |values: &[f64]| Axis::fitting("TTFT", "logarithmic", "ms", values);
        assert_eq!(axis(&[60.0, 13149.0]).scale, Scale::Log);
        assert_eq!(axis(&[60.0, 13149.0]).label, "TTFT, logarithmic");
        assert_eq!(axis(&[60.0, 130.0]).scale, Scale::Linear);
        assert_eq!(axis(&[0.0, 130.0]).scale, Scale::Linear);
        assert_eq!(axis(&[]).scale, Scale::Linear);
    }
}
