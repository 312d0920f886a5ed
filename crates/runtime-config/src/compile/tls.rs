//! TLS contexts and secrets.

use std::sync::Arc;

use evenkeel_tls::config::{
    CertificateSource, ClientCertificate, CommonTlsContext, DataSource, DownstreamTlsContext, PeerChecks, TlsParams,
    TlsVersion, TrustSource, UpstreamTlsContext, Validation,
};
use evenkeel_tls::downstream::DownstreamTls;
use evenkeel_tls::upstream::UpstreamTls;
use evenkeel_tls::{Pins, RevocationLists, SanKind, SanMatcher, SdsSecret, SecretStore, StringPattern};
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::transport_sockets::proxy_protocol::v3::ProxyProtocolUpstreamTransport;
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use evenkeel_xds::pb::envoy::r#type::matcher::v3 as matcher;
use evenkeel_xds::pb::google::protobuf::Any;

use super::address::data_source;
use super::source::Reference;
use super::{Cx, proxy_protocol, type_name};
use crate::cluster::{ProxyProtocolTransport, Transport};
use crate::proxy_protocol::Tlv;

const DOWNSTREAM: &str = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
const UPSTREAM: &str = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const UPSTREAM_PROXY_PROTOCOL: &str =
    "envoy.extensions.transport_sockets.proxy_protocol.v3.ProxyProtocolUpstreamTransport";
const SPIFFE_VALIDATOR: &str = "envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig";
const RAW_BUFFER: &str = "envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer";

/// The transport socket of a filter chain; `Some(None)` is plaintext.
pub(crate) fn downstream(
    cx: &mut Cx<'_>,
    socket: Option<&core::TransportSocket>,
    secrets: &SecretStore,
) -> Option<Option<Arc<DownstreamTls>>> {
    let Some(socket) = socket else { return Some(None) };
    transport_socket(cx, socket, DOWNSTREAM, |cx, any| {
        let context: tls::DownstreamTlsContext = cx.unpack(any)?;
        let required = context.require_client_certificate.as_ref().is_some_and(|required| required.value);
        let common = common(cx, context.common_tls_context.as_ref())?;
        let client_certificate = match (&common.validation, required) {
            (_, true) => ClientCertificate::Required,
            (Validation::None, false) => ClientCertificate::No,
            // A context that lists accepted names or pins requires a certificate, as in Envoy.
            (Validation::Chain { checks, .. }, false) if checks.require_certificate() => ClientCertificate::Required,
            (Validation::Chain { .. }, false) => ClientCertificate::Optional,
        };
        match DownstreamTls::new(&DownstreamTlsContext { common, client_certificate }, secrets) {
            Ok(tls) => Some(Arc::new(tls)),
            Err(error) => cx.fail(error.to_string()),
        }
    })
}

/// The transport socket of a cluster; plaintext when there is none.
pub(crate) fn upstream(
    cx: &mut Cx<'_>,
    socket: Option<&core::TransportSocket>,
    secrets: &SecretStore,
) -> Option<Transport> {
    let Some(socket) = socket else { return Some(Transport::Raw) };
    if let Some(core::transport_socket::ConfigType::TypedConfig(any)) = &socket.config_type
        && is_proxy_protocol(socket)
    {
        return cx.at("transport_socket", |cx| cx.at("typed_config", |cx| upstream_proxy_protocol(cx, any, secrets)));
    }
    let tls = transport_socket(cx, socket, UPSTREAM, |cx, any| {
        let context: tls::UpstreamTlsContext = cx.unpack(any)?;
        let common = common(cx, context.common_tls_context.as_ref())?;
        if matches!(&common.validation, Validation::Chain { checks, .. } if checks.accept_untrusted) {
            let message = "ACCEPT_UNTRUSTED in trust_chain_verification is supported only for certificates of clients";
            return cx.fail_at("common_tls_context", message);
        }
        match UpstreamTls::new(&UpstreamTlsContext { common, sni: context.sni }, secrets) {
            Ok(tls) => Some(Arc::new(tls)),
            Err(error) => cx.fail(error.to_string()),
        }
    })?;
    Some(tls.map_or(Transport::Raw, Transport::Tls))
}

