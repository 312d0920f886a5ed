//! State shared by the task of a streamed callout and its handle: the buffered bytes of each direction, and the wakers
//! of both sides. All of it is used on one thread.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use evenkeel_filters::callouts::{CalloutError, HttpStream, MAX_STREAM_BYTES, Problem};
use evenkeel_http::{Headers, ResponseHead};
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::turn;

use super::{Task, stopped};
use crate::http::call::{Sent, Sink, Source, TooLarge, Until};

/// The request body on its way from the handle to the task.
#[derive(Debug)]
pub(crate) struct Uplink {
    state: RefCell<Queue>,
    /// Timeout that starts at the end of the request.
    timeout: Option<Duration>,
    /// Deadline of the call.
    pub(crate) until: Until,
    /// What it holds, counted with what others hold.
    charge: Option<Charge>,
}

/// Bytes that several uplinks hold together.
pub(crate) type Tally = Cell<usize>;

/// The share of one uplink in a [`Tally`], which ends with it.
#[derive(Debug)]
struct Charge {
    all: Rc<Tally>,
    own: Cell<usize>,
}

impl Charge {
    fn add(&self, bytes: usize) {
        self.own.set(self.own.get() + bytes);
        self.all.set(self.all.get() + bytes);
    }

    fn subtract(&self, bytes: usize) {
        let bytes = bytes.min(self.own.get());
        self.own.set(self.own.get() - bytes);
        self.all.set(self.all.get().saturating_sub(bytes));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.subtract(self.own.get());
    }
}

/// Memory that an empty uplink keeps for more, in bytes.
const KEPT_BYTES: usize = 16 * 1024;

#[derive(Debug, Default)]
struct Queue {
    data: VecDeque<u8>,
    /// The request was ended.
    ended: bool,
    trailers: Headers,
    /// The task has taken a byte.
    begun: bool,
    /// The task no longer takes data.
    closed: bool,
    /// Bytes that it did not take any more.
    left_over: usize,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Uplink {
    pub(crate) fn new(timeout: Option<Duration>) -> Self {
        Self { state: RefCell::default(), timeout, until: Until::default(), charge: None }
    }

    /// An uplink of a call whose head has `head_bytes`; they and the waiting bytes are counted in `all`.
    pub(crate) fn charged(timeout: Option<Duration>, head_bytes: usize, all: &Rc<Tally>) -> Self {
        let charge = Charge { all: Rc::clone(all), own: Cell::new(0) };
        charge.add(head_bytes);
        Self { charge: Some(charge), ..Self::new(timeout) }
    }

    fn charge(&self, bytes: usize) {
        self.charge.iter().for_each(|charge| charge.add(bytes));
    }

    /// Number of bytes waiting for the task.
    pub(crate) fn waiting(&self) -> usize {
        self.state.borrow().data.len()
    }

    /// Number of bytes that the task has not taken, and perhaps never will.
    fn unsent(&self) -> usize {
        let state = self.state.borrow();
        state.data.len() + state.left_over
    }

    pub(crate) fn send(&self, data: &[u8]) {
        let mut state = self.state.borrow_mut();
        if state.closed {
            state.left_over += data.len();
        } else if !state.ended {
            state.data.extend(data);
            self.charge(data.len());
            wake(&mut state.reader);
        }
    }

    /// Ends the request and starts its timeout.
    pub(crate) fn finish(&self, trailers: Headers) {
        let mut state = self.state.borrow_mut();
        if !std::mem::replace(&mut state.ended, true) {
            state.trailers = trailers;
            self.until.set(after(turn::now(), self.timeout));
            wake(&mut state.reader);
        }
    }

    /// Closes the uplink because the task ends.
    pub(crate) fn close(&self) {
        let mut state = self.state.borrow_mut();
        state.closed = true;
        state.left_over += std::mem::take(&mut state.data).len();
        self.charge.iter().for_each(|charge| charge.subtract(charge.own.get()));
        wake(&mut state.writer);
    }

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.borrow_mut();
        if state.closed || state.data.len() < MAX_STREAM_BYTES {
            return Poll::Ready(());
        }
        watch(&mut state.writer, cx);
        Poll::Pending
    }
}

/// The task's end of an [`Uplink`].
pub(crate) struct Outgoing(pub(crate) Rc<Uplink>);

