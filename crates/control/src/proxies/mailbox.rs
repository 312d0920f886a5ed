//! The requests to the translator's thread, and the order in which it serves them.
//!
//! Tasks leave a request and continue, or await the answer. The lock is held only to store or take a request, never during
//! translation. Two equal requests are served once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use evenkeel_translate::ProxyView;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Admitted, Client, ConnectError};

/// Maximum number of proxies that wait for the translator; further ones wait for room.
pub const MAX_WAITING_JOINS: usize = 1024;

/// Requests to the translator's thread; `R` is the answer for a proxy that joins.
#[derive(Debug)]
pub(super) struct Mailbox<R> {
    notes: Mutex<Notes<R>>,
    more: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Notes<R> {
    /// Proxies that have disconnected: at most one for each stream, because only the reader opens streams, and it reads these first.
    left: Vec<Arc<ProxyView>>,
    /// Whether there is a new world.
    publish: bool,
    /// Senders to answer when a requested rebuild is done.
    rebuild: Vec<oneshot::Sender<()>>,
    give_back: bool,
    joins: VecDeque<Join<R>>,
    #[cfg(test)]
    asked: VecDeque<Question>,
    closed: bool,
}

/// The next work of the translator.
#[derive(Debug)]
pub(super) enum Work<R> {
    /// Forget these proxies.
    Leave(Vec<Arc<ProxyView>>),
    /// Apply the current world.
    Publish,
    /// Rebuild everything, then answer these.
    Rebuild(Vec<oneshot::Sender<()>>),
    /// Return free memory to the system.
    GiveBack,
    /// Register a proxy.
    Join(Box<Join<R>>),
    #[cfg(test)]
    Ask(Question),
}

/// A proxy that waits for its first configuration.
#[derive(Debug)]
pub(super) struct Join<R> {
    pub client: Client,
    pub admitted: Admitted,
    /// Closed if its client has disconnected meanwhile.
    pub answer: oneshot::Sender<Result<R, ConnectError>>,
    _room: OwnedSemaphorePermit,
}

/// A function that a test runs with the translator.
#[cfg(test)]
pub(super) struct Question(pub Box<dyn FnOnce(&mut evenkeel_translate::Translator) + Send>);

#[cfg(test)]
impl std::fmt::Debug for Question {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Question")
    }
}

impl<R> Default for Mailbox<R> {
    fn default() -> Self {
        Self::with_room(MAX_WAITING_JOINS)
    }
}

impl<R> Mailbox<R> {
    /// Creates a mailbox with room for this many joins.
    pub fn with_room(joins: usize) -> Self {
        Self { notes: Mutex::default(), more: Condvar::new(), room: Arc::new(Semaphore::new(joins)) }
    }

    /// Reports that a proxy has disconnected.
    pub fn left(&self, view: Arc<ProxyView>) {
        self.note(|notes| notes.left.push(view));
    }

    /// Reports that there is a new world.
    pub fn publish(&self) {
        self.note(|notes| notes.publish = true);
    }

    /// Requests a rebuild. The receiver gets the answer when it is done; it is closed if the thread ends before.
    pub fn rebuild(&self) -> oneshot::Receiver<()> {
        let (done, answer) = oneshot::channel();
        self.note(|notes| notes.rebuild.push(done));
        answer
    }

    /// Requests that free memory is returned to the system.
    pub fn give_back(&self) {
        self.note(|notes| notes.give_back = true);
    }

    /// Registers a proxy: waits for room, and for its turn.
    pub async fn join(&self, client: Client, admitted: Admitted) -> Result<R, ConnectError> {
        let room = self.room.clone().acquire_owned().await.map_err(|_| ConnectError::Closed)?;
        let (answer, registered) = oneshot::channel();
        self.note(|notes| notes.joins.push_back(Join { client, admitted, answer, _room: room }));
        registered.await.unwrap_or(Err(ConnectError::Closed))
    }

    /// Runs a function with the translator.
    #[cfg(test)]
    pub fn ask(&self, question: impl FnOnce(&mut evenkeel_translate::Translator) + Send + 'static) {
        self.note(|notes| notes.asked.push_back(Question(Box::new(question))));
    }

    /// Returns the number of proxies that wait.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.lock().joins.len()
    }

    /// Ends the translator's work; waiting requests are answered with an error.
    pub fn close(&self) {
        self.room.close();
        let mut notes = self.lock();
        *notes = Notes { closed: true, ..Notes::default() };
        self.more.notify_one();
    }

    /// Waits for the next request; `None` at the end. A new world is served before proxies that join, so that they get no
    /// outdated configuration; after a world, one joining proxy is served first.
    pub fn next(&self, join_first: bool) -> Option<Work<R>> {
        let mut notes = self.lock();
        loop {
            if notes.closed {
                return None;
            }
            match notes.take(join_first) {
                Some(work) => return Some(work),
                None => notes = self.more.wait(notes).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn note(&self, write: impl FnOnce(&mut Notes<R>)) {
        let mut notes = self.lock();
        if !notes.closed {
            write(&mut notes);
            self.more.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Notes<R>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R> Default for Notes<R> {
    fn default() -> Self {
        Self {
            left: Vec::new(),
            publish: false,
            rebuild: Vec::new(),
            give_back: false,
            joins: VecDeque::new(),
            #[cfg(test)]
            asked: VecDeque::new(),
            closed: false,
        }
    }
}

impl<R> Notes<R> {
    fn take(&mut self, join_first: bool) -> Option<Work<R>> {
        if !self.left.is_empty() {
            return Some(Work::Leave(std::mem::take(&mut self.left)));
        }
        #[cfg(test)]
        if let Some(question) = self.asked.pop_front() {
            return Some(Work::Ask(question));
        }
        if !self.rebuild.is_empty() {
            return Some(Work::Rebuild(std::mem::take(&mut self.rebuild)));
        }
        if join_first && let Some(join) = self.joins.pop_front() {
            return Some(Work::Join(Box::new(join)));
        }
        if std::mem::take(&mut self.publish) {
            return Some(Work::Publish);
        }
        if let Some(join) = self.joins.pop_front() {
            return Some(Work::Join(Box::new(join)));
        }
        std::mem::take(&mut self.give_back).then_some(Work::GiveBack)
    }
}
