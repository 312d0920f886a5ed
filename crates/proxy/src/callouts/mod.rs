//! Callouts ([`evenkeel_filters::callouts`]): requests that the proxy itself makes over the worker's connections to a
//! configured cluster, each in a task of the worker. [`stream`] contains what the task and its handle share, [`places`] how many
//! calls there may be; how a call gets its response is in `http/call`.

pub mod places;
pub(crate) mod stream;
pub(crate) mod target;

use std::cell::RefCell;
use std::future::ready;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use evenkeel_filters::callouts::{
    CallOptions, Callout, CalloutError, Callouts, HttpAnswer, HttpCall, HttpStream, Problem,
};
use evenkeel_filters::{Clock, Clusters, Names, Services, Tasks};
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead};
use evenkeel_upstream::Upstreams;
use evenkeel_upstream::conn::buffer::BLOCK_BYTES;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::random::Random;
use evenkeel_upstream::turn;
use tokio::task::JoinHandle;

use crate::http::Failure;
use crate::http::call::{Broken, Call, Sent, Sink, Source, TooLarge, Until, UpstreamOptions};
use crate::services::{WorkerClock, WorkerTasks};
use evenkeel_filters::decide::announce_timeout;
use places::{Place, Places};
use stream::Tally;

/// The callouts of one worker.
#[derive(Debug, Clone)]
pub struct WorkerCallouts {
    upstreams: Rc<Upstreams>,
    random: Rc<Random>,
    places: Places,
    /// Body and head bytes that mirrors hold.
    pub(crate) mirrored_bytes: Rc<Tally>,
}

/// A task that is aborted when its handle is dropped.
#[derive(Debug)]
pub(crate) struct Task<T>(JoinHandle<T>);