impl Source for Outgoing {
    fn poll_piece(&mut self, take: &mut dyn FnMut(&[u8]), cx: &mut Context<'_>) -> Poll<Sent> {
        let mut state = self.0.state.borrow_mut();
        let (first, _) = state.data.as_slices();
        let count = first.len().min(BLOCK_BYTES);
        if count > 0 {
            take(first.get(..count).unwrap_or_default());
            state.data.drain(..count);
            if state.data.is_empty() && state.data.capacity() > KEPT_BYTES {
                state.data = VecDeque::new();
            }
            self.0.charge.iter().for_each(|charge| charge.subtract(count));
            state.begun = true;
            if state.data.len() < MAX_STREAM_BYTES {
                wake(&mut state.writer);
            }
            return Poll::Ready(Sent::Piece);
        }
        if state.ended {
            return Poll::Ready(Sent::End(state.trailers.clone()));
        }
        watch(&mut state.reader, cx);
        Poll::Pending
    }

    fn can_rewind(&self) -> bool {
        !self.0.state.borrow().begun
    }

    fn rewind(&mut self) {}
}

/// The response on its way from the task to the handle.
#[derive(Debug, Default)]
pub(super) struct Downlink {
    head: Option<ResponseHead>,
    answered: bool,
    data: Vec<u8>,
    trailers: Headers,
    /// The result of the call, if it has ended.
    over: Option<Result<(), CalloutError>>,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Downlink {
    /// Whether the response's head has arrived.
    pub(super) fn is_answered(&self) -> bool {
        self.answered
    }

    pub(super) fn finish(&mut self, result: Result<(), CalloutError>) {
        self.over.get_or_insert(result);
        wake(&mut self.reader);
    }
}

/// The task's end of a [`Downlink`].
pub(super) struct Incoming(pub(super) Rc<RefCell<Downlink>>);

impl Sink for Incoming {
    fn head(&mut self, head: &ResponseHead) {
        let mut down = self.0.borrow_mut();
        (down.head, down.answered) = (Some(head.clone()), true);
        wake(&mut down.reader);
    }

    fn poll_room(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut down = self.0.borrow_mut();
        if down.data.len() < MAX_STREAM_BYTES {
            return Poll::Ready(());
        }
        watch(&mut down.writer, cx);
        Poll::Pending
    }

    fn data(&mut self, data: &[u8]) -> Result<(), TooLarge> {
        let mut down = self.0.borrow_mut();
        down.data.extend_from_slice(data);
        wake(&mut down.reader);
        Ok(())
    }

    fn end(&mut self, trailers: &Headers) {
        self.0.borrow_mut().trailers = trailers.clone();
    }
}

/// The caller's end of a callout.
pub(super) struct Handle {
    up: Rc<Uplink>,
    down: Rc<RefCell<Downlink>>,
    /// Dropping it cancels the call. `None`: the call never began.
    _task: Option<Task<()>>,
}

impl Handle {
    pub(super) fn new(up: Rc<Uplink>, down: Rc<RefCell<Downlink>>, task: Option<Task<()>>) -> Self {
        Self { up, down, _task: task }
    }
}

impl HttpStream for Handle {
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), CalloutError>> {
        match &self.down.borrow().over {
            Some(Err(error)) => return Poll::Ready(Err(error.clone())),
            Some(Ok(())) => return Poll::Ready(Err(CalloutError::new(Problem::Reset, 503, "the answer has ended"))),
            None => {}
        }
        self.up.poll_ready(cx).map(Ok)
    }

    fn send(&mut self, data: &[u8]) {
        self.up.send(data);
    }

    fn waiting(&self) -> usize {
        self.up.unsent()
    }

    fn finish(&mut self, trailers: Headers) {
        self.up.finish(trailers);
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<ResponseHead, CalloutError>> {
        let mut down = self.down.borrow_mut();
        if let Some(head) = down.head.take() {
            return Poll::Ready(Ok(head));
        }
        match &down.over {
            Some(over) => Poll::Ready(Err(over.clone().err().unwrap_or_else(stopped))),
            None => {
                watch(&mut down.reader, cx);
                Poll::Pending
            }
        }
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>, CalloutError>> {
        let mut down = self.down.borrow_mut();
        if !down.data.is_empty() {
            wake(&mut down.writer);
            return Poll::Ready(Ok(Some(std::mem::take(&mut down.data))));
        }
        match &down.over {
            Some(over) => Poll::Ready(over.clone().map(|()| None)),
            None => {
                watch(&mut down.reader, cx);
                Poll::Pending
            }
        }
    }

    fn trailers(&mut self) -> Headers {
        std::mem::take(&mut self.down.borrow_mut().trailers)
    }
}

fn watch(waker: &mut Option<Waker>, cx: &Context<'_>) {
    match waker {
        Some(known) => known.clone_from(cx.waker()),
        None => *waker = Some(cx.waker().clone()),
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
