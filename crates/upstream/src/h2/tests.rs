//! Tests of both roles against each other, over real sockets on one thread.

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_http::h2::{OpenError, Reason};
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead, Underscores};
use evenkeel_runtime_config::http2::{Http2Keepalive, Http2Options};
use evenkeel_runtime_config::overload::PrematureResets;
use evenkeel_stats::Scope;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use super::stats::{Counter, Gauge, Stats};
use super::*;
use crate::conn::Buffer;
use crate::stream::Stream as Socket;

/// Far longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(20);

fn limits() -> Limits {
    Limits {
        max_head_bytes: 60 * 1024,
        max_headers: 100,
        underscores: Underscores::Allow,
        head_timeout: None,
        idle_timeout: None,
        drain_timeout: Duration::from_secs(5),
        flush_timeout: Some(Duration::from_secs(300)),
        premature_resets: PrematureResets::default(),
    }
}

async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
    let address = listener.local_addr().expect("bound");
    let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
    (near.expect("connected"), far.expect("accepted").0)
}

/// A connected client and server, with their statistics' scopes.
struct Pair {
    client: Client,
    server: Server,
    client_stats: Scope<Stats>,
    server_stats: Scope<Stats>,
}

async fn pair_with(client: &Http2Options, server: &Http2Options, limits: Limits) -> Pair {
    let (near, far) = sockets().await;
    let (client_stats, server_stats) = (Scope::detached(), Scope::detached());
    let (near_stats, far_stats) = (Rc::new(client_stats.writer()), Rc::new(server_stats.writer()));
    let client = Client::start(Socket::Tcp(near), client, limits.clone(), near_stats, Rc::new(Notify::new()), |_| {});
    let server = Server::new(Socket::Tcp(far), Buffer::default(), server, limits, far_stats);
    Pair { client, server, client_stats, server_stats }
}

async fn pair() -> Pair {
    pair_with(&Http2Options::default(), &Http2Options::default(), limits()).await
}

fn run<F: Future<Output = ()>>(test: F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let local = LocalSet::new();
    local.block_on(&runtime, async { timeout(PATIENCE, test).await.expect("the test ends in time") });
}

fn request(path: &str) -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method(b"POST");
    head.set_path(path.as_bytes());
    head.set_authority(b"example.com");
    head
}

fn ok() -> ResponseHead {
    ResponseHead { status: 200, ..ResponseHead::default() }
}

fn open(client: &Client, path: &str, end: bool) -> Stream {
    let framing = if end { Framing::None } else { Framing::Chunked };
    client.open(&request(path), false, framing, end).expect("room for a stream")
}

async fn head(stream: &mut Stream) -> Result<(u16, Answer), Reset> {
    let mut head = ResponseHead::default();
    let answer = poll_fn(|cx| stream.poll_head(&mut head, cx)).await?;
    Ok((head.status, answer))
}

/// The next request; the connection is driven meanwhile.
async fn next(server: &mut Server) -> Option<Incoming> {
    loop {
        match poll_fn(|cx| server.poll_accept(cx)).await? {
            Accepted::Request(incoming) => return Some(incoming),
            Accepted::Cut(..) | Accepted::Refused(_) => {}
        }
    }
}

/// Reads a message to its end.
async fn body(stream: &mut Stream) -> Result<(Vec<u8>, Option<Headers>), Reset> {
    let mut bytes = Vec::new();
    loop {
        let mut take = |data: &[u8]| bytes.extend_from_slice(data);
        match poll_fn(|cx| stream.poll_data(16 * 1024, &mut take, cx)).await? {
            Received::Data => {}
            Received::End => return Ok((bytes, None)),
            Received::Trailers(trailers) => return Ok((bytes, Some(trailers))),
        }
    }
}

