//! Stand-ins for objects that configure connections: no connection is less protected than requested.

use std::collections::BTreeMap;

use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_base::yaml::{self, Mapping, Node, Value};
use evenkeel_base::{Span, Spanned};

use super::parts::{near, sound, text_of};
use crate::decode::{Decode, documented};
use crate::gateway_api::{BackendTlsPolicy, BackendTlsPolicySpec, BackendTlsValidation, PolicyTarget};
use crate::istio::{
    CertificateService, ClientTlsMode, ClientTlsSettings, DestinationRule, DestinationRuleSpec, MeshConfig,
    MeshOutboundMode, MinTlsVersion, MtlsMode, MutualTls, Normalization, OutboundTrafficPolicy, PathNormalization,
    PeerAuthentication, PeerAuthenticationSpec, ServiceEntryVisibility, TlsConfig, TrafficPolicy, VisibilityLevel,
    WorkloadSelector,
};
use crate::kubernetes::ConfigMap;

/// A name that no certificate has (RFC 2606 section 2): connections that must have it are never made.
const NOBODY: &str = "a-refused-destination-rule.invalid";

/// A set of well-known roots that nobody has.
const NO_ROOTS: &str = "evenkeel.dev/none";

/// A PeerAuthentication: mutual TLS only.
pub(super) fn strict(selector: BTreeMap<String, String>) -> PeerAuthentication {
    let selector = (!selector.is_empty()).then_some(WorkloadSelector { match_labels: selector });
    let mtls = Some(MutualTls { mode: Some(MtlsMode::Strict) });
    PeerAuthentication { spec: Some(PeerAuthenticationSpec { selector, mtls, port_level_mtls: BTreeMap::new() }) }
}

/// A DestinationRule that asks for TLS: calls to its host use TLS or fail. A rule without TLS has no stand-in.
pub(super) fn destination_rule(document: &Mapping) -> Option<DestinationRule> {
    let spec = near(document, "spec")?;
    let host = spec.get("host").and_then(sound::<Spanned<Hostname>>)?;
    let mut all = Vec::new();
    tls_settings(spec, &mut all);
    let is_off =
        |tls: &&Node| sound::<ClientTlsSettings>(tls).is_some_and(|tls| tls.mode == Some(ClientTlsMode::Disable));
    all.retain(|tls| !is_off(tls));
    let of_all = spec.at_path("trafficPolicy.tls");
    let tls = match all.as_slice() {
        [] => return None,
        [only] if of_all.is_some_and(|tls| std::ptr::eq(tls, *only)) => sound(only).unwrap_or_else(with_nobody),
        _ => with_nobody(),
    };
    let policy = TrafficPolicy {
        load_balancer: None,
        connection_pool: None,
        tls: Some(Spanned::new(tls, spec.span.clone())),
        outlier_detection: None,
        retry_budget: None,
        port_level_settings: Vec::new(),
        proxy_protocol: None,
        tunnel: None,
    };
    Some(DestinationRule {
        spec: DestinationRuleSpec {
            host,
            traffic_policy: Some(policy),
            subsets: Vec::new(),
            export_to: spec.get("exportTo").and_then(sound).unwrap_or_default(),
            workload_selector: None,
        },
    })
}

fn with_nobody() -> ClientTlsSettings {
    ClientTlsSettings {
        mode: Some(ClientTlsMode::Simple),
        client_certificate: None,
        private_key: None,
        ca_certificates: None,
        subject_alt_names: vec![NOBODY.to_owned()],
        sni: None,
        insecure_skip_verify: false,
        credential_name: None,
        ca_cert_credential_name: None,
        ca_crl: None,
    }
}

/// A BackendTLSPolicy with roots that vouch for nobody: calls to the targets that can be read fail.
pub(super) fn backend_tls_policy(document: &Mapping) -> Option<BackendTlsPolicy> {
    let spec = near(document, "spec")?;
    let targets = near(spec.as_mapping()?, "targetRefs")?.as_sequence()?;
    let target_refs: Vec<Spanned<PolicyTarget>> = targets.iter().filter_map(sound).collect();
    let validation = BackendTlsValidation {
        ca_certificate_refs: Vec::new(),
        well_known_ca_certificates: Some(Spanned::new(NO_ROOTS.to_owned(), spec.span.clone())),
        hostname: Spanned::new(Hostname::parse(NOBODY).ok()?, spec.span.clone()),
        subject_alt_names: Vec::new(),
    };
    let validation = Spanned::new(validation, spec.span.clone());
    let spec = BackendTlsPolicySpec { target_refs, validation, options: BTreeMap::new() };
    (!spec.target_refs.is_empty()).then_some(BackendTlsPolicy { spec })
}

