//! Filters with behavior that no filter here has yet: wait for another service, choose the route again, replace responses,
//! delay or collect them, make bodies longer. Two filters of this file run in a real proxy; the request's `x-do` says what
//! they do.

use std::cell::RefCell;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_filters::callouts::{CallOptions, HttpAnswer, HttpCall};
use evenkeel_filters::format::Record;
use evenkeel_filters::test_filter::{CustomFilter, State, register};
use evenkeel_filters::{
    BadBody, Body, Data, Decision, Flow, Pause, Reply, RequestContext, ResponseContext, ResponseDecision, Services,
    Woken,
};
use evenkeel_http::{HeaderId, RequestHead};
use evenkeel_runtime_config::buffer::BufferPerRoute;
use evenkeel_testkit::{Backend, Connection, Reply as Answer, eventually};
use http_body_util::{BodyExt, Full};
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Runtime;

use crate::harness::{Proxy, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// Longer than any test waits.
const LONG: Duration = Duration::from_secs(600);

/// What [`Doer`] keeps of a request.
struct Doing {
    what: String,
    answer: Rc<RefCell<Option<HttpAnswer>>>,
    waited: bool,
    /// What is held back of the request's body, and whether that is its end.
    held: (Vec<u8>, bool),
}

/// Does what `x-do` says.
struct Doer;

/// Asks the cluster `auth` for a path; `limit`: for no longer than this.
fn ask(services: &dyn Services, path: &str, limit: Duration, doing: &mut Doing) -> Pause {
    let mut head = RequestHead::default();
    head.set_method(b"GET");
    head.set_path(path.as_bytes());
    let call = HttpCall { cluster: "auth".into(), head, body: Vec::new(), options: CallOptions::default() };
    let (callout, answer) = (services.callouts().http(call), Rc::clone(&doing.answer));
    doing.waited = true;
    Pause::until(async move { *answer.borrow_mut() = callout.await.ok() }, limit)
}

impl Doing {
    fn of(state: &mut State) -> Option<&mut Self> {
        state.as_mut()?.downcast_mut()
    }

    /// Holds back the first piece of a body for as long as `x-do` says, in milliseconds.
    fn hold(&mut self, data: &mut Data<'_>) -> Flow {
        self.held.0.extend_from_slice(&data.bytes);
        self.held.1 |= data.ends;
        if std::mem::replace(&mut self.waited, true) {
            data.bytes = std::mem::take(&mut self.held.0).into();
            data.ends = self.held.1;
            return Flow::Continue;
        }
        (data.bytes, data.ends) = (b"".into(), false);
        let millis = self.what.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0);
        Flow::Pause(Pause::for_time(Duration::from_millis(millis)))
    }

    fn request(&mut self, context: &mut RequestContext<'_>) -> Decision {
        let words: Vec<String> = self.what.split(' ').map(str::to_owned).collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).unwrap_or(0);
        match words[0].as_str() {
            "ask" if !self.waited => {
                let limit = if words.len() > 2 { Duration::from_millis(number(2)) } else { LONG };
                Decision::Pause(ask(context.services, &words[1], limit, self))
            }
            "ask" => self.told(context),
            "reroute" => {
                context.head.headers.append(b"x-route", words[1].as_bytes());
                Decision::Reroute
            }
            "longer-request" => {
                context.head.headers.remove(HeaderId::ContentLength);
                Decision::Continue
            }
            "collect-request" | "collect-hold-request" => match context.body {
                Body::Coming => Decision::Collect { max_bytes: number(1) as usize },
                Body::Start(_) | Body::Whole(_) | Body::Empty => Decision::Continue,
            },
            _ => Decision::Continue,
        }
    }

    /// What the other service has said.
    fn told(&self, context: &mut RequestContext<'_>) -> Decision {
        if context.woken != Some(Woken::Ready) {
            return Decision::Reply(Reply::new(504, "nobody answers", "auth_timeout"));
        }
        let answer = self.answer.borrow_mut().take();
        match answer {
            None => Decision::Reply(Reply::new(503, "no answer", "auth_failed")),
            Some(answer) if answer.head.status != 200 => {
                let headers = vec![("x-reason".into(), b"asked".to_vec())];
                let reply = Reply::new(answer.head.status, "", "auth_denied");
                Decision::Reply(Reply { headers, body: answer.body.into(), ..reply })
            }
            Some(answer) => match answer.head.headers.find(b"x-route") {
                None => Decision::Continue,
                Some(route) => {
                    context.head.headers.append(b"x-route", route);
                    Decision::Reroute
                }
            },
        }
    }

    fn response(&mut self, context: &mut ResponseContext<'_>) -> ResponseDecision {
        let words: Vec<String> = self.what.split(' ').map(str::to_owned).collect();
        match words[0].as_str() {
            "replace" => {
                let headers = vec![("x-replaced".into(), context.head.status.to_string().into_bytes())];
                ResponseDecision::Reply(Reply { headers, ..Reply::new(418, "another", "replaced") })
            }
            "ask-with-answer" if !self.waited => {
                let limit = words.get(2).map_or(LONG, |limit| Duration::from_millis(limit.parse().unwrap_or(0)));
                ResponseDecision::Pause(ask(context.services, &words[1], limit, self))
            }
            "ask-with-answer" => {
                let woken = format!("{:?}", context.woken);
                context.head.headers.append(b"x-woken", woken.as_bytes());
                ResponseDecision::Continue
            }
            "longer-answer" => {
                context.head.headers.remove(HeaderId::ContentLength);
                ResponseDecision::Continue
            }
            "collect-answer" => match context.body {
                Body::Coming => ResponseDecision::Collect { max_bytes: words[1].parse().unwrap_or(0) },
                Body::Start(_) | Body::Empty => ResponseDecision::Continue,
                Body::Whole(body) => {
                    context.head.headers.append(b"x-whole", body.len().to_string().as_bytes());
                    ResponseDecision::Continue
                }
            },
            _ => ResponseDecision::Continue,
        }
    }
}

