use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A hub on this machine that has one model, `org/model`, with these files.
struct MockHub {
    address: String,
    requests: Arc<AtomicUsize>,
}

impl MockHub {
    fn start(files: &[(&str, &str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let files: HashMap<String, String> = files.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counter.fetch_add(1, Ordering::SeqCst);
                // A client that goes away is its own affair.
                let _ = answer(stream, &files);
            }
        });
        Self { address, requests }
    }

    fn hub(&self, cache: &Path) -> Hub {
        Hub {
            cache: Cache::new(cache.to_path_buf()),
            endpoint: Some(self.address.clone()),
            token: None,
            offline: false,
            progress: false,
        }
    }
}

/// Answers one request as the hub does, as far as the client looks at it.
fn answer(mut stream: TcpStream, files: &HashMap<String, String>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut start = 0;
    loop {
        let mut header = String::new();
        reader.read_line(&mut header)?;
        if header.trim().is_empty() {
            break;
        }
        if let Some(range) = header.to_ascii_lowercase().strip_prefix("range: bytes=") {
            start = range.split('-').next().and_then(|n| n.trim().parse().ok()).unwrap_or(0);
        }
    }
    let path = request.split(' ').nth(1).unwrap_or_default();
    let listing = || {
        let siblings: Vec<_> = files
            .keys()
            .map(|name| serde_json::json!({ "rfilename": name }))
            .collect();
        serde_json::json!({ "sha": COMMIT, "siblings": siblings }).to_string()
    };
    let (status, body) = match path {
        "/api/models/org/model" | "/api/models/org/model/revision/main" => ("200 OK", listing()),
        "/api/models/org/gated" | "/api/models/org/gated/revision/main" => ("401 Unauthorized", String::new()),
        _ => match path
            .strip_prefix("/org/model/resolve/main/")
            .and_then(|name| files.get(name))
        {
            Some(text) => ("206 Partial Content", text[start.min(text.len())..].to_owned()),
            None => ("404 Not Found", String::new()),
        },
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\netag: \"{:x}\"\r\nx-repo-commit: {COMMIT}\r\n\
         content-range: bytes {start}-{}/{}\r\n\r\n{body}",
        body.len(),
        path.bytes()
            .fold(7u64, |hash, b| hash.wrapping_mul(31).wrapping_add(u64::from(b))),
        start + body.len(),
        start + body.len(),
    )
}

const FILES: [(&str, &str); 7] = [
    ("config.json", "{}"),
    ("tokenizer.json", "{\"a\": 1}"),
    ("chat_template.jinja", "{{ x }}"),
    (
        "model.safetensors.index.json",
        r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#,
    ),
    ("model-1.safetensors", "one"),
    ("model-2.safetensors", "two"),
    ("consolidated.safetensors", "the same again"),
];

#[test]
fn a_sharded_model_is_downloaded_once_and_only_what_is_needed() {
    let cache = tempfile::tempdir().expect("a directory");
    let mock = MockHub::start(&FILES);
    let dir = mock.hub(cache.path()).resolve("org/model").expect("a model");
    for (name, text) in &FILES[..6] {
        assert_eq!(&fs_err::read_to_string(dir.join(name)).expect(name), text);
    }
    assert!(!dir.join("consolidated.safetensors").exists());
    let requests = mock.requests.load(Ordering::SeqCst);
    let offline = Hub {
        offline: true,
        ..mock.hub(cache.path())
    };
    assert_eq!(offline.resolve("org/model").expect("the cached copy"), dir);
    assert_eq!(
        mock.hub(cache.path()).resolve("org/model").expect("the cached copy"),
        dir
    );
    assert_eq!(
        mock.requests.load(Ordering::SeqCst),
        requests,
        "the cached copy needs no request"
    );
}

#[test]
fn an_incomplete_copy_is_completed() {
    let cache = tempfile::tempdir().expect("a directory");
    let mock = MockHub::start(&FILES);
    let dir = mock.hub(cache.path()).resolve("org/model").expect("a model");
    fs_err::remove_file(dir.join("model-2.safetensors")).expect("removed");
    assert!(mock.hub(cache.path()).cached("org/model").is_none());
    assert_eq!(mock.hub(cache.path()).resolve("org/model").expect("a model"), dir);
    assert!(dir.join("model-2.safetensors").exists());
}

#[test]
fn what_the_hub_refuses_is_said_in_one_line() {
    let cache = tempfile::tempdir().expect("a directory");
    let mock = MockHub::start(&[
        ("config.json", "{}"),
        ("tokenizer.json", "{}"),
        ("pytorch_model.bin", ""),
    ]);
    let hub = mock.hub(cache.path());
    for (model, expected) in [
        ("org/nothing", "there is none of this name"),
        ("org/gated", "access is refused"),
        (
            "org/model",
            "neither model.safetensors nor model.safetensors.index.json",
        ),
    ] {
        let error = hub.resolve(model).expect_err(model);
        assert!(error.contains(expected) && !error.contains('\n'), "{error}");
    }
    let offline = Hub {
        offline: true,
        ..mock.hub(cache.path())
    };
    assert!(
        offline
            .resolve("org/other")
            .expect_err("not cached")
            .contains("HF_HUB_OFFLINE")
    );
    // Nothing listens on the discard port.
    let unreachable = Hub {
        endpoint: Some("http://127.0.0.1:9".to_owned()),
        ..mock.hub(cache.path())
    };
    let error = unreachable.resolve("org/other").expect_err("no hub");
    assert!(
        error.contains("the hub cannot be reached") && error.contains("give a directory"),
        "{error}"
    );
}

#[test]
fn an_index_cannot_name_files_elsewhere() {
    let cache = tempfile::tempdir().expect("a directory");
    let index = r#"{"weight_map": {"a": "../../../evil.safetensors"}}"#;
    let mock = MockHub::start(&[("config.json", "{}"), ("tokenizer.json", "{}"), (INDEX, index)]);
    let error = mock.hub(cache.path()).resolve("org/model").expect_err("outside");
    assert!(error.contains("leaves the model's directory"), "{error}");
}

#[test]
fn directories_go_before_ids_and_the_rest_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().to_str().expect("UTF-8");
    assert_eq!(resolve(path).expect("itself"), dir.path());
    let file = dir.path().join("model.safetensors");
    fs_err::write(&file, "").expect("written");
    let error = resolve(file.to_str().expect("UTF-8")).expect_err("a file").to_string();
    assert!(error.ends_with("is a file: expected the model's directory"), "{error}");
    for other in [
        "",
        "nothing-here",
        "./org/name",
        "/org/name",
        "a/b/c",
        "../x",
        "org/..",
        "org/na me",
        "org/",
    ] {
        assert!(matches!(resolve(other), Err(HubError::NotFound(_))), "{other}");
    }
    for id in [
        "Qwen/Qwen2.5-0.5B-Instruct",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "a/b",
    ] {
        assert!(is_hub_id(id), "{id}");
    }
}
