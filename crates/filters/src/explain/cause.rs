//! Causes: why a proxy failed a request, from its record; what a phase of a slow one means; whose fault either is.

use serde::Serialize;

use super::query::{PhaseKind, RecentRequest};

/// Who is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Fault {
    /// Whoever sent the request.
    Client,
    /// The configuration: a rule, a limit or a policy decided so.
    Configuration,
    /// The proxy that kept the record: it is busy.
    Proxy,
    /// The control plane, which was asked for configuration.
    ControlPlane,
    /// A service that a filter asks.
    Service,
    /// The network, or a connection over it.
    Network,
    /// The server's program.
    Server,
    /// Nobody can tell.
    Unknown,
}

/// Why a request failed, or was slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the words that users see, in `Cause::title`")]
pub enum Cause {
    NoRoute,
    NoCluster,
    DeniedByPolicy,
    InvalidToken,
    DeniedByService,
    FaultInjected,
    RateLimited,
    NoHealthyEndpoint,
    CircuitBreaker,
    ConnectionRefused,
    ConnectTimeout,
    ConnectFailed,
    TlsFailure,
    ConnectionReset,
    ProtocolError,
    RouteTimeout,
    TryTimeout,
    IdleTimeout,
    DurationTimeout,
    DroppedOverload,
    ProxyOverload,
    ProxyLoop,
    InvalidRequest,
    ClientLeft,
    ServerError,
    Slow(PhaseKind),
    Throttled,
    Network,
    Other,
}

impl Cause {
    /// The cause in a few words.
    pub fn title(self) -> &'static str {
        match self {
            Self::NoRoute => "no route matches",
            Self::NoCluster => "the route's destination does not exist",
            Self::DeniedByPolicy => "denied by an AuthorizationPolicy",
            Self::InvalidToken => "no valid token",
            Self::DeniedByService => "denied by an authorization service",
            Self::FaultInjected => "a fault was injected",
            Self::RateLimited => "rate limited",
            Self::NoHealthyEndpoint => "no healthy endpoint",
            Self::CircuitBreaker => "a circuit breaker is open",
            Self::ConnectionRefused => "connection refused",
            Self::ConnectTimeout => "connecting took too long",
            Self::ConnectFailed => "connecting failed",
            Self::TlsFailure => "the TLS handshake failed",
            Self::ConnectionReset => "the connection was closed or reset",
            Self::ProtocolError => "the response is not valid HTTP",
            Self::RouteTimeout => "the route's timeout",
            Self::TryTimeout => "the timeout of each try",
            Self::IdleTimeout => "nothing moved for too long",
            Self::DurationTimeout => "the stream lasted too long",
            Self::DroppedOverload => "dropped as the control plane asks",
            Self::ProxyOverload => "the proxy is overloaded",
            Self::ProxyLoop => "the request comes back to the proxy that forwards it",
            Self::InvalidRequest => "the request is invalid",
            Self::ClientLeft => "the client left",
            Self::ServerError => "the application answered with an error",
            Self::Slow(kind) => slow(kind),
            Self::Throttled => "slow: the CPU limit of a proxy",
            Self::Network => "slow between the proxies",
            Self::Other => "another cause",
        }
    }

    /// Who is at fault.
    pub fn fault(self) -> Fault {
        match self {
            Self::NoRoute
            | Self::NoCluster
            | Self::DeniedByPolicy
            | Self::FaultInjected
            | Self::RateLimited
            | Self::CircuitBreaker
            | Self::DroppedOverload
            | Self::ProxyLoop
            | Self::Throttled
            | Self::DurationTimeout => Fault::Configuration,
            Self::InvalidToken | Self::InvalidRequest | Self::ClientLeft => Fault::Client,
            Self::DeniedByService => Fault::Service,
            Self::NoHealthyEndpoint
            | Self::ConnectionRefused
            | Self::ConnectionReset
            | Self::ProtocolError
            | Self::RouteTimeout
            | Self::TryTimeout
            | Self::ServerError => Fault::Server,
            Self::ConnectTimeout | Self::ConnectFailed | Self::TlsFailure | Self::Network => Fault::Network,
            Self::ProxyOverload => Fault::Proxy,
            Self::Slow(kind) => fault_of(kind),
            Self::IdleTimeout | Self::Other => Fault::Unknown,
        }
    }
}