/// Twice as long.
fn double(data: &mut Data<'_>) {
    let twice = data.bytes.iter().flat_map(|byte| [*byte, *byte]).collect::<Vec<u8>>();
    data.bytes = twice.into();
}

impl CustomFilter for Doer {
    fn request_head(&self, state: &mut State, context: &mut RequestContext<'_>) -> Decision {
        if state.is_none() {
            let what = context.head.headers.find(b"x-do").unwrap_or_default();
            let what = String::from_utf8_lossy(what).into_owned();
            *state = Some(Box::new(Doing { what, answer: Rc::default(), waited: false, held: Default::default() }));
        }
        Doing::of(state).map_or(Decision::Continue, |doing| doing.request(context))
    }

    fn request_data(&self, state: &mut State, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        let Some(doing) = Doing::of(state) else { return Ok(Flow::Continue) };
        if doing.what.contains("hold-request") {
            return Ok(doing.hold(data));
        }
        let what = doing.what.as_str();
        if what == "refuse-request" {
            return Err(BadBody { status: 429, body: "too often", details: "refused" });
        }
        if what.starts_with("longer-request") || what.starts_with("lie-request") || what.starts_with("collect-request")
        {
            double(data);
        }
        Ok(Flow::Continue)
    }

    fn response_head(&self, state: &mut State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        Doing::of(state).map_or(ResponseDecision::Continue, |doing| doing.response(context))
    }

    fn response_data(&self, state: &mut State, data: &mut Data<'_>) -> Flow {
        let what = Doing::of(state).map(|doing| doing.what.as_str()).unwrap_or_default();
        if what.starts_with("longer-answer") || what.starts_with("lie-answer") {
            double(data);
        }
        Flow::Continue
    }

    fn complete(&self, state: &mut State, _: &Record<'_>) {
        *state = None;
    }
}

/// Tells the server what its route says to it.
struct Teller;

impl CustomFilter for Teller {
    fn request_head(&self, _: &mut State, context: &mut RequestContext<'_>) -> Decision {
        let told = match context.route.filters.most_specific::<BufferPerRoute>(context.filter()) {
            Some(BufferPerRoute::Buffer(buffer)) => buffer.max_request_bytes.to_string(),
            _ => "nothing".to_owned(),
        };
        let cluster = context.route.cluster.map_or("none", |cluster| cluster);
        context.head.headers.append(b"x-told", format!("{told} for {cluster}").as_bytes());
        Decision::Continue
    }

