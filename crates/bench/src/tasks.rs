//! Tasks with known answers: the file that `deltamux eval` reads, and exact match.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Why a file of tasks was refused.
#[derive(Debug, thiserror::Error)]
pub enum TasksError {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A line that is no task.
    #[error("{path}:{line}: {what}; expected {{\"messages\": […], \"answer\": \"…\"}}", path = path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// No tasks.
    #[error("{path}: holds no task", path = .0.display())]
    Empty(PathBuf),
}

/// One task.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    /// Line of the file, counted from 1.
    pub line: usize,
    /// Chat messages to answer.
    pub messages: Vec<Value>,
    /// The right answer.
    pub answer: String,
}

#[derive(Deserialize)]
struct Line {
    messages: Vec<Value>,
    answer: String,
}

/// Reads the tasks of a file, at most `limit`. Other keys of a line are allowed; a line without the two is not.
pub fn read_tasks(path: &Path, limit: Option<usize>) -> Result<Vec<Task>, TasksError> {
    parse_tasks(&fs_err::read(path)?, path, limit)
}

/// Reads the tasks in the bytes of the file `path`, as [`read_tasks`] does.
pub fn parse_tasks(bytes: &[u8], path: &Path, limit: Option<usize>) -> Result<Vec<Task>, TasksError> {
    let mut tasks = Vec::new();
    for (i, line) in bytes.split(|b| *b == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let refused = |what: String| TasksError::Line {
            path: path.into(),
            line: i + 1,
            what,
        };
        let Line { messages, answer } = serde_json::from_slice(line).map_err(|e| {
            let text = e.to_string();
            refused(
                text.rsplit_once(" at line")
                    .map_or(text.clone(), |(what, _)| what.to_owned()),
            )
        })?;
        if messages.is_empty() {
            return Err(refused("`messages` is empty".into()));
        }
        tasks.push(Task {
            line: i + 1,
            messages,
            answer,
        });
        if limit.is_some_and(|limit| tasks.len() >= limit) {
            break;
        }
    }
    if tasks.is_empty() {
        Err(TasksError::Empty(path.into()))
    } else {
        Ok(tasks)
    }
}

/// Whether an answer is the right one: equal but for white space around it.
pub fn matches(answer: &str, right: &str) -> bool {
    answer.trim() == right.trim()
}

/// The result of a file of tasks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Score {
    /// Tasks.
    pub n: usize,
    /// Answers that were right.
    pub correct: usize,
    /// Share of right answers, 0 to 1.
    pub exact_match: f64,
    /// The first wrong answers.
    pub wrong: Vec<Wrong>,
}

/// A wrong answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wrong {
    /// Line of the task.
    pub line: usize,
    /// The right answer.
    pub expected: String,
    /// What was answered.
    pub found: String,
}

/// Wrong answers that are shown.
const SHOWN: usize = 10;

/// Scores answers, one for each task and in their order; `None` without tasks.
pub fn score(tasks: &[Task], answers: &[String]) -> Option<Score> {
    let n = tasks.len().min(answers.len());
    let wrong: Vec<Wrong> = tasks
        .iter()
        .zip(answers)
        .filter(|(task, answer)| !matches(answer, &task.answer))
        .map(|(task, answer)| Wrong {
            line: task.line,
            expected: task.answer.trim().to_owned(),
            found: answer.trim().to_owned(),
        })
        .collect();
    let correct = n - wrong.len();
    (n > 0).then(|| Score {
        n,
        correct,
        exact_match: correct as f64 / n as f64,
        wrong: wrong.into_iter().take(SHOWN).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, limit: Option<usize>) -> Result<Vec<Task>, String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.jsonl");
        fs_err::write(&path, text).unwrap();
        read_tasks(&path, limit).map_err(|e| e.to_string().replace(&*path.to_string_lossy(), "tasks.jsonl"))
    }

    const TWO: &str = concat!(
        r#"{"task": "sql", "messages": [{"role": "user", "content": "a"}], "answer": "one"}"#,
        "\n\n",
        r#"{"messages": [{"role": "user", "content": "b"}], "answer": "two\n"}"#,
        "\n",
    );

    #[test]
    fn tasks_are_read_with_their_lines() {
        let tasks = read(TWO, None).unwrap();
        assert_eq!(tasks.iter().map(|t| t.line).collect::<Vec<_>>(), [1, 3]);
        assert_eq!(read(TWO, Some(1)).unwrap().len(), 1);
    }

    #[test]
    fn a_line_that_is_no_task_is_named() {
        for (text, expected) in [
            ("{\"messages\": [{}]}", "tasks.jsonl:1: missing field `answer`"),
            ("{\"answer\": \"x\"}", "tasks.jsonl:1: missing field `messages`"),
            (
                "{\"messages\": [], \"answer\": \"x\"}",
                "tasks.jsonl:1: `messages` is empty",
            ),
            ("\nnope", "tasks.jsonl:2: expected ident"),
            ("", "tasks.jsonl: holds no task"),
        ] {
            let error = read(text, None).unwrap_err();
            assert!(error.starts_with(expected), "{error} does not start with {expected}");
        }
    }

    #[test]
    fn only_white_space_around_an_answer_is_forgiven() {
        let tasks = read(TWO, None).unwrap();
        let result = score(&tasks, &[" one\n".into(), "Two".into()]).unwrap();
        assert_eq!((result.n, result.correct, result.exact_match), (2, 1, 0.5));
        assert_eq!(
            result.wrong,
            [Wrong {
                line: 3,
                expected: "two".into(),
                found: "Two".into()
            }]
        );
        assert_eq!(score(&[], &[]), None);
    }
}
