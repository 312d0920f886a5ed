//! The position of a span in its trace, as proxies and programs pass it on.

/// A span's ids, and whether it is recorded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SpanContext {
    /// The trace; the upper half of an id of 64 bits is 0.
    pub(super) trace_id: u128,
    /// The span.
    pub(super) span_id: u64,
    /// Its parent, if it has one.
    pub(super) parent_id: Option<u64>,
    /// Whether it is recorded.
    pub(super) sampled: bool,
    /// The caller has sent it in one header, `b3`, and the upstream gets it so.
    pub(super) single_header: bool,
    /// `tracestate`: what other tracers pass on, unread.
    pub(super) state: Box<[u8]>,
}

/// The caller's context is not valid: the request is not traced, and its headers stay as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Malformed;

/// A hexadecimal number. Unlike Envoy, which takes what `strtoull` does, only digits are accepted.
pub(super) fn hex(digits: &[u8]) -> Result<u64, Malformed> {
    if digits.is_empty() {
        return Err(Malformed);
    }
    digits.iter().try_fold(0_u64, |number, digit| {
        let digit = char::from(*digit).to_digit(16).ok_or(Malformed)?;
        number.checked_mul(16).and_then(|number| number.checked_add(digit.into())).ok_or(Malformed)
    })
}
