//! A request of the proxy's own, which has no downstream. It goes upstream like any other ([`super::exchange`]), with a [`Source`] for its
//! body and a [`Sink`] for its response.

mod ends;
mod side;
mod until;
mod upload;

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use evenkeel_base::grpc::{http_of_status, is_grpc, status};
use evenkeel_filters::Services;
use evenkeel_filters::decide::effective;
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::route::Priority;
use evenkeel_upstream::Cluster;
use evenkeel_upstream::cluster_stats::Histogram;
use evenkeel_upstream::turn;

use self::side::CallSide;
use self::until::Limit;
use self::upload::Upload;
use super::exchange::{Answered, Exchange, Tries};
use super::failure::Failure;
use super::framed::Piece;
use super::grpc;
use super::request::Request;
use super::timers::Timers;
use super::upstream::Upstream;
use super::upstream::count::{count_failure, count_reset, count_response};

pub(crate) use self::ends::{Sent, Sink, Source, TooLarge};
pub(crate) use self::side::UpstreamOptions;
pub(crate) use self::until::Until;

/// Why a call has no response, or an incomplete one.
#[derive(Debug)]
pub(crate) enum Broken {
    Failed(Failure),
    TooLarge,
}

impl<F: Into<Failure>> From<F> for Broken {
    fn from(failure: F) -> Self {
        Self::Failed(failure.into())
    }
}

/// A call that has not been made yet.
pub(crate) struct Call {
    cluster: Rc<Cluster>,
    request: Option<Box<Request>>,
    wanted: UpstreamOptions,
    services: Rc<dyn Services>,
}

/// Gives the reply of a cluster's filter to the sink, in place of the host's response.
fn answer_with(reply: evenkeel_filters::Reply, sink: &mut impl Sink) -> Result<(), Broken> {
    let mut head = ResponseHead { status: reply.status, ..ResponseHead::default() };
    reply.headers.iter().for_each(|(name, value)| head.headers.append(name.as_bytes(), value));
    sink.head(&head);
    sink.data(&reply.body).map_err(|TooLarge| Broken::TooLarge)?;
    sink.end(&Headers::default());
    Ok(())
}

impl Call {
    pub(crate) fn new(
        cluster: Rc<Cluster>,
        head: RequestHead,
        framing: Framing,
        wanted: UpstreamOptions,
        services: Rc<dyn Services>,
    ) -> Self {
        let mut request = Request::begin();
        request.grpc = head.headers.get(HeaderId::ContentType).is_some_and(is_grpc);
        request.head = head;
        request.info.framing = framing;
        Self { cluster, request: Some(request), wanted, services }
    }

    /// Makes the call. Dropping the future cancels it.
    pub(crate) async fn run(
        mut self,
        source: &mut impl Source,
        sink: &mut impl Sink,
        until: &Until,
    ) -> Result<(), Broken> {
        let Some(mut request) = self.request.take() else { return Ok(()) };
        let policy = effective(self.wanted.retry.as_deref(), None, &request.view());
        let policy = policy.as_deref();
        let mut exchange =
            Exchange::new(&self.cluster, Tries::Requests(policy), Priority::Default, Timers::new(None, None, None));
        let mut side = CallSide {
            cluster: &self.cluster,
            request: &mut request,
            policy,
            wanted: &self.wanted,
            services: &self.services,
            source,
            upload: Upload::default(),
            limit: Limit::new(until),
            named: false,
        };
        let result = match exchange.response(&mut side).await {
            Ok(answered) => side.respond(answered, sink, &mut exchange.timers).await,
            Err(Failure::Filter(reply)) => answer_with(*reply, sink),
            Err(failure) => {
                count_failure(&self.cluster, &failure);
                Err(failure.into())
            }
        };
        request.recycle();
        result
    }
}

impl<S: Source> CallSide<'_, S> {
    /// Reads the response, and sends what is left of the request.
    async fn respond(&mut self, answered: Answered, sink: &mut impl Sink, timers: &mut Timers) -> Result<(), Broken> {
        let Answered { mut up, info, guard } = answered;
        timers.end_tries();
        let cluster = &**self.cluster;
        let request = &mut *self.request;
        // The outcome of a gRPC call is known only from its trailers.
        let answers_later = request.grpc && request.response.status == 200 && !info.framing.is_empty();
        count_response(request, cluster, (!answers_later).then_some(up.host()));
        request.response.headers.remove_hop_by_hop();
        sink.head(&request.response);
        let result = poll_fn(|cx| {
            timers.moved |= self.upload.poll(&mut up, request, self.source, cx);
            match poll_answer(&mut up, request, sink, &mut timers.moved, cx) {
                Poll::Ready(result) => Poll::Ready(result),
                Poll::Pending => self.limit.poll(timers, cx).map(|failure| Err(failure.into())),
            }
        })
        .await;
        if !request.load_reported && !request.response_trailers.is_empty() {
            cluster.heed_load_report(up.host(), &request.response_trailers);
        }
        if answers_later {
            let status = if result.is_ok() { grpc::status(request).unwrap_or_default() } else { status::UNKNOWN };
            up.host().count_response(http_of_status(status));
        }
        drop(guard);
        up.complete(request);
        let now = turn::now();
        let millis = now.duration_since(request.started()).as_millis() as u64;
        cluster.stats().record(Histogram::upstream_rq_time, millis);
        match &result {
            Ok(()) => up.release(cluster, self.upload.finished, now),
            Err(Broken::Failed(failure)) => count_reset(cluster, &up, failure),
            Err(Broken::TooLarge) => {}
        }
        result
    }
}

fn poll_answer(
    up: &mut Upstream,
    request: &mut Request,
    sink: &mut impl Sink,
    moved: &mut bool,
    cx: &mut Context<'_>,
) -> Poll<Result<(), Broken>> {
    loop {
        ready!(sink.poll_room(cx));
        let mut fits = Ok(());
        let piece = up.piece(&mut request.response_trailers, &mut |data, _| fits = sink.data(data), cx)?;
        if let Err(TooLarge) = fits {
            return Poll::Ready(Err(Broken::TooLarge));
        }
        match piece {
            Piece::Data => *moved = true,
            Piece::End => {
                up.filter_response_end(request);
                sink.end(&request.response_trailers);
                return Poll::Ready(Ok(()));
            }
            Piece::Nothing => ready!(up.poll_receive(cx))?,
        }
    }
}
