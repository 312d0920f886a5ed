//! Headers with which proxies tell each other about a request: who may send each, and its effect.
//!
//! Only known senders may have a request retried, given more time, or logged as another's. A listener that accepts
//! connections from anybody sets `use_remote_address`; it is the *edge*. Nobody is trusted for an address alone: Envoy
//! has no internal addresses either unless configured (`internal_address_config`, which is not supported here).

use evenkeel_http::{HeaderId, reads_as};

/// The parties that may send a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sender {
    /// Nobody outside this proxy: it is removed from every request.
    Nobody,
    /// Another proxy: it is removed at the edge.
    Proxies,
    /// Anybody: recipients rely on it at their own risk, or not at all.
    Anybody,
    /// Decided by `identify` from the listener's configuration.
    Checked,
}

use Sender::{Anybody, Checked, Nobody, Proxies};

/// A row: the header's name, who may send it, and its effect here or at the next hop.
type Row = (&'static str, Sender, &'static str);

/// All headers that Envoy, Istio and this proxy read for purposes other than the request's content. The first group is
/// Envoy's list for requests that are not internal, the second begins with its list for the edge.
const TABLE: [Row; 46] = [
    ("x-envoy-expected-rq-timeout-ms", Nobody, "how long the caller waits"),
    ("x-envoy-force-trace", Nobody, "the request is traced"),
    ("x-envoy-hedge-on-per-try-timeout", Nobody, "a further try beside one that is late"),
    ("x-envoy-internal", Nobody, "the request is said to be internal"),
    ("x-envoy-ip-tags", Nobody, "what is known of the client's address"),
    ("x-envoy-max-retries", Nobody, "how often it is tried again"),
    ("x-envoy-original-url", Nobody, "the URL before a redirect that a proxy has followed"),
    ("x-envoy-retriable-header-names", Nobody, "which responses are tried again"),
    ("x-envoy-retriable-status-codes", Nobody, "which responses are tried again"),
    ("x-envoy-retry-grpc-on", Nobody, "which failures are tried again"),
    ("x-envoy-retry-on", Nobody, "which failures are tried again"),
    ("x-envoy-upstream-alt-stat-name", Nobody, "further statistics, by a name of the client's"),
    ("x-envoy-upstream-rq-per-try-timeout-ms", Nobody, "how long a try may take"),
    ("x-envoy-upstream-rq-timeout-alt-response", Nobody, "204 instead of 504"),
    ("x-envoy-upstream-rq-timeout-ms", Nobody, "how long the response may take"),
    ("x-envoy-upstream-stream-duration-ms", Nobody, "how long request and response may take"),
    ("x-envoy-decorator-operation", Proxies, "the operation's name in traces"),
    ("x-envoy-downstream-service-cluster", Proxies, "which service asks"),
    ("x-envoy-downstream-service-node", Proxies, "which replica asks"),
    ("x-envoy-original-host", Proxies, "the host before a rewrite"),
    ("x-envoy-original-path", Proxies, "the path before a rewrite; not taken for it in logs and traces"),
    // Envoy passes these on at the edge as well, up to the end of this group; they are no more trustworthy there.
    ("x-envoy-attempt-count", Proxies, "how often it was tried"),
    ("x-envoy-original-dst-host", Proxies, "which address the next proxy connects to, if it is told to ask"),
    ("x-envoy-peer-metadata", Proxies, "which workload asks, for Istio's telemetry"),
    ("x-envoy-peer-metadata-id", Proxies, "which workload asks, for Istio's telemetry"),
    ("x-envoy-external-address", Checked, "the client's address; the edge sets it"),
    ("x-forwarded-client-cert", Checked, "who the client is; `forward_client_cert_details`"),
    ("x-forwarded-for", Checked, "the client's address; the edge adds the one it sees"),
    ("x-forwarded-proto", Checked, "the scheme; the edge sets it unless hops in front are trusted"),
    ("x-request-id", Checked, "the request's name in logs and traces; the edge makes a new one"),
    ("x-client-trace-id", Anybody, "the client asks for a trace; `client_sampling`"),
    ("b3", Anybody, "the caller's span, and whether it is recorded"),
    ("x-b3-parentspanid", Anybody, "the caller's span, and whether it is recorded"),
    ("x-b3-sampled", Anybody, "the caller's span, and whether it is recorded"),
    ("x-b3-spanid", Anybody, "the caller's span, and whether it is recorded"),
    ("x-b3-traceid", Anybody, "the caller's span, and whether it is recorded"),
    ("traceparent", Anybody, "the caller's span, and whether it is recorded"),
    ("tracestate", Anybody, "what other tracers pass on; not read here"),
    ("x-forwarded-host", Anybody, "the host before a rewrite"),
    ("x-forwarded-port", Anybody, "the port the client dialled; not read here"),
    ("forwarded", Anybody, "RFC 7239; not read here"),
    ("x-real-ip", Anybody, "the client's address; not read here"),
    ("grpc-timeout", Anybody, "how long the caller waits; no more than the route's `max_stream_duration` allows"),
    ("via", Anybody, "proxies on the way; ours is added"),
    (
        "x-evenkeel-hops",
        Anybody,
        "how often the request has come back to a proxy, which heeds it on its own connections",
    ),
    ("x-istio-attributes", Anybody, "what Istio's Mixer was told; not read since Istio 1.8"),
];

