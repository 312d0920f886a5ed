//! The status port, 15020 as in Istio: readiness, the probes of the Pod's programs, and the metrics of the proxy and of the
//! workload's program on one page (`enablePrometheusMerge`).
//!
//! Prometheus scrapes only one port of a Pod. So this page has both the proxy's metrics and the program's, which are fetched
//! from the address in the Pod's annotations `prometheus.io/…`. If one of the two does not answer, the page has the other,
//! and the failure is counted.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use evenkeel_admin::client::Connection;
use evenkeel_process::gzip;
use evenkeel_process::newest::serve_newest;
use evenkeel_proxy::HotRestartState;
use futures_util::future::join_all;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout, timeout_at};

use crate::channel::dial;
use crate::handover::{Inherited, while_held};
use crate::health::app_probes::AppProbes;
use crate::options::Options;
use crate::program_metrics::ProgramPage;
use crate::scrape::{Format, MetricsPage, OwnCounter, merged};
use crate::{Task, admin};

/// The page with metrics.
pub(crate) const METRICS: &str = "/stats/prometheus";
/// The page that says whether the workload is ready.
const READY: &str = "/healthz/ready";
/// The probes of the Pod's programs.
const PROBES: &str = "/app-health/";
/// The header with Prometheus' time limit of a scrape.
const SCRAPE_TIMEOUT: &str = "x-prometheus-scrape-timeout-seconds";
/// The default and maximum of that limit.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_TIMEOUT: Duration = Duration::from_secs(60);
/// The part of this time that the proxy and the program have; the rest is for sending the page.
const SHARE: f64 = 0.8;
/// Maximum size of a page of the proxy or the program, in bytes; of a page of one of several programs, as in Istio.
const MAX_PAGE_BYTES: usize = 64 * 1024 * 1024;
const MAX_TARGET_BYTES: usize = 10 * 1024 * 1024;
/// Connections at a time; a further one takes the place of the oldest of the address that has most. Scrapes among them; others wait.
const MAX_CONNECTIONS: usize = 32;
const MAX_SCRAPES: usize = 2;
/// How long a client may take for its request, and for the whole connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);

/// The server, running.
pub(crate) struct StatusPort {
    listener: Arc<TcpListener>,
    _task: Task,
}

impl StatusPort {
    /// Opens the port, if the options ask for it, on the previous agent's socket or on a new one. A workload does not have to wait for
    /// this page: if the port is taken, which its program may have done, there is none.
    pub(crate) async fn start(
        options: &Options,
        inherited: Option<&mut Inherited>,
        ready: watch::Receiver<bool>,
        state: &watch::Sender<HotRestartState>,
    ) -> anyhow::Result<Option<Self>> {
        let Some(port) = options.status_port() else { return Ok(None) };
        if options.proxy_ports().contains(&port) {
            tracing::warn!(port, "the proxy itself listens on the status port; there is no page");
            return Ok(None);
        }
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        let handed = inherited.map(Inherited::take_status).transpose()?.flatten();
        let listener = match handed.filter(|listener| listener.local_addr().is_ok_and(|bound| bound == address)) {
            Some(listener) => listener,
            None => match TcpListener::bind(address).await {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::warn!(%address, %error, "the status port cannot be opened; its page is missing");
                    return Ok(None);
                }
            },
        };
        let (listener, pages) = (Arc::new(listener), Arc::new(Pages::new(options, port, ready)));
        let serving = listener.clone();
        let run = move || serve(serving.clone(), pages.clone());
        let task = Task::spawn(while_held(state.subscribe(), run));
        Ok(Some(Self { listener, _task: task }))
    }

    /// A duplicate of its descriptor.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }
}

/// Accepts connections until the future is dropped.
async fn serve(listener: Arc<TcpListener>, pages: Arc<Pages>) {
    let each = move |stream, peer: SocketAddr| {
        let answered = timeout(CONNECTION_TIMEOUT, pages.clone().answer(stream, peer.ip().to_canonical()));
        async move { _ = answered.await }
    };
    match serve_newest(&listener, MAX_CONNECTIONS, each).await {}
}

/// The data of the pages.
struct Pages {
    /// The proxy's admin port, if there is a proxy.
    admin: Option<u16>,
    /// The pages with the programs' metrics.
    programs: Vec<Program>,
    /// The probes of the programs.
    probes: AppProbes,
    mark: Option<u32>,
    ready: watch::Receiver<bool>,
    scrapes: Arc<Semaphore>,
    /// The scrapes of each address, one at a time: an address that reads no page does not get all places.
    scrapes_of: Mutex<HashMap<IpAddr, Arc<Semaphore>>>,
    counted: Counted,
    /// Whether the program was asked for protobuf and has only texts.
    program_has_text: AtomicBool,
}

/// A page with metrics of a program.
struct Program {
    page: ProgramPage,
    /// Whether its last scrape failed.
    is_failing: AtomicBool,
}

/// The places among the scrapes, of its address and of all, that a connection has until it ends: a client that does not read the page
/// holds memory.
type ScrapePlace = OnceLock<[OwnedSemaphorePermit; 2]>;

