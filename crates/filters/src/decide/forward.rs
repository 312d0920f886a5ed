//! Forwarding to a cluster: the request's time limits, retries, and head for the upstream.

use std::time::Duration;

use evenkeel_base::grpc::parse_timeout;
use evenkeel_http::{HeaderId, Headers, RequestHead, RequestInfo};
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::route::{ForwardAction, GrpcTimeout, HostRewrite, VirtualHost};

use super::retry::{Policy, RequestedRetry, announce_timeout, effective};
use super::{Levels, Matched, Stream, Tunnel};

/// The decision to forward a request.
pub struct Forward<'c, C> {
    /// Edits of the response's head.
    pub levels: Levels<'c>,
    /// The virtual host.
    pub host: &'c VirtualHost,
    /// The route's action.
    pub action: &'c ForwardAction,
    /// The effective retry policy.
    pub retry: Option<Policy<'c>>,
    /// The request's time limits.
    pub limits: Limits,
    /// The cluster.
    pub to: C,
    /// The match, for the cluster's HTTP filters.
    pub matched: Matched<'c>,
}

impl<C> Forward<'_, C> {
    /// Whether CONNECT ends here, so that the upstream gets the tunnel's bytes only.
    pub fn terminates_connect(&self, tunnel: Option<&Tunnel>) -> bool {
        self.action.connect_terminates && tunnel == Some(&Tunnel::Connect)
    }
}

/// Time limits of a request. `None`: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// From the end of the request to the end of the response.
    pub timeout: Option<Duration>,
    /// From the request's head to the end of the response (`max_stream_duration`).
    pub longest: Option<Duration>,
    /// Without activity in either direction.
    pub idle: Option<Duration>,
    /// From the request's head to its end.
    pub request: Option<Duration>,
}

/// Finds the cluster and prepares the head for the upstream. `None` if there is no such cluster.
pub(super) fn forward<'c, S: Stream<'c>>(
    manager: &HttpConnectionManager,
    stream: &mut S,
    matched: Matched<'c>,
    action: &'c ForwardAction,
) -> Option<Box<Forward<'c, S::Cluster>>> {
    let Matched { host, entry, .. } = matched;
    let (levels, entry) = (matched.levels(), entry?);
    let to = stream.cluster(action, entry)?;
    let parts = stream.parts();
    let by_header = RequestedRetry::take(&mut parts.head.headers);
    let configured = action.retry.as_deref().or(host.retry.as_deref());
    let retry = effective(configured, by_header.as_ref(), &parts.view());
    let asked = action.grpc_timeout.filter(|_| *parts.grpc || parts.made_grpc);
    let mut limits = limits(manager, action, asked, by_header.as_ref(), &parts.head.headers);
    // A per-try timeout that is not shorter than the whole timeout has no effect.
    let retry = retry.map(|policy| match policy.per_try_timeout.zip(limits.timeout) {
        Some((per_try, all)) if per_try >= all => policy.changed(|policy| policy.per_try_timeout = None),
        _ => policy,
    });
    if let Some(timeout) = retry.as_ref().and_then(|policy| policy.per_try_timeout).or(limits.timeout) {
        let to_grpc = asked.is_some_and(|asked| asked.as_route_timeout);
        announce_timeout(&mut parts.head.headers, timeout, to_grpc, !manager.suppress_envoy_headers);
    }
    if parts.tunnel.is_some() {
        limits.timeout = None;
    }
    forget_expectation(parts.head, parts.info, manager);
    stream.limited(&limits, retry.as_ref());
    if !levels.is_empty() {
        stream.edit_request(levels);
    }
    rewrite(stream.parts().head, matched, action, manager);
    Some(Box::new(Forward { levels, host, action, retry, limits, to, matched }))
}

fn limits(
    manager: &HttpConnectionManager,
    action: &ForwardAction,
    asked: Option<GrpcTimeout>,
    by_header: Option<&RequestedRetry>,
    headers: &Headers,
) -> Limits {
    let positive = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
    let timeout = match asked {
        _ if by_header.is_some_and(|header| header.timeout.is_some()) => {
            positive(by_header.and_then(|header| header.timeout))
        }
        Some(asked) if asked.as_route_timeout => grpc_timeout(headers, asked),
        _ => positive(action.timeout),
    };
    let longest = match asked.filter(|asked| !asked.as_route_timeout) {
        Some(asked) => grpc_timeout(headers, asked).or(action.max_stream_duration),
        None => action.max_stream_duration,
    };
    Limits {
        timeout,
        longest: longest.or(manager.max_stream_duration),
        idle: positive(action.idle_timeout.or(manager.stream_idle_timeout)).filter(|limit| *limit != Duration::MAX),
        request: positive(manager.request_timeout),
    }
}

