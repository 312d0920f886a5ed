use evenkeel_tls::config::{ClientCertificate, TlsParams, TlsVersion, Validation};
use evenkeel_tls::{ConfigError, HandshakeError, SanKind, SanMatcher, SecretStore, StringPattern, UpstreamTls};
use rcgen::SanType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{INFO, Outcome, TestCa, WEB, client, client_context, server, server_context, shake, sockets};

fn message(outcome: Outcome) -> String {
    match outcome {
        Ok(_) => panic!("the handshake succeeded"),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn both_sides_learn_who_the_other_is() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let (near, far) = shake(&client(&client_context(&ca, &web, INFO)), &server(&server_context(&ca, &info))).await;
    let (near, far) = (near.unwrap(), far.unwrap());

    let session = far.session();
    let peer = session.peer.as_ref().unwrap();
    assert_eq!(peer.uri_sans, [WEB]);
    assert_eq!(peer.spiffe_id().unwrap().service_account(), "web");
    assert_eq!(peer.sha256_hex().len(), 64);
    assert_eq!(peer.chain.len(), 1);
    assert_eq!(session.local.as_ref().unwrap().uri_sans, [INFO]);
    assert_eq!(session.server_name.as_deref(), Some("outbound_.8080_.v1_.info.default.svc.cluster.local"));
    assert_eq!((session.version, session.cipher), ("TLSv1.3", "TLS_AES_128_GCM_SHA256"));
    assert_eq!(session.alpn.as_deref(), Some(&b"http/1.1"[..]));
    assert_eq!(near.session().peer.as_ref().unwrap().uri_sans, [INFO]);
}

#[tokio::test]
async fn bodies_of_all_sizes_arrive_whole_in_both_directions() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let (near, far) = shake(&client(&client_context(&ca, &web, INFO)), &server(&server_context(&ca, &info))).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    for size in [1, 1_000, 16_384, 16_385, 40_000, 3_000_000] {
        let sent: Vec<u8> = (0..size).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut received = vec![0; sent.len()];
        let send = async {
            near.write_all(&sent).await.unwrap();
            near.flush().await.unwrap();
        };
        // A small buffer makes rustls' buffers run full.
        let receive = async {
            let mut filled = 0;
            while filled < received.len() {
                let end = (filled + 1_500).min(received.len());
                let count = far.read(&mut received[filled..end]).await.unwrap();
                assert_ne!(count, 0, "ended after {filled} of {size} bytes");
                filled += count;
            }
        };
        tokio::join!(send, receive);
        assert!(sent == received, "{size} bytes were changed on the way");
        let back = async {
            far.write_all(&received).await.unwrap();
            far.flush().await.unwrap();
        };
        let mut returned = vec![0; sent.len()];
        let (_, result) = tokio::join!(back, near.read_exact(&mut returned));
        result.unwrap();
        assert!(sent == returned, "{size} bytes were changed on the way back");
    }
    // Where data begins in its page decides how it is divided into records.
    let pages: Vec<u8> = (0..80_000).map(|index: u32| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let page = pages.as_ptr().align_offset(4096);
    for offset in [0, 1, 4, 5, 64, 2048] {
        let sent = &pages[page + offset..][..70_000];
        let mut received = vec![0; sent.len()];
        let send = async {
            near.write_all(sent).await.unwrap();
            near.flush().await.unwrap();
        };
        let (_, result) = tokio::join!(send, far.read_exact(&mut received));
        result.unwrap();
        assert!(sent == received, "data at {offset} of a page was changed on the way");
    }
    // A proper end is an end; a cut one is an error.
    near.shutdown().await.unwrap();
    assert_eq!(far.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn a_cut_connection_is_told_from_a_closed_one() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let (near, far) = shake(&client(&client_context(&ca, &web, INFO)), &server(&server_context(&ca, &info))).await;
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    // Reading the ticket along with a byte: a socket closed with unread data would be reset.
    far.write_all(b"x").await.unwrap();
    near.read_exact(&mut [0]).await.unwrap();
    drop(near);
    let error = far.read(&mut [0; 8]).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
}

#[tokio::test]
async fn a_server_of_another_name_is_refused() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let check = async |expected: SanMatcher, text: &str| {
        let mut context = client_context(&ca, &web, INFO);
        context.common.validation = crate::support::trusting(&ca, vec![expected]);
        let (near, far) = shake(&client(&context), &server(&server_context(&ca, &info))).await;
        assert_eq!(message(near), text);
        assert_eq!(message(far), "the peer sent the alert CertificateUnknown");
    };
    check(
        SanMatcher::uri("spiffe://cluster.local/ns/default/sa/other"),
        "the peer's certificate was refused: expected URI `spiffe://cluster.local/ns/default/sa/other`, \
         the certificate is for `spiffe://cluster.local/ns/default/sa/info`",
    )
    .await;
    check(
        SanMatcher { kind: Some(SanKind::Uri), pattern: StringPattern::prefix("spiffe://other.local/") },
        "the peer's certificate was refused: expected URI `spiffe://other.local/…`, \
         the certificate is for `spiffe://cluster.local/ns/default/sa/info`",
    )
    .await;
}

#[tokio::test]
async fn clients_that_are_not_of_the_mesh_are_refused() {
    let (ca, other_ca) = (TestCa::new("root"), TestCa::new("other"));
    let info = ca.workload(INFO);
    let check = async |pair: Option<crate::support::Pair>, text: &str| {
        let mut context = client_context(&ca, &info, INFO);
        context.common.certificates = pair.map(|pair| pair.source()).into_iter().collect();
        let (near, far) = shake(&client(&context), &server(&server_context(&ca, &info))).await;
        assert_eq!(message(far), text);
        // The client is done before the server has looked at its certificate (RFC 8446 section 4.4.2.4).
        let error = near.unwrap().read(&mut [0; 8]).await.unwrap_err();
        assert!(error.to_string().starts_with("the peer sent the alert "), "{error}");
    };
    check(None, "the peer's certificate was refused: the peer presented none").await;
    check(
        Some(ca.workload("spiffe://old.local/ns/default/sa/web")),
        "the peer's certificate was refused: expected `spiffe://cluster.local/…`, \
         the certificate is for `spiffe://old.local/ns/default/sa/web`",
    )
    .await;
    check(Some(other_ca.workload(WEB)), "the peer's certificate was refused: it is not signed by a trusted root").await;
}

#[tokio::test]
async fn a_refused_client_is_known_by_what_it_showed() {
    const OLD: &str = "spiffe://old.local/ns/default/sa/web";
    let (ca, other_ca) = (TestCa::new("root"), TestCa::new("other"));
    let info = ca.workload(INFO);
    let server = server(&server_context(&ca, &info));
    let check = async |pair: Option<crate::support::Pair>, shown: Option<&str>| {
        let mut context = client_context(&ca, &info, INFO);
        context.common.certificates = pair.map(|pair| pair.source()).into_iter().collect();
        let client = client(&context);
        let (near, mut far) = sockets().await;
        let accepting = async {
            let hello = crate::support::read_hello(&mut far).await.expect("a ClientHello");
            server.accept_preferring(hello, far, None).await
        };
        let (_near, far) = tokio::join!(client.connect(near), accepting);
        let session = far.err().expect("it is refused").session;
        assert_eq!((session.version, session.cipher), ("TLSv1.3", "TLS_AES_128_GCM_SHA256"));
        assert_eq!(session.local.unwrap().uri_sans, [INFO]);
        assert_eq!(session.peer.map(|peer| peer.uri_sans[0].clone()).as_deref(), shown);
    };
    check(Some(ca.workload(OLD)), Some(OLD)).await;
    check(Some(other_ca.workload(WEB)), Some(WEB)).await;
    // Nothing is left of those before.
    check(None, None).await;
}

#[tokio::test]
async fn an_expired_certificate_is_refused_by_its_owner_and_by_its_peer() {
    let ca = TestCa::new("root");
    let (expired, info) = (ca.expired(WEB), ca.workload(INFO));
    let own = UpstreamTls::new(&client_context(&ca, &expired, INFO), &SecretStore::new()).unwrap_err();
    let text = own.to_string();
    assert!(text.starts_with(&format!("tls_certificates: the certificate of {WEB} expired on ")), "{text}");

    // A peer that does not check its own: rustls without our Identity.
    let (near, far) = sockets().await;
    let certificates = rustls_pki_types::pem::PemObject::pem_slice_iter(expired.chain.as_bytes());
    let certificates: Vec<rustls_pki_types::CertificateDer<'static>> = certificates.collect::<Result<_, _>>().unwrap();
    let key = rustls_pki_types::pem::PemObject::from_pem_slice(expired.key.as_bytes()).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(rustls_pki_types::pem::PemObject::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(certificates, key)
        .unwrap();
    let peer = std::thread::spawn(move || {
        let name = "info.default".try_into().unwrap();
        let mut connection = rustls::ClientConnection::new(config.into(), name).unwrap();
        let mut socket = near.into_std().unwrap();
        socket.set_nonblocking(false).unwrap();
        while connection.is_handshaking() && connection.complete_io(&mut socket).is_ok() {}
    });
    // The server's certificate has no DNS name, which this client minds; what matters here is never reached then, so the
    // server gets one.
    let pair = ca.issue(|params| params.subject_alt_names = vec![SanType::DnsName("info.default".try_into().unwrap())]);
    let outcome = crate::support::accept(&server(&server_context(&ca, &pair)), far).await;
    let text = message(outcome);
    assert!(text.starts_with("the peer's certificate was refused: it expired 3"), "{text}");
    peer.join().unwrap();
    drop(info);
}

#[tokio::test]
async fn either_side_may_go_beyond_the_protocols_of_its_context() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let check = async |offered: Option<&[&[u8]]>, preferred: Option<&[u8]>, agreed: Option<&[u8]>| {
        let (client, server) = (client(&client_context(&ca, &web, INFO)), server(&server_context(&ca, &info)));
        let (near, mut far) = sockets().await;
        let connecting = async {
            match offered {
                Some(offered) => client.connect_offering(near, offered).await,
                None => client.connect(near).await,
            }
        };
        let accepting = async {
            let hello = crate::support::read_hello(&mut far).await.expect("a ClientHello");
            server.accept_preferring(hello, far, preferred).await
        };
        let (near, far) = tokio::join!(connecting, accepting);
        assert_eq!(near.unwrap().session().alpn.as_deref(), agreed);
        assert_eq!(far.unwrap().session().alpn.as_deref(), agreed);
    };
    // Both contexts say http/1.1.
    check(Some(&[b"new", b"http/1.1"]), Some(b"new"), Some(b"new")).await;
    check(Some(&[b"new", b"http/1.1"]), None, Some(b"http/1.1")).await;
    check(Some(&[b"new"]), None, None).await;
    check(None, Some(b"new"), Some(b"http/1.1")).await;
}

#[tokio::test]
async fn without_a_common_protocol_the_connection_goes_on_without_alpn() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let check = async |offered: &[&str], ours: &[&str], agreed: Option<&str>| {
        let mut near = client_context(&ca, &web, INFO);
        near.common.alpn = offered.iter().map(|protocol| (*protocol).to_owned()).collect();
        let mut far = server_context(&ca, &info);
        far.common.alpn = ours.iter().map(|protocol| (*protocol).to_owned()).collect();
        let (near, far) = shake(&client(&near), &server(&far)).await;
        assert_eq!(near.unwrap().session().alpn.as_deref(), agreed.map(str::as_bytes));
        assert_eq!(far.unwrap().session().alpn.as_deref(), agreed.map(str::as_bytes));
    };
    check(&["istio-http/1.1", "istio"], &["http/1.1"], None).await;
    check(&["istio-http/1.1", "istio", "http/1.1"], &["http/1.1"], Some("http/1.1")).await;
    check(&["a", "b"], &["b", "a"], Some("b")).await;
    check(&[], &["http/1.1"], None).await;
    check(&["istio"], &[], None).await;
}

