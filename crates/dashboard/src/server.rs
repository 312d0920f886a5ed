//! Serves the page and its data over HTTP/1.1: read-only, without resources from elsewhere, and to nobody who reaches it by a name of
//! another machine.

use std::convert::Infallible;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_admin::dashboard::{GRAPH, OBJECTS, REQUESTS, STATUS, WORKLOAD};
use evenkeel_process::newest::serve_newest;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use percent_encoding::percent_decode_str;
use serde::Serialize;

use crate::poll::Watched;
use crate::source::Source;
use crate::status::Reachability;
use crate::{assets, graph, objects, requests, status, workload};

/// Connections at a time. A further one takes the place of the oldest.
const MAX_CONNECTIONS: usize = 64;
/// How long a client may take for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection lasts: browsers open a new one.
const CONNECTION_TIME: Duration = Duration::from_secs(600);

/// Headers of every response. No script, style, font or image but the server's own; no frame; nothing is sent to others.
const HEADERS: [(HeaderName, &str); 6] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The dashboard of a mesh.
struct Dashboard {
    source: Arc<dyn Source>,
    watched: Watched,
    reachability: Reachability,
}

/// Serves the dashboard of this mesh until aborted.
///
/// # Errors
/// If the listener cannot be used.
pub async fn serve(listener: TcpListener, source: Arc<dyn Source>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let dashboard = Arc::new(Dashboard {
        source: source.clone(),
        watched: Watched::default(),
        reachability: Reachability::default(),
    });
    let connections = serve_newest(&listener, MAX_CONNECTIONS, |stream, _| {
        let dashboard = dashboard.clone();
        async move {
            let _ = tokio::time::timeout(CONNECTION_TIME, serve_connection(stream, dashboard)).await;
        }
    });
    tokio::select! {
        never = connections => match never {},
        () = dashboard.watched.keep_reading(source) => Ok(()),
    }
}

async fn serve_connection(stream: tokio::net::TcpStream, dashboard: Arc<Dashboard>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let dashboard = dashboard.clone();
        async move {
            let mut response = dashboard.respond(&request).await;
            for (name, value) in HEADERS {
                response.headers_mut().insert(name, HeaderValue::from_static(value));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    // A client that breaks off needs no message.
    let _ = server.serve_connection(TokioIo::new(stream), service).await;
}

impl Dashboard {
    async fn respond<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        // A page of a stranger may name this address, but not under its own name (DNS rebinding).
        if !evenkeel_base::local_host::is_local(host) {
            return text(StatusCode::FORBIDDEN, "the Host header names another machine\n");
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return text(StatusCode::METHOD_NOT_ALLOWED, "the dashboard only shows: use GET\n");
        }
        let uri = request.uri();
        if let Some(asset) = assets::find(uri.path()) {
            return response(StatusCode::OK, asset.content_type, Bytes::from_static(asset.content));
        }
        self.data(uri.path(), uri.query().unwrap_or_default()).await
    }

    async fn data(&self, path: &str, query: &str) -> Response<Full<Bytes>> {
        let id = parameter(query, "id");
        match path {
            GRAPH => json(&self.watched.look(graph::graph).await),
            STATUS => json(&status::status(&*self.source, &self.reachability).await),
            OBJECTS => json(&objects::objects(&*self.source).await),
            REQUESTS => json(&requests::requests(&*self.source, id.as_deref()).await),
            WORKLOAD => {
                let id = id.unwrap_or_default();
                match self.watched.look(|collector| workload::remembered(collector, &id)).await {
                    Some(mut page) => {
                        workload::complete(&mut page, &*self.source).await;
                        json(&page)
                    }
                    None => text(StatusCode::NOT_FOUND, "there is no such workload (any more)\n"),
                }
            }
            _ => text(StatusCode::NOT_FOUND, "no such page\n"),
        }
    }
}

/// A parameter of a query, decoded.
fn parameter(query: &str, name: &str) -> Option<String> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))?;
    Some(percent_decode_str(value).decode_utf8_lossy().into_owned())
}

fn json<T: Serialize>(value: &T) -> Response<Full<Bytes>> {
    match serde_json::to_vec(value) {
        Ok(body) => response(StatusCode::OK, "application/json", body.into()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
    }
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    response(status, "text/plain; charset=utf-8", Bytes::copy_from_slice(body.as_bytes()))
}

fn response(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{FetchedPage, ReplicaKey, ReplicaStatus};

    /// A mesh without anything in it, whose control plane does not run.
    struct Empty;

    impl Source for Empty {
        fn replicas(&self) -> Vec<ReplicaStatus> {
            Vec::new()
        }

        fn proxy_page<'a>(&'a self, _: &'a ReplicaKey, _: &'a str) -> FetchedPage<'a> {
            Box::pin(async { Err("there is none".to_owned()) })
        }

        fn control_page<'a>(&'a self, _: &'a str) -> FetchedPage<'a> {
            Box::pin(async { Err("connection refused".to_owned()) })
        }
    }

    fn empty() -> Dashboard {
        Dashboard { source: Arc::new(Empty), watched: Watched::default(), reachability: Reachability::default() }
    }

    #[tokio::test]
    async fn strangers_and_changes_are_refused() {
        let dashboard = empty();
        for (method, host, path, expected) in [
            (Method::GET, "127.0.0.1:15016", "/", 200),
            (Method::HEAD, "localhost", "/app.js", 200),
            (Method::GET, "stranger.example", "/", 403),
            (Method::GET, "stranger.example:15016", GRAPH, 403),
            (Method::POST, "localhost", STATUS, 405),
            (Method::DELETE, "localhost", "/", 405),
            (Method::GET, "localhost", "/../Cargo.toml", 404),
            (Method::GET, "localhost", "/api/workload?id=shop/nobody", 404),
        ] {
            let request = Request::builder().method(&method).uri(path).header(header::HOST, host).body(());
            let response = dashboard.respond(&request.expect("a request")).await;
            assert_eq!(response.status().as_u16(), expected, "{method} {host} {path}");
        }
    }

    #[tokio::test]
    async fn a_control_plane_that_is_away_is_named() {
        let status = status::status(&Empty, &Reachability::default()).await;
        assert_eq!(status.unreachable.as_deref(), Some("connection refused"));
        assert!(status.unreachable_since_ms.is_some());
    }

    /// The policy forbids inline scripts and styles, so the page must do without.
    #[test]
    fn the_page_has_no_inline_scripts_and_loads_only_what_there_is() {
        let page = String::from_utf8_lossy(assets::find("/").expect("the page").content).into_owned();
        for forbidden in ["style=\"", "<style", "onclick", "onload", "javascript:", "//cdn", "https://"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        let links = page.split(['"', '\'']).filter(|word| word.starts_with('/'));
        for link in links {
            assert!(assets::find(link).is_some(), "{link}");
        }
        // Names come from the mesh's users: they are text.
        for script in ["/app.js", "/dom.js", "/picture.js", "/panel.js", "/tables.js"] {
            let script = String::from_utf8_lossy(assets::find(script).expect("a script").content).into_owned();
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!script.contains(forbidden), "{forbidden}");
            }
        }
    }

    #[test]
    fn parameters_are_decoded() {
        let check = |query: &str, expected: Option<&str>| assert_eq!(parameter(query, "id").as_deref(), expected);
        check("id=shop%2Fweb", Some("shop/web"));
        check("a=b&id=external%3Aexample.com", Some("external:example.com"));
        check("idx=1", None);
        check("", None);
    }
}
