//! The cheapest HTTP/1.1 server: one prepared answer per request head, requests without a body only.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::epoll::{self, Epoll, Interest};

const LISTENER: usize = usize::MAX;
const READ_BYTES: usize = 64 << 10;
/// Maximum number of answers sent in one call; the client pipelines no deeper.
const BATCH: usize = 16;

struct Client {
    stream: TcpStream,
    /// Number of bytes of `\r\n\r\n` seen so far: the end of a head may be split between two reads.
    matched: usize,
}

/// Answers every request on `listen` with `bytes` bytes until the process ends.
pub fn run(listen: SocketAddr, bytes: usize) -> io::Result<()> {
    let listener = epoll::listen(listen)?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, LISTENER, Interest::Read)?;
    let answer = answer(bytes);
    let answers = answer.repeat(BATCH);
    let (mut clients, mut free): (Vec<Option<Client>>, Vec<usize>) = Default::default();
    let (mut ready, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
    loop {
        epoll.wait(&mut ready)?;
        for slot in ready.drain(..) {
            if slot == LISTENER {
                let Ok((stream, _)) = listener.accept() else { continue };
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let slot = free.pop().unwrap_or_else(|| {
                    clients.push(None);
                    clients.len() - 1
                });
                epoll.add(&stream, slot, Interest::Read)?;
                clients[slot] = Some(Client { stream, matched: 0 });
            } else if let Some(client) = clients[slot].as_mut()
                && client.turn(&mut buffer, &answers, answer.len()).is_err()
            {
                clients[slot] = None;
                free.push(slot);
            }
        }
    }
}

impl Client {
    fn turn(&mut self, buffer: &mut [u8], answers: &[u8], answer_bytes: usize) -> io::Result<()> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut heads = self.heads(&buffer[..count]);
        while heads > 0 {
            let batch = heads.min(BATCH);
            // The answers fit into an empty send buffer; a client that does not read is cut off.
            self.stream.write_all(&answers[..batch * answer_bytes])?;
            heads -= batch;
        }
        Ok(())
    }

    /// Returns how many request heads end in `bytes`.
    fn heads(&mut self, bytes: &[u8]) -> usize {
        let mut heads = 0;
        for byte in bytes {
            self.matched = match (self.matched, byte) {
                (0 | 2, b'\r') => self.matched + 1,
                (1, b'\n') => 2,
                (3, b'\n') => {
                    heads += 1;
                    0
                }
                (_, b'\r') => 1,
                _ => 0,
            };
        }
        heads
    }
}

fn answer(bytes: usize) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 200 OK\r\nserver: backend\r\ndate: Sat, 21 Nov 2026 00:00:00 GMT\r\ncontent-type: application/json\r\n\
         cache-control: no-store\r\ncontent-length: {bytes}\r\n\r\n"
    )
    .into_bytes();
    answer.resize(answer.len() + bytes, b'x');
    answer
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn counts_heads_across_reads() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut client = super::Client { stream, matched: 0 };
        let mut check = |bytes: &str, heads| assert_eq!(client.heads(bytes.as_bytes()), heads, "{bytes:?}");
        check("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n", 1);
        check("Host: a\r\n\r", 0);
        check("\n", 1);
        check("GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n", 2);
    }
}
