//! The other spellings that protobuf's JSON form allows (<https://protobuf.dev/programming-guides/json/>). Istio reads the mesh's and
//! proxies' settings with it; objects of Kubernetes have only the spelling of their CRDs.

use evenkeel_base::yaml::{Mapping, Node, Scalar, ScalarType, Value};

use super::{Field, Schema};

/// The enumerations of Istio's settings, by number; "" where a number has no name.
const NUMBERED: [&[&str]; 19] = [
    &["REGISTRY_ONLY", "ALLOW_ANY", "", "ALLOW_ANY_DYNAMIC_DNS"],
    &["PASSTHROUGH", "LOCALHOST"],
    &["DEFAULT", "NONE", "BASE", "MERGE_SLASHES", "DECODE_AND_MERGE_SLASHES"],
    &["TEXT", "JSON"],
    &["DO_NOT_UPGRADE", "UPGRADE"],
    &["DEFAULT", "DO_NOT_UPGRADE", "UPGRADE"],
    &["TLS_AUTO", "TLSV1_2", "TLSV1_3"],
    &["REDIRECT", "TPROXY", "NONE"],
    &["APP_LABEL_AND_NAMESPACE", "CANONICAL_NAME_ONLY", "CANONICAL_NAME_AND_NAMESPACE"],
    &["UNDEFINED", "SANITIZE", "FORWARD_ONLY", "APPEND_FORWARD", "SANITIZE_SET", "ALWAYS_FORWARD_ONLY"],
    &["DISABLE", "SIMPLE", "MUTUAL", "ISTIO_MUTUAL"],
    &["VISIBILITY_UNSPECIFIED", "NONE", "NAMESPACE", "PUBLIC"],
    &["UNDEFINED", "IN_MESH"],
    &["SIDECAR", "EDGE"],
    &[
        "HEADERS_WITH_UNDERSCORES_UNSPECIFIED",
        "HEADERS_WITH_UNDERSCORES_ALLOW",
        "HEADERS_WITH_UNDERSCORES_REJECT_REQUEST",
        "HEADERS_WITH_UNDERSCORES_DROP_HEADER",
    ],
    &[
        "PATH_WITH_ESCAPED_SLASHES_UNSPECIFIED",
        "KEEP_UNCHANGED",
        "REJECT_REQUEST",
        "UNESCAPE_AND_REDIRECT",
        "UNESCAPE_AND_FORWARD",
    ],
    &["UNSPECIFIED", "OFF", "DEFAULT", "STRICT"],
    &["USE_B3", "USE_B3_WITH_W3C_PROPAGATION"],
    &["ISTIO_CANONICAL", "OTEL_SEMANTIC_CONVENTIONS"],
];

/// Brings a message to the documented spelling: names of fields as in the `.proto` file (`access_log_file`), whole numbers in quotes, and
/// values of enumerations by number.
pub(crate) fn documented(node: &Node, fields: &[Field]) -> Node {
    let Value::Mapping(mapping) = &node.value else { return node.clone() };
    let entries = mapping.iter().map(|entry| {
        let mut entry = entry.clone();
        let by_name = |name: &str| fields.iter().find(|field| field.name == name);
        let field = by_name(&entry.key).or_else(|| by_name(&lower_camel(&entry.key)));
        if let Some(field) = field {
            entry.key = field.name.into();
            if let Some(schema) = field.schema {
                entry.value = value(&entry.value, &schema());
            }
        }
        entry
    });
    Node { value: Value::Mapping(Mapping(entries.collect())), span: node.span.clone() }
}

fn value(node: &Node, schema: &Schema) -> Node {
    let value = match (schema, &node.value) {
        (Schema::Object(fields), _) => return documented(node, fields),
        (Schema::List(item), Value::Sequence(items)) => {
            Value::Sequence(items.iter().map(|node| self::value(node, item)).collect())
        }
        (Schema::Map(inner), Value::Mapping(mapping)) => {
            let mut mapping = mapping.clone();
            mapping.0.iter_mut().for_each(|entry| entry.value = self::value(&entry.value, inner));
            Value::Mapping(mapping)
        }
        (Schema::Integer { .. }, Value::Scalar(scalar)) => match whole_number(scalar) {
            Some(number) => Value::Scalar(Scalar { quoted: false, ty: ScalarType::Int(number), ..scalar.clone() }),
            None => return node.clone(),
        },
        (Schema::Number, Value::Scalar(scalar)) if scalar.quoted => match scalar.text.parse::<f64>() {
            Ok(number) if number.is_finite() => {
                Value::Scalar(Scalar { quoted: false, ty: ScalarType::Float(number), ..scalar.clone() })
            }
            _ => return node.clone(),
        },
        (Schema::Choice(values), Value::Scalar(scalar)) => match number_of(scalar).and_then(|at| name_of(values, at)) {
            Some(name) => Value::Scalar(Scalar { text: name.into(), quoted: false, ty: ScalarType::Str }),
            None => return node.clone(),
        },
        _ => return node.clone(),
    };
    Node { value, span: node.span.clone() }
}