#[tokio::test]
async fn versions_and_cipher_suites_follow_the_context() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let check = async |params: TlsParams, version: &str, cipher: &str| {
        let mut far = server_context(&ca, &info);
        far.common.params = params;
        let (near, _) = shake(&client(&client_context(&ca, &web, INFO)), &server(&far)).await;
        let near = near.unwrap();
        assert_eq!((near.session().version, near.session().cipher), (version, cipher));
    };
    let only12 = |suites: &[&str]| TlsParams {
        maximum_version: Some(TlsVersion::Tls12),
        cipher_suites: suites.iter().map(|suite| (*suite).to_owned()).collect(),
        ..TlsParams::default()
    };
    check(TlsParams::default(), "TLSv1.3", "TLS_AES_128_GCM_SHA256").await;
    check(only12(&["ECDHE-ECDSA-CHACHA20-POLY1305"]), "TLSv1.2", "ECDHE-ECDSA-CHACHA20-POLY1305").await;
    let istio = ["ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384", "AES256-GCM-SHA384"];
    check(only12(&istio), "TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384").await;

    let mut far = server_context(&ca, &info);
    let mut refused = |params: TlsParams| {
        far.common.params = params;
        evenkeel_tls::DownstreamTls::new(&far, &SecretStore::new()).unwrap_err()
    };
    assert!(matches!(refused(only12(&["AES128-SHA"])), ConfigError::NoCipherSuite(_)));
    assert!(matches!(refused(only12(&["TLS_MAGIC"])), ConfigError::UnknownCipherSuite(name) if name == "TLS_MAGIC"));
    let backwards = TlsParams { minimum_version: Some(TlsVersion::Tls13), ..only12(&[]) };
    assert!(matches!(refused(backwards), ConfigError::Versions { .. }));
}

