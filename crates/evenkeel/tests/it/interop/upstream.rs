//! Upstreams that are slow, close, or answer with something other than HTTP.

use super::exchange::{Case, Port, Step};

/// The peer is not known to be another proxy, so a request may come back: `proxy_loop` ends it (docs/proxy.md).
const HOPS: &str = "requests over TLS carry the number of Evenkeel's proxies on their way";

/// The rows.
pub fn cases() -> Vec<Case> {
    let get = |name, target: &str, expect| {
        Case::request(name, Port::Http, expect, &format!("GET {target} HTTP/1.1\r\nHost: actions.test\r\n\r\n"))
    };
    vec![
        get("route timeout", "/timeout", "504").then(Step::Open),
        get("no route timeout", "/no-timeout", "| slow").then(Step::Open),
        get("no answer for as long as the stream may be idle", "/idle", "504").then(Step::Open),
        get("no answer for as long as the stream may last", "/lasts", "504").then(Step::Open),
        get("retried until it works", "/retried", "| third time lucky").then(Step::Open),
        get("upstream closes without an answer", "/behave/close", "503").then(Step::Open),
        get("upstream answers garbage", "/behave/garbage", "502").then(Step::Open),
        get("upstream with two lengths", "/behave/two-lengths", "502").then(Step::Open),
        get("upstream closes in mid-body", "/behave/truncated", "error: closed"),
        get("upstream sends a bad chunk", "/behave/bad-chunk", "error: closed"),
        get("over TLS", "/through-tls", "| GET /through-tls").differs(HOPS, "| x-evenkeel-hops: 1"),
        get("over mutual TLS", "/through-mtls", "URI=spiffe://cluster.local/ns/default/sa/web")
            .differs(HOPS, "| x-evenkeel-hops: 1"),
        get("over TLS with an untrusted server", "/through-wrong-root", "503"),
    ]
}
