//! Sizes in bytes as people write them.

/// Units and their factors; the binary ones and the decimal ones differ on purpose.
const UNITS: [(&str, u64); 12] = [
    ("", 1),
    ("b", 1),
    ("k", 1 << 10),
    ("kib", 1 << 10),
    ("m", 1 << 20),
    ("mib", 1 << 20),
    ("g", 1 << 30),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
];

/// Bytes of a size such as `8GiB`, `512M` (the same as `MiB`), `1.5GB` (decimal) or a plain number of bytes.
pub fn parse(text: &str) -> Result<u64, String> {
    let refused =
        || format!("{text:?} is no size; write a number of bytes, or one with a unit, such as 512MiB or 8GiB");
    let text = text.trim();
    let split = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit = unit.trim().to_ascii_lowercase();
    let (_, factor) = *UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(refused)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole
            .checked_mul(factor)
            .ok_or_else(|| format!("{text:?} is more than this machine can address"));
    }
    let bytes = number.parse::<f64>().map_err(|_| refused())? * factor as f64;
    // Beyond 2^53 an f64 does not hold every byte, and nobody means such a size.
    if bytes.is_finite() && bytes < 9e15 {
        Ok(bytes as u64)
    } else {
        Err(format!("{text:?} is more than this machine can address"))
    }
}

/// A size for people, in binary units with three digits.
pub fn format(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < NAMES.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if unit == 0 || value >= 100.0 { 0 } else { 1 };
    format!("{value:.digits$} {}", NAMES[unit])
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn sizes_read_well() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (13_000_000, "12.4 MiB"),
            (300 << 30, "300 GiB"),
        ] {
            assert_eq!(format(bytes), text);
        }
    }

    #[test]
    fn sizes_with_and_without_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8GiB", 8 << 30),
            ("8 GiB", 8 << 30),
            ("8g", 8 << 30),
            ("512MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("10kb", 10_000),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "GiB", "8XB", "-1", "1.2.3", "1e3", "99999999999GiB", "8GiBs"] {
            let error = parse(text).expect_err(text);
            assert!(error.contains("8GiB") || error.contains("more than"), "{error}");
        }
    }
}
