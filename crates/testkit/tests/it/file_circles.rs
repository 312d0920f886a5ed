//! No two files of a crate import each other, directly or indirectly: each can be read and changed without the files that use
//! it.
//!
//! A file that imports what a module above it in the tree (`super::…`) defines is a part of that module; this does not count
//! as an import here. An import of a name that a module re-exports, or itself imports, counts as an import of the file that
//! defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use evenkeel_testkit::workspace::{self, sources};

/// Files whose imports do not count, with the reason: a table whose rows name files that use the table, or one of two types
/// that each need the other in their definitions.
const EXEMPT: [(&str, &str); 3] = [
    ("model/src/derive/step.rs", "each row has the steps of one kind, which read results over the table"),
    (
        "proxy/src/worker/inbox.rs",
        "a message carries a connection to the worker that serves it, and a worker has the inboxes of the others",
    ),
    ("runtime-config/src/http_filters.rs", "each row has a filter's type and the function that compiles it"),
];

#[test]
fn no_files_import_each_other() {
    let crates = workspace::root().join("crates");
    let mut broken = Vec::new();
    for entry in std::fs::read_dir(&crates).expect("crates").map(|entry| entry.expect("an entry").path()) {
        let src = entry.join("src");
        if !src.is_dir() {
            continue;
        }
        let name = entry.file_name().expect("a name").to_string_lossy().into_owned();
        let files = read(&src);
        broken.extend(circles(&files, &name).into_iter().map(|circle| format!("{name}: {circle}")));
    }
    assert!(
        broken.is_empty(),
        "{}\nmove what both need to a file of its own, or to the one whose story it belongs to",
        broken.join("\n")
    );
    for (file, reason) in EXEMPT {
        assert!(crates.join(file).is_file(), "{file} is gone ({reason})");
    }
}

#[test]
fn circles_are_found() {
    let check = |files: &[(&str, &str)], expected: &[&str]| {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        assert_eq!(circles(&files, "test"), expected);
    };
    check(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "struct B;")], &[]);
    check(&[("a.rs", "use crate::b::{C, D};"), ("b.rs", "fn f() { crate::a::g() }")], &["a.rs:1 → b.rs:1 → a.rs"]);
    // Over a third file, over a name that a module re-exports, and over a module that is imported itself.
    check(
        &[
            ("a.rs", "use super::b::B;"),
            ("b/mod.rs", "pub use c::B;\n"),
            ("b/c.rs", "\nuse crate::d;\nd::f()"),
            ("d.rs", "use crate::a::A;"),
        ],
        &["a.rs:1 → b/c.rs:3 → d.rs:1 → a.rs"],
    );
    // Over a name that a module above re-exports, or itself imports.
    check(
        &[
            ("a/mod.rs", "pub use b::B;\nuse crate::d::D;"),
            ("a/b.rs", "use super::c::C;"),
            ("a/c.rs", "use super::B;"),
            ("a/e.rs", "use super::D;"),
            ("d.rs", "use crate::a::e::E;"),
        ],
        &["a/b.rs:1 → a/c.rs:1 → a/b.rs", "a/e.rs:1 → d.rs:1 → a/e.rs"],
    );
    // A part of a module imports from it; a comment, a text and a unit test import nothing.
    check(&[("a/mod.rs", "use b::B;"), ("a/b.rs", "use super::A;")], &[]);
    check(
        &[
            ("a.rs", "// crate::b::B\nf(\"crate::b::B\");\n#[cfg(test)]\nmod tests {\nuse crate::b::B; }"),
            ("b.rs", "use crate::a::A;"),
        ],
        &[],
    );
    check(&[("lib.rs", "#[cfg(test)]\nmod b;"), ("a.rs", "use crate::b::B;"), ("b.rs", "use crate::a::A;")], &[]);
    let with_tests = "#[cfg(test)]\nmod c;\nuse crate::b::B;";
    check(&[("a/mod.rs", with_tests), ("a/c.rs", ""), ("b.rs", "#[cfg(test)]\nuse crate::a::c::C;")], &[]);
}

/// Files by their path below `src`, with their text.
type Files = BTreeMap<String, String>;
/// The names on the way to a module, or to a thing in it.
type Names = Vec<String>;

fn read(src: &Path) -> Files {
    let below = |path: &Path| path.strip_prefix(src).expect("below").to_string_lossy().into_owned();
    let text = |path: &Path| std::fs::read_to_string(path).expect("a source file");
    sources(src).iter().map(|path| (below(path), text(path))).collect()
}

