//! The part of a kubelet that forwards ports: the API server calls it for `pods/portforward`, and passes its stream through.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tungstenite::handshake::server::{Request, Response};
use tungstenite::http::HeaderValue;
use tungstenite::{Error, Message, WebSocket, accept_hdr};

use super::ApiServer;
use crate::tls::{TestCa, TlsConnection, TlsServer};

/// The protocol of port-forwards over WebSocket: the first byte of a message is its channel.
const PROTOCOL: &str = "v4.channel.k8s.io";
/// How long one side is waited for before the other one has its turn.
const TURN: Duration = Duration::from_millis(5);

/// A port of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardedPort {
    /// The Pod's namespace.
    pub namespace: String,
    /// The Pod.
    pub pod: String,
    /// The port.
    pub port: u16,
}

/// A kubelet that forwards ports, on loopback until the process ends.
#[derive(Debug)]
pub struct Kubelet {
    port: u16,
}

impl Kubelet {
    /// Starts it. `find`: where the ports of Pods are; `None`: nobody listens there.
    ///
    /// # Panics
    /// When no port is free.
    pub fn start(find: impl Fn(&ForwardedPort) -> Option<SocketAddr> + Send + Sync + 'static) -> Self {
        let server = TlsServer::new(&TestCa::new().for_dns(&["kubelet"]));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let find = Arc::new(find);
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (connection, find) = (server.accept(socket), find.clone());
                // A client that breaks off ends its stream.
                std::thread::spawn(move || forward(connection, &*find));
            }
        });
        Self { port }
    }

    /// Makes it the kubelet of a node that the API server did not know.
    ///
    /// # Panics
    /// When the API server refuses the node.
    pub fn register(&self, server: &ApiServer, node: &str) {
        server.apply(&format!("{{apiVersion: v1, kind: Node, metadata: {{name: {node}}}}}"));
        let status = json!({"status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
        }});
        server.kubectl(&["patch", "node", node, "--subresource=status", "--type=merge", "-p", &status.to_string()]);
    }
}

/// Serves one stream until either side ends it.
#[allow(clippy::result_large_err, reason = "the library's type")]
fn forward(connection: TlsConnection, find: &dyn Fn(&ForwardedPort) -> Option<SocketAddr>) -> Option<()> {
    let mut wanted = None;
    let accept = |request: &Request, mut response: Response| {
        wanted = read_request(request);
        response.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static(PROTOCOL));
        Ok(response)
    };
    let mut socket = accept_hdr(connection, accept).ok()?;
    let wanted = wanted?;
    let [low, high] = wanted.port.to_le_bytes();
    for channel in [0, 1] {
        socket.send(Message::binary(vec![channel, low, high])).ok()?;
    }
    let Some(backend) = find(&wanted).and_then(|address| TcpStream::connect(address).ok()) else {
        let text = format!("error forwarding port {} to pod {}: connection refused", wanted.port, wanted.pod);
        socket.send(Message::binary([&[1], text.as_bytes()].concat())).ok()?;
        return socket.close(None).ok();
    };
    backend.set_read_timeout(Some(TURN)).ok()?;
    socket.get_ref().socket().set_read_timeout(Some(TURN)).ok()?;
    while pass_on(&mut socket, &backend)? {}
    socket.close(None).ok()
}

/// Passes on what has come from either side. Returns whether both go on; `None`: the client has gone.
fn pass_on(socket: &mut WebSocket<TlsConnection>, mut backend: &TcpStream) -> Option<bool> {
    let is_silence = |kind: ErrorKind| matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut);
    match socket.read() {
        Ok(Message::Binary(bytes)) if bytes.first() == Some(&0) => backend.write_all(&bytes[1..]).ok()?,
        Ok(Message::Close(_)) => return None,
        Err(Error::Io(error)) if is_silence(error.kind()) => {}
        Err(_) => return None,
        Ok(_) => {}
    }
    let mut buffer = vec![0; 16 * 1024];
    match backend.read(&mut buffer) {
        Ok(0) => Some(false),
        Ok(count) => socket.send(Message::binary([&[0], &buffer[..count]].concat())).ok().map(|()| true),
        Err(error) => is_silence(error.kind()).then_some(true),
    }
}

/// `/portForward/NAMESPACE/POD?port=PORT`
fn read_request(request: &Request) -> Option<ForwardedPort> {
    let mut parts = request.uri().path().split('/').skip(2);
    let (namespace, pod) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    let mut query = request.uri().query()?.split('&');
    let port = query.find_map(|pair| pair.strip_prefix("port="))?.parse().ok()?;
    Some(ForwardedPort { namespace, pod, port })
}