/// Scrape counters of Istio's agent.
#[derive(Debug, Default)]
struct Counted {
    scrapes: AtomicU64,
    proxy_failures: AtomicU64,
    program_failures: AtomicU64,
}

impl Pages {
    fn new(options: &Options, own_port: u16, ready: watch::Receiver<bool>) -> Self {
        let usable = |page: Result<ProgramPage, String>| {
            page.inspect_err(|reason| tracing::warn!(reason, "a program's metrics are not merged with the proxy's"))
                .ok()
        };
        // Otherwise the page would request itself.
        let is_other = |page: &ProgramPage| (page.port, page.path.as_str()) != (own_port, METRICS);
        let pages = options.program_pages().into_iter().filter_map(usable).filter(is_other);
        let programs = pages.map(|page| Program { page, is_failing: AtomicBool::new(false) }).collect();
        let probes = AppProbes::new(options.app_probes().unwrap_or("{}"), options.mark()).unwrap_or_else(|reason| {
            tracing::error!(reason, "ISTIO_KUBE_APP_PROBERS cannot be read: the probes of the Pod's programs fail");
            AppProbes::default()
        });
        Self {
            probes,
            admin: (!options.no_proxy).then_some(options.admin_port()),
            programs,
            mark: options.mark(),
            ready,
            scrapes: Arc::new(Semaphore::new(MAX_SCRAPES)),
            scrapes_of: Mutex::default(),
            counted: Counted::default(),
            program_has_text: AtomicBool::new(false),
        }
    }

    /// Answers one request.
    async fn answer(self: Arc<Self>, stream: TcpStream, peer: IpAddr) {
        let (pages, place) = (&self, &ScrapePlace::new());
        let service = service_fn(move |request: Request<Incoming>| async move {
            Ok::<_, Infallible>(pages.page(&request, peer, place).await)
        });
        let mut server = hyper::server::conn::http1::Builder::new();
        server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).keep_alive(false);
        // A client that goes away harms nobody.
        let _ = server.serve_connection(TokioIo::new(stream), service).await;
    }

    /// Waits for a place among the scrapes; `None`: there will be none.
    async fn scrape_place(&self, peer: IpAddr) -> Option<[OwnedSemaphorePermit; 2]> {
        let own = {
            let mut all = self.scrapes_of.lock().unwrap_or_else(PoisonError::into_inner);
            // What only this table holds is used by nobody. There are no more than connections.
            all.retain(|_, scrapes| Arc::strong_count(scrapes) > 1);
            all.entry(peer).or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
        };
        Some([own.acquire_owned().await.ok()?, self.scrapes.clone().acquire_owned().await.ok()?])
    }

    async fn page(&self, request: &Request<Incoming>, peer: IpAddr, place: &ScrapePlace) -> Response<Full<Bytes>> {
        let said = |status: StatusCode, text: &str| {
            let mut response = Response::new(Full::from(format!("{text}\n")));
            *response.status_mut() = status;
            response
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return said(StatusCode::METHOD_NOT_ALLOWED, "GET only");
        }
        match request.uri().path() {
            READY if *self.ready.borrow() => said(StatusCode::OK, "ready"),
            READY => said(StatusCode::SERVICE_UNAVAILABLE, "not ready; status.json in the agent's --state says why"),
            METRICS => {
                let Some(free) = self.scrape_place(peer).await else {
                    return said(StatusCode::SERVICE_UNAVAILABLE, "the agent ends");
                };
                // A connection has one request.
                let _ = place.set(free);
                page_for(self.metrics(request.headers()).await, request.headers())
            }
            path if path.starts_with(PROBES) => match self.probes.ask(path).await {
                Some(Ok(())) => said(StatusCode::OK, "healthy"),
                Some(Err(reason)) => said(StatusCode::INTERNAL_SERVER_ERROR, &reason),
                None => said(StatusCode::NOT_FOUND, "no such probe in ISTIO_KUBE_APP_PROBERS"),
            },
            _ => said(StatusCode::NOT_FOUND, "pages: /healthz/ready, /stats/prometheus"),
        }
    }

    /// The metrics of both, in the format that the scraper prefers, if both have it.
    async fn metrics(&self, headers: &HeaderMap) -> MetricsPage {
        self.counted.scrapes.fetch_add(1, Relaxed);
        let until = Instant::now() + time_limit(headers);
        let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let mut preferred = Format::preferred(accept);
        if preferred == Format::Protobuf && self.program_has_text.load(Relaxed) {
            preferred = Format::OpenMetrics;
        }
        let pages = self.pages_of_both(preferred, until).await;
        if let Some(page) = merged(pages, &self.counted.counters(), preferred) {
            return page;
        }
        // Most programs have texts only, and go on having them.
        self.program_has_text.store(true, Relaxed);
        let pages = self.pages_of_both(Format::OpenMetrics, until).await;
        let text = || MetricsPage { format: Format::Text, body: Vec::new() };
        merged(pages, &self.counted.counters(), Format::Text).unwrap_or_else(text)
    }

    /// The pages of those that answer.
    async fn pages_of_both(&self, format: Format, until: Instant) -> Vec<MetricsPage> {
        let proxy = async {
            let address = admin::address(self.admin?).to_string();
            let place = Place { authority: &address, path: METRICS, mark: None, max_bytes: MAX_PAGE_BYTES };
            Some(fetch(&place, format, until).await)
        };
        let programs = join_all(self.programs.iter().map(|program| self.page_of(program, format, until)));
        let (proxy, programs) = tokio::join!(proxy, programs);
        let failed = |error: &io::Error| {
            self.counted.proxy_failures.fetch_add(1, Relaxed);
            tracing::debug!(%error, "the proxy's metrics are missing in a scrape");
        };
        proxy.and_then(|page| page.inspect_err(failed).ok()).into_iter().chain(programs.into_iter().flatten()).collect()
    }

    /// The page of a program; `None` if it failed, which is counted, and logged when it begins.
    async fn page_of(&self, program: &Program, format: Format, until: Instant) -> Option<MetricsPage> {
        let ProgramPage { port, path } = &program.page;
        let max_bytes = if self.programs.len() > 1 { MAX_TARGET_BYTES } else { MAX_PAGE_BYTES };
        let place = Place { authority: &format!("localhost:{port}"), path, mark: self.mark, max_bytes };
        let page = fetch(&place, format, until).await;
        let was_failing = program.is_failing.swap(page.is_err(), Relaxed);
        match &page {
            Ok(_) if was_failing => tracing::info!(port, path, "the program's metrics are back"),
            Ok(_) => {}
            Err(error) => {
                self.counted.program_failures.fetch_add(1, Relaxed);
                if !was_failing {
                    tracing::warn!(port, path, %error, "the program's metrics are missing on the status port's page");
                }
            }
        }
        page.ok()
    }
}

