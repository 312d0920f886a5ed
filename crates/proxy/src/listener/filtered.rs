//! Network filters in a connection's life: admission, and a stream whose bytes pass through the filters.
//!
//! A connection whose filters decide only once, at its start (`NetworkFilters::are_immediate`), is then served as if it
//! had none. For any other, a layer is put around its stream ([`Filtered`]), so that the code that reads and writes it
//! need not know about the filters. Such a connection stays on its worker and in its process, because the filters'
//! state does.

use std::cell::{Cell, OnceCell, RefCell};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use evenkeel_filters::network::{
    Close, ClosedBy, ConnectionFacts, Data, Decision, Direction, End, FilteredConnection, NetworkFilters, Surroundings,
};
use evenkeel_filters::peer_metadata::PeerSlot;
use evenkeel_filters::{ConnectionInfo, Pause, Woken};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::conn::{Buffer, Deadline, held};
use evenkeel_upstream::stream::{Layer, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::worker::Worker;
use evenkeel_upstream::turn;

/// Runs the filters' `new_connection`. `Ok` contains the filters' state if they have to follow the connection
/// ([`Filtered::over`]).
///
/// # Errors
/// When a filter closes the connection; any delay it asked for has passed.
pub(crate) async fn admit(
    worker: &Rc<Worker>,
    filters: Rc<NetworkFilters>,
    info: &mut Arc<ConnectionInfo>,
) -> Result<Option<Rc<Connection>>, Close> {
    let follow = filters.follow_this(&info.view);
    let connection = Rc::new(Connection::new(worker, filters, info));
    let mut waiting: Option<Waiting> = None;
    let admitted = poll_fn(|cx| {
        loop {
            if let Some(pause) = &mut waiting {
                let woken = ready!(pause.poll(cx));
                connection.state.borrow_mut().wake(Direction::Up, woken);
                waiting = None;
            }
            let asked = connection.filters.new_connection(&mut connection.state.borrow_mut(), connection.around());
            match asked {
                Decision::Continue => return Poll::Ready(Ok(())),
                Decision::Close(close) => return Poll::Ready(Err(close)),
                Decision::Pause(pause) => waiting = Some(Waiting::new(pause)),
            }
        }
    })
    .await;
    connection.leave(info);
    if let Err(close) = admitted {
        connection.by.set(Some(ClosedBy::Filter));
        delay_close(&close).await;
        return Err(close);
    }
    Ok(follow.then_some(connection))
}

/// Runs filters that decide at once.
pub(crate) fn admit_at_once(
    worker: &Worker,
    filters: &NetworkFilters,
    info: &mut Arc<ConnectionInfo>,
) -> Result<(), Close> {
    if filters.is_empty() {
        return Ok(());
    }
    let (facts, admitted) = filters.admit(&info.view, worker, turn::now().into_std());
    leave(&facts, info);
    admitted
}

/// Adds the metadata that filters have set to the connection's view. Few set any.
fn leave(facts: &ConnectionFacts, info: &mut Arc<ConnectionInfo>) {
    if !facts.is_empty() {
        facts.leave(&mut Arc::make_mut(info).view);
    }
}

/// Waits out the delay before a rejected connection is closed.
pub(crate) async fn delay_close(close: &Close) {
    if !close.after.is_zero() {
        tokio::time::sleep(close.after).await;
    }
}

/// A connection and its filters. The filters are told of its end when this is dropped, or before.
pub(crate) struct Connection {
    worker: Rc<Worker>,
    filters: Rc<NetworkFilters>,
    info: Arc<ConnectionInfo>,
    state: RefCell<FilteredConnection>,
    /// Set when a filter has closed the connection.
    closed: OnceCell<Close>,
    /// Which side ended the connection, if known.
    by: Cell<Option<ClosedBy>>,
    received: Cell<u64>,
    sent: Cell<u64>,
}

impl Connection {
    fn new(worker: &Rc<Worker>, filters: Rc<NetworkFilters>, info: &Arc<ConnectionInfo>) -> Self {
        Self {
            worker: Rc::clone(worker),
            filters,
            info: Arc::clone(info),
            state: RefCell::default(),
            closed: OnceCell::new(),
            by: Cell::new(None),
            received: Cell::new(0),
            sent: Cell::new(0),
        }
    }

    fn around(&self) -> Surroundings<'_> {
        Surroundings { connection: &self.info.view, services: &*self.worker, now: turn::now().into_std() }
    }

    /// How and why a filter closed the connection.
    pub(crate) fn closed(&self) -> Option<&Close> {
        self.closed.get()
    }

    /// Adds the metadata that the filters have set to the connection's view.
    pub(crate) fn leave_facts(&self, view: &mut ConnectionView) {
        self.state.borrow().facts.leave(view);
    }

    /// Adds that metadata to the shared connection info.
    pub(crate) fn leave(&self, info: &mut Arc<ConnectionInfo>) {
        leave(&self.state.borrow().facts, info);
    }

    /// Tells the filters once that the connection has ended.
    pub(crate) fn complete(&self) {
        let by = self.by.get().unwrap_or(ClosedBy::Proxy);
        let end = End { by, received: self.received.get(), sent: self.sent.get() };
        self.filters.complete(&mut self.state.borrow_mut(), &end);
    }

    /// Whether filters still inspect the data of a direction.
    fn sees(&self, direction: Direction) -> bool {
        let sees = match direction {
            Direction::Up => self.filters.see_data(),
            Direction::Down => self.filters.see_upstream_data(),
        };
        sees && self.filters.see_more(&self.state.borrow().facts)
    }

    /// The workload of the client, if a filter learns of it.
    pub(crate) fn peer(&self) -> Option<Rc<PeerSlot>> {
        self.state.borrow().facts.peer.clone()
    }

    fn is_ended_by(&self, by: ClosedBy) {
        if self.by.get().is_none() {
            self.by.set(Some(by));
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.complete();
    }
}

/// The pause of a filter.
struct Waiting {
    pause: Pause,
    until: Option<Instant>,
    deadline: Deadline,
}

impl Waiting {
    fn new(pause: Pause) -> Self {
        Self { until: after(turn::now(), Some(pause.limit)), pause, deadline: Deadline::default() }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Woken> {
        if let Some(wait) = &mut self.pause.wait
            && wait.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Woken::Ready);
        }
        self.deadline.poll(self.until, cx).map(|()| Woken::TimedOut)
    }
}