async fn send_all(stream: &mut Stream, mut bytes: &[u8], end: bool) -> Result<(), Reset> {
    while let Some((block, rest)) = bytes.split_at_checked(bytes.len().min(32 * 1024)) {
        stream.send_data(block, end && rest.is_empty());
        poll_fn(|cx| stream.poll_sent(cx)).await?;
        bytes = rest;
        if bytes.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Answers each request with its own body and a trailer with that body's length.
fn echo(mut server: Server) {
    spawn_local(async move {
        while let Some(Incoming { mut stream, head, .. }) = next(&mut server).await {
            spawn_local(async move {
                let mut answer = ok();
                answer.headers.append(b"x-path", head.path());
                stream.interim(&ResponseHead { status: 103, ..ResponseHead::default() });
                stream.respond(&answer, Framing::Chunked, false);
                let Ok((bytes, _)) = body(&mut stream).await else { return };
                if send_all(&mut stream, &bytes, false).await.is_ok() {
                    let mut trailers = Headers::default();
                    trailers.append(b"x-length", bytes.len().to_string().as_bytes());
                    stream.send_trailers(&trailers);
                }
            });
        }
    });
}

#[test]
fn messages_pass_both_ways() {
    run(async {
        let Pair { client, server, client_stats, server_stats } = pair().await;
        echo(server);
        let many = (0..100).map(|index| {
            let mut stream = open(&client, &format!("/{index}"), false);
            spawn_local(async move {
                let sent = vec![b'a' + (index % 26) as u8; index * 1000];
                send_all(&mut stream, &sent, true).await.expect("sent");
                let mut answer = ResponseHead::default();
                let interim = poll_fn(|cx| stream.poll_head(&mut answer, cx)).await.expect("an interim answer");
                assert_eq!((answer.status, interim), (103, Answer::Interim));
                poll_fn(|cx| stream.poll_head(&mut answer, cx)).await.expect("an answer");
                assert_eq!(answer.status, 200);
                assert_eq!(answer.headers.find(b"x-path"), Some(format!("/{index}").as_bytes()));
                let (received, trailers) = body(&mut stream).await.expect("a body");
                assert!(received == sent, "{index}: {} of {} bytes", received.len(), sent.len());
                let length = trailers.expect("trailers").find(b"x-length").map(<[u8]>::to_vec);
                assert_eq!(length, Some(sent.len().to_string().into_bytes()));
            })
        });
        for task in many.collect::<Vec<_>>() {
            task.await.expect("no panic");
        }
        assert_eq!((client_stats.counter(Counter::tx_reset), server_stats.counter(Counter::tx_reset)), (0, 0));
        assert_eq!(client_stats.counter(Counter::trailers), 100);
        assert_eq!(client_stats.gauge(Gauge::streams_active), 0);
        assert_eq!(server_stats.gauge(Gauge::pending_send_bytes), 0);
    });
}

#[test]
fn a_stream_that_is_not_read_stops_its_sender_and_no_other() {
    run(async {
        let Pair { client, mut server, .. } = pair().await;
        let (window, total) = (Http2Options::default().stream_window as usize, 3 * 1024 * 1024);
        let mut slow = open(&client, "/slow", false);
        let sender = spawn_local(async move {
            send_all(&mut slow, &vec![1; total], true).await.expect("sent in the end");
            head(&mut slow).await.expect("an answer")
        });
        let mut unread = next(&mut server).await.expect("a request").stream;
        // The other stream's megabyte arrives completely while the slow one is stuck.
        let mut fast = open(&client, "/fast", false);
        let other = spawn_local(async move { send_all(&mut fast, &vec![2; 1024 * 1024], true).await });
        let mut read = next(&mut server).await.expect("a request").stream;
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        assert_eq!(body(&mut read).await.expect("the fast body").0.len(), 1024 * 1024);
        other.await.expect("no panic").expect("sent");
        assert!(!sender.is_finished());
        let mut held = 0;
        let first = poll_fn(|cx| unread.poll_data(usize::MAX, &mut |data| held += data.len(), cx)).await;
        assert!(matches!(first, Ok(Received::Data)) && held <= window, "{held} bytes held");
        let (rest, _) = body(&mut unread).await.expect("the slow body");
        assert_eq!(held + rest.len(), total);
        unread.respond(&ok(), Framing::None, true);
        assert_eq!(sender.await.expect("no panic").0, 200);
    });
}

#[test]
fn streams_take_turns() {
    run(async {
        // The connection's window is the bottleneck: 64 KiB for both.
        let narrow = Http2Options { connection_window: 65_535, ..Http2Options::default() };
        let Pair { client, mut server, .. } = pair_with(&Http2Options::default(), &narrow, limits()).await;
        let total = 1024 * 1024;
        let senders = ["/a", "/b"].map(|path| {
            let mut stream = open(&client, path, false);
            spawn_local(async move {
                send_all(&mut stream, &vec![0; total], true).await.expect("sent");
                head(&mut stream).await.expect("an answer");
            })
        });
        let (mut a, mut b) =
            (next(&mut server).await.expect("a request").stream, next(&mut server).await.expect("a request").stream);
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        let mut counts = [0, 0];
        while counts[0] < total / 2 && counts[1] < total / 2 {
            let [of_a, of_b] = &mut counts;
            poll_fn(|cx| {
                let one = a.poll_data(8192, &mut |data| *of_a += data.len(), cx);
                let other = b.poll_data(8192, &mut |data| *of_b += data.len(), cx);
                if one.is_ready() || other.is_ready() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            })
            .await;
        }
        let difference = counts[0].abs_diff(counts[1]);
        assert!(difference <= 128 * 1024, "{counts:?}");
        let (a, b) = tokio::join!(async { body(&mut a).await.map(|_| a.respond(&ok(), Framing::None, true)) }, async {
            body(&mut b).await.map(|_| b.respond(&ok(), Framing::None, true))
        },);
        a.and(b).expect("both bodies");
        for sender in senders {
            sender.await.expect("no panic");
        }
    });
}

#[test]
fn resets_reach_the_other_side() {
    run(async {
        let Pair { client, mut server, client_stats, server_stats } = pair().await;
        // The client drops the stream.
        let stream = open(&client, "/", false);
        let mut served = next(&mut server).await.expect("a request").stream;
        drop(stream);
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        let reset = poll_fn(|cx| served.poll_reset(cx)).await;
        assert_eq!((reset.reason, reset.by), (Reason::CANCEL, ResetBy::Peer));
        assert_eq!((client_stats.counter(Counter::tx_reset), server_stats.counter(Counter::rx_reset)), (1, 1));
    });
}

#[test]
fn an_answer_that_breaks_off_arrives_as_far_as_it_went() {
    run(async {
        let Pair { client, mut server, .. } = pair().await;
        let mut stream = open(&client, "/", true);
        let mut served = next(&mut server).await.expect("a request").stream;
        served.respond(&ok(), Framing::Chunked, false);
        served.send_data(b"abc", false);
        drop(served);
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        assert_eq!(head(&mut stream).await.expect("an answer").0, 200);
        let reset = poll_fn(|cx| stream.poll_reset(cx)).await;
        assert_eq!((reset.reason, reset.by), (Reason::INTERNAL_ERROR, ResetBy::Peer));
        let mut came = Vec::new();
        let first = poll_fn(|cx| stream.poll_data(8192, &mut |data| came.extend_from_slice(data), cx)).await;
        let then = poll_fn(|cx| stream.poll_data(8192, &mut |_| {}, cx)).await;
        assert!(matches!(first, Ok(Received::Data)), "{first:?}");
        assert_eq!((came.as_slice(), then.expect_err("its end")), (&b"abc"[..], reset));
    });
}

#[test]
fn an_answer_before_the_end_of_the_request_arrives_whole() {
    run(async {
        let Pair { client, mut server, .. } = pair().await;
        let mut stream = open(&client, "/", false);
        let mut served = next(&mut server).await.expect("a request").stream;
        served.respond(&ok(), Framing::Chunked, false);
        served.send_data(&[7; 300_000], true);
        // The response is still being sent; the rest of the request is not wanted.
        drop(served);
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        assert_eq!(head(&mut stream).await.expect("an answer").0, 200);
        assert_eq!(body(&mut stream).await.expect("a body").0.len(), 300_000);
        let reset = poll_fn(|cx| stream.poll_reset(cx)).await;
        assert_eq!((reset.reason, reset.by), (Reason::NO_ERROR, ResetBy::Peer));
    });
}

#[test]
fn a_draining_server_serves_what_it_has() {
    run(async {
        let Pair { client, mut server, .. } = pair().await;
        let mut stream = open(&client, "/", true);
        let mut served = next(&mut server).await.expect("a request").stream;
        server.drain();
        let ending = spawn_local(async move { next(&mut server).await.is_none() });
        while client.can_open().err() != Some(OpenError::GoingAway) {
            tokio::task::yield_now().await;
        }
        assert!(client.open(&request("/late"), false, Framing::None, true).is_err());
        served.respond(&ok(), Framing::Length(2), false);
        served.send_data(b"ok", true);
        drop(served);
        assert_eq!(head(&mut stream).await.expect("an answer").0, 200);
        assert_eq!(body(&mut stream).await.expect("a body").0, b"ok");
        drop(stream);
        assert!(ending.await.expect("no panic"));
    });
}

#[test]
fn streams_learn_that_their_connection_is_gone() {
    run(async {
        let Pair { client, mut server, client_stats, .. } = pair().await;
        let mut stream = open(&client, "/", false);
        let served = next(&mut server).await.expect("a request");
        drop(server);
        assert_eq!(head(&mut stream).await.expect_err("no answer").by, ResetBy::Connection);
        assert_eq!(client.can_open().err(), Some(OpenError::GoingAway));
        drop((stream, served, client));
        assert_eq!(client_stats.gauge(Gauge::streams_active), 0);
    });
}

#[test]
fn a_client_that_is_dropped_lets_its_streams_finish() {
    run(async {
        let Pair { client, mut server, .. } = pair().await;
        let mut stream = open(&client, "/", true);
        let mut served = next(&mut server).await.expect("a request").stream;
        drop(client);
        let ending = spawn_local(async move { next(&mut server).await.is_none() });
        served.respond(&ok(), Framing::None, true);
        drop(served);
        assert_eq!(head(&mut stream).await.expect("an answer").0, 200);
        drop(stream);
        assert!(ending.await.expect("no panic"));
    });
}

#[test]
fn no_more_streams_than_both_sides_allow() {
    run(async {
        let few = Http2Options { max_concurrent_streams: 2, ..Http2Options::default() };
        let Pair { client, server, .. } = pair_with(&few, &Http2Options::default(), limits()).await;
        echo(server);
        let (mut one, two) = (open(&client, "/", true), open(&client, "/", true));
        assert_eq!(client.can_open().err(), Some(OpenError::Concurrency));
        head(&mut one).await.expect("an answer");
        head(&mut one).await.expect("an answer");
        body(&mut one).await.expect("a body");
        drop(one);
        assert!(client.can_open().is_ok());
        drop(two);
    });
}

#[test]
fn a_peer_that_does_not_answer_pings_is_gone() {
    run(async {
        let keepalive = Http2Keepalive {
            interval: Some(Duration::from_millis(5)),
            timeout: Duration::from_millis(5),
            jitter_permille: 150,
            idle_interval: None,
        };
        let options = Http2Options { keepalive: Some(keepalive), ..Http2Options::default() };
        let (near, mut far) = sockets().await;
        let scope = Scope::<Stats>::detached();
        let stats = Rc::new(scope.writer());
        let client = Client::start(Socket::Tcp(near), &options, limits(), stats, Rc::new(Notify::new()), |_| {});
        let mut stream = open(&client, "/", true);
        assert_eq!(head(&mut stream).await.expect_err("no answer").by, ResetBy::Connection);
        assert_eq!(scope.counter(Counter::keepalive_timeout), 1);
        // Eight bytes of PING, no flags, no stream.
        let mut sent = Vec::new();
        far.read_to_end(&mut sent).await.expect("what was sent");
        let ping = [0, 0, 8, 6, 0, 0, 0, 0, 0];
        assert!(sent.windows(9).any(|frame| frame == ping), "{sent:?}");
    });
}

#[test]
fn a_peer_that_answers_pings_is_left_alone() {
    run(async {
        let keepalive = Http2Keepalive {
            interval: Some(Duration::from_millis(1)),
            timeout: PATIENCE,
            jitter_permille: 0,
            idle_interval: Some(Duration::ZERO),
        };
        let options = Http2Options { keepalive: Some(keepalive), ..Http2Options::default() };
        let Pair { client, server, client_stats, .. } = pair_with(&options, &Http2Options::default(), limits()).await;
        echo(server);
        for _ in 0..20 {
            let mut stream = open(&client, "/", true);
            head(&mut stream).await.expect("an interim answer");
            head(&mut stream).await.expect("an answer");
            body(&mut stream).await.expect("a body");
        }
        assert_eq!(client_stats.counter(Counter::keepalive_timeout), 0);
    });
}

#[test]
fn an_idle_connection_says_good_bye() {
    run(async {
        let limits = Limits { idle_timeout: Some(Duration::from_millis(10)), ..limits() };
        let Pair { client, mut server, server_stats, .. } =
            pair_with(&Http2Options::default(), &Http2Options::default(), limits).await;
        let mut stream = open(&client, "/", true);
        let mut served = next(&mut server).await.expect("a request").stream;
        let ending = spawn_local(async move { next(&mut server).await.is_none() });
        // Longer than the idle timeout, but with an open stream.
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!ending.is_finished());
        served.respond(&ok(), Framing::None, true);
        drop(served);
        assert_eq!(head(&mut stream).await.expect("an answer").0, 200);
        drop(stream);
        assert!(ending.await.expect("no panic"));
        assert_eq!(server_stats.counter(Counter::goaway_sent), 1);
    });
}

#[test]
fn the_rest_of_an_answer_that_nobody_reads_is_given_up() {
    run(async {
        let limits = Limits { flush_timeout: Some(Duration::from_millis(1)), ..limits() };
        let Pair { client, mut server, server_stats, .. } =
            pair_with(&Http2Options::default(), &Http2Options::default(), limits).await;
        let mut stream = open(&client, "/", true);
        let mut served = next(&mut server).await.expect("a request").stream;
        served.respond(&ok(), Framing::Chunked, false);
        served.send_data(&vec![0; 2 * 1024 * 1024], true);
        drop(served);
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        let reset = poll_fn(|cx| stream.poll_reset(cx)).await;
        assert_eq!(reset.by, ResetBy::Peer);
        assert_eq!(server_stats.counter(Counter::tx_flush_timeout), 1);
        assert_eq!(server_stats.gauge(Gauge::streams_active), 0);
    });
}

#[test]
fn a_stream_whose_reader_was_given_up_is_reset_with_what_waits_for_it() {
    run(async {
        let Pair { client, mut server, server_stats, .. } = pair().await;
        let (mut stream, mut other) = (open(&client, "/", true), open(&client, "/other", true));
        let mut served = next(&mut server).await.expect("a request").stream;
        let mut idle = next(&mut server).await.expect("a request").stream;
        served.respond(&ok(), Framing::Chunked, false);
        served.send_data(&vec![0; 2 * 1024 * 1024], true);
        idle.respond(&ok(), Framing::Chunked, false);
        assert!(served.unsent() > 0);
        served.give_up();
        // This stream has nothing queued.
        idle.give_up();
        idle.send_data(b"ok", true);
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        let reset = poll_fn(|cx| stream.poll_reset(cx)).await;
        assert_eq!((reset.by, reset.reason), (ResetBy::Peer, Reason::CANCEL));
        head(&mut other).await.expect("an answer");
        assert_eq!(body(&mut other).await.expect("a body").0, b"ok");
        assert_eq!((server_stats.counter(Counter::tx_flush_timeout), served.unsent()), (1, 0));
    });
}

#[test]
fn heads_are_translated_both_ways() {
    run(async {
        let Pair { client, mut server, .. } = pair().await;
        let mut sent = request("/a?b=c");
        sent.headers.append(b"x-one", b"1");
        sent.headers.append_id(HeaderId::Connection, b"keep-alive");
        let mut stream = client.open(&sent, true, Framing::Length(3), false).expect("room");
        stream.send_data(b"abc", true);
        let Incoming { stream: mut served, head: received, meta } = next(&mut server).await.expect("a request");
        spawn_local(async move { while next(&mut server).await.is_some() {} });
        assert_eq!(
            (received.method(), received.path(), received.authority()),
            (&b"POST"[..], &b"/a?b=c"[..], &b"example.com"[..])
        );
        assert_eq!(received.headers.find(b"x-one"), Some(&b"1"[..]));
        assert!(!received.headers.contains(HeaderId::Connection));
        assert!(meta.https && !meta.end && meta.framing == Framing::Length(3));
        assert_eq!(body(&mut served).await.expect("a body").0, b"abc");
        served.respond(&ok(), Framing::Length(0), true);
        let (status, answer) = head(&mut stream).await.expect("an answer");
        assert_eq!(status, 200);
        let Answer::Final(meta) = answer else { panic!("a final answer") };
        assert!(meta.end);
    });
}
