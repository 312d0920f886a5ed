//! Data of a call for access logs, under the filter's name (`%FILTER_STATE%`).

use std::time::Duration;

use crate::info::{Form, StateObject};

/// Figures of one call.
#[derive(Debug, Default)]
pub(super) struct Logged {
    /// How long the call took.
    pub(super) latency: Duration,
    /// Bytes of a gRPC call's messages.
    pub(super) bytes: Option<(usize, usize)>,
}

impl StateObject for Logged {
    // Only its fields can be printed, as of Envoy's.
    fn write(&self, _: Form, _: &mut Vec<u8>) -> bool {
        false
    }

    fn field(&self, name: &str, out: &mut Vec<u8>) -> bool {
        let number = match name {
            "latency_us" => Some(self.latency.as_micros() as u64),
            "bytesSent" => self.bytes.map(|(sent, _)| sent as u64),
            "bytesReceived" => self.bytes.map(|(_, received)| received as u64),
            _ => None,
        };
        number.inspect(|number| out.extend_from_slice(itoa::Buffer::new().format(*number).as_bytes())).is_some()
    }
}