/// A file as its imports show it.
#[derive(Default)]
struct Module {
    path: String,
    /// Imports and other mentions of paths, each with its line.
    mentions: Vec<(Names, usize)>,
    /// Names that it imports or re-exports, and where they are from. Its parts can use both.
    names: BTreeMap<String, Names>,
    /// Whether only tests have it.
    is_test: bool,
}

/// One circle of each set of files that import each other, as `a.rs:LINE → b.rs:LINE → a.rs`.
fn circles(files: &Files, name: &str) -> Vec<String> {
    let modules = modules(files);
    let mut edges: BTreeMap<&Names, BTreeMap<&Names, usize>> = BTreeMap::new();
    for (own, module) in &modules {
        let targets = edges.entry(own).or_default();
        if EXEMPT.iter().any(|(file, _)| *file == format!("{name}/src/{}", module.path)) {
            continue;
        }
        for (path, line) in &module.mentions {
            if let Some(target) = target(&modules, own, path, 0)
                && !own.starts_with(target)
                && !modules[target].is_test
            {
                targets.entry(target).or_insert(*line);
            }
        }
    }
    let mut found: Vec<Vec<&Names>> = Vec::new();
    for start in edges.keys() {
        if !found.iter().flatten().any(|known| known == start)
            && let Some(circle) = shortest_circle(&edges, start)
        {
            found.push(circle);
        }
    }
    let shown = |circle: &Vec<&Names>| {
        let mut text = String::new();
        for (at, module) in circle.iter().enumerate() {
            let next = circle[(at + 1) % circle.len()];
            text.push_str(&format!("{}:{} → ", modules[*module].path, edges[module][next]));
        }
        text + &modules[circle[0]].path
    };
    found.iter().map(shown).collect()
}

/// The shortest way from a module back to itself.
fn shortest_circle<'m>(
    edges: &BTreeMap<&'m Names, BTreeMap<&'m Names, usize>>,
    start: &'m Names,
) -> Option<Vec<&'m Names>> {
    let mut before: BTreeMap<&Names, &'m Names> = BTreeMap::new();
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(module) = queue.pop_front() {
        for next in edges[module].keys().copied() {
            if next == start {
                let mut circle = vec![module];
                while let Some(previous) = before.get(circle[circle.len() - 1]).copied() {
                    circle.push(previous);
                }
                circle.reverse();
                return Some(circle);
            }
            if next != start && !before.contains_key(next) {
                before.insert(next, module);
                queue.push_back(next);
            }
        }
    }
    None
}

/// The module that a path leads to from `own`, over re-exports; `None` if it leads out of the crate.
fn target<'m>(modules: &'m BTreeMap<Names, Module>, own: &Names, path: &[String], depth: usize) -> Option<&'m Names> {
    let absolute = absolute(modules, own, path)?;
    let length = (0..=absolute.len()).rev().find(|length| modules.contains_key(&absolute[..*length]))?;
    let (module, rest) = absolute.split_at(length);
    let (key, module) = modules.get_key_value(module)?;
    if let Some(first) = rest.first()
        && depth < 8
        && let Some(from) = module.names.get(first)
    {
        let whole: Names = from.iter().chain(&rest[1..]).cloned().collect();
        return target(modules, key, &whole, depth + 1).or(Some(key));
    }
    Some(key)
}

fn absolute(modules: &BTreeMap<Names, Module>, own: &Names, path: &[String]) -> Option<Names> {
    let ups = path.iter().take_while(|name| *name == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (&own[..0], &path[1..]),
        "self" => (&own[..], &path[1..]),
        "super" => (own.get(..own.len().checked_sub(ups)?)?, &path[ups..]),
        first => {
            let child: Names = own.iter().cloned().chain([first.to_owned()]).collect();
            modules.contains_key(&child).then_some((&own[..], path))?
        }
    };
    Some(base.iter().chain(rest).cloned().collect())
}

