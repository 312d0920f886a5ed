//! The admin interface: Envoy's pages at Envoy's paths, served by hyper on the control thread.

mod apart;
mod caller;
mod certs;
mod clusters;
mod config_dump;
mod edges;
mod explain;
mod info;
mod log;
mod profile;
mod requests;
mod stall_timeout;
mod stats;
mod tap;

use std::cell::{OnceCell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use evenkeel_upstream::own::OwnConnections;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};

use apart::Drawing;
use caller::Caller;
pub(crate) use log::AdminLog;
use stall_timeout::StallTimeout;

use crate::access_log::LogHandle;
use crate::logging::Logging;
use crate::state::Shared;
use crate::throttling::Throttling;
use crate::worker::DrainScope;

/// Connections served at once; further ones wait in the accept queue.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of a request's head, in bytes.
const MAX_HEAD_BYTES: usize = 16 * 1024;
/// Maximum length of a regular expression in a query, in bytes.
const MAX_REGEX_BYTES: usize = 1024;
/// Maximum size of the program that a regular expression in a query is compiled to, in bytes: it bounds the cost of a
/// match.
const MAX_REGEX_PROGRAM_BYTES: usize = 256 * 1024;

/// Pages for requests that come through the proxy itself: a listener of the bootstrap shows them to Prometheus and to probes.
const OPEN_THROUGH_PROXY: [&str; 3] = ["/ready", "/stats", "/stats/prometheus"];

/// A command from an operator to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// End now (`/quitquitquit`).
    Quit,
    /// Stop accepting and let open connections finish (`/drain_listeners`).
    Drain(DrainListeners),
    /// Ask clients to leave, or stop doing so (`/healthcheck/fail`, `/healthcheck/ok`).
    Health {
        /// True: clients are asked to leave.
        failed: bool,
    },
}

/// `/drain_listeners` and its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainListeners {
    /// `inboundonly`: inbound listeners; otherwise all.
    pub(crate) scope: DrainScope,
    /// Accept connections until the drain time has passed.
    pub(crate) graceful: bool,
    /// Do not stop accepting after the drain time either.
    pub(crate) skip_exit: bool,
}

/// The state that the pages are rendered from.
pub(crate) struct Admin {
    pub shared: Shared,
    pub logging: Logging,
    pub log: LogHandle,
    /// Where requests to the port are logged.
    pub access: AdminLog,
    pub commands: mpsc::Sender<Command>,
    pub options: crate::options::Settings,
    /// The connections that the proxy itself has made.
    pub own: Arc<OwnConnections>,
    /// When the CPU limit has throttled the proxy.
    pub throttling: Rc<RefCell<Throttling>>,
}

/// The answer to a request.
struct Reply {
    status: StatusCode,
    content_type: &'static str,
    /// The value of `Content-Encoding`, if the body is encoded.
    encoding: Option<&'static str>,
    body: Vec<u8>,
}

impl Reply {
    fn text(body: impl Into<String>) -> Self {
        let (status, body) = (StatusCode::OK, body.into().into_bytes());
        Self { status, content_type: "text/plain; charset=UTF-8", encoding: None, body }
    }

    fn json(value: &serde_json::Value) -> Self {
        // Pretty-printed like Envoy's: people read it.
        let body = serde_json::to_string_pretty(value).unwrap_or_else(|error| error.to_string()) + "\n";
        Self { content_type: "application/json", ..Self::text(body) }
    }

    fn error(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, ..Self::text(body) }
    }

    fn html(body: String) -> Self {
        Self { content_type: "text/html; charset=UTF-8", ..Self::text(body) }
    }
}

/// One page.
struct Page {
    path: &'static str,
    help: &'static str,
    /// Whether it changes something, so that it requires POST.
    mutates: bool,
    handler: Handler,
}

enum Handler {
    /// Rendered on the control thread, from its own state.
    Now(fn(&Admin, &Query) -> Reply),
    /// `/clusters`: asks the workers, then renders on a separate thread.
    Clusters,
    /// `/explain`: reads the call in the body, decides on a separate thread, then asks the workers.
    Explain,
    /// `/requests`: asks the workers, then renders on a separate thread.
    Requests,
    /// `/debug/pprof/…`: records on a separate thread.
    Profile,
    /// `/edges`: asks the workers, then renders on a separate thread.
    Edges,
    /// Large pages: the needed state is copied on the control thread, and the page is rendered on a separate thread.
    Apart(fn(&Admin, &Query) -> Result<Drawing, Reply>),
}

