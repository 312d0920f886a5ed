//! Sends bytes on every connection as fast as they are taken.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpStream};

use crate::epoll::{self, Epoll, Interest};

const LISTENER: usize = usize::MAX;
const WRITE_BYTES: usize = 256 << 10;

/// Serves `listen` until the process ends.
pub fn run(listen: SocketAddr) -> io::Result<()> {
    let listener = epoll::listen(listen)?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, LISTENER, Interest::Read)?;
    let (mut clients, mut ready): (Vec<Option<TcpStream>>, Vec<usize>) = Default::default();
    let bytes = vec![b'x'; WRITE_BYTES];
    loop {
        epoll.wait(&mut ready)?;
        for slot in ready.drain(..) {
            if slot == LISTENER {
                let Ok((stream, _)) = listener.accept() else { continue };
                stream.set_nonblocking(true)?;
                let free = clients.iter().position(Option::is_none).unwrap_or(clients.len());
                epoll.add(&stream, free, Interest::Write)?;
                if free == clients.len() {
                    clients.push(None);
                }
                clients[free] = Some(stream);
            } else if let Some(client) = clients[slot].as_mut() {
                match client.write(&bytes) {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(_) => clients[slot] = None,
                }
            }
        }
    }
}
