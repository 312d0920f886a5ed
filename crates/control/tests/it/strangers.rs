//! What unauthenticated clients can do to the TLS port, and what the expiry of a certificate means.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_ca::{Authority, MIN_TTL};
use evenkeel_http::h2::{self, RequestMeta, ResponseMeta, Sink, StreamKey};
use evenkeel_http::{Framing, HeaderId, Headers, RequestHead, ResponseHead};
use evenkeel_xds::client::{ConnectionError, Protocol};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::Code;

use crate::certificates::{CLIENT, connect, csr, request_over, tls, token};
use crate::fixture::{PATIENCE, Plane, Proxy, node, tls_channel};

const ADS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
const SCOPE: &str = "/evenkeel.ScopeService/Recall";
/// More than a fifth of the places that strangers share.
const STRANGERS_PER_ADDRESS: usize = 110;
const SIGN: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";

/// What a client of raw HTTP/2 has heard.
#[derive(Default)]
struct Heard {
    /// `grpc-status` of each answer.
    statuses: Vec<String>,
    gone: bool,
}

impl Sink for Heard {
    fn request(&mut self, _: StreamKey, _: &mut RequestHead, _: RequestMeta) {}

    fn response(&mut self, _: StreamKey, head: &mut ResponseHead, _: ResponseMeta) {
        let status = head.headers.iter().find(|(_, name, _)| *name == b"grpc-status");
        self.statuses.extend(status.map(|(_, _, value)| String::from_utf8_lossy(value).into_owned()));
    }

    fn data(&mut self, _: StreamKey, _: &[u8], _: bool) {}

    fn trailers(&mut self, _: StreamKey, trailers: &mut Headers) {
        let status = trailers.iter().find(|(_, name, _)| *name == b"grpc-status");
        self.statuses.extend(status.map(|(_, _, value)| String::from_utf8_lossy(value).into_owned()));
    }

    fn reset(&mut self, _: StreamKey, _: h2::Reset) {}
}

/// A client that sends what it likes.
struct Attacker {
    io: TlsStream<TcpStream>,
    codec: h2::Connection,
    heard: Heard,
    unread: Vec<u8>,
}

impl Attacker {
    async fn connect(plane: &Plane, config: &Arc<ClientConfig>) -> Self {
        let tcp = TcpStream::connect(plane.addresses.secure_grpc).await.expect("a connection");
        let name = ServerName::try_from("istiod.istio-system.svc").expect("a name");
        let io = TlsConnector::from(config.clone()).connect(name, tcp).await.expect("a handshake");
        let codec = h2::Connection::client(h2::Options::default());
        let mut attacker = Self { io, codec, heard: Heard::default(), unread: Vec::new() };
        // Until its SETTINGS have come nobody knows how many streams the server takes.
        while !attacker.codec.is_settled() {
            attacker.turn().await.expect("a server");
        }
        attacker
    }

