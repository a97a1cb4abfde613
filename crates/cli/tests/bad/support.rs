//! What these tests share: running the binary, and models to break.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

/// A model of the tiny family, or its `data` folder.
pub fn tiny(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/tiny")
        .join(name)
}

/// A command that runs the binary under test.
pub fn command<I: IntoIterator<Item: AsRef<OsStr>>>(args: I) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltamux"));
    command.args(args).env_remove("RUST_LOG");
    command
}

/// Runs the binary under test.
pub fn deltamux<I: IntoIterator<Item: AsRef<OsStr>>>(args: I) -> Output {
    command(args).output().expect("the binary starts")
}

/// Runs the binary, which must succeed, and reads the JSON document on its stdout.
pub fn json<I: IntoIterator<Item: AsRef<OsStr>>>(args: I) -> Value {
    let output = deltamux(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON document")
}

/// Checks that `output` is a user's error: exit code 2, nothing on stdout, and on stderr one line that contains each
/// of `words`.
#[track_caller]
pub fn assert_refused(output: &Output, words: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "exit code; stderr: {stderr}");
    assert!(
        output.stdout.is_empty(),
        "stdout: {}",
        String::from_utf8_lossy(&output.stdout)
    );
    assert_eq!(stderr.lines().count(), 1, "one line is expected on stderr: {stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "{word:?} is missing in: {stderr}");
    }
}

/// Runs the binary and checks that it refuses its input.
#[track_caller]
pub fn refused<I: IntoIterator<Item: AsRef<OsStr>>>(args: I, words: &[&str]) {
    assert_refused(&deltamux(args), words);
}

/// Arguments of different types as one list.
macro_rules! args {
    ($($arg:expr),* $(,)?) => { [$(std::ffi::OsString::from($arg)),*] };
}

/// Names in a folder, sorted; hidden ones included.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs_err::read_dir(dir)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// A copy of a tiny model, to be broken.
pub struct Broken {
    dir: TempDir,
}

impl Broken {
    /// Copies a model of the tiny family.
    pub fn copy(name: &str) -> Self {
        let dir = TempDir::new().expect("a temporary folder");
        for file in names(&tiny(name)) {
            fs_err::copy(tiny(name).join(&file), dir.path().join(file)).expect("a copy");
        }
        Self { dir }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Replaces the weights file by what `change` makes of its bytes.
    pub fn weights(self, change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Self {
        let path = self.file("model.safetensors");
        let bytes = fs_err::read(&path).expect("weights");
        fs_err::write(path, change(bytes)).expect("written");
        self
    }

    /// Changes the header of the weights file; the data stays.
    pub fn header(self, change: impl FnOnce(&mut Value)) -> Self {
        self.weights(|bytes| {
            let (header, data) = split(&bytes);
            let mut header: Value = serde_json::from_slice(header).expect("a header");
            change(&mut header);
            join(header.to_string().as_bytes(), data)
        })
    }

    /// Changes a JSON file.
    pub fn config(self, name: &str, change: impl FnOnce(&mut Value)) -> Self {
        let path = self.file(name);
        let mut value = serde_json::from_slice(&fs_err::read(&path).expect("a file")).expect("JSON");
        change(&mut value);
        fs_err::write(path, value.to_string()).expect("written");
        self
    }

    /// Overwrites the first element of a bf16 tensor.
    pub fn first_weight(self, tensor: &str, bits: u16) -> Self {
        self.weights(|mut bytes| {
            let (header, _) = split(&bytes);
            let start = 8 + header.len();
            let header: Value = serde_json::from_slice(header).expect("a header");
            let offset = header[tensor]["data_offsets"][0].as_u64().expect("an offset") as usize;
            bytes[start + offset..][..2].copy_from_slice(&bits.to_le_bytes());
            bytes
        })
    }
}

/// Header and data of a safetensors file.
pub fn split(bytes: &[u8]) -> (&[u8], &[u8]) {
    let len = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    bytes[8..].split_at(len)
}

/// A safetensors file of a header and data.
pub fn join(header: &[u8], data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.extend(data);
    bytes
}

/// An artifact of one of the tiny family's fine-tunes, made by the binary.
pub fn compress(name: &str, out: &Path) -> Value {
    json(args![
        "compress",
        "--base",
        tiny("base"),
        "--finetuned",
        tiny(name),
        "--calibration",
        tiny("data").join(format!("{name}.calibration.jsonl")),
        "--ratio",
        "1/16",
        "--out",
        out,
        "--json",
    ])
}
