//! What logs say of a whole connection: the listener's access log, and the TCP proxy's.

use std::time::SystemTime;

use evenkeel_filters::ConnectionInfo;
use evenkeel_filters::network::Close;
use evenkeel_runtime_config::Listener;
use evenkeel_runtime_config::listener::{FilterChain, Terminal};
use evenkeel_tls::Session;
use tokio::time::Instant;

use super::handshake::{Blame, Failure, TIMED_OUT};
use crate::access_log::Record;
use crate::response_flags::ResponseFlags;
use crate::worker::Worker;

/// A listener filter has closed the connection.
pub(super) fn closed(worker: &Worker, (listener, info): (&Listener, &ConnectionInfo)) {
    write(worker, listener, &of_connection(info));
}

/// No filter chain takes the connection.
pub(super) fn unmatched(worker: &Worker, (listener, info): (&Listener, &ConnectionInfo)) {
    let mut record = of_connection(info);
    record.flags = ResponseFlags::NO_ROUTE_FOUND;
    record.response_code_details = "filter_chain_not_found";
    write(worker, listener, &record);
}

/// The client's TLS handshake failed. The certificate that is named here was refused.
pub(super) fn failed_handshake(
    worker: &Worker,
    (listener, info): (&Listener, &ConnectionInfo),
    chain: &FilterChain,
    failure: &Failure,
) {
    let mut record = of_connection(info);
    record.downstream_transport_failure_reason = &failure.reason;
    if matches!(failure.blame, Blame::Timeout) {
        record.connection_termination_details = TIMED_OUT;
    }
    let Session { peer, local, version, cipher, .. } = &failure.session;
    if let Some(peer) = peer {
        record.downstream_peer_uri_sans = &peer.uri_sans;
        record.downstream_peer_subject = &peer.subject;
    }
    if let Some(local) = local {
        record.downstream_local_uri_sans = &local.uri_sans;
    }
    record.downstream_tls_version = Some(*version).filter(|version| !version.is_empty());
    record.downstream_tls_cipher = Some(*cipher).filter(|cipher| !cipher.is_empty());
    let Terminal::Tcp(proxy) = &chain.terminal else { return write(worker, listener, &record) };
    let destination = proxy.destination(info.view.server_name.as_ref(), worker.random.next());
    record.upstream_cluster = destination.map(|(cluster, _)| &**cluster);
    write(worker, listener, &record);
    proxy.access_logs.iter().for_each(|log| worker.log.borrow_mut().write(log, &record));
}

/// A network filter closes a connection before it has carried a request: only the listener's log can tell of it.
pub(super) fn refused(worker: &Worker, listener: &Listener, info: &ConnectionInfo, close: &Close) {
    let mut record = of_connection(info);
    record.connection_termination_details = &close.details;
    record.flags = close.flag.and_then(ResponseFlags::from_short_name).unwrap_or_default();
    write(worker, listener, &record);
}

/// What is known of a connection.
pub(crate) fn of_connection(info: &ConnectionInfo) -> Record<'_> {
    let duration = Instant::from_std(info.accepted).elapsed();
    let now = SystemTime::now();
    let mut record = Record::new(now.checked_sub(duration).unwrap_or(now));
    record.duration = duration;
    record.set_connection(info);
    record
}

/// Writes the listener's line of a connection that has ended.
pub(crate) fn write(worker: &Worker, listener: &Listener, record: &Record<'_>) {
    for log in &listener.access_logs {
        worker.log.borrow_mut().write(log, record);
    }
}
