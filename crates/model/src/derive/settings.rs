//! The settings of a MeshConfig over the defaults.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::istio::{
    self, H2Upgrade, InboundTrafficPolicyMode, IngressControllerMode, MeshOutboundMode, Normalization,
};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostic, Diagnostics, Spanned};
use evenkeel_tls::TrustBundle;

use super::destination_rules::{client_tls, connection_pool, locality, outlier_detection, tcp_keepalive, zone_aware};
use super::http_fields::retries_of;
use super::{shared, sidecars, telemetry};
use crate::authz_provider::{AuthzBody, AuthzHttp, AuthzProtocol, AuthzProvider};
use crate::provider::ProviderService;
use crate::{
    Destination, DestinationState, ExternalSigner, FurtherRoots, IngressMode, LocalityLb, MeshConfig,
    OutboundTrafficPolicy, PathNormalization, RootsSource, SidecarOutboundPolicy, SignerTls, StringMatch, TlsRules,
    ZoneAwareLb,
};

/// Applies the settings of a ConfigMap.
pub(super) fn apply(mesh: &mut MeshConfig, said: istio::MeshConfig, found: &mut Diagnostics) {
    identity(mesh, &said);
    further_roots(mesh, &said, found);
    if let Some(service) = said.ca.as_ref().filter(|service| service.value.is_used()) {
        mesh.external_signer = Some(external_signer(&service.value).map(Arc::new));
    }
    traffic(mesh, &said);
    connections(mesh, &said);
    // Those of the shared settings stay, but for those with one of these names.
    let is_named = |name: &str| said.extension_providers.iter().any(|provider| provider.name.value == name);
    mesh.authz_providers.retain(|provider| !is_named(&provider.name));
    mesh.authz_providers.extend(authz_providers(&said.extension_providers));
    telemetry::apply(mesh, &said);
    statistics(mesh, &said);
    visibility(mesh, &said);
    service_settings(mesh, &said);
    ingress(mesh, &said);
    if let Some(config) = said.default_config {
        mesh.proxy_defaults = Arc::new(config.over((*mesh.proxy_defaults).clone()));
    }
}

/// Of two settings with the same host the last counts.
fn service_settings(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    let mut all: Vec<_> = said
        .service_settings
        .iter()
        .filter_map(|entry| Some((entry, entry.settings.as_ref()?.cluster_local?)))
        .flat_map(|(entry, is_local)| entry.hosts.iter().map(move |host| (host.value.clone(), is_local)))
        .collect();
    if !all.is_empty() {
        all.reverse();
        mesh.cluster_local = all;
    }
}

fn identity(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    if let Some(domain) = &said.trust_domain {
        mesh.trust_domain = shared(domain);
    }
    if !said.trust_domain_aliases.is_empty() {
        mesh.trust_domain_aliases = said.trust_domain_aliases.iter().map(|a| shared(a)).collect();
    }
    if let Some(namespace) = &said.root_namespace {
        mesh.root_namespace = namespace.0.clone();
    }
    mesh.enable_auto_mtls = said.enable_auto_mtls.unwrap_or(mesh.enable_auto_mtls);
    for (rules, said) in [(&mut mesh.mesh_tls, &said.mesh_mtls), (&mut mesh.tls_defaults, &said.tls_defaults)] {
        if let Some(said) = said {
            *rules = TlsRules {
                only_1_3: said.is_1_3_only(),
                ecdh_curves: said.usable_curves().map(shared).collect(),
                cipher_suites: said.usable_suites().map(shared).collect(),
            };
        }
    }
}

/// Reads the external signer. Unusable settings mean that nobody signs: the control plane must not stand in for another
/// authority.
fn external_signer(service: &istio::CertificateService) -> Result<ExternalSigner, String> {
    let tls = service.tls()?.map(|tls| SignerTls {
        roots: tls.roots.map(PathBuf::from),
        identity: tls.identity.map(|(certificate, key)| (certificate.into(), key.into())),
        names: tls.names.to_vec(),
        sni: tls.sni.map(str::to_owned),
    });
    let timeout = service.request_timeout.filter(|timeout| !timeout.is_zero());
    let timeout = timeout.unwrap_or(ExternalSigner::DEFAULT_TIMEOUT);
    Ok(ExternalSigner { address: service.address()?.to_owned(), tls, timeout })
}

/// Roots that cannot be read are left out, which refuses the peers that need them.
fn further_roots(mesh: &mut MeshConfig, said: &istio::MeshConfig, found: &mut Diagnostics) {
    for (index, entry) in said.ca_certificates.iter().enumerate() {
        let source = match entry.value.roots() {
            None => continue,
            Some(istio::FurtherRoots::BundleUrl(url)) => RootsSource::Bundle(shared(url)),
            Some(istio::FurtherRoots::Pem(pem)) => match TrustBundle::from_pem(pem.as_bytes()) {
                Ok(_) => RootsSource::Pem(shared(pem)),
                Err(error) => {
                    let message = format!("`caCertificates[{index}].pem` {error}; the entry is not used");
                    let finding = Diagnostic::warning("bad-value", entry.span.clone(), message);
                    found
                        .push(finding.with_help("`openssl x509 -noout -text` shows what can be read of a certificate"));
                    continue;
                }
            },
        };
        let trust_domains = entry.value.trust_domains.iter().map(|domain| shared(domain)).collect();
        mesh.further_roots.push(FurtherRoots { source, trust_domains });
    }
}

