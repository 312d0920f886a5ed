//! The route of a request, and the effects of the route.

use super::exchange::{Case, Port};

/// The rows.
pub fn cases() -> Vec<Case> {
    [paths(), headers(), hosts(), actions(), rewrites()].concat()
}

fn paths() -> Vec<Case> {
    let get = |name, target, expect| Case::get(name, "paths.test", target, "", expect);
    vec![
        get("path exact", "/exact", "x-levels: route"),
        get("path exact with query", "/exact?a=1", "| GET /exact?a=1"),
        get("path exact is not a prefix", "/exact/", "404"),
        get("path is case sensitive", "/EXACT", "404"),
        get("path exact ignoring case", "/fOLDED", "| GET /folded-exact"),
        get("path prefix ignoring case", "/FOLD/x", "| GET /FOLD/x"),
        get("path separated prefix itself", "/sep", "| GET /sep"),
        get("path separated prefix below", "/sep/x", "| GET /sep/x"),
        get("path separated prefix with query", "/sep?x", "| GET /sep?x"),
        get("path separated prefix needs the separator", "/separate", "404"),
        get("path regex", "/regex/42", "| GET /regex/42"),
        get("path regex with query", "/regex/42?x=y", "| GET /regex/42?x=y"),
        get("path regex matches the whole path", "/regex/42x", "404"),
        get("path first match wins", "/prefix/longer/x", "x-backend: b"),
        get("path prefix", "/prefixed", "x-backend: a"),
        get("path not found", "/nowhere", "404"),
        get("path root", "/", "404"),
    ]
}

fn headers() -> Vec<Case> {
    let get = |name, target, extra, expect| Case::get(name, "headers.test", target, extra, expect);
    vec![
        get("header exact", "/", "x-kind: one\r\n", "| exact"),
        get("header name in another case", "/", "X-KIND: one\r\n", "| exact"),
        get("header exact is case sensitive", "/", "x-kind: One\r\n", "404"),
        get("header prefix", "/", "x-kind: pre-fix\r\n", "| prefix"),
        get("header suffix", "/", "x-kind: the-post\r\n", "| suffix"),
        get("header contains", "/", "x-kind: amidst\r\n", "| contains"),
        get("header regex", "/", "x-kind: abc1\r\n", "| regex"),
        get("header regex matches the whole value", "/", "x-kind: abc12\r\n", "404"),
        get("header ignoring case", "/", "x-kind: lOUD\r\n", "| ignore-case"),
        get("header in two lines, the first matches", "/", "x-kind: pre-\r\nx-kind: b\r\n", "| prefix"),
        get("header in two lines, the second matches", "/", "x-kind: b\r\nx-kind: one\r\n", "| exact"),
        get("header in two lines, none matches", "/", "x-kind: am\r\nx-kind: id\r\n", "404"),
        get("header inverted in two lines", "/", "x-both: no\r\nx-both: yes\r\n", "| inverted-and"),
        get("header present", "/", "x-flag: \r\n", "| present"),
        get("header inverted and another", "/", "x-both: yes\r\n", "| inverted-and"),
        get("header inverted fails", "/", "x-both: yes\r\nx-absent: 1\r\n", "404"),
        Case::request(
            "header :method",
            Port::Http,
            "| method",
            "PUT / HTTP/1.1\r\nHost: headers.test\r\nContent-Length: 0\r\n\r\n",
        ),
        get("query exact", "/?color=blue", "", "| query-exact"),
        get("query exact among others", "/?a=1&color=blue&b=2", "", "| query-exact"),
        get("query exact, other value", "/?color=red", "", "404"),
        get("query present", "/?debug", "", "| query-present"),
        get("query present with value", "/?x&debug=1", "", "| query-present"),
        get("query regex", "/?id=42", "", "| query-regex"),
        get("query regex matches the whole value", "/?id=42x", "", "404"),
    ]
}

fn hosts() -> Vec<Case> {
    let get = |name, host, expect| Case::get(name, host, "/", "", expect);
    vec![
        get("host in another case", "ACTIONS.Test", "| GET / HTTP"),
        get("host wildcard", "a.wild.test", "| *.wild.test"),
        get("host wildcard, two labels", "a.b.wild.test", "| *.wild.test"),
        get("host wildcard needs a label", "wild.test", "404"),
        get("host longest wildcard wins", "a.more.wild.test", "| *.more.wild.test"),
        get("host wildcard at the end", "open.anything", "| open.*"),
        get("host with port listed", "port.test:81", "| port.test:81"),
        get("host with another port", "port.test:82", "404"),
        get("host without the port listed", "port.test", "404"),
        get("host unknown", "unknown.test", "404"),
        get("host that requires TLS", "secure.test", "301"),
        Case::request("host, port ignored", Port::Edge, "| named", "GET / HTTP/1.1\r\nHost: named.test:12345\r\n\r\n"),
        Case::request(
            "host from an absolute target",
            Port::Http,
            "| *.wild.test",
            "GET http://a.wild.test/ HTTP/1.1\r\nHost: actions.test\r\n\r\n",
        ),
    ]
}

