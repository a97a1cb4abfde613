//! `deltamux serve` as a user runs it: the real binary, its first line, its signals, its refusals.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

fn tiny(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../models/tiny")
        .join(model)
}

fn deltamux(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_deltamux"));
    command.args(args).env_remove("RUST_LOG");
    command
}

/// A running server, killed when a test fails half-way.
struct Server {
    child: Child,
    url: String,
    first_line: String,
}

impl Server {
    fn start(args: &[&str]) -> Self {
        let base = tiny("base");
        let mut child = deltamux(&["serve", "--port", "0", "--threads", "1", "--kv-memory", "16MiB"])
            .arg("--base")
            .arg(base)
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first_line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut first_line)
            .unwrap();
        let start = first_line.find("http://").expect("the first line names the address");
        let url = first_line[start..]
            .chars()
            .take_while(|c| !c.is_whitespace() && *c != '"')
            .collect();
        Self { child, url, first_line }
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args(["-s", name, &self.child.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

async fn complete(url: &str, fields: Value) -> reqwest::Result<Value> {
    let mut body = json!({"model": "base", "prompt": "Hello", "temperature": 0});
    body.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    reqwest::Client::new()
        .post(format!("{url}/v1/completions"))
        .json(&body)
        .send()
        .await?
        .json()
        .await
}

#[test]
fn one_line_names_the_address_and_then_requests_are_answered() {
    let mut server = Server::start(&[]);
    assert!(
        server.first_line.starts_with("listening on http://127.0.0.1:"),
        "{}",
        server.first_line
    );
    block_on(async {
        assert_eq!(
            reqwest::get(format!("{}/health", server.url)).await.unwrap().status(),
            200
        );
        let answer = complete(&server.url, json!({"max_tokens": 4})).await.unwrap();
        assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer}");
    });
    server.signal("TERM");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let mut rest = String::new();
    server.child.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "stdout has the one line only");
}

#[test]
fn with_json_the_line_is_a_document() {
    let server = Server::start(&["--json"]);
    let line: Value = serde_json::from_str(&server.first_line).unwrap();
    assert_eq!(line["url"], server.url.as_str());
    assert_eq!(line["models"], json!(["base"]));
}

#[test]
fn a_running_answer_is_finished_after_the_first_signal() {
    let mut server = Server::start(&["--max-model-len", "400"]);
    let answer = block_on(async {
        let url = server.url.clone();
        let answer = tokio::spawn(async move { complete(&url, json!({"max_tokens": 300, "ignore_eos": true})).await });
        loop {
            let metrics = reqwest::get(format!("{}/metrics", server.url))
                .await
                .unwrap()
                .text()
                .await
                .unwrap();
            if metrics.lines().any(|line| line == "deltamux_requests_running 1") || answer.is_finished() {
                break;
            }
        }
        server.signal("INT");
        answer.await.unwrap().unwrap()
    });
    assert_eq!(answer["usage"]["completion_tokens"], 300, "{answer}");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_key_file_closes_the_api() {
    let dir = tempfile::tempdir().unwrap();
    let keys = dir.path().join("keys");
    fs_err::write(&keys, "secret\n").unwrap();
    let server = Server::start(&["--api-key-file", keys.to_str().unwrap()]);
    block_on(async {
        let url = format!("{}/v1/models", server.url);
        let client = reqwest::Client::new();
        assert_eq!(client.get(&url).send().await.unwrap().status(), 401);
        assert_eq!(
            client.get(&url).bearer_auth("secret").send().await.unwrap().status(),
            200
        );
    });
}

/// What a refused start prints, after checking that it is one line on stderr and exit code 2.
fn refusal(output: Output) -> String {
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert_eq!(output.stdout, b"");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

#[test]
fn what_cannot_be_served_is_refused_in_one_line() {
    let base = tiny("base");
    let base = base.to_str().unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = port.local_addr().unwrap().port().to_string();
    for (args, expected) in [
        (vec!["--base", "/no/such/model"], "/no/such/model"),
        (vec!["--base", base, "--port", &taken], "--port"),
        (vec!["--base", base, "--api-key-file", "/no/such/file"], "/no/such/file"),
        (vec!["--base", base, "--base-dtype", "q2"], "--base-dtype"),
        (
            vec!["--base", base, "--base-dtype", "q8", "--activations", "bf16"],
            "--activations bf16",
        ),
        (vec!["--base", base, "--speculate", "ngram"], "--speculate"),
        (vec!["--base", base, "--memory", "1KiB"], "--memory"),
        (vec!["--base", base, "--variants", "/no/such/folder"], "/no/such/folder"),
    ] {
        let mut args = args;
        args.insert(0, "serve");
        if !args.contains(&"--port") {
            args.extend(["--port", "0"]);
        }
        let message = refusal(deltamux(&args).output().unwrap());
        assert!(message.contains(expected), "{args:?}: {message}");
    }
}

#[test]
fn a_size_that_is_none_is_refused_with_an_example() {
    let output = deltamux(&["serve", "--base", "b", "--kv-memory", "lots"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr.contains("--kv-memory") && stderr.contains("8GiB"), "{stderr}");
}
