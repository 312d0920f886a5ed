//! The address book, which is stored so that virtual addresses survive a restart.

use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use evenkeel_model::AddressBook;
use evenkeel_store::{Readers, Store};

/// Key of the assigned virtual addresses in the store.
pub const ADDRESS_BOOK: &str = "addresses.json";
/// Minimum interval between two writes, except at shutdown. An address that a crash loses is found again from the hash of its
/// name.
const INTERVAL: Duration = Duration::from_secs(5);
/// Delay before a failed write is retried.
pub(super) const RETRY: Duration = Duration::from_secs(30);
/// How often the outcome of a write is looked for.
const CHECK: Duration = Duration::from_millis(200);

/// The address book cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; remove the file to allot virtual addresses anew", .path.display())]
pub struct AddressBookError {
    /// Where it is.
    path: PathBuf,
    /// The error.
    reason: String,
}

/// The address book as it is stored. It is written by a thread of its own: a store in a cluster may not answer for a while, and changes
/// of the configuration do not wait for that.
#[derive(Debug)]
pub(super) struct StoredBook {
    store: Store,
    /// Whether the last write failed, which has been logged; it is retried.
    pub failed: bool,
    /// Number of addresses when the book was last checked: it rarely changes except by growing.
    addresses: usize,
    /// When the book is to be written, if it has changed, or looked for the outcome of the write that is going on.
    pub due: Option<Instant>,
    written: Option<Instant>,
    writing: Option<Writing>,
}

/// A write that is going on.
#[derive(Debug)]
struct Writing {
    outcome: Receiver<io::Result<()>>,
    /// Number of addresses that it writes.
    addresses: usize,
}

impl StoredBook {
    /// A book that was read from this store with so many addresses.
    pub fn new(store: Store, addresses: usize) -> Self {
        Self { store, failed: false, addresses, due: None, written: None, writing: None }
    }

    /// Writes the book if it has changed and it is time, and looks how the last write has ended.
    pub fn note(&mut self, book: &AddressBook, now: Instant) {
        if book.len() != self.addresses {
            self.addresses = book.len();
            let next = self.written.map_or(now, |written| (written + INTERVAL).max(now));
            self.due.get_or_insert(next);
        }
        if self.due.is_none_or(|due| due > now) {
            return;
        }
        match self.writing.take() {
            None => self.begin(book, now),
            Some(writing) => match writing.outcome.try_recv() {
                Err(TryRecvError::Empty) => {
                    self.due = Some(now + CHECK);
                    self.writing = Some(writing);
                }
                Ok(outcome) => self.end(outcome, writing.addresses, now),
                Err(TryRecvError::Disconnected) => self.end(Err(panicked()), writing.addresses, now),
            },
        }
    }

    /// Waits for the write that is going on, and for what is left to write: at the end of the process.
    pub fn finish(&mut self, book: &AddressBook, now: Instant) {
        self.wait(now);
        if self.due.is_some() {
            self.begin(book, now);
            self.wait(now);
        }
    }

    /// Waits for the write that is going on.
    pub fn wait(&mut self, now: Instant) {
        if let Some(Writing { outcome, addresses }) = self.writing.take() {
            self.end(outcome.recv().unwrap_or_else(|_| Err(panicked())), addresses, now);
        }
    }

    fn begin(&mut self, book: &AddressBook, now: Instant) {
        self.written = Some(now);
        let (sender, outcome) = sync_channel(1);
        let (store, written) = (self.store.clone(), book.clone());
        let thread = std::thread::Builder::new().name("address-book".to_owned());
        // Nobody may be left who waits for the outcome.
        let begun = thread.spawn(move || drop(sender.send(write_book(&store, &written))));
        self.due = Some(now + CHECK);
        match begun {
            Ok(_) => self.writing = Some(Writing { outcome, addresses: book.len() }),
            Err(error) => self.end(Err(error), book.len(), now),
        }
    }

    fn end(&mut self, outcome: io::Result<()>, addresses: usize, now: Instant) {
        self.due = match &outcome {
            Ok(()) => (addresses != self.addresses).then(|| now + INTERVAL),
            Err(_) => Some(now + RETRY),
        };
        let had_failed = std::mem::replace(&mut self.failed, outcome.is_err());
        if let (Err(error), false) = (outcome, had_failed) {
            tracing::error!(
                path = %self.store.place(ADDRESS_BOOK).display(), %error,
                "virtual addresses cannot be kept for a restart; tried again every {} s", RETRY.as_secs()
            );
        }
    }
}

fn panicked() -> io::Error {
    io::Error::other("the thread that writes it has panicked")
}

pub(super) fn read_book(store: &Store) -> Result<AddressBook, AddressBookError> {
    let broken = |reason: String| AddressBookError { path: store.place(ADDRESS_BOOK), reason };
    match store.get(ADDRESS_BOOK).map_err(|error| broken(error.to_string()))? {
        Some(text) => serde_json::from_slice(&text).map_err(|error| broken(error.to_string())),
        None => Ok(AddressBook::default()),
    }
}

/// Stores the address book. Holds a lease, so that addresses that another control plane has written meanwhile are kept.
fn write_book(store: &Store, book: &AddressBook) -> io::Result<()> {
    let _lease = store.lease("addresses")?;
    let book = read_book(store).map_err(io::Error::other)?.joined(book);
    store.put(ADDRESS_BOOK, &serde_json::to_vec_pretty(&book)?, Readers::All)
}