fn actions() -> Vec<Case> {
    let get = |name, target, expect| Case::get(name, "actions.test", target, "", expect);
    vec![
        get("direct response", "/direct", "short and stout"),
        get("direct response, no body", "/direct-empty", "204"),
        get("redirect path", "/redirect-path", "location: http://actions.test/elsewhere"),
        get("redirect path keeps the query", "/redirect-path?q=1", "location: http://actions.test/elsewhere?q=1"),
        get(
            "redirect path with its own query",
            "/redirect-path-query?q=1",
            "location: http://actions.test/elsewhere?fixed=1",
        ),
        get("redirect host", "/redirect-host?q=1", "location: http://other.test/redirect-host?q=1"),
        get("redirect https", "/redirect-https", "location: https://actions.test/redirect-https"),
        get("redirect port", "/redirect-port", "location: http://actions.test:9443/redirect-port"),
        get("redirect strips the query", "/redirect-strip?q=1", "location: http://actions.test/stripped"),
        get("redirect prefix", "/redirect-prefix/a/b?q=1", "location: http://actions.test/new/a/b?q=1"),
        Case::get(
            "redirect https keeps the port",
            "actions.test:8443",
            "/redirect-https",
            "",
            "location: https://actions.test:8443/",
        ),
        get("weighted, one of them zero", "/weighted", "x-backend: b"),
        get("weighted, headers of the leg", "/weighted-headers", "x-leg: b"),
        get("cluster that does not exist", "/no-cluster", "503"),
        get("cluster that does not exist, 404", "/no-cluster-404", "404"),
        get("cluster without endpoints", "/no-endpoints", "no healthy upstream"),
        get("endpoint that refuses", "/refused", "503"),
    ]
}

fn rewrites() -> Vec<Case> {
    let get = |name, target, extra, expect| Case::get(name, "actions.test", target, extra, expect);
    vec![
        get("rewrite prefix", "/rewrite-prefix/a?q=1", "", "| GET /a?q=1"),
        get("rewrite prefix to root", "/rewrite-prefix/", "", "| GET / HTTP"),
        get("rewrite by regex", "/rewrite-regex/cats/nine?q=1", "", "| GET /nine/of/cats?q=1"),
        get("rewrite by regex that does not match", "/rewrite-regex/CATS", "", "| GET /rewrite-regex/CATS"),
        get("rewrite host", "/rewrite-host", "", "| host: inner.test"),
        get("headers added", "/headers", "x-source: here\r\n", "| x-copy: here"),
        get(
            "headers over existing ones",
            "/headers",
            "x-append: theirs\r\nx-overwrite: theirs\r\nx-absent: theirs\r\nx-drop: 1\r\n",
            "| x-absent: theirs",
        ),
        get("headers of the response", "/headers/../behave/seen", "", "x-code: 200"),
        get("headers from an absent source", "/headers", "", "| x-percent: 100%"),
        get("x-envoy-original-path of an inner hop", "/", "x-envoy-original-path: /x\r\n", "200"),
        get(
            "x-forwarded headers of an inner hop",
            "/",
            "x-forwarded-for: 198.51.100.7\r\nx-forwarded-proto: https\r\n",
            "200",
        ),
        get(
            "x-forwarded-for in two lines",
            "/",
            "x-forwarded-for: 1.1.1.1\r\nx-forwarded-for: 2.2.2.2\r\n",
            "1.1.1.1,2.2.2.2",
        ),
        get("x-request-id is kept", "/", "x-request-id: 11111111-2222-4333-8444-555555555555\r\n", "| x-request-id"),
        Case::request(
            "edge: forwarded headers",
            Port::Edge,
            "| x-forwarded-for",
            "GET / HTTP/1.1\r\nHost: a.test\r\nx-forwarded-for: 198.51.100.7\r\nx-forwarded-proto: https\r\n\
             x-request-id: mine\r\nx-envoy-internal: true\r\n\r\n",
        ),
        Case::request(
            "edge: path normalized",
            Port::Edge,
            "| GET /b/c HTTP",
            "GET /a/../b/./c HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ),
        Case::request(
            "edge: slashes merged",
            Port::Edge,
            "| GET /a/b?x=//",
            "GET //a///b?x=// HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ),
        Case::request(
            "edge: escapes decoded",
            Port::Edge,
            "| GET /abc",
            "GET /%61b%63 HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ),
        Case::request("edge: escaped slash refused", Port::Edge, "400", "GET /a%2Fb HTTP/1.1\r\nHost: a.test\r\n\r\n"),
        Case::request(
            "edge: path above the root",
            Port::Edge,
            "| GET /x HTTP",
            "GET /../../x HTTP/1.1\r\nHost: a.test\r\n\r\n",
        ),
    ]
}