/// Whether a header is removed from a request.
#[inline]
pub(super) fn is_taken_off(id: HeaderId, name: &[u8], edge: bool) -> bool {
    match id {
        HeaderId::Other if name.first() != Some(&b'x') => false,
        HeaderId::Other if name.contains(&b'_') => reads_as_listed(name, edge),
        HeaderId::Other => name.starts_with(b"x-envoy-") && is_listed(name, edge),
        id => (NOBODYS | if edge { PROXIES } else { 0 }) & bit(id) != 0,
    }
}

fn is_listed(name: &[u8], edge: bool) -> bool {
    let taken = |sender: &Sender| *sender == Nobody || (edge && *sender == Proxies);
    TABLE.iter().any(|(listed, sender, _)| taken(sender) && listed.as_bytes() == name)
}

/// Whether programs may take a name with underscores for one of the table that its sender may not send, or that this proxy answers for.
/// Removed where the listed name is removed or set; what names the client's certificate everywhere, since every proxy sets that.
#[cold]
fn reads_as_listed(name: &[u8], edge: bool) -> bool {
    let vouched = |listed: &str, sender: Sender| match sender {
        Nobody => true,
        Proxies => edge,
        Checked => edge || listed == HeaderId::ForwardedClientCert.name(),
        Anybody => edge && listed.starts_with("x-forwarded-"),
    };
    TABLE.iter().any(|(listed, sender, _)| vouched(listed, *sender) && reads_as(name, listed.as_bytes()))
}

/// The headers of the table that have a `HeaderId`, as bits: this is checked for each header of each request.
const NOBODYS: u64 = bit(HeaderId::EnvoyExpectedRqTimeoutMs)
    | bit(HeaderId::EnvoyForceTrace)
    | bit(HeaderId::EnvoyHedgeOnPerTryTimeout)
    | bit(HeaderId::EnvoyInternal)
    | bit(HeaderId::EnvoyIpTags)
    | bit(HeaderId::EnvoyMaxRetries)
    | bit(HeaderId::EnvoyRetryOn);
const PROXIES: u64 = bit(HeaderId::EnvoyAttemptCount)
    | bit(HeaderId::EnvoyDecoratorOperation)
    | bit(HeaderId::EnvoyDownstreamServiceCluster)
    | bit(HeaderId::EnvoyDownstreamServiceNode)
    | bit(HeaderId::EnvoyOriginalDstHost)
    | bit(HeaderId::EnvoyOriginalPath);

/// A well-known header as a bit.
pub(super) const fn bit(id: HeaderId) -> u64 {
    1 << (id as u8 % 64)
}

/// Each header has its own bit, including [`HeaderId::Other`] with the highest number.
const _: () = assert!((HeaderId::Other as u8) < 64);

#[cfg(test)]
mod tests {
    use evenkeel_http::Headers;

    use super::*;
    use crate::decide::retry::RequestedRetry;

    /// The headers left of a request that had all of them; checks that the router is asked for nothing.
    fn left(edge: bool) -> Vec<&'static str> {
        let mut headers = Headers::default();
        TABLE.iter().for_each(|(name, ..)| headers.append(name.as_bytes(), b"1"));
        headers.remove_where(|id, name| is_taken_off(id, name, edge));
        let left =
            TABLE.iter().map(|(name, ..)| *name).filter(|name| headers.find(name.as_bytes()).is_some()).collect();
        assert_eq!(RequestedRetry::take(&mut headers), None, "edge: {edge}");
        left
    }

    #[test]
    fn requests_keep_what_their_sender_may_send() {
        for edge in [false, true] {
            let may_stay = |sender| sender != Nobody && !(edge && sender == Proxies);
            let expected: Vec<_> = TABLE.iter().filter(|row| may_stay(row.1)).map(|row| row.0).collect();
            assert_eq!(left(edge), expected, "edge: {edge}");
        }
    }

    #[test]
    fn underscores_are_no_way_around() {
        let check = |name: &str, at_a_sidecar: bool, at_the_edge: bool| {
            let taken = [false, true].map(|edge| is_taken_off(HeaderId::of(name.as_bytes()), name.as_bytes(), edge));
            assert_eq!(taken, [at_a_sidecar, at_the_edge], "{name}");
        };
        check("x_forwarded_client_cert", true, true);
        check("x-forwarded_client-cert", true, true);
        check("x_envoy_internal", true, true);
        check("x_envoy_retriable_header_names", true, true);
        for name in ["x_forwarded_for", "x-forwarded_proto", "x_forwarded_host", "x_forwarded_port", "x_request_id"] {
            check(name, false, true);
        }
        check("x_envoy_external_address", false, true);
        check("x_envoy_peer_metadata", false, true);
        check("x-envoy-peer-metadata_id", false, true);
        for name in ["x_user", "x-my_header", "x_real_ip", "user_id", "x_forwarded_forx"] {
            check(name, false, false);
        }
    }

    #[test]
    fn no_header_is_listed_twice() {
        let mut names: Vec<_> = TABLE.iter().map(|row| row.0).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TABLE.len());
    }
}
