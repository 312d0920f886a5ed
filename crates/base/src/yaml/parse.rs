//! Parses text into trees, within limits. It reports all syntax errors of a file at once.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span as Position, StrInput, Tag};

use super::{Entry, Mapping, Node, Scalar, ScalarType, Value, scalar};
use crate::limits::{
    MAX_FILE_BYTES, MAX_YAML_ALIAS_NODES, MAX_YAML_BYTES_AGAIN, MAX_YAML_DEPTH, MAX_YAML_FLOW_DEDENTS,
    MAX_YAML_FLOW_PARTS, MAX_YAML_NODES, MAX_YAML_SYNTAX_ERRORS,
};
use crate::{Diagnostic, Diagnostics, Span};

/// The contents of a file.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The documents that could be read.
    pub documents: Vec<Node>,
    /// Documents that could not be read, each with its first line and the line after its last.
    pub broken: Vec<Range<u32>>,
    /// Why they could not be read.
    pub diagnostics: Diagnostics,
}

/// Reads all documents of a file. A document with an error is left out, and reading goes on after the next `---`. Empty
/// documents are left out silently.
pub fn parse(file: &Arc<str>, text: &str) -> (Vec<Node>, Diagnostics) {
    let Parsed { documents, diagnostics, .. } = parse_all(file, text);
    (documents, diagnostics)
}

/// Limits of one file.
pub(super) struct Limits {
    /// Number of nodes.
    pub nodes: usize,
    /// Number of bytes that are read again because of lines that stand too far left.
    pub bytes_again: usize,
    /// Number of parts of lists and mappings in brackets.
    pub flow_parts: usize,
}

pub(super) const LIMITS: Limits =
    Limits { nodes: MAX_YAML_NODES, bytes_again: MAX_YAML_BYTES_AGAIN, flow_parts: MAX_YAML_FLOW_PARTS };

/// Like [`parse`], and also returns where the unreadable documents are.
pub fn parse_all(file: &Arc<str>, text: &str) -> Parsed {
    parse_as(file, text, Dialect::Kubernetes, &LIMITS)
}

/// Like [`parse`], with what Envoy's reader accepts besides: the last of several values of one key counts (a warning), and an entry whose
/// key has the tag `!ignore` is left out.
pub fn parse_as_envoy(file: &Arc<str>, text: &str) -> (Vec<Node>, Diagnostics) {
    let Parsed { documents, diagnostics, .. } = parse_as(file, text, Dialect::Envoy, &LIMITS);
    (documents, diagnostics)
}

/// Whose reader decides where the specification leaves a choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    Kubernetes,
    Envoy,
}

pub(super) fn parse_as(file: &Arc<str>, text: &str, dialect: Dialect, limits: &Limits) -> Parsed {
    let mut parsed = Parsed::default();
    let Parsed { documents, broken, diagnostics } = &mut parsed;
    if text.len() > MAX_FILE_BYTES {
        diagnostics.push(
            Diagnostic::error(
                "file-too-large",
                Span::whole_file(file.clone()),
                format!("the file has {} bytes, the limit is {MAX_FILE_BYTES}", text.len()),
            )
            .with_help("split it into several files"),
        );
        broken.push(1..u32::MAX);
        return parsed;
    }
    if text.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count() > limits.flow_parts {
        let message = format!("the file has more than {} commas and opening brackets", limits.flow_parts);
        let whole = Span::whole_file(file.clone());
        diagnostics.push(Diagnostic::error("yaml-too-large", whole, message).with_help("split it into several files"));
        broken.push(1..u32::MAX);
        return parsed;
    }
    // A byte order mark is not content.
    let mut source = Source::new(text.strip_prefix('\u{feff}').unwrap_or(text), limits.bytes_again);
    let mut start = Start { byte: 0, line: 0 };
    let mut nodes = limits.nodes;
    while let Some(rest) = source.text.get(start.byte..) {
        let (before, nodes_before) = (documents.len(), nodes);
        let mut reader = Reader {
            file,
            first_line: start.line,
            ended: start.line,
            nodes,
            indented: &source.indented,
            parser: Parser::new_from_str(rest),
            dialect,
            warnings: Vec::new(),
        };
        let read = reader.documents(documents);
        let ended = reader.ended;
        let warnings = std::mem::take(&mut reader.warnings);
        nodes = reader.nodes;
        // Documents that have been read are not read again.
        start = source.start_of_document(start, ended);
        match read {
            Ok(()) => {
                diagnostics.extend(warnings);
                break;
            }
            Err(error) if source.indent(&error, &start) => {
                if start.line == ended {
                    diagnostics.extend(warnings.into_iter().filter(|found| found.span.line as usize <= ended))
                } else {
                    // It is not certain where the document begins, so all of them are read again.
                    documents.truncate(before);
                    nodes = nodes_before;
                }
            }
            Err(error) => {
                let line = error.diagnostic.span.line as usize;
                let next = next_document(&source.text, &start, line.saturating_sub(1))
                    .filter(|_| diagnostics.len() + 1 < MAX_YAML_SYNTAX_ERRORS);
                let number = |line: usize| u32::try_from(line).unwrap_or(u32::MAX);
                let end = next.as_ref().map_or(u32::MAX, |next| number(next.line.saturating_add(1)));
                broken.push(number(ended.saturating_add(1))..end);
                diagnostics.extend(warnings);
                diagnostics.push(match error.flow_indentation {
                    Some(_) => error.diagnostic.with_help(FLOW_HELP),
                    None => error.diagnostic,
                });
                match next {
                    Some(next) => start = next,
                    None => break,
                }
            }
        }
    }
    parsed
}

