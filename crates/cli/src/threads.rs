//! Numbers of threads on the command line.

/// More than any machine has cores.
const MOST: usize = 1024;

/// A number of threads; 0 means one for each core.
pub fn parse(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if count <= MOST => Ok(count),
        _ => Err(format!("expected a number from 0 (one for each core) to {MOST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn absurd_numbers_are_refused() {
        assert_eq!(parse("0"), Ok(0));
        assert_eq!(parse("1024"), Ok(1024));
        assert!(parse("60000").is_err() && parse("-1").is_err() && parse("two").is_err());
    }
}
