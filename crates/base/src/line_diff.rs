//! The difference of two texts by lines, in the unified format of `diff -u` and git.

use std::ops::Range;

/// Unchanged lines around a difference.
const CONTEXT: usize = 3;
/// Largest product of the lines of both texts, without what they begin and end with alike, that is compared line by line, in
/// cells of a table of 4 bytes each. Beyond it everything between is taken as replaced.
const MAX_CELLS: usize = 1_000_000;

/// A run of lines that are equal, or replaced: those of the old text by those of the new one.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Run {
    Equal(Range<usize>, Range<usize>),
    Replaced(Range<usize>, Range<usize>),
}

/// Returns the hunks: a line `@@ -1,2 +1,3 @@` each, then lines that begin with a blank, `-` or `+`. Nothing if the lines are
/// the same.
pub fn unified(old: &str, new: &str) -> Vec<String> {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let mut out = Vec::new();
    let mut hunk: Vec<String> = Vec::new();
    // Where the hunk begins in both texts, and how many lines of each it has.
    let (mut start, mut count) = ((0, 0), (0, 0));
    let runs = runs(&old, &new);
    let last = runs.len().saturating_sub(1);
    for (at, run) in runs.into_iter().enumerate() {
        match run {
            Run::Replaced(from, to) => {
                if hunk.is_empty() {
                    start = (from.start, to.start);
                }
                count = (count.0 + from.len(), count.1 + to.len());
                hunk.extend(lines(&old, from).map(|line| format!("-{line}")));
                hunk.extend(lines(&new, to).map(|line| format!("+{line}")));
            }
            Run::Equal(from, to) => {
                let ends = at == last || from.len() > 2 * CONTEXT;
                let after = if hunk.is_empty() {
                    0
                } else if ends {
                    from.len().min(CONTEXT)
                } else {
                    from.len()
                };
                hunk.extend(lines(&old, from.start..from.start + after).map(|line| format!(" {line}")));
                count = (count.0 + after, count.1 + after);
                if ends && !hunk.is_empty() {
                    out.push(header(start, count));
                    out.append(&mut hunk);
                }
                if at != last && hunk.is_empty() {
                    let before = from.len().min(CONTEXT);
                    start = (from.end - before, to.end - before);
                    count = (before, before);
                    hunk.extend(lines(&old, start.0..from.end).map(|line| format!(" {line}")));
                }
            }
        }
    }
    if !hunk.is_empty() {
        out.push(header(start, count));
        out.append(&mut hunk);
    }
    out
}

fn lines<'l>(all: &'l [&str], range: Range<usize>) -> impl Iterator<Item = &'l str> {
    all.get(range).into_iter().flatten().copied()
}

/// An empty range is named by the line before it, as git does.
fn header(start: (usize, usize), count: (usize, usize)) -> String {
    let side = |start: usize, count: usize| format!("{},{count}", if count == 0 { start } else { start + 1 });
    format!("@@ -{} +{} @@", side(start.0, count.0), side(start.1, count.1))
}

/// The runs of both texts, in their order.
fn runs(old: &[&str], new: &[&str]) -> Vec<Run> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - head;
    let tail = old.iter().rev().zip(new.iter().rev()).take(rest).take_while(|(a, b)| a == b).count();
    let (from, to) = (head..old.len() - tail, head..new.len() - tail);
    let mut all = Vec::new();
    push(&mut all, Run::Equal(0..head, 0..head));
    between(old, new, (from.clone(), to.clone()), &mut all);
    push(&mut all, Run::Equal(from.end..old.len(), to.end..new.len()));
    all
}

fn push(all: &mut Vec<Run>, run: Run) {
    let (Run::Equal(from, to) | Run::Replaced(from, to)) = &run;
    if !from.is_empty() || !to.is_empty() {
        all.push(run);
    }
}

