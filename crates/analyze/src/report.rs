//! Output formats for other programs: istioctl's JSON, and SARIF 2.1.0.

use evenkeel_base::{Severity, Span};
use serde_json::{Map, Value, json};

use crate::{Finding, codes};

/// The form of `istioctl analyze -o json`, with the project's own code, column, help and related places beside it.
pub fn json(findings: &[Finding]) -> Value {
    let one = |finding: &Finding| {
        let diagnostic = &finding.diagnostic;
        let mut entry = Map::new();
        let code = finding.istio.map_or(diagnostic.code, |istio| istio.code);
        entry.insert("code".to_owned(), code.into());
        entry.insert("finding".to_owned(), diagnostic.code.into());
        entry.insert("level".to_owned(), codes::level(diagnostic.severity).into());
        entry.insert("message".to_owned(), diagnostic.message.as_str().into());
        entry.insert("documentationUrl".to_owned(), finding.istio.map(codes::Code::url).into());
        entry.insert("origin".to_owned(), origin(finding).into());
        entry.insert("reference".to_owned(), diagnostic.span.to_string().into());
        entry.insert("location".to_owned(), location(&diagnostic.span));
        entry.insert("help".to_owned(), diagnostic.help.as_deref().into());
        let related =
            diagnostic.related.iter().map(|(span, label)| json!({"location": location(span), "message": label}));
        entry.insert("related".to_owned(), related.collect());
        Value::Object(entry)
    };
    findings.iter().map(one).collect()
}

/// The static analysis results interchange format, which code hosts and editors read.
pub fn sarif(findings: &[Finding]) -> Value {
    let mut rules: Vec<(&str, Value)> = Vec::new();
    for finding in findings {
        let id = rule(finding);
        if rules.iter().all(|(known, _)| *known != id) {
            let name = finding.istio.map_or(finding.diagnostic.code, |istio| istio.name);
            let mut described = json!({"id": id, "name": name, "shortDescription": {"text": name}});
            if let (Some(istio), Some(described)) = (finding.istio, described.as_object_mut()) {
                described.insert("helpUri".to_owned(), istio.url().into());
            }
            rules.push((id, described));
        }
    }
    let result = |finding: &Finding| {
        let diagnostic = &finding.diagnostic;
        let text = match &diagnostic.help {
            Some(help) => format!("{} ({help})", diagnostic.message),
            None => diagnostic.message.clone(),
        };
        let level = match diagnostic.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Info => "note",
        };
        let related: Vec<Value> = diagnostic
            .related
            .iter()
            .map(|(span, label)| {
                let mut place = physical(span);
                if let Some(place) = place.as_object_mut() {
                    place.insert("message".to_owned(), json!({"text": label}));
                }
                place
            })
            .collect();
        json!({
            "ruleId": rule(finding),
            "level": level,
            "message": {"text": text},
            "locations": [physical(&diagnostic.span)],
            "relatedLocations": related,
            "properties": {"finding": diagnostic.code, "object": origin(finding)},
        })
    };
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": {"driver": {
                "name": "evenkeel analyze",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules.into_iter().map(|(_, rule)| rule).collect::<Vec<_>>(),
            }},
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    })
}

fn rule(finding: &Finding) -> &'static str {
    finding.istio.map_or(finding.diagnostic.code, |istio| istio.code)
}

/// `KIND NAMESPACE/NAME`; the file if no object is known.
fn origin(finding: &Finding) -> String {
    match &finding.diagnostic.object {
        Some(object) if object.namespace.is_empty() => format!("{} {}", object.kind, object.name),
        Some(object) => format!("{} {}/{}", object.kind, object.namespace, object.name),
        None => finding.diagnostic.span.path().to_owned(),
    }
}

fn location(span: &Span) -> Value {
    let known = |n: u32| (n > 0).then_some(n);
    json!({"file": span.path(), "line": known(span.line), "column": known(span.column)})
}

/// A place in SARIF's form; a file as a whole has no region.
fn physical(span: &Span) -> Value {
    let artifact = json!({"uri": span.path()});
    let place = match span.line {
        0 => json!({"artifactLocation": artifact}),
        _ => json!({
            "artifactLocation": artifact,
            "region": {
                "startLine": span.line,
                "startColumn": span.column.max(1),
                "endLine": span.end_line.max(span.line),
                "endColumn": if span.end_line > span.line { span.end_column.max(1) } else { span.end_column.max(span.column).max(1) },
            },
        }),
    };
    json!({"physicalLocation": place})
}