#[tokio::test]
async fn sessions_are_resumed_and_keep_the_peer() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let (client, server) = (client(&client_context(&ca, &web, INFO)), server(&server_context(&ca, &info)));
    for round in 0..3 {
        let (near, far) = shake(&client, &server).await;
        let (mut near, mut far) = (near.unwrap(), far.unwrap());
        assert_eq!(far.session().resumed, round > 0, "round {round}");
        assert_eq!(far.session().peer.as_ref().unwrap().uri_sans, [WEB]);
        assert_eq!(near.session().peer.as_ref().unwrap().uri_sans, [INFO]);
        // The ticket comes with the server's first bytes.
        far.write_all(b"x").await.unwrap();
        near.read_exact(&mut [0]).await.unwrap();
    }
}

#[tokio::test]
async fn optional_and_absent_client_certificates() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let check = async |asked: ClientCertificate, brings: bool, expected: &[&str]| {
        let mut near = client_context(&ca, &web, INFO);
        if !brings {
            near.common.certificates.clear();
        }
        let mut far = server_context(&ca, &info);
        far.client_certificate = asked;
        let (_, far) = shake(&client(&near), &server(&far)).await;
        let far = far.unwrap();
        let names = far.session().peer.as_ref().map(|peer| peer.uri_sans.clone()).unwrap_or_default();
        assert_eq!(names, expected);
    };
    check(ClientCertificate::Optional, true, &[WEB]).await;
    check(ClientCertificate::Optional, false, &[]).await;
    check(ClientCertificate::No, true, &[]).await;

    let mut context = server_context(&ca, &info);
    context.common.validation = Validation::None;
    let error = evenkeel_tls::DownstreamTls::new(&context, &SecretStore::new()).unwrap_err();
    assert!(matches!(error, ConfigError::ClientCertificateWithoutTrust), "{error}");
}

