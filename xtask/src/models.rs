//! The models of the tests beyond the tiny family in the repository.

use std::path::PathBuf;

use anyhow::Context as _;

use crate::shell::Cmd;
use crate::smollm2;
use crate::workspace::Workspace;

/// Variable with the directory of the test bed: base model, fine-tunes, data, golden values.
pub const TESTBED: &str = "DELTAMUX_TESTBED";
/// Variable with the directory of the SmolLM2 base model.
pub const SMOLLM2: &str = "DELTAMUX_SMOLLM2";

/// What could be prepared.
#[derive(Debug, Default)]
pub struct Models {
    vars: Vec<(&'static str, PathBuf)>,
    notes: Vec<String>,
}

impl Models {
    /// Prepares what this machine allows: what the variables name already; else the test bed, where its sources lie
    /// beside the repository, and the SmolLM2 base from its package. Where neither works the tests run on the tiny
    /// family, and the notes say so.
    pub fn prepare(workspace: &Workspace) -> Self {
        let mut models = Self::default();
        let testbed = match given(TESTBED) {
            Some(dir) => Some(dir),
            None if workspace.testbed_script().is_some() => models.keep(testbed(workspace)),
            None => None,
        };
        // The test bed has a base too, of the same bytes; making it here shows that the package still gives it.
        let base = given(SMOLLM2).or_else(|| models.keep(smollm2::build(&workspace.smollm2())));
        let base = base.or_else(|| testbed.as_ref().map(|dir| dir.join("base")));
        for (var, dir) in [(TESTBED, testbed), (SMOLLM2, base)] {
            if let Some(dir) = dir {
                println!("{var}={}", dir.display());
                models.vars.push((var, dir));
            }
        }
        models
    }

    fn keep(&mut self, made: anyhow::Result<PathBuf>) -> Option<PathBuf> {
        made.inspect_err(|error| {
            let note = format!("not available: {error:#}").replace('\n', " ");
            println!("{note}");
            self.notes.push(note);
        })
        .ok()
    }

    /// Environment variables for the tests.
    pub fn vars(&self) -> &[(&'static str, PathBuf)] {
        &self.vars
    }

    /// What could not be prepared, and why.
    pub fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

fn given(var: &str) -> Option<PathBuf> {
    std::env::var_os(var).filter(|dir| !dir.is_empty()).map(PathBuf::from)
}

/// Lays the test bed out; does nothing where it stands.
pub fn testbed(workspace: &Workspace) -> anyhow::Result<PathBuf> {
    let script = workspace
        .testbed_script()
        .context("the sources of the test bed (../shared/testbed/setup.sh beside the repository) are not here")?;
    let dir = workspace.testbed();
    Cmd::new("bash")
        .arg(&script)
        .arg(&dir)
        .quiet()
        .context("laying out the test bed")?;
    Ok(dir)
}
