//! What the translator's thread is asked to do, and in which order it does it.
//!
//! Tasks leave a note and go on, or await the answer: the lock is held for as long as a note takes, never while anything is
//! translated. What is asked twice is done once.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use evenkeel_translate::ProxyView;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::{Admitted, Client, ConnectError};

/// Proxies that wait for the translator at a time, in proxies: who comes then waits until there is room.
pub const MAX_WAITING_JOINS: usize = 1024;

/// Notes to the translator's thread; `R` is what a proxy that joins is answered with.
#[derive(Debug)]
pub(super) struct Mailbox<R> {
    notes: Mutex<Notes<R>>,
    more: Condvar,
    room: Arc<Semaphore>,
}

#[derive(Debug)]
struct Notes<R> {
    /// Proxies that have gone: one for each stream at most, and no stream is opened but by the reader, who reads these first.
    left: Vec<Arc<ProxyView>>,
    /// There is another world.
    publish: bool,
    /// It is to be made anew; whom to tell then.
    rebuild: Vec<oneshot::Sender<()>>,
    give_back: bool,
    joins: VecDeque<Join<R>>,
    #[cfg(test)]
    asked: VecDeque<Question>,
    closed: bool,
}

/// What is to be done next.
#[derive(Debug)]
pub(super) enum Work<R> {
    /// Forget these proxies.
    Leave(Vec<Arc<ProxyView>>),
    /// Follow the present world.
    Publish,
    /// Make all anew, and tell these.
    Rebuild(Vec<oneshot::Sender<()>>),
    /// Return free memory to the system.
    GiveBack,
    /// Take in a proxy.
    Join(Box<Join<R>>),
    #[cfg(test)]
    Ask(Question),
}

/// A proxy that waits to be told what it is to hold.
#[derive(Debug)]
pub(super) struct Join<R> {
    pub client: Client,
    pub admitted: Admitted,
    /// Closed if its client has gone meanwhile.
    pub answer: oneshot::Sender<Result<R, ConnectError>>,
    _room: OwnedSemaphorePermit,
}

/// Something a test wants to know of the translator.
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
    /// With room for so many joins.
    pub fn with_room(joins: usize) -> Self {
        Self { notes: Mutex::default(), more: Condvar::new(), room: Arc::new(Semaphore::new(joins)) }
    }

    /// A proxy has gone.
    pub fn left(&self, view: Arc<ProxyView>) {
        self.note(|notes| notes.left.push(view));
    }

    /// There is another world.
    pub fn publish(&self) {
        self.note(|notes| notes.publish = true);
    }

    /// All is to be made anew. The answer comes when it is; none comes if the thread ends before.
    pub fn rebuild(&self) -> oneshot::Receiver<()> {
        let (done, answer) = oneshot::channel();
        self.note(|notes| notes.rebuild.push(done));
        answer
    }

    /// Free memory is to go back to the system.
    pub fn give_back(&self) {
        self.note(|notes| notes.give_back = true);
    }

    /// A proxy comes. Waits for room, and for its turn.
    pub async fn join(&self, client: Client, admitted: Admitted) -> Result<R, ConnectError> {
        let room = self.room.clone().acquire_owned().await.map_err(|_| ConnectError::Closed)?;
        let (answer, registered) = oneshot::channel();
        self.note(|notes| notes.joins.push_back(Join { client, admitted, answer, _room: room }));
        registered.await.unwrap_or(Err(ConnectError::Closed))
    }

    /// Asks the translator something.
    #[cfg(test)]
    pub fn ask(&self, question: impl FnOnce(&mut evenkeel_translate::Translator) + Send + 'static) {
        self.note(|notes| notes.asked.push_back(Question(Box::new(question))));
    }

    /// Proxies that wait in it.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.lock().joins.len()
    }

    /// Nothing more is done. Who waits is told.
    pub fn close(&self) {
        self.room.close();
        let mut notes = self.lock();
        *notes = Notes { closed: true, ..Notes::default() };
        self.more.notify_one();
    }

    /// Waits for the next thing to do; `None` at the end. A change of the world comes before proxies that join, so that nothing is
    /// made for these that is out of date already; after a change one of them is to be first.
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
