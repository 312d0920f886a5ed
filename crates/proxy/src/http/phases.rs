//! A request's life, top to bottom: read head → normalize → identify peer → match route → filters → pick cluster and host →
//! upstream connection → send → response filters → body → log and statistics.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::{Decision, RequestContext};
use evenkeel_http::{Framing, HeadScan, HeaderId, ResponseInfo, Version, encode, path};
use evenkeel_runtime_config::hcm::{EscapedSlashes, RouteSource};
use evenkeel_runtime_config::rewrite::https_location;
use evenkeel_runtime_config::route::{
    ForwardAction, HostRewrite, RetryPolicy, Route, RouteAction, RouteTable, VirtualHost,
};
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::{Config, HttpConnectionManager};
use tokio::time::Instant;

use super::connection::Connection;
use super::edits::Levels;
use super::exchange::{Download, Exchange, Timers, Upload};
use super::failure::Failure;
use super::identify::identify;
use super::log::record;
use super::reply::{Reply, connection_header, finish_response};
use super::request::Request;
use super::retry;
use crate::conn::Buffer;
use crate::conn::deadline::after;
use crate::listener::Downstream;
use crate::response_flags::ResponseFlags;
use crate::stats::http::{Counter, Gauge, Histogram};
use crate::upstream::cluster_stats as cluster;
use crate::upstream::{Cluster, Connection as Upstream, Host, RequestGuard, Target};
use crate::worker::{HttpManager, Registration, Worker};

/// Capacity kept for response bytes between requests.
const KEPT_OUTPUT_BYTES: usize = 16 * 1024;

/// Serves a connection: one request after the other, until either side has had enough.
pub(crate) async fn serve(
    worker: &Rc<Worker>,
    downstream: Downstream,
    hcm: Arc<HttpConnectionManager>,
    registration: &Registration,
) {
    let generation = worker.generation();
    if generation.network_filters(worker, &downstream.chain).on_connection(&downstream.view).is_err() {
        return;
    }
    let manager = generation.manager(worker, &hcm);
    drop(generation);
    let _counted = Counted::new(&manager, downstream.view.tls);
    let mut connection = Connection::new(worker, downstream, manager, registration);
    let mut request = Request::new();
    loop {
        let next = match connection.read_head(&mut request, &hcm).await {
            Ok(false) => break,
            Ok(true) => {
                request.started_at = std::time::SystemTime::now();
                connection.begin_request();
                connection.serve_request(&mut request, &hcm).await
            }
            Err(failure) => {
                connection.begin_request();
                connection.manager.http.inc(Counter::downstream_cx_protocol_error);
                connection.reply(&mut request, &hcm, Reply::from(&failure), None, false).await
            }
        };
        connection.end_request(&request, &hcm);
        if !next {
            break;
        }
        request.restart();
        connection.output.shrink_to(KEPT_OUTPUT_BYTES);
    }
    connection.close().await;
}

/// What the first phases decided.
enum Plan<'c> {
    Forward(Box<Forward<'c>>),
    Reply(Reply, Option<Levels<'c>>),
}

/// Where a request goes.
struct Forward<'c> {
    levels: Levels<'c>,
    host: &'c VirtualHost,
    action: &'c ForwardAction,
    retry: Option<&'c RetryPolicy>,
    cluster: Rc<Cluster>,
    /// The upgrade asked for, when it is allowed.
    upgrade: Option<Vec<u8>>,
    timeout: Option<Duration>,
    idle: Option<Duration>,
    request_until: Option<Instant>,
}

