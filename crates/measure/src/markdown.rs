//! Tables of Markdown, which read well on a terminal, too.

use std::fmt::Write;

/// A table whose columns line up; all but the first are to the right.
pub fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([head_width(heads, column), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = String>| {
        for (column, cell) in cells.enumerate() {
            let pad = " ".repeat(widths.get(column).map_or(0, |width| width.saturating_sub(cell.chars().count())));
            let _ = if column == 0 { write!(text, "| {cell}{pad} ") } else { write!(text, "| {pad}{cell} ") };
        }
        text.push_str("|\n");
    };
    line(&mut heads.iter().map(|head| (*head).to_owned()));
    line(&mut widths.iter().enumerate().map(|(column, width)| {
        let dashes = "-".repeat(width - 1);
        if column == 0 { format!("{dashes}-") } else { format!("{dashes}:") }
    }));
    for row in rows {
        line(&mut row.iter().cloned());
    }
    text
}

fn head_width(heads: &[&str], column: usize) -> usize {
    heads.get(column).map_or(0, |head| head.chars().count())
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn table_lines_up() {
        let rows = vec![vec!["relay".to_owned(), "9.1".to_owned()]];
        assert_eq!(table(&["peer", "µs"], &rows), "| peer  |  µs |\n| ----- | --: |\n| relay | 9.1 |\n");
    }
}
