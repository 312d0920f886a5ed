//! The rows of `ext_authz`: requests of clients, and decisions of the authorization server.

/// How a row is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Over HTTP/1, with a body of known length, or none.
    Http1,
    /// Over HTTP/1, the body in chunks of this many bytes.
    Chunks(usize),
    /// Over HTTP/2.
    Http2,
}

/// One request.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The listener, which has one configuration of the filter.
    pub port: &'static str,
    pub method: &'static str,
    pub path: &'static str,
    pub headers: &'static [(&'static str, &'static str)],
    pub body: &'static str,
    pub how: How,
}

const GET: Row = Row { port: "grpc", method: "GET", path: "/", headers: &[], body: "", how: How::Http1 };

const fn get(port: &'static str, headers: &'static [(&'static str, &'static str)]) -> Row {
    Row { port, headers, ..GET }
}

const fn at(port: &'static str, path: &'static str, headers: &'static [(&'static str, &'static str)]) -> Row {
    Row { port, path, headers, ..GET }
}

const fn post(port: &'static str, body: &'static str) -> Row {
    Row { port, method: "POST", body, headers: ALLOW, ..GET }
}

const ALLOW: &[(&str, &str)] = &[("x-ext-authz", "allow")];
const GRPC: &[(&str, &str)] = &[("content-type", "application/grpc"), ("te", "trailers")];
const GRPC_ALLOWED: &[(&str, &str)] =
    &[("content-type", "application/grpc"), ("te", "trailers"), ("x-ext-authz", "allow")];

macro_rules! answers {
    ($text:literal) => {
        &[("authz-answer", $text)]
    };
    ($text:literal, $($name:literal = $value:literal),+) => {
        &[("authz-answer", $text), $(($name, $value)),+]
    };
}

macro_rules! mode {
    ($text:literal) => {
        &[("x-ext-authz", "allow"), ("authz-mode", $text)]
    };
}

/// The rows, in the order in which they are asked.
pub fn rows() -> Vec<Row> {
    [plain(), grpc_answers(), failures(), http(), bodies(), huge(), others()].concat()
}

fn plain() -> Vec<Row> {
    vec![
        get("grpc", ALLOW),
        get("grpc", &[]),
        get("grpc", &[("x-ext-authz", "deny"), ("x-two", "1"), ("x-two", "2"), ("cookie", "a=b; c=d")]),
        Row { how: How::Http2, ..get("grpc", ALLOW) },
        Row { how: How::Http2, ..get("grpc", &[]) },
        Row { method: "HEAD", ..get("grpc", &[]) },
        Row { method: "HEAD", ..get("grpc", ALLOW) },
        Row { method: "POST", ..get("grpc", GRPC) },
        Row { method: "POST", how: How::Http2, ..get("grpc", GRPC) },
        Row { method: "POST", how: How::Http2, ..get("grpc", GRPC_ALLOWED) },
        get("formatted", ALLOW),
        get("formatted", &[("x-ext-authz", "allow"), ("authz-mode", "a"), ("authz-mode", "b")]),
        Row { how: How::Http2, ..get("formatted", ALLOW) },
        at("grpc", "/a%20b?x=1&y=2", ALLOW),
        at("grpc", "/nowhere", &[]),
        at("grpc", "/direct", &[]),
        at("grpc", "/direct", ALLOW),
        get("grpc", &[("x-ext-authz", "allow"), ("x-envoy-auth-partial-body", "true")]),
        get("grpc", &[("x-ext-authz", "allow"), ("x-envoy-downstream-service-cluster", "shop")]),
        get("http", ALLOW),
        get("http", &[]),
        Row { how: How::Http2, ..get("http", ALLOW) },
        Row { how: How::Http2, ..get("http", &[]) },
        Row { method: "POST", how: How::Http2, ..get("http", GRPC) },
    ]
}

fn grpc_answers() -> Vec<Row> {
    [grpc_request_edits(), grpc_other_edits(), grpc_refusals(), grpc_beyond()].concat()
}

