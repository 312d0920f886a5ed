//! A gRPC server for a control plane: one task per connection, on the project's own HTTP/2 codec.
//!
//! The main work of a control plane is to send a change to thousands of clients, each with one ADS stream on its own
//! connection, and to receive their ACKs. With a general gRPC server that takes four tasks, three channels and two
//! writes per client; here it takes one wake-up, one write and one read. Other calls on the same connection
//! (certificates, scopes, a second ADS stream) go to tonic's services.
//!
//! ```text
//!  socket ─► connection: read ─► codec ─┬─► messages ─► the stream's loop (super::stream) ─► pieces ─┐
//!                                       └─► others: tonic's services ────────────────────────────────┤
//!  socket ◄─ connection: one write ◄─ codec ◄────────────────────────────────────────────────────────┘
//! ```

mod budget;
mod calls;
mod connection;
mod heads;
mod lifetime;
mod messages;
mod outgoing;
mod services;
mod shape;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_http::h2;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::Extensions;

pub use budget::Budget;
use connection::Connection;
pub use services::Services;

use super::service::{DELTA_METHOD, SOTW_METHOD};
use super::stream::{self, Source};
use super::{delta, sotw};

/// Bytes a client may send on a stream before some are consumed.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Bytes a client may send on a connection before some are consumed.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes of output that wait for the socket, per connection: the rest of a response stays shared until there is room.
const OUTPUT_BYTES: usize = 64 * 1024;

/// Streams at a time for a client without a certificate, which only requests a certificate.
const ANONYMOUS_STREAMS: u32 = 4;
/// Bytes a client without a certificate may send on all its streams before some are consumed: the least that HTTP/2
/// allows. Such a connection can make the server buffer only this, a header block and a TLS record.
const ANONYMOUS_WINDOW_BYTES: u32 = 65_535;
/// Maximum size of a header list of a client without a certificate, in bytes: a token has a few KiB, and little else is sent.
const ANONYMOUS_HEADER_BYTES: u32 = 32 * 1024;
/// How long a message may take from its first byte to its last.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The known properties of a connection's client.
#[derive(Debug)]
pub struct Client {
    /// Properties of the client for the source and the services.
    pub extensions: Extensions,
    /// The memory budget for its incomplete messages, shared with its other connections.
    pub budget: Arc<Budget>,
    /// Whether the port authenticates clients and this one has no certificate: its windows are small, and it is served
    /// only for a short time.
    pub anonymous: bool,
    /// When its credentials expire. The client is asked to reconnect before that, and not served after it.
    pub expires: Option<SystemTime>,
}

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Streams at a time.
    pub max_streams: u32,
    /// Maximum size of a request message of its ADS stream, in bytes.
    pub max_request_bytes: usize,
    /// Maximum size of a request message of the other services, in bytes.
    pub max_call_bytes: usize,
    /// A client that is silent for this time is sent a PING.
    pub keepalive_interval: Duration,
    /// How long it may take to answer.
    pub keepalive_timeout: Duration,
}

impl Limits {
    fn codec(&self, anonymous: bool) -> h2::Options {
        let known = h2::Options {
            max_concurrent_streams: self.max_streams,
            initial_stream_window_size: STREAM_WINDOW_BYTES,
            initial_connection_window_size: CONNECTION_WINDOW_BYTES,
            max_output_bytes: OUTPUT_BYTES,
            quantum_bytes: OUTPUT_BYTES,
            ..h2::Options::default()
        };
        if anonymous {
            h2::Options {
                max_concurrent_streams: ANONYMOUS_STREAMS,
                initial_stream_window_size: ANONYMOUS_WINDOW_BYTES,
                initial_connection_window_size: ANONYMOUS_WINDOW_BYTES,
                max_header_list_bytes: ANONYMOUS_HEADER_BYTES,
                ..known
            }
        } else {
            known
        }
    }
}

/// The two protocols of ADS.
#[derive(Debug, Clone, Copy)]
enum Method {
    Delta,
    Sotw,
}

impl Method {
    fn of(path: &[u8]) -> Option<Self> {
        match path {
            path if path == DELTA_METHOD.as_bytes() => Some(Self::Delta),
            path if path == SOTW_METHOD.as_bytes() => Some(Self::Sotw),
            _ => None,
        }
    }
}

/// The services on all connections of a port.
#[derive(Debug)]
pub struct Server<S> {
    source: Arc<S>,
    other_services: Services,
    limits: Limits,
    stop: watch::Receiver<bool>,
}

impl<S: Source> Server<S> {
    /// Serves ADS from `source` and everything else with `other_services`. When `stop` becomes true, or its sender is
    /// gone, clients are asked to reconnect elsewhere.
    pub fn new(source: Arc<S>, other_services: Services, limits: Limits, stop: watch::Receiver<bool>) -> Self {
        Self { source, other_services, limits, stop }
    }

    /// Serves one connection until it ends.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send, client: Client) {
        let mut connection = Connection::new(io, self.source.clone(), self.other_services.clone(), client, self.limits);
        let mut stop = self.stop.clone();
        let mut stopping = false;
        while !connection.is_closed() {
            if let Some((method, extensions)) = connection.next_stream() {
                let result = match method {
                    Method::Delta => stream::run::<S, delta::Stream>(&*self.source, &extensions, &mut connection).await,
                    Method::Sotw => stream::run::<S, sotw::Stream>(&*self.source, &extensions, &mut connection).await,
                };
                connection.end_stream(&result);
                continue;
            }
            tokio::select! {
                () = connection.turn() => {}
                _ = stop.wait_for(|stop| *stop), if !stopping => {
                    stopping = true;
                    connection.shutdown();
                }
            }
        }
        connection.close().await;
    }
}
