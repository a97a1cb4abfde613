//! Numbers and moments as each language writes them.

use crate::language::Language;

/// A space that neither breaks a line nor stretches.
const NARROW_SPACE: char = '\u{202f}';
/// A space that does not break a line.
const FIXED_SPACE: char = '\u{a0}';

/// Most decimals that a figure is shown with; the CSV has all of them.
const MAX_DECIMALS: usize = 4;

/// Decimals that give the smallest value other than 0 three significant digits, so that a column reads as one scale;
/// none for whole numbers.
pub fn decimals_for(values: impl IntoIterator<Item = f64>) -> usize {
    let mut smallest = f64::INFINITY;
    let mut whole = true;
    for value in values.into_iter().filter(|x| x.is_finite() && *x != 0.0) {
        smallest = smallest.min(value.abs());
        whole &= value.fract() == 0.0;
    }
    if whole || !smallest.is_finite() {
        return 0;
    }
    let digits_before = smallest.log10().floor();
    (2.0 - digits_before).clamp(0.0, MAX_DECIMALS as f64) as usize
}

/// A number with a fixed count of decimals and grouped thousands. `None` when it is no finite number.
#[must_use]
pub fn fixed(language: Language, value: f64, decimals: usize) -> Option<String> {
    if !value.is_finite() {
        return None;
    }
    let plain = format!("{:.*}", decimals, value.abs());
    let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
    let (group, point) = match language {
        Language::En => (',', '.'),
        Language::De => ('.', ','),
    };
    let mut out = String::with_capacity(plain.len() + plain.len() / 3 + 2);
    let is_zero = plain.bytes().all(|b| matches!(b, b'0' | b'.'));
    if value < 0.0 && !is_zero {
        out.push('\u{2212}');
    }
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push(group);
        }
        out.push(digit);
    }
    if !fraction.is_empty() {
        out.push(point);
        out.push_str(fraction);
    }
    Some(out)
}

/// A number without superfluous zeros, at most [`MAX_DECIMALS`] decimals: for conditions such as a rate or a limit.
#[must_use]
pub fn plain(language: Language, value: f64) -> Option<String> {
    let decimals = (0..MAX_DECIMALS)
        .find(|&d| {
            let scale = 10f64.powi(d as i32);
            ((value * scale).round() / scale - value).abs() <= value.abs() * 1e-9
        })
        .unwrap_or(MAX_DECIMALS);
    fixed(language, value, decimals)
}

/// A count.
#[must_use]
pub fn count(language: Language, value: u64) -> String {
    let digits = value.to_string();
    let group = if language == Language::En { ',' } else { '.' };
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(group);
        }
        out.push(digit);
    }
    out
}

/// A number and its unit. English sets the per cent sign solid, German apart.
#[must_use]
pub fn with_unit(language: Language, number: &str, unit: &str) -> String {
    match (unit, language) {
        ("", _) => number.to_owned(),
        ("%", Language::En) => format!("{number}%"),
        ("%", Language::De) => format!("{number}{NARROW_SPACE}%"),
        _ => format!("{number}{FIXED_SPACE}{unit}"),
    }
}

/// A size in bytes with a binary unit.
#[must_use]
pub fn bytes(language: Language, value: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut scaled = value as f64;
    let mut unit = 0;
    while scaled >= 1024.0 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let decimals = if unit == 0 { 0 } else { decimals_for([scaled]).min(2) };
    with_unit(
        language,
        &fixed(language, scaled, decimals).unwrap_or_default(),
        UNITS[unit],
    )
}

/// A moment in UTC to the minute, from RFC 3339; text that is no such moment is shown as it is.
#[must_use]
pub fn moment(language: Language, rfc3339: &str) -> String {
    let Ok(timestamp) = rfc3339.parse::<jiff::Timestamp>() else {
        return rfc3339.to_owned();
    };
    let format = match language {
        Language::En => "%Y-%m-%d %H:%M UTC",
        Language::De => "%d.%m.%Y, %H:%M UTC",
    };
    timestamp.strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_and_decimals_follow_the_language() {
        assert_eq!(fixed(Language::En, 13149.65, 2).as_deref(), Some("13,149.65"));
        assert_eq!(fixed(Language::De, 13149.65, 2).as_deref(), Some("13.149,65"));
        assert_eq!(fixed(Language::De, 999.0, 0).as_deref(), Some("999"));
        assert_eq!(fixed(Language::En, -1234.5, 1).as_deref(), Some("\u{2212}1,234.5"));
        assert_eq!(fixed(Language::En, -0.0001, 2).as_deref(), Some("0.00"));
        assert_eq!(count(Language::De, 1_048_576), "1.048.576");
    }

    #[test]
    fn a_number_that_is_not_finite_has_no_text() {
        assert_eq!(fixed(Language::En, f64::NAN, 2), None);
        assert_eq!(fixed(Language::En, f64::INFINITY, 2), None);
    }

    #[test]
    fn the_smallest_value_of_a_column_keeps_three_digits() {
        assert_eq!(decimals_for([38.56, 2999.35]), 1);
        assert_eq!(decimals_for([0.08, 0.86]), 4);
        assert_eq!(decimals_for([1453.8, 0.0]), 0);
        assert_eq!(decimals_for([]), 0);
        assert_eq!(decimals_for([32.0, 7.0]), 0);
        assert_eq!(decimals_for([1e-12]), MAX_DECIMALS);
    }

    #[test]
    fn conditions_lose_superfluous_zeros() {
        assert_eq!(plain(Language::De, 0.5).as_deref(), Some("0,5"));
        assert_eq!(plain(Language::En, 2.0).as_deref(), Some("2"));
        assert_eq!(plain(Language::En, 1.0 / 3.0).as_deref(), Some("0.3333"));
    }

    #[test]
    fn moments_and_sizes_are_written_as_the_language_writes_them() {
        let moment_text = "2026-09-08T14:57:51.478905+00:00";
        assert_eq!(moment(Language::En, moment_text), "2026-09-08 14:57 UTC");
        assert_eq!(moment(Language::De, moment_text), "08.09.2026, 14:57 UTC");
        assert_eq!(moment(Language::De, "yesterday"), "yesterday");
        assert_eq!(bytes(Language::De, 1536), "1,50\u{a0}KiB");
        assert_eq!(bytes(Language::En, 17), "17\u{a0}B");
    }
}