/// A client's stream whose bytes pass through the filters. Its buffers are bounded in each direction: nothing more is
/// read while bytes are waiting in the filters, or to be taken after them.
pub(crate) struct Filtered {
    stream: Stream,
    connection: Rc<Connection>,
    /// The block to read into.
    input: Buffer,
    up: Lane,
    down: Lane,
    /// Set when a filter has closed the connection: that direction, and when the close is due. The other direction
    /// continues until then.
    closing: Option<(Direction, Instant)>,
    deadline: Deadline,
    /// Capacity counted as held.
    counted: usize,
}

/// The buffers of one direction.
#[derive(Default)]
struct Lane {
    /// Bytes before or within the filters.
    held: Vec<u8>,
    /// The filters have not seen the held bytes, or the end of stream, yet.
    unseen: bool,
    /// The held bytes are the last ones.
    ends: bool,
    /// Bytes that have passed the filters; those before `taken` are consumed.
    passed: Vec<u8>,
    taken: usize,
    /// The end of stream has passed the filters.
    ended: bool,
    /// A filter has paused this direction.
    waiting: Option<Waiting>,
}

impl Lane {
    fn rest(&self) -> &[u8] {
        self.passed.get(self.taken..).unwrap_or_default()
    }

    fn take(&mut self, count: usize) {
        self.taken += count;
        if self.rest().is_empty() {
            (self.passed, self.taken) = (Vec::new(), 0);
        }
    }

    fn pass(&mut self) {
        self.unseen = false;
        self.ended = self.ends;
        if self.rest().is_empty() {
            (self.passed, self.taken) = (std::mem::take(&mut self.held), 0)
        } else {
            self.passed.append(&mut self.held)
        }
    }

