//! Batches the sends of a busy worker, so that they leave one right after the other.
//!
//! A send to a sleeping receiver has to wake it, which costs as much as the send itself, and more on a virtual machine.
//! A receiver that is faster than the worker falls asleep in the microseconds between two of its sends, every time. So
//! a worker that has more to do delays small messages until the tasks that are ready now have run, or until [`MOST`]
//! are waiting: then only the first of these sends finds its receiver asleep.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::pin::pin;
use std::task::{Poll, Waker};

use socket2::SockRef;

use super::spare;

/// Maximum number of waiting messages.
const MOST: usize = 32;
/// Maximum size of a waiting message, in bytes: a larger one keeps its receiver awake for longer anyway.
const MAX_BYTES: usize = 16 * 1024;
/// Number of sends made immediately after the worker slept: batching gains nothing when there is hardly anything to do.
const AT_ONCE: u32 = 4;

thread_local! {
    static BURST: RefCell<Burst> = const { RefCell::new(Burst::new()) };
}

/// The pending messages of this thread.
struct Burst {
    waiting: Vec<Message>,
    /// Messages are numbered in order; this is the number of the first waiting one, or the next number if none waits.
    first: u64,
    /// Messages that were not sent completely, until their owners ask for them.
    stuck: Vec<(u64, Unsent)>,
    /// Sends still to be made immediately.
    at_once: u32,
    /// The task that sends; without it nothing is delayed.
    sender: Option<Waker>,
}

struct Message {
    socket: RawFd,
    /// Empty if the message was withdrawn.
    bytes: Vec<u8>,
    /// Woken if the message gets stuck.
    task: Waker,
}

/// A message that the socket did not accept, or only partly.
struct Unsent {
    bytes: Vec<u8>,
    sent: io::Result<usize>,
}

/// A message that is or was waiting. Dropping the ticket before the message is sent withdraws it: the owner drops it
/// before the socket.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    length: usize,
}

/// Sends the waiting messages whenever the tasks that were ready before have run. Runs as long as the worker.
pub async fn run() {
    poll_fn(|cx| {
        with(|burst| _ = burst.sender.get_or_insert_with(|| cx.waker().clone()));
        send_all();
        Poll::<()>::Pending
    })
    .await;
}

/// Records that the worker slept and has work again.
pub fn worker_woke() {
    with(|burst| burst.at_once = AT_ONCE);
}

/// Runs a future whose polls take long, such as a handshake; waiting messages are sent before each poll instead of
/// being held up by it.
pub async fn ahead_of<T>(long: impl Future<Output = T>) -> T {
    let mut long = pin!(long);
    poll_fn(|cx| {
        send_all();
        long.as_mut().poll(cx)
    })
    .await
}

/// Queues the bytes for this socket, unless they should be sent immediately (`None`). The task is woken only if they
/// cannot be sent completely.
pub(super) fn join(socket: RawFd, bytes: &mut Vec<u8>, task: &Waker) -> Option<Ticket> {
    let (ticket, full) = with(|burst| {
        if bytes.len() > MAX_BYTES {
            return None;
        }
        if burst.at_once > 0 {
            burst.at_once -= 1;
            return None;
        }
        let sender = burst.sender.as_ref()?;
        if burst.waiting.is_empty() {
            sender.wake_by_ref();
        }
        let ticket = Ticket { number: burst.first + burst.waiting.len() as u64, length: bytes.len() };
        burst.waiting.push(Message { socket, bytes: std::mem::take(bytes), task: task.clone() });
        Some((ticket, burst.waiting.len() >= MOST))
    })
    .flatten()?;
    if full {
        send_all();
    }
    Some(ticket)
}

impl Ticket {
    /// Bytes of the message.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// Whether the message is still waiting.
    pub(super) fn waits(&self) -> bool {
        with(|burst| burst.message(self.number).is_some()).unwrap_or(false)
    }

    /// The unsent rest of the message as its bytes and how many of them were sent; `None` when all were sent. A message
    /// that still waits is withdrawn.
    pub(super) fn outcome(self) -> io::Result<Option<(Vec<u8>, usize)>> {
        let stuck = with(|burst| burst.take_back(self.number)).flatten();
        stuck.map(|stuck| stuck.sent.map(|sent| (stuck.bytes, sent))).transpose()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        with(|burst| burst.take_back(self.number));
    }
}

impl Burst {
    const fn new() -> Self {
        Self { waiting: Vec::new(), first: 0, stuck: Vec::new(), at_once: 0, sender: None }
    }

    fn message(&mut self, number: u64) -> Option<&mut Message> {
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        self.waiting.get_mut(index)
    }

    fn take_back(&mut self, number: u64) -> Option<Unsent> {
        if let Some(message) = self.message(number) {
            return Some(Unsent { bytes: std::mem::take(&mut message.bytes), sent: Ok(0) });
        }
        let index = self.stuck.iter().position(|(stuck, _)| *stuck == number)?;
        Some(self.stuck.swap_remove(index).1)
    }
}

/// `None` during thread exit, when the messages may be gone.
fn with<T>(f: impl FnOnce(&mut Burst) -> T) -> Option<T> {
    BURST.try_with(|burst| f(&mut burst.borrow_mut())).ok()
}

