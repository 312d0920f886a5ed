//! Selects the filter chain of a connection with unknown protocol, by whichever side speaks first.
//!
//! A client's first bytes show its protocol, however late they arrive: while nothing has been sent to the client,
//! waiting has no effect on it. But in a server-first protocol the client stays silent, and waiting for it would never
//! end. So when a client has been silent for a moment and the filter chain for a silent client is a TCP proxy's, that
//! proxy's upstream is connected ahead of time: if the server speaks before the client, the connection goes to the TCP
//! proxy; if the client does, its bytes decide, and an unneeded upstream connection is closed unused. No protocol is
//! ever decided by a timeout.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_filters::ConnectionInfo;
use evenkeel_runtime_config::filter_chain_match::ChainInput;
use evenkeel_runtime_config::listener::{FilterChain, Listener, Terminal};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_tls::ClientHello;
use evenkeel_upstream::conn::Deadline;
use evenkeel_upstream::conn::deadline::{after, earlier};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::inspect::{InspectError, Inspected, InspectionGoals};
use crate::tcp::{self, UpstreamSide};
use crate::worker::Worker;
use evenkeel_upstream::turn;

/// How long a client may be silent before its upstream is connected too. Clients that speak first do so at once; for
/// one that does not, the upstream connection may turn out unneeded.
const PATIENCE: Duration = Duration::from_millis(20);

/// Timeout for a client that has started to send, until its protocol is known, on a listener without
/// `listener_filters_timeout`. The bytes that tell protocols apart are few, and clients send them in one piece.
const LONGEST_BEGINNING: Duration = Duration::from_secs(60);
/// Timeout for a silent client where only TLS is served, on a listener without `listener_filters_timeout`; as long as a
/// handshake may take.
const LONGEST_SILENCE: Duration = Duration::from_secs(15);

/// The result of detection.
pub(super) struct Detected {
    pub(super) inspected: Inspected,
    /// `None`: no filter chain matches.
    pub(super) chain: Option<Arc<FilterChain>>,
    /// The chain's upstream connection, if it was connected ahead of time.
    pub(super) upstream_side: Option<Box<UpstreamSide>>,
}

/// Selects the filter chain. `inspected` holds the bytes read before.
pub(super) async fn detect(
    worker: &Rc<Worker>,
    stream: &TcpStream,
    listener: &Listener,
    info: &ConnectionInfo,
    mut inspected: Inspected,
) -> Result<Detected, InspectError> {
    let filters = &listener.listener_filters;
    let port = info.view.local.port();
    let wanted = InspectionGoals { tls: filters.inspects_tls(port), http: filters.inspects_http(port) };
    let patience = filters.timeout.map_or(PATIENCE, |limit| limit.min(PATIENCE));
    let reading = poll_fn(|cx| inspected.poll(stream, wanted, cx));
    match timeout(patience, reading).await {
        Ok(result) => result?,
        Err(_) => return Box::pin(wait_for_first_bytes(worker, stream, listener, info, wanted, inspected)).await,
    }
    let chain = of_client(listener, &inspected, &info.view)?;
    Ok(Detected { inspected, chain, upstream_side: None })
}

/// The filter chain for the client's bytes. A client that half-closed before sending enough may still be served by a
/// server-first protocol; nothing else could answer it.
fn of_client(
    listener: &Listener,
    inspected: &Inspected,
    view: &ConnectionView,
) -> Result<Option<Arc<FilterChain>>, InspectError> {
    let chain = choose_chain(listener, inspected, view);
    if inspected.ended && !chain.as_deref().is_some_and(is_plain_tcp) {
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    } else {
        Ok(chain)
    }
}

fn is_plain_tcp(chain: &FilterChain) -> bool {
    chain.tls.is_none() && matches!(chain.terminal, Terminal::Tcp(_))
}

/// Returns the filter chain that matches the inspected connection.
fn choose_chain(listener: &Listener, inspected: &Inspected, view: &ConnectionView) -> Option<Arc<FilterChain>> {
    let hello = inspected.hello.as_deref();
    let offered: Vec<&str> =
        hello.iter().flat_map(|hello| hello.alpn()).filter_map(|protocol| std::str::from_utf8(protocol).ok()).collect();
    let plain: Vec<&str> = inspected.http.into_iter().collect();
    let input = ChainInput {
        destination: view.local,
        source: view.remote,
        direct_source: view.direct_remote,
        server_name: hello.and_then(ClientHello::server_name),
        transport_protocol: if hello.is_some() { "tls" } else { "raw_buffer" },
        application_protocols: if hello.is_some() { &offered } else { &plain },
    };
    listener.find_filter_chain(&input).cloned()
}

