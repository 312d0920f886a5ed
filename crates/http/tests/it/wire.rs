//! Writes frames by hand, and converts them back to text.

use std::fmt::Write;

use evenkeel_http::h2::Reason;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
/// HEADERS flags of a message without body.
pub const ALL: u8 = END_STREAM | END_HEADERS;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// A header block of literals that no table takes.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        for text in [name, value] {
            if text.len() < 127 {
                out.push(text.len() as u8);
            } else {
                let mut rest = text.len() - 127;
                out.push(127);
                while rest >= 128 {
                    out.push(rest as u8 | 128);
                    rest >>= 7;
                }
                out.push(rest as u8);
            }
            out.extend(text.as_bytes());
        }
    }
    out
}

pub fn headers(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    frame(HEADERS, flags, stream, &block(fields))
}

/// `GET /` with more fields.
pub fn get(stream: u32, flags: u8, more: &[(&str, &str)]) -> Vec<u8> {
    let mut fields = vec![(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")];
    fields.extend(more);
    headers(stream, flags, &fields)
}

pub fn data(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    frame(DATA, flags, stream, bytes)
}

pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    let payload: Vec<u8> =
        values.iter().flat_map(|(id, v)| [&id.to_be_bytes()[..], &v.to_be_bytes()].concat()).collect();
    frame(SETTINGS, 0, 0, &payload)
}

pub fn window_update(stream: u32, by: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &by.to_be_bytes())
}

pub fn reset(stream: u32, reason: Reason) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &reason.0.to_be_bytes())
}

/// Frames as text, one a line, without this side's first SETTINGS and WINDOW_UPDATE and the acknowledgements of the peer's.
pub fn describe(mut bytes: &[u8]) -> String {
    let mut text = String::new();
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let (kind, flags) = (bytes[3], bytes[4]);
        let stream = u32::from_be_bytes([bytes[5], bytes[6], bytes[7], bytes[8]]);
        let payload = &bytes[9..9 + length];
        bytes = &bytes[9 + length..];
        let number = |at: usize| u32::from_be_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
        let end = if flags & END_STREAM != 0 { " end" } else { "" };
        let _ = match kind {
            DATA => writeln!(text, "DATA {stream} {length}{end}"),
            HEADERS => writeln!(text, "HEADERS {stream}{end}"),
            CONTINUATION => writeln!(text, "CONTINUATION {stream}"),
            RST_STREAM => writeln!(text, "RST_STREAM {stream} {}", Reason(number(0))),
            SETTINGS if stream == 0 => Ok(()),
            PING => writeln!(text, "PING {flags} {}", payload.escape_ascii()),
            GOAWAY => {
                writeln!(text, "GOAWAY {} {} {}", number(0), Reason(number(4)), String::from_utf8_lossy(&payload[8..]))
            }
            WINDOW_UPDATE => writeln!(text, "WINDOW_UPDATE {stream} {}", number(0)),
            kind => writeln!(text, "frame {kind} {stream}"),
        };
    }
    assert!(bytes.is_empty(), "half a frame in the output");
    text
}
