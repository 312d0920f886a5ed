//! Keeps Secrets out of the log: every line of a document with a Secret is replaced. The number of lines stays the same, so
//! that the positions of all other objects do.

/// The replacement of each line.
const BLANK: &str = "# a Secret, not kept";

/// Returns the text without the content of Secrets and without private keys.
pub(super) fn without_secrets(text: &str) -> String {
    if !is_secret(text) {
        return text.to_owned();
    }
    let mut kept = String::with_capacity(text.len());
    for document in documents(text) {
        if !is_secret(document) {
            kept.push_str(document);
            continue;
        }
        for line in document.split_inclusive('\n') {
            let end = if line.ends_with('\n') { "\n" } else { "" };
            let separates = line.trim_end() == "---";
            kept.push_str(if separates { "---" } else { BLANK });
            kept.push_str(end);
        }
    }
    kept
}

/// Splits a YAML text into documents; each but the first begins with its `---`.
fn documents(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let whole = rest.take()?;
        let Some(at) = whole.match_indices("\n---").map(|(at, _)| at + 1).next() else { return Some(whole) };
        let (document, others) = whole.split_at(at);
        rest = Some(others);
        Some(document)
    })
}

/// Whether a document is or contains a Secret (`kind: Secret`, also within a List, in JSON, or over two lines), or contains a
/// private key. In doubt the answer is yes.
fn is_secret(document: &str) -> bool {
    let is_value = |at: usize| {
        let before = document.get(..at).unwrap_or_default();
        let before = before.trim_end_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\''));
        let before = before.strip_suffix("!!str").unwrap_or(before).trim_end();
        let key = before.strip_suffix(':').map(|key| key.trim_end().trim_end_matches(['"', '\'']));
        let after = document.get(at + "Secret".len()..).unwrap_or_default();
        key.is_some_and(|key| key.ends_with("kind")) && !after.starts_with(|c: char| c.is_alphanumeric())
    };
    document.match_indices("Secret").any(|(at, _)| is_value(at)) || document.contains("PRIVATE KEY-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_with_secrets_are_blank() {
        let check = |text: &str, expected: &str| assert_eq!(without_secrets(text), expected, "{text}");
        let same = |text: &str| check(text, text);
        same("");
        same("kind: Service\nmetadata: {name: Secret}\n---\nkind: SecretProviderClass\n");
        same("kind: Deployment\nspec: {secretName: a}\n");
        check("kind: Secret\ndata: {a: b}\n", "# a Secret, not kept\n# a Secret, not kept\n");
        check(
            "kind: Pod\n---\nkind: \"Secret\"\nstringData: x\n---\nkind: Service\n",
            "kind: Pod\n---\n# a Secret, not kept\n# a Secret, not kept\n---\nkind: Service\n",
        );
        check("--- {kind: Secret}\n", "# a Secret, not kept\n");
        check("{\"kind\" : 'Secret'}", "# a Secret, not kept");
        check("kind:\n  Secret", "# a Secret, not kept\n# a Secret, not kept");
        check("kind: !!str Secret", "# a Secret, not kept");
        check("kind: List\nitems: [{kind: Secret}]", "# a Secret, not kept\n# a Secret, not kept");
        check(
            "kind: ConfigMap\ndata: {k: '-----BEGIN RSA PRIVATE KEY-----'}",
            "# a Secret, not kept\n# a Secret, not kept",
        );
    }

    #[test]
    fn lines_keep_their_numbers() {
        let text = "kind: Pod\n---\nkind: Secret\n\na: |\n  b\n---\nkind: Service\n";
        let kept = without_secrets(text);
        assert_eq!(kept.lines().count(), text.lines().count());
        assert_eq!(kept.lines().position(|line| line == "kind: Service"), Some(7));
    }
}
