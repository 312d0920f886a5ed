//! The codec against crate `h2`, as its client and as its server.

use bytes::Bytes;
use evenkeel_testkit::Random;
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinSet;

use crate::endpoint::{Endpoint, assert_repeated, narrow};
use crate::messages::Message;

const MESSAGES: usize = 150;

fn messages(seed: u64) -> Vec<Message> {
    let mut random = Random::new(seed);
    (0..MESSAGES).map(|number| Message::random(&mut random, number)).collect()
}

/// Carries bytes until the peer closes or `done`.
async fn drive(mut endpoint: Endpoint, mut io: DuplexStream, done: impl Fn(&Endpoint) -> bool) -> Endpoint {
    let mut buffer = vec![0; 16 * 1024];
    endpoint.pump();
    loop {
        while !endpoint.connection.output().is_empty() {
            let Ok(bytes) = io.write(endpoint.connection.output()).await else { return endpoint };
            endpoint.connection.written(bytes);
            endpoint.pump();
        }
        if done(&endpoint) {
            return endpoint;
        }
        match io.read(&mut buffer).await {
            Ok(bytes) if bytes > 0 => endpoint.turn(&buffer[..bytes]),
            _ => return endpoint,
        }
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let limit = std::time::Duration::from_secs(60);
    runtime.block_on(async { tokio::time::timeout(limit, work).await.expect("no stall") })
}

fn header_map(fields: &[(String, String)]) -> HeaderMap {
    let pair = |(name, value): &(String, String)| {
        let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
        (name, http::HeaderValue::from_bytes(value.as_bytes()).expect("a value"))
    };
    fields.iter().map(pair).collect()
}

/// Fields but `content-length`. `HeaderMap` keeps the order of one name's values only.
fn sorted(map: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let mut fields: Vec<_> = map.iter().map(|(name, value)| (name.to_string(), text(value))).collect();
    fields.retain(|(name, _)| name != "content-length");
    fields.sort();
    fields
}

async fn read_body(body: &mut h2::RecvStream) -> (Vec<u8>, HeaderMap) {
    let mut bytes = Vec::new();
    while let Some(piece) = body.data().await {
        let piece = piece.expect("data");
        bytes.extend_from_slice(&piece);
        body.flow_control().release_capacity(piece.len()).expect("capacity");
    }
    (bytes, body.trailers().await.expect("trailers").unwrap_or_default())
}

fn send_body(stream: &mut h2::SendStream<Bytes>, body: Vec<u8>, trailers: HeaderMap) {
    // One frame without payload after another would be a flood.
    if !body.is_empty() {
        stream.send_data(body.into(), trailers.is_empty()).expect("sent");
    }
    if !trailers.is_empty() {
        stream.send_trailers(trailers).expect("sent");
    }
}

#[test]
fn as_the_server_of_h2() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let server = tokio::spawn(drive(Endpoint::server(narrow()), ours, |_| false));
        let (send, connection) = h2::client::handshake(theirs).await.expect("handshake");
        let connection = tokio::spawn(connection);
        let mut requests = JoinSet::new();
        for message in messages(1) {
            let send = send.clone();
            requests.spawn(async move {
                let mut send = send.ready().await.expect("ready");
                let uri = format!("https://oracle.test{}", message.path);
                let mut request = Request::builder().method(message.method).uri(uri).body(()).expect("a request");
                *request.headers_mut() = header_map(&message.fields);
                let (response, mut stream) = send.send_request(request, message.is_bare()).expect("sent");
                if !message.is_bare() {
                    send_body(&mut stream, message.body.clone(), header_map(&message.trailers));
                }
                let (head, mut body) = response.await.expect("a response").into_parts();
                let (bytes, trailers) = read_body(&mut body).await;
                assert_eq!(sorted(&head.headers), sorted(&header_map(&message.fields)));
                assert_eq!(sorted(&trailers), sorted(&header_map(&message.trailers)));
                assert!(bytes == message.body, "bodies of {} and {} bytes", bytes.len(), message.body.len());
            });
        }
        let mut answered = 0;
        while let Some(request) = requests.join_next().await {
            request.expect("answered");
            answered += 1;
        }
        assert_eq!(answered, MESSAGES);
        drop(send);
        connection.await.expect("no panic").expect("an orderly end");
        server.await.expect("no panic");
    });
}

#[test]
fn as_the_client_of_h2() {
    run(async {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let server = tokio::spawn(async move {
            let mut connection = h2::server::Builder::new()
                .max_concurrent_streams(15)
                .initial_window_size(30_000)
                .handshake::<_, Bytes>(theirs)
                .await
                .expect("handshake");
            while let Some(request) = connection.accept().await {
                let (request, mut respond) = request.expect("a request");
                tokio::spawn(async move {
                    let (head, mut body) = request.into_parts();
                    let (bytes, trailers) = read_body(&mut body).await;
                    let mut response = Response::new(());
                    *response.headers_mut() = head.headers;
                    response.headers_mut().remove("content-length");
                    let bare = bytes.is_empty() && trailers.is_empty();
                    let mut stream = respond.send_response(response, bare).expect("sent");
                    if !bare {
                        send_body(&mut stream, bytes, trailers);
                    }
                });
            }
        });
        let mut client = Endpoint::client(narrow(), messages(2));
        // Crate h2 ends the connection over DATA of a stream it has refused.
        client.patient = true;
        let client = drive(client, ours, Endpoint::is_done).await;
        let mut answered = client.answered;
        for (asked, answer) in &mut answered {
            [&mut asked.fields, &mut answer.fields].into_iter().for_each(|fields| fields.sort());
        }
        assert_repeated(&answered, MESSAGES);
        server.abort();
    });
}
