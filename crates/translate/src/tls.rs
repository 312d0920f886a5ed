//! Transport sockets: mutual TLS with the workload's certificate from SDS, and plaintext.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_model::gateway::{
    AdmittedClients, BackendCertificate, ClientChecks, ClientRoots, ServerCertificates, TlsVersion,
};
use evenkeel_model::{BackendRoots, MeshConfig, OutsideTls, ServerTls, ServerTlsMode, TlsRules};

use crate::pb::google::protobuf::Any;
use crate::pb::matcher::StringMatcher;
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::pb::tls::certificate_validation_context::TrustChainVerification;
use crate::pb::tls::common_tls_context::ValidationContextType;
use crate::pb::tls::tls_parameters::TlsProtocol;
use crate::pb::{core, raw_buffer, tls};
use crate::proto::{ads, any, bool_value, duration, string_matcher};
use crate::proxy_options::TlsContext;
use crate::secrets;
use crate::traffic::InnerProtocol;

/// The static cluster of the bootstrap that reaches the agent's SDS server.
const SDS_CLUSTER: &str = "sds-grpc";
/// The workload's own certificate and key.
const WORKLOAD_SECRET: &str = "default";
/// The mesh's root certificates.
const ROOT_SECRET: &str = "ROOTCA";
/// The certificate provider in a gRPC program's bootstrap, as Istio's agent names it.
const PROXYLESS_PROVIDER: &str = "default";

/// ALPN protocols that mesh clients offer; inbound filter chains match on what was offered (as in Istio).
pub const MESH_ALPN: [&str; 5] = ["istio", "istio-peer-exchange", "istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// The part of [`MESH_ALPN`] that says "HTTP follows".
pub const MESH_HTTP_ALPN: [&str; 3] = ["istio-http/1.0", "istio-http/1.1", "istio-h2"];
/// The part of [`MESH_ALPN`] that says "any bytes follow".
pub const MESH_TCP_ALPN: [&str; 2] = ["istio-peer-exchange", "istio"];

/// The ALPN protocols that an HTTP server accepts.
pub const HTTP_ALPN: [&str; 2] = ["h2", "http/1.1"];

/// The curves of a stock Envoy that has X25519MLKEM768 and by default does not offer it: that one, and then its defaults.
const HYBRID_CURVES: [&str; 3] = ["X25519MLKEM768", "X25519", "P-256"];

/// The usual place of the system's root certificates (Debian and its family, Istio's proxy image).
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A secret that is never delivered, as Istio names it: connections that need it fail.
const NO_SECRET: &str = "invalid://";

/// TLS towards a server outside the mesh. `names` are those of which its certificate must have one; `uses_secrets`: certificates
/// and roots are those of the Secrets that are named, not those of files. `of_gateway`: the certificate that a gateway shows.
pub fn outside_client(
    of: TlsContext<'_>,
    server: &OutsideTls,
    names: &[Arc<str>],
    uses_secrets: bool,
    of_gateway: Option<&BackendCertificate>,
) -> core::TransportSocket {
    let rules = &of.mesh.tls_defaults;
    let checks = tls::CertificateValidationContext {
        match_typed_subject_alt_names: names.iter().map(|name| exact_name(name)).collect(),
        crl: server.revocation_lists.as_deref().map(file),
        ..Default::default()
    };
    let mut context = tls::CommonTlsContext {
        // Always, as in Istio: without them an Envoy offers TLS 1.2 at most.
        tls_params: Some(parameters(of, rules, None, None)),
        ..Default::default()
    };
    let of_secrets = || server.credential.as_deref().filter(|_| uses_secrets);
    match of_secrets() {
        _ if of_gateway.is_some() => {
            let name = |of: &BackendCertificate| match of {
                BackendCertificate::Secret(name) => secrets::certificate_name(name),
                BackendCertificate::Refused => NO_SECRET.to_owned(),
            };
            context.tls_certificate_sds_secret_configs = of_gateway.map(name).map(credential).into_iter().collect();
        }
        Some(name) if server.is_mutual => {
            context.tls_certificate_sds_secret_configs = vec![credential(secrets::certificate_name(name))];
        }
        Some(_) => {}
        None => {
            let files = server.client_certificate.iter();
            context.tls_certificates = files.map(|(chain, key)| tls_certificate(chain, key)).collect();
        }
    }
    let of_source = |roots| tls::CertificateValidationContext { trusted_ca: Some(roots), ..checks.clone() };
    let of_source = |roots| ValidationContextType::ValidationContext(of_source(roots));
    let of_backend = server.of_backend.as_ref().map(|of| &of.roots);
    context.validation_context_type = Some(match (of_backend, server.roots_secret().filter(|_| uses_secrets)) {
        (Some(BackendRoots::Pem(roots)), _) => of_source(secrets::inline(roots)),
        (Some(BackendRoots::Unresolved), _) => combined(checks, credential(NO_SECRET.to_owned())),
        (Some(BackendRoots::System) | None, None) => {
            of_source(file(server.ca_certificates.as_deref().unwrap_or(SYSTEM_ROOTS)))
        }
        (_, Some(name)) => combined(checks, credential(secrets::roots_name(name))),
    });
    if server.insecure_skip_verify {
        context.validation_context_type = None;
    }
    tls_socket(any(&tls::UpstreamTlsContext {
        common_tls_context: Some(context),
        sni: server.sni.as_deref().unwrap_or_default().to_owned(),
        ..Default::default()
    }))
}

/// Mutual TLS towards a sidecar, offering `alpn`. `identities` are the SPIFFE ids accepted; none given means any identity
/// of the mesh.
pub fn mesh_client(of: TlsContext<'_>, sni: &str, identities: &[String], alpn: &[&str]) -> core::TransportSocket {
    mesh_client_of_rule(of, sni, identities, None, alpn)
}

/// The same for a rule that may name a file with revocation lists (`caCrl`).
pub fn mesh_client_of_rule(
    of: TlsContext<'_>,
    sni: &str,
    identities: &[String],
    revocation_lists: Option<&str>,
    alpn: &[&str],
) -> core::TransportSocket {
    let checks = tls::CertificateValidationContext {
        crl: revocation_lists.map(file),
        ..identities_only(accepted(of.mesh, identities))
    };
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(mesh_context(of, checks, alpn)),
        sni: sni.to_owned(),
        ..Default::default()
    };
    tls_socket(any(&context))
}

