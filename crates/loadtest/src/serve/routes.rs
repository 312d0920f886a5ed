//! Paths, and what they respond.

use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HOST, HeaderName, HeaderValue, LOCATION};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::Instant;

use super::ServeArguments;
use super::access::Access;
use super::parameters::{self, Parameter};
use super::runs::{Finished, Run, Runs, STOP_TIME};
use super::saved::Saved;
use crate::{compare, page};

/// Maximum size of a request's body: parameters and a payload.
const MAX_BODY_BYTES: usize = 4 << 20;
/// How often a stop that waits looks whether the run has ended.
const STOP_PERIOD: Duration = Duration::from_millis(20);

const PAGE: &str = include_str!("page.html");
const SCRIPT: &str = include_str!("page.js");
const STYLE: &str = include_str!("page.css");

type Reply = Response<Full<Bytes>>;

/// All pages.
#[derive(Debug)]
pub struct Pages {
    access: Access,
    runs: Arc<Runs>,
    saved: Arc<Saved>,
    /// For programs that send no Host header.
    address: SocketAddr,
}

/// Why there is no page.
struct Failure {
    status: StatusCode,
    message: String,
}

impl Failure {
    fn new(status: StatusCode, message: impl Display) -> Self {
        Self { status, message: message.to_string() }
    }

    fn wrong(message: impl Display) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }
}

impl Pages {
    /// Pages of a server that listens at `address`.
    pub fn new(arguments: &ServeArguments, address: SocketAddr) -> Self {
        let runs = Runs::new(arguments.max_runs, arguments.max_connections);
        let saved = Arc::new(Saved::new(arguments.data_dir.clone()));
        Self { access: Access::new(&arguments.hosts), runs: Arc::new(runs), saved, address }
    }

    /// Responds to a request.
    pub async fn respond(&self, request: Request<Incoming>) -> Reply {
        let acts = matches!(request.uri().path(), "/fortio/rest/run" | "/fortio/rest/stop" | "/fortio/rest/dns");
        if let Err(refusal) = self.access.check(request.headers(), acts) {
            return failure(&Failure::new(StatusCode::FORBIDDEN, refusal));
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD | Method::POST) {
            let mut reply = failure(&Failure::new(StatusCode::METHOD_NOT_ALLOWED, "expected GET or POST"));
            reply.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
            return reply;
        }
        self.route(request).await.unwrap_or_else(|error| failure(&error))
    }

    async fn route(&self, request: Request<Incoming>) -> Result<Reply, Failure> {
        let path = request.uri().path().to_owned();
        let query = parameters::from_query(request.uri().query().unwrap_or_default());
        let number = || number(&query);
        Ok(match path.as_str() {
            "/" | "/fortio" => redirect(),
            "/fortio/" => text("text/html; charset=utf-8", PAGE),
            "/fortio/page.js" => text("text/javascript; charset=utf-8", SCRIPT),
            "/fortio/page.css" => text("text/css; charset=utf-8", STYLE),
            "/fortio/rest/run" => self.run(request, query).await?,
            "/fortio/rest/status" => as_json(&json!({ "Statuses": self.runs.statuses(number()?) })),
            "/fortio/rest/stop" => self.stop(number()?, &query, request.headers()).await?,
            "/fortio/rest/live" => self.live(number()?)?,
            "/fortio/rest/dns" => dns(&query).await?,
            "/fortio/report" => self.report(&query)?,
            "/fortio/compare" => self.compare(&query)?,
            "/fortio/data/" => {
                let names = self.saved.list().map_err(|error| Failure::new(StatusCode::SERVICE_UNAVAILABLE, error))?;
                as_json(&names)
            }
            path => self.saved_result(path)?,
        })
    }