fn send_all() {
    let taken = with(|burst| {
        let (first, messages) = (burst.first, std::mem::take(&mut burst.waiting));
        burst.first += messages.len() as u64;
        (first, messages)
    });
    let Some((first, mut messages)) = taken else { return };
    for (number, message) in (first..).zip(&mut messages) {
        if message.bytes.is_empty() {
            continue;
        }
        // SAFETY: the socket is open: whoever closes it has dropped the ticket before, and that empties the message.
        // Nothing else runs between taking the messages and the last send.
        let socket = unsafe { BorrowedFd::borrow_raw(message.socket) };
        let sent = match SockRef::from(&socket).send(&message.bytes) {
            Ok(sent) if sent == message.bytes.len() => continue,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(0),
            sent => sent,
        };
        let stuck = Unsent { bytes: std::mem::take(&mut message.bytes), sent };
        message.task.wake_by_ref();
        with(|burst| burst.stuck.push((number, stuck)));
    }
    // Wakers are dropped outside the borrow: one may be the last reference to its task.
    messages.drain(..).for_each(|message| spare::keep(message.bytes));
    with(|burst| {
        if burst.waiting.capacity() == 0 {
            burst.waiting = messages;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Context, Wake};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Both ends of a non-blocking connection.
    fn pair() -> (UnixStream, UnixStream) {
        let (ours, peer) = UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("an option");
        peer.set_nonblocking(true).expect("an option");
        (ours, peer)
    }

    fn received(peer: &mut UnixStream) -> String {
        let mut text = Vec::new();
        let end = peer.read_to_end(&mut text).map_err(|error| error.kind());
        assert!(matches!(end, Ok(_) | Err(ErrorKind::WouldBlock)), "{end:?}");
        String::from_utf8(text).expect("text")
    }

    /// Calls `test` with a function that polls the sender's task, and with counters of how often that task and the
    /// messages' task were woken.
    fn with_sender(test: impl FnOnce(&mut dyn FnMut(), &Arc<Count>, &Arc<Count>)) {
        let (sender, task) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&sender));
        let mut running = pin!(run());
        let mut turn = || assert!(running.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        turn();
        test(&mut turn, &sender, &task);
        BURST.replace(Burst::new());
    }

    fn woken(count: &Count) -> u32 {
        count.0.swap(0, Ordering::Relaxed)
    }

    #[test]
    fn messages_wait_for_the_tasks_that_are_ready() {
        let (ours, mut peer) = pair();
        let mut bytes = b"none sends".to_vec();
        assert!(join(ours.as_raw_fd(), &mut bytes, Waker::noop()).is_none());
        with_sender(|turn, sender, task| {
            let waker = Waker::from(Arc::clone(task));
            let say = |text: &str| join(ours.as_raw_fd(), &mut text.as_bytes().to_vec(), &waker);
            let tickets = [say("a"), say("b"), say("c")].map(|ticket| ticket.expect("it waits"));
            assert_eq!((woken(sender), received(&mut peer).as_str()), (1, ""));
            let [a, b, c] = tickets;
            assert!(a.waits() && c.waits());
            drop(b);
            turn();
            assert!(!a.waits() && !c.waits());
            assert_eq!(received(&mut peer), "ac", "what was dropped is not sent");
            assert!(matches!((a.outcome(), c.outcome()), (Ok(None), Ok(None))));
            let back = say("d").expect("it waits").outcome();
            assert!(matches!(back, Ok(Some((bytes, 0))) if bytes == b"d"), "what is asked for is taken back");
            let _e = say("e").expect("it waits");
            assert!(pin!(ahead_of(std::future::pending::<()>())).poll(&mut Context::from_waker(&waker)).is_pending());
            assert_eq!((received(&mut peer).as_str(), woken(task)), ("e", 0));
        });
    }

    #[test]
    fn many_do_not_wait_nor_the_first_after_sleep_nor_large_ones() {
        let (ours, mut peer) = pair();
        with_sender(|turn, sender, task| {
            let waker = Waker::from(Arc::clone(task));
            let join = |mut bytes: Vec<u8>| join(ours.as_raw_fd(), &mut bytes, &waker);
            assert!(join(vec![b'x'; MAX_BYTES + 1]).is_none());
            worker_woke();
            let waited: Vec<bool> = (0..AT_ONCE + 1).map(|_| join(vec![b'x']).is_some()).collect();
            assert_eq!(waited.iter().position(|waits| *waits), Some(AT_ONCE as usize));
            turn();
            woken(sender);
            let tickets: Vec<Ticket> = (0..MOST).map(|_| join(vec![b'y']).expect("it waits")).collect();
            assert!(tickets.iter().all(|ticket| !ticket.waits()));
            assert_eq!((received(&mut peer), woken(sender)), ("y".repeat(MOST), 1));
        });
    }

    #[test]
    fn what_a_socket_does_not_take_comes_back_once_and_wakes_its_task() {
        let (ours, peer) = pair();
        let (gone, its_peer) = pair();
        drop(its_peer);
        with_sender(|turn, _, task| {
            let waker = Waker::from(Arc::clone(task));
            let say =
                |socket: &UnixStream| join(socket.as_raw_fd(), &mut vec![b'x'; MAX_BYTES], &waker).expect("it waits");
            let (mut taken, mut stuck) = (0, None);
            while stuck.is_none() {
                let ticket = say(&ours);
                turn();
                match ticket.outcome().expect("an open socket") {
                    None => taken += MAX_BYTES,
                    Some((bytes, sent)) => stuck = Some((bytes.len(), sent)),
                }
            }
            assert_eq!((stuck.map(|(length, _)| length), woken(task)), (Some(MAX_BYTES), 1));
            let mut all = Vec::new();
            let end = (&peer).read_to_end(&mut all).map_err(|error| error.kind());
            assert_eq!((end, all.len()), (Err(ErrorKind::WouldBlock), taken + stuck.map_or(0, |(_, sent)| sent)));
            let ticket = say(&gone);
            turn();
            assert_eq!(ticket.outcome().map_err(|error| error.kind()).err(), Some(ErrorKind::BrokenPipe));
            assert_eq!((woken(task), with(|burst| burst.stuck.len())), (1, Some(0)));
        });
    }
}