/// What a service changes in the request.
fn grpc_request_edits() -> Vec<Row> {
    vec![
        get("grpc", answers!(r#"{"okResponse":{"headers":[{"header":{"key":"x-new","value":"1"}}]}}"#)),
        get("grpc", answers!(r#"{"okResponse":{"headers":[{"header":{"key":"x-old","value":"2"}}]}}"#, "x-old" = "1")),
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"headers":[{"header":{"key":"x-old","value":"2"},"append":true}]}}"#,
                "x-old" = "1"
            ),
        ),
        get("grpc", answers!(r#"{"okResponse":{"headers":[{"header":{"key":"x-new","value":"2"},"append":true}]}}"#)),
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"headers":[{"header":{"key":"x-old","value":"2"},"append":false}]}}"#,
                "x-old" = "1"
            ),
        ),
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"headers":[{"header":{"key":"x-old","value":"2"},"appendAction":"OVERWRITE_IF_EXISTS_OR_ADD"},{"header":{"key":"x-b","value":"3"},"appendAction":"OVERWRITE_IF_EXISTS_OR_ADD"}]}}"#,
                "x-old" = "1"
            ),
        ),
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"headers":[{"header":{"key":"x-old","value":"2"},"appendAction":"ADD_IF_ABSENT"},{"header":{"key":"x-b","value":"3"},"appendAction":"ADD_IF_ABSENT"}]}}"#,
                "x-old" = "1"
            ),
        ),
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"headersToRemove":["x-old","X-Other","host",":path","authz-answer"]}}"#,
                "x-old" = "1",
                "x-other" = "2"
            ),
        ),
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"headers":[{"header":{"key":":path","value":"/other?p=1"},"append":false},{"header":{"key":":authority","value":"other.test"},"append":false}]}}"#
            ),
        ),
    ]
}

/// What it changes in the query, and in the response.
fn grpc_other_edits() -> Vec<Row> {
    vec![
        // Query parameters.
        at(
            "grpc",
            "/p?b=2&a=1&flag&a=3",
            answers!(
                r#"{"okResponse":{"queryParametersToSet":[{"key":"c","value":"4"},{"key":"b","value":"5"}],"queryParametersToRemove":["flag"]}}"#
            ),
        ),
        at("grpc", "/p?b=2", answers!(r#"{"okResponse":{"queryParametersToRemove":["b"]}}"#)),
        // Headers of the response.
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"responseHeadersToAdd":[{"header":{"key":"x-backend","value":"z"}},{"header":{"key":"x-said","value":"1"}},{"header":{"key":"x-said","value":"2"}}]}}"#
            ),
        ),
        get(
            "grpc",
            answers!(
                r#"{"okResponse":{"responseHeadersToAdd":[{"header":{"key":"x-backend","value":"z"},"append":false},{"header":{"key":"x-said","value":"1"},"append":true}]}}"#
            ),
        ),
        at(
            "grpc",
            "/direct",
            answers!(
                r#"{"okResponse":{"responseHeadersToAdd":[{"header":{"key":"x-said","value":"1"},"appendAction":"ADD_IF_ABSENT"}]}}"#
            ),
        ),
    ]
}