impl<T> Task<T> {
    pub(crate) fn spawn(task: impl Future<Output = T> + 'static) -> Self
    where
        T: 'static,
    {
        Self(turn::spawn(task))
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Future for Task<Result<HttpAnswer, CalloutError>> {
    type Output = Result<HttpAnswer, CalloutError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(cx).map(|joined| joined.unwrap_or_else(|_| Err(stopped())))
    }
}

impl WorkerCallouts {
    /// Callouts over the clusters of `upstreams`.
    pub fn new(upstreams: Rc<Upstreams>) -> Self {
        Self {
            upstreams,
            random: Rc::new(Random::from_system()),
            places: Places::default(),
            mirrored_bytes: Rc::default(),
        }
    }

    /// Number of callouts in flight.
    pub fn active(&self) -> usize {
        self.places.taken()
    }

    /// Checks whether a callout may begin, and prepares it.
    pub(crate) fn begin(
        &self,
        cluster: &str,
        mut head: RequestHead,
        framing: Framing,
        options: &CallOptions,
    ) -> Result<(Call, Place), CalloutError> {
        let Some(cluster) = self.upstreams.cluster(cluster) else {
            let missing = Failure::NoCluster(503);
            return Err(CalloutError::new(Problem::UnknownCluster, missing.status(), missing.details()));
        };
        let Some(place) = self.places.take(options.purpose, &cluster.config().name) else {
            return Err(CalloutError::new(Problem::TooManyCalls, 503, "too_many_callouts"));
        };
        if head.authority().is_empty() {
            head.set_authority(cluster.config().name.as_bytes());
        }
        if options.envoy_headers {
            head.headers.set(HeaderId::EnvoyInternal, b"true");
            if let Some(timeout) = options.timeout {
                announce_timeout(&mut head.headers, timeout, false, true);
            }
        }
        let wanted = UpstreamOptions {
            retry: options.retry.clone(),
            hash: options.hash,
            metadata_match: options.metadata_match.clone(),
            names_itself: options.envoy_headers && options.names_itself,
        };
        let call = Call::new(cluster, head, framing, wanted, Rc::new(self.clone()));
        Ok((call, place))
    }
}

/// Services for the upstream filters of a cluster that a callout passes.
impl Services for WorkerCallouts {
    fn clusters(&self) -> &dyn Clusters {
        &*self.upstreams
    }

    fn clock(&self) -> &dyn Clock {
        &WorkerClock
    }

    fn random(&self) -> u64 {
        self.random.next()
    }

    fn callouts(&self) -> &dyn Callouts {
        self
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        Some(&WorkerTasks)
    }

    /// No filter of a cluster resolves names: those that do stand before the router.
    fn names(&self) -> Option<&dyn Names> {
        None
    }
}

impl Callouts for WorkerCallouts {
    fn http(&self, call: HttpCall) -> Callout {
        let HttpCall { cluster, head, body, options } = call;
        let framing = if body.is_empty() { Framing::None } else { Framing::Length(body.len() as u64) };
        let (call, place) = match self.begin(&cluster, head, framing, &options) {
            Ok(begun) => begun,
            Err(error) => return Callout::new(ready(Err(error))),
        };
        Callout::new(Task::spawn(async move {
            let _place = place;
            let mut source = WholeBody { body, given: 0 };
            let mut sink = Collected { answer: HttpAnswer::default(), max_bytes: options.max_answer_bytes };
            // The request is complete already, so the timeout starts now.
            let until = Until::at(after(turn::now(), options.timeout));
            match call.run(&mut source, &mut sink, &until).await {
                Ok(()) => Ok(sink.answer),
                Err(broken) => Err(error_of(&broken, sink.answer.head.status != 0)),
            }
        }))
    }

    fn stream(&self, cluster: &Arc<str>, head: RequestHead, options: CallOptions) -> Box<dyn HttpStream> {
        let up = Rc::new(stream::Uplink::new(options.timeout));
        let down = Rc::<RefCell<stream::Downlink>>::default();
        let task = match self.begin(cluster, head, Framing::Chunked, &options) {
            Err(error) => {
                down.borrow_mut().finish(Err(error));
                None
            }
            Ok((call, place)) => {
                let (mut source, mut sink) = (stream::Outgoing(Rc::clone(&up)), stream::Incoming(Rc::clone(&down)));
                Some(Task::spawn(async move {
                    let _place = place;
                    let uplink = Rc::clone(&source.0);
                    let result = call.run(&mut source, &mut sink, &uplink.until).await;
                    let mut down = sink.0.borrow_mut();
                    let answered = down.is_answered();
                    down.finish(result.map_err(|broken| error_of(&broken, answered)));
                    source.0.close();
                }))
            }
        };
        Box::new(stream::Handle::new(up, down, task))
    }
}

/// A body that is available as a whole.
struct WholeBody {
    body: Vec<u8>,
    given: usize,
}

impl Source for WholeBody {
    fn poll_piece(&mut self, take: &mut dyn FnMut(&[u8]), _: &mut Context<'_>) -> Poll<Sent> {
        let rest = self.body.get(self.given..).unwrap_or_default();
        let piece = rest.get(..BLOCK_BYTES).unwrap_or(rest);
        if piece.is_empty() {
            return Poll::Ready(Sent::End(Headers::default()));
        }
        take(piece);
        self.given += piece.len();
        Poll::Ready(Sent::Piece)
    }

    fn can_rewind(&self) -> bool {
        true
    }

    fn rewind(&mut self) {
        self.given = 0;
    }
}

/// Collects a response.
struct Collected {
    answer: HttpAnswer,
    max_bytes: usize,
}

impl Sink for Collected {
    fn head(&mut self, head: &ResponseHead) {
        self.answer.head = head.clone();
    }

    fn poll_room(&mut self, _: &mut Context<'_>) -> Poll<()> {
        Poll::Ready(())
    }

    fn data(&mut self, data: &[u8]) -> Result<(), TooLarge> {
        if self.answer.body.len() + data.len() > self.max_bytes {
            return Err(TooLarge);
        }
        self.answer.body.extend_from_slice(data);
        Ok(())
    }

    fn end(&mut self, trailers: &Headers) {
        self.answer.trailers = trailers.clone();
    }
}

fn stopped() -> CalloutError {
    CalloutError::new(Problem::Stopped, 503, "the worker ends")
}

/// `answered`: the response's head has arrived.
fn error_of(broken: &Broken, answered: bool) -> CalloutError {
    let failure = match broken {
        Broken::Failed(failure) => failure,
        Broken::TooLarge => return CalloutError::new(Problem::TooLarge, 502, "response_payload_too_large"),
    };
    let details = if answered { failure.details_after_head() } else { failure.details() };
    CalloutError::new(failure.row().problem, failure.status(), details)
}