/// The runs between what both texts begin and end with alike: a longest common subsequence.
fn between(old: &[&str], new: &[&str], (from, to): (Range<usize>, Range<usize>), all: &mut Vec<Run>) {
    let (height, width) = (from.len(), to.len());
    if height == 0 || width == 0 || height.saturating_mul(width) > MAX_CELLS {
        push(all, Run::Replaced(from, to));
        return;
    }
    let is_same = |row: usize, column: usize| old.get(from.start + row) == new.get(to.start + column);
    // The length of the longest common subsequence of what begins at a row and a column.
    let mut table = vec![0_u32; (height + 1) * (width + 1)];
    let index = |row: usize, column: usize| row * (width + 1) + column;
    let at = |table: &[u32], row: usize, column: usize| table.get(index(row, column)).copied().unwrap_or_default();
    for row in (0..height).rev() {
        for column in (0..width).rev() {
            let length = if is_same(row, column) {
                at(&table, row + 1, column + 1) + 1
            } else {
                at(&table, row + 1, column).max(at(&table, row, column + 1))
            };
            if let Some(cell) = table.get_mut(index(row, column)) {
                *cell = length;
            }
        }
    }
    let (mut row, mut column) = (0, 0);
    while row < height || column < width {
        let begin = (row, column);
        while row < height && column < width && is_same(row, column) {
            (row, column) = (row + 1, column + 1);
        }
        let range = |begin: usize, end: usize, offset: usize| begin + offset..end + offset;
        push(all, Run::Equal(range(begin.0, row, from.start), range(begin.1, column, to.start)));
        let begin = (row, column);
        while (row < height || column < width) && !(row < height && column < width && is_same(row, column)) {
            let down = row < height && (column == width || at(&table, row + 1, column) >= at(&table, row, column + 1));
            if down { row += 1 } else { column += 1 }
        }
        push(all, Run::Replaced(range(begin.0, row, from.start), range(begin.1, column, to.start)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_have_their_places_and_three_lines_around() {
        let check =
            |old: &str, new: &str, expected: &[&str]| assert_eq!(unified(old, new), expected, "{old:?} {new:?}");
        check("", "", &[]);
        check("a\nb\n", "a\nb\n", &[]);
        check("", "a\nb\n", &["@@ -0,0 +1,2 @@", "+a", "+b"]);
        check("a\n", "", &["@@ -1,1 +0,0 @@", "-a"]);
        check("a\nb\nc\n", "a\nB\nc\n", &["@@ -1,3 +1,3 @@", " a", "-b", "+B", " c"]);
        let long: Vec<String> = (1..=20).map(|number| number.to_string()).collect();
        let edited = |edits: &[(usize, &str)]| {
            let mut lines = long.clone();
            edits.iter().for_each(|(line, text)| lines[line - 1] = (*text).to_owned());
            lines.join("\n")
        };
        let two = [
            "@@ -1,5 +1,5 @@",
            " 1",
            "-2",
            "+x",
            " 3",
            " 4",
            " 5",
            "@@ -16,5 +16,5 @@",
            " 16",
            " 17",
            " 18",
            "-19",
            "+y",
            " 20",
        ];
        check(&long.join("\n"), &edited(&[(2, "x"), (19, "y")]), &two);
        // Those that are near share a hunk.
        let near = ["@@ -2,9 +2,9 @@", " 2", " 3", " 4", "-5", "+x", " 6", "-7", "+y", " 8", " 9", " 10"];
        check(&long.join("\n"), &edited(&[(5, "x"), (7, "y")]), &near);
        check("a\nb\nc\nd\n", "b\nc\ne\nd\n", &["@@ -1,4 +1,4 @@", "-a", " b", " c", "+e", " d"]);
    }

    /// Both texts can be read from the difference, whatever they are.
    #[test]
    fn a_difference_has_both_texts() {
        let mut state = 7_u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..500 {
            let mut text = || (0..next(4)).map(|_| ["a", "b", "c"][next(3) as usize]).collect::<Vec<_>>();
            let (old, new) = (text(), text());
            let found = unified(&old.join("\n"), &new.join("\n"));
            let of = |other: char| {
                let lines = found.iter().filter(|line| !line.starts_with("@@") && !line.starts_with(other));
                lines.map(|line| &line[1..]).collect::<Vec<_>>()
            };
            if old != new {
                // No text here is longer than the lines around a difference.
                assert_eq!((of('+'), of('-')), (old.clone(), new.clone()), "{found:?}");
            }
            assert_eq!(found.is_empty(), old == new);
        }
    }
}
