//! A request head as matchers see it.

use std::borrow::Cow;

use evenkeel_http::{HeaderId, RequestHead};
use evenkeel_runtime_config::cookie;
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::view::RequestView;

/// A request head, and the dynamic metadata that filters have set.
#[derive(Debug, Clone, Copy)]
pub struct HeadView<'r> {
    /// The head.
    pub head: &'r RequestHead,
    metadata: &'r DynamicMetadata,
}

impl<'r> HeadView<'r> {
    /// A view of a head and dynamic metadata.
    pub fn new(head: &'r RequestHead, metadata: &'r DynamicMetadata) -> Self {
        Self { head, metadata }
    }
}

impl RequestView for HeadView<'_> {
    fn method(&self) -> &[u8] {
        self.head.method()
    }

    fn path(&self) -> &[u8] {
        self.head.path()
    }

    fn authority(&self) -> &[u8] {
        self.head.authority()
    }

    fn scheme(&self) -> &[u8] {
        self.head.headers.get(HeaderId::ForwardedProto).unwrap_or(b"http")
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        match name {
            ":method" => return Some(self.method().into()),
            ":path" => return Some(self.path().into()),
            ":authority" | "host" => return Some(self.authority().into()),
            ":scheme" => return Some(self.scheme().into()),
            _ => {}
        }
        let first = self.head.headers.find(name.as_bytes())?;
        let mut all =
            self.head.headers.iter().filter(|(_, n, _)| *n == name.as_bytes()).map(|(_, _, value)| value).skip(1);
        let Some(second) = all.next() else { return Some(first.into()) };
        let mut joined = [first, second].join(&b","[..]);
        for value in all {
            joined.push(b',');
            joined.extend_from_slice(value);
        }
        Some(joined.into())
    }

    fn any_value(&self, name: &str, mut wanted: impl FnMut(&[u8]) -> bool) -> Option<bool> {
        if name.starts_with(':') || name == "host" {
            return self.header(name).map(|value| wanted(&value));
        }
        let first = self.head.headers.find(name.as_bytes())?;
        Some(wanted(first) || self.head.headers.find_all(name.as_bytes()).skip(1).any(wanted))
    }

    fn cookie(&self, name: &str) -> Option<Vec<u8>> {
        cookie::find(self.head.headers.find_all(b"cookie"), name).map(<[u8]>::to_vec)
    }

    fn dynamic_metadata(&self) -> Option<&DynamicMetadata> {
        Some(self.metadata)
    }
}
