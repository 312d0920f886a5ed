//! Envoy's response flags: what went wrong with a request or connection, for logs and statistics.
//! Source: Envoy's access log documentation, `%RESPONSE_FLAGS%`.

use std::ops::{BitOr, BitOrAssign};

/// Response flags in the order they were set, which is the order Envoy prints them in. The flags' numbers are packed, 5
/// bits each, the first in the lowest bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResponseFlags(u64);

/// Bits per flag number.
const NUMBER_BITS: u32 = 5;
/// Maximum number of flags in one value. No request comes near; further ones are dropped.
const MAX_FLAGS: u32 = u64::BITS / NUMBER_BITS;

macro_rules! flags {
    ($($number:literal $constant:ident $short:literal $long:literal $doc:literal;)*) => {
        impl ResponseFlags {
            $(#[doc = $doc] pub const $constant: Self = Self($number);)*
        }
        /// Flag, short name, long name.
        const NAMES: &[(ResponseFlags, &str, &str)] = &[$((ResponseFlags::$constant, $short, $long),)*];
    };
}

flags! {
    1 NO_HEALTHY_UPSTREAM "UH" "NoHealthyUpstream" "No healthy host in the cluster; 503.";
    2 UPSTREAM_CONNECTION_FAILURE "UF" "UpstreamConnectionFailure" "Connecting upstream failed; 503.";
    3 UPSTREAM_OVERFLOW "UO" "UpstreamOverflow" "A circuit breaker is open; 503.";
    4 NO_ROUTE_FOUND "NR" "NoRouteFound" "No route, or no filter chain; 404.";
    5 UPSTREAM_REQUEST_TIMEOUT "UT" "UpstreamRequestTimeout" "The upstream took too long; 504.";
    6 LOCAL_RESET "LR" "LocalReset" "Reset by the proxy; 503.";
    7 UPSTREAM_REMOTE_RESET "UR" "UpstreamRemoteReset" "Reset by the upstream; 503.";
    8 UPSTREAM_CONNECTION_TERMINATION "UC" "UpstreamConnectionTermination" "The upstream closed the connection; 503.";
    9 RATE_LIMITED "RL" "RateLimited" "Rate limited; 429.";
    10 UNAUTHORIZED_EXTERNAL_SERVICE "UAEX" "UnauthorizedExternalService" "Denied by external authorization; 403.";
    11 DOWNSTREAM_CONNECTION_TERMINATION "DC" "DownstreamConnectionTermination" "The client left.";
    12 UPSTREAM_RETRY_LIMIT_EXCEEDED "URX" "UpstreamRetryLimitExceeded" "All retries or connect attempts failed.";
    13 STREAM_IDLE_TIMEOUT "SI" "StreamIdleTimeout" "The stream was idle for too long; 408 or 504.";
    14 DOWNSTREAM_PROTOCOL_ERROR "DPE" "DownstreamProtocolError" "The client broke the protocol.";
    15 UPSTREAM_PROTOCOL_ERROR "UPE" "UpstreamProtocolError" "The upstream broke the protocol; 502.";
    16 UPSTREAM_MAX_STREAM_DURATION_REACHED "UMSDR" "UpstreamMaxStreamDurationReached" "The stream's longest life ended.";
    17 NO_CLUSTER_FOUND "NC" "NoClusterFound" "The route's cluster does not exist; 503.";
    18 OVERLOAD_MANAGER "OM" "OverloadManagerTerminated" "Refused to protect the proxy.";
    19 DNS_RESOLUTION_FAILED "DF" "DnsResolutionFailed" "A name did not resolve; 503.";
    20 DURATION_TIMEOUT "DT" "DurationTimeout" "The connection's longest life ended.";
    21 DELAY_INJECTED "DI" "DelayInjected" "Delayed by fault injection.";
    22 FAULT_INJECTED "FI" "FaultInjected" "Aborted by fault injection.";
    23 INVALID_ENVOY_REQUEST_HEADERS "IH" "InvalidEnvoyRequestHeaders" "A strictly checked header was invalid; 400.";
    24 FAILED_LOCAL_HEALTH_CHECK "LH" "FailedLocalHealthCheck" "The local health check failed; 503.";
    25 DOWNSTREAM_REMOTE_RESET "DR" "DownstreamRemoteReset" "The client reset the stream.";
    26 DROP_OVERLOAD "DO" "DropOverload" "Refused because the control plane has a share refused; 503.";
    27 UNCONDITIONAL_DROP_OVERLOAD "UDO" "UnconditionalDropOverload" "Refused because the control plane has all refused; 503.";
    28 NO_FILTER_CONFIG_FOUND "NFCF" "NoFilterConfigFound" "The configuration of a filter has not arrived; 500.";
    29 RATE_LIMIT_SERVICE_ERROR "RLSE" "RateLimitServiceError" "The rate limit service failed, and the filter refuses then.";
}

impl ResponseFlags {
    /// No flag.
    pub const NONE: Self = Self(0);

    /// Whether no flag is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other`'s flags are set.
    pub fn contains(self, other: Self) -> bool {
        other.each().all(|flag| self.each().any(|set| set == flag))
    }

    /// Iterates over the flags.
    fn each(self) -> impl Iterator<Item = Self> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let number = rest & ((1 << NUMBER_BITS) - 1);
            rest >>= NUMBER_BITS;
            (number != 0).then_some(Self(number))
        })
    }

    /// The flag with a short name.
    pub fn from_short_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(_, short, _)| *short == name).map(|(flag, _, _)| *flag)
    }

    /// A number that differs for all sets.
    pub(crate) fn number(self) -> u64 {
        self.0
    }

    /// Short names: `UH`.
    pub fn short_names(self) -> impl Iterator<Item = &'static str> {
        self.each().filter_map(|set| NAMES.iter().find(|(flag, _, _)| *flag == set)).map(|(_, short, _)| *short)
    }

    /// Long names: `NoHealthyUpstream`.
    pub fn long_names(self) -> impl Iterator<Item = &'static str> {
        self.each().filter_map(|set| NAMES.iter().find(|(flag, _, _)| *flag == set)).map(|(_, _, long)| *long)
    }
}

