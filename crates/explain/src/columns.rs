//! Tables and lines for people, as wide as their terminal.

/// Spaces before what does not fit into the first line.
const INDENT: usize = 4;

/// Columns, two spaces apart.
pub(crate) fn columns(rows: &[Vec<String>], width: usize) -> String {
    columns_within(rows, 2, width)
}

/// Columns, `gap` spaces apart. Where they do not fit into `width`, they are two spaces apart, and each row takes as
/// many lines as it needs, which are the same for all rows.
pub fn columns_within(rows: &[Vec<String>], gap: usize, width: usize) -> String {
    let count = rows.first().map_or(0, Vec::len);
    let widest =
        |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(widest).collect();
    let whole = widths.iter().sum::<usize>() + gap * count.saturating_sub(1);
    let (gap, lines) =
        if whole <= width { (gap, Vec::from_iter(std::iter::once(0..count))) } else { (2, divided(&widths, width)) };
    let mut out = String::new();
    for row in rows {
        for (number, columns) in lines.iter().enumerate() {
            let cells = columns.clone().filter_map(|at| Some(format!("{:<1$}", row.get(at)?, widths.get(at)?)));
            let line = cells.collect::<Vec<_>>().join(&" ".repeat(gap));
            let indent = if number == 0 { 0 } else { INDENT };
            // A row without these cells needs no line for them.
            if number == 0 || !line.trim().is_empty() {
                out.push_str(&format!("{}\n", format!("{}{line}", " ".repeat(indent)).trim_end()));
            }
        }
    }
    out
}

/// The columns of each line.
fn divided(widths: &[usize], width: usize) -> Vec<std::ops::Range<usize>> {
    let mut lines = Vec::new();
    let (mut start, mut used) = (0, 0);
    for (at, column) in widths.iter().enumerate() {
        if at > start && used + 2 + column > width {
            lines.push(start..at);
            (start, used) = (at, INDENT + column);
        } else {
            used += column + if at > start { 2 } else { 0 };
        }
    }
    lines.push(start..widths.len());
    lines
}

/// The lines of a text, divided between words where they are wider than `width`. What follows is indented by four spaces
/// more than the line.
pub fn filled(text: &str, width: usize) -> String {
    let mut out = String::new();
    for line in text.split_inclusive('\n') {
        let indent = line.chars().take_while(|letter| *letter == ' ').count() + INDENT;
        let (mut column, mut is_new) = (0, true);
        for word in line.trim_end().split_inclusive(' ') {
            let shown = word.trim_end().chars().count();
            if !is_new && column + shown > width && !word.trim().is_empty() {
                out.truncate(out.trim_end_matches(' ').len());
                out.push_str(&format!("\n{}", " ".repeat(indent)));
                column = indent;
            }
            out.push_str(word);
            column += word.chars().count();
            is_new = is_new && word.trim().is_empty();
        }
        out.truncate(out.trim_end_matches(' ').len());
        out.push_str(if line.ends_with('\n') { "\n" } else { "" });
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_is_too_wide_takes_several_lines() {
        let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
        let rows = [row(["NAME", "STATE", "AGE", "PROGRAM"]), row(["web-0.shop", "SYNCED", "1 ms", ""])];
        let check = |width: usize, expected: &str| assert_eq!(columns_within(&rows, 3, width), expected, "{width}");
        let wide = "NAME         STATE    AGE    PROGRAM\nweb-0.shop   SYNCED   1 ms\n";
        check(usize::MAX, wide);
        check(36, wide);
        check(35, "NAME        STATE   AGE   PROGRAM\nweb-0.shop  SYNCED  1 ms\n");
        check(24, "NAME        STATE   AGE\n    PROGRAM\nweb-0.shop  SYNCED  1 ms\n");
        check(18, "NAME        STATE\n    AGE   PROGRAM\nweb-0.shop  SYNCED\n    1 ms\n");
        check(3, "NAME\n    STATE\n    AGE\n    PROGRAM\nweb-0.shop\n    SYNCED\n    1 ms\n");
    }

    #[test]
    fn a_long_line_continues_below() {
        let check = |text: &str, width: usize, expected: &str| assert_eq!(filled(text, width), expected, "{width}");
        check("one two three\n", usize::MAX, "one two three\n");
        check("one two three\n", 7, "one two\n    three\n");
        check("  by generation 4: a,  b\nshort\n", 18, "  by generation 4:\n      a,  b\nshort\n");
        check("a-long-word", 3, "a-long-word");
        check("", 3, "");
    }
}
