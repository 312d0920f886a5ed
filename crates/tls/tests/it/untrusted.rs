//! Clients that are let in with a certificate that does not verify (`ACCEPT_UNTRUSTED`): nobody learns an identity of
//! theirs.

use std::sync::Arc;

use evenkeel_tls::config::{ClientCertificate, DownstreamTlsContext, Validation};
use evenkeel_tls::{DownstreamTls, SanMatcher, TlsStream};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use time::OffsetDateTime;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use crate::support::{INFO, Outcome, Pair, TestCa, WEB, accept, server, server_context, sockets, trusting};

/// The name that the client verifies.
const NAME: &str = "info.default";

/// Accepts clients with these names, with a certificate that does not verify and, if it is optional, without one.
fn context(ca: &TestCa, asked: ClientCertificate, names: Vec<SanMatcher>) -> DownstreamTlsContext {
    let pair = ca.issue(|params| params.subject_alt_names = vec![rcgen::SanType::DnsName(NAME.try_into().unwrap())]);
    let mut context = server_context(ca, &pair);
    context.client_certificate = asked;
    context.common.validation = trusting(ca, names);
    let Validation::Chain { checks, .. } = &mut context.common.validation else { panic!("nothing is checked") };
    checks.accept_untrusted = true;
    context
}

/// A client that shows any certificate, unlike one with an [`evenkeel_tls::Identity`], which has to be valid.
fn client(ca: &TestCa, pair: Option<&Pair>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let builder = builder.with_root_certificates(roots);
    Arc::new(match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = CertificateDer::pem_slice_iter(pair.chain.as_bytes()).collect::<Result<_, _>>().unwrap();
            let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

/// Connects, and reads until the ticket has come.
async fn connect(config: &Arc<ClientConfig>, server: &DownstreamTls) -> Outcome {
    let (near, far) = sockets().await;
    let config = Arc::clone(config);
    let peer = tokio::task::spawn_blocking(move || {
        let mut connection = ClientConnection::new(config, NAME.try_into().unwrap()).unwrap();
        let mut socket = near.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        let _ = std::io::Read::read(&mut stream, &mut [0]);
    });
    let mut outcome = accept(server, far).await;
    if let Ok(stream) = &mut outcome {
        stream.write_all(b"x").await.unwrap();
        stream.flush().await.unwrap();
    }
    peer.await.unwrap();
    outcome
}

/// The identity that the server knows, and why it knows none.
fn seen(stream: &TlsStream<TcpStream>) -> (Option<&str>, Option<&str>) {
    let session = stream.session();
    (session.peer.as_deref().map(|peer| &*peer.uri_sans[0]), session.untrusted.as_deref())
}

#[tokio::test]
async fn only_a_certificate_that_verifies_is_an_identity() {
    let (ca, other) = (TestCa::new("root"), TestCa::new("other"));
    let server = server(&context(&ca, ClientCertificate::Optional, Vec::new()));
    let check = async |pair: Option<&Pair>, identity: Option<&str>, reason: Option<&str>| {
        let config = client(&ca, pair);
        // Twice: a session that is resumed has the certificate in its ticket.
        for round in 0..2 {
            let stream = connect(&config, &server).await.unwrap();
            assert_eq!(stream.session().resumed, round > 0, "{reason:?}");
            let (peer, untrusted) = seen(&stream);
            assert_eq!(peer, identity, "{reason:?}, round {round}");
            assert_eq!(untrusted.is_some(), reason.is_some(), "{untrusted:?}");
            assert!(untrusted.unwrap_or_default().contains(reason.unwrap_or_default()), "{untrusted:?}");
        }
    };
    check(None, None, None).await;
    check(Some(&ca.workload(WEB)), Some(WEB), None).await;
    check(Some(&other.workload(WEB)), None, Some("not signed by a trusted root")).await;
    check(Some(&ca.expired(WEB)), None, Some("it expired")).await;
    let future = ca.issue(|params| params.not_before = OffsetDateTime::now_utc() + time::Duration::days(1));
    check(Some(&future), None, Some("not valid yet")).await;
}

#[tokio::test]
async fn a_certificate_that_must_be_there_may_be_untrusted() {
    let (ca, other) = (TestCa::new("root"), TestCa::new("other"));
    let server = server(&context(&ca, ClientCertificate::Required, Vec::new()));
    assert!(server.is_mutual() && !server.identifies_clients());
    let error = connect(&client(&ca, None), &server).await.err().unwrap();
    assert_eq!(error.to_string(), "the peer's certificate was refused: the peer presented none");
    let stream = connect(&client(&ca, Some(&other.workload(WEB))), &server).await.unwrap();
    assert_eq!(seen(&stream).0, None);
}

#[tokio::test]
async fn a_name_that_is_not_accepted_is_no_identity() {
    let ca = TestCa::new("root");
    let server = server(&context(&ca, ClientCertificate::Optional, vec![SanMatcher::uri(INFO)]));
    let check = async |uri: &str, identity: Option<&str>| {
        let stream = connect(&client(&ca, Some(&ca.workload(uri))), &server).await.unwrap();
        assert_eq!(seen(&stream).0, identity);
    };
    check(INFO, Some(INFO)).await;
    check(WEB, None).await;
}

/// A session that began where every certificate is accepted is not resumed where it has to verify.
#[tokio::test]
async fn a_ticket_is_no_way_around_the_verification() {
    let (ca, other) = (TestCa::new("root"), TestCa::new("other"));
    let open = context(&ca, ClientCertificate::Required, Vec::new());
    let mut strict = open.clone();
    strict.common.validation = trusting(&ca, Vec::new());
    let config = client(&ca, Some(&other.workload(WEB)));
    connect(&config, &server(&open)).await.unwrap();
    let error = connect(&config, &server(&strict)).await.err().unwrap();
    assert!(error.to_string().contains("not signed by a trusted root"), "{error}");
}