#[tokio::test]
async fn a_client_without_validation_context_accepts_any_certificate() {
    let (ca, other_ca) = (TestCa::new("root"), TestCa::new("other"));
    let (web, info) = (ca.workload(WEB), other_ca.workload(INFO));
    let mut context = client_context(&ca, &web, INFO);
    let mut far = server_context(&ca, &info);
    far.common.validation = crate::support::trusting(&ca, Vec::new());
    let (near, _) = shake(&client(&context), &server(&far)).await;
    assert_eq!(message(near), "the peer's certificate was refused: it is not signed by a trusted root");
    context.common.validation = Validation::None;
    let (near, _) = shake(&client(&context), &server(&far)).await;
    assert_eq!(near.unwrap().session().peer.as_ref().unwrap().uri_sans, [INFO]);
}

#[tokio::test]
async fn a_peer_that_closes_during_the_handshake_is_an_error() {
    let ca = TestCa::new("root");
    let web = ca.workload(WEB);
    let (near, far) = sockets().await;
    drop(far);
    let error = client(&client_context(&ca, &web, INFO)).connect(near).await.err().unwrap();
    assert!(matches!(error, HandshakeError::Io(_)), "{error}");
}

#[tokio::test]
async fn a_server_with_several_certificates_chooses_as_envoy_does() {
    let ca = TestCa::new("root");
    let (ed25519, ecdsa) = (&rcgen::PKCS_ED25519, &rcgen::PKCS_ECDSA_P256_SHA256);
    let pairs = [
        ca.server(&["first.example"], ed25519),
        ca.server(&["a.example", "both.example"], ed25519),
        ca.server(&["*.example", "both.example"], ecdsa),
    ];
    let mut context = server_context(&ca, &pairs[0]);
    context.client_certificate = ClientCertificate::No;
    context.common.certificates = pairs.iter().map(|pair| pair.source()).collect();
    let server = server(&context);
    for (name, expected) in [
        ("first.example", "first.example"),
        ("a.example", "a.example"),
        // Both have the name; the ECDSA key goes first.
        ("both.example", "*.example"),
        ("other.example", "*.example"),
        // A wildcard is one label; nobody has this name.
        ("deep.other.example", "first.example"),
        ("example", "first.example"),
        ("", "*.example"),
    ] {
        let mut context = client_context(&ca, &pairs[0], "");
        context.common.certificates.clear();
        context.common.validation = Validation::None;
        context.sni = name.to_owned();
        let (near, far) = shake(&client(&context), &server).await;
        let (near, far) = (near.unwrap(), far.unwrap());
        let shown = |names: &[String]| names.first().cloned().unwrap_or_default();
        assert_eq!(shown(&near.session().peer.as_ref().unwrap().dns_sans), expected, "{name:?}");
        assert_eq!(shown(&far.session().local.as_ref().unwrap().dns_sans), expected, "{name:?}");
    }
}

#[tokio::test]
async fn a_peer_that_comes_again_is_held_once_and_verified_by_the_roots_of_the_day() {
    let ca = TestCa::new("root");
    let (web, info) = (ca.workload(WEB), ca.workload(INFO));
    let (near, far) = (client(&client_context(&ca, &web, INFO)), server(&server_context(&ca, &info)));
    let first = shake(&near, &far).await.1.unwrap();
    // Another context of the same client's: no session to resume.
    let again = shake(&client(&client_context(&ca, &web, INFO)), &far).await.1.unwrap();
    assert!(!again.session().resumed);
    let peer = |stream: &evenkeel_tls::TlsStream<_>| stream.session().peer.clone().unwrap();
    assert!(std::sync::Arc::ptr_eq(&peer(&first), &peer(&again)));

    let other = TestCa::new("other");
    let stranger = server(&server_context(&other, &info));
    let error = message(shake(&client(&client_context(&ca, &web, INFO)), &stranger).await.1);
    assert!(error.contains("not signed by a trusted root"), "{error}");
}
