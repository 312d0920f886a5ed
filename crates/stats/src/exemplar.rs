//! Exemplars: the trace of one value, kept with the bucket that counted it.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release, fence};

/// The trace of a recorded value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// The trace.
    pub trace_id: [u8; 16],
    /// The span in it; all zero if unknown.
    pub span_id: [u8; 8],
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
}

/// An exemplar and its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SampledValue {
    pub(crate) exemplar: Exemplar,
    pub(crate) value: f64,
}

impl SampledValue {
    /// Writes the exemplar behind a bucket's sample, as OpenMetrics defines it.
    pub(crate) fn write(&self, out: &mut String) {
        let Exemplar { trace_id, span_id, unix_ms } = self.exemplar;
        // Writing to a String cannot fail.
        let _ = write!(out, " # {{trace_id=\"{:032x}\"", u128::from_be_bytes(trace_id));
        if span_id != [0; 8] {
            let _ = write!(out, ",span_id=\"{:016x}\"", u64::from_be_bytes(span_id));
        }
        let _ = write!(out, "}} {} {}.{:03}", self.value, unix_ms / 1000, unix_ms % 1000);
    }
}

/// The last exemplar of one bucket. One thread writes; a reader that comes during a write detects that and gets nothing.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// Odd while the rest is being written; 0 if nothing has been written.
    version: AtomicU64,
    trace: [AtomicU64; 2],
    span: AtomicU64,
    value: AtomicU64,
    unix_ms: AtomicU64,
}

impl Slot {
    pub(crate) fn put(&self, exemplar: &Exemplar, value: f64) {
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        let trace = u128::from_be_bytes(exemplar.trace_id);
        self.trace[0].store((trace >> 64) as u64, Relaxed);
        self.trace[1].store(trace as u64, Relaxed);
        self.span.store(u64::from_be_bytes(exemplar.span_id), Relaxed);
        self.value.store(value.to_bits(), Relaxed);
        self.unix_ms.store(exemplar.unix_ms, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }

    pub(crate) fn take(&self) -> Option<SampledValue> {
        let version = self.version.load(Acquire);
        let trace = u128::from(self.trace[0].load(Relaxed)) << 64 | u128::from(self.trace[1].load(Relaxed));
        let span = self.span.load(Relaxed);
        let value = f64::from_bits(self.value.load(Relaxed));
        let unix_ms = self.unix_ms.load(Relaxed);
        fence(Acquire);
        let is_whole = version != 0 && version.is_multiple_of(2) && self.version.load(Relaxed) == version;
        let exemplar = Exemplar { trace_id: trace.to_be_bytes(), span_id: span.to_be_bytes(), unix_ms };
        is_whole.then_some(SampledValue { exemplar, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_never_sees_half_of_one() {
        let slot = Slot::default();
        assert_eq!(slot.take(), None);
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| {
                for number in 1..=200_000u64 {
                    let [.., last] = number.to_be_bytes();
                    slot.put(&Exemplar { trace_id: [last; 16], span_id: [last; 8], unix_ms: number }, number as f64);
                }
            });
            while !writing.is_finished() {
                let Some(SampledValue { exemplar, value }) = slot.take() else { continue };
                let [.., last] = exemplar.unix_ms.to_be_bytes();
                assert_eq!((exemplar.trace_id, exemplar.span_id), ([last; 16], [last; 8]));
                assert_eq!(value, exemplar.unix_ms as f64);
            }
        });
        assert_eq!(slot.take().map(|taken| taken.value), Some(200_000.0));
    }

    #[test]
    fn is_written_as_openmetrics_has_it() {
        let exemplar = Exemplar { trace_id: [0xab; 16], span_id: [0; 8], unix_ms: 1_700_000_000_042 };
        let mut text = String::new();
        SampledValue { exemplar, value: 7.5 }.write(&mut text);
        assert_eq!(text, " # {trace_id=\"abababababababababababababababab\"} 7.5 1700000000.042");
        text.clear();
        SampledValue { exemplar: Exemplar { span_id: [1; 8], ..exemplar }, value: 7.0 }.write(&mut text);
        assert!(text.contains(",span_id=\"0101010101010101\"} 7 "), "{text}");
    }
}