    fn response_head(&self, _: &mut State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        context.head.headers.append(b"x-seen", if context.local { b"local" } else { b"upstream" });
        ResponseDecision::Continue
    }
}

const BUFFER: &str = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3";

/// A proxy with both filters, and the servers behind it.
struct Scene {
    proxy: Proxy,
    web: SocketAddr,
    servers: [Backend; 2],
    _inner: Proxy,
    auth: Backend,
    runtime: Runtime,
}

fn server(name: &'static str) -> Backend {
    Backend::start(move |request| {
        let told = request.header("x-told").unwrap_or_default().to_owned();
        let headers = vec![("x-from".to_owned(), name.to_owned()), ("x-told".to_owned(), told)];
        match request.target.as_str() {
            "/slow" => Answer::After(Duration::from_secs(2), Box::new(Answer::text("slow"))),
            "/chunked" => Answer::Chunked(200, headers, vec![b"one,".to_vec(), b"two".to_vec()]),
            _ => Answer::Fixed(200, headers, request.body.clone()),
        }
    })
}

impl Scene {
    fn new() -> Self {
        register("doer", Doer);
        register("teller", Teller);
        let servers = ["a", "b"].map(server);
        let auth = Backend::start(|request| match request.target.as_str() {
            "/ok" => Answer::text("yes"),
            "/no" => Answer::Fixed(403, Vec::new(), b"not you".to_vec()),
            "/b" => Answer::Fixed(200, vec![("x-route".to_owned(), "b".to_owned())], Vec::new()),
            _ => Answer::After(Duration::from_secs(2), Box::new(Answer::text("late"))),
        });
        let inner = {
            let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                          route: {cluster: a}}]}]}";
            let clusters = [static_cluster("a", servers[0].address(), "")];
            Proxy::start_with(&static_bootstrap(&http_listener("inner", routes, ""), &clusters), 1)
        };
        let h2 = protocol("explicit_http_config: {http2_protocol_options: {}}");
        let clusters = [
            static_cluster("a", servers[0].address(), ""),
            static_cluster("b", servers[1].address(), ""),
            static_cluster("a2", inner.listener("inner"), &h2),
            static_cluster("auth", auth.address(), ""),
        ];
        let told = |number: u32| {
            format!(
                "typed_per_filter_config: {{teller: {{\"@type\": {BUFFER}.BufferPerRoute, buffer: {{max_request_bytes: {number}}}}}}}"
            )
        };
        let route = |when: &str, route: &str, number: u32| {
            format!("{{match: {{prefix: /, {when}}}, route: {{{route}}}, {}}}", told(number))
        };
        let routes = [
            route("headers: [{name: x-route, string_match: {exact: b}}]", "cluster: b, timeout: 0.3s", 2),
            route("headers: [{name: x-upstream, string_match: {exact: h2}}]", "cluster: a2, timeout: 30s", 3),
            "{match: {path: /direct}, direct_response: {status: 200, body: {inline_string: direct}}}".to_owned(),
            route("", "cluster: a, timeout: 30s", 1),
        ]
        .join(", ");
        let routes = format!(
            "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{routes}]}}]}}"
        );
        let filter = |name: &str| {
            format!("      - {{name: {name}, typed_config: {{\"@type\": {BUFFER}.Buffer, max_request_bytes: 1}}}}\n")
        };
        let listener = http_listener("filtered", &routes, "").replacen(
            "http_filters:\n",
            &format!("http_filters:\n{}{}", filter("doer"), filter("teller")),
            1,
        );
        let proxy = Proxy::start_with(&static_bootstrap(&listener, &clusters), 1);
        proxy.wait_live();
        let web = proxy.listener("filtered");
        Self { proxy, web, servers, _inner: inner, auth, runtime: Runtime::new().expect("threads") }
    }

    /// Asks over a connection of its own. An error is one of the connection, or of the stream.
    fn ask(&self, http2: bool, path: &str, headers: &[(&str, &str)], body: &str) -> hyper::Result<Outcome> {
        let mut request = Request::post(if http2 { format!("http://test{path}") } else { path.to_owned() });
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if !http2 {
            request = request.header("host", "test");
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        self.runtime.block_on(async {
            let io = TokioIo::new(tokio::net::TcpStream::connect(self.web).await.expect("it accepts"));
            let response = if http2 {
                let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
                let (mut sender, connection) = handshake.await?;
                tokio::spawn(connection);
                sender.send_request(request).await?
            } else {
                let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await?;
                tokio::spawn(connection);
                sender.send_request(request).await?
            };
            Outcome::of(response).await
        })
    }
}

