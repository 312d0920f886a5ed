//! The control plane's environment: variables of Istio's control plane that have no effect here are named at the start.

/// Prefixes of variables that only Istio's control plane has.
const PREFIXES: [&str; 5] = ["PILOT_", "CITADEL_", "ISTIOD_", "EXTERNAL_ISTIOD", "AMBIENT_"];
/// Those that have an effect.
const READ: [&str; 7] = [
    "PILOT_DEBOUNCE_AFTER",
    "PILOT_DEBOUNCE_MAX",
    "PILOT_ENABLE_EDS_DEBOUNCE",
    "PILOT_JWT_ENABLE_REMOTE_JWKS",
    "PILOT_JWT_PUB_KEY_REFRESH_INTERVAL",
    "PILOT_PUSH_THROTTLE",
    "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD",
];
/// Those that have an effect in a cluster; its platform reads them.
const OF_CLUSTERS: [&str; 5] = [
    "EXTERNAL_CA",
    "K8S_SIGNER",
    "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER",
    "PILOT_REMOTE_CLUSTER_TIMEOUT",
    "SHARED_MESH_CONFIG",
];
/// Variables without such a prefix, which say what Istio's control plane trusts, signs or sends.
const OTHERS: [&str; 23] = [
    "AUTO_RELOAD_PLUGIN_CERTS",
    "CA_TRUSTED_NODE_ACCOUNTS",
    "CERT_SIGNER_DOMAIN",
    "COMPLIANCE_POLICY",
    "DEFAULT_WORKLOAD_CERT_TTL",
    "ENABLE_AUTO_SNI",
    "ENABLE_CA_SERVER",
    "ENABLE_DEBUG_ON_HTTP",
    "ENABLE_ENHANCED_RESOURCE_SCOPING",
    "ENABLE_EXTERNAL_NAME_ALIAS",
    "ENABLE_NATIVE_SIDECARS",
    "ENABLE_TLS_ON_SIDECAR_INGRESS",
    "INJECTION_WEBHOOK_CONFIG_NAME",
    "JWT_POLICY",
    "METRICS_LOCALHOST_ACCESS_ONLY",
    "PREFER_DESTINATIONRULE_TLS_FOR_EXTERNAL_SERVICES",
    "REQUIRE_3P_TOKEN",
    "RESOLVE_HOSTNAME_GATEWAYS",
    "TOKEN_AUDIENCES",
    "TRUSTED_GATEWAY_CIDR",
    "USE_CACERTS_FOR_SELF_SIGNED_CA",
    "VERIFY_CERTIFICATE_AT_CLIENT",
    "XDS_AUTH",
];
/// Maximum number of variables that are named.
const MAX_NAMED: usize = 50;

