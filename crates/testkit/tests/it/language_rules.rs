//! The idioms and names of the code. What stands that breaks a rule is counted here; a count only shrinks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use evenkeel_testkit::workspace::{self, sources};

/// Words that say nothing as the name of a function or value, and how often they still stand for one.
const VAGUE_NAMES: [(&str, usize); 13] = [
    ("asked", 106),
    ("door", 1),
    ("gave", 0),
    ("give", 8),
    ("given", 41),
    ("gone", 44),
    ("heed", 0),
    ("kept", 68),
    ("made", 70),
    ("said", 119),
    ("tell", 20),
    ("told", 108),
    ("way", 4),
];

/// How many parameters of functions are tuples. A struct names its parts.
const TUPLE_PARAMETERS: usize = 160;

/// Calls on what may be there once: `if let` says so.
const OPTIONS: [&str; 5] = [".get(", ".get_mut(", ".take(", ".lookup(", ".first("];

/// The files of all crates with their texts, but for generated ones and this one.
fn files() -> Vec<(PathBuf, String)> {
    let all = sources(&workspace::root().join("crates"));
    let is_written = |path: &PathBuf| !path.components().any(|part| part.as_os_str() == "generated");
    // This file has examples of what is forbidden.
    let written = all.into_iter().filter(|path| is_written(path) && !path.ends_with("language_rules.rs"));
    written.map(|path| (path.clone(), std::fs::read_to_string(&path).expect("a source file"))).collect()
}

/// The lines that break a rule, with their places.
fn broken(breaks: impl Fn(&str) -> bool) -> Vec<String> {
    let mut broken = Vec::new();
    for (path, text) in files() {
        let code = text.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//") && breaks(line));
        broken.extend(code.map(|(number, line)| format!("{}:{}: {}", path.display(), number + 1, line.trim())));
    }
    broken
}

#[test]
fn what_a_collection_held_is_not_dropped_by_name() {
    let check = |line: &str, expected: bool| assert_eq!(is_dropped_insert(line), expected, "{line}");
    check("    drop(map.insert(key, value));", true);
    check("    None => drop(self.index.remove(&key)),", true);
    check("    drop(lock);", false);
    let broken = broken(is_dropped_insert);
    assert!(broken.is_empty(), "{}\nwrite `map.insert(key, value);`", broken.join("\n"));
}

fn is_dropped_insert(line: &str) -> bool {
    let dropped = line.split_once("drop(").filter(|(before, _)| !before.ends_with(|c: char| c.is_alphanumeric()));
    dropped.is_some_and(|(_, what)| {
        [".insert(", ".remove("].iter().any(|call| what.contains(call)) && !what.starts_with(['|', '(', '{'])
    })
}

#[test]
fn one_value_is_no_loop() {
    let check = |line: &str, expected: bool| assert_eq!(is_loop_over_an_option(line), expected, "{line}");
    check("    self.waker.take().into_iter().for_each(Waker::wake);", true);
    check("    names.into_iter().for_each(|name| all.add(name));", false);
    let broken = broken(is_loop_over_an_option);
    assert!(broken.is_empty(), "{}\nwrite `if let Some(value) = …`", broken.join("\n"));
}

fn is_loop_over_an_option(line: &str) -> bool {
    let before = line.split_once(".into_iter().for_each(").map_or("", |(before, _)| before);
    before.ends_with(')')
        && before.rfind('.').is_some_and(|at| OPTIONS.iter().any(|call| before[at..].starts_with(call)))
}

#[test]
fn functions_and_values_have_names_that_say_what_they_are() {
    let mut counts: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (path, text) in files() {
        for (number, line) in text.lines().enumerate() {
            if let Some(name) = vague_name(line) {
                counts.entry(name).or_default().push(format!("{}:{}", path.display(), number + 1));
            }
        }
    }
    let mut wrong = Vec::new();
    for (name, allowed) in VAGUE_NAMES {
        let places = counts.remove(name).unwrap_or_default();
        if places.len() > allowed {
            wrong.push(format!("`{name}` says nothing; one of these is new: {}", places.join(", ")));
        }
        if places.len() < allowed {
            wrong.push(format!("`{name}` is there {} times only: lower its number in VAGUE_NAMES", places.len()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The vague name that a line gives to a function or value.
fn vague_name(line: &str) -> Option<&'static str> {
    let words: Vec<&str> =
        line.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    let named = words.iter().position(|word| matches!(*word, "fn" | "let"))?;
    let name = words[named + 1..].iter().find(|word| **word != "mut")?;
    VAGUE_NAMES.into_iter().map(|(vague, _)| vague).find(|vague| vague == name)
}

#[test]
fn parameters_have_types_with_names() {
    let check = |text: &str, expected: usize| assert_eq!(tuple_parameters(text).len(), expected, "{text}");
    check("fn f(a: (u8, u8), b: &(u8, u16)) -> (u8, u8) {", 2);
    check("fn f(\n    a: u8,\n    g: impl Fn(u8, u8) -> (u8, u8),\n) {", 0);
    check("fn f(a: &[(u8, u8)], unit: ()) {", 0);
    check("fn f(a: &(impl A + B), b: &(dyn A + B)) {", 0);
    let mut found = Vec::new();
    for (path, text) in files() {
        found.extend(tuple_parameters(&text).into_iter().map(|line| format!("{}:{line}", path.display())));
    }
    let (count, allowed) = (found.len(), TUPLE_PARAMETERS);
    assert!(
        count <= allowed,
        "{count} parameters are tuples, and {allowed} were; name the parts in a struct: {found:#?}"
    );
    assert!(count == allowed, "only {count} parameters are tuples: lower TUPLE_PARAMETERS");
}

/// The lines of the functions' parameters that are tuples.
fn tuple_parameters(text: &str) -> Vec<usize> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("fn ") {
        let Some(open) = text[at..].find('(').map(|open| at + open) else { continue };
        let (mut depth, mut previous) = (0_usize, ' ');
        for (index, c) in text[open..].char_indices() {
            // `: (` and `: &(` at the level of the parameters; `()` is no tuple, nor are the bounds of a type without a name.
            let begins = c == '(' && depth == 1 && matches!(previous, ':' | '&') && {
                let rest = &text[open + index..];
                !["()", "(impl ", "(dyn "].iter().any(|other| rest.starts_with(other))
            };
            if begins {
                found.push(text[..open + index].lines().count());
            }
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                '{' | ';' => break,
                _ => {}
            }
            if depth == 0 {
                break;
            }
            if !c.is_whitespace() {
                previous = c;
            }
        }
    }
    found
}
