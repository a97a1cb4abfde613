//! The bytes of each token of a byte-level vocabulary (GPT-2, Llama 3, Qwen, SmolLM2).
//!
//! Such a vocabulary writes each byte as one printable character: the printable ones of Latin-1 as themselves, the
//! other 68 as U+0100 onwards in byte order (Radford et al. 2019, `bytes_to_unicode` of the released encoder).

/// Bytes of every id, and which ids are skipped when a stream is decoded.
#[derive(Debug)]
pub(super) struct ByteLevel {
    /// All tokens' bytes, one after another.
    bytes: Vec<u8>,
    /// Where the bytes of an id begin; one more entry than ids.
    starts: Vec<usize>,
    special: Vec<bool>,
}

impl ByteLevel {
    /// The table of a tokenizer whose decoder is byte-level, for ids below `vocab_size`.
    pub(super) fn new(tokenizer: &tokenizers::Tokenizer, vocab_size: usize) -> Self {
        let added = tokenizer.get_added_vocabulary();
        let mut table = Self {
            bytes: Vec::new(),
            starts: vec![0],
            special: Vec::new(),
        };
        let bytes_of = bytes_of_characters();
        for id in 0..vocab_size as u32 {
            let token = tokenizer.id_to_token(id).unwrap_or_default();
            // As the decoder does it: a token with a character outside the alphabet stands for its own text.
            let bytes = token
                .chars()
                .map(|c| bytes_of.get(c as usize).copied().flatten())
                .collect::<Option<Vec<u8>>>()
                .unwrap_or_else(|| token.as_bytes().to_vec());
            table.bytes.extend_from_slice(&bytes);
            table.starts.push(table.bytes.len());
            table.special.push(added.is_special_token(&token));
        }
        table
    }

    /// Bytes of a token; none for an id outside the vocabulary.
    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        match self.starts.get(id as usize..) {
            Some([start, end, ..]) => &self.bytes[*start..*end],
            _ => &[],
        }
    }

    /// Bytes of a token in a decoded text: as [`ByteLevel::bytes`], none for a special token.
    pub(super) fn visible_bytes(&self, id: u32) -> &[u8] {
        match self.special.get(id as usize) {
            Some(false) => self.bytes(id),
            _ => &[],
        }
    }
}

/// Byte of each character of the alphabet, by code point.
fn bytes_of_characters() -> [Option<u8>; 324] {
    let mut table = [None; 324];
    let mut next = 256;
    for byte in 0..=255u8 {
        let printable = matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable {
            usize::from(byte)
        } else {
            next += 1;
            next - 1
        };
        table[code] = Some(byte);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_one_character_for_each_byte() {
        let table = bytes_of_characters();
        let mut bytes: Vec<_> = table.iter().flatten().copied().collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        // "Ġ" is the space and "Ċ" the newline, as every byte-level vocabulary shows.
        assert_eq!(table['Ġ' as usize], Some(b' '));
        assert_eq!(table['Ċ' as usize], Some(b'\n'));
        assert_eq!(table['a' as usize], Some(b'a'));
    }
}
