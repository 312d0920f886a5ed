//! Detects clients that hang up while bytes they sent are not being read.
//!
//! The reactor reports that a socket is readable, and a client's FIN is only seen after its last byte. While those
//! bytes have to wait, so would the FIN. For that time the socket is therefore also registered with a separate epoll
//! instance of the worker, which reports hang-ups and resets only. A client whose send window is full cannot even send
//! its FIN; such a client has to be probed, once a second.

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

/// Events fetched from the kernel at once.
const EVENTS: usize = 64;
/// Clients probed at each tick, in turn: a probe takes some 10 µs.
const LOOKS_PER_TICK: usize = 256;

thread_local! {
    static WATCH: RefCell<Watch> = const { RefCell::new(Watch { epoll: None, clients: Slab::new(), next_look: 0 }) };
}

/// This thread's connections that are currently not read.
struct Watch {
    /// `None` until [`run`] runs; until then nothing is watched.
    epoll: Option<Rc<OwnedFd>>,
    clients: Slab<Client>,
    /// Index at which the next tick's probes begin.
    next_look: usize,
}

struct Client {
    waker: Waker,
    ended: bool,
    reset: bool,
    /// A probe is due; `None`: probing this client is pointless.
    look: Option<bool>,
}

/// An event noticed about a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sign {
    /// It sends nothing beyond the unread bytes. Reported once.
    End,
    /// The connection was reset.
    Reset,
    /// A second has passed: the client may be gone without being able to say so, and should be probed.
    Look,
}

/// Watches a connection while it is not read. Must be dropped before the connection.
#[derive(Debug)]
pub struct Hangup {
    key: usize,
    socket: RawFd,
}

/// Receives the events of watched connections. Runs as long as the worker.
pub async fn run() {
    let Ok(epoll) = epoll::create(CreateFlags::CLOEXEC).map(Rc::new) else { return };
    // SAFETY: the descriptor is this instance's own, and stays open as long as its last reference.
    let readiness = unsafe { AsyncFd::register_with_interest(Rc::clone(&epoll), Interest::READABLE) };
    let Ok(readiness) = readiness else { return };
    WATCH.with_borrow_mut(|watch| watch.epoll = Some(Rc::clone(&epoll)));
    while let Ok(mut ready) = readiness.readable().await {
        if hear(&epoll) < EVENTS {
            ready.clear_ready();
        }
    }
}

/// Requests probes of clients. Call about once a second.
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
    /// Starts watching; `None` where that is not possible.
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

    /// Stops the probes: they are pointless for this client.
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
                // Fails only for a socket that is already closed, and so already deregistered.
                let _ = control(epoll, libc::EPOLL_CTL_DEL, self.socket, self.key);
            }
            watch.clients.try_remove(self.key)
        });
        // Dropped after the borrow ends: the waker may be the last reference to its task.
        drop(client);
    }
}

/// Handles events from the kernel; returns how many there were.
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

/// Adds or removes a socket. Errors and hang-ups are always reported, without being asked for.
fn control(epoll: &OwnedFd, operation: libc::c_int, socket: RawFd, key: usize) -> io::Result<()> {
    let mut event = libc::epoll_event { events: (libc::EPOLLRDHUP | libc::EPOLLET) as u32, u64: key as u64 };
    // The crates' wrappers take open descriptors only.
    // SAFETY: the kernel reads the event during the call; a descriptor that is not open yields an error.
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

    /// Checks the signs of a client that has sent something unread and then does `act`, up to the last `expected` one.
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
