//! The trees of YAML texts, and texts that are refused.

use std::sync::Arc;

use proptest::prelude::*;

use super::parse::{Dialect, LIMITS, Limits, parse_as};
use super::{Node, Value, parse, parse_all, parse_within};
use crate::limits::{MAX_YAML_ALIAS_NODES, MAX_YAML_DEPTH, MAX_YAML_FLOW_DEDENTS, MAX_YAML_SYNTAX_ERRORS};
use crate::{Diagnostics, Span};

fn read(text: &str) -> (Vec<Node>, Diagnostics) {
    parse(&Arc::from("f.yaml"), text)
}

/// `{a@1:1: "x"@1:4}`
fn dump(node: &Node) -> String {
    let at = |span: &Span| format!("@{}:{}", span.line, span.column);
    match &node.value {
        Value::Scalar(_) => format!("{}{}", node.to_json(), at(&node.span)),
        Value::Sequence(items) => {
            format!("[{}]{}", items.iter().map(dump).collect::<Vec<_>>().join(", "), at(&node.span))
        }
        Value::Mapping(mapping) => {
            let entries: Vec<_> =
                mapping.iter().map(|e| format!("{}{}: {}", e.key, at(&e.key_span), dump(&e.value))).collect();
            format!("{{{}}}{}", entries.join(", "), at(&node.span))
        }
    }
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let (documents, diagnostics) = read(text);
    assert_eq!(diagnostics.to_string(), "");
    assert_eq!(documents.iter().map(dump).collect::<Vec<_>>(), expected, "{text}");
}

/// Each finding as `line:column code`.
#[track_caller]
fn check_refused(text: &str, documents: usize, expected: &[&str]) {
    let (read, diagnostics) = read(text);
    let found: Vec<_> = diagnostics.iter().map(|d| format!("{}:{} {}", d.span.line, d.span.column, d.code)).collect();
    assert_eq!((read.len(), found), (documents, expected.iter().map(ToString::to_string).collect()), "{diagnostics}");
    assert!(diagnostics.iter().all(|d| d.help.is_some() || d.code == "yaml-too-deep"), "{diagnostics}");
}

