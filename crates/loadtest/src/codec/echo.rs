//! Bytes that the server sends back, over TCP or UDP.

use std::sync::Arc;

use super::Events;
use crate::outcome::{Answer, Code, Fault};

/// One connection's echo.
#[derive(Debug)]
pub struct Echo {
    payload: Option<Arc<[u8]>>,
    expected: Vec<u8>,
    received: usize,
    call: usize,
    sent: u32,
}

impl Echo {
    /// Sends `payload` each time; without one, 24 bytes that differ from request to request.
    pub fn new(payload: Option<Arc<[u8]>>) -> Self {
        Self { payload, expected: Vec::new(), received: 0, call: 0, sent: 0 }
    }

    pub(super) fn request(&mut self, call: usize, out: &mut Vec<u8>) {
        (self.call, self.received) = (call, 0);
        self.sent = self.sent.wrapping_add(1);
        self.expected.clear();
        match &self.payload {
            Some(payload) => self.expected.extend_from_slice(payload),
            None => self.expected.extend_from_slice(format!("evenkeel{call:08x}{:08x}", self.sent).as_bytes()),
        }
        out.extend_from_slice(&self.expected);
    }

    pub(super) fn receive(&mut self, bytes: &[u8], events: &mut Events) -> Result<(), Fault> {
        let rest = self.expected.get(self.received..).unwrap_or_default();
        if bytes.len() > rest.len() || !rest.starts_with(bytes) {
            return Err(Fault::Protocol);
        }
        self.received += bytes.len();
        if self.received == self.expected.len() {
            let total_bytes = self.received as u64;
            events.answers.push(Answer {
                call: self.call,
                code: Code::Named("OK"),
                header_bytes: 0,
                total_bytes,
                closes: false,
            });
            self.expected.clear();
            self.received = 0;
        }
        Ok(())
    }

    pub(super) fn reset(&mut self) {
        self.expected.clear();
        self.received = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_bytes_are_an_answer() {
        let mut echo = Echo::new(Some(Arc::from(*b"abc")));
        let mut out = Vec::new();
        echo.request(7, &mut out);
        assert_eq!(out, b"abc");
        let mut events = Events::default();
        assert_eq!(echo.receive(b"ab", &mut events), Ok(()));
        assert!(events.answers.is_empty());
        assert_eq!(echo.receive(b"c", &mut events), Ok(()));
        assert_eq!(events.answers.iter().map(|answer| (answer.call, answer.total_bytes)).collect::<Vec<_>>(), [(7, 3)]);
        assert_eq!(echo.receive(b"d", &mut events), Err(Fault::Protocol));
        let mut varied = Echo::new(None);
        varied.request(1, &mut out);
        varied.request(1, &mut out);
        assert_eq!(&out[3..], b"evenkeel0000000100000001evenkeel0000000100000002");
    }
}
