//! Mistakes that are easily made on the command line: each one line, exit code 2, before anything is loaded or written.

mod common;

use common::{deltamux, refusal, tiny};

#[test]
fn a_variants_folder_given_by_mistake_is_named_with_the_remedy() {
    let serve = |folder: &str| {
        let mut command = deltamux(&["serve", "--port", "0", "--base"]);
        refusal(
            &command
                .arg(tiny("base"))
                .arg("--variants")
                .arg(tiny(folder))
                .output()
                .unwrap(),
        )
    };
    assert!(
        serve("").contains("--mode swap"),
        "full checkpoints where artifacts are expected"
    );
    assert!(serve("sql").contains("is itself a variant"), "one level too deep");
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused() {
    let mut command = deltamux(&["serve", "--port", "0", "--kv-memory", "900TiB", "--base"]);
    let line = refusal(&command.arg(tiny("base")).output().unwrap());
    assert!(line.contains("--kv-memory is 900.0 TiB"), "{line}");
}

#[test]
fn heads_wider_than_the_kernels_are_refused_by_name() {
    let model = tempfile::tempdir().unwrap();
    for file in fs_err::read_dir(tiny("base")).unwrap() {
        let file = file.unwrap();
        fs_err::copy(file.path(), model.path().join(file.file_name())).unwrap();
    }
    let path = model.path().join("config.json");
    let config = fs_err::read_to_string(&path).unwrap();
    fs_err::write(&path, config.replacen('{', "{\"head_dim\": 1024,", 1)).unwrap();
    let mut command = deltamux(&["generate", "--prompt", "hi", "--base"]);
    let line = refusal(&command.arg(model.path()).output().unwrap());
    assert!(line.contains("head_dim is 1024"), "{line}");
}

#[test]
fn the_demo_leaves_a_foreign_folder_alone() {
    let foreign = tempfile::tempdir().unwrap();
    let file = foreign.path().join("demo.json");
    fs_err::write(&file, "{}").unwrap();
    let output = deltamux(&["demo", "--out"])
        .arg(foreign.path())
        .arg("--family")
        .arg(tiny(""))
        .output()
        .unwrap();
    assert!(refusal(&output).contains("was not made by the demo"));
    assert!(file.is_file());
}
