//! Reads samples of the Prometheus text format, version 0.0.4.
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>

use std::borrow::Cow;

/// A sample: its name, its labels, its value.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Sample<'p> {
    /// The metric's name.
    pub(crate) name: &'p str,
    labels: Vec<Label<'p>>,
    /// The value.
    pub(crate) value: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct Label<'p> {
    name: &'p str,
    value: Cow<'p, str>,
}

impl Sample<'_> {
    /// The value of a label; empty if it has none.
    pub(crate) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|label| label.name == name).map_or("", |label| &label.value)
    }
}

/// The samples of a page. Lines that are none are passed over.
pub(crate) fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter(|line| !line.starts_with('#')).filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Vec::new(), rest),
    };
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// The labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Option<(Vec<Label<'_>>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (name, quoted) = rest.split_once("=\"")?;
        let (value, after) = value(quoted)?;
        labels.push(Label { name: name.trim(), value });
        rest = after;
    }
}

/// A value up to its closing quote, unescaped, and what follows it.
fn value(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let plain = text.find(['"', '\\'])?;
    if text[plain..].starts_with('"') {
        return Some((Cow::Borrowed(&text[..plain]), &text[plain + 1..]));
    }
    let (mut out, mut chars) = (String::new(), text.char_indices());
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((Cow::Owned(out), &text[at + 1..])),
            '\\' => match chars.next()?.1 {
                'n' => out.push('\n'),
                other => out.push(other),
            },
            other => out.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_and_anything_else_is_passed_over() {
        let check = |line: &str, expected: Option<(&str, &str, f64)>| {
            let found = samples(line).next();
            let found = found.as_ref().map(|sample| (sample.name, sample.label("a"), sample.value));
            assert_eq!(found, expected, "{line}");
        };
        check("up 1", Some(("up", "", 1.0)));
        check("x{a=\"b\",c=\"d\"} 2.5 1700000000", Some(("x", "b", 2.5)));
        check("x{c=\"}\",a=\"q\\\"\\\\\\nz,}\",} 3", Some(("x", "q\"\\\nz,}", 3.0)));
        check("x{a=\"<img src=x onerror=alert(1)>\"} 1", Some(("x", "<img src=x onerror=alert(1)>", 1.0)));
        check("x{} +Inf", Some(("x", "", f64::INFINITY)));
        for none in ["", "# TYPE x counter", "x{a=\"b} 1", "x{a=\"b\\", "x{a} 1", "x", "x{a=\"b\"}", "x y"] {
            check(none, None);
        }
    }
}