fn modules(files: &Files) -> BTreeMap<Names, Module> {
    let mut texts = BTreeMap::new();
    let mut tests: BTreeSet<Names> = BTreeSet::new();
    for (path, text) in files {
        let mut names: Names = path.trim_end_matches(".rs").split('/').map(str::to_owned).collect();
        if matches!(names.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            names.pop();
        }
        let code = code(text);
        let lines: Vec<&str> = code.lines().map(str::trim).collect();
        for pair in lines.windows(2).filter(|pair| pair[0].contains("#[cfg(test)]")) {
            let declared = pair[1].trim_start_matches("pub(crate) ").trim_start_matches("pub ");
            if let Some(name) = declared.strip_prefix("mod ").and_then(|name| name.strip_suffix(';')) {
                tests.insert(names.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        texts.insert(names, (path, code));
    }
    let is_test = |names: &Names| (1..=names.len()).any(|length| tests.contains(&names[..length]));
    let known: BTreeMap<Names, Module> = texts.keys().map(|names| (names.clone(), Module::default())).collect();
    let read = |(names, (path, code)): (&Names, &(&String, String))| {
        if is_test(names) {
            (names.clone(), Module { path: (*path).clone(), is_test: true, ..Module::default() })
        } else {
            (names.clone(), module(&known, names, path, code))
        }
    };
    texts.iter().map(read).collect()
}

/// The text without comments, strings and the unit tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let line = |line: &str| {
        let mut shown = String::new();
        for (at, part) in line.split('"').enumerate() {
            if at % 2 == 0 {
                shown.push_str(part);
            }
        }
        let end = shown.find("//").unwrap_or(shown.len());
        shown.truncate(end);
        shown + "\n"
    };
    text.lines().map(line).collect()
}

fn module(known: &BTreeMap<Names, Module>, own: &Names, path: &str, code: &str) -> Module {
    let mut module = Module { path: path.to_owned(), ..Module::default() };
    let mut imported = BTreeMap::new();
    let mut rest = String::new();
    let mut at = 0;
    // Imports, which may go over several lines.
    while let Some((start, end, public)) = next_import(code, at) {
        let line = code[..start].lines().count().max(1) + usize::from(code[..start].ends_with('\n'));
        rest.push_str(&code[at..start]);
        rest.extend(code[start..end].chars().filter(|char| *char == '\n'));
        for (path, name) in expanded(&code[start..end], &[]) {
            module.names.insert(name.clone(), path.clone());
            match absolute(known, own, &path) {
                // A module: what is used of it counts.
                Some(whole) if !public && known.contains_key(&whole) => _ = imported.insert(name, path),
                _ => module.mentions.push((path, line)),
            }
        }
        at = end;
    }
    rest.push_str(&code[at..]);
    for (number, line) in rest.lines().enumerate() {
        let is_name = |char: char| char.is_alphanumeric() || char == '_' || char == ':';
        for word in line.split(|char| !is_name(char)).filter(|word| word.contains("::")) {
            let names: Names = word.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect();
            let Some(first) = names.first() else { continue };
            let whole = match imported.get(first) {
                Some(path) => path.iter().chain(&names[1..]).cloned().collect(),
                None if matches!(first.as_str(), "crate" | "self" | "super") => names,
                None => continue,
            };
            module.mentions.push((whole, number + 1));
        }
    }
    module
}

/// Where the tree of the next `use` begins and ends, and whether it re-exports.
fn next_import(code: &str, from: usize) -> Option<(usize, usize, bool)> {
    let mut at = from;
    loop {
        let found = at + code[at..].find("use ")?;
        let line = code[..found].rfind('\n').map_or(0, |end| end + 1);
        let before = code[line..found].trim();
        at = found + 4;
        if before.is_empty() || before == "pub" || before.starts_with("pub(") && before.ends_with(')') {
            let end = at + code[at..].find(';')?;
            return Some((at, end, !before.is_empty()));
        }
    }
}

/// The paths of an import's tree, each with the name that it gives.
fn expanded(tree: &str, prefix: &[String]) -> Vec<(Names, String)> {
    let tree = tree.trim();
    let names = |text: &str| -> Names {
        text.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    if let Some((stem, branches)) = tree.split_once('{') {
        let prefix: Names = prefix.iter().cloned().chain(names(stem)).collect();
        let branches = branches.trim_end().trim_end_matches('}');
        return split_branches(branches).into_iter().flat_map(|branch| expanded(branch, &prefix)).collect();
    }
    let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(path, alias)| (path, Some(alias.trim())));
    let mut path: Names = prefix.iter().cloned().chain(names(path)).collect();
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
    }
    let name = alias.or(path.last().map(String::as_str)).unwrap_or_default().to_owned();
    if path.is_empty() { Vec::new() } else { vec![(path, name)] }
}

/// The branches of a tree, at its commas outside of further braces.
fn split_branches(branches: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, char) in branches.char_indices() {
        match char {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&branches[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&branches[start..]);
    found.retain(|branch| !branch.trim().is_empty());
    found
}
