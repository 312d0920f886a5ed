//! Files of other tools beside manifests: data, templates. They are not configuration, and must not stop a mesh.

use std::sync::Arc;

use evenkeel_base::limits::MAX_FILE_BYTES;
use evenkeel_base::yaml::{self, Node, Parsed, Value};
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Span};

use crate::{Kind, refused};

/// The code of the finding that a file has no Kubernetes objects and is skipped.
pub const SKIPPED: &str = "no-kubernetes-object";
/// Fields by which a document is recognized as an object, whatever else it lacks.
const OBJECT_FIELDS: [&str; 3] = ["kind", "metadata", "spec"];

/// Errors of texts that other programs read without one: tags of their own, and keys of which the last counts.
const OF_OTHER_READERS: [&str; 2] = ["yaml-tag", "duplicate-key"];

/// Whether a document is an object, whatever it lacks. Without an `apiVersion` it needs a known kind and a name: data and
/// settings of programs have fields of these names, too.
fn is_object(document: &Node) -> bool {
    let known = |kind: &str| Kind::ALL.iter().any(|known| known.as_str() == kind);
    let is_complete = || {
        let kind = document.get("kind").and_then(Node::as_str);
        let named = document.at_path("metadata.name").is_some();
        match (kind, document.get("apiVersion")) {
            (Some(kind), None) if !known(kind) || !named => false,
            _ => OBJECT_FIELDS.iter().any(|field| document.get(field).is_some()),
        }
    };
    refused::guards(document) || is_complete()
}

/// Returns a note if no document of a file looks like a Kubernetes object. Files of other tools (a compose file, a
/// kustomization, a chart's values) are often beside manifests. `closes`: a document that cannot be read may protect something.
pub(crate) fn foreign_file(
    path: &str,
    text: &str,
    documents: &[Node],
    found: &Diagnostics,
    closes: bool,
) -> Option<Diagnostic> {
    let errors = || found.iter().filter(|finding| finding.severity == Severity::Error);
    // Where a part cannot be read, it may be an object.
    let has_broken = errors().next().is_some();
    let is_of_others =
        || errors().all(|finding| OF_OTHER_READERS.contains(&finding.code)) && !text.contains("apiVersion");
    if documents.iter().any(is_object) || has_broken && (closes || !is_of_others()) {
        return None;
    }
    match documents.first() {
        None if !has_broken => return None,
        // A single text is more likely a mistake than another tool's file.
        Some(Node { value: Value::Scalar(_), .. }) if documents.len() == 1 && !documents.iter().all(Node::is_null) => {
            return None;
        }
        _ => {}
    }
    let message = "the file contains no Kubernetes object and is skipped";
    let finding = Diagnostic::new(Severity::Info, SKIPPED, Span::whole_file(path), message);
    Some(finding.with_help("an object has `apiVersion`, `kind` and `metadata`; `.evenkeelignore` silences this note"))
}

/// Reads a file. A `.json` file may have several values one after the other, as Kubernetes' own tools read it (one a line
/// is common in data), which is not YAML.
pub(crate) fn parse(path: &Arc<str>, text: &str) -> Parsed {
    let parsed = yaml::parse_all(path, text);
    if !path.ends_with(".json") || !parsed.diagnostics.has_errors() || text.len() > MAX_FILE_BYTES {
        return parsed;
    }
    separated(text).map_or(parsed, |text| yaml::parse_all(path, &text))
}

/// A text of several JSON values, each beginning a line, as documents of YAML; `None` if it is something else. Lines stay
/// where they are.
fn separated(text: &str) -> Option<String> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    let (mut separated, mut copied, mut values) = (String::with_capacity(text.len()), 0, 0);
    loop {
        let rest = text.get(stream.byte_offset()..)?;
        let start = stream.byte_offset() + (rest.len() - rest.trim_start().len());
        let Some(value) = stream.next() else { break };
        value.ok()?;
        let before = text.get(..start)?;
        if !before.is_empty() && !before.ends_with('\n') {
            return None;
        }
        separated.push_str(text.get(copied..start)?);
        separated.push_str("--- ");
        (copied, values) = (start, values + 1);
    }
    separated.push_str(text.get(copied..)?);
    (values > 1).then_some(separated)
}

/// A tool whose templates become manifests.
struct Engine {
    name: &'static str,
    /// Parts of a text that only its templates have.
    marks: &'static [&'static str],
    help: &'static str,
}

const ENGINES: &[Engine] = &[
    Engine {
        name: "Helm",
        marks: &[
            "{{ .Values",
            "{{- .Values",
            "{{.Values",
            "{{ .Release",
            "{{- .Release",
            "{{.Release",
            "{{ .Chart",
            "{{.Chart",
            "{{ include ",
            "{{- include ",
            "{{ template ",
            "{{- template ",
            "{{ if ",
            "{{- if ",
            "{{if ",
            "{{ range ",
            "{{- range ",
            "{{ with ",
            "{{- with ",
            "{{ end ",
            "{{- end ",
            "{{end}",
            "{{ toYaml ",
            "{{- toYaml ",
            "{{ $",
            "{{- $",
            "{{/*",
            "{{- /*",
            "{{ define ",
            "{{- define ",
        ],
        help: "render it (`helm template NAME CHART > FILE`), and name the chart in `.evenkeelignore`",
    },
    Engine {
        name: "Jinja",
        marks: &["{% ", "{%- ", "{# "],
        help: "render it, and name the template in `.evenkeelignore`",
    },
    Engine {
        name: "ytt",
        marks: &["#@ load(", "#@ data.", "#@ if ", "#@ for ", "#@ def ", "#@overlay/", "#@data/values", "#@ end"],
        help: "render it (`ytt -f DIR > FILE`), and name the templates in `.evenkeelignore`",
    },
];

/// Begins a value of Helm's and Jinja's templates, in a text that is not YAML for that reason.
const VALUE: &str = "{{ ";

/// Returns a warning if a file with errors is a template: its text is for another tool, not for the mesh.
pub(crate) fn template(path: &Arc<str>, text: &str, found: &Diagnostics) -> Option<Diagnostic> {
    let first = found.iter().find(|finding| finding.severity == Severity::Error)?;
    let at = |part: &str| text.lines().position(|line| line.contains(part));
    let marked = ENGINES.iter().find_map(|engine| {
        let line = engine.marks.iter().filter_map(|mark| at(mark)).min()?;
        Some((engine.name, line, engine.help))
    });
    let is_no_yaml = first.code.starts_with("yaml-");
    let of_value = || {
        let line = at(VALUE).filter(|_| is_no_yaml)?;
        Some(("Jinja or Helm", line, "render it, and name the template in `.evenkeelignore`"))
    };
    // Only where the mistake is: scripts in ConfigMaps have such values, too.
    let of_variable = || {
        let line = first.span.line.checked_sub(1)? as usize;
        text.lines().nth(line).filter(|text| text.contains("${"))?;
        Some(("envsubst", line, "render it (`envsubst < TEMPLATE > FILE`), and name the template in `.evenkeelignore`"))
    };
    let (name, line, help) = marked.or_else(of_value).or_else(of_variable)?;
    let span = Span::at(path.clone(), u32::try_from(line).unwrap_or(u32::MAX).saturating_add(1), 1);
    let message = format!("the file is a template for {name}, not a manifest, and is skipped");
    Some(Diagnostic::warning("template", span, message).with_help(help))
}