const PAGES: &[Page] = &[
    Page { path: "/", help: "this page", mutates: false, handler: Handler::Now(home) },
    Page {
        path: "/certs",
        help: "certificates in use and when they expire",
        mutates: false,
        handler: Handler::Apart(certs::page),
    },
    Page {
        path: "/clusters",
        help: "upstream clusters and their endpoints (?format=json)",
        mutates: false,
        handler: Handler::Clusters,
    },
    Page {
        path: "/config_dump",
        help: "the configuration in use (?include_eds, ?resource=FIELD, ?name_regex=REGEX)",
        mutates: false,
        handler: Handler::Apart(config_dump::page),
    },
    Page { path: "/debug/pprof/", help: "profiles of the proxy", mutates: false, handler: Handler::Profile },
    Page {
        path: "/debug/pprof/heap",
        help: "what is allocated, and still held (?seconds=N, ?format=svg; else for `go tool pprof`)",
        mutates: false,
        handler: Handler::Profile,
    },
    Page {
        path: "/debug/pprof/profile",
        help: "where CPU time goes (?seconds=N, ?format=svg; else for `go tool pprof`)",
        mutates: false,
        handler: Handler::Profile,
    },
    Page {
        path: "/drain_listeners",
        help: "stop accepting and let connections finish (?inboundonly, ?graceful: go on accepting meanwhile, ?skip_exit: and after)",
        mutates: true,
        handler: Handler::Now(drain_listeners),
    },
    Page {
        path: "/edges",
        help: "who has talked to whom, and how it was secured (JSON; see docs/security-tools.md)",
        mutates: false,
        handler: Handler::Edges,
    },
    Page {
        path: "/explain",
        help: "what happens to the call in the body, a JSON object (POST; see docs/explain.md)",
        mutates: false,
        handler: Handler::Explain,
    },
    Page {
        path: "/healthcheck/fail",
        help: "ask clients to go: connections are closed at their next message boundary, /ready is 503",
        mutates: true,
        handler: Handler::Now(|admin, _| command(admin, Command::Health { failed: true })),
    },
    Page {
        path: "/healthcheck/ok",
        help: "take /healthcheck/fail back",
        mutates: true,
        handler: Handler::Now(|admin, _| command(admin, Command::Health { failed: false })),
    },
    Page {
        path: "/listeners",
        help: "bound listeners (?format=json)",
        mutates: false,
        handler: Handler::Apart(info::listeners),
    },
    Page {
        path: "/logging",
        help: "show or set the log level (?level=LEVEL)",
        mutates: true,
        handler: Handler::Now(set_logging),
    },
    Page { path: "/quitquitquit", help: "end the process", mutates: true, handler: Handler::Now(quit) },
    Page {
        path: "/ready",
        help: "200 LIVE once everything is in place, else 503",
        mutates: false,
        handler: Handler::Now(info::ready),
    },
    Page {
        path: "/reopen_logs",
        help: "open access logs anew, after a rotation",
        mutates: true,
        handler: Handler::Now(reopen_logs),
    },
    Page {
        path: "/requests",
        help: "recent requests and what became of them, without secret values (?id=ID)",
        mutates: false,
        handler: Handler::Requests,
    },
    Page {
        path: "/scope",
        help: "what the workload uses, in a proxy that asks for it when it does (?format=json)",
        mutates: false,
        handler: Handler::Apart(info::scope),
    },
    Page {
        path: "/server_info",
        help: "version, state and options",
        mutates: false,
        handler: Handler::Now(info::server_info),
    },
    Page {
        path: "/stats",
        help: "statistics (?filter=REGEX, ?usedonly, ?format=json|prometheus|openmetrics)",
        mutates: false,
        handler: Handler::Apart(stats::page),
    },
    Page {
        path: "/stats/prometheus",
        help: "statistics for Prometheus (?filter=REGEX); OpenMetrics with exemplars if Accept prefers it",
        mutates: false,
        handler: Handler::Apart(stats::prometheus),
    },
    Page {
        path: "/tap",
        help: "requests as they end, without secret values (?since=NEXT; see docs/why.md)",
        mutates: false,
        handler: Handler::Apart(tap::page),
    },
    Page {
        path: "/workers",
        help: "load of each worker (?format=json)",
        mutates: false,
        handler: Handler::Apart(info::workers),
    },
    Page {
        path: "/xds",
        help: "streams to the control plane, and what was refused",
        mutates: false,
        handler: Handler::Apart(info::xds),
    },
];

