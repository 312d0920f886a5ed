//! The client's TLS as the message of entries.

use evenkeel_filters::ConnectionInfo;
use evenkeel_tls::PeerCertificate;
use evenkeel_xds::pb::envoy::data::accesslog::v3::TlsProperties;
use evenkeel_xds::pb::envoy::data::accesslog::v3::tls_properties::certificate_properties::SubjectAltName;
use evenkeel_xds::pb::envoy::data::accesslog::v3::tls_properties::certificate_properties::subject_alt_name::San;
use evenkeel_xds::pb::envoy::data::accesslog::v3::tls_properties::{CertificateProperties, TlsVersion};
use evenkeel_xds::pb::google::protobuf::UInt32Value;

/// Numbers of cipher suites (IANA's registry), by OpenSSL's names.
const CIPHER_SUITES: [(&str, u32); 9] = [
    ("TLS_AES_128_GCM_SHA256", 0x1301),
    ("TLS_AES_256_GCM_SHA384", 0x1302),
    ("TLS_CHACHA20_POLY1305_SHA256", 0x1303),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", 0xC02B),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", 0xC02C),
    ("ECDHE-RSA-AES128-GCM-SHA256", 0xC02F),
    ("ECDHE-RSA-AES256-GCM-SHA384", 0xC030),
    ("ECDHE-RSA-CHACHA20-POLY1305", 0xCCA8),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", 0xCCA9),
];
/// The value that Envoy sends before a cipher suite is negotiated.
const NO_CIPHER_SUITE: u32 = 0xFFFF;

/// Returns the TLS properties of a connection; `None` without TLS.
pub(super) fn properties(connection: &ConnectionInfo) -> Option<TlsProperties> {
    let server_name = connection.view.server_name.as_deref().unwrap_or_default().to_owned();
    let Some(session) = &connection.session else {
        let only_name = || TlsProperties { tls_sni_hostname: server_name.clone(), ..TlsProperties::default() };
        return (!server_name.is_empty()).then(only_name);
    };
    let version = match session.version {
        "TLSv1.2" => TlsVersion::TlSv12,
        "TLSv1.3" => TlsVersion::TlSv13,
        _ => TlsVersion::VersionUnspecified,
    };
    let suite = CIPHER_SUITES.iter().find(|(name, _)| *name == session.cipher).map_or(NO_CIPHER_SUITE, |(_, id)| *id);
    Some(TlsProperties {
        tls_version: version.into(),
        tls_cipher_suite: Some(UInt32Value { value: suite }),
        tls_sni_hostname: server_name,
        local_certificate_properties: Some(certificate(session.local.as_deref())),
        peer_certificate_properties: Some(CertificateProperties {
            issuer: session.peer.as_ref().map(|peer| peer.issuer.clone()).unwrap_or_default(),
            ..certificate(session.peer.as_deref())
        }),
        ..TlsProperties::default()
    })
}

/// Writes a certificate; the issuer only of the peer's, as Envoy does.
fn certificate(certificate: Option<&PeerCertificate>) -> CertificateProperties {
    let Some(certificate) = certificate else { return CertificateProperties::default() };
    let uri = |uri: &String| SubjectAltName { san: Some(San::Uri(uri.clone())) };
    CertificateProperties {
        subject_alt_name: certificate.uri_sans.iter().map(uri).collect(),
        subject: certificate.subject.clone(),
        ..CertificateProperties::default()
    }
}