/// The response with a page, compressed if the client accepts that.
fn page_for(page: MetricsPage, headers: &HeaderMap) -> Response<Full<Bytes>> {
    let accepted = headers.get(header::ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
    let compressed = gzip::compressed(&page.body, accepted);
    let encoding = compressed.is_some().then_some(HeaderValue::from_static(gzip::GZIP));
    let mut response = Response::new(Full::from(compressed.unwrap_or(page.body)));
    response.headers_mut().insert(header::CONTENT_TYPE, page.format.content_type());
    if let Some(encoding) = encoding {
        response.headers_mut().insert(header::CONTENT_ENCODING, encoding);
    }
    response
}

/// Returns the time limit for answers of the proxy and the program.
fn time_limit(headers: &HeaderMap) -> Duration {
    let said = headers.get(SCRAPE_TIMEOUT).and_then(|value| value.to_str().ok()?.parse::<f64>().ok());
    let said = said.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    said.unwrap_or(DEFAULT_TIMEOUT).min(MAX_TIMEOUT).mul_f64(SHARE)
}

impl Counted {
    fn counters(&self) -> [OwnCounter; 2] {
        let failures = [("envoy", &self.proxy_failures), ("application", &self.program_failures)];
        [
            OwnCounter { name: "istio_agent_scrapes", label: "", values: vec![("", self.scrapes.load(Relaxed))] },
            OwnCounter {
                name: "istio_agent_scrape_failures",
                label: "type",
                values: failures.map(|(whose, count)| (whose, count.load(Relaxed))).to_vec(),
            },
        ]
    }
}

/// Where a page is. `mark`: of the socket; `max_bytes`: of the page.
struct Place<'p> {
    authority: &'p str,
    path: &'p str,
    mark: Option<u32>,
    max_bytes: usize,
}

/// Gets a page in this format or a poorer one.
async fn fetch(place: &Place<'_>, format: Format, until: Instant) -> io::Result<MetricsPage> {
    let request = Request::get(place.path)
        .header(header::HOST, place.authority)
        .header(header::ACCEPT, format.accept())
        .body(Full::new(Bytes::new()))
        .map_err(io::Error::other)?;
    let asked = async {
        let stream = dial(place.authority, place.mark).await?;
        let mut connection = Connection::open(stream).await.map_err(io::Error::other)?;
        connection.send(request, place.max_bytes).await.map_err(io::Error::other)
    };
    let answer = timeout_at(until, asked).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    if answer.status() != StatusCode::OK {
        return Err(io::Error::other(format!("answers {}", answer.status())));
    }
    let media_type = answer.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    // Pages of other types are texts, too: some programs name none.
    let format = media_type.and_then(Format::of_type).unwrap_or(Format::Text);
    let body = Vec::from(answer.into_body());
    if format != Format::Protobuf {
        std::str::from_utf8(&body).map_err(io::Error::other)?;
    }
    Ok(MetricsPage { format, body })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scrapes_end_before_prometheus_gives_up() {
        let check = |said: Option<&'static str>, expected: u64| {
            let headers = said.map(|said| (SCRAPE_TIMEOUT.parse().unwrap(), HeaderValue::from_static(said)));
            assert_eq!(time_limit(&headers.into_iter().collect()), Duration::from_secs(expected), "{said:?}");
        };
        check(None, 8);
        check(Some("5"), 4);
        check(Some("10000"), 48);
        check(Some("-1"), 8);
        check(Some("soon"), 8);
    }
}