impl Connection<'_> {
    /// True when the connection may serve another request.
    async fn serve_request(&mut self, request: &mut Request, hcm: &HttpConnectionManager) -> bool {
        let generation = self.worker.generation();
        let config = Arc::clone(&generation.shared.config);
        match self.decide(request, hcm, &config).await {
            Plan::Reply(reply, levels) => {
                let no_body = request.info.framing.is_empty();
                self.reply(request, hcm, reply, levels, no_body).await
            }
            Plan::Forward(forward) => self.forward(request, hcm, &forward).await,
        }
    }

    /// Normalize, identify, match, filter, pick the cluster.
    async fn decide<'c>(
        &mut self,
        request: &mut Request,
        hcm: &'c HttpConnectionManager,
        config: &'c Config,
    ) -> Plan<'c> {
        let fail = |failure: Failure| Plan::Reply(Reply::from(&failure), None);
        match normalize(request, hcm) {
            Ok(None) => {}
            Ok(Some(redirect)) => return Plan::Reply(redirect, None),
            Err(failure) => return fail(failure),
        }
        let client = identify(&mut request.head, hcm, &self.view, &self.peer_text, &self.worker.random);
        request.client = Some(client);
        let upgrade = request.info.upgrade.then(|| request.head.headers.get(HeaderId::Upgrade)).flatten();
        let upgrade = upgrade.map(<[u8]>::to_ascii_lowercase);
        request.head.headers.remove_hop_by_hop();
        let random = self.worker.random.next();
        let Some((table, selection)) = select_route(request, hcm, config, random) else {
            self.manager.http.inc(Counter::no_route);
            return fail(Failure::NoRoute).closing(request.head.method() == b"CONNECT");
        };
        let (host, route) = match selection {
            RouteSelection::Route(host, route) => (host, route),
            RouteSelection::TlsRedirect(_) => {
                let location = https_location(&request.view());
                return Plan::Reply(Reply::redirect(301, location, "tls_redirect"), None);
            }
            RouteSelection::NotFound(_) => {
                if let Some(reply) = self.filter(request, client, None).await {
                    return Plan::Reply(reply, None);
                }
                self.manager.http.inc(Counter::no_route);
                let refused = upgrade.is_some_and(|protocol| !allowed(hcm, None, &protocol));
                return match refused {
                    true => fail(Failure::UpgradeRefused),
                    false => fail(Failure::NoRoute).closing(request.head.method() == b"CONNECT"),
                };
            }
        };
        request.route_name = Some(Arc::clone(&route.name));
        let levels = Levels::new(table, host, route, None);
        if let Some(reply) = self.filter(request, client, Some(route)).await {
            return Plan::Reply(reply, Some(levels));
        }
        let action = match &route.action {
            RouteAction::Forward(action) => action,
            RouteAction::Redirect(redirect) => {
                self.manager.http.inc(Counter::rq_redirect);
                let location = redirect.location(&route.matches, &request.view());
                return Plan::Reply(Reply::redirect(redirect.status, location, "direct_response"), Some(levels));
            }
            RouteAction::DirectResponse { status, body } => {
                self.manager.http.inc(Counter::rq_direct_response);
                return Plan::Reply(Reply::direct(*status, body), Some(levels));
            }
        };
        if upgrade.as_ref().is_some_and(|protocol| !allowed(hcm, Some(action), protocol)) {
            return Plan::Reply(Reply::from(&Failure::UpgradeRefused), Some(levels));
        }
        self.route_to(request, hcm, (table, host, route, action), random, upgrade)
    }

    /// Asks the filters; a reply when one of them answers.
    async fn filter(&self, request: &mut Request, client: SocketAddr, route: Option<&Route>) -> Option<Reply> {
        if self.manager.filters.is_empty() {
            return None;
        }
        let view = request.view();
        let context = RequestContext { connection: &self.view, remote: client.ip(), request: &view, route };
        match self.manager.filters.on_request(&context).await {
            Decision::Continue => None,
            Decision::LocalReply(reply) => Some(Reply {
                status: reply.status,
                body: reply.body.as_bytes().into(),
                location: None,
                flags: reply.flag.and_then(ResponseFlags::from_short_name).unwrap_or_default(),
                details: reply.details.into(),
                close: false,
            }),
        }
    }

    /// The cluster, and the head as the upstream gets it.
    fn route_to<'c>(
        &mut self,
        request: &mut Request,
        hcm: &HttpConnectionManager,
        (table, host, route, action): (&'c RouteTable, &'c VirtualHost, &'c Route, &'c ForwardAction),
        random: u64,
        upgrade: Option<Vec<u8>>,
    ) -> Plan<'c> {
        let leg = action.pick_cluster(random);
        let levels = Levels::new(table, host, route, leg);
        let Some((leg, cluster)) = leg.and_then(|leg| Some((leg, self.worker.upstreams.cluster(&leg.cluster)?))) else {
            self.manager.http.inc(Counter::no_cluster);
            return Plan::Reply(Reply::from(&Failure::NoCluster(action.cluster_not_found_status)), Some(levels));
        };
        request.cluster_name = Some(Arc::clone(&leg.cluster));
        if let Some(timeout) = action.timeout.filter(|timeout| !timeout.is_zero()) {
            let millis = itoa::Buffer::new().format(timeout.as_millis()).to_owned();
            request.head.headers.set(HeaderId::EnvoyExpectedRqTimeoutMs, millis.as_bytes());
        }
        request.head.headers.remove(HeaderId::Expect);
        if !levels.is_empty() {
            let values = record(self, request, |record| levels.request_values(record));
            levels.edit_request(&mut request.head.headers, values);
        }
        rewrite(request, route, action, leg.host_rewrite.as_deref());
        let positive = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
        Plan::Forward(Box::new(Forward {
            levels,
            host,
            action,
            retry: action.retry.as_deref().or(host.retry.as_deref()),
            cluster,
            timeout: positive(action.timeout).filter(|_| upgrade.is_none()),
            upgrade,
            idle: positive(action.idle_timeout.or(hcm.stream_idle_timeout)),
            request_until: after(request.started, positive(hcm.request_timeout)),
        }))
    }

    /// Tries until there is an answer or no try is left; then the answer goes down.
    async fn forward(&mut self, request: &mut Request, hcm: &HttpConnectionManager, forward: &Forward<'_>) -> bool {
        if request.info.expect_continue && !hcm.proxy_100_continue {
            encode::continue_100(&mut self.output);
        }
        let mut upload = Upload::new(request.info.framing, forward.retry.is_some());
        let mut timers = Timers::new(forward.idle, forward.request_until);
        let mut tried: Vec<Arc<str>> = Vec::new();
        // A retry counts against `max_retries` until its try ends.
        let mut _retrying = None;
        loop {
            request.attempts += 1;
            timers.per_try = forward.retry.and_then(|policy| after(Instant::now(), policy.per_try_timeout));
            let attempt = Box::pin(self.attempt(request, hcm, forward, &mut upload, &mut timers, &tried)).await;
            if let Some(host) = request.host.as_ref().filter(|_| forward.retry.is_some()) {
                tried.push(Arc::clone(&host.label));
            }
            let verdict = self.retry_verdict(request, forward, &upload, &attempt);
            if let Verdict::Again(pause) = verdict {
                match forward.cluster.begin_retry() {
                    Ok(permit) => {
                        _retrying = Some(permit);
                        drop(attempt);
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                    Err(_) => request.flags |= ResponseFlags::UPSTREAM_OVERFLOW,
                }
            }
            if let Verdict::Exhausted = verdict {
                request.flags |= ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
                forward.cluster.stats().inc(cluster::Counter::upstream_rq_retry_limit_exceeded);
            }
            return match attempt {
                Ok(answered) => {
                    if request.attempts > 1 {
                        forward.cluster.stats().inc(cluster::Counter::upstream_rq_retry_success);
                    }
                    Box::pin(self.respond(request, hcm, forward, answered, &mut upload, &mut timers)).await
                }
                Err(failure) => {
                    self.count_failure(request, forward, &failure);
                    let received_all = upload.received_all();
                    self.reply(request, hcm, Reply::from(&failure), Some(forward.levels), received_all).await
                }
            };
        }
    }

    /// One try: host, connection, request up, response head down.
    async fn attempt(
        &mut self,
        request: &mut Request,
        hcm: &HttpConnectionManager,
        forward: &Forward<'_>,
        upload: &mut Upload,
        timers: &mut Timers,
        tried: &[Arc<str>],
    ) -> Result<Answered, Failure> {
        let avoid = forward.retry.filter(|policy| policy.avoid_previous_hosts);
        let target = Target {
            original_dst: Some(self.view.local),
            previous: if avoid.is_some() { tried } else { &[] },
            reselect_attempts: avoid.map_or(0, |policy| policy.host_selection_max_attempts.max(1)),
        };
        // The race of a kept connection is run once, on a new connection; policy does not matter there.
        let mut raced = false;
        loop {
            let host = forward.cluster.pick(&target).map_err(|_| Failure::NoHealthyHost)?;
            request.host = Some(Rc::clone(&host));
            let guard = forward.cluster.begin_request(&host).map_err(|_| Failure::Overflow)?;
            let upstream = match raced || forward.upgrade.is_some() {
                true => forward.cluster.connect(&host).await,
                false => match forward.cluster.reuse(&host) {
                    Some(upstream) => Ok(upstream),
                    None => forward.cluster.acquire(&host).await,
                },
            };
            let upstream = upstream.map_err(Failure::from).inspect_err(|failure| {
                if let Failure::Connect(reason) = failure {
                    request.transport_failure.clone_from(reason);
                }
            })?;
            request.upstream_local = upstream.local_addr();
            let reused = upstream.reused;
            let result = self.exchange_heads(request, hcm, forward, upload, timers, (upstream, guard)).await;
            match result {
                Err(Failure::UpstreamClosed { .. })
                    if reused && !raced && upload.can_replay() && is_idempotent(request.head.method()) =>
                {
                    raced = true;
                }
                result => return result,
            }
        }
    }

    async fn exchange_heads(
        &mut self,
        request: &mut Request,
        hcm: &HttpConnectionManager,
        forward: &Forward<'_>,
        upload: &mut Upload,
        timers: &mut Timers,
        (mut upstream, guard): (Upstream, RequestGuard),
    ) -> Result<Answered, Failure> {
        if forward.host.include_request_attempt_count {
            let count = itoa::Buffer::new().format(request.attempts).to_owned();
            request.head.headers.set(HeaderId::EnvoyAttemptCount, count.as_bytes());
        }
        if matches!(forward.action.host_rewrite, HostRewrite::Auto) && !upstream.host.hostname.is_empty() {
            let name = Arc::clone(&upstream.host.hostname);
            set_host(request, name.as_bytes());
        }
        let mut head = std::mem::take(&mut self.scratch);
        head.clear();
        let connection = match &forward.upgrade {
            Some(protocol) => encode::Connection::Upgrade(protocol),
            None => encode::Connection::Default,
        };
        encode::request(&mut head, &request.head, upstream_framing(request), connection);
        let begun = upload.begin(&head);
        self.scratch = head;
        if !begun {
            return Err(Failure::UpstreamClosed { sent: true });
        }
        let mut answer = Buffer::default();
        let (mut scan, mut interim) = (HeadScan::default(), 0);
        let mut exchange = Exchange {
            connection: self,
            request,
            upload,
            upstream: &mut upstream,
            answer: &mut answer,
            timers,
            route_timeout: forward.timeout,
        };
        let info = poll_fn(|cx| exchange.poll_head(hcm, &mut scan, &mut interim, cx)).await?;
        Ok(Answered { upstream, answer, info, guard })
    }

    /// Whether the policy wants another try, and whether one is left.
    fn retry_verdict(
        &self,
        request: &Request,
        forward: &Forward<'_>,
        upload: &Upload,
        attempt: &Result<Answered, Failure>,
    ) -> Verdict {
        let Some(policy) = forward.retry else { return Verdict::Final };
        let covered = match attempt {
            Ok(_) => retry::covers_response(policy, &request.response),
            Err(failure) => retry::covers_failure(&policy.on, failure),
        };
        if !covered || !upload.can_replay() {
            return Verdict::Final;
        }
        if request.attempts > policy.num_retries {
            return Verdict::Exhausted;
        }
        Verdict::Again(retry::back_off(policy, request.attempts, self.worker.random.next()))
    }

    fn count_failure(&self, request: &Request, forward: &Forward<'_>, failure: &Failure) {
        let stats = forward.cluster.stats();
        match failure {
            Failure::ResponseTimeout => stats.inc(cluster::Counter::upstream_rq_timeout),
            Failure::PerTryTimeout => stats.inc(cluster::Counter::upstream_rq_per_try_timeout),
            Failure::UpstreamClosed { .. } => stats.inc(cluster::Counter::upstream_rq_rx_reset),
            Failure::UpstreamProtocol => stats.inc(cluster::Counter::upstream_cx_protocol_error),
            _ => {}
        }
        if let Some(host) = &request.host {
            host.count_failure(matches!(failure, Failure::ResponseTimeout | Failure::PerTryTimeout));
        }
        if failure.status() != 0 {
            stats.status(failure.status());
            stats.inc(cluster::Counter::upstream_rq_completed);
        }
    }

    /// Response filters, head and body down; the upstream connection back to its pool.
    async fn respond(
        &mut self,
        request: &mut Request,
        hcm: &HttpConnectionManager,
        forward: &Forward<'_>,
        answered: Answered,
        upload: &mut Upload,
        timers: &mut Timers,
    ) -> bool {
        let Answered { mut upstream, mut answer, info, guard } = answered;
        let status = request.response.status;
        self.count_response(request, forward, &upstream.host);
        if status == 101 {
            if forward.upgrade.is_none() {
                let failure = Failure::UpstreamProtocol;
                return self.reply(request, hcm, Reply::from(&failure), Some(forward.levels), true).await;
            }
            return self.switch_protocols(request, hcm, forward.levels, upstream, answer, forward.idle).await;
        }
        self.edit_response(request, hcm, forward);
        timers.per_try = None;
        let to_head = request.head.method() == b"HEAD";
        let framing = downstream_framing(request, info.framing, to_head);
        let close = forward.upgrade.is_some() || self.must_close(request, hcm) || framing == Framing::UntilClose;
        if self.worker.draining.get() {
            self.manager.http.inc(Counter::downstream_cx_drain_close);
        }
        let style = encode::ResponseStyle {
            version: request.head.version,
            framing,
            bodiless: to_head || info.framing == Framing::None,
            connection: connection_header(request.head.version, !close),
            proper_case: hcm.proper_case_response_headers,
        };
        encode::response(&mut self.output, &request.response, style);
        request.response_begun = true;
        request.status = status;
        request.details = "via_upstream".into();
        let mut body = Download::new(info.framing, framing);
        let result = {
            let mut exchange = Exchange {
                connection: self,
                request,
                upload,
                upstream: &mut upstream,
                answer: &mut answer,
                timers,
                route_timeout: forward.timeout,
            };
            poll_fn(|cx| exchange.poll_body(&mut body, cx)).await
        };
        drop(guard);
        let millis = request.started.elapsed().as_millis() as u64;
        forward.cluster.stats().record(cluster::Histogram::upstream_rq_time, millis);
        match result {
            Ok(()) => {
                // An answer before the request's end leaves both connections in the middle of a message.
                let whole = upload.finished && upload.received_all();
                if whole && info.keep_alive && answer.is_empty() {
                    forward.cluster.release(upstream, Instant::now());
                }
                self.linger |= close || !whole;
                whole && !close
            }
            Err(failure) => {
                request.flags |= failure.flags();
                request.details = match failure {
                    Failure::ClientGone => failure.details(),
                    Failure::UpstreamClosed { .. } => {
                        "upstream_reset_after_response_started{connection_termination}".into()
                    }
                    Failure::UpstreamProtocol => "upstream_reset_after_response_started{protocol_error}".into(),
                    other => other.details(),
                };
                false
            }
        }
    }

    fn count_response(&self, request: &Request, forward: &Forward<'_>, host: &Host) {
        let status = request.response.status;
        host.count_response(status);
        let stats = forward.cluster.stats();
        stats.inc(cluster::Counter::upstream_rq_completed);
        stats.status(status);
        stats.inc(match status / 100 {
            1 => cluster::Counter::upstream_rq_1xx,
            2 => cluster::Counter::upstream_rq_2xx,
            3 => cluster::Counter::upstream_rq_3xx,
            4 => cluster::Counter::upstream_rq_4xx,
            _ => cluster::Counter::upstream_rq_5xx,
        });
    }

    fn edit_response(&self, request: &mut Request, hcm: &HttpConnectionManager, forward: &Forward<'_>) {
        let headers = &mut request.response.headers;
        request.head_chunked = headers.contains(HeaderId::TransferEncoding);
        headers.remove_hop_by_hop();
        headers.remove(HeaderId::EnvoyDecoratorOperation);
        // Envoy leaves the time out of answers to upgrades, refused ones too.
        if forward.upgrade.is_none() {
            let answered_in = |at: Instant| at.duration_since(request.received_all.unwrap_or(at)).as_millis();
            let millis = request.answered.map_or(0, answered_in);
            headers.set(HeaderId::EnvoyUpstreamServiceTime, itoa::Buffer::new().format(millis).as_bytes());
        }
        if hcm.always_set_request_id_in_response
            && let Some(id) = request.head.headers.get(HeaderId::RequestId)
        {
            headers.set(HeaderId::RequestId, id);
        }
        if forward.host.include_attempt_count_in_response {
            headers.set(HeaderId::EnvoyAttemptCount, itoa::Buffer::new().format(request.attempts).as_bytes());
        }
        if !forward.levels.is_empty() {
            let values = record(self, request, |record| forward.levels.response_values(record));
            forward.levels.edit_response(&mut request.response.headers, values);
        }
        finish_response(&mut request.response.headers, hcm, false);
    }
}