/// What it refuses with.
fn grpc_refusals() -> Vec<Row> {
    vec![
        get("grpc", answers!(r#"{"status":{"code":7}}"#)),
        get(
            "grpc",
            answers!(
                r#"{"status":{"code":16},"deniedResponse":{"status":{"code":401},"headers":[{"header":{"key":"www-authenticate","value":"Basic"}},{"header":{"key":"set-cookie","value":"a=1"}},{"header":{"key":"set-cookie","value":"b=2"}}],"body":"who are you"}}"#
            ),
        ),
        get(
            "grpc",
            answers!(
                r#"{"status":{"code":7},"deniedResponse":{"status":{"code":302},"headers":[{"header":{"key":"location","value":"https://login.test/"},"append":false}]}}"#
            ),
        ),
        get(
            "grpc",
            answers!(
                r#"{"status":{"code":7},"deniedResponse":{"status":{"code":200},"headers":[{"header":{"key":"content-type","value":"application/json"},"append":false}],"body":"{}"}}"#
            ),
        ),
        Row {
            method: "POST",
            how: How::Http2,
            ..get(
                "grpc",
                answers!(
                    r#"{"status":{"code":16},"deniedResponse":{"status":{"code":401},"body":"who"}}"#,
                    "content-type" = "application/grpc",
                    "te" = "trailers"
                ),
            )
        },
        get("grpc", answers!(r#"{"status":{"code":0},"deniedResponse":{"status":{"code":401}}}"#)),
        get(
            "grpc",
            answers!(r#"{"status":{"code":7},"okResponse":{"headers":[{"header":{"key":"x-new","value":"1"}}]}}"#),
        ),
        // `error_response` with 503 and a body, which the server's API does not have.
        get("grpc", mode!("raw-0a02080d2a130a0308f7031a0c6f7574206f66206f72646572")),
        get("grpc", answers!("{}")),
    ]
}

/// Metadata, what must not be, and the choice of another route.
fn grpc_beyond() -> Vec<Row> {
    vec![
        // Dynamic metadata.
        get("grpc", answers!(r#"{"dynamicMetadata":{"who":"ann","level":3,"tags":["a",true,null]},"okResponse":{}}"#)),
        get("grpc", answers!(r#"{"status":{"code":7},"dynamicMetadata":{"why":"no"}}"#)),
        // What must not be.
        get(
            "strict",
            answers!(r#"{"okResponse":{"headers":[{"header":{"key":"x bad","value":"1"},"append":false}]}}"#),
        ),
        get(
            "strict",
            answers!(r#"{"okResponse":{"headers":[{"header":{"key":"x-bad","value":"a\nb"},"append":false}]}}"#),
        ),
        get("strict", answers!(r#"{"okResponse":{"queryParametersToSet":[{"key":"a b","value":"1"}]}}"#)),
        get(
            "strict",
            answers!(
                r#"{"status":{"code":7},"deniedResponse":{"headers":[{"header":{"key":"x bad","value":"1"},"append":false}]}}"#
            ),
        ),
        get(
            "strict",
            answers!(
                r#"{"okResponse":{"headers":[{"header":{"key":"x-envoy-mine","value":"1"},"append":false},{"header":{"key":":authority","value":"other"},"append":false},{"header":{"key":"x-ok","value":"1"},"append":false}]}}"#
            ),
        ),
        get(
            "strict",
            answers!(r#"{"okResponse":{"headersToRemove":["x-secret","x-old"]}}"#, "x-secret" = "1", "x-old" = "2"),
        ),
        // The route is chosen again.
        get("strict", answers!(r#"{"okResponse":{"headers":[{"header":{"key":"x-to","value":"b"},"append":false}]}}"#)),
        get("grpc", answers!(r#"{"okResponse":{"headers":[{"header":{"key":"x-to","value":"b"},"append":false}]}}"#)),
    ]
}

fn failures() -> Vec<Row> {
    vec![
        get("grpc", mode!("status-7")),
        get("grpc", mode!("status-14")),
        get("grpc", mode!("garbage")),
        get("grpc", mode!("none")),
        get("grpc", mode!("hang")),
        get("strict", mode!("status-13")),
        get("open", mode!("status-14")),
        get("open", mode!("hang")),
        get("open", mode!("garbage")),
        get("open", &[]),
        get("open", mode!("raw-0a02080d2a050a0308f703")),
        get("gone", ALLOW),
        get("gone-open", ALLOW),
        get("missing", ALLOW),
        get("http", mode!("hang")),
        get("http", mode!("garbage")),
        get("http", mode!("reset")),
        get("http", mode!("truncated")),
        get("http-open", mode!("hang")),
        get("http-open", mode!("reset")),
        get("http-open", &[]),
        Row { method: "POST", how: How::Http2, ..get("gone", GRPC) },
    ]
}

fn http() -> Vec<Row> {
    vec![
        at(
            "http",
            "/a?b=c",
            &[
                ("x-ext-authz", "allow"),
                ("authorization", "Bearer t"),
                ("x-not", "1"),
                ("x-pass-a", "2"),
                ("x-pass-a", "3"),
                ("x-pass-secret", "4"),
            ],
        ),
        get(
            "http",
            answers!(
                r#"{"status":200,"headers":[["x-up-a","1"],["x-up-a","2"],["x-add-b","3"],["x-none","4"],["x-client-ok","5"],["x-meta-who","ann"]]}"#,
                "x-up-a" = "0",
                "x-add-b" = "0"
            ),
        ),
        get(
            "http",
            answers!(
                r#"{"status":200,"headers":[["x-envoy-auth-headers-to-remove","x-old, x-other"],["x-up-a","1"]]}"#,
                "x-old" = "1",
                "x-other" = "2",
                "x-keep" = "3"
            ),
        ),
        get(
            "http",
            answers!(
                r#"{"status":401,"headers":[["www-authenticate","Basic"],["x-client-a","1"],["x-none","2"]],"body":"who"}"#
            ),
        ),
        get(
            "http",
            answers!(r#"{"status":302,"headers":[["location","https://login.test/"],["set-cookie","a=1"]],"body":""}"#),
        ),
        get("http", answers!(r#"{"status":403,"headers":[["content-type","application/json"]],"body":"{}"}"#)),
        get("http", answers!(r#"{"status":204}"#)),
        get("http", answers!(r#"{"status":201,"body":"made"}"#)),
        get("http", answers!(r#"{"status":404,"body":"not there"}"#)),
        get("http", answers!(r#"{"status":500,"body":"broken"}"#)),
        get("http", answers!(r#"{"status":503,"body":"busy"}"#)),
        get(
            "http-all",
            answers!(r#"{"status":403,"headers":[["x-any","1"],["x-any","2"],["server","own"]],"body":"no"}"#),
        ),
        get("http-all", answers!(r#"{"status":200,"headers":[["x-any","1"]]}"#)),
        get("http-open", answers!(r#"{"status":500,"body":"broken"}"#)),
        Row { method: "POST", ..get("http", ALLOW) },
        Row { method: "PUT", body: "not for the server", headers: ALLOW, ..get("http", ALLOW) },
        at("http-override", "/client?x=1", ALLOW),
    ]
}

fn bodies() -> Vec<Row> {
    vec![
        get("partial", ALLOW),
        post("partial", "0123456789"),
        post("partial", "01234"),
        post("partial", "0123456789abcdef"),
        Row { how: How::Chunks(4), ..post("partial", "0123456789abcdef") },
        Row { how: How::Chunks(4), ..post("partial", "012345") },
        Row { how: How::Chunks(10), ..post("partial", "0123456789") },
        Row { how: How::Http2, ..post("partial", "0123456789abcdef") },
        Row { method: "POST", body: "0123456789abcdef", ..get("partial", &[]) },
        post("strict", "0123456789"),
        post("strict", "0123456789a"),
        Row { how: How::Chunks(4), ..post("strict", "0123456789") },
        Row { how: How::Chunks(4), ..post("strict", "0123456789abcdef") },
        Row { path: "/no-body", ..post("strict", "0123456789abcdef") },
        Row { path: "/more-body", ..post("strict", "0123456789abcdef") },
        post("http-partial", "0123456789abcdef"),
        post("http-partial", "01234"),
        Row { how: How::Chunks(4), ..post("http-partial", "0123456789abcdef") },
        Row { method: "POST", body: "0123456789abcdef", ..get("http-partial", &[]) },
    ]
}

/// Bodies and headers that no limit above is near to: 300 KB and 40 KB, and a body that the server does not accept (4 MiB).
fn huge() -> Vec<Row> {
    let text = |bytes: usize| -> &'static str { "0123456789abcdef".repeat(bytes / 16).leak() };
    let (body, header, refused) = (text(300_000), text(40_000), text(5_000_000));
    let headers: &'static [(&str, &str)] = vec![("x-ext-authz", "allow"), ("authz-huge", header)].leak();
    let mut rows = Vec::new();
    for port in ["strict", "partial", "http-partial", "large"] {
        rows.push(post(port, body));
        rows.push(Row { how: How::Chunks(16_384), ..post(port, body) });
    }
    rows.push(post("large", refused));
    rows.extend(["grpc", "http", "http-all"].map(|port| get(port, headers)));
    rows
}

fn others() -> Vec<Row> {
    vec![
        at("grpc", "/off", &[]),
        at("grpc", "/extended", ALLOW),
        at("grpc", "/by-http", ALLOW),
        at("grpc", "/by-http", &[]),
        // Only what the shadow rules match, as Istio configures it.
        at("metadata", "/judged", &[]),
        at("metadata", "/judged", ALLOW),
        at("metadata", "/free", &[]),
        at("denies", "/judged", ALLOW),
        at("denies", "/free", ALLOW),
        at("never", "/", &[]),
        at("told", "/route-metadata", ALLOW),
        get("told", &[("x-ext-authz", "allow"), ("x-other", "1"), ("x-not", "2")]),
        get("told", answers!(r#"{"status":{"code":7},"deniedResponse":{"body":"0123456789abcdef"}}"#)),
        get("told", answers!(r#"{"dynamicMetadata":{"who":"ann"},"okResponse":{}}"#)),
    ]
}