/// The way out for a line of a flow collection that is indented too little, where indenting it here would cost too much.
const FLOW_HELP: &str =
    "indent every line of a list or mapping in brackets, the closing bracket too, more than the key before it";

/// How many spaces are inserted before a line of a flow collection that is indented too little; more than any real
/// indentation.
const FLOW_INDENT: usize = MAX_YAML_DEPTH * 16;

/// The text, in which lines of flow collections are indented further where the parser requires it.
///
/// The specification requires such lines, closing brackets included, to be indented more than the block around them.
/// Manifests often have `]` in the column of the key, and Kubernetes' own parser accepts that.
struct Source<'a> {
    text: Cow<'a, str>,
    /// Lines (from 1) that have been indented by [`FLOW_INDENT`].
    indented: BTreeSet<usize>,
    /// How many bytes may be read again because of such lines.
    again: usize,
}

impl<'a> Source<'a> {
    fn new(text: &'a str, again: usize) -> Self {
        Self { text: Cow::Borrowed(text), indented: BTreeSet::new(), again }
    }

    /// If the error is about the indentation of a line, indents that line, so that the document at `start` can be read again.
    /// Returns false if that cannot help, or costs too much.
    fn indent(&mut self, error: &Failure, start: &Start) -> bool {
        let Some(line) = error.flow_indentation else { return false };
        if self.indented.len() >= MAX_YAML_FLOW_DEDENTS || self.indented.contains(&line) {
            return false;
        }
        let offset: usize = self.text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        // What has been inserted is skipped quickly.
        let between = self.indented.iter().filter(|&&indented| indented > start.line && indented < line);
        let inserted = FLOW_INDENT * between.count();
        let again = offset.saturating_sub(start.byte).saturating_sub(inserted);
        let Some(left) = self.again.checked_sub(again) else { return false };
        self.again = left;
        self.indented.insert(line);
        self.text.to_mut().insert_str(offset, &" ".repeat(FLOW_INDENT));
        true
    }

    /// Returns where the document begins that has `lines` lines before it, if that is certain; otherwise `last`.
    fn start_of_document(&self, last: Start, lines: usize) -> Start {
        let rest = self.text.get(last.byte..).unwrap_or_default();
        let before = || rest.split_inclusive('\n').take(lines.saturating_sub(last.line));
        let byte = last.byte + before().map(str::len).sum::<usize>();
        // To the parser a carriage return alone ends a line, too.
        let counts_alike = before().all(|line| !line.trim_end_matches(['\r', '\n']).contains('\r'));
        if counts_alike && self.text.get(byte..).is_some_and(is_marker) { Start { byte, line: lines } } else { last }
    }
}