fn traffic(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    if let Some(mode) = said.outbound_traffic_policy.as_ref().and_then(|policy| policy.mode.as_ref()) {
        mesh.outbound_traffic_policy = match mode.value {
            MeshOutboundMode::AllowAny => OutboundTrafficPolicy::AllowAny,
            MeshOutboundMode::RegistryOnly => OutboundTrafficPolicy::RegistryOnly,
            MeshOutboundMode::AllowAnyDynamicDns => OutboundTrafficPolicy::AllowAnyDynamicDns,
        };
    }
    if let Some(to) = said.outbound_traffic_policy.as_ref().and_then(|policy| policy.egress_proxy.as_ref()) {
        mesh.egress_proxy = Some(SidecarOutboundPolicy::EgressProxy(egress_proxy(mesh, to)));
    }
    if let Some(tls) = said.outbound_traffic_policy.as_ref().and_then(|policy| policy.tls.as_ref()) {
        mesh.unknown_hosts_tls = Some(client_tls(tls));
    }
    if let Some(port) = said.http_proxy_port() {
        mesh.http_proxy_port = Some(port.value);
        mesh.default_sidecar = Some(Arc::new(sidecars::default(mesh, port)));
    }
    if let Some(mode) = said.inbound_traffic_policy.as_ref().and_then(|policy| policy.mode) {
        mesh.inbound_to_localhost = mode == InboundTrafficPolicyMode::Localhost;
    }
    if let Some(normalization) = said.path_normalization.as_ref().and_then(|path| path.normalization) {
        mesh.path_normalization = match normalization {
            Normalization::None => PathNormalization::None,
            Normalization::Default | Normalization::Base => PathNormalization::Base,
            Normalization::MergeSlashes => PathNormalization::MergeSlashes,
            Normalization::DecodeAndMergeSlashes => PathNormalization::DecodeAndMergeSlashes,
        };
    }
    if let Some(policy) = &said.default_http_retry_policy {
        mesh.default_http_retry = Some(retries_of(policy));
    }
    if let Some(policy) = &said.default_inbound_http_retry_policy {
        mesh.default_inbound_http_retry = Some(retries_of(policy));
    }
}

/// Services are derived after the settings, so whether the service exists is reported elsewhere (`sidecars::mesh_step`).
fn egress_proxy(mesh: &MeshConfig, written: &Spanned<istio::Destination>) -> Destination {
    let full = Hostname::resolve(written.host.as_str(), &mesh.root_namespace, &mesh.cluster_domain);
    Destination {
        host: full.unwrap_or_else(|_| written.host.value.clone()),
        subset: written.subset.as_ref().map(|subset| shared(subset)),
        port: written.port.as_ref().map(|port| port.number.0),
        state: DestinationState::Known,
        origin: written.host.span.clone(),
    }
}

fn connections(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    // Istio's default applies to a time that is not set, and to zero.
    let given = |time: Option<Duration>| time.filter(|time| !time.is_zero());
    mesh.connect_timeout = said.connect_timeout.unwrap_or(mesh.connect_timeout);
    mesh.protocol_detection_timeout = said.protocol_detection_timeout.unwrap_or(mesh.protocol_detection_timeout);
    mesh.dns_refresh_rate = given(said.dns_refresh_rate).unwrap_or(mesh.dns_refresh_rate);
    if let Some(probes) = &said.tcp_keepalive {
        mesh.tcp_keepalive = Some(tcp_keepalive(probes));
    }
    if let Some(policy) = said.h2_upgrade_policy {
        mesh.h2_upgrade = policy == H2Upgrade::Upgrade;
    }
    if let Some(setting) = &said.locality_lb_setting {
        mesh.locality = Some(LocalityLb { of_mesh: true, ..locality(setting) });
    }
    if let Some(setting) = &said.zone_aware_lb_setting {
        mesh.zone_aware = Some(ZoneAwareLb { of_mesh: true, ..zone_aware(setting) });
    }
    if let Some(policy) = &said.default_traffic_policy {
        mesh.connection_pool = policy.connection_pool.as_ref().map(connection_pool);
        mesh.outlier_detection = policy.outlier_detection.as_ref().map(outlier_detection);
    }
}

