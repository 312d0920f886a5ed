//! The changes for people, in the manner of `git log -p`: the latest first, with what each changed in files.

use std::fmt::Write as _;
use std::time::SystemTime;

use serde_json::Value;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What is printed of the answer.
#[derive(Debug, Clone, Copy)]
pub struct Style {
    /// Whether colours are understood.
    pub is_terminal: bool,
    /// Whether the differences of files are printed.
    pub patches: bool,
    /// Whether changes that nobody wrote are printed.
    pub observed: bool,
    /// The number of changes.
    pub max: usize,
}

/// Names and texts come from files: control characters are not for the terminal.
fn text(value: &Value) -> String {
    let all = value.as_str().unwrap_or_default().chars();
    all.map(|c| if c.is_control() && c != '\t' { '\u{fffd}' } else { c }).collect()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The answer: the changes; with `then` first what the proxy ran at the time that was asked about.
pub fn of(past: &Value, then: bool, style: &Style) -> String {
    let mut out = String::new();
    let changes = items(&past["changes"]);
    if past["proxy"].is_string() {
        let (proxy, generation) = (text(&past["proxy"]), &past["generation"]);
        if then {
            ran(&mut out, past)
        } else {
            _ = writeln!(out, "{proxy} runs generation {generation}; the changes that made it, the latest first:")
        }
    }
    let is_shown = |change: &&Value| style.observed || !is_observed(change);
    let shown: Vec<&Value> = changes.iter().rev().filter(is_shown).collect();
    for change in shown.iter().take(style.max) {
        if !out.is_empty() {
            out.push('\n');
        }
        add(&mut out, change, style, SystemTime::now());
    }
    if shown.is_empty() && !then {
        out.push_str("the history has no changes\n");
    }
    let (earlier, left) = (shown.len().saturating_sub(style.max), changes.len() - shown.len());
    if earlier > 0 {
        _ = writeln!(out, "\nand {earlier} before (-n N shows more)");
    }
    if left > 0 {
        _ = writeln!(out, "\nleft out: {left} changes of replicas, fetched keys and registered workloads (--all)");
    }
    out
}

/// Whether nobody wrote what changed.
fn is_observed(change: &Value) -> bool {
    let files = items(&change["files"]);
    !files.is_empty() && files.iter().all(|file| file["observed"] == true)
}

/// What the proxy ran.
fn ran(out: &mut String, past: &Value) {
    _ = writeln!(out, "{} ran generation {}:", text(&past["proxy"]), past["generation"]);
    for resource in items(&past["resources"]) {
        let refused =
            if resource["refused"] == true { "  refused: it keeps the previous version, if it has one" } else { "" };
        _ = writeln!(out, "  {:<10} {}{refused}", text(&resource["type"]), text(&resource["name"]));
        if resource["generation"].is_u64() {
            let causes: Vec<String> = items(&resource["causes"]).iter().map(text).collect();
            let (generation, at) = (&resource["generation"], text(&resource["changed_at"]));
            _ = writeln!(out, "             by generation {generation} at {at}: {}", causes.join(", "));
        } else if let Some(origin) = resource["origin"].as_str() {
            _ = writeln!(out, "             from {origin}");
        }
    }
    let (since, changes) = (items(&past["since"]), items(&past["changes"]));
    _ = match (since.len(), changes.len()) {
        (0, 0) => writeln!(out, "since then: nothing has changed"),
        (0, 1..) => writeln!(out, "since then: what has changed is as it was then again"),
        (1, _) => writeln!(out, "since then: 1 resource has changed"),
        (more, _) => writeln!(out, "since then: {more} resources have changed"),
    };
    since.iter().for_each(|difference| _ = writeln!(out, "  {}", of_resource(difference)));
}

fn of_resource(difference: &Value) -> String {
    format!("{:<8} {:<10} {}", text(&difference["what"]), text(&difference["type"]), text(&difference["name"]))
}

fn add(out: &mut String, change: &Value, style: &Style, now: SystemTime) {
    let coloured =
        |code: &str, line: &str| if style.is_terminal { format!("\x1b[{code}m{line}\x1b[0m") } else { line.to_owned() };
    let at = text(&change["changed_at"]);
    let head = format!("generation {}  {at}{}", change["generation"], age(&at, now));
    _ = writeln!(out, "{}", coloured("33", &head));
    if change["found"].is_string() {
        _ = writeln!(out, "    {}", text(&change["found"]));
    }
    items(&change["causes"]).iter().for_each(|cause| _ = writeln!(out, "    {}", text(cause)));
    items(&change["resources"]).iter().for_each(|difference| _ = writeln!(out, "    {}", of_resource(difference)));
    if let Some(more @ 1..) = change["more"].as_u64() {
        _ = writeln!(out, "    and {more} more resources");
    }
    for file in items(&change["files"]) {
        let (name, what) = (text(&file["file"]), text(&file["what"]));
        let lines = items(&file["diff"]);
        if !style.patches || file["observed"] == true || lines.is_empty() {
            // Text that is the same although it changed was a Secret.
            let why = if file["observed"] != true && lines.is_empty() && what == "changed" {
                " (in a Secret, whose content is not kept)"
            } else {
                ""
            };
            _ = writeln!(out, "    {what} {name}{why}");
            continue;
        }
        let side = |is_there: bool| if is_there { &*name } else { "/dev/null" };
        _ = writeln!(out, "{}", coloured("1", &format!("--- {}", side(what != "added"))));
        _ = writeln!(out, "{}", coloured("1", &format!("+++ {}", side(what != "removed"))));
        for line in lines.iter().map(text) {
            let code = match line.chars().next() {
                Some('-') => "31",
                Some('+') => "32",
                Some('@') => "36",
                _ => "0",
            };
            _ = writeln!(out, "{}", coloured(code, &line));
        }
        if let Some(more @ 1..) = file["more_lines"].as_u64() {
            _ = writeln!(out, "and {more} more lines");
        }
    }
}

/// How long ago it was.
fn age(at: &str, now: SystemTime) -> String {
    let Ok(at) = OffsetDateTime::parse(at, &Rfc3339) else { return String::new() };
    let Ok(age) = now.duration_since(at.into()) else { return String::new() };
    let seconds = age.as_secs();
    match seconds {
        0..=119 => format!("  ({seconds} s ago)"),
        120..=7_199 => format!("  ({} min ago)", seconds / 60),
        7_200..=172_799 => format!("  ({} h ago)", seconds / 3_600),
        _ => format!("  ({} days ago)", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    const PLAIN: Style = Style { is_terminal: false, patches: true, observed: false, max: 20 };

    /// A change of a file in the far past.
    fn change(generation: u64, diff: &[&str]) -> Value {
        json!({
            "generation": generation, "changed_at": "9999-01-01T10:00:00Z", "found": null,
            "causes": ["DestinationRule shop/a (a.yaml:3:9)"],
            "files": [{"file": "a.yaml", "what": "changed", "observed": false, "diff": diff, "more_lines": 0}],
        })
    }

    #[test]
    fn changes_are_told_as_git_tells_them() {
        let diff = ["@@ -1,2 +1,2 @@", " host: a", "-weight: 1", "+weight: 2"];
        let mut back = change(3, &["@@ -1,2 +1,2 @@", " host: a", "-weight: 2", "+weight: 1"]);
        back["resources"] = json!([{"what": "changed", "type": "CDS", "name": "a"}]);
        back["more"] = 4.into();
        let observed = json!({
            "generation": 4, "changed_at": "9999-01-01T10:00:00Z", "causes": ["Pod shop/a-1 (pods.yaml:1:1)"],
            "files": [{"file": "pods.yaml", "what": "changed", "observed": true, "diff": [], "more_lines": 0}],
        });
        let all = json!({"changes": [change(2, &diff), back, observed]});
        let expected = "\
generation 3  9999-01-01T10:00:00Z
    DestinationRule shop/a (a.yaml:3:9)
    changed  CDS        a
    and 4 more resources
--- a.yaml
+++ a.yaml
@@ -1,2 +1,2 @@
 host: a
-weight: 2
+weight: 1

generation 2  9999-01-01T10:00:00Z
    DestinationRule shop/a (a.yaml:3:9)
--- a.yaml
+++ a.yaml
@@ -1,2 +1,2 @@
 host: a
-weight: 1
+weight: 2

left out: 1 changes of replicas, fetched keys and registered workloads (--all)
";
        assert_eq!(of(&all, false, &PLAIN), expected);
        let style = Style { patches: false, observed: true, max: 1, ..PLAIN };
        let expected = "\
generation 4  9999-01-01T10:00:00Z
    Pod shop/a-1 (pods.yaml:1:1)
    changed pods.yaml

and 2 before (-n N shows more)
";
        assert_eq!(of(&all, false, &style), expected);
        assert_eq!(of(&json!({"changes": []}), false, &PLAIN), "the history has no changes\n");
    }

    #[test]
    fn secrets_are_named_and_escapes_are_not_passed_on() {
        let mut hidden = change(2, &[]);
        hidden["causes"] = json!(["Secret shop/a\u{1b}[31m (a.yaml:3:9)"]);
        let told = of(&json!({"changes": [hidden]}), false, &PLAIN);
        assert!(told.contains("changed a.yaml (in a Secret, whose content is not kept)"), "{told}");
        assert!(!told.contains('\u{1b}'), "{told:?}");
    }

    #[test]
    fn prints_what_made_each_resource_and_what_came_since() {
        let past = json!({
            "proxy": "web-0.shop",
            "generation": 12,
            "resources": [
                {"type": "CDS", "name": "a", "version": "9c1d", "origin": "a.yaml:1:1", "generation": 9,
                 "changed_at": "2026-11-21T09:58:31Z", "causes": ["DestinationRule shop/a (a.yaml:3:9)"]},
                {"type": "LDS", "name": "b", "version": "77aa", "origin": "b.yaml:1:1", "generation": null},
                {"type": "LDS", "name": "c", "version": "0001", "origin": null, "generation": null,
                 "refused": true},
            ],
            "since": [{"what": "changed", "type": "CDS", "name": "a"}],
        });
        let expected = "\
web-0.shop ran generation 12:
  CDS        a
             by generation 9 at 2026-11-21T09:58:31Z: DestinationRule shop/a (a.yaml:3:9)
  LDS        b
             from b.yaml:1:1
  LDS        c  refused: it keeps the previous version, if it has one
since then: 1 resource has changed
  changed  CDS        a
";
        assert_eq!(of(&past, true, &PLAIN), expected);
        // There and back again.
        let past =
            json!({"proxy": "web-0.shop", "generation": 12, "changes": [change(13, &["+x"]), change(14, &["-x"])]});
        let told = of(&past, true, &PLAIN);
        assert!(told.contains("since then: what has changed is as it was then again\n\ngeneration 14 "), "{told}");
        let now = of(&past, false, &PLAIN);
        assert!(
            now.starts_with(
                "web-0.shop runs generation 12; the changes that made it, the latest first:\n\ngeneration 14"
            ),
            "{now}"
        );
    }

    #[test]
    fn ages_are_rounded_down() {
        let at = "2026-11-21T10:00:00Z";
        let then = SystemTime::from(OffsetDateTime::parse(at, &Rfc3339).expect("a time"));
        let check = |seconds: u64, expected: &str| assert_eq!(age(at, then + Duration::from_secs(seconds)), expected);
        check(0, "  (0 s ago)");
        check(119, "  (119 s ago)");
        check(185, "  (3 min ago)");
        check(7_200, "  (2 h ago)");
        check(172_800, "  (2 days ago)");
        assert_eq!(age(at, then - Duration::from_secs(1)), "");
    }
}