/// Reads the documents in a text that itself is a YAML value, such as an entry of a ConfigMap. Positions are those of the
/// outer file, exact by line for a block (`|`) and by value for other texts.
pub fn parse_within(span: &Span, text: &str) -> (Vec<Node>, Diagnostics) {
    let (mut documents, mut diagnostics) = parse(&span.file, text);
    let is_block = span.end_line > span.line;
    let place = |inner: &mut Span| {
        *inner = if is_block {
            Span {
                line: inner.line.max(1).saturating_add(span.line.saturating_sub(1)),
                column: inner.column.saturating_add(span.column.saturating_sub(1)),
                end_line: inner.end_line.max(1).saturating_add(span.line.saturating_sub(1)),
                end_column: inner.end_column.saturating_add(span.column.saturating_sub(1)),
                file: inner.file.clone(),
            }
        } else {
            span.clone()
        }
    };
    documents.iter_mut().for_each(|document| document.visit_spans(&place));
    diagnostics = diagnostics
        .into_iter()
        .map(|mut d| {
            place(&mut d.span);
            d.related.iter_mut().for_each(|(span, _)| place(span));
            d
        })
        .collect();
    (documents, diagnostics)
}

/// Where parsing resumes: offset in bytes and the number of lines before it.
struct Start {
    byte: usize,
    line: usize,
}

/// The first `---` line after `last` that has at least `lines` lines before it. The parser notices an unclosed bracket
/// only at the next `---`, so reading resumes there.
fn next_document(text: &str, last: &Start, lines: usize) -> Option<Start> {
    let mut byte = last.byte;
    for (index, line) in text.get(last.byte..)?.split_inclusive('\n').enumerate() {
        let index = last.line + index;
        if index > last.line && index >= lines && is_marker(line) {
            return Some(Start { byte, line: index });
        }
        byte += line.len();
    }
    None
}

/// Whether a line separates documents.
fn is_marker(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

/// Boxed: the error path is rare and the type large.
type Fallible<T> = Result<T, Box<Failure>>;

/// Why a document cannot be read.
struct Failure {
    diagnostic: Diagnostic,
    /// The line (from 1) of a flow collection, if its indentation is the only mistake.
    flow_indentation: Option<usize>,
}

/// A failure that indentation cannot repair.
fn failed<T>(diagnostic: Diagnostic) -> Fallible<T> {
    Err(Box::new(diagnostic.into()))
}

impl From<Diagnostic> for Failure {
    fn from(diagnostic: Diagnostic) -> Self {
        Self { diagnostic, flow_indentation: None }
    }
}

struct Reader<'a> {
    file: &'a Arc<str>,
    /// Lines of the file before the text the parser sees.
    first_line: usize,
    /// Lines of the file before the document that is being read.
    ended: usize,
    /// How many nodes further documents of the file may have.
    nodes: usize,
    /// Lines of the file whose columns are [`FLOW_INDENT`] too large.
    indented: &'a BTreeSet<usize>,
    parser: Parser<'a, StrInput<'a>>,
    dialect: Dialect,
    /// What was accepted and is probably a mistake.
    warnings: Vec<Diagnostic>,
}

/// A collection whose end has not been reached.
struct Open {
    span: Span,
    anchor: usize,
    content: Content,
}

enum Content {
    Sequence(Vec<Node>),
    /// Entries so far and their names, merged mappings so far (with `<<`), and a key that waits for its value.
    Mapping {
        entries: Vec<Entry>,
        names: Names,
        merges: Vec<Node>,
        key: Option<Key>,
    },
}

/// A key that waits for its value.
enum Key {
    Name(Box<str>, Span),
    /// `<<`
    Merge,
    /// One with the tag `!ignore`.
    Ignored,
}

/// The hashes of the names of a mapping, which take less memory than the names. Two names may have one hash, but nobody can
/// choose them so.
#[derive(Default)]
struct Names {
    hashes: HashSet<u64>,
    hasher: RandomState,
}

impl Names {
    /// Adds a name. If this returns false, the mapping has it already, in all probability.
    fn insert(&mut self, name: &str) -> bool {
        self.hashes.insert(self.hasher.hash_one(name))
    }
}

/// The remaining limits of one document.
struct Budget {
    nodes: usize,
    alias_nodes: usize,
}

