//! Envoy's response flags: what went wrong with a request or connection, for logs and statistics.
//! Source: Envoy's access log documentation, `%RESPONSE_FLAGS%`.

use std::ops::{BitOr, BitOrAssign};

/// A set of response flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponseFlags(u32);

macro_rules! flags {
    ($($bit:literal $constant:ident $short:literal $long:literal $doc:literal;)*) => {
        impl ResponseFlags {
            $(#[doc = $doc] pub const $constant: Self = Self(1 << $bit);)*
        }
        /// Bit, short name, long name; in the order Envoy prints them.
        const NAMES: &[(ResponseFlags, &str, &str)] = &[$((ResponseFlags::$constant, $short, $long),)*];
    };
}

flags! {
    0 NO_HEALTHY_UPSTREAM "UH" "NoHealthyUpstream" "No healthy host in the cluster; 503.";
    1 UPSTREAM_CONNECTION_FAILURE "UF" "UpstreamConnectionFailure" "Connecting upstream failed; 503.";
    2 UPSTREAM_OVERFLOW "UO" "UpstreamOverflow" "A circuit breaker is open; 503.";
    3 NO_ROUTE_FOUND "NR" "NoRouteFound" "No route, or no filter chain; 404.";
    4 UPSTREAM_REQUEST_TIMEOUT "UT" "UpstreamRequestTimeout" "The upstream took too long; 504.";
    5 LOCAL_RESET "LR" "LocalReset" "Reset by the proxy; 503.";
    6 UPSTREAM_REMOTE_RESET "UR" "UpstreamRemoteReset" "Reset by the upstream; 503.";
    7 UPSTREAM_CONNECTION_TERMINATION "UC" "UpstreamConnectionTermination" "The upstream closed the connection; 503.";
    8 RATE_LIMITED "RL" "RateLimited" "Rate limited; 429.";
    9 UNAUTHORIZED_EXTERNAL_SERVICE "UAEX" "UnauthorizedExternalService" "Denied by external authorization; 403.";
    10 DOWNSTREAM_CONNECTION_TERMINATION "DC" "DownstreamConnectionTermination" "The client left.";
    11 UPSTREAM_RETRY_LIMIT_EXCEEDED "URX" "UpstreamRetryLimitExceeded" "All retries or connect attempts failed.";
    12 STREAM_IDLE_TIMEOUT "SI" "StreamIdleTimeout" "The stream was idle for too long; 408 or 504.";
    13 DOWNSTREAM_PROTOCOL_ERROR "DPE" "DownstreamProtocolError" "The client broke the protocol.";
    14 UPSTREAM_PROTOCOL_ERROR "UPE" "UpstreamProtocolError" "The upstream broke the protocol; 502.";
    15 UPSTREAM_MAX_STREAM_DURATION_REACHED "UMSDR" "UpstreamMaxStreamDurationReached" "The stream's longest life ended.";
    16 NO_CLUSTER_FOUND "NC" "NoClusterFound" "The route's cluster does not exist; 503.";
    17 OVERLOAD_MANAGER "OM" "OverloadManagerTerminated" "Refused to protect the proxy.";
    18 DNS_RESOLUTION_FAILED "DF" "DnsResolutionFailed" "A name did not resolve; 503.";
    19 DURATION_TIMEOUT "DT" "DurationTimeout" "The connection's longest life ended.";
    20 DELAY_INJECTED "DI" "DelayInjected" "Delayed by fault injection.";
    21 FAULT_INJECTED "FI" "FaultInjected" "Aborted by fault injection.";
    22 INVALID_ENVOY_REQUEST_HEADERS "IH" "InvalidEnvoyRequestHeaders" "A strictly checked header was invalid; 400.";
    23 FAILED_LOCAL_HEALTH_CHECK "LH" "FailedLocalHealthCheck" "The local health check failed; 503.";
    24 DOWNSTREAM_REMOTE_RESET "DR" "DownstreamRemoteReset" "The client reset the stream.";
    25 DROP_OVERLOAD "DO" "DropOverload" "Refused because the control plane has a share refused; 503.";
    26 UNCONDITIONAL_DROP_OVERLOAD "UDO" "UnconditionalDropOverload" "Refused because the control plane has all refused; 503.";
}

impl ResponseFlags {
    /// No flag.
    pub const NONE: Self = Self(0);

    /// No flag is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All of `other`'s flags are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The flag of a short name.
    pub fn from_short_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, short, _)| *short == name).map(|(flag, _, _)| *flag)
    }

    /// Short names in Envoy's order: `UH`.
    pub fn short_names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter(move |(flag, _, _)| self.contains(*flag)).map(|(_, short, _)| *short)
    }

    /// Long names in Envoy's order: `NoHealthyUpstream`.
    pub fn long_names(self) -> impl Iterator<Item = &'static str> {
        NAMES.iter().filter(move |(flag, _, _)| self.contains(*flag)).map(|(_, _, long)| *long)
    }
}

impl BitOr for ResponseFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for ResponseFlags {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_bits_are_distinct() {
        let mut seen = ResponseFlags::NONE;
        for (flag, short, _) in NAMES {
            assert_eq!(ResponseFlags::from_short_name(short), Some(*flag));
            assert!(!seen.contains(*flag), "{short} shares its bit");
            seen |= *flag;
        }
        let both = ResponseFlags::UPSTREAM_CONNECTION_FAILURE | ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED;
        assert_eq!(both.short_names().collect::<Vec<_>>(), ["UF", "URX"]);
        assert_eq!(both.long_names().last(), Some("UpstreamRetryLimitExceeded"));
    }
}