/// Binds the admin port.
pub(crate) async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves for the life of the process.
pub(crate) async fn serve(listener: TcpListener, admin: Rc<Admin>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, peer)) => {
                let admin = admin.clone();
                tokio::task::spawn_local(async move {
                    if let Ok(local) = stream.local_addr() {
                        serve_connection(stream, Caller { peer, local }, admin).await;
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "admin: cannot accept");
                // Probably out of descriptors: some will be free in a moment.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, caller: Caller, admin: Rc<Admin>) {
    let is_own = Rc::new(OnceCell::new());
    let service = service_fn(move |request: Request<Incoming>| {
        let admin = admin.clone();
        // Asked only now: the connection is noted before the first request is sent on it.
        let is_own = *is_own.get_or_init(|| admin.own.take(caller.peer, caller.local) > 0);
        async move {
            let (head, body) = request.into_parts();
            let start = (SystemTime::now(), Instant::now());
            let reply = match admit(&admin, (caller, is_own), &head).await {
                Ok(()) => answer(&admin, &head, body).await,
                Err(refusal) => refusal,
            };
            admin.access.write(caller, &head, &reply, start);
            Ok::<_, std::convert::Infallible>(response(reply))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(StallTimeout::new(stream)), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "admin: connection ended");
    }
}

/// Refuses requests of web pages, changes by others than the proxy's user, and most requests that somebody sends through the proxy
/// (`is_own`): the connection is the proxy's, but its words are not.
async fn admit(admin: &Admin, (caller, is_own): (Caller, bool), head: &http::request::Parts) -> Result<(), Reply> {
    if is_own && !OPEN_THROUGH_PROXY.contains(&head.uri.path()) {
        tracing::warn!(path = head.uri.path(), "admin: a request through the proxy itself refused");
        return Err(caller::forbidden("the proxy shows only statistics and its readiness through itself".to_owned()));
    }
    caller::refuse_pages(caller, &head.method, &head.headers)?;
    let changes = PAGES.iter().any(|page| page.mutates && page.path == head.uri.path());
    if changes && head.method == Method::POST {
        caller::refuse_strangers(caller, admin.options.admin_writers).await?;
    }
    Ok(())
}

fn response(reply: Reply) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(reply.body)));
    *response.status_mut() = reply.status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(reply.content_type));
    if let Some(encoding) = reply.encoding {
        headers.insert(header::CONTENT_ENCODING, header::HeaderValue::from_static(encoding));
    }
    headers.insert(header::CACHE_CONTROL, header::HeaderValue::from_static("no-cache, max-age=0"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, header::HeaderValue::from_static("nosniff"));
    headers.insert(header::SERVER, header::HeaderValue::from_static("evenkeel"));
    response
}

async fn answer(admin: &Admin, head: &http::request::Parts, body: Incoming) -> Reply {
    let (method, uri) = (&head.method, &head.uri);
    let Some(page) = PAGES.iter().find(|page| page.path == uri.path()) else {
        let list = PAGES.iter().map(|page| format!("  {}: {}\n", page.path, page.help)).collect::<String>();
        return Reply::error(
            StatusCode::NOT_FOUND,
            format!("no such page: {}\nadmin commands are:\n{list}", uri.path()),
        );
    };
    let text = |name| head.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (accept, accept_encoding) = (text(header::ACCEPT), text(header::ACCEPT_ENCODING));
    let query = Query { accept, accept_encoding, ..Query::parse(uri.query().unwrap_or_default()) };
    match *method {
        Method::GET | Method::HEAD if page.mutates => {
            Reply::error(StatusCode::METHOD_NOT_ALLOWED, format!("{} changes something: use POST\n", page.path))
        }
        Method::GET | Method::HEAD | Method::POST => match page.handler {
            Handler::Now(draw) => draw(admin, &query),
            Handler::Explain => explain::page(admin, body).await,
            Handler::Profile => profile::page(uri).await,
            Handler::Requests => requests::page(admin, &query).await,
            Handler::Edges => edges::page(admin).await,
            Handler::Clusters => apart::draw(clusters::page(admin, &query).await).await,
            Handler::Apart(begin) => match begin(admin, &query) {
                Ok(drawing) => apart::draw(drawing).await,
                Err(refusal) => refusal,
            },
        },
        _ => Reply::error(StatusCode::METHOD_NOT_ALLOWED, "use GET, or POST to change something\n"),
    }
}

/// The parameters of a query string, and the headers `Accept` and `Accept-Encoding`.
struct Query {
    pairs: Vec<(String, String)>,
    accept: Option<String>,
    accept_encoding: Option<String>,
}

