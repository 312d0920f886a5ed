//! The table as Markdown.

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

Generated from `crates/runtime-config/src/support`; a test keeps it true (`BLESS=1 cargo test -p evenkeel-runtime-config`).

A field that is set and not listed here is refused: a NACK, or an error at start-up, with the field's full path. So is an
extension type that is not listed. Nothing is ignored in silence.
";

fn section(out: &mut String, message: &MessageSupport) {
    _ = writeln!(out, "\n### {}\n", message.name);
    if message.full.is_empty() && message.values.is_empty() && message.no_effect.is_empty() {
        out.push_str("No fields: its presence is all it says.\n");
        return;
    }
    out.push_str("| field | |\n|---|---|\n");
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