fn slow(kind: PhaseKind) -> &'static str {
    match kind {
        PhaseKind::Proxy => "slow: the proxy itself",
        PhaseKind::Filter => "slow: a filter",
        PhaseKind::Configuration => "slow: held for configuration",
        PhaseKind::EarlierTries => "slow: tries that failed",
        PhaseKind::Pool => "slow: waited for a connection of the pool",
        PhaseKind::Connect => "slow: connecting",
        PhaseKind::Tls => "slow: the TLS handshake",
        PhaseKind::RequestBody => "slow: the client sends its request",
        PhaseKind::Endpoint => "slow: the application",
        PhaseKind::ResponseBody => "slow: the application sends its response",
        PhaseKind::ClientReads => "slow: the client reads the response",
    }
}

fn fault_of(kind: PhaseKind) -> Fault {
    match kind {
        PhaseKind::Proxy => Fault::Proxy,
        PhaseKind::Filter => Fault::Service,
        PhaseKind::Configuration => Fault::ControlPlane,
        PhaseKind::Pool => Fault::Configuration,
        PhaseKind::Connect | PhaseKind::Tls => Fault::Network,
        PhaseKind::RequestBody | PhaseKind::ClientReads => Fault::Client,
        PhaseKind::EarlierTries | PhaseKind::Endpoint | PhaseKind::ResponseBody => Fault::Server,
    }
}

/// Whether a request failed, or was refused.
pub fn has_failed(request: &RecentRequest) -> bool {
    let is_refused = request.status >= 400 && request.details != VIA_UPSTREAM;
    let is_cut = request.status < 400 && flags(request).any(|flag| BROKEN.contains(&flag));
    request.status == 0 || request.status >= 500 || is_refused || is_cut
}

/// The details of a response that came from the endpoint.
pub const VIA_UPSTREAM: &str = "via_upstream";
/// The flags of a response that was cut off.
const BROKEN: [&str; 8] = ["UC", "UR", "UPE", "UT", "SI", "DC", "DR", "DPE"];

fn flags(request: &RecentRequest) -> impl Iterator<Item = &str> {
    request.flags.split(',')
}

/// Why a proxy failed a request.
pub fn of_failure(request: &RecentRequest) -> Cause {
    let details = &*request.details;
    let by_details = BY_DETAILS.iter().find(|(prefix, _)| details.starts_with(prefix));
    if let Some((_, cause)) = by_details {
        return *cause;
    }
    let by_flag = BY_FLAG.iter().find(|(flag, _)| flags(request).any(|own| own == *flag));
    match by_flag.map(|(_, cause)| *cause) {
        Some(Cause::ConnectFailed) => of_connecting(request),
        Some(cause) => cause,
        None if details == VIA_UPSTREAM => Cause::ServerError,
        None if request.status == 0 => Cause::ConnectionReset,
        None => Cause::Other,
    }
}

/// Envoy's details that say more than its flags, and how they begin.
const BY_DETAILS: [(&str, Cause); 17] = [
    ("rbac_access_denied", Cause::DeniedByPolicy),
    ("jwt_authn_access_denied", Cause::InvalidToken),
    ("ext_authz", Cause::DeniedByService),
    ("fault_filter_abort", Cause::FaultInjected),
    ("route_not_found", Cause::NoRoute),
    ("cluster_not_found", Cause::NoCluster),
    ("no_healthy_upstream", Cause::NoHealthyEndpoint),
    ("upstream_per_try", Cause::TryTimeout),
    ("response_timeout", Cause::RouteTimeout),
    ("stream_idle_timeout", Cause::IdleTimeout),
    ("max_duration_timeout", Cause::DurationTimeout),
    ("proxy_loop", Cause::ProxyLoop),
    ("downstream_remote_disconnect", Cause::ClientLeft),
    ("http2.remote_re", Cause::ClientLeft),
    ("request_overall_timeout", Cause::Slow(PhaseKind::RequestBody)),
    ("request_header_timeout", Cause::Slow(PhaseKind::RequestBody)),
    ("stream_flush_timeout", Cause::Slow(PhaseKind::ClientReads)),
];