/// Returns the providers of external authorization. Of two with the same name neither is used, because it would be ambiguous
/// which decides.
fn authz_providers(said: &[istio::ExtensionProvider]) -> Vec<Arc<AuthzProvider>> {
    let is_alone = |provider: &&istio::ExtensionProvider| {
        said.iter().filter(|other| other.name.value == provider.name.value).count() == 1
    };
    said.iter().filter(is_alone).filter_map(authz_provider).map(Arc::new).collect()
}

fn authz_provider(provider: &istio::ExtensionProvider) -> Option<AuthzProvider> {
    let name = shared(&provider.name);
    let status = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
    let body = |body: &Option<istio::RequestBody>| {
        body.as_ref().and_then(|body| {
            let max_bytes = body.max_request_bytes.filter(|most| *most > 0)?;
            let (partial, as_bytes) = (body.allow_partial_message, body.pack_as_bytes);
            Some(AuthzBody { max_bytes, partial: partial.unwrap_or_default(), as_bytes: as_bytes.unwrap_or_default() })
        })
    };
    if let Some(http) = &provider.envoy_ext_authz_http {
        let strings = |list: &[String]| list.iter().map(|text| StringMatch::from_policy_value(text)).collect();
        // The older name counts only where the newer is not used.
        let in_check = if http.include_request_headers_in_check.is_empty() {
            &http.include_headers_in_check
        } else {
            &http.include_request_headers_in_check
        };
        let additional = http.include_additional_headers_in_check.iter();
        return Some(AuthzProvider {
            name,
            service: ProviderService::parse(&http.service, http.port.0),
            timeout: http.timeout,
            fail_open: http.fail_open.unwrap_or_default(),
            clear_route_cache: http.clear_route_cache.unwrap_or_default(),
            status_on_error: status(&http.status_on_error),
            body: body(&http.include_request_body_in_check),
            protocol: AuthzProtocol::Http(AuthzHttp {
                path_prefix: shared(http.path_prefix.as_deref().unwrap_or_default()),
                headers_in_check: strings(in_check),
                additional_headers: additional.map(|(name, value)| (shared(name), shared(value))).collect(),
                upstream_on_allow: strings(&http.headers_to_upstream_on_allow),
                downstream_on_deny: strings(&http.headers_to_downstream_on_deny),
                downstream_on_allow: strings(&http.headers_to_downstream_on_allow),
            }),
        });
    }
    let grpc = provider.envoy_ext_authz_grpc.as_ref()?;
    Some(AuthzProvider {
        name,
        service: ProviderService::parse(&grpc.service, grpc.port.0),
        timeout: grpc.timeout,
        fail_open: grpc.fail_open.unwrap_or_default(),
        clear_route_cache: grpc.clear_route_cache.unwrap_or_default(),
        status_on_error: status(&grpc.status_on_error),
        body: body(&grpc.include_request_body_in_check),
        protocol: AuthzProtocol::Grpc,
    })
}

fn statistics(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    // An empty pattern is none, as in Istio.
    let given = |pattern: &Option<Spanned<String>>| {
        pattern.as_ref().filter(|pattern| !pattern.value.is_empty()).map(|pattern| shared(&pattern.value))
    };
    mesh.merges_metrics = said.enable_prometheus_merge.unwrap_or(mesh.merges_metrics);
    mesh.outbound_stat_name = given(&said.outbound_cluster_stat_name);
    mesh.inbound_stat_name = given(&said.inbound_cluster_stat_name);
}

fn visibility(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    let entries = |entries: &[Spanned<String>]| entries.iter().map(|entry| shared(entry)).collect();
    if !said.default_service_export_to.is_empty() {
        mesh.service_export_to = entries(&said.default_service_export_to);
    }
    if !said.default_virtual_service_export_to.is_empty() {
        mesh.virtual_service_export_to = entries(&said.default_virtual_service_export_to);
    }
    if !said.default_destination_rule_export_to.is_empty() {
        mesh.destination_rule_export_to = entries(&said.default_destination_rule_export_to);
    }
    if let Some(limits) = &said.service_entry_visibility {
        mesh.service_entry_visibility = Some(Arc::new(limits.clone()));
    }
    if !said.discovery_selectors.is_empty() {
        mesh.discovery_selectors = said.discovery_selectors.clone().into();
    }
}

fn ingress(mesh: &mut MeshConfig, said: &istio::MeshConfig) {
    let settings = &mut mesh.ingress;
    if let Some(mode) = &said.ingress_controller_mode {
        settings.mode = match mode.value {
            IngressControllerMode::Off => IngressMode::Off,
            IngressControllerMode::Default => IngressMode::Default,
            IngressControllerMode::Unspecified | IngressControllerMode::Strict => IngressMode::Strict,
        };
    }
    for (setting, said) in [
        (&mut settings.class, &said.ingress_class),
        (&mut settings.service, &said.ingress_service),
        (&mut settings.selector, &said.ingress_selector),
    ] {
        if let Some(said) = said.as_ref().map(|said| said.as_str()).filter(|said| !said.is_empty()) {
            *setting = shared(said);
        }
    }
}