/// Mutual TLS termination with the workload's certificate: any identity of the mesh, and of a trust domain whose roots
/// `caCertificates` gives, may connect; policies decide about the rest. `alpn`: the protocols that it accepts.
pub fn mesh_server(of: TlsContext<'_>, alpn: &[&str]) -> core::TransportSocket {
    let context = tls::CommonTlsContext {
        tls_params: Some(parameters(of, &of.mesh.mesh_tls, None, None)),
        ..mesh_context(of, identities_only(any_known(of.mesh)), alpn)
    };
    downstream(context, true)
}

/// The same at a gateway (`ISTIO_MUTUAL`), with what the server demands of its clients: names, pins and revocation
/// lists. Names replace the trust domains, as in Istio: whoever has none of them is refused.
fn mesh_server_of_gateway(of: TlsContext<'_>, server: &ServerTls) -> core::TransportSocket {
    let mut checks = client_checks(&server.clients);
    if server.clients.subject_alt_names.is_empty() {
        checks.match_typed_subject_alt_names = any_known(of.mesh).into_iter().map(uri).collect();
    }
    let context = tls::CommonTlsContext {
        tls_params: Some(server_parameters(of, &of.mesh.mesh_tls, server)),
        ..mesh_context(of, checks, &HTTP_ALPN)
    };
    downstream(context, true)
}

/// Mutual TLS of a gRPC client with the certificates its bootstrap knows as `default`; identities as above.
pub fn proxyless_client(mesh: &MeshConfig, identities: &[String]) -> core::TransportSocket {
    let context = proxyless_context(accepted(mesh, identities));
    tls_socket(any(&tls::UpstreamTlsContext { common_tls_context: Some(context), ..Default::default() }))
}

/// Mutual TLS of a gRPC server. It accepts every client with a certificate from the root, because gRPC matches names
/// only on the client's side.
pub fn proxyless_server() -> core::TransportSocket {
    downstream(proxyless_context(Vec::new()), true)
}