/// An answer.
#[derive(Debug)]
struct Outcome {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Outcome {
    async fn of(response: Response<hyper::body::Incoming>) -> hyper::Result<Self> {
        let (parts, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok(Self {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().expect("text")).unwrap_or_default()
    }
}

#[test]
fn a_filter_asks_another_service_and_does_what_it_says() {
    let scene = Scene::new();
    for http2 in [false, true] {
        for (what, status, body, name, value) in [
            ("ask /ok", 200, "abc", "x-told", "1 for a"),
            ("ask /no", 403, "not you", "x-reason", "asked"),
            ("ask /b", 200, "abc", "x-told", "2 for b"),
            ("ask /late 100", 504, "nobody answers", "x-seen", "local"),
        ] {
            let outcome = scene.ask(http2, "/", &[("x-do", what)], "abc").expect("an answer");
            assert_eq!((outcome.status, outcome.body.as_str()), (status, body), "{what} {http2}");
            assert_eq!(outcome.header(name), value, "{what} {http2}");
        }
    }
    assert_eq!(scene.auth.requests().len(), 8);
    // The late ones were given up.
    eventually("no call under way", || (stat(&scene.proxy, "cluster.auth.upstream_rq_active") == [0]).then_some(()));
}

#[test]
fn what_a_filter_waits_for_ends_with_the_client_and_holds_the_body_back() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    register("doer", Doer);
    let clusters = [
        static_cluster("auth", silent.local_addr().expect("bound"), ""),
        static_cluster("a", silent.local_addr().expect("bound"), ""),
    ];
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                  route: {cluster: a}}]}]}";
    let filter = format!(
        "http_filters:\n      - {{name: doer, typed_config: {{\"@type\": {BUFFER}.Buffer, max_request_bytes: 1}}}}\n"
    );
    let listener = http_listener("waiting", routes, "").replacen("http_filters:\n", &filter, 1);
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &clusters), 1);
    proxy.wait_live();
    let mut client = TcpStream::connect(proxy.listener("waiting")).expect("it accepts");
    const BYTES: usize = 256 * 1024 * 1024;
    let head = format!("POST / HTTP/1.1\r\nhost: test\r\nx-do: ask /never\r\ncontent-length: {BYTES}\r\n\r\n");
    client.write_all(head.as_bytes()).expect("it reads");
    eventually("a call", || (stat(&proxy, "cluster.auth.upstream_rq_active") == [1]).then_some(()));
    client.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    let (mut sent, piece) = (0, vec![b'x'; 256 * 1024]);
    while let Ok(count @ 1..) = client.write(&piece) {
        sent += count;
    }
    // What the kernel holds for both ends.
    assert!(sent < 64 * 1024 * 1024, "{sent} bytes were read while the filter waits");
    drop(client);
    eventually("no call", || (stat(&proxy, "cluster.auth.upstream_rq_active") == [0]).then_some(()));
    eventually("no connection", || (stat(&proxy, "cluster.auth.upstream_cx_active") == [0]).then_some(()));
    eventually("no request", || (stat(&proxy, "http.waiting.downstream_rq_active") == [0]).then_some(()));
}

#[test]
fn a_filter_holds_back_a_request_s_body_and_refuses_it() {
    let scene = Scene::new();
    for (http2, upstream) in [(false, "h1"), (false, "h2"), (true, "h1"), (true, "h2")] {
        for (what, body, status, expected) in [
            ("hold-request 50", "abc", 200, "abc"),
            ("hold-request 50", "", 200, ""),
            ("collect-hold-request 100 50", "abc", 200, "abc"),
            ("refuse-request", "abc", 429, "too often"),
        ] {
            let outcome = scene.ask(http2, "/", &[("x-do", what), ("x-upstream", upstream)], body).expect("an answer");
            assert_eq!((outcome.status, outcome.body.as_str()), (status, expected), "{what} {http2} {upstream}");
        }
        let body = "x".repeat(1 << 20);
        let outcome = scene.ask(http2, "/", &[("x-do", "hold-request 50"), ("x-upstream", upstream)], &body);
        assert!(outcome.expect("an answer").body == body, "{http2} {upstream}: a long body, whole");
    }
}

