//! Byte streams to the ports of Pods through the API server, as `kubectl port-forward` opens them, but to no port of this machine: only
//! this process has them.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use evenkeel_admin::client::{Dial, Dialing, Stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Portforwarder;
use kube::client::UpgradeConnectionError;
use kube::{Api, Client, Error};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::Sleep;

use crate::reason::reason;

/// How long the API server may take to open a stream.
const TIMEOUT: Duration = Duration::from_secs(15);
/// How long a stream that has ended waits for the reason, which comes on a channel of its own.
const REASON_TIMEOUT: Duration = Duration::from_millis(500);

/// A port of a Pod. Streams are opened by the runtime on which this was created, and can be used on any.
pub struct PodPort {
    pods: Api<Pod>,
    runtime: Handle,
    namespace: Arc<str>,
    pod: Arc<str>,
    port: u16,
}

impl PodPort {
    /// A port of a Pod, which this client's API server reaches.
    pub(crate) fn new(client: Client, namespace: &str, pod: &str, port: u16) -> Self {
        Self {
            pods: Api::namespaced(client, namespace),
            runtime: Handle::current(),
            namespace: namespace.into(),
            pod: pod.into(),
            port,
        }
    }

    /// What the API server has refused, and what the user can do about it.
    fn refused(namespace: &str, error: &Error) -> io::Error {
        let code = match error {
            Error::UpgradeConnection(UpgradeConnectionError::ProtocolSwitch(status)) => status.as_u16(),
            Error::Api(status) => status.code,
            _ => return io::Error::other(format!("the API server forwards no port: {}", reason(error))),
        };
        match code {
            401 => {
                io::Error::new(io::ErrorKind::PermissionDenied, "the API server does not accept the user's credentials")
            }
            403 => {
                let text = format!(
                    "RBAC forbids to forward ports: the user needs the verbs `get` and `create` for `pods/portforward` in the namespace `{namespace}`"
                );
                io::Error::new(io::ErrorKind::PermissionDenied, text)
            }
            404 => io::Error::new(io::ErrorKind::NotFound, "there is no such Pod any more"),
            code => {
                let message =
                    if let Error::Api(status) = error { &*status.message } else { "its node may not be reached" };
                io::Error::other(format!("the API server forwards no port: it answers {code}: {message}"))
            }
        }
    }
}

impl fmt::Debug for PodPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PodPort({self})")
    }
}

/// `istiod-7d9-x.istio-system:15014`
impl fmt::Display for PodPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}:{}", self.pod, self.namespace, self.port)
    }
}

impl Dial for PodPort {
    fn dial(&self) -> Dialing<'_> {
        let (pods, pod, namespace, port) = (self.pods.clone(), self.pod.clone(), self.namespace.clone(), self.port);
        let opening = self.runtime.spawn(async move {
            let forwarder = match tokio::time::timeout(TIMEOUT, pods.portforward(&pod, &[port])).await {
                Ok(opened) => opened.map_err(|error| Self::refused(&namespace, &error))?,
                Err(_) => {
                    let text = format!("the API server has opened no stream within {} s", TIMEOUT.as_secs());
                    return Err(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            };
            Forwarded::new(forwarder, port).map(|stream| Box::new(stream) as Box<dyn Stream>)
        });
        Box::pin(async move { opening.await.unwrap_or_else(|error| Err(io::Error::other(error))) })
    }
}

/// Why the other end closes a stream; `None`: it does not say.
type Failure = Pin<Box<dyn Future<Output = Option<String>> + Send>>;

/// An open stream. The forwarding ends with it.
struct Forwarded {
    stream: DuplexStream,
    /// What the node says when it cannot reach the port; `None`: it has said it, or will say nothing any more.
    failure: Option<Failure>,
    /// Runs once the stream has ended without a reason so far.
    patience: Option<Pin<Box<Sleep>>>,
    forwarder: Portforwarder,
}

impl Forwarded {
    fn new(mut forwarder: Portforwarder, port: u16) -> io::Result<Self> {
        let stream = forwarder.take_stream(port).ok_or_else(|| io::Error::other("the port is not forwarded"))?;
        let failure = forwarder.take_error(port).map(|failure| Box::pin(failure) as Failure);
        Ok(Self { stream, failure, patience: None, forwarder })
    }

    /// Why the node has given up, if it has.
    fn poll_failure(&mut self, context: &mut Context<'_>) -> Option<io::Error> {
        let Poll::Ready(message) = self.failure.as_mut()?.as_mut().poll(context) else { return None };
        self.failure = None;
        // It may come from anybody's node, and goes to a terminal.
        let plain = |message: String| message.chars().filter(|c| !c.is_control()).take(500).collect::<String>();
        message.map(|message| io::Error::new(io::ErrorKind::ConnectionRefused, plain(message)))
    }
}

impl Drop for Forwarded {
    fn drop(&mut self) {
        self.forwarder.abort();
    }
}

impl AsyncRead for Forwarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(failure) = self.poll_failure(context) {
            return Poll::Ready(Err(failure));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if matches!(read, Poll::Ready(Ok(()))) && buffer.filled().len() == before {
            if let Some(failure) = self.poll_failure(context) {
                return Poll::Ready(Err(failure));
            }
            if self.failure.is_some() {
                let patience = self.patience.get_or_insert_with(|| Box::pin(tokio::time::sleep(REASON_TIMEOUT)));
                if patience.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
            }
        }
        read
    }
}

impl AsyncWrite for Forwarded {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
