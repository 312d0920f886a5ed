//! What operators print of the tries of a request.

use std::net::SocketAddr;

use evenkeel_runtime_config::substitution_format::Attempted;

use super::record::Record;
use super::sink::Sink;

/// Lists what was tried, in order; a host as often as it was.
pub(super) fn attempted(what: Attempted, record: &Record<'_>, sink: &mut impl Sink) {
    let stream = record.stream;
    let mut all: Vec<String> = Vec::with_capacity(stream.earlier_tries.len() + 1);
    for earlier in &stream.earlier_tries {
        all.extend(match what {
            Attempted::Hosts { port } => Some(shown(&earlier.host, port).to_owned()),
            Attempted::HostNames { port } => Some(named(&earlier.hostname, &earlier.host, port).to_owned()),
            Attempted::Connections => earlier.connection.map(|id| id.to_string()),
        });
    }
    all.extend(match what {
        Attempted::Hosts { port } => stream.host.as_deref().map(|host| shown(host, port).to_owned()),
        Attempted::HostNames { port } => host_name(record, port).map(str::to_owned),
        Attempted::Connections => stream.upstream_connection.map(|id| id.to_string()),
    });
    sink.non_empty(&all.join(","));
}

/// The name of the last try's host, or its address.
pub(super) fn host_name<'r>(record: &Record<'r>, port: bool) -> Option<&'r str> {
    let name = record.upstream.map(|upstream| &*upstream.endpoint.hostname).unwrap_or_default();
    record.stream.host.as_deref().map(|host| named(name, host, port))
}

fn named<'t>(name: &'t str, host: &'t str, port: bool) -> &'t str {
    if name.is_empty() { shown(host, port) } else { name_of(name, port) }
}

/// A name may have a port.
fn name_of(name: &str, port: bool) -> &str {
    match name.rsplit_once(':') {
        Some((name, digits)) if !port && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => name,
    }
}

/// `ADDRESS:PORT`, or a path, which has no port.
fn shown(host: &str, port: bool) -> &str {
    match host.parse::<SocketAddr>() {
        Ok(_) if !port => host.rsplit_once(':').map_or(host, |(address, _)| address.trim_matches(['[', ']'])),
        _ => host,
    }
}
