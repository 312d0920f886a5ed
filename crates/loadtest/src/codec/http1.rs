//! HTTP/1.0 and HTTP/1.1: one request at a time on a connection.

use std::mem::MaybeUninit;
use std::sync::Arc;

use evenkeel_http::{BodyDecoder, Framing};
use httparse::{Header, ParserConfig, Response, Status};

use super::Events;
use crate::outcome::{Answer, Code, Fault};

/// Maximum number of header fields in a response.
const MAX_FIELDS: usize = 128;
/// Maximum size of a response's head.
const MAX_HEAD_BYTES: usize = 256 << 10;

/// A request, ready to be sent.
#[derive(Debug)]
pub struct Http1Request {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Whether responses have no body whatever their head says.
    pub is_head: bool,
    /// Whether the connection ends with each response.
    pub closes: bool,
}

/// One connection's state.
#[derive(Debug)]
pub struct Http1 {
    request: Arc<Http1Request>,
    call: usize,
    state: State,
    /// The head's bytes, if they came in pieces.
    head: Vec<u8>,
    answer: Option<Answer>,
}

#[derive(Debug)]
enum State {
    Idle,
    Head,
    Length(u64),
    Chunked(Box<BodyDecoder>),
    UntilClose,
}

impl Http1 {
    /// Sends this request again and again.
    pub fn new(request: Arc<Http1Request>) -> Self {
        Self { request, call: 0, state: State::Idle, head: Vec::new(), answer: None }
    }

    pub(super) fn request(&mut self, call: usize, out: &mut Vec<u8>) {
        self.call = call;
        self.state = State::Head;
        out.extend_from_slice(&self.request.bytes);
    }

    pub(super) fn reset(&mut self) {
        self.state = State::Idle;
        self.head.clear();
        self.answer = None;
    }

    pub(super) fn receive(&mut self, bytes: &[u8], events: &mut Events) -> Result<(), Fault> {
        if !matches!(self.state, State::Head) {
            return self.body(bytes, events);
        }
        // Mostly a head comes in one piece.
        if self.head.is_empty() {
            return match self.parse(bytes)? {
                Some(end) => self.body(bytes.get(end..).unwrap_or_default(), events),
                None => {
                    self.head.extend_from_slice(bytes);
                    Ok(())
                }
            };
        }
        if self.head.len() > MAX_HEAD_BYTES {
            return Err(Fault::Protocol);
        }
        let mut head = std::mem::take(&mut self.head);
        head.extend_from_slice(bytes);
        match self.parse(&head)? {
            Some(end) => {
                let rest = head.split_off(end);
                head.clear();
                self.head = head;
                self.body(&rest, events)
            }
            None => {
                self.head = head;
                Ok(())
            }
        }
    }

