//! Spreads the streams of one connection over several workers: while its own worker is never idle, it lends new streams to less busy
//! workers. The lender keeps the connection, its frames and its TLS; the borrower serves the request, with its own upstreams, statistics
//! and log.

use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_filters::ConnectionInfo;
use evenkeel_http::{Headers, RequestHead, RequestInfo};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_upstream::conn::Deadline;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::pipe::{Receiver, Sender, pipe};

use super::active_stream::ActiveStream;
use super::context::{ConnectionContext, Protocol};
use super::downstream::lent::{AnswerPiece, Lent, RequestPiece};
use super::downstream::{Answer, Downstream};
use super::failure::Failure;
use super::framed::Piece;
use super::request::Request;
use crate::overload::{Limit, MemoryLimit};
use crate::stats::worker::Counter;
use crate::worker::{Delivery, Message, Registration, Worker};

/// Body bytes that may wait between the two workers, in each direction.
const HELD_BYTES: usize = 2 * BLOCK_BYTES;

/// A stream on its way to the worker that borrows it.
struct LentStream {
    hcm: Arc<HttpConnectionManager>,
    /// The connection it belongs to, and the protocol of that.
    info: Arc<ConnectionInfo>,
    protocol: Protocol,
    /// The limits that requests and memory of the connection count against.
    requests: Option<Arc<Limit>>,
    memory: Option<Arc<MemoryLimit>>,
    head: RequestHead,
    request: RequestInfo,
    received_all: bool,
    up: Receiver<RequestPiece>,
    down: Sender<AnswerPiece>,
}

impl Delivery for LentStream {
    fn serve(self: Box<Self>, worker: &Rc<Worker>) {
        let registration = worker.register_under(self.memory.clone());
        worker.start(&registration, serve_lent(Rc::clone(worker), self, Rc::clone(&registration)));
    }
}

impl fmt::Debug for LentStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LentStream(of connection {})", self.info.id)
    }
}

/// The lender's ends of the pipes.
pub(super) struct Lending {
    up: Sender<RequestPiece>,
    down: Receiver<AnswerPiece>,
}

/// Lends a request to a less busy worker, if this one is never idle. Takes the head only if it lends it.
pub(super) fn lend(
    conn: &ConnectionContext,
    head: &mut RequestHead,
    request: RequestInfo,
    received_all: bool,
) -> Option<Lending> {
    let worker = &conn.worker;
    if worker.peers.len() < 2 || !worker.is_never_idle() {
        return None;
    }
    let to = worker.balance.stream_worker(worker.index, worker.random.next());
    let room = worker.peers.get(to).filter(|_| to != worker.index)?.try_reserve().ok()?;
    let (up, up_receiver) = pipe(HELD_BYTES);
    let (down_sender, down) = pipe(HELD_BYTES);
    let stream = LentStream {
        hcm: Arc::clone(&conn.hcm),
        info: Arc::clone(&conn.info),
        protocol: conn.protocol(),
        requests: conn.registration.request_limit(),
        memory: conn.registration.memory_limit(),
        head: std::mem::take(head),
        request,
        received_all,
        up: up_receiver,
        down: down_sender,
    };
    worker.stats.inc(Counter::downstream_rq_lent);
    room.send(Message::Deliver(Box::new(stream)));
    Some(Lending { up, down })
}

/// Passes bytes between the client and the borrower until the borrower is done with the request.
pub(super) async fn carry(lending: Lending, mut down: Downstream<'_>) {
    let mut trailers = Headers::default();
    poll_fn(|cx| {
        if let Poll::Ready(failure) = poll_up(&lending.up, &mut down, &mut trailers, cx) {
            lending.up.send(RequestPiece::Gone(failure), 0);
            return Poll::Ready(());
        }
        poll_down(&lending, &mut down, cx)
    })
    .await;
}

/// Passes the request to the borrower. Ready when no more of it will come.
fn poll_up(
    up: &Sender<RequestPiece>,
    down: &mut Downstream<'_>,
    trailers: &mut Headers,
    cx: &mut Context<'_>,
) -> Poll<Failure> {
    while !down.received_all() {
        match up.poll_room(cx) {
            Poll::Ready(Ok(())) => {}
            // The borrower is done with the request; `poll_down` sees how its response ends.
            Poll::Ready(Err(_)) => return Poll::Pending,
            Poll::Pending => return down.poll_gone(cx),
        }
        let (mut bytes, mut ends) = (Vec::new(), false);
        let mut take = |data: &[u8], last| {
            bytes.extend_from_slice(data);
            ends = last;
        };
        match down.piece(trailers, &mut take, cx) {
            Ok(Piece::Data) => {
                let length = bytes.len();
                up.send(RequestPiece::Data(bytes, ends), length);
                if down.received_all() && !ends {
                    up.send(RequestPiece::End(std::mem::take(trailers)), 0);
                }
            }
            Ok(Piece::End) => up.send(RequestPiece::End(std::mem::take(trailers)), 0),
            Ok(Piece::Nothing) => return Poll::Pending,
            Err(failure) => return Poll::Ready(failure),
        }
    }
    down.poll_gone(cx)
}

/// Passes the response to the client. Ready when the borrower has ended it or given up, or the client accepts no more.
fn poll_down(lending: &Lending, down: &mut Downstream<'_>, cx: &mut Context<'_>) -> Poll<()> {
    loop {
        match down.poll_room(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => {
                lending.up.send(RequestPiece::Gone(Failure::ClientGone), 0);
                return Poll::Ready(());
            }
            // The borrower may give up on a client that does not read.
            Poll::Pending => {
                return lending.down.poll_left(cx).map(|unsent| {
                    if unsent {
                        down.give_up();
                    }
                });
            }
        }
        match lending.down.poll_next(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(()),
            Poll::Ready(Some(AnswerPiece::Interim(head))) => down.send_interim(&head),
            Poll::Ready(Some(AnswerPiece::Head { mut head, framing, bodiless, tunnel })) => {
                let tunnel = tunnel.then_some(&b""[..]);
                down.send_head(&mut head, Answer { framing, bodiless, close: false, tunnel, http_10: false });
            }
            Poll::Ready(Some(AnswerPiece::Data(data, last))) => down.send(&data, last),
            Poll::Ready(Some(AnswerPiece::End(trailers))) => down.finish(&trailers),
            Poll::Ready(Some(AnswerPiece::Refused)) => _ = down.refuse(),
        }
    }
}

/// Serves a stream borrowed from another worker.
async fn serve_lent(worker: Rc<Worker>, stream: Box<LentStream>, registration: Rc<Registration>) {
    let LentStream { hcm, info, protocol, requests, head, request: request_info, received_all, up, down, .. } = *stream;
    if let Some(limit) = requests {
        registration.limit_requests(limit);
    }
    let conn = ConnectionContext::lent(&worker, hcm, (info, protocol), &registration);
    let mut request = Request::begin();
    request.head = head;
    request.info = request_info;
    let mut deadline = Deadline::default();
    let down = Downstream::Lent(Lent::new(up, down, received_all));
    ActiveStream::new(&conn, &mut request, down, &mut deadline).run().await;
    request.recycle();
}