#[test]
fn a_host_never_gets_the_end_of_a_body_that_a_filter_of_its_cluster_refuses() {
    register("doer", Doer);
    let server = server("a");
    let filters = format!(
        "explicit_http_config: {{http_protocol_options: {{}}}}, http_filters: [{{name: doer, typed_config: {{\"@type\": {BUFFER}.Buffer, \
         max_request_bytes: 1}}}}, {{name: codec, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec}}}}]"
    );
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                  route: {cluster: a}}]}]}";
    let clusters = [static_cluster("a", server.address(), &protocol(&filters))];
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("plain", routes, ""), &clusters), 1);
    proxy.wait_live();
    for (what, status, arrived) in [("nothing", 200, 1), ("refuse-request", 429, 1), ("hold-request 50", 500, 1)] {
        let mut client = Connection::open(proxy.listener("plain")).expect("it accepts");
        let head = format!("POST / HTTP/1.1\r\nhost: test\r\nx-do: {what}\r\ntransfer-encoding: chunked\r\n\r\n");
        client.send(format!("{head}3\r\nabc\r\n0\r\n\r\n")).expect("an open connection");
        assert_eq!(client.response().expect("an answer").status, status, "{what}");
        assert_eq!(server.requests().len(), arrived, "{what}: complete requests");
    }
}

#[test]
fn nothing_more_is_read_while_a_filter_holds_back_a_request_s_body() {
    let scene = Scene::new();
    let mut client = TcpStream::connect(scene.web).expect("it accepts");
    const BYTES: usize = 256 * 1024 * 1024;
    let head = format!("POST / HTTP/1.1\r\nhost: test\r\nx-do: hold-request 600000\r\ncontent-length: {BYTES}\r\n\r\n");
    client.write_all(head.as_bytes()).expect("it reads");
    client.set_write_timeout(Some(Duration::from_millis(500))).expect("a socket");
    let (mut sent, piece) = (0, vec![b'x'; 256 * 1024]);
    while let Ok(count @ 1..) = client.write(&piece) {
        sent += count;
    }
    // What the kernel holds for both ends.
    assert!(sent < 64 * 1024 * 1024, "{sent} bytes were read while the filter waits");
    drop(client);
    eventually("no request", || (stat(&scene.proxy, "http.filtered.downstream_rq_active") == [0]).then_some(()));
}

#[test]
fn a_filter_has_the_route_chosen_again_with_all_that_belongs_to_it() {
    let scene = Scene::new();
    for http2 in [false, true] {
        let plain = scene.ask(http2, "/", &[], "").expect("an answer");
        assert_eq!((plain.header("x-from"), plain.header("x-told")), ("a", "1 for a"));
        let other = scene.ask(http2, "/", &[("x-do", "reroute b")], "").expect("an answer");
        assert_eq!((other.header("x-from"), other.header("x-told")), ("b", "2 for b"));
        // The new route's timeout.
        let late = scene.ask(http2, "/slow", &[("x-do", "reroute b")], "").expect("an answer");
        assert_eq!((late.status, late.body.as_str()), (504, "upstream request timeout"));
        assert_eq!(scene.ask(http2, "/slow", &[], "").expect("an answer").status, 200, "the other's");
        // To where it went before.
        let same = scene.ask(http2, "/", &[("x-do", "reroute c")], "").expect("an answer");
        assert_eq!((same.header("x-from"), same.header("x-told")), ("a", "1 for a"));
    }
    assert_eq!(scene.servers[1].requests().len(), 4);
}

