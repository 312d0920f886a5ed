//! The client of the broker, which runs in the mesh: it requests sockets of the machine's network from the keeper.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use tokio::net::{TcpStream, UdpSocket};

use super::broker::{Request, Transport};
use super::channel::{self, ChannelEnd};

/// A client of the keeper's broker.
#[derive(Debug)]
pub struct BrokerClient {
    keeper: ChannelEnd,
}

impl BrokerClient {
    /// Creates a client on the keeper's descriptor. It must be called within a runtime.
    pub fn new(keeper: OwnedFd) -> io::Result<Self> {
        Ok(Self { keeper: ChannelEnd::new(keeper)? })
    }

    /// Opens a connection in the machine's network. The keeper limits the time. Dropping the future cancels the attempt
    /// there, too.
    ///
    /// # Errors
    /// Those of `connect(2)` in the machine's network.
    pub async fn tcp(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = self.ask(Request { transport: Transport::Tcp, to }).await?;
        TcpStream::from_std(socket.into())
    }

    /// A datagram socket of the machine's network that is connected to `to`.
    ///
    /// # Errors
    /// Those of `connect(2)` in the machine's network.
    pub async fn udp(&self, to: SocketAddr) -> io::Result<UdpSocket> {
        let socket = self.ask(Request { transport: Transport::Udp, to }).await?;
        UdpSocket::from_std(socket.into())
    }

    /// A socket of the machine's network that listens on this loopback address.
    ///
    /// # Errors
    /// Those of `bind(2)` in the machine's network.
    pub async fn listen(&self, to: SocketAddr) -> io::Result<TcpListener> {
        Ok(self.ask(Request { transport: Transport::Listen, to }).await?.into())
    }

    /// A socket of the machine's network for datagrams to this loopback address.
    ///
    /// # Errors
    /// Those of `bind(2)` in the machine's network.
    pub async fn datagrams(&self, to: SocketAddr) -> io::Result<std::net::UdpSocket> {
        Ok(self.ask(Request { transport: Transport::Datagrams, to }).await?.into())
    }

    async fn ask(&self, request: Request) -> io::Result<OwnedFd> {
        let (own, keepers) = channel::pair()?;
        self.keeper.send(&request.to_string(), Some(keepers.as_fd())).await?;
        // The keeper's copy must be the only one; otherwise its closing would not be noticed.
        drop(keepers);
        let answer = ChannelEnd::new(own)?.receive().await?.ok_or(io::ErrorKind::ConnectionAborted)?;
        match (answer.text.parse(), answer.descriptor) {
            (Ok(0), Some(socket)) => Ok(socket),
            (Ok(error @ 1..), _) => Err(io::Error::from_raw_os_error(error)),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::broker::Broker;
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn sockets_that_listen_are_for_who_may_ask_for_them_on_loopback_and_for_nothing_else() -> io::Result<()> {
        let (free, any) = (SocketAddr::from(([127, 0, 0, 1], 0)), SocketAddr::from(([0, 0, 0, 0], 0)));
        for (made, listens) in [(Broker::for_gateway_ports()?, true), (Broker::new(Vec::new())?, false)] {
            let (broker, mesh) = made;
            tokio::spawn(broker.serve());
            let broker = BrokerClient::new(mesh)?;
            let opened = broker.listen(free).await;
            assert_eq!(opened.is_ok(), listens, "{opened:?}");
            assert!(broker.listen(any).await.is_err());
            assert_eq!(broker.datagrams(free).await.is_ok(), listens);
            assert!(broker.datagrams(any).await.is_err());
            let Ok(opened) = opened else { continue };
            let address = opened.local_addr()?;
            let taken = broker.listen(address).await.map_err(|error| error.kind());
            assert!(matches!(taken, Err(io::ErrorKind::AddrInUse)), "{taken:?}");
            assert!(broker.tcp(address).await.is_err());
            drop(opened);
            broker.listen(address).await?;
        }
        Ok(())
    }

    #[tokio::test]
    async fn sockets_come_connected_and_failures_as_what_they_are() -> io::Result<()> {
        let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let address = server.local_addr()?;
        let (private, closed) = (TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?);
        let (private_address, closed_address) = (private.local_addr()?, closed.local_addr()?);
        drop(closed);
        let (broker, mesh) = Broker::new(vec![private_address])?;
        tokio::spawn(broker.serve());
        let broker = BrokerClient::new(mesh)?;

        let mut there = broker.tcp(address).await?;
        let (mut here, _) = server.accept().await?;
        there.write_all(b"ping").await?;
        let mut asked = [0; 4];
        here.read_exact(&mut asked).await?;
        assert_eq!(&asked, b"ping");

        // Datagrams are for name servers.
        let other = UdpSocket::bind("127.0.0.1:0").await?;
        let seen = broker.udp(other.local_addr()?).await.map(drop).map_err(|error| error.kind());
        assert_eq!(seen, Err(io::ErrorKind::PermissionDenied));
        assert_eq!(broker.udp("127.0.0.53:53".parse().expect("an address")).await?.peer_addr()?.port(), 53);

        let port = private_address.port();
        let spelt = ["0.0.0.0", "127.9.9.9", "[::ffff:127.0.0.1]", "[::]", "[::1]"];
        let spelt = spelt.map(|host| format!("{host}:{port}").parse().expect("an address"));
        for refused in [closed_address, private_address].into_iter().chain(spelt) {
            let seen = broker.tcp(refused).await.map(drop).map_err(|error| error.kind());
            assert_eq!(seen, Err(io::ErrorKind::ConnectionRefused), "{refused}");
        }
        Ok(())
    }
}