impl Plan<'_> {
    fn closing(mut self, close: bool) -> Self {
        if let Self::Reply(reply, _) = &mut self {
            reply.close |= close;
        }
        self
    }
}

/// A response head, and the connection it came on.
struct Answered {
    upstream: Upstream,
    answer: Buffer,
    info: ResponseInfo,
    guard: RequestGuard,
}

/// What the retry policy says of a try.
enum Verdict {
    Final,
    Exhausted,
    Again(Duration),
}

/// Path and authority into their normal form; a redirect where the path's slashes are to be unescaped that way.
fn normalize(request: &mut Request, hcm: &HttpConnectionManager) -> Result<Option<Reply>, Failure> {
    if request.head.version == Version::Http10
        && request.head.authority().is_empty()
        && let Some(host) = &hcm.default_host_for_http_10
    {
        request.head.set_authority(host.as_bytes());
    }
    if request.head.path().is_empty() || request.head.path() == b"*" {
        return Ok(None);
    }
    let mut redirect = false;
    if hcm.escaped_slashes != EscapedSlashes::KeepUnchanged && path::has_escaped_slash(request.head.path()) {
        if hcm.escaped_slashes == EscapedSlashes::Reject {
            return Err(Failure::Path);
        }
        redirect = hcm.escaped_slashes == EscapedSlashes::UnescapeAndRedirect;
        if let Some(unescaped) = path::unescape_slashes(request.head.path()) {
            request.head.set_path(&unescaped);
        }
    }
    if hcm.normalize_path
        && let Some(normal) = path::normalize(request.head.path()).map_err(|_| Failure::Path)?
    {
        request.head.set_path(&normal);
    }
    if hcm.merge_slashes
        && let Some(merged) = path::merge_slashes(request.head.path())
    {
        request.head.set_path(&merged);
    }
    let location = redirect.then(|| request.head.path().to_vec());
    Ok(location.map(|location| Reply::redirect(307, location, "path_normalization_redirect")))
}

