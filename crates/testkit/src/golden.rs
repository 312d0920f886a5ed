//! Golden files: the expected output of a test, kept beside it and re-written on demand.

use std::path::Path;

/// Compares `actual` with the file at `path`; with `BLESS=1` in the environment, writes the file instead.
///
/// # Panics
/// When they differ, showing the first differing line and how to accept it.
pub fn check(path: impl AsRef<Path>, actual: &str) {
    let path = path.as_ref();
    if std::env::var_os("BLESS").is_some_and(|value| value == "1") {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)
                .unwrap_or_else(|error| panic!("cannot create {}: {error}", folder.display()));
        }
        std::fs::write(path, actual).unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
        return;
    }
    let expected = std::fs::read_to_string(path)
        .unwrap_or_else(|error| panic!("{}: {error}; run the test with BLESS=1 to create it", path.display()));
    if let Some(difference) = first_difference(&expected, actual) {
        panic!("{} differs; when the new output is right, run the test with BLESS=1\n{difference}", path.display());
    }
}

/// The first line in which two texts differ, with the line before it; `None` when they are equal.
pub fn first_difference(expected: &str, actual: &str) -> Option<String> {
    if expected == actual {
        return None;
    }
    let (mut old, mut new) = (expected.lines(), actual.lines());
    let mut before = "";
    for number in 1.. {
        match (old.next(), new.next()) {
            (Some(a), Some(b)) if a == b => before = a,
            (None, None) => return Some("they differ only in line endings".to_owned()),
            (a, b) => {
                let show = |line: Option<&str>| line.unwrap_or("(end of text)").to_owned();
                return Some(format!("  {before}\nline {number}:\n- {}\n+ {}", show(a), show(b)));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn shows_the_first_differing_line() {
        let check = |expected: &str, actual: &str, difference: Option<&str>| {
            assert_eq!(first_difference(expected, actual).as_deref(), difference, "{expected:?} against {actual:?}");
        };
        check("a\nb\n", "a\nb\n", None);
        check("a\nb\n", "a\nc\n", Some("  a\nline 2:\n- b\n+ c"));
        check("a\n", "a\nb\n", Some("  a\nline 2:\n- (end of text)\n+ b"));
        check("a\n", "a", Some("they differ only in line endings"));
    }
}