impl Query {
    fn parse(text: &str) -> Self {
        let pairs = text.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (percent_decoded(name), percent_decoded(value))
        });
        Self { pairs: pairs.collect(), accept: None, accept_encoding: None }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value != "off" && value != "false")
    }

    fn wants_json(&self) -> bool {
        self.get("format") == Some("json")
    }

    /// The regular expression in a parameter, or an error reply.
    fn regex(&self, name: &str) -> Result<Option<regex::Regex>, Reply> {
        let build = |text: &str| {
            if text.len() <= MAX_REGEX_BYTES {
                regex::RegexBuilder::new(text)
                    .size_limit(MAX_REGEX_PROGRAM_BYTES)
                    .dfa_size_limit(MAX_REGEX_PROGRAM_BYTES)
                    .build()
                    .map_err(|error| error.to_string())
            } else {
                Err(format!("an expression of {} bytes; at most {MAX_REGEX_BYTES} are taken", text.len()))
            }
        };
        let invalid = |reason| Reply::error(StatusCode::BAD_REQUEST, format!("{name}: {reason}\n"));
        self.get(name).map(build).transpose().map_err(invalid)
    }
}

fn percent_decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

fn home(_: &Admin, _: &Query) -> Reply {
    let rows = PAGES.iter().map(|page| {
        let cell = if page.mutates {
            format!("<form method=\"post\" action=\"{0}\"><button>{0}</button></form>", page.path)
        } else {
            format!("<a href=\"{0}\">{0}</a>", page.path)
        };
        format!("<tr><td>{cell}</td><td>{}</td></tr>\n", page.help)
    });
    Reply::html(format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><title>Evenkeel proxy admin</title>\n\
         <style>body{{font-family:system-ui,sans-serif;margin:2em}}td{{padding:.2em 1em .2em 0}}form{{margin:0}}</style>\n\
         </head><body><h1>Evenkeel proxy</h1>\n<table>\n{}</table></body></html>\n",
        rows.collect::<String>()
    ))
}

fn set_logging(admin: &Admin, query: &Query) -> Reply {
    if let Some(level) = query.get("level") {
        match level.parse() {
            Ok(level) if admin.logging.set(level) => tracing::info!(%level, "log level set"),
            Ok(_) => {
                return Reply::error(StatusCode::BAD_REQUEST, "the log belongs to the program the proxy runs in\n");
            }
            Err(reason) => return Reply::error(StatusCode::BAD_REQUEST, format!("{reason}\n")),
        }
    }
    Reply::text(format!("active loggers:\n  all: {}\n", admin.logging.level()))
}

fn reopen_logs(admin: &Admin, _: &Query) -> Reply {
    admin.log.reopen();
    Reply::text("OK\n")
}

fn quit(admin: &Admin, _: &Query) -> Reply {
    command(admin, Command::Quit)
}

fn drain_listeners(admin: &Admin, query: &Query) -> Reply {
    let scope = if query.has("inboundonly") { DrainScope::Inbound } else { DrainScope::All };
    let (graceful, skip_exit) = (query.has("graceful"), query.has("skip_exit"));
    if skip_exit && !graceful {
        return Reply::error(StatusCode::BAD_REQUEST, "skip_exit makes sense with graceful only\n");
    }
    command(admin, Command::Drain(DrainListeners { scope, graceful, skip_exit }))
}

fn command(admin: &Admin, command: Command) -> Reply {
    match admin.commands.try_send(command) {
        Ok(()) => Reply::text("OK\n"),
        Err(_) => Reply::error(StatusCode::SERVICE_UNAVAILABLE, "the process is ending already\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = Query::parse("filter=%5Ecluster%2e&usedonly&format=json&x=a+b%zz");
        assert_eq!(query.get("filter"), Some("^cluster."));
        assert!(query.has("usedonly") && query.wants_json());
        assert_eq!(query.get("x"), Some("a b%zz"));
        assert!(!Query::parse("graceful=off").has("graceful"));
    }

    #[test]
    fn expressions_in_queries_are_small() {
        let check = |text: &str, taken: bool| {
            let query = Query { pairs: vec![("filter".to_owned(), text.to_owned())], ..Query::parse("") };
            assert_eq!(query.regex("filter").is_ok(), taken, "{text:.60}");
        };
        check(r"^cluster\.(outbound|inbound)\|\d+\|.*\.upstream_rq_(total|[45]xx)$", true);
        check("(", false);
        check(&"a".repeat(MAX_REGEX_BYTES + 1), false);
        check(r"((\w{100}){100}){100}", false);
        check(r"(\pL{50}\s*){50}", false);
    }

    /// Meanwhile the control thread serves `/ready` and the xDS streams.
    #[test]
    fn what_grows_with_the_configuration_is_written_apart() {
        let now = PAGES.iter().filter(|page| !page.mutates && matches!(page.handler, Handler::Now(_)));
        assert_eq!(now.map(|page| page.path).collect::<Vec<_>>(), ["/", "/ready", "/server_info"]);
    }

    #[test]
    fn pages_are_in_order_and_distinct() {
        assert!(PAGES.windows(2).all(|pair| pair[0].path < pair[1].path));
    }
}
