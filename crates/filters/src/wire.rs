//! Writes protocol buffers directly, without building message structs first. Authorization requests and spans consist mostly
//! of parts of the client's request, which would otherwise be copied twice.

use std::borrow::Cow;

use evenkeel_runtime_config::metadata::MetadataValue;

/// Varint.
const VARINT: u64 = 0;
/// Eight bytes.
const FIXED_64: u64 = 1;
/// Four bytes.
const FIXED_32: u64 = 5;
/// A length, and that many bytes.
const LENGTH: u64 = 2;

/// A message that is being written.
#[derive(Debug, Default)]
pub(crate) struct Message(Vec<u8>);

impl Message {
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn key(&mut self, field: u32, kind: u64) {
        self.varint(u64::from(field) << 3 | kind);
    }

    /// Bytes, or a message; also if they are empty.
    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.key(field, LENGTH);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// A string, unless it is empty. Bytes that are no UTF-8 become `!`, as Envoy writes them.
    pub(crate) fn text(&mut self, field: u32, value: &[u8]) {
        if !value.is_empty() {
            self.bytes(field, &readable(value));
        }
    }

    /// A number, unless it is 0.
    pub(crate) fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.key(field, VARINT);
            self.varint(value);
        }
    }

    /// A number of eight bytes.
    pub(crate) fn fixed_64(&mut self, field: u32, value: u64) {
        self.key(field, FIXED_64);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A number of four bytes.
    pub(crate) fn fixed_32(&mut self, field: u32, value: u32) {
        self.key(field, FIXED_32);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// A message in this one.
    pub(crate) fn message(&mut self, field: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(field, &inner.0);
    }

    /// An entry of a map from strings to strings.
    pub(crate) fn entry(&mut self, field: u32, name: &[u8], value: &[u8]) {
        self.message(field, |entry| {
            entry.text(1, name);
            entry.text(2, value);
        });
    }

    /// The fields of a `google.protobuf.Struct`.
    pub(crate) fn fields(&mut self, fields: &[(Box<str>, MetadataValue)]) {
        for (name, value) in fields {
            self.message(1, |entry| {
                entry.text(1, name.as_bytes());
                entry.message(2, |message| message.value(value));
            });
        }
    }

    /// A `google.protobuf.Value`. Its depth is that of a message that was decoded with a limit.
    fn value(&mut self, value: &MetadataValue) {
        match value {
            MetadataValue::Null => {
                self.key(1, VARINT);
                self.varint(0);
            }
            MetadataValue::Number(bits) => {
                self.fixed_64(2, *bits);
            }
            MetadataValue::Text(text) => self.bytes(3, text.as_bytes()),
            MetadataValue::Bool(value) => {
                self.key(4, VARINT);
                self.varint(u64::from(*value));
            }
            MetadataValue::Object(fields) => self.message(5, |object| object.fields(fields)),
            MetadataValue::List(values) => self.message(6, |list| {
                values.iter().for_each(|value| list.message(1, |message| message.value(value)));
            }),
        }
    }
}

/// The bytes as UTF-8: each that is none becomes `!`.
pub(crate) fn readable(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.is_ascii() || std::str::from_utf8(bytes).is_ok() {
        return Cow::Borrowed(bytes);
    }
    let mut text = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        text.extend(chunk.invalid().iter().map(|_| b'!'));
    }
    Cow::Owned(text)
}
