//! `/certs`: the certificates and CA certificates in use, and when they expire.

use std::time::SystemTime;

use evenkeel_tls::PeerCertificate;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, SpiffeCertValidatorConfig, secret::Type,
};
use evenkeel_xds::unpack;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::{Value as Json, json};

use super::apart::{Deadline, Drawing};
use super::config_dump::rfc3339;
use super::{Admin, Query, Reply};

const DAY_SECONDS: u64 = 24 * 60 * 60;

pub(super) fn page(admin: &Admin, _: &Query) -> Result<Drawing, Reply> {
    let state = admin.shared.state.borrow();
    let secrets: Vec<Secret> = state.records.values().filter_map(|record| record.public_secret.clone()).collect();
    Ok(Box::new(move |deadline| draw(&secrets, deadline)))
}

fn draw(secrets: &[Secret], deadline: &Deadline) -> Reply {
    // After the deadline the page is discarded anyway.
    let in_time = secrets.iter().take_while(|_| !deadline.is_over());
    let certificates: Vec<Json> = in_time
        .filter_map(|secret| {
            let (certificates, roots) = match secret.r#type.as_ref()? {
                Type::TlsCertificate(tls) => (described(&secret.name, tls.certificate_chain.as_ref()), Vec::new()),
                Type::ValidationContext(context) => (Vec::new(), roots(&secret.name, context)),
                _ => return None,
            };
            Some(json!({"ca_cert": roots, "cert_chain": certificates}))
        })
        .collect();
    Reply::json(&json!({ "certificates": certificates }))
}

/// The roots; of a SPIFFE validator with the trust domain that each vouches for.
fn roots(secret: &str, context: &CertificateValidationContext) -> Vec<Json> {
    let mut roots = described(secret, context.trusted_ca.as_ref());
    let validator = context.custom_validator_config.as_ref().and_then(|validator| validator.typed_config.as_ref());
    let domains = validator.and_then(|config| unpack::<SpiffeCertValidatorConfig>(config).ok());
    for domain in domains.iter().flat_map(|config| &config.trust_domains) {
        roots.extend(described(&format!("{secret}: {}", domain.name), domain.trust_bundle.as_ref()));
    }
    roots
}

fn described(secret: &str, source: Option<&DataSource>) -> Vec<Json> {
    let pem: &[u8] = match source.and_then(|source| source.specifier.as_ref()) {
        Some(Specifier::InlineBytes(bytes)) => bytes,
        Some(Specifier::InlineString(text)) => text.as_bytes(),
        _ => return Vec::new(),
    };
    let parsed = CertificateDer::pem_slice_iter(pem).flatten();
    parsed.filter_map(|der| PeerCertificate::parse(&[der]).ok()).map(|cert| describe(secret, &cert)).collect()
}

fn describe(secret: &str, certificate: &PeerCertificate) -> Json {
    let left = certificate.not_after().duration_since(SystemTime::now()).unwrap_or_default();
    let uris = certificate.uri_sans.iter().map(|uri| json!({ "uri": uri }));
    let names = certificate.dns_sans.iter().map(|name| json!({ "dns": name }));
    json!({
        "path": format!("<sds: {secret}>"),
        "serial_number": certificate.serial,
        "subject_alt_names": uris.chain(names).collect::<Vec<_>>(),
        "days_until_expiration": (left.as_secs() / DAY_SECONDS).to_string(),
        "valid_from": rfc3339(certificate.not_before()),
        "expiration_time": rfc3339(certificate.not_after()),
    })
}
