//! Errors of the client as text.

use std::error::Error;

/// The error and what caused it, in one line: `client error (Connect): tcp connect error: Connection refused`. The client's own errors do
/// not name their causes.
pub(crate) fn reason(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: io::Error,
    }

    #[test]
    fn causes_are_named_once() {
        let check = |text: &'static str, expected: &str| {
            let error = Layer { text, source: io::Error::other("refused") };
            assert_eq!(reason(&error), expected);
        };
        check("client error (Connect)", "client error (Connect): refused");
        check("connect: refused", "connect: refused");
    }
}