    /// Starts a run. The response is the result, or with `async=on` the number of the run.
    async fn run(&self, request: Request<Incoming>, mut query: Vec<Parameter>) -> Result<Reply, Failure> {
        let base = self.base(request.headers());
        query.extend(body(request, &query).await?);
        let wanted = parameters::read(&query).map_err(Failure::wrong)?;
        let (saves, is_async) = (wanted.saves, wanted.is_async);
        // Names are resolved meanwhile.
        let runs = self.runs.clone();
        let run = blocking(move || runs.add(wanted)).await?.map_err(Failure::wrong)?;
        let (number, id) = (run.number, run.id());
        let ending = tokio::spawn(end(self.runs.clone(), saves.then(|| self.saved.clone()), run));
        if is_async {
            let url = if saves { format!("{base}/fortio/data/{id}.json") } else { String::new() };
            let started =
                json!({ "message": "started", "RunID": number, "Count": 1, "ResultID": id, "ResultURL": url });
            return Ok(as_json(&started));
        }
        let failed = |error: &dyn Display| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error);
        let finished = ending.await.map_err(|error| failed(&error))?.map_err(|error| failed(&error))?;
        let result = finished.result.map_err(|error| Failure::wrong(format!("Aborting because of error: {error}")))?;
        Ok(as_json(&*result))
    }

    async fn stop(&self, number: i64, query: &[Parameter], headers: &HeaderMap) -> Result<Reply, Failure> {
        let waits = value(query, "wait").is_some_and(|wait| !matches!(wait, "" | "off" | "false"));
        let stopped = self.runs.stop(number);
        let deadline = Instant::now() + STOP_TIME;
        let goes_on = || stopped.iter().any(|run| self.runs.active(run.number).is_some());
        while waits && goes_on() && Instant::now() < deadline {
            tokio::time::sleep(STOP_PERIOD).await;
        }
        // Of several the name would mislead.
        let id = if let [run] = stopped.as_slice() { run.id() } else { String::new() };
        let message = if waits && stopped.len() == 1 && !goes_on() { "stopped" } else { "stopping" };
        let url = if id.is_empty() { String::new() } else { format!("{}/fortio/data/{id}.json", self.base(headers)) };
        let count = stopped.len();
        Ok(as_json(&json!({ "message": message, "RunID": number, "Count": count, "ResultID": id, "ResultURL": url })))
    }

    /// A run so far, or its result.
    fn live(&self, number: i64) -> Result<Reply, Failure> {
        if let Some(run) = self.runs.active(number) {
            return Ok(as_json(&json!({ "RunID": number, "State": run.state() as i32, "Live": run.live() })));
        }
        match self.runs.finished(number).map(|run| run.result) {
            Some(Ok(result)) => Ok(as_json(&json!({ "RunID": number, "State": STOPPED, "Result": *result }))),
            Some(Err(reason)) => Ok(as_json(&json!({ "RunID": number, "State": STOPPED, "Failure": reason }))),
            None => Err(Failure::new(StatusCode::NOT_FOUND, format!("no run has the number {number}"))),
        }
    }

    /// A page of saved results.
    fn report(&self, query: &[Parameter]) -> Result<Reply, Failure> {
        let names = query.iter().filter(|parameter| parameter.name == "name");
        let results = names.map(|parameter| self.saved.read(&parameter.value)).collect::<Result<Vec<_>, _>>();
        let results = results.map_err(Failure::wrong)?;
        if results.is_empty() {
            return Err(Failure::wrong("expected name=RESULT, once or several times"));
        }
        let mut reply = text("text/html; charset=utf-8", page::render(&results));
        // The page is one file, with its style in it.
        let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'");
        reply.headers_mut().insert(POLICY, policy);
        Ok(reply)
    }

    /// What differs between two saved results, as `evenkeel load compare` says it.
    fn compare(&self, query: &[Parameter]) -> Result<Reply, Failure> {
        let read = |name: &str| {
            let result = value(query, name).ok_or_else(|| Failure::wrong("expected before=RESULT and after=RESULT"))?;
            self.saved.read(result).map_err(Failure::wrong)
        };
        let mut found = Vec::new();
        compare::run(&read("before")?, &read("after")?, &mut found).map_err(Failure::wrong)?;
        Ok(text("text/plain; charset=utf-8", found))
    }

    fn saved_result(&self, path: &str) -> Result<Reply, Failure> {
        let missing = |reason: &dyn Display| Failure::new(StatusCode::NOT_FOUND, reason);
        let name = path.strip_prefix("/fortio/data/").and_then(|name| name.strip_suffix(".json"));
        let name =
            name.ok_or_else(|| missing(&"expected /fortio/, /fortio/data/, /fortio/rest/run, status, stop or dns"))?;
        let bytes = self.saved.bytes(name).map_err(|error| missing(&format!("{name}: {error}")))?;
        Ok(text("application/json", bytes))
    }

    /// The server's URL, as the client knows it.
    fn base(&self, headers: &HeaderMap) -> String {
        let host = headers.get(HOST).and_then(|host| host.to_str().ok());
        format!("http://{}", host.map_or_else(|| self.address.to_string(), str::to_owned))
    }
}