/// Returns the timeout that a gRPC client has set, as far as the route allows. `None`: no limit.
fn grpc_timeout(headers: &Headers, route: GrpcTimeout) -> Option<Duration> {
    let asked = headers.find(b"grpc-timeout").and_then(parse_timeout).filter(|asked| !asked.is_zero());
    let asked = asked.map(|asked| if route.offset < asked { asked - route.offset } else { asked });
    match (asked, route.most) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, most) => asked.or(most.filter(|_| route.as_route_timeout)),
    }
}

/// Removes `expect: 100-continue`, unless the upstream should send the 100 response. HTTP/1.0 does not know it.
fn forget_expectation(head: &mut RequestHead, info: &RequestInfo, manager: &HttpConnectionManager) {
    let upstreams = manager.proxy_100_continue && info.expect_continue;
    let expected = head.headers.get(HeaderId::Expect);
    if !upstreams && expected.is_some_and(|what| what.eq_ignore_ascii_case(b"100-continue")) {
        head.headers.remove(HeaderId::Expect);
    }
}

/// Rewrites path and host as the route says, keeping the originals in headers.
fn rewrite(head: &mut RequestHead, matched: Matched<'_>, action: &ForwardAction, manager: &HttpConnectionManager) {
    let entry_host = matched.entry.and_then(|entry| entry.host_rewrite.as_deref());
    if action.prefix_rewrite.is_some() || action.regex_rewrite.is_some() {
        let original = head.path().to_vec();
        let path = action.rewrite_path(&matched.route.matches, &original);
        head.set_path(&path);
        if !manager.suppress_envoy_headers {
            head.headers.set(HeaderId::EnvoyOriginalPath, &original);
        }
    }
    let literal = match &action.host_rewrite {
        HostRewrite::Literal(host) => Some(&**host),
        HostRewrite::None | HostRewrite::Auto => None,
    };
    if action.append_x_forwarded_host && (literal.is_some() || entry_host.is_some()) {
        let authority = head.authority().to_vec();
        head.headers.append_to_list(HeaderId::ForwardedHost, &authority);
    }
    if let Some(host) = entry_host.or(literal) {
        set_host(head, host.as_bytes(), !manager.suppress_envoy_headers);
    }
}

/// Replaces the authority; the original is kept in a header of Envoy's if wanted.
pub fn set_host(head: &mut RequestHead, host: &[u8], keeps_original: bool) {
    if head.authority() != host {
        if keeps_original {
            let original = head.authority().to_vec();
            head.headers.set_name(b"x-envoy-original-host", &original);
        }
        head.set_authority(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_read_and_bounded() {
        let route = |most: u64, offset: u64| GrpcTimeout {
            as_route_timeout: true,
            most: (most > 0).then(|| Duration::from_millis(most)),
            offset: Duration::from_millis(offset),
        };
        let check = |header: &str, route: GrpcTimeout, millis: Option<u64>| {
            let mut headers = Headers::default();
            if !header.is_empty() {
                headers.append(b"grpc-timeout", header.as_bytes());
            }
            assert_eq!(grpc_timeout(&headers, route), millis.map(Duration::from_millis), "{header:?} {route:?}");
        };
        check("5S", route(0, 0), Some(5_000));
        check("2M", route(0, 0), Some(120_000));
        check("250m", route(0, 50), Some(200));
        check("250m", route(0, 300), Some(250));
        check("1H", route(10_000, 0), Some(10_000));
        check("", route(10_000, 0), Some(10_000));
        check("", route(0, 0), None);
        check("", GrpcTimeout { as_route_timeout: false, ..route(10_000, 0) }, None);
        for wrong in ["5", "S", "-5S", "123456789S", "5s", " 5S"] {
            check(wrong, route(0, 0), None);
        }
    }
}
