//! Ratios as flags take them: `1/16` or `0.0625`.

/// Parses a ratio above 0 and at most 1.
pub fn parse(text: &str) -> Result<f64, String> {
    let number = |part: &str| part.trim().parse::<f64>().ok().filter(|x| x.is_finite());
    let ratio = match text.split_once('/') {
        Some((above, below)) => number(above).zip(number(below)).map(|(a, b)| a / b),
        None => number(text),
    };
    match ratio {
        Some(ratio) if ratio > 0.0 && ratio <= 1.0 => Ok(ratio),
        _ => Err(format!(
            "`{text}` is not a ratio: expected a share above 0 and at most 1, such as 1/16 or 0.0625"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn fractions_and_decimals_are_the_same() {
        assert_eq!(parse("1/16"), Ok(0.0625));
        assert_eq!(parse("0.0625"), Ok(0.0625));
        assert_eq!(parse("1"), Ok(1.0));
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for text in ["", "0", "-1/16", "1/0", "16", "nan", "inf/inf", "1/16/2", "a"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