/// Fortio's number of the state of a run that has ended.
const STOPPED: i32 = 4;

/// Does a run to its end, and writes the result if somebody wants it. It goes on if the client does not wait.
async fn end(runs: Arc<Runs>, saved: Option<Arc<Saved>>, run: Arc<Run>) -> Result<Finished, String> {
    let done = spawn_blocking(move || {
        let finished = runs.execute(&run);
        if let (Some(saved), Ok(result)) = (saved, &finished.result) {
            let json = serde_json::to_string_pretty(&**result).map_err(|error| error.to_string())?;
            saved.write(&result.id, &json).map_err(|error| format!("writing {}.json: {error}", result.id))?;
        }
        Ok(finished)
    });
    done.await.map_err(|error| error.to_string())?
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Failure> {
    spawn_blocking(work).await.map_err(|error| Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error))
}

/// The parameters of a request's body: a form's, or JSON's.
async fn body(request: Request<Incoming>, query: &[Parameter]) -> Result<Vec<Parameter>, Failure> {
    let form = HeaderValue::from_static("application/x-www-form-urlencoded");
    let is_form = request.headers().get(CONTENT_TYPE) == Some(&form);
    let collected = Limited::new(request.into_body(), MAX_BODY_BYTES).collect().await;
    let bytes = collected.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => {
            Failure::new(StatusCode::PAYLOAD_TOO_LARGE, format!("the body is larger than {MAX_BODY_BYTES} bytes"))
        }
        None => Failure::wrong(error),
    })?;
    let bytes = bytes.to_bytes();
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    if is_form {
        return Ok(parameters::from_query(&String::from_utf8_lossy(&bytes)));
    }
    parameters::from_json(&bytes, value(query, "jsonPath").unwrap_or_default()).map_err(Failure::wrong)
}

async fn dns(query: &[Parameter]) -> Result<Reply, Failure> {
    let name = value(query, "name").unwrap_or_default();
    let found = tokio::net::lookup_host((name, 0)).await;
    let found = found.map_err(|error| Failure::wrong(format!("dns failed: {error}")))?;
    let (mut ipv4, mut ipv6) = (Vec::new(), Vec::new());
    for address in found {
        let list = if address.is_ipv4() { &mut ipv4 } else { &mut ipv6 };
        list.push(address.ip().to_string());
    }
    ipv4.dedup();
    ipv6.dedup();
    Ok(as_json(&json!({ "Name": name, "IPv4": ipv4, "IPv6": ipv6 })))
}

fn value<'q>(query: &'q [Parameter], name: &str) -> Option<&'q str> {
    query.iter().find(|parameter| parameter.name == name).map(|parameter| parameter.value.as_str())
}

/// The number of a run; absent: 0, which is all.
fn number(query: &[Parameter]) -> Result<i64, Failure> {
    let Some(text) = value(query, "runid").filter(|text| !text.is_empty()) else { return Ok(0) };
    text.parse().map_err(|_| Failure::wrong(format!("runid={text:?}: expected a number")))
}

const POLICY: HeaderName = HeaderName::from_static("content-security-policy");

fn text(content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    let headers = reply.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    let policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
                  form-action 'none'; frame-ancestors 'none'";
    headers.insert(POLICY, HeaderValue::from_static(policy));
    reply
}

fn as_json(value: &impl Serialize) -> Reply {
    match serde_json::to_vec_pretty(value) {
        Ok(mut bytes) => {
            bytes.push(b'\n');
            text("application/json", bytes)
        }
        Err(error) => failure(&Failure::new(StatusCode::INTERNAL_SERVER_ERROR, error)),
    }
}

fn redirect() -> Reply {
    let mut reply = text("text/plain", "/fortio/\n");
    *reply.status_mut() = StatusCode::FOUND;
    reply.headers_mut().insert(LOCATION, HeaderValue::from_static("/fortio/"));
    reply
}

/// As Fortio says that something failed.
fn failure(failure: &Failure) -> Reply {
    let body: Value = json!({ "error": true, "message": failure.message });
    let mut reply = text("application/json", format!("{body}\n"));
    *reply.status_mut() = failure.status;
    reply
}