fn select_route<'c>(
    request: &Request,
    hcm: &'c HttpConnectionManager,
    config: &'c Config,
    random: u64,
) -> Option<(&'c RouteTable, RouteSelection<'c>)> {
    let table: &RouteTable = match &hcm.routes {
        RouteSource::Static(table) => table,
        RouteSource::Rds(name) => config.routes.get(name)?,
    };
    Some((table, table.select(&request.view(), random)))
}

/// Whether an upgrade may pass: the route's word, else the connection manager's.
fn allowed(hcm: &HttpConnectionManager, action: Option<&ForwardAction>, protocol: &[u8]) -> bool {
    let said = action.and_then(|action| action.upgrades.iter().find(|(name, _)| name.as_bytes() == protocol));
    said.map_or_else(|| hcm.upgrades.iter().any(|name| name.as_bytes() == protocol), |(_, on)| *on)
}

/// Path and host as the route wants them, with the originals beside them.
fn rewrite(request: &mut Request, route: &Route, action: &ForwardAction, leg_host: Option<&str>) {
    if action.prefix_rewrite.is_some() || action.regex_rewrite.is_some() {
        let original = request.head.path().to_vec();
        let path = action.rewrite_path(&route.matches, &original);
        request.head.set_path(&path);
        request.head.headers.set(HeaderId::EnvoyOriginalPath, &original);
    }
    let literal = match &action.host_rewrite {
        HostRewrite::Literal(host) => Some(&**host),
        HostRewrite::None | HostRewrite::Auto => None,
    };
    if action.append_x_forwarded_host && (literal.is_some() || leg_host.is_some()) {
        let authority = request.head.authority().to_vec();
        request.head.headers.append_to_list(HeaderId::ForwardedHost, &authority);
    }
    if let Some(host) = leg_host.or(literal) {
        set_host(request, host.as_bytes());
    }
}

