//! Clients that leave behind bytes that nobody reads yet.
//!
//! The reactor tells that a socket can be read, and a client's end is read behind its last byte. Where what it has sent has to wait, the
//! end would wait as long. So for that time its socket is also watched by an epoll instance of the worker's own, which tells of ends and
//! resets and of nothing else. A client whose window is full cannot even send its end; it can only be looked for, once a second.

use std::cell::RefCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventFlags};
use slab::Slab;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;

/// Events taken from the system at once.
const EVENTS: usize = 64;
/// Clients that are looked for at each tick, in turn: a look takes some 10 µs.
const LOOKS_PER_TICK: usize = 256;

thread_local! {
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch { epoll: None, clients: Slab::new(), next_look: 0 }) };
}

/// The connections of this thread that are not read.
struct Watch {
    /// `None` until [`run`] runs: then nothing is watched.
    epoll: Option<Rc<OwnedFd>>,
    clients: Slab<Client>,
    /// Where the looks of the next tick begin.
    next_look: usize,
}

struct Client {
    waker: Waker,
    ended: bool,
    reset: bool,
    /// It should be looked for; `None`: that is in vain.
    look: Option<bool>,
}

/// What is known of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// It sends no more than what lies unread. Told once.
    End,
    /// The connection is no more.
    Reset,
    /// A second has passed: it may have left and could not say so.
    Look,
}

/// A connection that is watched while it is not read. Dropped before the connection is.
#[derive(Debug)]
pub struct Hangup {
    key: usize,
    socket: RawFd,
}

/// Hears of the connections that are watched. For as long as the worker runs.
pub async fn run() {
    let Ok(epoll) = epoll::create(CreateFlags::CLOEXEC).map(Rc::new) else { return };
    // SAFETY: the descriptor is this instance's own, and stays open as long as the last that knows it.
    let readiness = unsafe { AsyncFd::register_with_interest(Rc::clone(&epoll), Interest::READABLE) };
    let Ok(readiness) = readiness else { return };
    WATCH.with_borrow_mut(|watch| watch.epoll = Some(Rc::clone(&epoll)));
    while let Ok(mut ready) = readiness.readable().await {
        if hear(&epoll) < EVENTS {
            ready.clear_ready();
        }
    }
}

/// Has clients looked for. To be called about once a second.
pub fn tick() {
    WATCH.with_borrow_mut(|watch| {
        let most = watch.clients.capacity();
        if watch.clients.is_empty() || most == 0 {
            return;
        }
        let mut looks = LOOKS_PER_TICK;
        let first = watch.next_look;
        for step in 0..most {
            watch.next_look = (first + step) % most;
            if looks == 0 {
                return;
            }
            if let Some(client) = watch.clients.get_mut(watch.next_look).filter(|client| client.look.is_some()) {
                looks -= 1;
                client.look = Some(true);
                client.waker.wake_by_ref();
            }
        }
        watch.next_look = 0;
    });
}

impl Hangup {
    /// Begins to watch; `None` where that is not possible.
    pub fn watch(stream: &TcpStream) -> Option<Self> {
        let socket = stream.as_raw_fd();
        WATCH.with_borrow_mut(|watch| {
            let epoll = watch.epoll.as_ref()?;
            let client = Client { waker: Waker::noop().clone(), ended: false, reset: false, look: Some(false) };
            let key = watch.clients.insert(client);
            if control(epoll, libc::EPOLL_CTL_ADD, socket, key).is_err() {
                watch.clients.remove(key);
                return None;
            }
            Some(Self { key, socket })
        })
    }

    /// Ready with the next sign.
    pub fn poll(&self, cx: &mut Context<'_>) -> Poll<Sign> {
        self.with(|client| {
            if client.reset {
                return Poll::Ready(Sign::Reset);
            }
            if std::mem::take(&mut client.ended) {
                return Poll::Ready(Sign::End);
            }
            if client.look == Some(true) {
                client.look = Some(false);
                return Poll::Ready(Sign::Look);
            }
            if !client.waker.will_wake(cx.waker()) {
                client.waker = cx.waker().clone();
            }
            Poll::Pending
        })
        .unwrap_or(Poll::Pending)
    }