/// The TLS context in gRPC's form (gRFC A29): certificate providers of the bootstrap instead of SDS, and names in the
/// field that Envoy has deprecated.
#[expect(deprecated, reason = "gRPC passes over `match_typed_subject_alt_names`: with it any name would do")]
fn proxyless_context(peer_sans: Vec<StringMatcher>) -> tls::CommonTlsContext {
    let provider = |certificate: &str| {
        Some(tls::CertificateProviderPluginInstance {
            instance_name: PROXYLESS_PROVIDER.to_owned(),
            certificate_name: certificate.to_owned(),
        })
    };
    tls::CommonTlsContext {
        tls_certificate_provider_instance: provider(WORKLOAD_SECRET),
        validation_context_type: Some(ValidationContextType::ValidationContext(tls::CertificateValidationContext {
            ca_certificate_provider_instance: provider(ROOT_SECRET),
            match_subject_alt_names: peer_sans,
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// Matchers of the identities a client accepts; none given means any of the mesh.
fn accepted(mesh: &MeshConfig, identities: &[String]) -> Vec<StringMatcher> {
    match identities {
        [] => any_of_the_mesh(mesh),
        _ => identities.iter().flat_map(|id| with_aliases(mesh, id)).map(|id| exact(&id)).collect(),
    }
}

/// Every identity of the trust domain and its aliases.
fn any_of_the_mesh(mesh: &MeshConfig) -> Vec<StringMatcher> {
    mesh.own_trust_domains().map(|domain| any_of(domain)).collect()
}

/// These, and every identity of another trust domain with roots of its own. Clients have only the others: a server of
/// another trust domain has to be named (`subjectAltNames`), or it could stand in for one of the mesh.
fn any_known(mesh: &MeshConfig) -> Vec<StringMatcher> {
    mesh.own_trust_domains().chain(mesh.federated_trust_domains()).map(|domain| any_of(domain)).collect()
}

fn any_of(domain: &str) -> StringMatcher {
    string_matcher(MatchPattern::Prefix(format!("spiffe://{domain}/")))
}

/// An identity, and its variants with the trust domain's aliases.
fn with_aliases(mesh: &MeshConfig, identity: &str) -> Vec<String> {
    let path = identity.strip_prefix(&format!("spiffe://{}/", mesh.trust_domain));
    let others = path
        .into_iter()
        .flat_map(|path| mesh.trust_domain_aliases.iter().map(move |alias| format!("spiffe://{alias}/{path}")));
    std::iter::once(identity.to_owned()).chain(others).collect()
}

fn exact(text: &str) -> StringMatcher {
    string_matcher(MatchPattern::Exact(text.to_owned()))
}

/// TLS termination on a gateway; `None` if the mode passes TLS on.
pub fn gateway_server(of: TlsContext<'_>, server: &ServerTls, inner: InnerProtocol) -> Option<core::TransportSocket> {
    let (certificates, roots, required) = match &server.mode {
        ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough => return None,
        ServerTlsMode::IstioMutual => return Some(mesh_server_of_gateway(of, server)),
        ServerTlsMode::Simple(certificates) => (certificates, None, false),
        ServerTlsMode::Mutual { certificates, admitted: AdmittedClients::Any, .. } if !of.identifies_only_verified => {
            (certificates, None, false)
        }
        ServerTlsMode::Mutual { certificates, roots, admitted } => {
            (certificates, Some((roots, *admitted)), *admitted == AdmittedClients::Verified)
        }
    };
    let mut context = tls::CommonTlsContext {
        tls_params: Some(server_parameters(of, &of.mesh.tls_defaults, server)),
        alpn_protocols: match inner {
            _ if !server.alpn_protocols.is_empty() => server.alpn_protocols.iter().map(ToString::to_string).collect(),
            InnerProtocol::Http => HTTP_ALPN.map(str::to_owned).to_vec(),
            InnerProtocol::Tcp => Vec::new(),
        },
        validation_context_type: roots.map(|(roots, admitted)| client_validation(&server.clients, roots, admitted)),
        ..Default::default()
    };
    match certificates {
        ServerCertificates::Files(files) => {
            context.tls_certificates = files.iter().map(|pair| tls_certificate(&pair.chain, &pair.key)).collect();
        }
        ServerCertificates::Secrets(names) => {
            let secret = |name: &Spanned<Arc<str>>| credential(secrets::certificate_name(name));
            context.tls_certificate_sds_secret_configs = names.iter().map(secret).collect();
        }
    }
    Some(downstream(context, required))
}

/// Versions, suites and curves of a server: those that it names, otherwise the mesh's (`tlsDefaults`).
fn server_parameters(of: TlsContext<'_>, rules: &TlsRules, server: &ServerTls) -> tls::TlsParameters {
    let own = TlsRules {
        only_1_3: rules.only_1_3,
        ecdh_curves: or_of_mesh(&server.ecdh_curves, &rules.ecdh_curves),
        cipher_suites: or_of_mesh(&server.cipher_suites, &rules.cipher_suites),
    };
    parameters(of, &own, server.min_version, server.max_version)
}

fn or_of_mesh(own: &[Arc<str>], mesh: &[Arc<str>]) -> Vec<Arc<str>> {
    if own.is_empty() { mesh.to_vec() } else { own.to_vec() }
}

/// What a gateway demands of its clients' certificates besides their roots.
fn client_checks(clients: &ClientChecks) -> tls::CertificateValidationContext {
    let texts = |list: &[Arc<str>]| list.iter().map(ToString::to_string).collect();
    tls::CertificateValidationContext {
        match_typed_subject_alt_names: clients.subject_alt_names.iter().map(|name| exact_name(name)).collect(),
        verify_certificate_spki: texts(&clients.spki),
        verify_certificate_hash: texts(&clients.hashes),
        crl: clients.revocation_lists.as_deref().map(file),
        ..Default::default()
    }
}

/// How a gateway's clients are verified.
fn client_validation(clients: &ClientChecks, roots: &ClientRoots, admitted: AdmittedClients) -> ValidationContextType {
    let verification = match admitted {
        AdmittedClients::Verified | AdmittedClients::VerifiedOrNone => TrustChainVerification::VerifyTrustChain,
        AdmittedClients::Any => TrustChainVerification::AcceptUntrusted,
    };
    let checks =
        tls::CertificateValidationContext { trust_chain_verification: verification as i32, ..client_checks(clients) };
    match roots {
        ClientRoots::File(path) => ValidationContextType::ValidationContext(tls::CertificateValidationContext {
            trusted_ca: Some(file(path)),
            ..checks
        }),
        ClientRoots::Secret(name) => combined(checks, credential(secrets::roots_name(name))),
        ClientRoots::Pem(roots) => ValidationContextType::ValidationContext(tls::CertificateValidationContext {
            trusted_ca: Some(secrets::inline(roots)),
            ..checks
        }),
    }
}

/// Checks, with roots from a secret.
fn combined(checks: tls::CertificateValidationContext, roots: tls::SdsSecretConfig) -> ValidationContextType {
    ValidationContextType::CombinedValidationContext(tls::common_tls_context::CombinedCertificateValidationContext {
        default_validation_context: Some(checks),
        validation_context_sds_secret_config: Some(roots),
        ..Default::default()
    })
}

/// A secret from this control plane. Unlike for the workload's own certificate the wait for it ends (Envoy's default, 15
/// s), because the Secret may not exist, and the listener's other servers must not wait for it.
fn credential(name: String) -> tls::SdsSecretConfig {
    tls::SdsSecretConfig { name, sds_config: Some(core::ConfigSource { initial_fetch_timeout: None, ..ads() }) }
}

/// Versions, curves and cipher suites: the versions that a server names, otherwise the mesh's. The suites of TLS 1.2 leave those
/// of 1.3 alone, as in Envoy.
fn parameters(
    of: TlsContext<'_>,
    rules: &TlsRules,
    minimum: Option<TlsVersion>,
    maximum: Option<TlsVersion>,
) -> tls::TlsParameters {
    let number = |version| match version {
        TlsVersion::V1_2 => TlsProtocol::TlSv12 as i32,
        TlsVersion::V1_3 => TlsProtocol::TlSv13 as i32,
    };
    let oldest = if rules.only_1_3 { TlsVersion::V1_3 } else { TlsVersion::V1_2 };
    tls::TlsParameters {
        tls_minimum_protocol_version: number(minimum.unwrap_or(oldest)),
        tls_maximum_protocol_version: number(maximum.unwrap_or(TlsVersion::V1_3)),
        cipher_suites: rules.cipher_suites.iter().map(ToString::to_string).collect(),
        ecdh_curves: match rules.ecdh_curves.as_slice() {
            [] => default_curves(of),
            named => named.iter().map(ToString::to_string).collect(),
        },
        ..Default::default()
    }
}

/// The curves where nothing is said of them; none: the proxy's own defaults, which for Evenkeel's begin with X25519MLKEM768.
fn default_curves(of: TlsContext<'_>) -> Vec<String> {
    if of.names_hybrid_curve { HYBRID_CURVES.map(str::to_owned).to_vec() } else { Vec::new() }
}

fn downstream(context: tls::CommonTlsContext, require_client_certificate: bool) -> core::TransportSocket {
    tls_socket(any(&tls::DownstreamTlsContext {
        common_tls_context: Some(context),
        require_client_certificate: require_client_certificate.then(|| bool_value(true)),
        ..Default::default()
    }))
}

fn file(path: &str) -> core::DataSource {
    core::DataSource { specifier: Some(core::data_source::Specifier::Filename(path.to_owned())), ..Default::default() }
}

fn tls_certificate(chain: &str, key: &str) -> tls::TlsCertificate {
    tls::TlsCertificate { certificate_chain: Some(file(chain)), private_key: Some(file(key)), ..Default::default() }
}

fn exact_name(name: &str) -> tls::SubjectAltNameMatcher {
    // A DNS name has no colon, an IP address may.
    let kind = if name.contains(':') && name.parse::<IpAddr>().is_err() {
        tls::subject_alt_name_matcher::SanType::Uri
    } else {
        tls::subject_alt_name_matcher::SanType::Dns
    };
    tls::SubjectAltNameMatcher { san_type: kind as i32, matcher: Some(exact(name)), ..Default::default() }
}

fn tls_socket(context: Any) -> core::TransportSocket {
    core::TransportSocket {
        name: "envoy.transport_sockets.tls".to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(context)),
    }
}

/// Plaintext.
pub fn raw_buffer() -> core::TransportSocket {
    core::TransportSocket {
        name: "envoy.transport_sockets.raw_buffer".to_owned(),
        config_type: Some(core::transport_socket::ConfigType::TypedConfig(any(&raw_buffer::RawBuffer {}))),
    }
}

/// A peer must have one of these identities. `match_typed_subject_alt_names` is the successor of the field Istio still
/// fills.
fn identities_only(identities: Vec<StringMatcher>) -> tls::CertificateValidationContext {
    tls::CertificateValidationContext {
        match_typed_subject_alt_names: identities.into_iter().map(uri).collect(),
        ..Default::default()
    }
}

fn uri(matcher: StringMatcher) -> tls::SubjectAltNameMatcher {
    tls::SubjectAltNameMatcher {
        san_type: tls::subject_alt_name_matcher::SanType::Uri as i32,
        matcher: Some(matcher),
        ..Default::default()
    }
}

/// The workload's certificate and the mesh's roots, with these checks of the peer's certificate.
fn mesh_context(of: TlsContext<'_>, checks: tls::CertificateValidationContext, alpn: &[&str]) -> tls::CommonTlsContext {
    tls::CommonTlsContext {
        tls_params: Some(tls::TlsParameters {
            tls_minimum_protocol_version: TlsProtocol::TlSv12 as i32,
            tls_maximum_protocol_version: TlsProtocol::TlSv13 as i32,
            ecdh_curves: default_curves(of),
            ..Default::default()
        }),
        tls_certificate_sds_secret_configs: vec![sds_secret(WORKLOAD_SECRET)],
        alpn_protocols: alpn.iter().map(|&p| p.to_owned()).collect(),
        validation_context_type: Some(combined(checks, sds_secret(ROOT_SECRET))),
        ..Default::default()
    }
}

/// A secret from the agent. The first fetch has no timeout, because serving without a certificate is not possible.
fn sds_secret(name: &str) -> tls::SdsSecretConfig {
    use core::config_source::ConfigSourceSpecifier;
    use core::grpc_service::{EnvoyGrpc, TargetSpecifier};
    let service = core::GrpcService {
        target_specifier: Some(TargetSpecifier::EnvoyGrpc(EnvoyGrpc {
            cluster_name: SDS_CLUSTER.to_owned(),
            ..Default::default()
        })),
        ..Default::default()
    };
    let source = core::ApiConfigSource {
        api_type: core::api_config_source::ApiType::Grpc as i32,
        transport_api_version: core::ApiVersion::V3 as i32,
        grpc_services: vec![service],
        set_node_on_first_message_only: true,
        ..Default::default()
    };
    tls::SdsSecretConfig {
        name: name.to_owned(),
        sds_config: Some(core::ConfigSource {
            initial_fetch_timeout: Some(duration(Duration::ZERO)),
            resource_api_version: core::ApiVersion::V3 as i32,
            config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(source)),
            ..Default::default()
        }),
    }
}