#[test]
fn reads_documents_with_positions() {
    check("a: x\nb:\n  - 1\n  - true\n", &[r#"{a@1:1: "x"@1:4, b@2:1: [1@3:5, true@4:5]@3:3}@1:1"#]);
    check("---\na: 1\n---\n# nothing\n---\nb: 'é' # c\n", &["{a@2:1: 1@2:4}@2:1", r#"{b@6:1: "é"@6:4}@6:1"#]);
    check("\u{feff}a: 1", &["{a@1:1: 1@1:4}@1:1"]);
    check("é: {b: 2}\r\nc: ~\r\n", &["{é@1:1: {b@1:5: 2@1:8}@1:4, c@2:1: null@2:4}@1:1"]);
    check("", &[]);
    check("# only a comment\n", &[]);
}

#[test]
fn reads_json() {
    check(
        "{\n\t\"a\": [1.5, \"x\\u0041\", null],\n\t\"b\": {}\n}",
        &[r#"{a@2:2: [1.5@2:8, "xA"@2:13, null@2:24]@2:7, b@3:2: {}@3:7}@1:1"#],
    );
    check(r#"{"a":"b:c","d":true}"#, &[r#"{a@1:2: "b:c"@1:6, d@1:12: true@1:16}@1:1"#]);
}

#[test]
fn quotes_and_tags_make_strings() {
    check("a: \"1\"\nb: !!str 1\nc: |\n  1\n", &[r#"{a@1:1: "1"@1:4, b@2:1: "1"@2:4, c@3:1: "1\n"@4:3}@1:1"#]);
}

#[test]
fn copies_aliases_and_merges() {
    check("a: &x {k: 1}\nb: *x\n", &["{a@1:1: {k@1:8: 1@1:11}@1:4, b@2:1: {k@1:8: 1@1:11}@1:4}@1:1"]);
    check(
        "base: &b\n  k: 1\n  l: 2\nc:\n  <<: *b\n  l: 3\n",
        &["{base@1:1: {k@2:3: 1@2:6, l@3:3: 2@3:6}@1:7, c@4:1: {l@6:3: 3@6:6, k@2:3: 1@2:6}@5:3}@1:1"],
    );
}

#[test]
fn an_error_does_not_hide_the_other_documents() {
    check_refused("a: [1\n---\nb: 1\n---\nc: d: e\n---\nf: 2\n", 2, &["2:1 yaml-syntax", "5:5 yaml-syntax"]);
}

#[test]
fn lines_of_flow_collections_may_stand_left() {
    check(
        "a:\n  b: [\n    1,\n  ]\n  c: {\n  d: 2,\n}\n",
        &["{a@1:1: {b@2:3: [1@3:5]@2:6, c@5:3: {d@6:3: 2@6:6}@5:6}@2:3}@1:1"],
    );
    check("a: [\n]\n---\nb: {\n}\nc: 1\n", &["{a@1:1: []@1:4}@1:1", "{b@4:1: {}@4:4, c@6:1: 1@6:4}@4:1"]);
    // No document is read twice, whatever ends the lines before it.
    for end in ["\n", "\r\n", "\r\n\n", "\n...\n"] {
        let (documents, found) = read(&format!("x: 1{end}y: 2\n---\nb: [\n]\n---\nc: {{\n}}\n"));
        let expected = if end == "\n...\n" { 4 } else { 3 };
        assert!(!found.has_errors() && documents.len() == expected, "{end:?}: {} documents, {found}", documents.len());
    }
    // To the parser a carriage return alone ends a line; nobody writes that, and the line to indent is not found.
    let (documents, found) = read("x: 1\ry: 2\n---\nb: [\n]\n---\nc: {\n}\n");
    assert!(found.has_errors() && documents.len() < 3, "{} documents, {found}", documents.len());
    let many = "a: [\n]\n---\n".repeat(MAX_YAML_FLOW_DEDENTS + 1);
    assert!(read(&many).1.has_errors());
}

/// Each such line costs another pass. 30 of them behind 430,000 keys took 20 s of CPU.
#[test]
fn lines_that_stand_left_cost_a_bounded_number_of_passes() {
    let keys = |count: usize| (0..count).map(|number| format!("key{number}: 1\n")).collect::<String>();
    let left = |count: usize| (0..count).map(|number| format!("left{number}: [\n]\n")).collect::<String>();
    let check = |text: String, expected: Option<&str>| {
        let limits = Limits { bytes_again: 50_000, ..LIMITS };
        let found = parse_as(&"f.yaml".into(), &text, Dialect::Kubernetes, &limits).diagnostics;
        let help = found.iter().next().and_then(|found| found.help.clone());
        assert_eq!(help.is_some(), expected.is_some(), "{help:?}");
        assert!(help.unwrap_or_default().contains(expected.unwrap_or_default()));
    };
    let many = 1_500;
    check(keys(10) + &left(30), None);
    check(keys(many) + &left(2), None);
    check(keys(many) + &left(30), Some("indent every line of a list or mapping in brackets"));
    // Documents before the one with such lines are not read again.
    check(keys(many) + "---\n" + &left(30), None);
    check("---\n".to_owned() + &left(30) + "---\n" + &keys(many), None);
}

#[test]
fn documents_behind_each_other_share_the_limit_of_a_file() {
    let document = "---\n[1, 1, 1]\n";
    let limits = Limits { nodes: 8, bytes_again: 0, ..LIMITS };
    let found = parse_as(&"f.yaml".into(), &document.repeat(3), Dialect::Kubernetes, &limits);
    assert_eq!((found.documents.len(), found.diagnostics.len()), (2, 1));
    let text = found.diagnostics.to_string();
    assert!(text.contains("6:") && text.contains("yaml-too-large"), "{text}");
}

/// 8 MiB of `1,` took 1.4 GiB before the first value was there.
#[test]
fn a_list_in_brackets_has_a_bounded_number_of_parts() {
    let limits = Limits { flow_parts: 10, ..LIMITS };
    let check = |text: &str, expected: bool| {
        let found = parse_as(&"f.yaml".into(), text, Dialect::Kubernetes, &limits);
        assert_eq!(found.diagnostics.has_errors(), expected, "{text}");
        assert!(!expected || found.documents.is_empty() && found.broken.len() == 1, "{text}");
    };
    check(&format!("[{}]\n", "1,".repeat(9)), false);
    check(&format!("[{}]\n", "1,".repeat(10)), true);
    check(&"[".repeat(11), true);
    check(&"- a\n".repeat(20), false);
    assert!(read(&"[1,1,1,1],".repeat(300_000)).1.to_string().contains("more than 1000000 commas"));
}

#[test]
fn errors_are_counted() {
    let (documents, diagnostics) = read(&"---\na: [\n".repeat(2 * MAX_YAML_SYNTAX_ERRORS));
    assert_eq!((documents.len(), diagnostics.len()), (0, MAX_YAML_SYNTAX_ERRORS));
}

#[test]
fn refuses_what_is_ambiguous_or_too_much() {
    check_refused("a: 1\nb: 2\na: 3\n", 0, &["3:1 duplicate-key"]);
    check_refused("? [a]\n: 1\n", 0, &["1:3 yaml-key"]);
    check_refused("a: *nowhere\n", 0, &["1:4 yaml-syntax"]);
    check_refused("a: &x [*x]\n", 0, &["1:8 yaml-alias"]);
    check_refused("a: !secret x\n", 0, &["1:4 yaml-tag"]);
    check_refused("a:\n  <<: 1\n", 0, &["2:7 yaml-merge"]);
    check_refused("a:\n\tb: 1\n", 0, &["2:2 yaml-syntax"]);
    let deep = "- ".repeat(MAX_YAML_DEPTH + 1);
    check_refused(&deep, 0, &[&format!("1:{} yaml-too-deep", 2 * MAX_YAML_DEPTH + 1)]);
}

#[test]
fn help_fits_the_mistake() {
    let check = |text: &str, expected: &str| {
        let (_, diagnostics) = read(text);
        let help = diagnostics.iter().next().and_then(|d| d.help.clone()).unwrap_or_default();
        assert!(help.contains(expected), "{text:?}: {diagnostics}");
    };
    check("a:\n\tb: 1\n", "indent with spaces");
    check("a: w\0b\n", "remove this character");
    check("a: [*]\n", "begins with `*`");
    check("a: *.example.com\n", "begins with `*`");
    check("a: @b\n", "in quotes");
    check("a: [\"b]\nc: 1\n", "quote that opens here");
    check("a: b: c\n", "quote a text that contains `: `");
    check("a: *nowhere\n", "needs an anchor `&name`");
    check(&format!("a: {}", "[".repeat(3000)), "fewer levels");
    check("a: !!binary eA==\n", "remove the tag");
}

#[test]
fn a_bomb_of_aliases_is_refused_quickly() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for i in 1..12 {
        let uses = vec![format!("*a{}", i - 1); 10].join(", ");
        text.push_str(&format!("a{i}: &a{i} [{uses}]\n"));
    }
    let (documents, diagnostics) = read(&text);
    assert!(documents.is_empty());
    assert!(
        diagnostics.to_string().contains(&format!("copy more than {MAX_YAML_ALIAS_NODES} values")),
        "{diagnostics}"
    );
}

#[test]
fn finds_nodes_by_path() {
    let (documents, _) = read("static_resources:\n  listeners:\n    - name: a\n    - name: b\n      fieldName: 1\n");
    let check = |path: &str, value: Option<&str>, position: &str| {
        let root = documents.first().expect("one document");
        assert_eq!(root.at_path(path).map(|n| n.to_json().to_string()).as_deref(), value, "{path}");
        let span = root.span_of_path(path);
        assert_eq!(format!("{}:{}", span.line, span.column), position, "{path}");
    };
    check("static_resources.listeners[1].name", Some("\"b\""), "4:7");
    check("staticResources.listeners[0].name", Some("\"a\""), "3:7");
    check("static_resources.listeners[1].field_name", Some("1"), "5:7");
    check("static_resources.listeners[2].name", None, "2:3");
    check("static_resources.clusters", None, "1:1");
    check("static_resources.listeners[x]", None, "2:3");
}

#[test]
fn positions_inside_a_block_are_those_of_the_file() {
    let (documents, _) = read("data:\n  mesh: |-\n    a: 1\n    b:\n      c: 2\n");
    let text = documents.first().and_then(|d| d.at_path("data.mesh")).expect("a text");
    let (inner, diagnostics) = parse_within(&text.span, text.as_str().expect("a string"));
    assert!(diagnostics.is_empty());
    let places = ["a", "b.c"].map(|p| inner[0].span_of_path(p).to_string());
    assert_eq!(places, ["f.yaml:3:5", "f.yaml:5:7"]);
}

#[test]
fn says_which_lines_could_not_be_read() {
    let check = |text: &str, expected: &[(u32, u32)]| {
        let parsed = parse_all(&Arc::from("f.yaml"), text);
        let broken: Vec<_> = parsed.broken.iter().map(|lines| (lines.start, lines.end)).collect();
        assert_eq!(broken, expected, "{text}");
        assert_eq!(parsed.broken.len(), parsed.diagnostics.len(), "{text}");
    };
    check("a: 1\n---\nb: 2\n", &[]);
    check("a: [\n", &[(1, u32::MAX)]);
    check("a: 1\n---\nb: [\n---\nc: 3\n", &[(2, 4)]);
    check("a: 1\n---\nb: 'x\n---\nc: 3\n---\nd: [\n", &[(2, 4), (6, u32::MAX)]);
    check("a: 1\na: 2\n---\nb: 2\n", &[(1, 3)]);
    check("x: 1\n---\n: : :\n  - ]\n---\nc: 3\n", &[(2, 5)]);
}

proptest! {
    #[test]
    fn never_panics(text in "\\PC*|[-:{}\\[\\]&*!|> \t\nab'\"#,%@`~?]*") {
        read(&text);
    }

    #[test]
    fn strings_survive(text in "\\PC*") {
        let (documents, diagnostics) = read(&serde_json::json!({ "k": text }).to_string());
        prop_assert!(diagnostics.is_empty(), "{}", diagnostics);
        prop_assert_eq!(documents[0].to_json(), serde_json::json!({ "k": text }));
    }
}
