//! Diagnostics as text with the offending lines of source.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Group, Level, Origin, Renderer, Snippet};

use crate::{Diagnostic, Diagnostics, Severity, Span, terminal};

/// The texts that diagnostics point into, by path.
#[derive(Debug, Clone, Default)]
pub struct Sources(BTreeMap<Arc<str>, Arc<str>>);

impl Sources {
    /// No texts: diagnostics show their position only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds or replaces the text of a file.
    pub fn insert(&mut self, path: impl Into<Arc<str>>, text: impl Into<Arc<str>>) {
        self.0.insert(path.into(), text.into());
    }

    /// The text of a file.
    pub fn text(&self, path: &str) -> Option<&str> {
        self.0.get(path).map(|text| &**text)
    }
}

impl<P: Into<Arc<str>>, T: Into<Arc<str>>> FromIterator<(P, T)> for Sources {
    fn from_iter<I: IntoIterator<Item = (P, T)>>(iter: I) -> Self {
        Self(iter.into_iter().map(|(p, t)| (p.into(), t.into())).collect())
    }
}

impl Diagnostics {
    /// All findings, each with its source lines and help, separated by empty lines; with ANSI colours if asked.
    pub fn render(&self, sources: &Sources, colour: bool) -> String {
        let mut text = String::new();
        for diagnostic in self {
            text.push_str(&diagnostic.render(sources, colour));
            text.push_str("\n\n");
        }
        text
    }

    /// Splits the findings into those of severity info, and all others.
    pub fn split_infos(self) -> (Self, Self) {
        let (mut infos, mut others) = (Self::new(), Self::new());
        for finding in self {
            if finding.severity == Severity::Info { &mut infos } else { &mut others }.push(finding);
        }
        (infos, others)
    }

    /// One line for all findings with the same message, with the first position. A cluster's files contain much that
    /// has no effect here, and that must not hide what is wrong with them.
    pub fn in_short(&self) -> String {
        let mut places: BTreeMap<(&str, &str, &str), Vec<&Span>> = BTreeMap::new();
        for finding in self {
            let said = (finding.severity.as_str(), finding.code, &*finding.message);
            places.entry(said).or_default().push(&finding.span);
        }
        let mut text = String::new();
        for ((severity, code, message), spans) in &places {
            let first = spans.first().map(ToString::to_string).unwrap_or_default();
            let others = match spans.len().saturating_sub(1) {
                0 => String::new(),
                1 => " and 1 more place".to_owned(),
                others => format!(" and {others} more places"),
            };
            text.push_str(&format!("{severity}[{code}]: {message} ({first}{others})\n"));
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text
    }
}

impl Diagnostic {
    /// The finding with its source lines and help; with ANSI colours if asked.
    pub fn render(&self, sources: &Sources, colour: bool) -> String {
        let level = match self.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Info => Level::INFO,
        };
        let mut group = Group::with_title(level.primary_title(self.message.as_str()).id(self.code));
        group = place(group, sources, &self.span, None);
        for (span, label) in &self.related {
            group = place(group, sources, span, Some(label));
        }
        if let Some(help) = &self.help {
            group = group.element(Level::HELP.message(help.as_str()));
        }
        let styled = || match terminal::columns() {
            Some(columns) => Renderer::styled().term_width(columns),
            None => Renderer::styled(),
        };
        let renderer = if colour { styled() } else { Renderer::plain() };
        renderer.decor_style(DecorStyle::Unicode).render(&[group])
    }
}

/// Adds the source lines around a span, or its bare position where the text is not at hand.
fn place<'a>(group: Group<'a>, sources: &'a Sources, span: &'a Span, label: Option<&'a str>) -> Group<'a> {
    let excerpt = sources.text(&span.file).and_then(|text| Some((text, byte_range(text, span)?)));
    match excerpt {
        Some((text, range)) => {
            let kind = if label.is_some() { AnnotationKind::Context } else { AnnotationKind::Primary };
            let mut annotation = kind.span(range);
            if let Some(label) = label {
                annotation = annotation.label(label);
            }
            group.element(Snippet::source(text).path(&*span.file).fold(true).annotation(annotation))
        }
        None => {
            let mut origin = Origin::path(&*span.file);
            if span.line > 0 {
                origin = origin.line(span.line as usize).char_column(span.column as usize);
            }
            let group = group.element(origin);
            match label {
                Some(label) => group.element(Level::NOTE.message(label)),
                None => group,
            }
        }
    }
}

/// Where a span lies in the text, in bytes; cut at the end of its first line, which is what a reader needs to see.
fn byte_range(text: &str, span: &Span) -> Option<Range<usize>> {
    let wanted = (span.line as usize).checked_sub(1)?;
    let mut offset = 0;
    for (index, line) in text.split_inclusive('\n').enumerate() {
        if index == wanted {
            let content = line.trim_end_matches(['\n', '\r']);
            let byte_of = |column: u32| {
                let chars = (column as usize).saturating_sub(1);
                content.char_indices().nth(chars).map_or(content.len(), |(byte, _)| byte)
            };
            let start = byte_of(span.column);
            let end = if span.end_line == span.line { byte_of(span.end_column) } else { content.len() };
            return Some(offset + start..offset + end.max(start));
        }
        offset += line.len();
    }
    // Just after the last line: an unfinished document.
    Some(text.len()..text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(finding: &Diagnostic, sources: &Sources, expected: &str) {
        let rendered = finding.render(sources, false);
        assert_eq!(rendered.trim(), expected.trim(), "\n{rendered}");
    }

    #[test]
    fn shows_the_line_and_the_way_out() {
        let sources = Sources::from_iter([("a.yaml", "kind: Service\nspce: {}\n")]);
        let span = Span { file: "a.yaml".into(), line: 2, column: 1, end_line: 2, end_column: 5 };
        let finding =
            Diagnostic::error("unknown-field", span, "unknown field `spce`").with_help("did you mean `spec`?");
        check(
            &finding,
            &sources,
            "
error[unknown-field]: unknown field `spce`
  ╭▸ a.yaml:2:1
  │
2 │ spce: {}
  │ ━━━━
  │
  ╰ help: did you mean `spec`?",
        );
        assert!(finding.render(&sources, true).contains("\u{1b}["));
    }

    #[test]
    fn shows_other_files_that_take_part() {
        let sources = Sources::from_iter([("a.yaml", "name: x\n"), ("b.yaml", "\nname: x\n")]);
        let finding = Diagnostic::error("duplicate-object", Span::at("b.yaml", 2, 7), "`x` is defined twice")
            .with_related(Span::at("a.yaml", 1, 7), "first defined here");
        check(
            &finding,
            &sources,
            "
error[duplicate-object]: `x` is defined twice
  ╭▸ b.yaml:2:7
  │
2 │ name: x
  │       ━
  │
  ⸬  a.yaml:1:7
  │
1 │ name: x
  ╰╴      ─ first defined here",
        );
    }

    #[test]
    fn never_points_outside_the_text() {
        let text = "é: 1\nb";
        for line in 0..5 {
            for column in 0..9 {
                let span = Span { file: "a".into(), line, column, end_line: line, end_column: column + 3 };
                if let Some(range) = byte_range(text, &span) {
                    assert!(text.get(range).is_some(), "{span}");
                }
            }
        }
    }

    #[test]
    fn a_file_without_text_shows_its_name() {
        let finding =
            Diagnostic::error("unreadable-file", Span::whole_file("b.yaml"), "cannot read: permission denied");
        check(
            &finding,
            &Sources::new(),
            "
error[unreadable-file]: cannot read: permission denied
 ─▸ b.yaml",
        );
    }
}
