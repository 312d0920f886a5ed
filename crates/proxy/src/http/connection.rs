//! A client's connection: finds out its protocol, then serves it as HTTP/1 or HTTP/2.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::Version;
use evenkeel_http::h2::PREFACE;
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::Codec;
use evenkeel_upstream::alpn::{Negotiated, negotiated_by_client};
use evenkeel_upstream::stream::Stream;

use super::context::{ConnectionContext, Protocol};
use super::http1::{FirstBytes, Http1Connection, Next};
use super::http2;
use crate::listener::{self, MovingConnection, Terminating};
use crate::worker::{Directive, Registration, Worker};

/// Serves a connection to its end, or until it is handed over.
///
/// What comes before the first byte is done here and not in the future: a future keeps its arguments for as long as it lives, which for an
/// idle connection is long.
pub(crate) fn serve<'w>(
    worker: &Rc<Worker>,
    downstream: listener::Downstream,
    hcm: Arc<HttpConnectionManager>,
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    let generation = worker.generation();
    let manager = generation.manager(&worker.reporters, &hcm);
    drop(generation);
    let idle_since = downstream.idle_since;
    let (side, conn) = ConnectionContext::new(worker, manager, hcm, downstream, registration);
    let mut connection = Http1Connection::new((conn, side), idle_since);
    Box::pin(async move {
        match protocol(&mut connection).await {
            ProtocolChoice::Speaks(protocol @ Protocol::Http1) => {
                connection.conn.speaks(protocol);
                if !matches!(connection.side.stream, Stream::Layered(_)) {
                    registration.set_movable();
                }
                registration.set_travels(matches!(connection.side.stream, Stream::Tcp(_)));
                // Between two iterations of this loop the connection is at a message boundary: all of its state is in `connection`.
                loop {
                    match connection.wait_for_request().await {
                        Next::Request if connection.serve_request().await => {}
                        Next::Request | Next::End => break,
                        Next::Leave(to) => return Some(moving(connection, to)),
                    }
                }
                connection.side.close().await;
            }
            ProtocolChoice::Speaks(protocol @ Protocol::Http2(carried)) => {
                connection.conn.speaks(protocol);
                registration.set_travels(false);
                let Http1Connection { conn, side, .. } = connection;
                // Boxed: most connections are HTTP/1, whose future would be larger for it.
                Box::pin(http2::serve(conn, side.stream, side.input, carried)).await;
            }
            ProtocolChoice::Leaves(to) => return Some(moving(connection, to)),
            ProtocolChoice::Gone => {}
        }
        None
    })
}

fn moving(connection: Http1Connection, to: Directive) -> Box<MovingConnection> {
    Box::new(MovingConnection { downstream: connection.into_downstream(), upstream: None, to })
}

/// The outcome of finding out the protocol.
enum ProtocolChoice {
    Speaks(Protocol),
    /// The connection is handed over before its client has sent anything.
    Leaves(Directive),
    /// The client has disconnected.
    Gone,
}

/// The client's protocol: as configured, as negotiated by ALPN, or as its first bytes show.
async fn protocol(connection: &mut Http1Connection) -> ProtocolChoice {
    let conn = &connection.conn;
    let agreed = conn
        .info
        .session
        .as_ref()
        .and_then(|session| negotiated_by_client(session.alpn.as_deref(), session.peer.is_some()));
    match (conn.hcm.codec, agreed) {
        // Of the connections that have carried requests, only HTTP/1 is handed over.
        _ if conn.resumed && connection.side.requests() > 0 => ProtocolChoice::Speaks(Protocol::Http1),
        (Codec::Http1, _) | (Codec::Auto, Some(Negotiated::Http1)) => ProtocolChoice::Speaks(Protocol::Http1),
        (Codec::Http2 | Codec::Auto, Some(Negotiated::Http2(carried))) => {
            ProtocolChoice::Speaks(Protocol::Http2(carried))
        }
        (Codec::Http2, _) => ProtocolChoice::Speaks(Protocol::Http2(Version::Http2)),
        (Codec::Auto, None) => {
            conn.registration.set_travels(matches!(connection.side.stream, Stream::Tcp(_)));
            match connection.begins_with(PREFACE).await {
                FirstBytes::Expected => ProtocolChoice::Speaks(Protocol::Http2(Version::Http2)),
                FirstBytes::Other => ProtocolChoice::Speaks(Protocol::Http1),
                FirstBytes::None => ProtocolChoice::Gone,
                FirstBytes::Leaves(to) => ProtocolChoice::Leaves(to),
            }
        }
    }
}
