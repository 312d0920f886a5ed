//! What operators print of certificates and TLS sessions.

use std::time::SystemTime;

use evenkeel_runtime_config::substitution_format::{Certificate, CertificateField, Side, TlsField, Whose};
use evenkeel_tls::{PeerCertificate, Session};

use super::record::Record;
use super::sink::{Sink, join, list};
use super::time;

/// The session with the client, or with the host of the last try.
fn session<'r>(side: Side, record: &Record<'r>) -> Option<&'r Session> {
    match side {
        Side::Downstream => record.connection.session.as_deref(),
        Side::Upstream => record.upstream?.session,
    }
}

pub(super) fn tls(side: Side, field: TlsField, record: &Record<'_>, sink: &mut impl Sink) {
    let Some(session) = session(side, record) else { return sink.absent() };
    match field {
        TlsField::Version => sink.non_empty(session.version),
        TlsField::Cipher => sink.non_empty(session.cipher),
        TlsField::Group => sink.non_empty(group(session.group)),
        TlsField::ServerName => sink.string(session.server_name.as_deref()),
    }
}

/// BoringSSL's name of a group, which Envoy prints.
fn group(rustls: &'static str) -> &'static str {
    match rustls {
        "secp256r1" => "P-256",
        "secp384r1" => "P-384",
        "secp521r1" => "P-521",
        other => other,
    }
}

pub(super) fn certificate(wanted: &Certificate, record: &Record<'_>, sink: &mut impl Sink) {
    let session = session(wanted.side, record);
    let certificate = session.and_then(|session| match wanted.whose {
        Whose::Peer => session.peer.as_deref(),
        Whose::Local => session.local.as_deref(),
    });
    match certificate {
        Some(certificate) => field(&wanted.field, certificate, sink),
        None => sink.absent(),
    }
}

fn field(field: &CertificateField, certificate: &PeerCertificate, sink: &mut impl Sink) {
    match field {
        CertificateField::UriSan => list(&certificate.uri_sans, sink),
        CertificateField::DnsSan => list(&certificate.dns_sans, sink),
        CertificateField::IpSan => list(&certificate.ip_sans, sink),
        CertificateField::EmailSan => list(&certificate.email_sans, sink),
        CertificateField::Subject => sink.non_empty(&certificate.subject),
        CertificateField::Issuer => sink.non_empty(&certificate.issuer),
        CertificateField::Serial => sink.non_empty(&certificate.serial),
        CertificateField::Sha256 => sink.non_empty(&certificate.sha256_hex()),
        CertificateField::Sha1 => sink.non_empty(&certificate.chain_sha1().first().cloned().unwrap_or_default()),
        CertificateField::IssuerSha256 => sink.string(certificate.chain_sha256().get(1).map(String::as_str)),
        CertificateField::IssuerSerial => sink.string(certificate.chain_serials().get(1).map(String::as_str)),
        CertificateField::ChainSha256 => joined(&certificate.chain_sha256(), sink),
        CertificateField::ChainSha1 => joined(&certificate.chain_sha1(), sink),
        CertificateField::ChainSerials => joined(&certificate.chain_serials(), sink),
        CertificateField::Pem => sink.non_empty(&certificate.encoded_pem()),
        CertificateField::NotBefore(format) => moment(certificate.not_before(), format.as_deref(), sink),
        CertificateField::NotAfter(format) => moment(certificate.not_after(), format.as_deref(), sink),
    }
}

fn joined(items: &[String], sink: &mut impl Sink) {
    let items = Some(items).filter(|items| !items.is_empty());
    sink.text_of(items, |items, out| join(items.iter().map(String::as_str), out));
}

fn moment(at: SystemTime, format: Option<&str>, sink: &mut impl Sink) {
    sink.text(|out| match format {
        None => time::write_default(at, out),
        Some(format) => time::write_custom(at, format, out),
    });
}
