//! Receives bytes from a source as fast as they come.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::epoll::{Epoll, Interest};
use crate::error::{LoadError, io};
use crate::requests::Work;

const READ_BYTES: usize = 256 << 10;
/// How long all streams together may be silent.
const SILENCE: Duration = Duration::from_secs(2);

/// Reads from `streams` connections to `target` for `time`.
///
/// # Errors
/// The source cannot be reached, or sends nothing.
pub fn run(target: SocketAddr, streams: usize, time: Duration) -> Result<Work, LoadError> {
    let mut epoll = Epoll::new().map_err(io("epoll"))?;
    let connect = |slot| -> Result<TcpStream, std::io::Error> {
        let stream = TcpStream::connect(target)?;
        stream.set_nonblocking(true)?;
        epoll.add(&stream, slot, Interest::Read)?;
        Ok(stream)
    };
    let mut streams = (0..streams).map(connect).collect::<Result<Vec<_>, _>>().map_err(io("connecting"))?;
    let (mut received, mut silent) = (vec![0u64; streams.len()], streams.len());
    let (mut ready, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
    let start = Instant::now();
    // The run does not end before every stream has carried data: connecting belongs to the first moments.
    while silent > 0 || start.elapsed() < time {
        if start.elapsed() >= time + SILENCE {
            return Err(LoadError::SomeSilent { silent, streams: streams.len() });
        }
        epoll.wait_for(Some(SILENCE), &mut ready).map_err(io("waiting for bytes"))?;
        if ready.is_empty() {
            return Err(LoadError::Silent(SILENCE));
        }
        for slot in ready.drain(..) {
            match streams[slot].read(&mut buffer) {
                Ok(0) => return Err(LoadError::Closed),
                Ok(count) => {
                    silent -= usize::from(received[slot] == 0);
                    received[slot] += count as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(io("reading a stream")(error)),
            }
        }
    }
    Ok(Work { count: received.iter().sum(), time: start.elapsed(), latency: None })
}
