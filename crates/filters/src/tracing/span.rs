//! A span: one hop of a request, with its tags.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use super::context::SpanContext;

/// Maximum length of a tag's value in bytes; the rest is cut off. Values come from headers, and spans wait in memory.
const MAX_TAG_BYTES: usize = 4096;
/// Size of a span without its texts, in bytes: an estimate for the limit on waiting spans.
const SPAN_BYTES: usize = 256;
/// Size of a tag without its texts, in bytes: an estimate.
const TAG_BYTES: usize = 48;

/// Which side of a call a span describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The callee's span.
    Server,
    /// The caller's span.
    Client,
}

/// A span.
#[derive(Debug, Clone)]
pub(super) struct Span {
    pub(super) context: SpanContext,
    pub(super) name: Box<str>,
    pub(super) kind: Kind,
    /// The parent is a span of the caller's.
    pub(super) remote_parent: bool,
    pub(super) start: SystemTime,
    pub(super) duration: Duration,
    pub(super) tags: Tags,
}

impl Span {
    /// Creates a span that begins.
    pub(super) fn new(context: SpanContext, name: impl Into<Box<str>>, kind: Kind, start: SystemTime) -> Self {
        let (duration, tags) = (Duration::ZERO, Tags::default());
        Self { context, name: name.into(), kind, remote_parent: false, start, duration, tags }
    }

    /// Bytes that it takes, about.
    pub(super) fn bytes(&self) -> usize {
        let tags = self.tags.iter().map(|(name, value)| name.len() + value.len() + TAG_BYTES);
        SPAN_BYTES + self.name.len() + self.context.state.len() + tags.sum::<usize>()
    }
}

/// Names and values, in order.
#[derive(Debug, Clone, Default)]
pub(super) struct Tags(Vec<(Cow<'static, str>, String)>);

impl Tags {
    /// Sets a tag. Of equal names the last value holds. Bytes that are no UTF-8 become `!`, as Envoy writes them.
    pub(super) fn set(&mut self, name: impl Into<Cow<'static, str>>, value: impl AsRef<[u8]>) {
        let (name, value) = (name.into(), text(value.as_ref()));
        match self.0.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name, value)),
        }
    }

    /// Names and values.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }
}

fn text(value: &[u8]) -> String {
    let value = value.get(..MAX_TAG_BYTES).unwrap_or(value);
    let mut text = String::with_capacity(value.len());
    for chunk in value.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| '!'));
    }
    text
}