/// Whether Kubernetes sets a variable of this name for a Service, such as `ISTIOD_PORT_15012_TCP_ADDR` for the Service `istiod`.
fn is_service_link(name: &str) -> bool {
    let is_port = |rest: &str| {
        let mut parts = rest.split('_');
        let number = parts.next().unwrap_or_default();
        number.parse::<u16>().is_ok() && matches!(parts.next(), Some("TCP" | "UDP" | "SCTP"))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT")
        || name.split_once("_PORT_").is_some_and(|(_, rest)| is_port(rest))
}

/// The variables without an effect among these names.
pub(crate) fn without_effect(names: impl IntoIterator<Item = String>) -> Vec<String> {
    let is_istios =
        |name: &String| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || OTHERS.contains(&name.as_str());
    let is_read = |name: &String| READ.contains(&name.as_str()) || OF_CLUSTERS.contains(&name.as_str());
    let has_effect = |name: &String| is_read(name) || is_service_link(name);
    let names = names.into_iter().filter(|name| is_istios(name) && !has_effect(name));
    let mut names: Vec<String> = names.take(MAX_NAMED).collect();
    names.sort();
    names
}

/// Reports variables of this process without an effect.
pub(crate) fn report() {
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let names = without_effect(names);
    if !names.is_empty() {
        tracing::warn!(
            "these variables of Istio's control plane have no effect here: {}; those that have one are in docs/control-plane.md",
            names.join(", ")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_without_an_effect_are_named() {
        let check = |names: &[&str], expected: &[&str]| {
            assert_eq!(without_effect(names.iter().map(|name| (*name).to_owned())), expected, "{names:?}");
        };
        check(&["PATH", "HOME", "SSL_CERT_FILE", "ROOT_CA_DIR"], &[]);
        check(&READ, &[]);
        check(&OF_CLUSTERS, &[]);
        check(&OTHERS, &OTHERS);
        check(&["ISTIOD_SERVICE_HOST", "ISTIOD_SERVICE_PORT_HTTPS_DNS", "ISTIOD_PORT", "ISTIOD_PORT_15012_TCP"], &[]);
        check(&["ISTIOD_PORT_15012_TCP_ADDR", "ISTIOD_SERVICE_PORT"], &[]);
        check(&["ISTIOD_PORT_NAME", "PILOT_PORT_1_X"], &["ISTIOD_PORT_NAME", "PILOT_PORT_1_X"]);
        check(
            &["PILOT_TRACE_SAMPLING", "CITADEL_SELF_SIGNED_CA_CERT_TTL", "PILOT_DEBOUNCE_MAX"],
            &["CITADEL_SELF_SIGNED_CA_CERT_TTL", "PILOT_TRACE_SAMPLING"],
        );
    }

    /// Each of them is read by a source of the workspace, and every variable that is read is here.
    #[test]
    fn those_that_have_an_effect_are_the_ones_that_are_read() {
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of crates");
        let mut read = std::collections::BTreeSet::new();
        for path in evenkeel_testkit::workspace::sources(crates) {
            let is_source = path.components().any(|part| part.as_os_str() == "src");
            if !is_source || path.ends_with("environment.rs") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source file");
            for other in OTHERS {
                assert!(!text.contains(&format!("\"{other}\"")), "{} reads {other}", path.display());
            }
            let is_known =
                |part: &&str| part.starts_with("PILOT_") && !part.ends_with('_') || OF_CLUSTERS.contains(part);
            for part in text.split('"').filter(is_known) {
                let is_name = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
                read.extend(part.chars().all(is_name).then(|| part.to_owned()));
            }
        }
        let known: std::collections::BTreeSet<_> =
            READ.iter().chain(&OF_CLUSTERS).map(|name| (*name).to_owned()).collect();
        assert_eq!(read, known);
    }

    /// Every variable that is read changes a setting.
    #[test]
    fn every_variable_that_is_read_counts() {
        let settings = |name: &str, value: &str| {
            let lookup = |asked: &str| (asked == name).then(|| value.to_owned());
            let debounce = crate::source::debounce::DebounceOptions::from_env(lookup).expect("a value");
            let publish = crate::publish::PublishOptions::from_env(lookup).expect("a value");
            let grace = crate::registration::grace_from_env(lookup).expect("a value");
            let jwks = crate::jwks::settings::JwksSettings::from_env(lookup).expect("a value");
            format!("{debounce:?} {publish:?} {grace:?} {jwks:?}")
        };
        let values = [
            ("PILOT_DEBOUNCE_AFTER", "77ms"),
            ("PILOT_DEBOUNCE_MAX", "7s"),
            ("PILOT_ENABLE_EDS_DEBOUNCE", "true"),
            ("PILOT_JWT_ENABLE_REMOTE_JWKS", "envoy"),
            ("PILOT_JWT_PUB_KEY_REFRESH_INTERVAL", "77s"),
            ("PILOT_PUSH_THROTTLE", "7"),
            ("PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "77s"),
        ];
        assert_eq!(values.map(|(name, _)| name), READ);
        for (name, value) in values {
            assert_ne!(settings(name, value), settings("NONE", value), "{name}");
        }
    }
}