    /// Writes what there is, and reads once.
    async fn turn(&mut self) -> io::Result<()> {
        self.flush().await?;
        let mut buffer = vec![0; 16 * 1024];
        let read = tokio::time::timeout(PATIENCE, self.io.read(&mut buffer)).await.expect("something in time")?;
        if read == 0 {
            self.heard.gone = true;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.unread.extend_from_slice(&buffer[..read]);
        let taken = self.codec.receive(&self.unread, &mut self.heard).expect("sound HTTP/2");
        self.unread.drain(..taken);
        Ok(())
    }

    async fn flush(&mut self) -> io::Result<()> {
        while !self.codec.output().is_empty() {
            let written = self.io.write(self.codec.output()).await?;
            self.codec.written(written);
        }
        self.io.flush().await
    }

    fn open(&mut self, path: &str, token: Option<&str>) -> Option<StreamKey> {
        let mut head = RequestHead::default();
        head.set_method(b"POST");
        head.set_authority(b"istiod.istio-system.svc");
        head.set_path(path.as_bytes());
        head.headers.append_id(HeaderId::ContentType, b"application/grpc");
        head.headers.append(b"te", b"trailers");
        if let Some(token) = token {
            head.headers.append(b"authorization", format!("Bearer {token}").as_bytes());
        }
        self.codec.open(&head, true, Framing::Chunked, false).ok()
    }

    async fn until(&mut self, done: impl Fn(&Heard) -> bool) {
        while !done(&self.heard) {
            if self.turn().await.is_err() {
                break;
            }
        }
    }
}

/// Twenty streams with 15 MiB each that never end took 300 MiB. Now nobody asks for their bodies.
#[tokio::test]
async fn calls_without_an_identity_are_answered_at_their_heads() {
    let plane = Plane::start(&[]).await;
    let config = Arc::new(tls(&plane, None));
    for (path, token) in [(ADS, None), (SCOPE, None), (SIGN, None), (SIGN, Some("not.a.token")), ("/else", None)] {
        let mut attacker = Attacker::connect(&plane, &config).await;
        attacker.open(path, token).expect("a stream");
        // Not a byte of a body is sent: the answer cannot have waited for one.
        attacker.until(|heard| !heard.statuses.is_empty()).await;
        assert_eq!(attacker.heard.statuses, ["16"], "{path}");
    }
}

/// A valid token buys a small window and a few streams, and no memory.
#[tokio::test]
async fn a_request_for_a_certificate_has_little_room() {
    let plane = Plane::start(&[]).await;
    let (config, token) = (Arc::new(tls(&plane, None)), token(&plane));
    let mut attacker = Attacker::connect(&plane, &config).await;
    let streams: Vec<StreamKey> = std::iter::from_fn(|| attacker.open(SIGN, Some(&token))).take(20).collect();
    assert!(streams.len() <= 4, "{} streams", streams.len());
    // A message of 15 MiB begins: it is refused by its length, or goes no further than the window.
    let begin = [&[0][..], &15_000_000_u32.to_be_bytes(), &[7; 15 * 1024]].concat();
    let mut sent = 0;
    for stream in &streams {
        sent += attacker.codec.send_data(*stream, &begin, false).expect("an open stream");
    }
    assert!(sent <= 65_535, "{sent} bytes");
    attacker.until(|heard| heard.statuses.len() == streams.len()).await;
    assert!(attacker.heard.statuses.iter().all(|status| status != "0"), "{:?}", attacker.heard.statuses);
}

#[tokio::test]
async fn whoever_guesses_tokens_is_not_listened_to_for_long() {
    let plane = Plane::start(&[]).await;
    // Over one connection at a time: what is given back with time must not be more than what is used up.
    let (csr, mut codes) = (csr(CLIENT).1, Vec::new());
    while codes.len() < 2000 && codes.last() != Some(&Code::ResourceExhausted) {
        let channel = connect(&plane).await;
        for _ in 0..100 {
            let refused = request_over(channel.clone(), csr.clone(), Some("not.a.token")).await.expect_err("a refusal");
            // The connection has ended: a stranger is not served for long.
            if refused.code() == Code::Unavailable {
                break;
            }
            codes.push(refused.code());
            if codes.last() == Some(&Code::ResourceExhausted) {
                break;
            }
        }
    }
    assert_eq!(codes.last(), Some(&Code::ResourceExhausted), "after {} refusals", codes.len());
    assert!(codes.len() > 20, "an honest mistake is told what it is: {}", codes.len());
    let metrics = plane.page("/metrics").await;
    assert!(metrics.contains("evenkeel_csr_throttled 1\n"), "{metrics}");
    // Others behind the same address are served.
    let answer = request_over(connect(&plane).await, csr, Some(&token(&plane))).await;
    assert!(answer.is_ok(), "{answer:?}");
}

/// Five addresses without any credential kept all places, for handshakes and for clients without a certificate.
#[tokio::test]
async fn strangers_do_not_keep_others_from_certificates() {
    let plane = Plane::start(&[]).await;
    let (config, port) = (Arc::new(tls(&plane, None)), plane.addresses.secure_grpc.port());
    let mut held = Vec::new();
    // Each address takes as much as one may have.
    for last in 2..7_u8 {
        for _ in 0..STRANGERS_PER_ADDRESS {
            let tcp = connect_from([127, 0, 0, last], port).await;
            let (config, name) = (config.clone(), ServerName::try_from("istiod.istio-system.svc").expect("a name"));
            held.push(tokio::spawn(async move {
                let tls = TlsConnector::from(config).connect(name, tcp).await;
                std::future::pending::<()>().await;
                drop(tls);
            }));
        }
    }
    for last in 2..7_u8 {
        for _ in 0..2 * STRANGERS_PER_ADDRESS {
            let tcp = connect_from([127, 0, 0, last], port).await;
            held.push(tokio::spawn(async move {
                std::future::pending::<()>().await;
                drop(tcp);
            }));
        }
    }
    for _ in 0..20 {
        let answer = request_over(connect(&plane).await, csr(CLIENT).1, Some(&token(&plane))).await;
        assert!(answer.is_ok(), "{answer:?}");
    }
    held.into_iter().for_each(|task| task.abort());
}

async fn connect_from(address: [u8; 4], port: u16) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((address, 0).into()).expect("an address of this machine");
    socket.connect(([127, 0, 0, 1], port).into()).await.expect("a connection")
}

