//! Objects of an Istio installation that nothing here reads: an author who edits one must not believe that it counts.

use evenkeel_base::Diagnostic;

use crate::istio::MeshConfig;
use crate::{Object, Resource};

/// The ConfigMap with the templates of Istio's injector.
const INJECTOR: &str = "istio-sidecar-injector";
/// Secrets with the certificate authority of Istio's control plane: an operator's own, and one that it has made.
const AUTHORITIES: [&str; 2] = ["cacerts", "istio-ca-secret"];
/// The namespace of Istio's own objects.
const NAMESPACE: &str = "istio-system";
/// The key of the networks in the ConfigMap with the mesh's settings.
const NETWORKS: &str = "meshNetworks";

/// The finding about such an object.
pub(crate) fn unread(object: &Object) -> Option<Diagnostic> {
    if *object.namespace != *NAMESPACE {
        return None;
    }
    let finding = match &object.resource {
        Resource::ConfigMap(map)
            if is_of(&object.name, MeshConfig::CONFIG_MAP)
                && !MeshConfig::is_in(object)
                && map.data.contains_key(MeshConfig::KEY) =>
        {
            let message = format!(
                "{object} is for a revision of Istio's control plane, and is not read: the mesh's settings are those of the ConfigMap `{}`",
                MeshConfig::CONFIG_MAP
            );
            let help = format!("move the settings to `{}`", MeshConfig::CONFIG_MAP);
            Diagnostic::warning("no-effect", object.origin.clone(), message).with_help(help)
        }
        Resource::ConfigMap(_) if *object.name == *INJECTOR || is_of(&object.name, INJECTOR) => {
            let message = format!("{object} is not read: there is no injector, and sidecars have one form");
            Diagnostic::warning("no-effect", object.origin.clone(), message)
                .with_help("annotations and ProxyConfigs set what a sidecar has")
        }
        Resource::ConfigMap(map) if *object.name == *MeshConfig::CONFIG_MAP => {
            let networks = map.data.get(NETWORKS).filter(|text| has_networks(text))?;
            let message = format!(
                "`data.{NETWORKS}` has no effect: labels of namespaces, Pods and Services say which networks there are"
            );
            Diagnostic::warning("no-effect", networks.span.clone(), message).with_help("it can stay")
        }
        Resource::Secret(_) if AUTHORITIES.contains(&&*object.name) => {
            let message = format!("{object} is not read: the control plane reads its certificate authority from files");
            Diagnostic::warning("no-effect", object.origin.clone(), message)
                .with_help("start with `--ca-certs DIR`, where DIR has the Secret or its files (docs/certificates.md)")
        }
        _ => return None,
    };
    Some(finding.about(object.reference()))
}

/// Whether a text names networks: charts write an empty map, as YAML or as JSON. What is no YAML may name some.
fn has_networks(text: &str) -> bool {
    let (documents, found) = evenkeel_base::yaml::parse(&NETWORKS.into(), text);
    let names_some = |document: serde_json::Value| match document {
        serde_json::Value::Null => false,
        serde_json::Value::Object(fields) => {
            let is_empty =
                |value: &serde_json::Value| value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
            !fields.iter().all(|(field, value)| field == "networks" && is_empty(value))
        }
        _ => true,
    };
    found.has_errors() || documents.iter().any(|document| names_some(document.to_json()))
}

/// Whether a name is that of a revision: `istio-1-29`.
fn is_of(name: &str, base: &str) -> bool {
    name.strip_prefix(base).is_some_and(|rest| rest.len() > 1 && rest.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::has_networks;

    #[test]
    fn an_empty_map_of_networks_is_none_however_it_is_written() {
        let check = |text: &str, expected: bool| assert_eq!(has_networks(text), expected, "{text}");
        for text in ["", "networks: {}", "networks:", "networks: {}\n", r#"{"networks":{}}"#, "{}", "# none"] {
            check(text, false);
        }
        for text in ["networks: {a: {}}", r#"{"networks":{"a":{}}}"#, "other: 1", "a", "networks: [", "[]"] {
            check(text, true);
        }
    }
}