impl Reader<'_> {
    fn documents(&mut self, documents: &mut Vec<Node>) -> Fallible<()> {
        while let Some((event, span)) = self.next()? {
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) => {
                    self.ended = lines_before(&span);
                    let node = self.document()?;
                    if !node.is_null() {
                        documents.push(node);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Fallible<Option<(Event<'_>, Span)>> {
        match self.parser.next_event() {
            None => Ok(None),
            Some(Ok((event, position))) => {
                let span = to_span(self.file, self.first_line, self.indented, position);
                Ok(Some((event, span)))
            }
            Some(Err(error)) => {
                let at = *error.marker();
                let span = to_span(self.file, self.first_line, self.indented, Position::empty(at));
                let message = format!("this is not valid YAML: {}", error.info());
                let flow = ["invalid indentation", "invalid indentation in flow construct"].contains(&error.info());
                Err(Box::new(Failure {
                    diagnostic: Diagnostic::error("yaml-syntax", span, message).with_help(syntax_help(error.info())),
                    flow_indentation: flow.then(|| self.first_line + at.line()),
                }))
            }
        }
    }

    /// Builds one document without recursion, so that deep nesting does not use up the stack.
    fn document(&mut self) -> Fallible<Node> {
        let mut budget = Budget { nodes: self.nodes, alias_nodes: MAX_YAML_ALIAS_NODES };
        let mut anchors: HashMap<usize, Node> = HashMap::new();
        let mut open: Vec<Open> = Vec::new();
        let mut root = None;
        let is_envoys = self.dialect == Dialect::Envoy;
        while let Some((event, span)) = self.next()? {
            let (node, anchor) = match event {
                Event::DocumentEnd | Event::StreamEnd => {
                    self.ended = lines_before(&span);
                    break;
                }
                Event::MappingStart(anchor, tag) => {
                    refuse_tag(tag.as_deref(), &span, "map")?;
                    let content = Content::Mapping {
                        entries: Vec::new(),
                        names: Names::default(),
                        merges: Vec::new(),
                        key: None,
                    };
                    push_open(&mut open, Open { span, anchor, content })?;
                    continue;
                }
                Event::SequenceStart(anchor, tag) => {
                    refuse_tag(tag.as_deref(), &span, "seq")?;
                    push_open(&mut open, Open { span, anchor, content: Content::Sequence(Vec::new()) })?;
                    continue;
                }
                Event::MappingEnd | Event::SequenceEnd => match open.pop() {
                    Some(done) => (close(done.content, done.span, &mut budget)?, done.anchor),
                    None => continue,
                },
                Event::Scalar(_, _, _, Some(tag)) if is_envoys && is_ignored(&tag, &mut open) => continue,
                Event::Scalar(text, style, anchor, tag) => {
                    (Node { value: Value::Scalar(read_scalar(&text, style, tag.as_deref(), &span)?), span }, anchor)
                }
                Event::Alias(anchor) => (resolve_alias(&anchors, anchor, &span, &mut budget)?, 0),
                Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => continue,
            };
            budget.nodes = budget.nodes.checked_sub(1).ok_or_else(|| too_many_nodes(&node.span))?;
            if anchor > 0 {
                anchors.insert(anchor, node.clone());
                let copied = count_nodes(&node);
                budget.nodes = budget.nodes.checked_sub(copied).ok_or_else(|| too_many_nodes(&node.span))?;
            }
            match open.last_mut() {
                Some(parent) => self.add(parent, node)?,
                None => root = Some(node),
            }
        }
        self.nodes = budget.nodes;
        let empty = || Value::Scalar(Scalar { text: "".into(), quoted: false, ty: ScalarType::Null });
        Ok(root.unwrap_or_else(|| Node { value: empty(), span: Span::whole_file(self.file.clone()) }))
    }

    /// Puts a finished node into the collection around it.
    fn add(&mut self, parent: &mut Open, node: Node) -> Fallible<()> {
        match &mut parent.content {
            Content::Sequence(items) => {
                if items.is_empty() && parent.span.end_line == parent.span.line {
                    parent.span = joined(&parent.span, &node.span);
                }
                items.push(node);
            }
            Content::Mapping { entries, names, merges, key } => match key.take() {
                None => {
                    let Value::Scalar(scalar) = node.value else {
                        return failed(
                            Diagnostic::error("yaml-key", node.span, "a key of a mapping must be plain text")
                                .with_help(
                                    "lists and mappings cannot be keys; did you forget quotes around `{` or `[`?",
                                ),
                        );
                    };
                    if entries.is_empty() {
                        parent.span = joined(&parent.span, &node.span);
                    }
                    // Looking it up in the entries would take time quadratic in their number.
                    if !names.insert(&scalar.text) {
                        self.repeated(entries, &scalar.text, &node.span)?;
                    }
                    *key = Some(match &*scalar.text {
                        "<<" => Key::Merge,
                        _ => Key::Name(scalar.text, node.span),
                    });
                }
                Some(Key::Merge) => merges.push(node),
                Some(Key::Ignored) => {}
                Some(Key::Name(name, key_span)) => entries.push(Entry { key: name, key_span, value: node }),
            },
        }
        Ok(())
    }

    /// A key that the mapping has already.
    fn repeated(&mut self, entries: &mut Vec<Entry>, name: &str, span: &Span) -> Fallible<()> {
        // `<<` may come several times.
        let Some(at) = entries.iter().position(|entry| &*entry.key == name) else { return Ok(()) };
        let text = format!("`{name}` appears twice in this mapping");
        if self.dialect == Dialect::Envoy {
            let first = entries.remove(at);
            let warning = Diagnostic::warning(
                "duplicate-key",
                span.clone(),
                format!("{text}; the last one counts, as with Envoy"),
            );
            self.warnings.push(warning.with_help("remove one of the two").with_related(first.key_span, "first here"));
            return Ok(());
        }
        let first = entries.get(at).map_or_else(|| span.clone(), |entry| entry.key_span.clone());
        failed(
            Diagnostic::error("duplicate-key", span.clone(), text)
                .with_help("remove one of the two")
                .with_related(first, "first here"),
        )
    }
}

/// Whether the scalar with this tag is a key whose entry is to be left out.
fn is_ignored(tag: &Tag, open: &mut [Open]) -> bool {
    match open.last_mut() {
        Some(Open { content: Content::Mapping { key: key @ None, .. }, .. }) if shown(tag) == "!ignore" => {
            *key = Some(Key::Ignored);
            true
        }
        _ => false,
    }
}

fn lines_before(span: &Span) -> usize {
    (span.line as usize).saturating_sub(1)
}

fn push_open(open: &mut Vec<Open>, collection: Open) -> Fallible<()> {
    if open.len() >= MAX_YAML_DEPTH {
        let message = format!("nested more than {MAX_YAML_DEPTH} levels deep");
        return failed(Diagnostic::error("yaml-too-deep", collection.span, message));
    }
    open.push(collection);
    Ok(())
}

fn close(content: Content, span: Span, budget: &mut Budget) -> Fallible<Node> {
    let value = match content {
        Content::Sequence(items) => Value::Sequence(items),
        Content::Mapping { mut entries, mut names, merges, .. } => {
            for source in merges {
                merge(&mut entries, &mut names, source, budget)?;
            }
            Value::Mapping(Mapping(entries))
        }
    };
    Ok(Node { value, span })
}

/// The merge key `<<`: adds the entries of other mappings whose names this mapping does not have. Of several sources
/// the first wins.
fn merge(entries: &mut Vec<Entry>, names: &mut Names, source: Node, budget: &mut Budget) -> Fallible<()> {
    let mappings = match source.value {
        Value::Mapping(mapping) => vec![mapping],
        Value::Sequence(items) if items.iter().all(|item| item.as_mapping().is_some()) => items
            .into_iter()
            .filter_map(|item| if let Value::Mapping(m) = item.value { Some(m) } else { None })
            .collect(),
        _ => {
            return failed(
                Diagnostic::error("yaml-merge", source.span, "`<<` merges a mapping or a list of mappings")
                    .with_help("write `<<: *name` where `&name` marks a mapping"),
            );
        }
    };
    for entry in mappings.into_iter().flat_map(|m| m.0) {
        budget.alias_nodes = budget.alias_nodes.checked_sub(1).ok_or_else(|| too_many_aliases(&entry.key_span))?;
        if names.insert(&entry.key) {
            entries.push(entry);
        }
    }
    Ok(())
}

/// Copies the value that an anchor marks. The copy is charged to the budget before it is made, because nested aliases
/// grow exponentially.
fn resolve_alias(anchors: &HashMap<usize, Node>, anchor: usize, span: &Span, budget: &mut Budget) -> Fallible<Node> {
    let Some(node) = anchors.get(&anchor) else {
        return failed(
            Diagnostic::error("yaml-alias", span.clone(), "this alias refers to a value that contains it")
                .with_help("an anchor can be used only after the value it marks is complete"),
        );
    };
    budget.alias_nodes = budget.alias_nodes.checked_sub(count_nodes(node)).ok_or_else(|| too_many_aliases(span))?;
    Ok(node.clone())
}

fn count_nodes(node: &Node) -> usize {
    1 + match &node.value {
        Value::Scalar(_) => 0,
        Value::Sequence(items) => items.iter().map(count_nodes).sum(),
        Value::Mapping(mapping) => mapping.iter().map(|e| count_nodes(&e.value)).sum(),
    }
}

fn read_scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, span: &Span) -> Fallible<Scalar> {
    let quoted = style != ScalarStyle::Plain;
    let mut ty = if quoted { ScalarType::Str } else { scalar::resolve(text) };
    match tag {
        None => {}
        Some(tag) if is_core(tag, "str") || (tag.handle.is_empty() && tag.suffix == "!") => ty = ScalarType::Str,
        Some(tag) if ["int", "bool", "float", "null"].iter().any(|name| is_core(tag, name)) => {
            ty = scalar::resolve(text);
        }
        Some(_) => refuse_tag(tag, span, "str")?,
    }
    Ok(Scalar { text: text.into(), quoted, ty })
}

fn refuse_tag(tag: Option<&Tag>, span: &Span, core: &str) -> Fallible<()> {
    match tag {
        Some(tag) if !is_core(tag, core) => failed(
            Diagnostic::error("yaml-tag", span.clone(), format!("the tag `{}` is not supported here", shown(tag)))
                .with_help("remove the tag"),
        ),
        _ => Ok(()),
    }
}

/// The tag as it is written in YAML.
fn shown(tag: &Tag) -> String {
    if tag.is_yaml_core_schema() { format!("!!{}", tag.suffix) } else { tag.to_string() }
}

fn is_core(tag: &Tag, name: &str) -> bool {
    tag.is_yaml_core_schema() && tag.suffix == name
}

fn too_many_nodes(span: &Span) -> Box<Failure> {
    let message = format!("the file has more than {MAX_YAML_NODES} values");
    let diagnostic = Diagnostic::error("yaml-too-large", span.clone(), message);
    Box::new(diagnostic.with_help("split it into several files").into())
}

fn too_many_aliases(span: &Span) -> Box<Failure> {
    let message = format!("aliases of this document copy more than {MAX_YAML_ALIAS_NODES} values");
    let diagnostic = Diagnostic::error("yaml-alias-limit", span.clone(), message);
    Box::new(diagnostic.with_help("write the values out, or use fewer aliases").into())
}

fn syntax_help(info: &str) -> &'static str {
    let has = |part: &str| info.contains(part);
    if has("tabs ") {
        "indent with spaces"
    } else if has("unprintable") {
        "remove this character; it may not be visible in an editor"
    } else if has("recursion") {
        "use fewer levels of lists and mappings"
    } else if has("unexpected character") {
        "put text that begins with this character in quotes"
    } else if has("quoted scalar") {
        "check that the quote that opens here is closed; continuation lines must be indented"
    } else if has("mapping values are not allowed") || has("simple key") {
        "check the indentation of this line and the `:` before it; quote a text that contains `: `"
    } else if has("anchor") || has("alias") {
        "text that begins with `*`, such as a host, needs quotes; an alias `*name` needs an anchor `&name` before it"
    } else if has("block") || has("indent") {
        "check the indentation: entries of one mapping or list start in the same column"
    } else if has("flow") {
        "check that every `[` and `{` is closed, and that entries are separated by `,`"
    } else {
        "check quotes, indentation and brackets here and on the line before"
    }
}

fn joined(start: &Span, end: &Span) -> Span {
    if (end.line, end.end_line) == (start.line, start.line) {
        Span { end_line: end.end_line, end_column: end.end_column, ..start.clone() }
    } else {
        start.clone()
    }
}

fn to_span(file: &Arc<str>, first_line: usize, indented: &BTreeSet<usize>, position: Position) -> Span {
    let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let column = |at: Marker| {
        if indented.contains(&(first_line + at.line())) { at.col().saturating_sub(FLOW_INDENT) } else { at.col() }
    };
    Span {
        file: file.clone(),
        line: number(first_line.saturating_add(position.start.line())),
        column: number(column(position.start).saturating_add(1)),
        end_line: number(first_line.saturating_add(position.end.line())),
        end_column: number(column(position.end).saturating_add(1)),
    }
}
