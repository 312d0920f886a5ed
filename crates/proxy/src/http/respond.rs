//! Sends the response downstream: response filters, head, body and trailers; then releases the upstream connection.

use std::future::poll_fn;

use evenkeel_base::grpc::{http_of_status, status};
use evenkeel_filters::ResponseDecision;
use evenkeel_filters::decide::Tunnel;
use evenkeel_http::{Framing, HeaderId, ResponseInfo};
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::cluster_stats as cluster;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::decide::Forward;
use super::downstream::Answer;
use super::edits::Edits as _;
use super::exchange::Answered;
use super::failure::{EndedBy, Failure};
use super::filters::{Instead, announced};
use super::finish::finish_response;
use super::grpc;
use super::record::record;
use super::reply::Reply;
use super::timers::Timers;
use super::transfer::Transfer;
use super::upload::Upload;
use super::upstream::Upstream;
use super::upstream::count::{count_reset, count_response};
use crate::clock::wall_clock;
use crate::stats::http::{Counter, Gauge};

impl ActiveStream<'_> {
    /// Counts the outcome of a gRPC call at its endpoint: it is known only from the trailers.
    fn count_call(&self, up: &Upstream, complete: bool) {
        let known = || self.request.outcome.or_else(|| grpc::status(self.request)).unwrap_or_default();
        let status = if complete { known() } else { status::UNKNOWN };
        up.host().count_response(http_of_status(status));
    }

    /// True when the connection may carry another request.
    pub(super) async fn respond(
        &mut self,
        forward: &Forward<'_>,
        answered: Answered,
        upload: &mut Upload,
        timers: &mut Timers,
    ) -> bool {
        let Answered { mut up, mut info, guard } = answered;
        let answers_later =
            self.request.calls_grpc() && self.request.response.status == 200 && !info.framing.is_empty();
        count_response(self.request, &forward.to.cluster, (!answers_later).then_some(up.host()));
        let tunnel = self.opened_tunnel().filter(|_| upload.may_become_tunnel());
        if self.request.response.status == 101 && tunnel.is_none() {
            let reply = Reply::from(&Failure::UpstreamProtocol);
            return Box::pin(self.reply(reply, Some(forward.levels))).await;
        }
        // The upstream's hop-by-hop headers end here, before filters and routes add headers that its `connection` must not be able to
        // remove.
        let headers = &mut self.request.response.headers;
        // Filters of the cluster get the head without it: then it was noted before.
        self.request.head_chunked |= headers.contains(HeaderId::TransferEncoding);
        headers.remove_hop_by_hop();
        self.request.stream.details = "via_upstream".into();
        self.edit_response(forward);
        let ends = info.framing.is_empty();
        let mut collected = None;
        match self.filter_response(ends, false, None) {
            ResponseDecision::Continue => {}
            // Boxed: few responses wait for a filter, and the others should not reserve memory for it.
            wanted => match Box::pin(Transfer::new(self, &mut up, upload, timers).settle(wanted, ends)).await {
                Ok(whole) => collected = whole,
                Err(instead) => return Box::pin(self.replace(forward, up, instead)).await,
            },
        }
        let changes = self.request.filters.sees_response_data();
        if changes && tunnel.is_none() {
            info.framing = announced(info.framing, &self.request.response.headers);
        }
        finish_response(&mut self.request.response.headers, &self.conn.hcm, false);
        self.request.respond_traced();
        timers.end_tries();
        if tunnel.is_some() {
            // A tunnel has no length (RFC 9110 section 9.3.6).
            self.request.response.headers.remove(HeaderId::ContentLength);
        }
        let close = self.send_response_head(info, tunnel.as_deref());
        let opened = tunnel.is_some();
        if opened {
            up.open_tunnel();
            upload.open_tunnel();
            timers.request = None;
            self.conn.manager.http.inc(Counter::downstream_cx_upgrades_total);
            self.conn.manager.http.shift(Gauge::downstream_cx_upgrades_active, 1);
        }
        let result = {
            let mut transfer = Transfer::new(self, &mut up, upload, timers);
            transfer.reporting_to(&forward.to.cluster);
            if changes || collected.is_some() {
                transfer.filtered(if opened { Framing::None } else { info.framing }, collected);
            }
            poll_fn(|cx| transfer.poll_body(opened, cx)).await
        };
        if opened {
            self.conn.manager.http.shift(Gauge::downstream_cx_upgrades_active, -1);
        }
        if answers_later {
            self.count_call(&up, result.is_ok());
        }
        drop(guard);
        up.complete(self.request);
        let now = turn::now();
        let millis = now.duration_since(self.request.started()).as_millis() as u64;
        let exemplar = self.request.trace.as_ref().and_then(|trace| trace.exemplar(wall_clock(now)));
        let time = cluster::Histogram::upstream_rq_time;
        forward.to.cluster.stats().record_with(time, millis, exemplar.as_ref());
        match result {
            Ok(()) => {
                up.release(&forward.to.cluster, upload.finished && self.down.received_all(), now);
                self.down.end(close)
            }
            Err(failure) => {
                count_reset(&forward.to.cluster, &up, &failure);
                self.cut_response(&failure);
                false
            }
        }
    }

    /// The response ends before its end, whose head the client has.
    fn cut_response(&mut self, failure: &Failure) {
        if matches!(failure, Failure::FlushTimeout | Failure::Idle { .. }) {
            self.down.give_up();
        }
        if failure.row().ended_by != EndedBy::Client {
            self.conn.manager.http.inc(Counter::downstream_rq_tx_reset);
        }
        self.request.fail(failure, failure.details_after_head(), &self.conn.manager.http);
    }

    /// Sends another response in place of the upstream's, whose exchange ends here.
    async fn replace(&mut self, forward: &Forward<'_>, up: Upstream, instead: Instead) -> bool {
        let reply = match instead {
            Instead::Reply(reply) => reply,
            Instead::Failed(failure) => {
                count_reset(&forward.to.cluster, &up, &failure);
                Reply::from(&failure)
            }
        };
        drop(up);
        self.request.filters.bypass_response();
        self.request.response_trailers.clear();
        self.reply(reply, Some(forward.levels)).await
    }

    /// The protocol of the tunnel the upstream agreed to.
    fn opened_tunnel(&self) -> Option<Vec<u8>> {
        let response = &self.request.response;
        match self.request.tunnel.as_ref()? {
            Tunnel::Upgrade(_) if response.status == 101 => {
                Some(response.headers.get(HeaderId::Upgrade).unwrap_or_default().to_vec())
            }
            Tunnel::Connect if (200..300).contains(&response.status) => Some(Vec::new()),
            Tunnel::Upgrade(_) | Tunnel::Connect => None,
        }
    }

    /// Sends the response head; true when the connection ends with this response.
    fn send_response_head(&mut self, info: ResponseInfo, tunnel: Option<&[u8]>) -> bool {
        let (conn, request) = (self.conn, &mut *self.request);
        let framing = match info.framing {
            // Only the head is sent; it says how the body would have been framed.
            Framing::None if request.is_head() && request.head_chunked => Framing::Chunked,
            framing => framing,
        };
        let http_10 = request.is_http_10();
        let unframed = http_10 && !request.is_head() && matches!(framing, Framing::Chunked | Framing::UntilClose);
        let limit = conn.hcm.max_requests_per_connection;
        let expired = conn.is_expired(turn::now());
        let close = conn.is_to_end() || request.tunnel.is_some() || unframed || expired || self.down.must_close(limit);
        // An HTTP/2 response may end with its head although it could have a body: HTTP/1 then has to announce an empty one.
        let bodiless = request.is_head() || matches!(request.response.status, 100..=199 | 204 | 304);
        self.down.send_head(&mut request.response, Answer { framing, bodiless, close, tunnel, http_10 });
        request.note(TimePoint::DownstreamTxBegin);
        request.stream.status = request.response.status;
        close
    }

    /// The edits of the router and of the route, before the filters see the head.
    fn edit_response(&mut self, forward: &Forward<'_>) {
        let (hcm, request) = (&*self.conn.hcm, &mut *self.request);
        let headers = &mut request.response.headers;
        if let Some(trace) = &mut request.trace {
            trace.answered(headers);
        }
        headers.remove(HeaderId::EnvoyDecoratorOperation);
        forward.to.affinity.edit_response(headers);
        let mut digits = itoa::Buffer::new();
        // Envoy leaves this header out of responses to upgrades, refused ones too.
        if request.tunnel.is_none() && !hcm.suppress_envoy_headers {
            let times = &request.stream.times;
            let waited = times.between(TimePoint::DownstreamRxEnd, TimePoint::UpstreamRxBegin);
            let millis = waited.map_or(0, |waited| waited.as_millis());
            headers.set(HeaderId::EnvoyUpstreamServiceTime, digits.format(millis).as_bytes());
        }
        if hcm.always_set_request_id_in_response
            && let Some(id) = request.head.headers.get(HeaderId::RequestId)
        {
            headers.set(HeaderId::RequestId, id);
        }
        if forward.host.include_attempt_count_in_response {
            headers.set(HeaderId::EnvoyAttemptCount, digits.format(request.stream.attempts).as_bytes());
        }
        if !forward.levels.is_empty() {
            let values = record(self.conn, request, |record| forward.levels.response_values(record));
            forward.levels.edit_response(&mut request.response.headers, values);
        }
    }
}
