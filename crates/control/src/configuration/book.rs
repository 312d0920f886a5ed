//! The address book, which is stored so that virtual addresses survive a restart.

use std::io;
use std::path::PathBuf;
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

/// The address book cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; remove the file to allot virtual addresses anew", .path.display())]
pub struct AddressBookError {
    /// Where it is.
    path: PathBuf,
    /// The error.
    reason: String,
}

/// The address book as it is stored.
#[derive(Debug)]
pub(super) struct StoredBook {
    pub store: Store,
    /// Whether the last write failed, which has been logged; it is retried.
    pub failed: bool,
    /// Number of addresses when the book was last checked: it rarely changes except by growing.
    pub addresses: usize,
    /// When the book is to be written, if it has changed.
    pub due: Option<Instant>,
    pub written: Option<Instant>,
}

impl StoredBook {
    pub fn note(&mut self, book: &AddressBook, now: Instant) {
        if book.len() != self.addresses {
            self.addresses = book.len();
            let next = self.written.map_or(now, |written| (written + INTERVAL).max(now));
            self.due.get_or_insert(next);
        }
        if self.due.is_some_and(|due| due <= now) {
            self.write(book, now);
        }
    }

    pub fn write(&mut self, book: &AddressBook, now: Instant) {
        self.written = Some(now);
        let result = write_book(&self.store, book);
        self.due = result.is_err().then(|| now + RETRY);
        let had_failed = std::mem::replace(&mut self.failed, result.is_err());
        if let (Err(error), false) = (result, had_failed) {
            tracing::error!(
                path = %self.store.place(ADDRESS_BOOK).display(), %error,
                "virtual addresses cannot be kept for a restart; tried again every {} s", RETRY.as_secs()
            );
        }
    }
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
