//! Renders the table as Markdown.

use std::fmt::Write as _;

use super::{MessageSupport, Role, messages};

/// The whole table, one section per message, in alphabetical order.
pub fn markdown() -> String {
    let mut sorted: Vec<_> = messages().collect();
    sorted.sort_by_key(|message| message.name);
    let mut out = String::from(HEADER);
    for (title, role) in [("Extension types", Role::Extension), ("Resources and their parts", Role::Part)] {
        _ = writeln!(out, "\n## {title}");
        for message in sorted.iter().filter(|message| message.role == role) {
            section(&mut out, message);
        }
    }
    out
}

const HEADER: &str = "# xDS fields the proxy supports

This page lists every xDS field that `evenkeel proxy` ([proxy.md](proxy.md)) accepts, by message. The proxy rejects every other field that is set, and
every other extension type: with a NACK, or with an error at start-up. The message has the field's full path. No field is ignored silently.

- *works*: the field has the same effect as in Envoy; values in the table are the supported ones;
- *accepted without effect*: the field changes nothing here, for the stated reason.

The page is generated from `crates/runtime-config/src/support` and `filters`; do not edit it. A test fails if it is out of date;
`make bless` writes it.
";

fn section(out: &mut String, message: &MessageSupport) {
    _ = writeln!(out, "\n### {}\n", message.name);
    if message.full.is_empty() && message.values.is_empty() && message.no_effect.is_empty() {
        out.push_str("No fields: only its presence matters.\n");
        return;
    }
    out.push_str("| field | support |\n|---|---|\n");
    let mut rows: Vec<(&str, String)> = message.full.iter().map(|field| (*field, "works".to_owned())).collect();
    rows.extend(message.values.iter().map(|(field, values)| (*field, format!("works: {values}"))));
    for (reason, fields) in message.no_effect {
        rows.extend(fields.iter().map(|field| (*field, format!("accepted without effect: {reason}"))));
    }
    rows.sort();
    for (field, treatment) in rows {
        _ = writeln!(out, "| `{field}` | {treatment} |");
    }
}