#[tokio::test]
async fn one_pod_is_not_signed_for_without_end() {
    let plane = Plane::start(&[]).await;
    let (token, csr, mut issued) = (token(&plane), csr(CLIENT).1, 0);
    let mut channel = connect(&plane).await;
    let refused = loop {
        match request_over(channel.clone(), csr.clone(), Some(&token)).await {
            Ok(_) => issued += 1,
            // The connection has ended: a stranger is not served for long.
            Err(status) if status.code() == Code::Unavailable => channel = connect(&plane).await,
            Err(status) => break status,
        }
        assert!(issued < 1000, "there is no limit");
    };
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(issued >= 20, "{issued}");
}

/// A session is as good as its certificate: it is not resumed, and a stream does not outlive it.
#[tokio::test]
async fn a_stream_ends_with_its_certificate() {
    let plane = Plane::start(&[]).await;
    let (key, csr) = csr(CLIENT);
    let mut left = Duration::from_secs(2);
    let (config, mut proxy) = loop {
        let chain = signed_long_ago(&plane, &csr, left);
        let config = tls(&plane, Some((&chain, &key)));
        // On a busy machine it may have ended before the stream is there.
        match open(&plane, config.clone()).await {
            Some(proxy) => break (config, proxy),
            None => left *= 2,
        }
        assert!(left < PATIENCE, "no stream within {left:?}");
    };
    let end = loop {
        if let Err(error) = proxy.step(None).await {
            break error;
        }
    };
    // Before the end it is asked to come again, which an agent does with its next certificate.
    let ConnectionError::Status(status) = end else { panic!("{end}") };
    assert!([Code::Unavailable, Code::Unauthenticated].contains(&status.code()), "{status}");
    // The same client, with its memory of the session, is refused once the certificate has ended.
    let refused = async {
        while connects(&plane, &config).await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, refused).await.expect("a certificate that ended is refused");
}

/// A stream that has been answered, if the certificate lasts so long.
async fn open(plane: &Plane, config: ClientConfig) -> Option<Proxy> {
    let channel = tls_channel(plane.addresses.secure_grpc, config).await.ok()?;
    let mut proxy = Proxy::open(channel, Protocol::Delta, node("shop", "client")).await.ok()?;
    proxy.step(None).await.ok()?;
    Some(proxy)
}

/// Whether the server takes the client after a handshake: in TLS 1.3 its word on the certificate comes after the client's last.
async fn connects(plane: &Plane, config: &ClientConfig) -> bool {
    let stream = TcpStream::connect(plane.addresses.secure_grpc).await.expect("a connection");
    let name = ServerName::try_from("istiod.istio-system.svc").expect("a name");
    match TlsConnector::from(Arc::new(config.clone())).connect(name, stream).await {
        Ok(mut stream) => stream.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0),
        Err(_) => false,
    }
}

/// A certificate of the plane's authority that ends soon.
fn signed_long_ago(plane: &Plane, csr: &str, left: Duration) -> Vec<String> {
    let now = SystemTime::now();
    let authority = Authority::open(plane.state.path(), "cluster.local", now).expect("the authority");
    let identity = CLIENT.parse().expect("an identity");
    let issued = authority.sign(csr.as_bytes(), &identity, MIN_TTL, now - (MIN_TTL - left)).expect("a certificate");
    issued.chain
}
