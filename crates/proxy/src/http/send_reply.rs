//! Sends local replies: the head, the filters, the body.

use std::borrow::Cow;
use std::future::poll_fn;
use std::io;
use std::task::{Poll, ready};
use std::time::Duration;

use evenkeel_base::grpc::status_of_http;
use evenkeel_filters::decide::{Levels, Matched};
use evenkeel_filters::{Data, FilterStreams, Flow, HttpFilters, ResponseDecision};
use evenkeel_http::{Framing, HeaderId};
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::announced_length::AnnouncedLength;
use super::downstream::Answer;
use super::edits::Edits as _;
use super::failure::Failure;
use super::filters::announced;
use super::finish::finish_response;
use super::pause::Held;
use super::record::record;
use super::reply::{OfFilter, Reply};
use super::{grpc, local_reply};

/// How long a client may take to read a local reply, unless `stream_flush_timeout` is shorter. A reply is small: a client
/// that reads at all gets it at once, and one that does not read must not hold resources.
const REPLY_FLUSH_TIMEOUT: Duration = Duration::from_secs(30);

impl ActiveStream<'_> {
    /// Sends the reply; true when the connection may carry another request.
    pub(super) async fn reply(&mut self, mut reply: Reply, levels: Option<Levels<'_>>) -> bool {
        let (conn, request) = (self.conn, &mut *self.request);
        let hcm = &*conn.hcm;
        request.stream.status = reply.status;
        request.stream.local_reply = true;
        request.stream.flags |= reply.flags;
        request.stream.details = std::mem::take(&mut reply.details);
        if let Some(counter) = reply.counter {
            conn.manager.http.inc(counter);
        }
        if reply.status == 0 {
            return false;
        }
        self.show_filters_early_reply();
        self.make_head(&mut reply, levels);
        match self.filter_response(reply.body.is_empty(), true, Some(&reply.body)) {
            ResponseDecision::Continue => {}
            // Boxed: few replies wait for a filter.
            wanted => {
                if let Err(other) = Box::pin(self.settle_reply(wanted, &reply.body)).await {
                    self.request.filters.bypass_response();
                    return Box::pin(self.reply(other, levels)).await;
                }
            }
        }
        let filtered = self.request.filters.sees_response_data();
        let request = &mut *self.request;
        request.stream.status = request.response.status;
        finish_response(&mut request.response.headers, hcm, true);
        request.respond_traced();
        if self.down.received_all() {
            request.note_first(TimePoint::DownstreamRxEnd);
        }
        // While HTTP/1.0 is off, responses do not follow it either.
        let http_10 = hcm.accept_http_10 && request.is_http_10();
        let framing = match reply.body.len() {
            0 => Framing::None,
            bytes if filtered => announced(Framing::Length(bytes as u64), &request.response.headers),
            bytes => Framing::Length(bytes as u64),
        };
        let close = conn.is_to_end()
            || reply.close
            || (http_10 && framing == Framing::Chunked)
            || !self.down.received_all()
            || self.down.must_close(hcm.max_requests_per_connection);
        let no_content = matches!(request.stream.status, 204 | 304) || request.stream.status < 200;
        let bodiless = no_content || (request.is_head() && !reply.body.is_empty());
        self.down.send_head(&mut request.response, Answer { framing, bodiless, close, tunnel: None, http_10 });
        request.note(TimePoint::DownstreamTxBegin);
        let body: &[u8] = if bodiless { b"" } else { &reply.body };
        let sent = if !body.is_empty() && filtered {
            // Boxed: few replies have filters that look at the body.
            Box::pin(self.send_filtered_body(body, AnnouncedLength::of(framing))).await
        } else {
            self.send_reply_body(body).await
        };
        sent.is_ok() && self.down.end(close)
    }

    /// As in Envoy, response filters see replies to requests, too, that no filter has seen: to heads that cannot be parsed, paths that are
    /// refused, requests that are too many. No route is chosen then.
    fn show_filters_early_reply(&mut self) {
        let filters = &self.conn.manager.filters;
        if !filters.is_empty() && !self.request.filters.is_begun() {
            filters.begin(&mut self.request.filters, &Matched::context(None).filters);
        }
    }

    /// Makes the reply's head, and its body as it is sent: applies the route's edits, the filter's headers, `local_reply_config` and at
    /// last the translation for gRPC.
    fn make_head(&mut self, reply: &mut Reply, levels: Option<Levels<'_>>) {
        let (conn, request) = (self.conn, &mut *self.request);
        let own = reply.of_filter.take().map_or_else(OfFilter::default, |own| *own);
        request.response.clear();
        request.response.status = reply.status;
        if let Some(levels) = levels.filter(|levels| !own.verbatim && !levels.is_empty()) {
            let values = record(conn, request, |record| levels.response_values(record));
            levels.edit_response(&mut request.response.headers, values);
        }
        let fields = &mut request.response.headers;
        if let Some((name, value)) = &reply.header
            && !(conn.hcm.suppress_envoy_headers && name.starts_with(b"x-envoy-"))
        {
            fields.append(name, value);
        }
        own.headers.iter().for_each(|(name, value)| fields.append(name.as_bytes(), value));
        let content_type = match &conn.hcm.local_reply {
            Some(config) if !own.verbatim => local_reply::rewrite(config, conn, request, reply),
            _ => None,
        };
        let fields = &mut request.response.headers;
        if request.grpc && !own.verbatim {
            let status = own.grpc_status.unwrap_or_else(|| status_of_http(reply.status).into());
            let is_head = request.head.method() == b"HEAD";
            grpc::reply_head(fields, status, if is_head { b"" } else { &reply.body });
            reply.body = Cow::Borrowed(b"");
            request.response.status = 200;
            request.stream.status = 200;
        } else if !reply.body.is_empty() {
            let mut digits = itoa::Buffer::new();
            fields.set(HeaderId::ContentLength, digits.format(reply.body.len()).as_bytes());
            match content_type {
                Some(content_type) => fields.set(HeaderId::ContentType, content_type.as_bytes()),
                None if !fields.contains(HeaderId::ContentType) => {
                    fields.append_id(HeaderId::ContentType, b"text/plain");
                }
                None => {}
            }
        } else if !own.verbatim {
            fields.remove(HeaderId::ContentLength);
            fields.remove(HeaderId::ContentType);
        }
    }

    /// Resets the stream so that the client may send the request elsewhere. Log and statistics get what the reply would have had. False if
    /// the protocol has no such reset, so that the client needs a reply.
    pub(super) fn send_elsewhere(&mut self, failure: &Failure) -> bool {
        if !self.down.refuse() {
            return false;
        }
        self.response_ended = true;
        self.request.stream.status = failure.status();
        self.request.fail(failure, failure.details(), &self.conn.manager.http);
        true
    }

    /// As [`ActiveStream::send_reply_body`], but as the filters release it. `left`: how many bytes they may send.
    async fn send_filtered_body(&mut self, body: &[u8], mut left: AnnouncedLength) -> io::Result<()> {
        let mut pass: fn(&HttpFilters, &mut FilterStreams, &mut Data<'_>) -> Flow = HttpFilters::response_data;
        let mut data = Data { bytes: body.into(), ends: true, now: turn::now().into_std() };
        loop {
            let request = &mut *self.request;
            let flow = pass(&self.conn.manager.filters, &mut request.filters, &mut data);
            if !data.bytes.is_empty() && left.take(data.bytes.len()) {
                request.stream.bytes_sent += data.bytes.len() as u64;
                self.down.send(&data.bytes, false);
            }
            let Flow::Pause(pause) = flow else {
                return if left.is_over() {
                    self.send_reply_body(b"").await
                } else {
                    Err(io::ErrorKind::InvalidData.into())
                };
            };
            let mut held = Held::new(pause);
            poll_fn(|cx| {
                if let Poll::Ready(Err(error)) = self.down.poll_flush(cx) {
                    return Poll::Ready(Err(error));
                }
                match self.down.poll_gone(cx) {
                    Poll::Ready(_) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
                    Poll::Pending => held.poll(cx).map(Ok),
                }
            })
            .await?;
            pass = HttpFilters::resume_response;
            data = Data { bytes: b"".into(), ends: false, now: turn::now().into_std() };
        }
    }

    async fn send_reply_body(&mut self, body: &[u8]) -> io::Result<()> {
        let limit = self.conn.hcm.stream_flush_timeout.min(REPLY_FLUSH_TIMEOUT);
        let mut until = None;
        poll_fn(|cx| {
            if !std::mem::replace(&mut self.response_ended, true) {
                self.down.send(body, true);
                self.request.stream.bytes_sent += body.len() as u64;
                self.down.finish(&self.request.response_trailers);
                self.request.note(TimePoint::DownstreamTxEnd);
            }
            let flushed = self.down.poll_flush(cx);
            if flushed.is_ready() {
                return flushed;
            }
            let until = *until.get_or_insert_with(|| after(turn::now(), Some(limit)));
            ready!(self.deadline.poll(until, cx));
            let late = Failure::FlushTimeout;
            self.request.fail(&late, late.details(), &self.conn.manager.http);
            self.down.give_up();
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        })
        .await
    }
}