#[test]
fn a_filter_replaces_an_answer_or_waits_with_it() {
    let scene = Scene::new();
    for http2 in [false, true] {
        for (path, upstream) in [("/", "h1"), ("/", "h2"), ("/direct", "")] {
            let ask = |what: &str| {
                let headers = [("x-do", what), ("x-upstream", upstream)];
                scene.ask(http2, path, &headers, "abc").expect("an answer")
            };
            let context = format!("{path} {upstream} {http2}");
            let body = if path == "/direct" { "direct" } else { "abc" };
            let replaced = ask("replace");
            assert_eq!((replaced.status, replaced.body.as_str()), (418, "another"), "{context}");
            assert_eq!(replaced.header("x-replaced"), "200", "{context}");
            // No filter has seen it: not the one that has seen the first answer, either.
            assert_eq!((replaced.header("x-seen"), replaced.header("x-from")), ("", ""), "{context}");
            let waited = ask("ask-with-answer /ok");
            assert_eq!((waited.header("x-woken"), waited.body.as_str()), ("Some(Ready)", body), "{context}");
            let late = ask("ask-with-answer /late 100");
            assert_eq!((late.header("x-woken"), late.body.as_str()), ("Some(TimedOut)", body), "{context}");
            let seen = if path == "/direct" { "local" } else { "upstream" };
            assert_eq!(late.headers.get_all("x-seen").iter().collect::<Vec<_>>(), [seen], "{context}");
        }
    }
    // Connections are as good as before.
    let again = scene.ask(false, "/", &[], "abc").expect("an answer");
    assert_eq!((again.status, again.body.as_str()), (200, "abc"));
}

#[test]
fn a_filter_collects_answers_to_a_limit() {
    let scene = Scene::new();
    for http2 in [false, true] {
        for upstream in ["h1", "h2"] {
            for (path, sent, body) in [("/", "0123456789", "0123456789"), ("/", "", ""), ("/chunked", "", "one,two")] {
                let headers = [("x-do", "collect-answer 10"), ("x-upstream", upstream)];
                let whole = scene.ask(http2, path, &headers, sent).expect("an answer");
                let length = if body.is_empty() { String::new() } else { body.len().to_string() };
                assert_eq!(
                    (whole.status, whole.body.as_str(), whole.header("x-whole")),
                    (200, body, &*length),
                    "{path}"
                );
            }
            let headers = [("x-do", "collect-answer 6"), ("x-upstream", upstream)];
            let long = scene.ask(http2, "/chunked", &headers, "").expect("an answer");
            assert_eq!((long.status, long.body.as_str()), (500, "Internal Server Error"));
        }
    }
    assert_eq!(stat(&scene.proxy, "http.filtered.rs_too_large"), [4]);
}

#[test]
fn a_filter_makes_bodies_longer() {
    let scene = Scene::new();
    for http2 in [false, true] {
        for upstream in ["h1", "h2"] {
            let ask = |what: &str, path: &str, body: &str| {
                scene.ask(http2, path, &[("x-do", what), ("x-upstream", upstream)], body)
            };
            let context = format!("{http2} {upstream}");
            for what in ["longer-request", "collect-request 10", "longer-answer"] {
                let outcome = ask(what, "/", "abc").expect("an answer");
                assert_eq!(outcome.body, "aabbcc", "{what} {context}");
            }
            let chunked = ask("longer-answer", "/chunked", "").expect("an answer");
            assert_eq!(chunked.body, "oonnee,,ttwwoo", "{context}");
            // A head that says otherwise: nothing of it may be taken for another message.
            assert!(ask("lie-answer", "/", "abc").is_err(), "{context}");
            assert_eq!(ask("lie-request", "/", "abc").map(|outcome| outcome.status).ok(), Some(500), "{context}");
        }
        let direct = scene.ask(http2, "/direct", &[("x-do", "longer-answer")], "").expect("an answer");
        assert_eq!(direct.body, "ddiirreecctt");
    }
    let requests = scene.servers[0].requests();
    assert!(requests.iter().all(|request| request.body.len() % 2 == 0
        || request.header("x-do") == Some("longer-answer")
        || request.header("x-do") == Some("lie-answer")));
    // What was collected has a length.
    let collected = requests.iter().filter(|request| request.header("x-do") == Some("collect-request 10"));
    assert_eq!(collected.filter(|request| request.header("content-length") == Some("6")).count(), 4);
}