    /// Whether no bytes, and no end, are on their way.
    fn is_empty(&self) -> bool {
        self.rest().is_empty() && self.held.is_empty() && !self.unseen && !self.ended
    }

    fn capacity(&self) -> usize {
        self.held.capacity() + self.passed.capacity()
    }
}

impl Filtered {
    /// The stream as its user sees it. `read` contains bytes already read from it.
    pub(crate) fn over(stream: Stream, connection: Rc<Connection>, read: &Buffer) -> Stream {
        Stream::Layered(Box::new(Self::new(stream, connection, read)))
    }

    fn new(stream: Stream, connection: Rc<Connection>, read: &Buffer) -> Self {
        let bytes = read.bytes();
        let mut up = Lane { held: bytes.to_vec(), unseen: !bytes.is_empty(), ..Lane::default() };
        if !connection.sees(Direction::Up) {
            up.pass();
        }
        connection.received.set(bytes.len() as u64);
        let (input, down) = (Buffer::default(), Lane::default());
        Self { stream, connection, input, up, down, closing: None, deadline: Deadline::default(), counted: 0 }
    }

    /// The connection, for logging.
    pub(crate) fn connection(&self) -> &Rc<Connection> {
        &self.connection
    }

    /// Passes the held bytes through the filters. Ready when the filters hold nothing.
    fn poll_filter(&mut self, direction: Direction, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.poll_closing(direction, cx)?;
            if self.closing.is_some_and(|(by, _)| by == direction) {
                return Poll::Pending;
            }
            let connection = &*self.connection;
            let lane = match direction {
                Direction::Up => &mut self.up,
                Direction::Down => &mut self.down,
            };
            if let Some(waiting) = &mut lane.waiting {
                let woken = ready!(waiting.poll(cx));
                lane.waiting = None;
                connection.state.borrow_mut().wake(direction, woken);
            }
            if !lane.unseen {
                return Poll::Ready(Ok(()));
            }
            let mut data = Data { bytes: &mut lane.held, ends: lane.ends };
            let (state, around) = (&mut connection.state.borrow_mut(), connection.around());
            let decision = match direction {
                Direction::Up => connection.filters.data(state, &mut data, around),
                Direction::Down => connection.filters.upstream_data(state, &mut data, around),
            };
            let mut by_filter = std::mem::take(&mut state.facts.to_client);
            if !by_filter.is_empty() {
                self.down.passed.append(&mut by_filter);
            }
            let lane = match direction {
                Direction::Up => &mut self.up,
                Direction::Down => &mut self.down,
            };
            match decision {
                Decision::Continue => lane.pass(),
                Decision::Pause(pause) => lane.waiting = Some(Waiting::new(pause)),
                Decision::Close(close) => {
                    let now = turn::now();
                    let until = if close.after.is_zero() { now } else { after(now, Some(close.after)).unwrap_or(now) };
                    self.closing = Some((direction, until));
                    connection.by.set(Some(ClosedBy::Filter));
                    _ = connection.closed.set(close);
                }
            }
        }
    }

    /// Fails once a filter's close is due. Until then the direction that the filter closed stands still.
    fn poll_closing(&mut self, direction: Direction, cx: &mut Context<'_>) -> io::Result<()> {
        let Some((by, until)) = self.closing else { return Ok(()) };
        let due = until <= turn::now();
        // The timer wakes a single task, and the two directions may be polled by different ones: only the direction
        // that stands still polls it.
        if !due && (by != direction || self.deadline.poll(Some(until), cx).is_pending()) {
            return Ok(());
        }
        let reset = self.connection.closed().is_some_and(|close| close.reset);
        if reset {
            self.stream.reset_on_close();
        }
        Err(if reset { io::ErrorKind::ConnectionReset } else { io::ErrorKind::ConnectionAborted }.into())
    }

    /// Writes the bytes for the client. Ready when the stream has taken all of them.
    fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_filter(Direction::Down, cx))?;
        while !self.down.rest().is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, self.down.rest()))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => {
                    self.down.take(count);
                    self.connection.sent.set(self.connection.sent.get() + count as u64);
                }
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads a block for the filters.
    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let received = ready!(self.input.poll_fill(&mut self.stream, BLOCK_BYTES, cx));
        if let Ok(0) | Err(_) = received {
            self.connection.is_ended_by(ClosedBy::Client);
        }
        let count = received?;
        self.up.held.extend_from_slice(self.input.bytes());
        self.input.consume(count);
        (self.up.ends, self.up.unseen) = (count == 0, true);
        self.connection.received.set(self.connection.received.get() + count as u64);
        Poll::Ready(Ok(()))
    }

    fn poll_filtered_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let rest = self.up.rest();
            if !rest.is_empty() {
                let count = rest.len().min(buffer.remaining());
                buffer.put_slice(rest.get(..count).unwrap_or_default());
                self.up.take(count);
                return Poll::Ready(Ok(()));
            }
            if self.up.ended {
                return Poll::Ready(Ok(()));
            }
            ready!(self.poll_filter(Direction::Up, cx))?;
            if !self.down.rest().is_empty() && self.poll_sent(cx)?.is_ready() {
                // What a filter has sent by itself; nothing else may be written for a long time.
                _ = Pin::new(&mut self.stream).poll_flush(cx)?;
            }
            if self.up.rest().is_empty() && !self.up.ended {
                ready!(self.poll_receive(cx))?;
            }
        }
    }

    fn poll_plain_read(&mut self, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_closing(Direction::Up, cx)?;
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        let count = buffer.filled().len() - before;
        if read.is_err() || (count == 0 && buffer.remaining() > 0) {
            self.connection.is_ended_by(ClosedBy::Client);
        }
        self.connection.received.set(self.connection.received.get() + count as u64);
        Poll::Ready(read)
    }

    /// Updates the count of held memory.
    fn count(&mut self) {
        let capacity = self.up.capacity() + self.down.capacity();
        held::changed(std::mem::replace(&mut self.counted, capacity), capacity);
    }
}