/// Envoy's flags. Those of a try come before those of retries.
const BY_FLAG: [(&str, Cause); 17] = [
    ("UO", Cause::CircuitBreaker),
    ("UF", Cause::ConnectFailed),
    ("UC", Cause::ConnectionReset),
    ("UR", Cause::ConnectionReset),
    ("UPE", Cause::ProtocolError),
    ("UH", Cause::NoHealthyEndpoint),
    ("UT", Cause::RouteTimeout),
    ("SI", Cause::IdleTimeout),
    ("NR", Cause::NoRoute),
    ("NC", Cause::NoCluster),
    ("FI", Cause::FaultInjected),
    ("RL", Cause::RateLimited),
    ("UAEX", Cause::DeniedByService),
    ("OM", Cause::ProxyOverload),
    ("DO", Cause::DroppedOverload),
    ("DPE", Cause::InvalidRequest),
    ("DC", Cause::ClientLeft),
];

/// Why connecting failed.
fn of_connecting(request: &RecentRequest) -> Cause {
    let reason = format!("{} {}", request.transport_failure, request.details).to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| reason.contains(word));
    match () {
        () if has(&["refused"]) => Cause::ConnectionRefused,
        () if has(&["tls_error", "ssl"]) => Cause::TlsFailure,
        () if has(&["connection_timeout", "timed out"]) => Cause::ConnectTimeout,
        () => Cause::ConnectFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_causes() {
        let check = |status: u16, flags: &str, details: &str, expected: Cause| {
            let (flags, details) = (flags.to_owned(), details.to_owned());
            let request = RecentRequest { status, flags, details, ..RecentRequest::default() };
            assert!(has_failed(&request), "{request:?}");
            assert_eq!(of_failure(&request), expected, "{request:?}");
        };
        let reset = |reason: &str| format!("upstream_reset_before_response_started{{{reason}}}");
        check(404, "NR", "route_not_found", Cause::NoRoute);
        check(503, "NC", "cluster_not_found", Cause::NoCluster);
        check(403, "", "rbac_access_denied_matched_policy[none]", Cause::DeniedByPolicy);
        check(401, "", "jwt_authn_access_denied{Jwt_is_missing}", Cause::InvalidToken);
        check(403, "UAEX", "ext_authz_denied", Cause::DeniedByService);
        check(503, "FI", "fault_filter_abort", Cause::FaultInjected);
        check(429, "RL", "local_rate_limited", Cause::RateLimited);
        check(503, "UH", "no_healthy_upstream", Cause::NoHealthyEndpoint);
        check(503, "UO", &reset("overflow"), Cause::CircuitBreaker);
        check(
            503,
            "UF",
            &reset("remote_connection_failure|delayed_connect_error:_Connection_refused"),
            Cause::ConnectionRefused,
        );
        check(503, "UF,URX", &reset("connection_timeout"), Cause::ConnectTimeout);
        check(503, "UF", &reset("remote_connection_failure|TLS_error:_x"), Cause::TlsFailure);
        check(503, "UF", &reset("remote_connection_failure|No_route_to_host"), Cause::ConnectFailed);
        check(503, "UC", &reset("connection_termination"), Cause::ConnectionReset);
        check(200, "UC", "upstream_reset_after_response_started{connection_termination}", Cause::ConnectionReset);
        check(502, "UPE", &reset("protocol_error"), Cause::ProtocolError);
        check(504, "UT", "response_timeout", Cause::RouteTimeout);
        check(504, "UT", "upstream_per_try_timeout", Cause::TryTimeout);
        check(0, "DC", "downstream_remote_disconnect", Cause::ClientLeft);
        check(0, "DR", "http2.remote_reset", Cause::ClientLeft);
        check(500, "", "via_upstream", Cause::ServerError);
        check(503, "OM", "overload", Cause::ProxyOverload);
        check(400, "DPE", "http1.codec_error", Cause::InvalidRequest);
    }

    #[test]
    fn what_the_application_refuses_is_no_failure() {
        let check = |status: u16, details: &str, expected: bool| {
            let request = RecentRequest { status, details: details.to_owned(), ..RecentRequest::default() };
            assert_eq!(has_failed(&request), expected, "{status} {details}");
        };
        check(200, VIA_UPSTREAM, false);
        check(404, VIA_UPSTREAM, false);
        check(404, "route_not_found", true);
        check(500, VIA_UPSTREAM, true);
        check(0, "", true);
    }
}