/// Waits for whichever side speaks first.
async fn wait_for_first_bytes(
    worker: &Rc<Worker>,
    stream: &TcpStream,
    listener: &Listener,
    info: &ConnectionInfo,
    wanted: InspectionGoals,
    mut inspected: Inspected,
) -> Result<Detected, InspectError> {
    let silent = choose_chain(listener, &Inspected::default(), &info.view);
    let until = after(turn::now(), longest_wait(listener, silent.as_deref()));
    let mut until_whole = None;
    let mut server = match &silent {
        Some(chain) if is_plain_tcp(chain) => Server::connect(worker, chain, info),
        _ => Server::None,
    };
    let mut deadline = Deadline::default();
    let first = poll_fn(|cx| {
        if let Poll::Ready(result) = inspected.poll(stream, wanted, cx) {
            return Poll::Ready(result.map(|()| First::Client));
        }
        if server.poll_speaks(!inspected.bytes.is_empty(), cx).is_ready() {
            return Poll::Ready(Ok(First::Server));
        }
        if until_whole.is_none() && !inspected.bytes.is_empty() {
            until_whole = after(turn::now(), Some(longest_beginning(listener, &info.view)));
        }
        deadline.poll(earlier(until, until_whole), cx).map(|()| Err(InspectError::Timeout))
    })
    .await?;
    let chain = match first {
        First::Server => silent,
        First::Client => {
            let chain = of_client(listener, &inspected, &info.view)?;
            if chain.as_ref().map(Arc::as_ptr) != silent.as_ref().map(Arc::as_ptr) {
                server = Server::None;
            }
            chain
        }
    };
    Ok(Detected { inspected, chain, upstream_side: server.into_upstream_side().await })
}

/// How long a connection may stay undecided. A listener that closes on `listener_filters_timeout` does so; with
/// `continue_on_listener_filters_timeout`, or without a timeout, the idle timeout applies.
fn longest_wait(listener: &Listener, silent: Option<&FilterChain>) -> Option<Duration> {
    let filters = &listener.listener_filters;
    if filters.timeout.is_some() && !filters.continue_on_timeout {
        return filters.timeout;
    }
    match silent.map(|chain| &chain.terminal) {
        Some(Terminal::Tcp(proxy)) => proxy.idle_timeout,
        Some(Terminal::Http(hcm)) => hcm.idle_timeout,
        // Only TLS is served here: there is no chain to continue with.
        None => filters.timeout.or(Some(LONGEST_SILENCE)),
    }
}

/// How long a client that has begun to send may take until its protocol is known: no longer than for the head of a request, because its bytes
/// may be the beginning of one.
fn longest_beginning(listener: &Listener, view: &ConnectionView) -> Duration {
    let begun = Inspected { http: Some("http/1.1"), ..Inspected::default() };
    let limit = choose_chain(listener, &begun, view).and_then(|chain| match &chain.terminal {
        Terminal::Http(hcm) => hcm.longest_beginning(),
        Terminal::Tcp(_) => None,
    });
    limit.map_or(LONGEST_BEGINNING, |limit| limit.min(LONGEST_BEGINNING))
}

enum First {
    Client,
    Server,
}

/// The upstream connection for a silent client.
enum Server<'w> {
    None,
    Connecting(Pin<Box<dyn Future<Output = Box<UpstreamSide>> + 'w>>),
    Connected(Box<UpstreamSide>),
}

impl<'w> Server<'w> {
    /// Starts connecting, if the filter chain is a TCP proxy's and its filters admit the client.
    fn connect(worker: &'w Rc<Worker>, chain: &Arc<FilterChain>, info: &'w ConnectionInfo) -> Self {
        let Terminal::Tcp(proxy) = &chain.terminal else { return Self::None };
        let proxy = Arc::clone(proxy);
        if !tcp::admits(worker, chain, &info.view) {
            return Self::None;
        }
        Self::Connecting(Box::pin(async move { UpstreamSide::connect(worker, info, &proxy).await }))
    }

    /// Ready when the server has sent something, closed, or could not be reached before the client sent anything. After
    /// the client has begun, a close or a failure of the server does not count as speaking first.
    fn poll_speaks(&mut self, client_began: bool, cx: &mut Context<'_>) -> Poll<()> {
        if let Self::Connecting(connecting) = self
            && let Poll::Ready(upstream_side) = connecting.as_mut().poll(cx)
        {
            *self = Self::Connected(upstream_side);
        }
        let Self::Connected(upstream_side) = self else { return Poll::Pending };
        match upstream_side.poll_first_byte(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(tcp::FirstByte::Arrived) => Poll::Ready(()),
            Poll::Ready(tcp::FirstByte::Never) if !client_began => Poll::Ready(()),
            Poll::Ready(tcp::FirstByte::Never | tcp::FirstByte::Unknown) => {
                *self = Self::None;
                Poll::Pending
            }
        }
    }

    async fn into_upstream_side(self) -> Option<Box<UpstreamSide>> {
        match self {
            Self::None => None,
            Self::Connecting(connecting) => Some(connecting.await),
            Self::Connected(upstream_side) => Some(upstream_side),
        }
    }
}
