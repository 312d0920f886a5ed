//! A client's connection: what it speaks, and who serves that.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::Version;
use evenkeel_http::h2::PREFACE;
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::Codec;
use evenkeel_upstream::alpn::{Spoken, spoken_by_client};
use evenkeel_upstream::stream::Stream;

use super::context::{ConnectionContext, Protocol};
use super::http1::{Beginning, Http1Connection, Next};
use super::http2;
use crate::listener::{self, Leaving, Terminating};
use crate::worker::{Directive, Registration, Worker};

/// Serves a connection to its end, or until it is to go on elsewhere.
///
/// What comes before the first byte happens here and not in the future: a future keeps its arguments for as long as it lives,
/// which for an idle connection is long.
pub(crate) fn serve<'w>(
    worker: &Rc<Worker>,
    downstream: listener::Downstream,
    hcm: Arc<HttpConnectionManager>,
    registration: &'w Rc<Registration>,
) -> Terminating<'w> {
    let generation = worker.generation();
    let manager = generation.manager(worker, &hcm);
    drop(generation);
    let idle_since = downstream.idle_since;
    let (side, origin) = ConnectionContext::new(worker, manager, hcm, downstream, registration);
    let mut connection = Http1Connection::new((origin, side), idle_since);
    Box::pin(async move {
        match protocol(&mut connection).await {
            Opening::Speaks(protocol @ Protocol::Http1) => {
                connection.origin.speaks(protocol);
                if !matches!(connection.side.stream, Stream::Layered(_)) {
                    registration.set_movable();
                }
                registration.set_travels(matches!(connection.side.stream, Stream::Tcp(_)));
                // Between two turns of this loop the connection is at a message boundary: nothing of it is anywhere but in
                // `connection`.
                loop {
                    match connection.wait_for_request().await {
                        Next::Request if connection.serve_request().await => {}
                        Next::Request | Next::End => break,
                        Next::Leave(to) => return Some(leaving(connection, to)),
                    }
                }
                connection.side.close().await;
            }
            Opening::Speaks(protocol @ Protocol::Http2(carried)) => {
                connection.origin.speaks(protocol);
                registration.set_travels(false);
                let Http1Connection { origin, side, .. } = connection;
                // Boxed: most connections are the other kind, and would be larger for it.
                Box::pin(http2::serve(origin, side.stream, side.input, carried)).await;
            }
            Opening::Leaves(to) => return Some(leaving(connection, to)),
            Opening::Gone => {}
        }
        None
    })
}

fn leaving(connection: Http1Connection, to: Directive) -> Box<Leaving> {
    Box::new(Leaving { downstream: connection.into_downstream(), upstream: None, to })
}

/// How a connection begins.
enum Opening {
    Speaks(Protocol),
    /// It is to go on elsewhere before its client has said a word.
    Leaves(Directive),
    /// Its client left.
    Gone,
}

/// What the client speaks: as configured, as agreed on in the TLS handshake, or as its first bytes say.
async fn protocol(connection: &mut Http1Connection) -> Opening {
    let origin = &connection.origin;
    let agreed = origin
        .info
        .session
        .as_ref()
        .and_then(|session| spoken_by_client(session.alpn.as_deref(), session.peer.is_some()));
    match (origin.hcm.codec, agreed) {
        // Of those that have spoken, only such connections move.
        _ if origin.resumed && connection.side.requests() > 0 => Opening::Speaks(Protocol::Http1),
        (Codec::Http1, _) | (Codec::Auto, Some(Spoken::Http1)) => Opening::Speaks(Protocol::Http1),
        (Codec::Http2 | Codec::Auto, Some(Spoken::Http2(carried))) => Opening::Speaks(Protocol::Http2(carried)),
        (Codec::Http2, _) => Opening::Speaks(Protocol::Http2(Version::Http2)),
        (Codec::Auto, None) => {
            origin.registration.set_travels(matches!(connection.side.stream, Stream::Tcp(_)));
            match connection.begins_with(PREFACE).await {
                Beginning::Expected => Opening::Speaks(Protocol::Http2(Version::Http2)),
                Beginning::Other => Opening::Speaks(Protocol::Http1),
                Beginning::None => Opening::Gone,
                Beginning::Leaves(to) => Opening::Leaves(to),
            }
        }
    }
}
