//! The rows of the other files with one well-formed request, repeated over HTTP/2.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};

use bytes::Bytes;
use h2::client;
use http::{Method, Request};
use tokio::net::TcpStream;

use super::exchange::{Case, Opening, Port, Step, summary, without_chance};
use super::proxy::Scene;

/// A request as HTTP/2 has it.
#[derive(Debug, Clone)]
pub struct Ask {
    method: String,
    authority: String,
    path: String,
    headers: Vec<(String, String)>,
    body: String,
}

/// Rows of `cases` that can be asked over HTTP/2.
pub fn again(cases: &[Case]) -> Vec<Case> {
    cases.iter().filter_map(convert).collect()
}

/// Rows that only HTTP/2 has.
pub fn cases() -> Vec<Case> {
    let grpc = |name, host: &str, path: &str, expect| {
        let headers = [("content-type", "application/grpc"), ("te", "trailers")];
        row(name, expect, ask("POST", host, path, &headers, ""))
    };
    vec![
        grpc("gRPC without a route", "paths.test", "/none", "grpc-status: 12"),
        grpc("gRPC that takes too long", "actions.test", "/timeout", "grpc-status"),
        grpc("gRPC to an upstream that closes", "actions.test", "/behave/close", "grpc-status: 14"),
        grpc("gRPC answered by the proxy", "actions.test", "/direct", "grpc-status"),
        grpc("gRPC answered by the proxy with 200", "open.anything", "/", "grpc-status: 2"),
        row("HTTP/2 cookies in pieces", "| cookie: a=1; b=2", {
            ask("GET", "actions.test", "/cookies", &[("cookie", "a=1"), ("cookie", "b=2")], "")
        }),
        row("HTTP/2 HEAD", "content-length", ask("HEAD", "actions.test", "/one", &[], "")),
        row("HTTP/2 te is not passed on", "| GET /te", ask("GET", "actions.test", "/te", &[("te", "trailers")], "")),
    ]
}

fn row(name: &'static str, expect: &'static str, ask: Ask) -> Case {
    Case::new(name, Port::Http, expect, vec![Step::Http2(ask)])
}

fn ask(method: &str, authority: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Ask {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Ask { method: method.into(), authority: authority.into(), path: path.into(), headers, body: body.into() }
}

/// One request, nothing of HTTP/1 alone in it, on a plain connection, alike in both proxies.
fn convert(case: &Case) -> Option<Case> {
    let ([Step::Send(text), Step::Response] | [Step::Send(text), Step::Response, Step::Open | Step::Closed]) =
        case.steps.as_slice()
    else {
        return None;
    };
    let http = matches!(case.port, Port::Http | Port::Edge | Port::Rbac);
    if !http || case.opening != Opening::Plain || case.known.is_some() || case.expect.contains("error: closed") {
        return None;
    }
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let mut start = lines.next()?.split(' ');
    let (method, path) = (start.next()?, start.next()?);
    if start.next() != Some("HTTP/1.1") || !path.starts_with('/') {
        return None;
    }
    let (mut authority, mut framed) = (None, body.is_empty());
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let (name, value) = (name.to_ascii_lowercase(), value.trim().to_owned());
        match name.as_str() {
            "host" if authority.is_none() => authority = Some(value),
            "host" | "connection" | "transfer-encoding" | "upgrade" | "expect" | "keep-alive" | "proxy-connection"
            | "te" => return None,
            "content-length" if value.parse() != Ok(body.len()) => return None,
            "content-length" => framed = true,
            _ => headers.push((name, value)),
        }
    }
    let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
    if !framed || !plain(path) || !authority.as_deref().is_some_and(plain) {
        return None;
    }
    let ask = Ask { method: method.into(), authority: authority?, path: path.into(), headers, body: body.into() };
    let name: &'static str = Box::leak(format!("{} over HTTP/2", case.name).into_boxed_str());
    // What only HTTP/1 has to say of it: the reason, the framing, the connection's end.
    let of_http1 = ["then: ", "chunked", " No Content", "400"].iter().any(|text| case.expect.contains(text));
    let expect = if of_http1 { "HTTP/2 " } else { case.expect };
    Some(Case { name, expect, steps: vec![Step::Http2(ask)], ..case.clone() })
}

impl Ask {
    /// Asks on a connection of its own and tells what came.
    pub fn play(&self, scene: &Scene, port: Port, story: &mut String) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let result = runtime.block_on(self.send((Ipv4Addr::LOCALHOST, scene.port(port)).into(), scene, story));
        if let Err(error) = result {
            let _ = match error.reason() {
                Some(reason) if error.is_reset() => writeln!(story, "reset: {reason:?}"),
                Some(reason) => writeln!(story, "connection error: {reason:?}"),
                None => writeln!(story, "error: closed"),
            };
        }
        Ok(())
    }

    async fn send(&self, address: SocketAddr, scene: &Scene, story: &mut String) -> Result<(), h2::Error> {
        let socket = TcpStream::connect(address).await.expect("the listener accepts");
        let (mut sender, connection) = client::handshake(socket).await?;
        let driving = tokio::spawn(connection);
        let mut request = Request::builder()
            .method(Method::from_bytes(self.method.as_bytes()).expect("a method"))
            .uri(format!("http://{}{}", self.authority, self.path));
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(()).expect("a request");
        let (response, mut body) = sender.send_request(request, self.body.is_empty())?;
        if !self.body.is_empty() {
            body.send_data(Bytes::from(self.body.clone()), true)?;
        }
        let response = response.await?;
        let _ = writeln!(story, "HTTP/2 {}", response.status().as_u16());
        render(response.headers(), scene, story);
        let mut received = Vec::new();
        let mut body = response.into_body();
        while let Some(piece) = body.data().await {
            let piece = piece?;
            body.flow_control().release_capacity(piece.len())?;
            received.extend_from_slice(&piece);
        }
        if received.len() > 16 << 10 {
            let _ = writeln!(story, "{}", summary(&received));
            received.clear();
        }
        for line in String::from_utf8_lossy(&received).lines() {
            let _ = writeln!(story, "| {}", without_chance(line, scene));
        }
        if let Some(trailers) = body.trailers().await? {
            let _ = writeln!(story, "(trailers)");
            render(&trailers, scene, story);
        }
        drop(sender);
        driving.abort();
        Ok(())
    }
}

fn render(headers: &http::HeaderMap, scene: &Scene, story: &mut String) {
    let mut lines: Vec<_> =
        headers.iter().map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes()))).collect();
    lines.sort();
    for line in lines {
        let _ = writeln!(story, "{}", without_chance(&line, scene));
    }
}