/// A whole number in any of its spellings: `"7"`, `7.0`, `70e-1`.
fn whole_number(scalar: &Scalar) -> Option<i128> {
    let is_number = scalar.quoted || matches!(scalar.ty, ScalarType::Float(_));
    let digits = scalar.text.strip_prefix('-').unwrap_or(&scalar.text);
    if !is_number || !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let whole = |number: &f64| number.fract() == 0.0 && number.abs() < 9.0e15;
    scalar.text.parse().ok().or_else(|| scalar.text.parse::<f64>().ok().filter(whole).map(|number| number as i128))
}

fn number_of(scalar: &Scalar) -> Option<usize> {
    match scalar.ty {
        ScalarType::Int(number) => usize::try_from(number).ok(),
        _ => None,
    }
}

/// The name of an enumeration's value, if the enumeration with these names is known by its numbers.
fn name_of(values: &[&str], number: usize) -> Option<&'static str> {
    let names = NUMBERED.into_iter().find(|names| values.iter().all(|value| names.contains(value)))?;
    names.get(number).copied().filter(|name| values.contains(name))
}

/// `access_log_file` as `accessLogFile`, protobuf's JSON name.
fn lower_camel(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut is_upper = false;
    for c in name.chars() {
        match c {
            '_' => is_upper = true,
            c if is_upper => {
                out.push(c.to_ascii_uppercase());
                is_upper = false;
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use evenkeel_base::yaml;

    use super::*;
    use crate::decode::{Context, Decode as _};
    use crate::istio::MeshConfig;

    fn read(text: &str) -> (Option<MeshConfig>, Vec<String>) {
        let (nodes, diagnostics) = yaml::parse(&"mesh".into(), text);
        assert!(diagnostics.is_empty(), "{diagnostics}");
        let mut cx = Context::new("Istio");
        let config = MeshConfig::decode(&documented(&nodes[0], MeshConfig::FIELDS), &mut cx);
        (config, cx.into_diagnostics().iter().map(ToString::to_string).collect())
    }

    #[test]
    fn all_spellings_mean_the_same() {
        let documented = "
accessLogFile: /dev/stdout
accessLogEncoding: JSON
outboundTrafficPolicy: {mode: REGISTRY_ONLY}
pathNormalization: {normalization: MERGE_SLASHES}
trustDomainAliases: [a.test]
defaultConfig: {concurrency: 2, holdApplicationUntilProxyStarts: true, proxyMetadata: {MY_NAME: x}, interceptionMode: TPROXY}
";
        let other = "
access_log_file: /dev/stdout
access_log_encoding: 1
outbound_traffic_policy: {mode: 0}
path_normalization: {normalization: 3}
trust_domain_aliases: [a.test]
default_config: {concurrency: \"2\", hold_application_until_proxy_starts: true, proxy_metadata: {MY_NAME: x}, interception_mode: 1}
";
        let without_places = |text: &str| {
            let (config, diagnostics) = read(text);
            let debug = format!("{:#?}", config.unwrap_or_else(|| panic!("{diagnostics:?}")));
            debug
                .lines()
                .filter(|line| !["line:", "column:", "end_"].iter().any(|at| line.contains(at)))
                .collect::<String>()
        };
        assert_eq!(without_places(documented), without_places(other));
    }

    #[test]
    fn what_is_no_spelling_stays_a_mistake() {
        for text in
            ["access_log_fil: x", "accessLogEncoding: 7", "defaultConfig: {concurrency: two}", "Access_log_file: x"]
        {
            let (_, diagnostics) = read(text);
            assert_eq!(diagnostics.len(), 1, "{text}: {diagnostics:?}");
        }
    }
}
