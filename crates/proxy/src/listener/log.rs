//! What logs say of a whole connection: the listener's access log, and the TCP proxy's.

use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_filters::network::Close;
use evenkeel_runtime_config::Listener;
use evenkeel_runtime_config::listener::{FilterChain, Terminal};
use evenkeel_tls::Session;
use tokio::time::Instant;

use super::detect::Ends;
use super::handshake::{Blame, Failure, TIMED_OUT};
use super::serve::{Downstream, plain_view};
use crate::access_log::Record;
use crate::response_flags::ResponseFlags;
use crate::worker::Worker;

/// A connection that is logged, from its accept on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Young<'a> {
    pub(super) ends: Ends,
    pub(super) id: u64,
    pub(super) since: Instant,
    pub(super) listener: &'a Listener,
}

/// A listener filter has closed the connection.
pub(super) fn closed(worker: &Worker, young: Young<'_>) {
    write(worker, young.listener, &of_ends(&young));
}

/// No filter chain takes the connection.
pub(super) fn unmatched(worker: &Worker, young: Young<'_>) {
    let mut record = of_ends(&young);
    record.flags = ResponseFlags::NO_ROUTE_FOUND;
    record.response_code_details = "filter_chain_not_found";
    write(worker, young.listener, &record);
}

/// The client's TLS handshake failed. The certificate that is named here was refused.
pub(super) fn failed_handshake(
    worker: &Worker,
    young: Young<'_>,
    chain: &FilterChain,
    server_name: Option<&Arc<str>>,
    failure: &Failure,
) {
    let mut record = of_ends(&young);
    record.set_filter_chain(chain);
    record.requested_server_name = server_name.map(|name| &**name);
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
    let Terminal::Tcp(proxy) = &chain.terminal else { return write(worker, young.listener, &record) };
    let destination = proxy.destination(server_name, worker.random.next());
    record.upstream_cluster = destination.map(|(cluster, _)| &**cluster);
    write(worker, young.listener, &record);
    proxy.access_logs.iter().for_each(|log| worker.log.borrow_mut().write(log, &record));
}

/// A network filter closes a connection before it has carried a request: only the listener's log can tell of it.
pub(super) fn refused(worker: &Worker, listener: &Listener, downstream: &Downstream, close: &Close) {
    let mut record = of_connection(downstream);
    record.connection_termination_details = &close.details;
    record.flags = close.flag.and_then(ResponseFlags::from_short_name).unwrap_or_default();
    write(worker, listener, &record);
}

/// What is known of a connection that a filter chain serves, or served.
pub(crate) fn of_connection(downstream: &Downstream) -> Record<'_> {
    let mut record = begun(downstream.id, downstream.since);
    let session = downstream.stream.session().map(|session| &**session);
    record.set_connection(&downstream.view, session, &downstream.chain);
    record
}

/// Writes the listener's line of a connection that has ended.
pub(crate) fn write(worker: &Worker, listener: &Listener, record: &Record<'_>) {
    for log in &listener.access_logs {
        worker.log.borrow_mut().write(log, record);
    }
}

fn of_ends(young: &Young<'_>) -> Record<'static> {
    let mut record = begun(young.id, young.since);
    record.set_ends(&plain_view(young.ends));
    record
}

fn begun(id: u64, since: Instant) -> Record<'static> {
    let duration = since.elapsed();
    let now = SystemTime::now();
    let mut record = Record::new(now.checked_sub(duration).unwrap_or(now));
    record.duration = duration;
    record.connection_id = id;
    record
}
