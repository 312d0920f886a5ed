//! Each row of a table in SECURITY.md with a column `test` names a test that exists.

use std::fs;

use evenkeel_testkit::workspace;

/// A cell: a file of the workspace and a function in it.
fn named(cell: &str) -> Option<(&str, &str)> {
    let mut words = cell.split('`').skip(1).step_by(2);
    Some((words.next()?, words.next()?))
}

/// Cells of a row; `None`: it is not one.
fn cells(line: &str) -> Option<Vec<&str>> {
    let inner = line.strip_prefix("| ")?.strip_suffix(" |")?;
    Some(inner.split(" | ").collect())
}

/// What is wrong with the tables, and how many rows they have.
fn check(page: &str, has: impl Fn(&str, &str) -> bool) -> (Vec<String>, usize) {
    let (mut wrong, mut rows, mut columns) = (Vec::new(), 0, None::<usize>);
    for line in page.lines() {
        let Some(cells) = cells(line) else {
            columns = None;
            continue;
        };
        match columns {
            None => {
                if cells.last() != Some(&"test") {
                    wrong.push(format!("a table without a last column `test`: {line}"));
                }
                columns = Some(cells.len());
            }
            Some(_) if cells.iter().all(|cell| *cell == "---") => {}
            Some(columns) => {
                rows += 1;
                let test = cells.last().and_then(|cell| named(cell));
                let exists = test.is_some_and(|(file, name)| has(file, name));
                if !exists || cells.len() != columns {
                    wrong.push(format!("no such test, or another number of columns: {line}"));
                }
            }
        }
    }
    (wrong, rows)
}

#[test]
fn each_attack_names_a_test_that_exists() {
    let root = workspace::root();
    let page = fs::read_to_string(root.join("SECURITY.md")).expect("the page");
    let has = |file: &str, name: &str| {
        let text = fs::read_to_string(root.join(file)).unwrap_or_default();
        let test = text.find(&format!("fn {name}("));
        // Its attribute is in front of it, on a line of its own.
        test.and_then(|at| text.get(..at)).is_some_and(|before| {
            before.trim_end_matches("async ").trim_end().ends_with("]") && before.contains("test")
        })
    };
    let (wrong, rows) = check(&page, has);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(rows >= 25, "only {rows} rows");
}

#[test]
fn what_is_missing_is_found() {
    let page = |row: &str| format!("| attack | test |\n| --- | --- |\n{row}\n");
    let expect = |page: &str, found: usize| {
        let (wrong, _) = check(page, |file, name| (file, name) == ("a.rs", "it_fails"));
        assert_eq!(wrong.len(), found, "{page}");
    };
    expect(&page("| x | `a.rs`: `it_fails` |"), 0);
    expect(&page("| x | `a.rs`: `other` |"), 1);
    expect(&page("| x | – |"), 1);
    expect(&page("| x | y | `a.rs`: `it_fails` |"), 1);
    expect("| attack | answer |\n| --- | --- |\n", 1);
}