/// A PROXY protocol header before another transport socket.
fn upstream_proxy_protocol(cx: &mut Cx<'_>, any: &Any, secrets: &SecretStore) -> Option<Transport> {
    let config: ProxyProtocolUpstreamTransport = cx.unpack(any)?;
    let header = config.config.unwrap_or_default();
    let (version, pass_through, added) = cx.at("config", |cx| {
        let version = cx.at("version", |cx| proxy_protocol::version(cx, header.version));
        let pass_through = proxy_protocol::selection(cx, header.pass_through_tlvs.as_ref());
        let added = cx.each("added_tlvs", &header.added_tlvs, |cx, tlv| {
            let kind = cx.at("type", |cx| proxy_protocol::tlv_type(cx, tlv.r#type))?;
            Some(Tlv { kind, value: tlv.value.clone() })
        });
        (version, pass_through, added)
    });
    let inner = match cx.required("transport_socket", config.transport_socket.as_ref())? {
        socket if is_proxy_protocol(socket) => return cx.fail_at("transport_socket", "cannot be the same again"),
        socket => upstream(cx, Some(socket), secrets)?,
    };
    let transport = ProxyProtocolTransport { version: version?, pass_through: pass_through?, added, inner };
    Some(Transport::ProxyProtocol(Arc::new(transport)))
}

fn is_proxy_protocol(socket: &core::TransportSocket) -> bool {
    matches!(&socket.config_type, Some(core::transport_socket::ConfigType::TypedConfig(any))
        if type_name(&any.type_url) == UPSTREAM_PROXY_PROTOCOL)
}

fn transport_socket<T>(
    cx: &mut Cx<'_>,
    socket: &core::TransportSocket,
    tls_type: &str,
    compile: impl FnOnce(&mut Cx<'_>, &evenkeel_xds::pb::google::protobuf::Any) -> Option<T>,
) -> Option<Option<T>> {
    cx.at("transport_socket", |cx| {
        let Some(core::transport_socket::ConfigType::TypedConfig(any)) = &socket.config_type else {
            return cx.fail_at("typed_config", "is required");
        };
        cx.at("typed_config", |cx| match type_name(&any.type_url) {
            RAW_BUFFER => Some(None),
            name if name == tls_type => compile(cx, any).map(Some),
            name => cx.fail(format!("{name} does not belong here; expected {tls_type} or {RAW_BUFFER}")),
        })
    })
}

fn common(cx: &mut Cx<'_>, context: Option<&tls::CommonTlsContext>) -> Option<CommonTlsContext> {
    let empty = tls::CommonTlsContext::default();
    let context = context.unwrap_or(&empty);
    cx.at("common_tls_context", |cx| {
        let certificates = certificates(cx, context);
        let validation = validation(cx, context);
        let params = context.tls_params.as_ref().map_or(Some(TlsParams::default()), |params| tls_params(cx, params));
        let alpn = context.alpn_protocols.clone();
        Some(CommonTlsContext { certificates: certificates?, validation: validation?, alpn, params: params? })
    })
}

/// The context's own certificates.
fn certificates(cx: &mut Cx<'_>, context: &tls::CommonTlsContext) -> Option<Vec<CertificateSource>> {
    match (&context.tls_certificates, &context.tls_certificate_sds_secret_configs) {
        (fixed, sds) if fixed.is_empty() => {
            let secrets = cx.each("tls_certificate_sds_secret_configs", sds, sds_secret);
            (secrets.len() == sds.len()).then(|| secrets.into_iter().map(CertificateSource::Sds).collect())
        }
        (fixed, sds) if sds.is_empty() => {
            let certificates = cx.each("tls_certificates", fixed, static_certificate);
            (certificates.len() == fixed.len()).then_some(certificates)
        }
        _ => cx.fail_at("tls_certificates", "cannot stand beside tls_certificate_sds_secret_configs"),
    }
}

pub(crate) fn static_certificate(cx: &mut Cx<'_>, certificate: &tls::TlsCertificate) -> Option<CertificateSource> {
    let chain = data_source(cx, "certificate_chain", certificate.certificate_chain.as_ref());
    let key = data_source(cx, "private_key", certificate.private_key.as_ref());
    Some(CertificateSource::Static { chain: DataSource::Inline(chain?), key: DataSource::Inline(key?) })
}

/// A secret that SDS delivers, by name.
fn sds_secret(cx: &mut Cx<'_>, sds: &tls::SdsSecretConfig) -> Option<SdsSecret> {
    let name = cx.non_empty("name", &sds.name)?;
    let reference = cx.reference(name, "sds_config", sds.sds_config.as_ref())?;
    let secret = secret_of(&reference);
    if !cx.references.secrets.contains(&reference) {
        cx.references.secrets.push(reference);
    }
    Some(secret)
}

/// A reference in the form the certificate store uses.
pub(crate) fn secret_of(reference: &Reference) -> SdsSecret {
    SdsSecret { name: reference.name.to_string(), server: reference.source.of_secrets() }
}

fn validation(cx: &mut Cx<'_>, context: &tls::CommonTlsContext) -> Option<Validation> {
    use tls::common_tls_context::ValidationContextType;
    match &context.validation_context_type {
        None => Some(Validation::None),
        Some(ValidationContextType::ValidationContext(context)) => {
            cx.at("validation_context", |cx| static_validation(cx, context))
        }
        Some(ValidationContextType::ValidationContextSdsSecretConfig(sds)) => {
            let secret = cx.at("validation_context_sds_secret_config", |cx| sds_secret(cx, sds))?;
            Some(Validation::Chain { trust: TrustSource::Sds(secret), checks: PeerChecks::default() })
        }
        Some(ValidationContextType::CombinedValidationContext(combined)) => {
            cx.at("combined_validation_context", |cx| combined_validation(cx, combined))
        }
        Some(_) => cx.fail("this kind of validation context is not supported"),
    }
}

fn static_validation(cx: &mut Cx<'_>, context: &tls::CertificateValidationContext) -> Option<Validation> {
    let checks = peer_checks(cx, context)?;
    if let Some(validator) = &context.custom_validator_config {
        if context.trusted_ca.is_some() {
            return cx.fail_at("trusted_ca", "has no effect beside custom_validator_config; remove one of them");
        }
        let domains = trust_domains(cx, validator)?;
        return Some(Validation::Chain { trust: TrustSource::Domains(domains), checks });
    }
    if context.trusted_ca.is_none() {
        if checks.accept_untrusted {
            return cx.fail_at("trusted_ca", "is required: without it no certificate could be verified");
        }
        return if !checks.require_certificate() && checks.revocation.is_none() {
            Some(Validation::None)
        } else {
            cx.fail_at("trusted_ca", "is required: names in a certificate nobody vouches for prove nothing")
        };
    }
    let roots = data_source(cx, "trusted_ca", context.trusted_ca.as_ref())?;
    Some(Validation::Chain { trust: TrustSource::Static(DataSource::Inline(roots)), checks })
}

/// The roots of each trust domain (`envoy.tls.cert_validator.spiffe`).
fn trust_domains(cx: &mut Cx<'_>, validator: &core::TypedExtensionConfig) -> Option<Vec<(String, Vec<u8>)>> {
    cx.at("custom_validator_config", |cx| {
        let any = cx.required("typed_config", validator.typed_config.as_ref())?;
        cx.at("typed_config", |cx| {
            if type_name(&any.type_url) != SPIFFE_VALIDATOR {
                return cx.fail(format!("{} is not supported; expected {SPIFFE_VALIDATOR}", type_name(&any.type_url)));
            }
            let config: tls::SpiffeCertValidatorConfig = cx.unpack(any)?;
            if config.trust_domains.is_empty() {
                return cx.fail_at("trust_domains", "has no entry");
            }
            let domains = cx.each("trust_domains", &config.trust_domains, |cx, domain| {
                let name = cx.non_empty("name", &domain.name)?.to_owned();
                Some((name, data_source(cx, "trust_bundle", domain.trust_bundle.as_ref())?))
            });
            (domains.len() == config.trust_domains.len()).then_some(domains)
        })
    })
}

/// Returns the settings of a context besides the roots.
fn peer_checks(cx: &mut Cx<'_>, context: &tls::CertificateValidationContext) -> Option<PeerChecks> {
    let subject_alt_names = subject_alt_names(cx, context);
    let (hashes, keys) = (&context.verify_certificate_hash, &context.verify_certificate_spki);
    let certificates = cx.check("verify_certificate_hash", Pins::new(hashes.iter().map(String::as_str), []));
    let keys = cx.check("verify_certificate_spki", Pins::new([], keys.iter().map(String::as_str)));
    let revocation = match &context.crl {
        None => None,
        Some(source) => {
            let text = data_source(cx, "crl", Some(source))?;
            Some(cx.check("crl", RevocationLists::from_pem(&text))?)
        }
    };
    let pins = certificates?.and(keys?);
    let revocation_of_leaf_only = context.only_verify_leaf_cert_crl;
    let accept_untrusted = accepts_untrusted(cx, context)?;
    Some(PeerChecks { subject_alt_names, pins, revocation, revocation_of_leaf_only, accept_untrusted })
}

/// Whether a peer is let in whose certificate does not verify.
fn accepts_untrusted(cx: &mut Cx<'_>, context: &tls::CertificateValidationContext) -> Option<bool> {
    use tls::certificate_validation_context::TrustChainVerification;
    match TrustChainVerification::try_from(context.trust_chain_verification) {
        Ok(TrustChainVerification::VerifyTrustChain) => Some(false),
        Ok(TrustChainVerification::AcceptUntrusted) => Some(true),
        Err(_) => cx.fail_at("trust_chain_verification", "must be VERIFY_TRUST_CHAIN or ACCEPT_UNTRUSTED"),
    }
}

/// The delivered context supplies the trusted CAs and their revocation lists, the default context the rest.
fn combined_validation(
    cx: &mut Cx<'_>,
    combined: &tls::common_tls_context::CombinedCertificateValidationContext,
) -> Option<Validation> {
    let sds = combined.validation_context_sds_secret_config.as_ref();
    let sds = cx.required("validation_context_sds_secret_config", sds)?;
    let secret = cx.at("validation_context_sds_secret_config", |cx| sds_secret(cx, sds));
    let checks = match &combined.default_validation_context {
        None => Some(PeerChecks::default()),
        Some(context) => cx.at("default_validation_context", |cx| {
            if context.trusted_ca.is_some() {
                cx.fail_at::<()>("trusted_ca", "is not supported beside validation_context_sds_secret_config");
            }
            if context.custom_validator_config.is_some() {
                let message = "is not supported beside validation_context_sds_secret_config; deliver it in the secret";
                cx.fail_at::<()>("custom_validator_config", message);
            }
            peer_checks(cx, context)
        }),
    };
    Some(Validation::Chain { trust: TrustSource::Sds(secret?), checks: checks? })
}

#[allow(deprecated)] // match_subject_alt_names is what Istio sends.
fn subject_alt_names(cx: &mut Cx<'_>, context: &tls::CertificateValidationContext) -> Vec<SanMatcher> {
    let mut names = cx.each("match_typed_subject_alt_names", &context.match_typed_subject_alt_names, typed_san);
    names.extend(cx.each("match_subject_alt_names", &context.match_subject_alt_names, |cx, pattern| {
        Some(SanMatcher { kind: None, pattern: string_pattern(cx, pattern)? })
    }));
    names
}

fn typed_san(cx: &mut Cx<'_>, san: &tls::SubjectAltNameMatcher) -> Option<SanMatcher> {
    use tls::subject_alt_name_matcher::SanType;
    let kind = match SanType::try_from(san.san_type) {
        Ok(SanType::Dns) => SanKind::Dns,
        Ok(SanType::Uri) => SanKind::Uri,
        Ok(SanType::Email) => SanKind::Email,
        Ok(SanType::IpAddress) => SanKind::IpAddress,
        _ => return cx.fail_at("san_type", "must be DNS, URI, EMAIL or IP_ADDRESS"),
    };
    let pattern = cx.required("matcher", san.matcher.as_ref())?;
    let pattern = cx.at("matcher", |cx| string_pattern(cx, pattern))?;
    Some(SanMatcher { kind: Some(kind), pattern })
}

fn string_pattern(cx: &mut Cx<'_>, pattern: &matcher::StringMatcher) -> Option<StringPattern> {
    use matcher::string_matcher::MatchPattern;
    let compiled = match &pattern.match_pattern {
        Some(MatchPattern::Exact(text)) => StringPattern::exact(text.as_str()),
        Some(MatchPattern::Prefix(text)) => StringPattern::prefix(text.as_str()),
        Some(MatchPattern::Suffix(text)) => StringPattern::suffix(text.as_str()),
        Some(MatchPattern::Contains(text)) => StringPattern::contains(text.as_str()),
        Some(MatchPattern::SafeRegex(regex)) => cx.check("safe_regex.regex", StringPattern::regex(&regex.regex))?,
        _ => return cx.fail("one of exact, prefix, suffix, contains, safe_regex is required"),
    };
    Some(compiled.ignoring_case(pattern.ignore_case))
}

fn tls_params(cx: &mut Cx<'_>, params: &tls::TlsParameters) -> Option<TlsParams> {
    cx.at("tls_params", |cx| {
        let minimum = version(cx, "tls_minimum_protocol_version", params.tls_minimum_protocol_version)?;
        let maximum = version(cx, "tls_maximum_protocol_version", params.tls_maximum_protocol_version)?;
        // A list entry may hold several suites of equal preference: [A|B].
        let names = params.cipher_suites.iter().flat_map(|entry| entry.trim_matches(['[', ']']).split('|'));
        let cipher_suites = names.map(str::to_owned).collect();
        let ecdh_curves = params.ecdh_curves.clone();
        Some(TlsParams { minimum_version: minimum, maximum_version: maximum, cipher_suites, ecdh_curves })
    })
}

fn version(cx: &mut Cx<'_>, field: &str, value: i32) -> Option<Option<TlsVersion>> {
    use tls::tls_parameters::TlsProtocol;
    match TlsProtocol::try_from(value) {
        Ok(TlsProtocol::TlsAuto) => Some(None),
        Ok(TlsProtocol::TlSv12) => Some(Some(TlsVersion::Tls12)),
        Ok(TlsProtocol::TlSv13) => Some(Some(TlsVersion::Tls13)),
        _ => cx.fail_at(field, "only TLS 1.2 and 1.3 are supported"),
    }
}

/// A secret delivered by SDS.
pub(crate) enum Secret {
    /// `tls_certificate`.
    Certificate {
        /// PEM chain, leaf first.
        chain: Vec<u8>,
        /// PEM key.
        key: Vec<u8>,
    },
    /// `validation_context`.
    Trust {
        /// The roots.
        roots: Roots,
        /// `crl`, PEM.
        lists: Option<Vec<u8>>,
    },
}

/// Roots of a delivered validation context, PEM.
pub(crate) enum Roots {
    /// `trusted_ca`: they vouch for every name.
    Any(Vec<u8>),
    /// `custom_validator_config`: each vouches for the identities of one trust domain.
    Domains(Vec<(String, Vec<u8>)>),
}

/// Compiles a delivered secret.
pub(crate) fn secret(cx: &mut Cx<'_>, secret: &tls::Secret) -> Option<Secret> {
    cx.non_empty("name", &secret.name)?;
    match &secret.r#type {
        Some(tls::secret::Type::TlsCertificate(certificate)) => cx.at("tls_certificate", |cx| {
            let chain = data_source(cx, "certificate_chain", certificate.certificate_chain.as_ref());
            let key = data_source(cx, "private_key", certificate.private_key.as_ref());
            Some(Secret::Certificate { chain: chain?, key: key? })
        }),
        Some(tls::secret::Type::ValidationContext(context)) => cx.at("validation_context", |cx| {
            // The accepted names and pins come from the context that refers to the secret.
            if !subject_alt_names(cx, context).is_empty() {
                return cx.fail("subject alternative names in a delivered validation context are not supported");
            }
            if !(context.verify_certificate_hash.is_empty() && context.verify_certificate_spki.is_empty()) {
                return cx.fail("hashes in a delivered validation context are not supported");
            }
            if context.only_verify_leaf_cert_crl {
                return cx.fail_at("only_verify_leaf_cert_crl", "is not supported in a delivered validation context");
            }
            if accepts_untrusted(cx, context)? {
                let message = "ACCEPT_UNTRUSTED is not supported in a delivered validation context";
                return cx.fail_at("trust_chain_verification", message);
            }
            let lists = match &context.crl {
                None => None,
                Some(source) => Some(data_source(cx, "crl", Some(source))?),
            };
            let roots = match &context.custom_validator_config {
                None => Roots::Any(data_source(cx, "trusted_ca", context.trusted_ca.as_ref())?),
                // As in Envoy, `trusted_ca` has no effect then.
                Some(validator) => Roots::Domains(trust_domains(cx, validator)?),
            };
            Some(Secret::Trust { roots, lists })
        }),
        _ => cx.fail("one of tls_certificate, validation_context is required"),
    }
}
