//! `connection`, `upstream`, `source` and `destination`.

use std::net::SocketAddr;

use evenkeel_cel::Value;
use evenkeel_tls::{PeerCertificate, Session};

use crate::format::Record;

pub(super) fn of_connection(record: &Record<'_>, field: &str) -> Option<Value> {
    let session = record.connection.session.as_deref();
    match field {
        "mtls" => Some(Value::Bool(session.is_some_and(|session| session.peer.is_some()))),
        "requested_server_name" => record.connection.view.server_name.as_deref().map(Value::text),
        "id" => i64::try_from(record.connection.id).ok().map(Value::Int),
        "termination_details" => known(&record.stream.termination),
        "transport_failure_reason" => known(record.stream.handshake_failure.as_deref()?),
        field => of_session(session?, field),
    }
}

pub(super) fn of_upstream(record: &Record<'_>, field: &str) -> Option<Value> {
    match field {
        "address" => record.stream.host.as_deref().map(Value::text),
        "port" => record.stream.host.as_deref()?.rsplit_once(':')?.1.parse().ok().map(Value::Int),
        "local_address" => record.stream.upstream_local.map(address),
        "transport_failure_reason" => known(&record.stream.transport_failure),
        "request_attempt_count" => Some(Value::Int(record.stream.attempts.into())),
        field => of_session(record.upstream?.session?, field),
    }
}

pub(super) fn of_source(record: &Record<'_>, field: &str) -> Option<Value> {
    of_address(record.stream.client.unwrap_or(record.connection.view.remote), field)
}

pub(super) fn of_destination(record: &Record<'_>, field: &str) -> Option<Value> {
    of_address(record.connection.view.local, field)
}

fn of_address(socket: SocketAddr, field: &str) -> Option<Value> {
    match field {
        "address" => Some(address(socket)),
        "port" => Some(Value::Int(socket.port().into())),
        _ => None,
    }
}

fn address(address: SocketAddr) -> Value {
    Value::text(&SocketAddr::new(address.ip().to_canonical(), address.port()).to_string())
}

fn of_session(session: &Session, field: &str) -> Option<Value> {
    if field == "tls_version" {
        return known(session.version);
    }
    let (peer, local) = (session.peer.as_deref(), session.local.as_deref());
    let first = |names: &[String]| names.first().and_then(|name| known(name));
    match field {
        "subject_peer_certificate" => known(&peer?.subject),
        "subject_local_certificate" => known(&local?.subject),
        "uri_san_peer_certificate" => first(&peer?.uri_sans),
        "uri_san_local_certificate" => first(&local?.uri_sans),
        "dns_san_peer_certificate" => first(&peer?.dns_sans),
        "dns_san_local_certificate" => first(&local?.dns_sans),
        "sha256_peer_certificate_digest" => peer.map(digest),
        _ => None,
    }
}

fn digest(certificate: &PeerCertificate) -> Value {
    Value::text(&certificate.sha256.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn known(text: &str) -> Option<Value> {
    (!text.is_empty()).then(|| Value::text(text))
}
