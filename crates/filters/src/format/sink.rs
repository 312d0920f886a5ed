//! Sinks for the values of operators: text, JSON, or only the check whether there is a value.

use std::io::Write;
use std::net::{IpAddr, SocketAddr};

use evenkeel_tls::printable;

use crate::info::Form;

/// Receives the value of an operator with its type.
pub(super) trait Sink {
    fn absent(&mut self);
    fn bytes(&mut self, bytes: &[u8]);
    fn number(&mut self, number: u64);
    /// A value that exists only as text: addresses, lists, times.
    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>));

    /// The form in which objects are written to it.
    fn form(&self) -> Form;

    /// A value that is JSON already.
    fn json(&mut self, json: &str);

    fn string(&mut self, value: Option<&str>) {
        match value {
            Some(text) => self.bytes(text.as_bytes()),
            None => self.absent(),
        }
    }

    fn non_empty(&mut self, value: &str) {
        self.string(Some(value).filter(|text| !text.is_empty()));
    }

    fn number_of(&mut self, value: Option<u64>) {
        match value {
            Some(number) => self.number(number),
            None => self.absent(),
        }
    }

    fn text_of<T>(&mut self, value: Option<T>, write: impl FnOnce(T, &mut Vec<u8>)) {
        match value {
            Some(value) => self.text(|out| write(value, out)),
            None => self.absent(),
        }
    }
}

/// Writes text, with a placeholder for absent values.
pub(super) struct Text<'o>(pub(super) &'o mut Vec<u8>, pub(super) &'static [u8]);

impl Sink for Text<'_> {
    fn absent(&mut self) {
        write_short(self.1, self.0);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn number(&mut self, number: u64) {
        write_number(number, self.0);
    }

    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(self.0);
    }

    fn form(&self) -> Form {
        Form::Typed
    }

    fn json(&mut self, json: &str) {
        self.bytes(json.as_bytes());
    }
}

/// Writes a JSON value.
pub(super) struct Json<'o>(pub(super) &'o mut Vec<u8>);

impl Sink for Json<'_> {
    fn absent(&mut self) {
        self.0.extend_from_slice(b"null");
    }

    fn bytes(&mut self, bytes: &[u8]) {
        json_string(bytes, self.0);
    }

    fn number(&mut self, number: u64) {
        write_number(number, self.0);
    }

    fn text(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut text = Vec::new();
        write(&mut text);
        json_string(&text, self.0);
    }

    // Envoy spells the fields as in protobuf when it writes JSON.
    fn form(&self) -> Form {
        Form::TypedJson
    }

    fn json(&mut self, json: &str) {
        self.0.extend_from_slice(json.as_bytes());
    }
}

/// Finds out whether there is a value, and no more.
pub(super) struct Presence(pub(super) bool);

impl Sink for Presence {
    fn absent(&mut self) {
        self.0 = false;
    }

    fn bytes(&mut self, _: &[u8]) {}

    fn number(&mut self, _: u64) {}

    fn text(&mut self, _: impl FnOnce(&mut Vec<u8>)) {}

    fn form(&self) -> Form {
        Form::TypedJson
    }

    fn json(&mut self, _: &str) {}
}

pub(super) fn json_string(bytes: &[u8], out: &mut Vec<u8>) {
    // Serializing a string to a Vec cannot fail.
    let _ = serde_json::to_writer(out, &String::from_utf8_lossy(bytes));
}

// Writing to a Vec cannot fail.

pub(super) fn write_address(address: SocketAddr, out: &mut Vec<u8>) {
    match address {
        SocketAddr::V4(address) => write_ipv4(address.ip().octets(), Some(address.port()), out),
        SocketAddr::V6(address) => _ = write!(out, "{address}"),
    }
}

pub(super) fn write_ip(address: SocketAddr, out: &mut Vec<u8>) {
    match address.ip() {
        IpAddr::V4(ip) => write_ipv4(ip.octets(), None, out),
        IpAddr::V6(ip) => _ = write!(out, "{ip}"),
    }
}

/// `Display` of an address costs more than the rest of a line; four small numbers are cheap.
fn write_ipv4(octets: [u8; 4], port: Option<u16>, out: &mut Vec<u8>) {
    for (index, octet) in octets.into_iter().enumerate() {
        if index > 0 {
            out.push(b'.');
        }
        write_number(u64::from(octet), out);
    }
    if let Some(port) = port {
        out.push(b':');
        write_number(u64::from(port), out);
    }
}

fn write_number(number: u64, out: &mut Vec<u8>) {
    write_short(itoa::Buffer::new().format(number).as_bytes(), out);
}

/// Most parts of a line are blanks, quotes and small numbers, for which any call, even of `memcpy`, costs more than copying the bytes.
#[inline(always)]
pub(super) fn write_short(bytes: &[u8], out: &mut Vec<u8>) {
    match *bytes {
        [a] => out.push(a),
        [a, b] => out.extend_from_slice(&[a, b]),
        [a, b, c] => out.extend_from_slice(&[a, b, c]),
        ref bytes => out.extend_from_slice(bytes),
    }
}

pub(super) fn join<'a>(items: impl Iterator<Item = &'a str>, out: &mut Vec<u8>) {
    for (index, item) in items.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(item.as_bytes());
    }
}

/// Names from a certificate. Control characters that its CA allowed must not split a log line.
pub(super) fn list(items: &[String], sink: &mut impl Sink) {
    sink.text_of(Some(items).filter(|items| !items.is_empty()), |items, out| {
        let plain = |item: &String| !item.bytes().any(|byte| byte.is_ascii_control());
        if items.iter().all(plain) {
            join(items.iter().map(String::as_str), out)
        } else {
            out.extend_from_slice(printable(&items.join(",")).as_bytes())
        }
    });
}
