//! Log lines about whole connections: the listener's access log, and the TCP proxy's.

use std::sync::Arc;

use evenkeel_filters::format::Record;
use evenkeel_filters::network::Close;
use evenkeel_filters::{ConnectionInfo, ResponseFlags, StreamInfo};
use evenkeel_runtime_config::Listener;
use evenkeel_runtime_config::listener::{FilterChain, Terminal};

use super::handshake::{Blame, Failure, TIMED_OUT};
use crate::access_log::Lines;
use crate::connection_record::record_of_connection;
use crate::observers;
use crate::worker::Worker;

/// A listener filter closed the connection.
pub(super) fn closed(worker: &Worker, listener: &Listener, info: &ConnectionInfo) {
    write(worker, listener, &stream_of(info), info);
}

/// Logs a connection that no filter chain matches.
pub(super) fn unmatched(worker: &Worker, listener: &Listener, info: &ConnectionInfo) {
    let mut stream = stream_of(info);
    stream.flags = ResponseFlags::NO_ROUTE_FOUND;
    stream.details = "filter_chain_not_found".into();
    write(worker, listener, &stream, info);
}

/// Logs a failed TLS handshake of a client. The certificate logged here is the one that was rejected.
pub(super) fn failed_handshake(
    worker: &Worker,
    listener: &Listener,
    mut info: ConnectionInfo,
    chain: &FilterChain,
    failure: Failure,
) {
    let mut stream = stream_of(&info);
    stream.handshake_failure = Some(failure.reason.into());
    info.session = Some(Arc::new(failure.session));
    if matches!(failure.blame, Blame::Timeout) {
        stream.termination = TIMED_OUT.into();
    }
    let Terminal::Tcp(proxy) = &chain.terminal else { return write(worker, listener, &stream, &info) };
    let destination = proxy.destination(info.view.server_name.as_ref(), worker.random.next());
    stream.cluster_name = destination.map(|(cluster, _)| Arc::clone(cluster));
    let logs = listener.access_logs.iter().chain(&proxy.access_logs);
    let end = Record { cut_off: true, ..record_of_connection(&stream, &info) };
    observers::show(&end, &mut [&mut Lines { log: &worker.log, logs }]);
}

/// A network filter closed the connection before it carried a request: only the listener's log can record it.
pub(super) fn refused(worker: &Worker, listener: &Listener, info: &ConnectionInfo, close: &Close) {
    let mut stream = stream_of(info);
    stream.termination = close.details.clone();
    stream.flags = close.flag.and_then(ResponseFlags::from_short_name).unwrap_or_default();
    write(worker, listener, &stream, info);
}

/// Stream info that contains only the connection's metadata.
fn stream_of(info: &ConnectionInfo) -> StreamInfo {
    let mut stream = StreamInfo::new(info.accepted);
    info.view.metadata.iter().for_each(|metadata| stream.metadata.clone_from(metadata));
    stream
}

/// Shows a connection that has ended before its filter chain served it to the observers.
fn write(worker: &Worker, listener: &Listener, stream: &StreamInfo, info: &ConnectionInfo) {
    let end = Record { cut_off: true, ..record_of_connection(stream, info) };
    observers::show(&end, &mut [&mut Lines { log: &worker.log, logs: listener.access_logs.iter() }]);
}