/// Every `tls` below a node. Documents are not deeper than the limit of the parser.
fn tls_settings<'n>(node: &'n Node, found: &mut Vec<&'n Node>) {
    match &node.value {
        Value::Scalar(_) => {}
        Value::Sequence(items) => items.iter().for_each(|item| tls_settings(item, found)),
        Value::Mapping(mapping) => {
            for entry in mapping {
                match &*entry.key {
                    "tls" if !entry.value.is_null() => found.push(&entry.value),
                    _ => tls_settings(&entry.value, found),
                }
            }
        }
    }
}

/// The ConfigMap with the mesh's settings, with their text if there is one; `None` for any other ConfigMap.
pub(super) fn settings(document: &Mapping) -> Option<ConfigMap> {
    let name = near(document, "metadata").and_then(|metadata| near(metadata.as_mapping()?, "name")).and_then(text_of);
    let text = near(document, "data").and_then(|data| near(data.as_mapping()?, MeshConfig::KEY));
    let text = text.map(|text| Spanned::new(text_of(text).unwrap_or_default().to_owned(), text.span.clone()));
    (name == Some(MeshConfig::CONFIG_MAP)).then(|| config_map(text.unwrap_or_default()))
}

/// The ConfigMap for settings that cannot be read at all.
pub(super) fn unknown_settings(span: &Span) -> ConfigMap {
    config_map(Spanned::new(String::new(), span.clone()))
}

fn config_map(settings: Spanned<String>) -> ConfigMap {
    ConfigMap { data: BTreeMap::from([(MeshConfig::KEY.to_owned(), settings)]), binary_data: BTreeMap::new() }
}

/// The settings without a mistake. A setting with a mistake gets its default, except those that restrict something:
/// unless the text clearly says otherwise, they are as strict as they can be.
pub(crate) fn mesh_config(text: &Spanned<String>) -> Option<MeshConfig> {
    let (documents, _) = yaml::parse_within(&text.span, text);
    let mut unclear: Vec<&str> = match documents.len() {
        1 => Vec::new(),
        _ => RESTRICTIVE.to_vec(),
    };
    let mut entries = Vec::new();
    // A signer that is named, but cannot be read, is not the control plane itself.
    let mut has_signer = documents.len() != 1 && text.lines().any(|line| line.trim_start().starts_with("ca:"));
    let document = documents.first().map(|document| documented(document, MeshConfig::FIELDS));
    for entry in document.as_ref().and_then(Node::as_mapping).into_iter().flatten() {
        let alone = Node { value: Value::Mapping(Mapping(vec![entry.clone()])), span: entry.key_span.clone() };
        match sound_settings(&alone) {
            Some(_) => entries.push(entry.clone()),
            None if &*entry.key == "ca" => has_signer = true,
            None => unclear.extend(closest(&entry.key, RESTRICTIVE)),
        }
    }
    let whole = Node { value: Value::Mapping(Mapping(entries)), span: text.span.clone() };
    let mut settings = sound_settings(&whole)?;
    for name in unclear {
        restrict(name, &mut settings, &text.span);
    }
    if has_signer {
        settings.ca = Some(Spanned::new(CertificateService::unusable(), text.span.clone()));
    }
    Some(settings)
}

/// The settings that restrict something, and can be replaced by their strictest value.
const RESTRICTIVE: [&str; 5] =
    ["outboundTrafficPolicy", "pathNormalization", "meshMTLS", "tlsDefaults", "serviceEntryVisibility"];

fn sound_settings(node: &Node) -> Option<MeshConfig> {
    let mut cx = MeshConfig::context();
    MeshConfig::decode(node, &mut cx).filter(|_| !cx.has_errors())
}

/// Sets a setting to its strictest value.
fn restrict(name: &str, settings: &mut MeshConfig, span: &Span) {
    let newest = || TlsConfig {
        min_protocol_version: Some(MinTlsVersion::V1_3),
        ecdh_curves: Vec::new(),
        cipher_suites: Vec::new(),
    };
    match name {
        "outboundTrafficPolicy" => {
            let mode = Some(Spanned::new(MeshOutboundMode::RegistryOnly, span.clone()));
            settings.outbound_traffic_policy = Some(OutboundTrafficPolicy { mode, egress_proxy: None, tls: None });
        }
        "pathNormalization" => {
            let normalization = Some(Normalization::DecodeAndMergeSlashes);
            settings.path_normalization = Some(PathNormalization { normalization });
        }
        "meshMTLS" => settings.mesh_mtls = Some(newest()),
        "tlsDefaults" => settings.tls_defaults = Some(newest()),
        _ => {
            settings.service_entry_visibility = Some(ServiceEntryVisibility {
                default_visibility: Some(VisibilityLevel::Namespace),
                policies: Vec::new(),
                apply_to_sidecars: Some(true),
            });
        }
    }
}
