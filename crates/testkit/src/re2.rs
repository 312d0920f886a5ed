//! How another reader of RE2's dialect, Go's package `regexp`, reads expressions; its program is in `scripts/re2-reference`.

use crate::go_reference;

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
    let questions: Vec<_> = questions.iter().map(json).collect();
    go_reference::ask("re2-reference", &[], &questions).iter().map(answer).collect()
}

fn json(question: &Question) -> serde_json::Value {
    use base64::Engine as _;
    let values: Vec<_> = question.values.iter().map(|value| base64::prelude::BASE64_STANDARD.encode(value)).collect();
    serde_json::json!({"pattern": question.pattern, "values": values})
}

fn answer(answer: &serde_json::Value) -> Result<Vec<bool>, String> {
    if let Some(error) = answer["error"].as_str() {
        return Err(error.to_owned());
    }
    let matches = answer["matches"].as_array().expect("a list");
    Ok(matches.iter().map(|matched| matched.as_bool().expect("a boolean")).collect())
}
