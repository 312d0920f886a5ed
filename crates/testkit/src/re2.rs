//! How another reader of RE2's dialect, Go's package `regexp`, reads expressions; its program is in `scripts/re2-reference`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace;

/// An expression, and the values to match as a whole.
pub struct Question {
    /// The expression.
    pub pattern: String,
    /// The values.
    pub values: Vec<Vec<u8>>,
}

/// Asks for each expression which values match it; an error says why it is no expression.
///
/// # Panics
/// If the program cannot be built, or fails.
pub fn ask_go(questions: &[Question]) -> Vec<Result<Vec<bool>, String>> {
    let mut child =
        Command::new(program()).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut input = child.stdin.take().expect("its input is a pipe");
    let lines: String = questions.iter().map(|question| line(question) + "\n").collect();
    let writer = std::thread::spawn(move || input.write_all(lines.as_bytes()));
    let output = child.wait_with_output().expect("the program ends");
    writer.join().expect("no panic").expect("the program reads its input");
    assert!(output.status.success(), "the program failed: {}", output.status);
    let answers: Vec<_> = String::from_utf8_lossy(&output.stdout).lines().map(answer).collect();
    assert_eq!(answers.len(), questions.len(), "one answer for each question");
    answers
}

fn program() -> PathBuf {
    let path = workspace::target_dir().join("tools/bin/re2-reference");
    let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    if written(&path) < written(&workspace::root().join("scripts/re2-reference/main.go")) {
        workspace::install("re2-reference");
    }
    path
}

fn line(question: &Question) -> String {
    use base64::Engine as _;
    let values: Vec<_> = question.values.iter().map(|value| base64::prelude::BASE64_STANDARD.encode(value)).collect();
    serde_json::json!({"pattern": question.pattern, "values": values}).to_string()
}

fn answer(line: &str) -> Result<Vec<bool>, String> {
    let answer: serde_json::Value = serde_json::from_str(line).expect("JSON");
    if let Some(error) = answer["error"].as_str() {
        return Err(error.to_owned());
    }
    let matches = answer["matches"].as_array().expect("a list");
    Ok(matches.iter().map(|matched| matched.as_bool().expect("a boolean")).collect())
}
