//! The control plane's pages on the host's loopback. The control plane itself is in the mesh's network, which no
//! browser can reach, so connections are accepted on a socket of the host's network and forwarded.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_process::newest::serve_newest;
use tokio::net::TcpStream;

/// The default port of `evenkeel proxy-status`.
pub const USUAL_PORT: u16 = 15014;
/// Connections at a time. A further one takes the place of the oldest.
const MAX_CONNECTIONS: usize = 64;

/// A socket of the host's network for the pages.
#[derive(Debug)]
pub struct HostPages {
    listener: TcpListener,
    /// The address of the pages.
    pub address: SocketAddr,
}

impl HostPages {
    /// Opens the usual port, or a free one if a control plane or another mesh has it.
    pub fn open() -> io::Result<Self> {
        let usual = TcpListener::bind((Ipv4Addr::LOCALHOST, USUAL_PORT));
        let listener = usual.or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?;
        listener.set_nonblocking(true)?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// The URL for a browser.
    pub fn url(&self) -> String {
        format!("http://{}/debug/proxies", self.address)
    }

    /// Records the address, then forwards connections to `pages` until aborted.
    pub async fn serve(&self, record: &Path, pages: SocketAddr) -> io::Result<()> {
        write_atomically(record, self.address.to_string().as_bytes(), Readers::All)?;
        let listener = tokio::net::TcpListener::from_std(self.listener.try_clone()?)?;
        match serve_newest(&listener, MAX_CONNECTIONS, move |stream, _| forward_connection(stream, pages)).await {}
    }
}

/// Returns the address of the pages of a run with this state directory; `None` if none runs.
pub fn of_run(state: &Path) -> Option<SocketAddr> {
    let state = crate::cleanup::StateDir::new(state).ok()?;
    std::fs::read_to_string(state.pages()).ok()?.parse().ok()
}

/// Forwards one connection. The server limits how long it may be idle.
async fn forward_connection(mut from: TcpStream, pages: SocketAddr) {
    if let Ok(mut to) = TcpStream::connect(pages).await {
        _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn connections_are_carried_both_ways_and_the_place_is_written_down() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let server = TcpListener::bind("127.0.0.1:0")?;
        let to = server.local_addr()?;
        let answering = std::thread::spawn(move || -> io::Result<String> {
            let (mut stream, _) = server.accept()?;
            let mut asked = [0; 4];
            stream.read_exact(&mut asked)?;
            stream.write_all(b"pong")?;
            Ok(String::from_utf8_lossy(&asked).into_owned())
        });
        let pages = HostPages::open()?;
        assert_eq!(of_run(folder.path()), None);
        let record = folder.path().join("pages");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let address = pages.address;
        let said = runtime.block_on(async {
            let call = tokio::task::spawn_blocking(move || -> io::Result<String> {
                let mut stream = std::net::TcpStream::connect(address)?;
                stream.write_all(b"ping")?;
                let mut said = String::new();
                stream.read_to_string(&mut said)?;
                Ok(said)
            });
            tokio::select! {
                said = call => said.map_err(io::Error::other)?,
                ended = pages.serve(&record, to) => Err(io::Error::other(format!("ended: {ended:?}"))),
            }
        });
        assert_eq!(said?, "pong");
        assert_eq!(answering.join().expect("no panic")?, "ping");
        assert_eq!(of_run(folder.path()), Some(address));
        Ok(())
    }
}
