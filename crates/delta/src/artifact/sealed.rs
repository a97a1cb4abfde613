//! JSON that ends with its own SHA-256: figures and names have no other digest.

use serde::Serialize;
use sha2::{Digest as _, Sha256};

/// End of a pretty-printed object.
const END: &str = "\n}";
/// Beginning of the last entry of the file.
const OWN_DIGEST: &str = ",\n  \"manifest_sha256\": \"";

/// An object as JSON, and as its last entry (`manifest_sha256`) the SHA-256 of the text without that entry.
pub(crate) fn seal(value: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut text = serde_json::to_vec_pretty(value)?;
    let digest = hex::encode(Sha256::digest(&text));
    text.truncate(text.len() - END.len());
    text.extend(OWN_DIGEST.as_bytes());
    text.extend(digest.as_bytes());
    text.extend(b"\"");
    text.extend(END.as_bytes());
    text.push(b'\n');
    Ok(text)
}

/// Checks the SHA-256 that is the last entry of the text, byte for byte.
pub(crate) fn check(text: &[u8]) -> Result<(), String> {
    let entry = OWN_DIGEST.len() + 64 + 1;
    let parts = text
        .strip_suffix(b"\n")
        .and_then(|text| text.strip_suffix(END.as_bytes()))
        .and_then(|text| text.split_at_checked(text.len().checked_sub(entry)?));
    let Some((body, last)) = parts.filter(|(_, last)| last.starts_with(OWN_DIGEST.as_bytes())) else {
        return Err("does not end with its own SHA-256 (`manifest_sha256`): the file was changed".to_string());
    };
    let mut hash = Sha256::new();
    hash.update(body);
    hash.update(END);
    let found = hex::encode(hash.finalize());
    if last[OWN_DIGEST.len()..last.len() - 1] != *found.as_bytes() {
        return Err(format!(
            "SHA-256 is {found}, but its last entry says otherwise: the file was changed; copy the artifact again"
        ));
    }
    Ok(())
}
