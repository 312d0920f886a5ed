//! Calls that are traced, as data.

/// A call.
#[derive(Debug, Clone)]
pub struct Row {
    pub listener: &'static str,
    pub path: String,
    pub headers: Vec<(&'static str, &'static str)>,
    /// Spans that it has.
    pub spans: usize,
}

fn row(listener: &'static str, path: &str, headers: &[(&'static str, &'static str)], spans: usize) -> Row {
    Row { listener, path: path.into(), headers: headers.to_vec(), spans }
}

const TRACE: (&str, &str) = ("x-b3-traceid", "463ac35c9f6413ad48485a3953bb6124");
const SPAN: (&str, &str) = ("x-b3-spanid", "a2fb4a1d1a96d312");
const PARENT: (&str, &str) = ("x-b3-parentspanid", "0020000000000001");

/// Headers, and whether the request has a span where all are traced.
type Said = (&'static [(&'static str, &'static str)], bool);

/// What callers say in B3.
const B3: &[Said] = &[
    (&[TRACE, SPAN, PARENT], true),
    (&[TRACE, SPAN, PARENT, ("x-b3-sampled", "1")], true),
    (&[TRACE, SPAN, PARENT, ("x-b3-sampled", "0")], false),
    (&[TRACE, SPAN], true),
    (&[("x-b3-sampled", "1")], true),
    (&[("x-b3-sampled", "true")], true),
    (&[("x-b3-sampled", "d")], false),
    (&[("x-b3-flags", "1")], true),
    (&[("x-b3-traceid", "1"), ("x-b3-spanid", "2")], true),
    (&[("x-b3-traceid", "zz"), ("x-b3-spanid", "1")], false),
    (&[("x-b3-traceid", "1"), ("x-b3-spanid", "zz")], false),
    (&[("x-b3-traceid", "11111111111111111"), ("x-b3-spanid", "1")], false),
    (&[("x-b3-traceid", ""), ("x-b3-spanid", "")], false),
    (&[("x-b3-traceid", "1")], true),
    (&[("b3", "0")], false),
    (&[("b3", "1")], true),
    (&[("b3", "d")], true),
    (&[("b3", "x")], false),
    (&[("b3", "")], false),
    (&[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1")], true),
    (&[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1")], true),
    (&[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-0")], false),
    (&[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-d-05e3ac9a4f6e3b90")], true),
    (&[("b3", "64fe8b2a57d3eff7-e457b5a2e4d86bd1-1")], true),
    (&[("b3", "64fe8b2a57d3eff7-e457b5a2e4d86bd1-x")], false),
    (&[("b3", "64fe8b2a57d3eff7-e457b5a2e4d86bd1-1-")], false),
    (&[("b3", "64fe8b2a57d3eff7-e457b5a2e4d86bd1-")], false),
    (&[("b3", "64fe8b2a57d3eff7")], false),
    (&[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1-05e3ac9a4f6e3b901")], false),
    (&[TRACE, SPAN, ("b3", "0")], false),
];

/// What callers say in W3C's headers.
const W3C: &[Said] = &[
    (&[], true),
    (&[("traceparent", "00-80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-01"), ("tracestate", "a=b")], true),
    (&[("traceparent", "00-80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-00")], false),
    (&[("traceparent", "00-80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-03")], true),
    (&[("traceparent", "ff-80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-01")], true),
    (&[("traceparent", "00-80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-")], false),
    (&[("traceparent", "00-80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bdz-01")], false),
    (&[("traceparent", "00-00000000000000000000000000000000-e457b5a2e4d86bd1-01")], false),
    (&[("traceparent", "00-80f198ee56343ba864fe8b2a57d3eff7-0000000000000000-01")], false),
    (&[("traceparent", "nonsense")], false),
    (&[("traceparent", "")], false),
    (&[("tracestate", "a=b")], true),
];

const PARENT_OF_W3C: (&str, &str) = ("traceparent", "00-80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-01");

/// What callers say in both.
const MIXED: &[Said] = &[
    (&[TRACE, SPAN, PARENT, PARENT_OF_W3C], true),
    (&[TRACE, SPAN, ("x-b3-sampled", "0"), PARENT_OF_W3C], false),
    (&[("b3", "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1"), PARENT_OF_W3C], true),
];

/// Request ids and such, and whether the request is traced without random sampling.
const IDS: &[Said] = &[
    (&[("x-request-id", "7d0c2f4e-aaaa-4aaa-8aaa-aaaaaaaaaaaa")], false),
    (&[("x-request-id", "7d0c2f4e-aaaa-9aaa-8aaa-aaaaaaaaaaaa")], true),
    (&[("x-request-id", "7d0c2f4e-aaaa-aaaa-8aaa-aaaaaaaaaaaa")], true),
    (&[("x-request-id", "7d0c2f4e-aaaa-baaa-8aaa-aaaaaaaaaaaa")], true),
    (&[("x-request-id", "short")], false),
    (&[("x-request-id", "7d0c2f4e-aaaa-4aaa-8aaa-aaaaaaaaaaaa"), ("x-client-trace-id", "me")], true),
    (&[("x-envoy-force-trace", "1")], false),
];

/// All calls.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    let long = format!("/rewritten?{}", "a".repeat(300));
    for listener in ["in", "out", "otel-in", "otel-out"] {
        for path in ["/plain", "/decorated", "/quiet", "/direct", "/missing", "/nowhere", "/redirect", "/tags", &long] {
            rows.push(row(listener, path, &[], 1));
        }
        rows.push(row(listener, "/never", &[], 0));
        let named = [("x-envoy-decorator-operation", "from-caller"), ("user-agent", "test")];
        rows.push(row(listener, "/decorated", &named, 1));
        rows.push(row(listener, "/plain", &named, 1));
        for status in ["0", "5", "8", "13", "16", "none"] {
            let call = [("content-type", "application/grpc"), ("grpc-timeout", "1S"), ("x-status", status)];
            rows.push(row(listener, "/grpc", &call, 1));
        }
    }
    for listener in ["out", "otel-out"] {
        rows.push(row(listener, "/renamed", &[], 1));
    }
    rows.push(row("default", "/plain", &[], 1));
    rows.push(row("otel-http", "/plain", &[], 1));
    for listener in ["spawn", "child", "split", "otel-spawn"] {
        for (path, spans) in [
            ("/plain", 2),
            ("/fails", 3),
            ("/closed", 3),
            ("/empty", 1),
            ("/slow", 2),
            ("/per-try", 3),
            ("/decorated", 2),
        ] {
            rows.push(row(listener, path, &[], spans));
        }
        rows.push(row(listener, "/grpc", &[("x-status", "14")], 2));
    }
    for (headers, traced) in B3 {
        rows.push(row("in", "/plain", headers, usize::from(*traced)));
        rows.push(row("out", "/plain", headers, usize::from(*traced)));
        rows.push(row("unshared", "/plain", headers, usize::from(*traced)));
        rows.push(row("spawn", "/plain", headers, 2 * usize::from(*traced)));
    }
    // The caller's decision holds where nothing is traced otherwise.
    for (headers, sampled) in B3.iter().take(5) {
        let says_so = headers.contains(&("x-b3-sampled", "1"));
        rows.push(row("never", "/plain", headers, usize::from(*sampled && says_so)));
    }
    for (headers, traced) in W3C.iter().chain(MIXED) {
        // A malformed context in W3C's headers alone counts as none.
        let sampled = *traced || !headers.iter().any(|(_, value)| value.ends_with("-00") || *value == "0");
        rows.push(row("both", "/plain", headers, usize::from(sampled)));
    }
    for (headers, traced) in W3C {
        for listener in ["otel-in", "otel-out"] {
            rows.push(row(listener, "/plain", headers, usize::from(*traced)));
        }
        rows.push(row("otel-never", "/plain", headers, 0));
    }
    for (headers, traced) in IDS {
        let short = headers.iter().any(|(_, id)| *id == "short");
        for listener in ["in", "otel-in", "unpacked"] {
            rows.push(row(listener, "/plain", headers, usize::from(!short)));
        }
        for listener in ["never", "otel-never"] {
            rows.push(row(listener, "/plain", headers, usize::from(*traced)));
        }
        let asked = headers.iter().any(|(name, _)| *name == "x-client-trace-id");
        rows.push(row("edge", "/plain", headers, usize::from(asked)));
        rows.push(row("chance", "/plain", headers, 1));
    }
    rows
}