impl BitOr for ResponseFlags {
    type Output = Self;
    fn bitor(mut self, other: Self) -> Self {
        self |= other;
        self
    }
}

impl BitOrAssign for ResponseFlags {
    fn bitor_assign(&mut self, other: Self) {
        for flag in other.each() {
            let length = (u64::BITS - self.0.leading_zeros()).div_ceil(NUMBER_BITS);
            if length < MAX_FLAGS && !self.contains(flag) {
                self.0 |= flag.0 << (length * NUMBER_BITS);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_numbers_are_distinct() {
        for (at, (flag, short, _)) in NAMES.iter().enumerate() {
            assert_eq!(ResponseFlags::from_short_name(short), Some(*flag));
            assert!((1..1 << NUMBER_BITS).contains(&flag.0), "{short}");
            assert!(NAMES[..at].iter().all(|(other, _, _)| other != flag), "{short} shares its number");
        }
    }

    #[test]
    fn flags_keep_the_order_they_were_set_in() {
        let (failed, limit) =
            (ResponseFlags::UPSTREAM_CONNECTION_FAILURE, ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED);
        let check = |flags: ResponseFlags, short: &[&str]| {
            assert_eq!(flags.short_names().collect::<Vec<_>>(), short);
        };
        check(ResponseFlags::NONE, &[]);
        check(failed | limit, &["UF", "URX"]);
        check(limit | failed, &["URX", "UF"]);
        check(limit | failed | limit | (failed | limit), &["URX", "UF"]);
        assert_eq!((limit | failed).long_names().last(), Some("UpstreamConnectionFailure"));
        assert!((limit | failed).contains(failed | limit) && !failed.contains(failed | limit));
        assert!(failed.contains(ResponseFlags::NONE) && ResponseFlags::NONE.is_empty());
    }

    #[test]
    fn more_flags_than_there_is_room_for_are_left_out() {
        let all = NAMES.iter().fold(ResponseFlags::NONE, |all, (flag, _, _)| all | *flag);
        let first: Vec<_> = NAMES.iter().take(MAX_FLAGS as usize).map(|(_, short, _)| *short).collect();
        assert_eq!(all.short_names().collect::<Vec<_>>(), first);
    }
}
