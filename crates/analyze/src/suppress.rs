//! Suppression of findings, by an annotation of the object or by a flag.

use evenkeel_api::Object;

use crate::Finding;

/// The annotation, whose value is a list of codes or `*`.
const ANNOTATION: &str = "galley.istio.io/analyze-suppress";

/// `CODE=KIND NAME.NAMESPACE`, as istioctl's `--suppress`; `*` stands for any text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suppression {
    code: String,
    /// `KIND NAME.NAMESPACE`; any if not given.
    resource: Option<String>,
}

/// A suppression that is not one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuppressionError(String);

impl std::fmt::Display for SuppressionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` is not CODE or \"CODE=KIND NAME.NAMESPACE\", e.g. \"IST0127=Sidecar web.shop\"", self.0)
    }
}

impl std::error::Error for SuppressionError {}

impl std::str::FromStr for Suppression {
    type Err = SuppressionError;

    fn from_str(text: &str) -> Result<Self, SuppressionError> {
        let (code, resource) = match text.split_once('=') {
            Some((code, resource)) if resource.trim().contains(' ') || resource.trim() == "*" => {
                (code, Some(resource.trim()))
            }
            Some(_) => return Err(SuppressionError(text.to_owned())),
            None => (text, None),
        };
        match code.trim() {
            "" => Err(SuppressionError(text.to_owned())),
            code => Ok(Self { code: code.to_owned(), resource: resource.map(str::to_owned) }),
        }
    }
}

impl Suppression {
    /// Whether it is about this finding.
    pub fn covers(&self, finding: &Finding) -> bool {
        names(&self.code, finding)
            && self.resource.as_ref().is_none_or(|pattern| resource(finding).is_some_and(|text| like(pattern, &text)))
    }
}

/// The objects that suppress findings about themselves: few, and asked about each finding.
pub fn suppressing(objects: &[Object]) -> Vec<&Object> {
    objects.iter().filter(|object| object.annotations.contains_key(ANNOTATION)).collect()
}

/// Whether the object that a finding is about suppresses it. `objects`: [`suppressing`].
pub fn by_annotation(finding: &Finding, objects: &[&Object]) -> bool {
    let Some(about) = &finding.diagnostic.object else { return false };
    let is_it = |object: &&&Object| {
        (object.kind().as_str(), &object.namespace, &object.name) == (about.kind, &about.namespace, &about.name)
    };
    let written = objects.iter().filter(is_it).filter_map(|object| object.annotations.get(ANNOTATION));
    written.flat_map(|list| list.value.split(',')).map(str::trim).any(|code| names(code, finding))
}

fn names(code: &str, finding: &Finding) -> bool {
    code == "*" || code == finding.diagnostic.code || finding.istio.is_some_and(|istio| istio.code == code)
}

/// `KIND NAME.NAMESPACE`.
fn resource(finding: &Finding) -> Option<String> {
    let object = finding.diagnostic.object.as_ref()?;
    Some(if object.namespace.is_empty() {
        format!("{} {}", object.kind, object.name)
    } else {
        format!("{} {}.{}", object.kind, object.name, object.namespace)
    })
}

/// Whether a text matches a pattern, where `*` stands for any text.
fn like(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|tail| {
            tail.char_indices()
                .map(|(at, _)| at)
                .chain([tail.len()])
                .any(|at| tail.get(at..).is_some_and(|tail| like(rest, tail)))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        let check =
            |pattern: &str, text: &str, expected: bool| assert_eq!(like(pattern, text), expected, "{pattern} {text}");
        check("Sidecar web.shop", "Sidecar web.shop", true);
        check("* *.shop", "Sidecar web.shop", true);
        check("Sidecar *", "Gateway web.shop", false);
        check("*", "", true);
    }

    #[test]
    fn flags_are_checked() {
        assert!("IST0101=x".parse::<Suppression>().is_err());
        assert!("".parse::<Suppression>().is_err());
        assert!("IST0101=Gateway x.y".parse::<Suppression>().is_ok());
        assert!("port-name".parse::<Suppression>().is_ok());
    }
}
