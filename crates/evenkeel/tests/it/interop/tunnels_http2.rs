//! TCP in tunnels over HTTP/2, opened with CONNECT or POST: Evenkeel sends the same requests as Envoy and handles responses
//! alike.

use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use tokio::net::{TcpListener, TcpStream};

use super::tunnels::{Observed, Requests, compare};
use super::web::HTTP2;

/// What a proxy that is asked for a tunnel answers.
#[derive(Clone, Copy)]
enum Answer {
    /// This status; then it sends back what it gets.
    Opens(u16),
    /// The same, and these bytes before.
    SpeaksFirst(&'static str),
    /// This status and no more.
    Ends(u16),
    /// 200, these bytes, and trailers.
    Trailers(&'static str),
    Resets,
}

use Answer::{Ends, Opens, Resets, SpeaksFirst, Trailers};

const ANSWERS: [(&str, Answer); 8] = [
    ("opens", Opens(200)),
    ("speaks-first", SpeaksFirst("hello ")),
    ("accepts", Opens(202)),
    ("ends", Ends(200)),
    ("wants-a-login", Ends(407)),
    ("fails", Ends(503)),
    ("trailers", Trailers("bye")),
    ("resets", Resets),
];

/// Ways to ask.
const WAYS: [&str; 3] = [
    ", propagate_response_headers: true",
    ", use_post: true, propagate_response_headers: true, propagate_response_trailers: true",
    ", use_post: true, post_path: \"/tunnel?to=x\", propagate_response_trailers: true",
];

#[test]
fn evenkeel_and_envoy_ask_for_tunnels_over_http2_alike() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
    let asking = |name, way| {
        let config = format!("cluster: peer, tunneling_config: {{ hostname: \"{name}.test:443\"{way} }}");
        (format!("{name}{way}"), config)
    };
    let rows: Vec<_> = WAYS.iter().flat_map(|way| ANSWERS.map(|(name, _)| asking(name, way))).collect();
    let Observed { seen, asked, logged } = compare::<{ ANSWERS.len() * WAYS.len() }>(&rows, HTTP2, || {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let (peer, asked) = (listener.local_addr().expect("bound"), Requests::default());
        runtime.spawn(accept(listener, Arc::clone(&asked)));
        (peer, asked)
    });
    assert!(
        seen.iter().any(|line| line.starts_with("opens, use_post: true") && line.ends_with("\"ping\"")),
        "{seen:#?}"
    );
    let (status, etag) = (r#"{"key":":status","value":"200"}"#, r#"{"headers":[{"key":"etag","value":"1"}]}"#);
    for kept in
        [format!("{{\"headers\":[{status}]}} -"), format!("{{\"headers\":[{status}]}} {etag}"), format!("- {etag}")]
    {
        assert!(logged.contains(&format!("trailers - - {kept} -")), "{kept}: {logged:#?}");
    }
    assert!(asked.iter().any(|head| head.starts_with("POST http://opens.test:443/tunnel?to=x")), "{asked:#?}");
}

async fn accept(listener: TcpListener, asked: Requests) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(serve(socket, Arc::clone(&asked)));
    }
}

async fn serve(socket: TcpStream, asked: Requests) {
    let Ok(mut connection) = h2::server::handshake(socket).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let mut headers: Vec<_> = request.headers().iter().map(|(name, value)| format!("{name}: {value:?}")).collect();
        headers.sort();
        let head = format!("{} {} {headers:?}", request.method(), request.uri());
        asked.lock().expect("nobody panicked").push(head);
        // A proxy may go away in the middle.
        tokio::spawn(answer(request, respond));
    }
}

async fn answer(request: Request<h2::RecvStream>, mut respond: SendResponse<Bytes>) -> Result<(), h2::Error> {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
    let known = ANSWERS.iter().find(|(name, _)| authority == format!("{name}.test:443"));
    let (_, answer) = known.expect("a name of the table");
    let head = |status: u16| Response::builder().status(status).body(()).expect("a response");
    let mut body = request.into_body();
    let (status, first) = match *answer {
        Opens(status) => (status, ""),
        SpeaksFirst(first) => (200, first),
        Ends(status) => {
            respond.send_response(head(status), true)?;
            return Ok(());
        }
        Trailers(text) => {
            let mut stream = respond.send_response(head(200), false)?;
            stream.send_data(Bytes::from_static(text.as_bytes()), false)?;
            return stream.send_trailers(HeaderMap::from_iter([(http::header::ETAG, "1".parse().expect("a value"))]));
        }
        Resets => {
            respond.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        }
    };
    let mut stream = respond.send_response(head(status), false)?;
    if !first.is_empty() {
        stream.send_data(Bytes::from_static(first.as_bytes()), false)?;
    }
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len())?;
        stream.send_data(data, false)?;
    }
    stream.send_data(Bytes::new(), true)
}
