//! Bytes that come back, over TCP and UDP, and connections that are forwarded.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

/// Bytes read at a time; no datagram is larger.
const BUFFER_BYTES: usize = 64 << 10;

/// Sends back what comes on each connection.
pub async fn echo_tcp(listener: TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        tokio::spawn(echo(stream));
    }
}

async fn echo(mut stream: TcpStream) {
    let mut buffer = vec![0; BUFFER_BYTES];
    // Without this, small answers would wait for the acknowledgement of the one before.
    _ = stream.set_nodelay(true);
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Sends back each datagram.
pub async fn echo_udp(socket: UdpSocket) {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        // An error is that of an earlier datagram, whose sender does not listen any more.
        if let Ok((count, from)) = socket.recv_from(&mut buffer).await {
            _ = socket.send_to(&buffer[..count], from).await;
        }
    }
}

/// Forwards each connection to `target`.
pub async fn forward(listener: TcpListener, target: Arc<str>) {
    loop {
        let Ok((mut client, _)) = listener.accept().await else { continue };
        let target = target.clone();
        tokio::spawn(async move {
            if let Ok(mut server) = TcpStream::connect(&*target).await {
                _ = client.set_nodelay(true);
                _ = server.set_nodelay(true);
                // The client sees the end of either.
                _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}

/// The address of a socket, for the line that names it.
pub fn name(address: std::io::Result<SocketAddr>) -> String {
    address.map_or_else(|error| error.to_string(), |address| address.to_string())
}
