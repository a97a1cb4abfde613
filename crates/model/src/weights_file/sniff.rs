//! What a file is that is not safetensors, for the error message.

/// A sentence for a file that is recognisably something else.
pub(super) fn not_safetensors(file: &[u8]) -> Option<String> {
    let starts = |magic: &[u8]| file.starts_with(magic);
    let (found, remedy) = if starts(b"PK\x03\x04") {
        (
            "a zip archive, as torch.save writes",
            "convert the model with transformers' save_pretrained",
        )
    } else if file.len() > 2 && file[0] == 0x80 && (1..=5).contains(&file[1]) {
        (
            "a Python pickle",
            "convert the model with transformers' save_pretrained",
        )
    } else if starts(b"version https://git-lfs") {
        ("a Git LFS pointer", "fetch the file itself with `git lfs pull`")
    } else if starts(b"GGUF") {
        ("a GGUF file", "use the model's safetensors checkpoint")
    } else if starts(b"\x89HDF\r\n\x1a\n") {
        ("an HDF5 file", "use the model's safetensors checkpoint")
    } else if starts(b"\x93NUMPY") {
        ("a NumPy array", "use the model's safetensors checkpoint")
    } else if starts(b"\x1f\x8b") || starts(b"\x28\xb5\x2f\xfd") {
        ("a compressed file", "decompress it first")
    } else if starts(b"<!DOCTYPE") || starts(b"<!doctype") || starts(b"<html") || starts(b"<?xml") {
        (
            "a web page",
            "download the file again; the server answered with a page instead",
        )
    } else if starts(b"{") {
        ("a JSON text", "check that the download is complete")
    } else {
        return None;
    };
    Some(format!("not a safetensors file but {found}: {remedy}"))
}