impl Drop for Filtered {
    fn drop(&mut self) {
        held::changed(self.counted, 0);
    }
}

impl Layer for Filtered {
    fn beneath(&self) -> &Stream {
        &self.stream
    }

    fn bypass(&self) -> Option<&TcpStream> {
        let sees = self.connection.sees(Direction::Up) || self.connection.sees(Direction::Down);
        let looks = sees || !self.up.rest().is_empty() || !self.down.rest().is_empty();
        if looks { None } else { self.stream.plaintext() }
    }
}

impl AsyncRead for Filtered {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let filtered = self.get_mut();
        let plain = !filtered.connection.sees(Direction::Up) && filtered.up.is_empty();
        let read = if plain { filtered.poll_plain_read(cx, buffer) } else { filtered.poll_filtered_read(cx, buffer) };
        filtered.count();
        read
    }
}

impl AsyncWrite for Filtered {
    /// Takes a block once the previous one has been written: a paused filter or a slow client applies back pressure to
    /// the writer.
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let filtered = self.get_mut();
        if !filtered.connection.sees(Direction::Down) && filtered.down.is_empty() {
            filtered.poll_closing(Direction::Down, cx)?;
            let count = ready!(Pin::new(&mut filtered.stream).poll_write(cx, bytes))?;
            filtered.connection.sent.set(filtered.connection.sent.get() + count as u64);
            return Poll::Ready(Ok(count));
        }
        ready!(filtered.poll_sent(cx))?;
        let block = bytes.get(..BLOCK_BYTES).unwrap_or(bytes);
        filtered.down.held.extend_from_slice(block);
        filtered.down.unseen = true;
        let sent = filtered.poll_sent(cx);
        filtered.count();
        match sent {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(block.len())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let filtered = self.get_mut();
        ready!(filtered.poll_sent(cx))?;
        filtered.count();
        Pin::new(&mut filtered.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let filtered = self.get_mut();
        if filtered.connection.sees(Direction::Down) && !filtered.down.ends {
            // Bytes still held are passed on first.
            ready!(filtered.poll_sent(cx))?;
            (filtered.down.ends, filtered.down.unseen) = (true, true);
        }
        ready!(filtered.poll_sent(cx))?;
        filtered.count();
        Pin::new(&mut filtered.stream).poll_shutdown(cx)
    }
}
