//! Encoded entries that wait to be sent, between the requests of a worker and the task that sends them.

use std::cell::RefCell;
use std::time::Duration;

use evenkeel_runtime_config::grpc_access_log::Collector;
use evenkeel_upstream::turn;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Smallest limit of a buffer while its service does not read, in bytes: `buffer_size_bytes` may be 0.
const MIN_LIMIT_BYTES: usize = 16 * 1024;
/// Maximum size of an entry, in bytes. Longer ones are dropped: they could make a message too long for the service.
const MAX_ENTRY_BYTES: usize = 1024 * 1024;

/// Entries of one collector.
pub(super) struct Buffer {
    state: RefCell<State>,
    changed: Notify,
    /// Entries are due at this size.
    due_bytes: usize,
    /// No entries are added beyond this size.
    limit_bytes: usize,
    interval: Duration,
}

#[derive(Default)]
struct State {
    entries: Vec<u8>,
    count: u64,
    /// When the first of the entries was added.
    since: Option<Instant>,
    closed: bool,
}

/// Entries to send together.
pub(super) struct Batch {
    /// Encoded elements of `log_entry`.
    pub(super) entries: Vec<u8>,
    /// Number of entries.
    pub(super) count: u64,
}

/// When the entries are to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// There are none.
    Never,
    /// Then, or earlier if more come.
    At(Instant),
    Now,
    /// Now, and no more will come.
    Last,
}

impl Buffer {
    pub(super) fn new(buffer_bytes: usize, interval: Duration) -> Self {
        Self {
            state: RefCell::default(),
            changed: Notify::new(),
            due_bytes: buffer_bytes,
            limit_bytes: buffer_bytes.clamp(MIN_LIMIT_BYTES, Collector::MAX_BUFFER_BYTES),
            interval,
        }
    }

    /// Adds an entry; false: there is no room.
    pub(super) fn add(&self, append: impl FnOnce(&mut Vec<u8>)) -> bool {
        let state = &mut *self.state.borrow_mut();
        let before = state.entries.len();
        // As in Envoy, the last entry may exceed the limit.
        if before >= self.limit_bytes || state.closed {
            return false;
        }
        append(&mut state.entries);
        if state.entries.len() - before > MAX_ENTRY_BYTES {
            state.entries.truncate(before);
            return false;
        }
        state.count += 1;
        let is_first = state.since.is_none();
        if is_first {
            state.since = Some(turn::now());
        }
        if is_first || (before < self.due_bytes && state.entries.len() >= self.due_bytes) {
            self.changed.notify_one();
        }
        true
    }

    /// Closes the buffer to further entries.
    pub(super) fn close(&self) {
        self.state.borrow_mut().closed = true;
        self.changed.notify_one();
    }

    pub(super) fn due(&self) -> Due {
        let state = self.state.borrow();
        match state.since {
            _ if state.closed => Due::Last,
            None => Due::Never,
            Some(_) if state.entries.len() >= self.due_bytes => Due::Now,
            Some(since) => Due::At(since + self.interval),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.borrow().since.is_none()
    }

    /// Waits for a change of [`Buffer::due`].
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes all entries so far; `None` if there are none.
    pub(super) fn take(&self) -> Option<Batch> {
        let mut state = self.state.borrow_mut();
        state.since.take()?;
        Some(Batch { entries: std::mem::take(&mut state.entries), count: std::mem::take(&mut state.count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds entries of these sizes, and says which were taken, and whether they are due.
    fn added(buffer_bytes: usize, sizes: &[usize]) -> (Vec<bool>, Due) {
        let buffer = Buffer::new(buffer_bytes, Duration::from_secs(3600));
        let taken = sizes.iter().map(|size| buffer.add(|out| out.resize(out.len() + size, 0))).collect();
        (taken, buffer.due())
    }

    #[test]
    fn entries_are_due_by_size_and_bounded() {
        const KIB: usize = 1024;
        for (buffer_bytes, sizes, taken, is_due) in [
            (0, &[1][..], &[true][..], true),
            (100, &[99], &[true], false),
            (100, &[99, 1], &[true, true], true),
            (0, &[16 * KIB - 1, 7, 1], &[true, true, false], true),
            (20 * KIB, &[16 * KIB, 4 * KIB, 1], &[true, true, false], true),
            (usize::MAX, &[KIB * KIB, 1], &[true, false], false),
            (100, &[KIB * KIB + 1, 99], &[false, true], false),
        ] {
            let (were_taken, due) = added(buffer_bytes, sizes);
            assert_eq!((&*were_taken, due == Due::Now), (taken, is_due), "{buffer_bytes} {sizes:?}");
        }
    }

    #[test]
    fn the_first_entry_says_when_a_batch_is_due() {
        let buffer = Buffer::new(100, Duration::from_secs(3600));
        assert_eq!(buffer.due(), Due::Never);
        let before = Instant::now();
        assert!(buffer.add(|out| out.push(1)) && buffer.add(|out| out.push(2)));
        let Due::At(at) = buffer.due() else { panic!("{:?}", buffer.due()) };
        assert!(at >= before + Duration::from_secs(3600));
        let batch = buffer.take().expect("two entries");
        assert_eq!((batch.entries, batch.count), (vec![1, 2], 2));
        assert!(buffer.take().is_none());
        assert_eq!(buffer.due(), Due::Never);
        buffer.close();
        assert!(!buffer.add(|out| out.push(3)));
        assert_eq!(buffer.due(), Due::Last);
    }
}