    /// It is in vain to look for this client.
    pub fn stop_looking(&self) {
        self.with(|client| client.look = None);
    }

    /// `None` during thread exit, when the list may be gone.
    fn with<T>(&self, f: impl FnOnce(&mut Client) -> T) -> Option<T> {
        WATCH.try_with(|watch| watch.borrow_mut().clients.get_mut(self.key).map(f)).ok().flatten()
    }
}

impl Drop for Hangup {
    fn drop(&mut self) {
        let client = WATCH.try_with(|watch| {
            let mut watch = watch.borrow_mut();
            if let Some(epoll) = &watch.epoll {
                // It fails only for a socket that is closed, and so forgotten, already.
                let _ = control(epoll, libc::EPOLL_CTL_DEL, self.socket, self.key);
            }
            watch.clients.try_remove(self.key)
        });
        // Behind the borrow: the waker may be the last that knows its task.
        drop(client);
    }
}

/// Takes events from the system; returns how many there were.
fn hear(epoll: &OwnedFd) -> usize {
    let mut space = [MaybeUninit::uninit(); EVENTS];
    let Ok((events, _)) = epoll::wait(epoll, &mut space, Some(&Timespec::default())) else { return 0 };
    WATCH.with_borrow_mut(|watch| {
        for event in events.iter() {
            let (signs, key) = (event.flags, event.data.u64() as usize);
            if let Some(client) = watch.clients.get_mut(key) {
                client.reset |= signs.contains(EventFlags::ERR);
                client.ended |= signs.intersects(EventFlags::RDHUP | EventFlags::HUP);
                client.waker.wake_by_ref();
            }
        }
    });
    events.len()
}

/// Adds a socket, or takes it out. Errors and hang-ups are told of without being asked for.
fn control(epoll: &OwnedFd, operation: libc::c_int, socket: RawFd, key: usize) -> io::Result<()> {
    let mut event = libc::epoll_event { events: (libc::EPOLLRDHUP | libc::EPOLLET) as u32, u64: key as u64 };
    // Crates take open descriptors only.
    // SAFETY: the system reads the event during the call; a descriptor that is not open is an error.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), operation, socket, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write as _;
    use std::net::Shutdown;

    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::*;

    /// The signs of a client that has sent something nobody reads, and then does `act`, as far as the last that is expected.
    async fn signs(act: impl FnOnce(std::net::TcpStream) -> Option<std::net::TcpStream>, expected: &[Sign]) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("loopback can be listened on");
        let mut client = std::net::TcpStream::connect(listener.local_addr().expect("an address")).expect("it listens");
        let (stream, _) = listener.accept().await.expect("one waits");
        client.write_all(b"unread").expect("it is open");
        stream.readable().await.expect("it arrives");
        let hangup = Hangup::watch(&stream).expect("it can be watched");
        let nothing = poll_fn(|cx| Poll::Ready(hangup.poll(cx))).await;
        assert!(nothing.is_pending(), "{nothing:?}");
        let kept = act(client);
        for sign in expected {
            assert_eq!(poll_fn(|cx| hangup.poll(cx)).await, *sign, "{expected:?}");
        }
        drop((hangup, kept));
        WATCH.with_borrow(|watch| assert!(watch.clients.is_empty()));
    }

    #[tokio::test]
    async fn ends_are_heard_of_behind_unread_bytes() {
        let tests = async {
            tokio::task::spawn_local(run());
            tokio::task::yield_now().await;
            let end = |client: std::net::TcpStream| {
                client.shutdown(Shutdown::Write).expect("it is open");
                Some(client)
            };
            signs(end, &[Sign::End]).await;
            let leave = |client| {
                drop(client);
                None
            };
            signs(leave, &[Sign::End]).await;
            let reset = |client: std::net::TcpStream| {
                socket2::SockRef::from(&client).set_linger(Some(std::time::Duration::ZERO)).expect("an option");
                None
            };
            signs(reset, &[Sign::Reset, Sign::Reset]).await;
            let look = |client| {
                tick();
                Some(client)
            };
            signs(look, &[Sign::Look]).await;
        };
        LocalSet::new().run_until(tests).await;
    }
}
