//! A bounded queue between two tasks on two threads, one sending and one receiving.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// The sending end. Dropping it closes the queue; items already sent can still be received.
#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<State<T>>>);

/// The receiving end. After it is dropped, sent items are discarded.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Mutex<State<T>>>);

/// The other end is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<(T, usize)>,
    /// Bytes in the queue, and the number from which it has no more room.
    held: usize,
    limit: usize,
    closed: bool,
    receiver: Option<Waker>,
    sender: Option<Waker>,
}

/// A queue that has room while it holds less than `limit` bytes.
pub fn pipe<T>(limit: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), held: 0, limit, closed: false, receiver: None, sender: None };
    let state = Arc::new(Mutex::new(state));
    (Sender(Arc::clone(&state)), Receiver(state))
}

/// The lock is held for a few instructions, so the other thread hardly ever waits for it.
fn lock<T>(state: &Mutex<State<T>>) -> MutexGuard<'_, State<T>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(slot: &mut Option<Waker>, waker: &Waker) {
    if !slot.as_ref().is_some_and(|known| known.will_wake(waker)) {
        *slot = Some(waker.clone());
    }
}

/// Call without holding the lock: the woken thread will need it.
fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T> Sender<T> {
    /// Sends an item that counts as `bytes` bytes. It is always accepted; [`Sender::poll_room`] says when to send more.
    pub fn send(&self, item: T, bytes: usize) {
        let mut state = lock(&self.0);
        if state.closed {
            return;
        }
        state.held += bytes;
        state.queue.push_back((item, bytes));
        let receiver = state.receiver.take();
        drop(state);
        wake(receiver);
    }

    /// Bytes that were sent and not yet received.
    pub fn held(&self) -> usize {
        lock(&self.0).held
    }

    /// Ready when there is room.
    pub fn poll_room(&self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        self.poll_until(|state| state.held < state.limit, cx)
    }

    /// Ready when everything sent was received.
    pub fn poll_empty(&self, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        self.poll_until(|state| state.queue.is_empty(), cx)
    }

    fn poll_until(&self, done: impl Fn(&State<T>) -> bool, cx: &mut Context<'_>) -> Poll<Result<(), Closed>> {
        let mut state = lock(&self.0);
        if state.closed {
            return Poll::Ready(Err(Closed));
        }
        if done(&state) {
            return Poll::Ready(Ok(()));
        }
        watch(&mut state.sender, cx.waker());
        Poll::Pending
    }
}

impl<T> Receiver<T> {
    /// The next item; `None` when the sender is gone and the queue is empty.
    pub fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = lock(&self.0);
        let Some((item, bytes)) = state.queue.pop_front() else {
            if state.closed {
                return Poll::Ready(None);
            }
            watch(&mut state.receiver, cx.waker());
            return Poll::Pending;
        };
        state.held -= bytes;
        let sender = state.sender.take();
        drop(state);
        wake(sender);
        Poll::Ready(Some(item))
    }

    /// Inspects the last item sent without taking it: ready with what `found` returns for it, or with `None` when the
    /// sender is gone. Items sent later wake the task.
    pub fn poll_last<R>(&self, found: impl Fn(&T) -> Option<R>, cx: &mut Context<'_>) -> Poll<Option<R>> {
        let mut state = lock(&self.0);
        if let Some(result) = state.queue.back().and_then(|(item, _)| found(item)) {
            return Poll::Ready(Some(result));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        watch(&mut state.receiver, cx.waker());
        Poll::Pending
    }
}

impl<T> Receiver<T> {
    /// Ready when the sender is gone; true if items remain that were not received.
    pub fn poll_left(&self, cx: &mut Context<'_>) -> Poll<bool> {
        let mut state = lock(&self.0);
        if state.closed {
            return Poll::Ready(!state.queue.is_empty());
        }
        watch(&mut state.receiver, cx.waker());
        Poll::Pending
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.closed = true;
        let receiver = state.receiver.take();
        drop(state);
        wake(receiver);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.closed = true;
        let unread = std::mem::take(&mut state.queue);
        let sender = state.sender.take();
        drop(state);
        drop(unread);
        wake(sender);
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    #[test]
    fn a_receiver_behind_holds_the_sender_back_and_loses_nothing() {
        let (sender, receiver) = pipe::<u32>(64);
        let block_on = |future: std::pin::Pin<Box<dyn Future<Output = Vec<u32>> + Send>>| {
            tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
        };
        let sending = std::thread::spawn(move || {
            block_on(Box::pin(async move {
                for number in 0..10_000 {
                    poll_fn(|cx| sender.poll_room(cx)).await.expect("the receiver is there");
                    assert!(lock(&sender.0).held < 64);
                    sender.send(number, 7);
                }
                poll_fn(|cx| sender.poll_empty(cx)).await.expect("the receiver is there");
                Vec::new()
            }))
        });
        let received = block_on(Box::pin(async move {
            let mut received = Vec::new();
            while let Some(number) = poll_fn(|cx| receiver.poll_next(cx)).await {
                received.push(number);
            }
            received
        }));
        sending.join().expect("no panic");
        assert!(received.into_iter().eq(0..10_000));
    }

    #[test]
    fn either_end_may_go_first() {
        let mut cx = Context::from_waker(Waker::noop());
        let (sender, receiver) = pipe(1);
        sender.send('a', 1);
        assert!(sender.poll_room(&mut cx).is_pending());
        drop(sender);
        assert_eq!(receiver.poll_next(&mut cx), Poll::Ready(Some('a')));
        assert_eq!(receiver.poll_next(&mut cx), Poll::Ready(None));
        let (sender, receiver) = pipe(1);
        drop(receiver);
        sender.send('b', 1);
        assert_eq!(sender.poll_room(&mut cx), Poll::Ready(Err(Closed)));
    }

    #[test]
    fn what_was_sent_last_is_seen_before_what_waits() {
        let mut cx = Context::from_waker(Waker::noop());
        let (sender, receiver) = pipe(100);
        let seven = |item: &u32| (*item == 7).then_some("seven");
        sender.send(1, 10);
        assert_eq!(receiver.poll_last(seven, &mut cx), Poll::Pending);
        sender.send(7, 0);
        assert_eq!(receiver.poll_last(seven, &mut cx), Poll::Ready(Some("seven")));
        assert_eq!(receiver.poll_next(&mut cx), Poll::Ready(Some(1)), "nothing was taken");
        assert_eq!(receiver.poll_next(&mut cx), Poll::Ready(Some(7)));
        drop(sender);
        assert_eq!(receiver.poll_last(seven, &mut cx), Poll::Ready(None));
    }
}
