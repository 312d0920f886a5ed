//! Each `golden/NAME.yaml` gives `NAME.txt`: the findings, then the objects that remain.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use evenkeel_base::Diagnostics;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

#[test]
fn findings_are_as_expected() {
    let mut names: Vec<String> = std::fs::read_dir(folder())
        .expect("the folder of golden files")
        .filter_map(|entry| Some(entry.ok()?.file_name().to_str()?.strip_suffix(".yaml")?.to_owned()))
        .collect();
    names.sort();
    assert!(names.len() > 10, "{names:?}");
    for name in names {
        let text = std::fs::read_to_string(folder().join(format!("{name}.yaml"))).expect("a readable golden file");
        let (objects, diagnostics) = evenkeel_api::load(&[(format!("{name}.yaml").into(), text.into())]);
        let mut shown = findings(&diagnostics);
        let _ = writeln!(shown, "---");
        for object in objects {
            let refused = if object.refused.is_some() { ": stands in" } else { "" };
            let _ = writeln!(shown, "{object} ({}){refused}", object.origin);
        }
        evenkeel_testkit::golden::check(folder().join(format!("{name}.txt")), &shown);
    }
}

/// One finding per paragraph, in full.
fn findings(diagnostics: &Diagnostics) -> String {
    let mut shown = String::new();
    for d in diagnostics {
        let _ = writeln!(shown, "{} {} {}\n  {}", d.span, d.severity, d.code, d.message);
        for (span, label) in &d.related {
            let _ = writeln!(shown, "  {span}: {label}");
        }
        if let Some(help) = &d.help {
            let _ = writeln!(shown, "  help: {help}");
        }
    }
    shown
}

#[test]
fn an_unreadable_file_is_named() {
    let found = evenkeel_api::unreadable("dir/a.yaml", "Permission denied (os error 13)");
    assert_eq!(
        found.to_string(),
        "dir/a.yaml: error[unreadable-file]: cannot read the file: Permission denied (os error 13) \
         (help: check that it exists, may be read, and is UTF-8 text)"
    );
}

#[test]
fn a_broken_file_leaves_the_others_alone() {
    let namespace = |name: &str| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n");
    let files = [("good.yaml", namespace("a")), ("bad.yaml", namespace("[")), ("other.yaml", namespace("b"))];
    let files: Vec<_> = files.map(|(path, text)| (path.into(), text.into())).into();
    let (objects, diagnostics) = evenkeel_api::load(&files);
    assert_eq!(objects.iter().map(ToString::to_string).collect::<Vec<_>>(), ["Namespace a", "Namespace b"]);
    assert!(diagnostics.has_errors_in("bad.yaml"));
    assert!(!diagnostics.has_errors_in("good.yaml"));
}

#[test]
fn a_file_of_nonsense_does_not_flood() {
    let text: String = (0..1000).map(|i| format!("---\napiVersion: v1\nkind: Nonsense{i}\n")).collect();
    let (_, diagnostics) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
    assert_eq!(diagnostics.len(), evenkeel_base::limits::MAX_DIAGNOSTICS_PER_FILE + 1);
    assert!(diagnostics.iter().any(|d| d.message == "800 more findings in this file"));
}

#[test]
fn reading_ends_where_nothing_good_can_come() {
    let items = "text, ".repeat(evenkeel_base::limits::MAX_FINDINGS_PER_FILE + 10);
    let text = format!(
        "apiVersion: v1\nkind: List\nitems: [{items}]\n---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: a}}\n"
    );
    let (objects, diagnostics) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
    assert!(objects.is_empty());
    assert!(diagnostics.has_errors_in("a.yaml"));
    let route = format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: a}}\nspec: {{hosts: [a], http: [{items}]}}\n"
    );
    let (objects, diagnostics) = evenkeel_api::load(&[("b.yaml".into(), route.into())]);
    assert!(objects.is_empty());
    assert!(diagnostics.has_errors_in("b.yaml"));
}