fn set_host(request: &mut Request, host: &[u8]) {
    if request.head.authority() != host {
        let original = request.head.authority().to_vec();
        request.head.headers.set_name(b"x-envoy-original-host", &original);
        request.head.set_authority(host);
    }
}

/// A method that usually has a body says so when it has none (RFC 9110 section 8.6).
fn upstream_framing(request: &Request) -> Framing {
    match request.info.framing {
        Framing::None if matches!(request.head.method(), b"POST" | b"PUT" | b"PATCH") && !request.info.upgrade => {
            Framing::Length(0)
        }
        framing => framing,
    }
}

/// How the client gets the body: chunked where its end would otherwise be the connection's, until the close for HTTP/1.0
/// clients, who do not know chunks.
fn downstream_framing(request: &Request, from: Framing, to_head: bool) -> Framing {
    if to_head {
        return if request.head_chunked { Framing::Chunked } else { Framing::None };
    }
    match (from, request.head.version) {
        (Framing::Chunked | Framing::UntilClose, Version::Http11) => Framing::Chunked,
        (Framing::Chunked | Framing::UntilClose, Version::Http10) => Framing::UntilClose,
        (framing, _) => framing,
    }
}

/// RFC 9110 section 9.2.2.
fn is_idempotent(method: &[u8]) -> bool {
    matches!(method, b"GET" | b"HEAD" | b"OPTIONS" | b"TRACE" | b"PUT" | b"DELETE")
}

/// A connection as its connection manager counts it.
struct Counted {
    manager: Rc<HttpManager>,
    tls: bool,
    since: Instant,
}

impl Counted {
    fn new(manager: &Rc<HttpManager>, tls: bool) -> Self {
        let stats = &manager.http;
        stats.inc(Counter::downstream_cx_total);
        stats.inc(Counter::downstream_cx_http1_total);
        stats.shift(Gauge::downstream_cx_active, 1);
        stats.shift(Gauge::downstream_cx_http1_active, 1);
        if tls {
            stats.inc(Counter::downstream_cx_ssl_total);
            stats.shift(Gauge::downstream_cx_ssl_active, 1);
        }
        Self { manager: Rc::clone(manager), tls, since: Instant::now() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let stats = &self.manager.http;
        stats.inc(Counter::downstream_cx_destroy);
        stats.shift(Gauge::downstream_cx_active, -1);
        stats.shift(Gauge::downstream_cx_http1_active, -1);
        if self.tls {
            stats.shift(Gauge::downstream_cx_ssl_active, -1);
        }
        stats.record(Histogram::downstream_cx_length_ms, self.since.elapsed().as_millis() as u64);
    }
}
