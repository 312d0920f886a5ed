//! A gRPC server for a control plane: one task per connection, on the project's own HTTP/2 codec.
//!
//! What a control plane does all day is to tell thousands of clients, each on a connection with one ADS stream, of a
//! change, and to hear from them that they took it. Through a general gRPC server that is four tasks, three channels and two
//! writes per client; here it is one wake-up, one write and one read. Other calls on the same connection (certificates,
//! scopes, a second ADS stream) go to tonic's services.
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
mod shape;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_http::h2;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tonic::Extensions;

pub use budget::Budget;
pub use calls::OtherServices;
use connection::Connection;

use super::service::{DELTA_METHOD, SOTW_METHOD};
use super::stream::{self, Source};
use super::{delta, sotw};

/// Bytes a client may send on a stream before some were taken.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Bytes a client may send on a connection before some were taken.
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Bytes of output that wait for the socket, per connection: the rest of a response stays shared until there is room.
const OUTPUT_BYTES: usize = 64 * 1024;

/// Streams at a time of a client that has shown no certificate: it has one thing to ask for.
const ANONYMOUS_STREAMS: u32 = 4;
/// Bytes a client without a certificate may send before some were taken, on all its streams: the least HTTP/2 allows. All
/// that such a connection can make the server keep is this, a header block and a TLS record.
const ANONYMOUS_WINDOW_BYTES: u32 = 65_535;
/// Largest header list of a client without a certificate, in bytes: a token, which has a few KiB, and little else.
const ANONYMOUS_HEADER_BYTES: u32 = 32 * 1024;
/// How long a message may take from its first byte to its last.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// What is known of the client of a connection.
#[derive(Debug)]
pub struct Client {
    /// For the source and the services.
    pub extensions: Extensions,
    /// What its unfinished messages may hold, together with those of its other connections.
    pub budget: Arc<Budget>,
    /// The port authenticates clients and this one has shown nothing: its windows are small, and it is not served for long.
    pub anonymous: bool,
    /// When what authenticates it ends. It is asked to come again before, and not served beyond.
    pub expires: Option<SystemTime>,
}

/// Limits of one connection.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Streams at a time.
    pub max_streams: u32,
    /// Largest request message of its ADS stream, in bytes.
    pub max_request_bytes: usize,
    /// Largest request message that the other services take, in bytes.
    pub max_call_bytes: usize,
    /// A client that says nothing for so long is asked for a sign of life (PING).
    pub keepalive_interval: Duration,
    /// How long it may take for it.
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
        match anonymous {
            false => known,
            true => h2::Options {
                max_concurrent_streams: ANONYMOUS_STREAMS,
                initial_stream_window_size: ANONYMOUS_WINDOW_BYTES,
                initial_connection_window_size: ANONYMOUS_WINDOW_BYTES,
                max_header_list_bytes: ANONYMOUS_HEADER_BYTES,
                ..known
            },
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

/// What is served on every connection of a port.
#[derive(Debug)]
pub struct Server<S, O> {
    source: Arc<S>,
    other_services: O,
    limits: Limits,
    stop: watch::Receiver<bool>,
}

impl<S: Source, O: OtherServices + 'static> Server<S, O> {
    /// ADS from `source`, everything else by `others`. When `stop` becomes true, or its sender is gone, clients are
    /// asked to leave.
    pub fn new(source: Arc<S>, other_services: O, limits: Limits, stop: watch::Receiver<bool>) -> Self {
        Self { source, other_services, limits, stop }
    }

    /// Serves one connection to its end.
    pub async fn serve(&self, io: impl AsyncRead + AsyncWrite + Unpin + Send, client: Client) {
        let mut connection = Connection::new(io, self.source.clone(), self.other_services.clone(), client, self.limits);
        let mut stop = self.stop.clone();
        let mut stopping = false;
        while !connection.is_closed() {
            if let Some(method) = connection.next_stream() {
                let extensions = connection.extensions().clone();
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