    /// Where the response's head ends, if it is complete.
    fn parse(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let mut from = 0;
        loop {
            let mut fields = [const { MaybeUninit::<Header<'_>>::uninit() }; MAX_FIELDS];
            let mut response = Response::new(&mut []);
            let rest = bytes.get(from..).unwrap_or_default();
            let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut response, rest, &mut fields);
            let Status::Complete(length) = parsed.map_err(|_| Fault::Protocol)? else { return Ok(None) };
            from += length;
            let status = response.code.unwrap_or_default();
            // An interim response comes before the final one.
            if (100..200).contains(&status) && status != 101 {
                continue;
            }
            let head = Head::read(&response)?;
            let bodiless = self.request.is_head || status == 204 || status == 304;
            self.state = match head {
                _ if bodiless => State::Length(0),
                Head { chunked: true, .. } => State::Chunked(Box::new(BodyDecoder::new(Framing::Chunked))),
                Head { length: Some(length), .. } => State::Length(length),
                _ => State::UntilClose,
            };
            let closes = self.request.closes || head.closes || matches!(self.state, State::UntilClose);
            let header_bytes = from as u64;
            let code = Code::Http(status);
            self.answer = Some(Answer { call: self.call, code, header_bytes, total_bytes: header_bytes, closes });
            return Ok(Some(from));
        }
    }

    fn body(&mut self, bytes: &[u8], events: &mut Events) -> Result<(), Fault> {
        let Some(answer) = &mut self.answer else {
            // Nobody has asked for it.
            return if bytes.is_empty() { Ok(()) } else { Err(Fault::Protocol) };
        };
        answer.total_bytes += bytes.len() as u64;
        let complete = match &mut self.state {
            State::Idle | State::Head => return Err(Fault::Protocol),
            State::UntilClose => false,
            State::Length(left) => {
                *left = left.checked_sub(bytes.len() as u64).ok_or(Fault::Protocol)?;
                *left == 0
            }
            State::Chunked(decoder) => {
                let mut rest = bytes;
                while !rest.is_empty() && !decoder.is_done() {
                    let decoded = decoder.decode(rest).map_err(|_| Fault::Protocol)?;
                    rest = rest.get(decoded.consumed..).unwrap_or_default();
                }
                if !rest.is_empty() {
                    return Err(Fault::Protocol);
                }
                decoder.is_done()
            }
        };
        if complete {
            self.complete(events);
        }
        Ok(())
    }

    /// The server has closed the connection, which may be the end of the body.
    pub(super) fn end(&mut self, events: &mut Events) {
        if matches!(self.state, State::UntilClose) {
            self.complete(events);
        }
    }

    fn complete(&mut self, events: &mut Events) {
        self.state = State::Idle;
        events.answers.extend(self.answer.take());
    }
}

/// What a head says about its body and the connection.
struct Head {
    length: Option<u64>,
    chunked: bool,
    closes: bool,
}

impl Head {
    fn read(response: &Response<'_, '_>) -> Result<Self, Fault> {
        let mut head = Self { length: None, chunked: false, closes: response.version == Some(0) };
        for field in response.headers.iter() {
            let is = |name: &str| field.name.eq_ignore_ascii_case(name);
            let has = |token: &str| {
                field
                    .value
                    .split(|byte| *byte == b',')
                    .any(|part| part.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
            };
            match field.name.len() {
                14 if is("content-length") => {
                    let length = std::str::from_utf8(field.value).ok().and_then(|value| value.trim().parse().ok());
                    head.length = Some(length.ok_or(Fault::Protocol)?);
                }
                17 if is("transfer-encoding") => head.chunked = has("chunked"),
                10 if is("connection") => {
                    head.closes = has("close") || head.closes && !has("keep-alive");
                }
                _ => {}
            }
        }
        Ok(head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http1(is_head: bool) -> Http1 {
        Http1::new(Arc::new(Http1Request { bytes: b"GET".to_vec(), is_head, closes: false }))
    }

    /// The status, sizes and `closes` of the response in these bytes, in whatever pieces they come.
    fn read(text: &str, piece: usize) -> Result<Vec<(Code, u64, u64, bool)>, Fault> {
        let (mut http1, mut events, mut out) = (http1(false), Events::default(), Vec::new());
        http1.request(0, &mut out);
        for bytes in text.as_bytes().chunks(piece) {
            http1.receive(bytes, &mut events)?;
        }
        http1.end(&mut events);
        let parts = |answer: &Answer| (answer.code, answer.header_bytes, answer.total_bytes, answer.closes);
        Ok(events.answers.iter().map(parts).collect())
    }

    #[test]
    fn a_response_ends_where_its_head_says() {
        let check = |text: &str, expected: &[(u16, u64, u64, bool)]| {
            let expected: Vec<_> = expected
                .iter()
                .map(|&(status, head, total, closes)| (Code::Http(status), head, total, closes))
                .collect();
            for piece in [1, 7, 1000] {
                assert_eq!(read(text, piece).as_ref(), Ok(&expected), "{text:?} in pieces of {piece}");
            }
        };
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", &[(200, 38, 41, false)]);
        check("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", &[]);
        check("HTTP/1.1 503 X\r\ncontent-length: 0\r\nConnection: close\r\n\r\n", &[(503, 56, 56, true)]);
        check("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", &[(200, 47, 60, false)]);
        check("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n", &[(204, 44, 44, false)]);
        check("HTTP/1.0 200 OK\r\n\r\nuntil the end", &[(200, 19, 32, true)]);
        check("HTTP/1.0 200 OK\r\ncontent-length: 1\r\nconnection: keep-alive\r\n\r\n.", &[(200, 62, 63, false)]);
    }

    #[test]
    fn what_is_no_response_is_a_fault() {
        for text in [
            "SSH-2.0-OpenSSH\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ] {
            assert_eq!(read(text, 1000), Err(Fault::Protocol), "{text:?}");
        }
    }

    #[test]
    fn head_has_no_body() {
        let (mut http1, mut events, mut out) = (http1(true), Events::default(), Vec::new());
        http1.request(0, &mut out);
        http1.receive(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", &mut events).unwrap();
        assert_eq!(events.answers.len(), 1);
    }
}
