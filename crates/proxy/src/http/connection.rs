//! A client's connection: what it speaks, and who serves that.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::Version;
use evenkeel_http::h2::PREFACE;
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::hcm::Codec;

use super::http1::{Http1Connection, Next};
use super::http2;
use super::origin::{Origin, Protocol};
use crate::alpn::{Spoken, spoken_by_client};
use crate::listener::{self, Leaving, Terminating};
use crate::stream::Stream;
use crate::worker::{Registration, Worker};

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
    let (side, origin) = Origin::new(worker, manager, hcm, downstream, registration);
    let mut connection = Http1Connection::new(origin, side);
    Box::pin(async move {
        match protocol(&mut connection).await {
            Some(protocol @ Protocol::Http1) => {
                connection.origin.speaks(protocol);
                registration.set_movable();
                registration.set_travels(matches!(connection.side.stream, Stream::Tcp(_)));
                // Between two turns of this loop the connection is at a message boundary: nothing of it is anywhere but in
                // `connection`.
                loop {
                    match connection.wait_for_request().await {
                        Next::Request if connection.serve_request().await => {}
                        Next::Request | Next::End => break,
                        Next::Leave(to) => {
                            let downstream = connection.into_downstream();
                            return Some(Box::new(Leaving { downstream, upstream: None, to }));
                        }
                    }
                }
                connection.side.close().await;
            }
            Some(protocol @ Protocol::Http2(carried)) => {
                connection.origin.speaks(protocol);
                let Http1Connection { origin, side, .. } = connection;
                // Boxed: most connections are the other kind, and would be larger for it.
                Box::pin(http2::serve(origin, side.stream, side.input, carried)).await;
            }
            None => {}
        }
        None
    })
}

/// What the client speaks: as configured, as agreed on in the TLS handshake, or as its first bytes say. `None`: it left.
async fn protocol(connection: &mut Http1Connection) -> Option<Protocol> {
    let origin = &connection.origin;
    let agreed = origin.session.as_ref().and_then(|session| spoken_by_client(session.alpn.as_deref()));
    match (origin.hcm.codec, agreed) {
        // Only such connections move.
        _ if origin.resumed => Some(Protocol::Http1),
        (Codec::Http1, _) | (Codec::Auto, Some(Spoken::Http1)) => Some(Protocol::Http1),
        (Codec::Http2 | Codec::Auto, Some(Spoken::Http2(carried))) => Some(Protocol::Http2(carried)),
        (Codec::Http2, _) => Some(Protocol::Http2(Version::Http2)),
        (Codec::Auto, None) => match connection.begins_with(PREFACE).await? {
            true => Some(Protocol::Http2(Version::Http2)),
            false => Some(Protocol::Http1),
        },
    }
}
