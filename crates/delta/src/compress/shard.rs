//! A part of one model's work: what one of several machines does.

use std::str::FromStr;

use deltamux_model::LinearId;
use serde::{Deserialize, Serialize};

use super::error::CompressError;

/// Most shards of one model.
const MOST: usize = 10_000;

/// Shard `index` (from 1) of `count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which one, from 1.
    pub index: usize,
    /// How many there are.
    pub count: usize,
}

impl Shard {
    /// Everything.
    pub const WHOLE: Self = Self { index: 1, count: 1 };

    /// Whether the linear belongs to this shard: layers are dealt out in turn, so that shards have like layers to share
    /// their budget between.
    pub(crate) fn has(self, id: LinearId) -> bool {
        id.layer % self.count == self.index - 1
    }

    /// The first shard also takes what is not in a layer: embeddings, norms, biases and text files.
    pub(crate) fn is_first(self) -> bool {
        self.index == 1
    }

    /// Whether this is one of several.
    pub fn is_part(self) -> bool {
        self.count > 1
    }

    pub(crate) fn check(self) -> Result<(), CompressError> {
        if (1..=MOST).contains(&self.count) && (1..=self.count).contains(&self.index) {
            return Ok(());
        }
        Err(CompressError::Option(format!(
            "shard {self}: expected i/n with i from 1 to n, n at most {MOST}, such as 1/8"
        )))
    }
}

impl std::fmt::Display for Shard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for Shard {
    type Err = CompressError;

    fn from_str(text: &str) -> Result<Self, CompressError> {
        let parts = text
            .split_once('/')
            .and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        let (index, count) = parts.ok_or_else(|| {
            CompressError::Option(format!("shard `{text}`: expected i/n with i from 1 to n, such as 1/8"))
        })?;
        let shard = Self { index, count };
        shard.check()?;
        Ok(shard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deltamux_model::LinearKind;

    #[test]
    fn every_layer_belongs_to_one_shard() {
        for count in [1, 2, 3, 7] {
            for layer in 0..20 {
                let id = LinearId {
                    layer,
                    kind: LinearKind::Up,
                };
                let owners = (1..=count).filter(|&index| Shard { index, count }.has(id)).count();
                assert_eq!(owners, 1);
            }
        }
    }

    #[test]
    fn only_i_of_n_is_a_shard() {
        assert_eq!("2/8".parse::<Shard>().unwrap(), Shard { index: 2, count: 8 });
        for text in ["", "1", "0/4", "5/4", "1/0", "-1/4", "a/b", "1/4/2", "1/99999"] {
            let error = text.parse::<Shard>().unwrap_err().to_string();
            assert!(error.contains("such as 1/8"), "{text}: {error}");
        }
    }
}
