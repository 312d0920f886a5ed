//! `evenkeel load curl`: one request, whose response is printed.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use evenkeel_http::{BodyDecoder, Framing};
use evenkeel_load::epoll::Epoll;

use crate::codec::Events;
use crate::flags::RequestFlags;
use crate::link::{Link, Received};
use crate::outcome::{Answer, Fault};
use crate::setup::{Protocol, Setup};

const READ_BYTES: usize = 64 << 10;

/// A response as it came.
struct Fetched {
    answer: Answer,
    bytes: Vec<u8>,
}

/// Sends the request once; the head goes to `text` and the body to `standard`, as Fortio's. Whether the status is a success.
///
/// # Errors
/// There was no response; says why.
pub fn run(
    setup: &Setup,
    flags: &RequestFlags,
    text: &mut dyn Write,
    standard: &mut dyn Write,
) -> Result<bool, String> {
    if !matches!(setup.protocol, Protocol::Http1(_)) {
        return Err("load curl is for http:// and https:// over HTTP/1.1".to_owned());
    }
    let Fetched { answer, bytes } = fetch(setup, flags)?;
    let at = usize::try_from(answer.header_bytes).unwrap_or(usize::MAX).min(bytes.len());
    let (head, body) = bytes.split_at(at);
    let is_chunked = head.to_ascii_lowercase().windows(CHUNKED.len()).any(|window| window == CHUNKED);
    let body = if is_chunked { without_chunks(body) } else { body.to_vec() };
    let written = text.write_all(head).and_then(|()| standard.write_all(&body)).and_then(|()| standard.flush());
    written.map_err(|error: io::Error| format!("writing the response: {error}"))?;
    Ok(answer.code.is_ok())
}

const CHUNKED: &[u8] = b"\ntransfer-encoding: chunked";

fn fetch(setup: &Setup, flags: &RequestFlags) -> Result<Fetched, String> {
    let failed = |fault: Fault| format!("no response: {}", fault.name());
    let (plan, deadline) = (&setup.plan, Instant::now() + setup.plan.timeout);
    let mut epoll = Epoll::new().map_err(|error| format!("epoll: {error}"))?;
    let mut link = Link::new(0, setup.codecs(flags)(), &plan.connector);
    link.connect(0, &plan.connector, &epoll).map_err(failed)?;
    link.record();
    link.request(0);
    link.flush(0, &epoll).map_err(failed)?;
    let (mut ready, mut events, mut buffer) = (Vec::new(), Events::default(), vec![0; READ_BYTES]);
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Err(failed(Fault::Timeout));
        }
        epoll.wait_for(Some(left), &mut ready).map_err(|error| format!("epoll: {error}"))?;
        if ready.drain(..).next().is_none() {
            continue;
        }
        if link.connecting.is_some() {
            if !link.continue_connecting(0, &epoll).map_err(failed)? {
                continue;
            }
            link.connecting = None;
        }
        let received = link.receive(&mut buffer, &mut events);
        if let Some(answer) = events.answers.pop() {
            return Ok(Fetched { answer, bytes: link.recorded() });
        }
        match received {
            Received::Ended(fault) => return Err(failed(fault)),
            Received::AllSoFar => link.flush(0, &epoll).map_err(failed)?,
        }
    }
}

/// The payload of a chunked body.
fn without_chunks(body: &[u8]) -> Vec<u8> {
    let (mut decoder, mut rest, mut payload) = (BodyDecoder::new(Framing::Chunked), body, Vec::new());
    while !rest.is_empty() && !decoder.is_done() {
        // The codec has read it before.
        let Ok(decoded) = decoder.decode(rest) else { break };
        payload.extend_from_slice(rest.get(decoded.data.clone()).unwrap_or_default());
        rest = rest.get(decoded.consumed..).unwrap_or_default();
    }
    payload
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_taken_out() {
        assert_eq!(without_chunks(b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"), b"abcde");
    }
}
