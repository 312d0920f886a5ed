//! Keeps Secrets out of the log: every line of a document with a Secret is replaced. The number of lines stays the same, so
//! that the positions of all other objects do.

use std::ops::Range;

use evenkeel_base::yaml::{self, Node, Value};

/// The replacement of each line.
const BLANK: &str = "# a Secret, not kept";

/// Returns the text without the content of Secrets and without private keys.
pub(super) fn without_secrets(text: &str) -> String {
    let spelt = if text.contains("Secret") || text.contains('\\') {
        oddly_spelt(text)
    } else {
        // Without the word and without an escape there is no other spelling of it.
        Vec::new()
    };
    if spelt.is_empty() && !is_secret(text) {
        return text.to_owned();
    }
    let mut kept = String::with_capacity(text.len());
    let mut line = 1;
    for document in documents(text) {
        let lines = line..line + document.matches('\n').count() + usize::from(!document.ends_with('\n'));
        line += document.matches('\n').count();
        if !is_secret(document) && !spelt.iter().any(|spelt| lines.start < spelt.end && spelt.start < lines.end) {
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

/// Returns the lines (from 1) with a Secret as the YAML parser reads it, whatever escapes, anchors, tags or block scalars its
/// kind is written with. Of a document that cannot be read, all lines if it may be one.
fn oddly_spelt(text: &str) -> Vec<Range<usize>> {
    let parsed = yaml::parse_all(&"".into(), text);
    let mut found = Vec::new();
    let mut open: Vec<&Node> = parsed.documents.iter().collect();
    while let Some(node) = open.pop() {
        match &node.value {
            Value::Scalar(_) => {}
            Value::Sequence(items) => open.extend(items),
            Value::Mapping(mapping) => {
                for entry in mapping.iter() {
                    if &*entry.key == "kind" && entry.value.as_str().is_some_and(|kind| kind.trim() == "Secret") {
                        // The value may be an alias of another place; the key is where the object is.
                        let line = entry.key_span.line as usize;
                        found.push(line..line + 1);
                    }
                    open.push(&entry.value);
                }
            }
        }
    }
    let lines: Vec<&str> = text.lines().collect();
    for broken in parsed.broken {
        let (start, end) = (broken.start as usize, (broken.end as usize).min(lines.len() + 1));
        let its = lines.get(start.saturating_sub(1)..end.saturating_sub(1)).unwrap_or_default();
        if its.iter().any(|line| ["Secret", "stringData", "\\"].iter().any(|sign| line.contains(sign))) {
            found.push(start..end);
        }
    }
    found
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

    /// Whatever the control plane takes for a Secret, the history does, too.
    #[test]
    fn no_spelling_of_a_secret_is_kept() {
        for kind in [
            r#""kind": "Se\u0063ret""#,
            r#""\x6bind": Secret"#,
            "kind: >-\n  Secret",
            "kind: |\n  Secret",
            "kind: &it Secret",
            "? kind\n: Secret",
            "kind: !!str &it Secret",
            "kind: # a comment\n  Secret",
            "kind: \"Se\\\n  cret\"",
        ] {
            let text = format!("kind: Service\na: hushed\n---\n{kind}\nstringData: {{password: hush}}\n---\nb: kept\n");
            let kept = without_secrets(&text);
            assert!(!kept.contains("hush}") && kept.contains("hushed") && kept.contains("kept"), "{kind}: {kept}");
            assert_eq!(kept.lines().count(), text.lines().count(), "{kind}");
            // The same, where the document cannot be read.
            let kept = without_secrets(&text.replace("stringData:", "stringData: ["));
            assert!(!kept.contains("hush}"), "{kind}: {kept}");
        }
        let alias = "a: &it Secret\nb: 1\nkind: *it\nstringData: hush\n";
        assert!(!without_secrets(alias).contains("hush"));
        let within = "kind: List\nitems:\n- {\"kind\": \"\\u0053ecret\", \"data\": \"hush\"}\n";
        assert!(!without_secrets(within).contains("hush"));
        // A word of the kind elsewhere is no reason.
        let same = "kind: ConfigMap\ndata: {a: 'a\\b Secret'}\n";
        assert_eq!(without_secrets(same), same);
    }

    #[test]
    fn lines_keep_their_numbers() {
        let text = "kind: Pod\n---\nkind: Secret\n\na: |\n  b\n---\nkind: Service\n";
        let kept = without_secrets(text);
        assert_eq!(kept.lines().count(), text.lines().count());
        assert_eq!(kept.lines().position(|line| line == "kind: Service"), Some(7));
    }
}
