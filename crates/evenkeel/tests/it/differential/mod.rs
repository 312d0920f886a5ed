//! The HTTP/1 codec against Envoy, HAProxy and nginx: generated and malformed messages go through all four to a backend that
//! records what reaches it. Where the other three disagree about a message, `evenkeel proxy` rejects it; where one of them
//! rejects a message for its framing or its head, so does Evenkeel; and Evenkeel always forwards one unambiguous message.

mod generate;
mod proxies;
mod recorder;
mod responses;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use generate::{Message, messages};
use proxies::{Program, Running};
use recorder::{Recorder, Seen};

/// Messages under way at the same time at one proxy.
const THREADS: usize = 64;

/// How long a proxy may be silent: one that waits for more bytes says nothing, and is then neither for nor against.
const PATIENCE: Duration = Duration::from_millis(400);

/// What one proxy made of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Outcome {
    /// Statuses the client got.
    statuses: Vec<u16>,
    /// The proxy ended the connection, so that nothing more can come.
    closed: bool,
    /// Requests that reached the backend, in order.
    seen: Vec<Seen>,
}

impl Outcome {
    /// The proxy answered with an error of its own or closed, and forwarded nothing.
    fn refused(&self) -> bool {
        self.closed && self.seen.is_empty()
    }
}

#[test]
fn evenkeel_takes_the_strictest_reading() {
    let messages = messages();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let outcomes: BTreeMap<Program, Vec<Outcome>> = Program::ALL
        .into_iter()
        .map(|program| {
            let recorder = Recorder::start();
            let running = Running::start(program, recorder.address(), folder.path());
            (program, run(&running, &recorder, &messages))
        })
        .collect();
    let mut failures = Vec::new();
    let mut refused = 0;
    for (index, message) in messages.iter().enumerate() {
        let of = |program: Program| &outcomes[&program][index];
        refused += usize::from(of(Program::Evenkeel).refused());
        let oracles = [Program::Envoy, Program::Haproxy, Program::Nginx].map(|program| (program, of(program)));
        if let Some(why) = judge(message, of(Program::Evenkeel), &oracles) {
            let bytes = message.bytes.escape_ascii();
            failures.push(format!("{why}\n  {bytes}\n  Evenkeel {:?}\n  {oracles:?}\n", of(Program::Evenkeel)));
        }
    }
    let all = messages.len();
    assert!(failures.is_empty(), "{} of {all} messages\n\n{}", failures.len(), failures.join("\n"));
    // Or the test would prove nothing.
    assert!(refused > all / 4 && refused < all * 9 / 10, "{refused} of {all} were refused");
}

/// What is wrong with Evenkeel's reading, if something is.
fn judge(message: &Message, evenkeel: &Outcome, oracles: &[(Program, &Outcome)]) -> Option<String> {
    if let Some(Seen::Garbage(bytes)) = evenkeel.seen.iter().find(|seen| matches!(seen, Seen::Garbage(_))) {
        return Some(format!("forwarded what is no message: {}", bytes.escape_ascii()));
    }
    if evenkeel.seen.is_empty() {
        return None;
    }
    // An answer for each request that went on, or the client would take one for another's.
    if evenkeel.closed && evenkeel.statuses.len() < evenkeel.seen.len() {
        return Some("forwarded more requests than it answered".to_owned());
    }
    for (program, outcome) in oracles {
        if outcome.refused() && !message.is_fine_whatever(*program) {
            return Some(format!("forwarded what {program:?} refuses"));
        }
        let garbage = outcome.seen.iter().any(|seen| matches!(seen, Seen::Garbage(_)));
        if outcome.closed && evenkeel.closed && !garbage && !outcome.refused() && outcome.seen != evenkeel.seen {
            // A proxy that refuses a later part of the bytes has read the first part alike.
            if !outcome.seen.starts_with(&evenkeel.seen) && !evenkeel.seen.starts_with(&outcome.seen) {
                return Some(format!("read something else than {program:?}"));
            }
        }
    }
    None
}

fn run(running: &Running, recorder: &Recorder, messages: &[Message]) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(message) = messages.get(index) else { return };
                    let (statuses, closed) = exchange(running.address(), &message.bytes);
                    done.lock().expect("no panic").insert(index, (statuses, closed));
                }
            });
        }
    });
    let answers = done.into_inner().expect("no panic");
    let mut seen = recorder.seen();
    let of = |(index, (statuses, closed)): (usize, (Vec<u16>, bool))| Outcome {
        statuses,
        closed,
        seen: seen.remove(&index).unwrap_or_default(),
    };
    answers.into_iter().map(of).collect()
}

/// Reads until the end or silence: the bytes, and whether it was the end.
fn read_all(socket: &mut TcpStream) -> (Vec<u8>, bool) {
    let (mut answer, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    loop {
        match socket.read(&mut buffer) {
            Ok(0) => return (answer, true),
            Ok(count) => answer.extend_from_slice(&buffer[..count]),
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {
                return (answer, false);
            }
            Err(_) => return (answer, true),
        }
    }
}

/// Sends bytes and reads until the end or silence: the statuses, and whether it was the end.
fn exchange(address: SocketAddr, bytes: &[u8]) -> (Vec<u16>, bool) {
    let mut socket = TcpStream::connect(address).expect("the proxy listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    // It may refuse before all is sent.
    let _ = socket.write_all(bytes);
    let (answer, closed) = read_all(&mut socket);
    let _ = socket.shutdown(Shutdown::Both);
    let text = String::from_utf8_lossy(&answer);
    let after_version = |(at, _): (usize, &str)| text.get(at + 9..at + 12)?.parse().ok();
    (text.match_indices("HTTP/1.").filter_map(after_version).collect(), closed)
}
