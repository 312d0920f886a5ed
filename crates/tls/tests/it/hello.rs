use evenkeel_tls::hello::MAX_CLIENT_HELLO_BYTES;
use evenkeel_tls::{ClientHelloReader, Inspection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::support::{INFO, TestCa, WEB, client, client_context, server, server_context, sockets};

/// The bytes of a real ClientHello.
async fn hello_bytes(sni: &str, alpn: &[&str]) -> Vec<u8> {
    let ca = TestCa::new("root");
    let mut context = client_context(&ca, &ca.workload(WEB), INFO);
    context.sni = sni.to_owned();
    context.common.alpn = alpn.iter().map(|protocol| (*protocol).to_owned()).collect();
    let (near, mut far) = sockets().await;
    let client = client(&context);
    let mut bytes = vec![0; 8192];
    tokio::select! {
        _ = client.connect(near) => panic!("nobody answered"),
        count = far.read(&mut bytes) => bytes.truncate(count.unwrap()),
    }
    bytes
}

fn describe(inspection: Inspection) -> String {
    match inspection {
        Inspection::NeedMore(_) => "more".into(),
        Inspection::NotTls(bytes) => format!("not TLS, {} bytes", bytes.len()),
        Inspection::TooLarge => "too large".into(),
        Inspection::Hello(hello) => {
            let alpn: Vec<_> = hello.alpn().iter().map(|protocol| String::from_utf8_lossy(protocol)).collect();
            format!("{} [{}]", hello.server_name().unwrap_or("-"), alpn.join(","))
        }
    }
}

#[tokio::test]
async fn the_hello_is_read_from_any_portions() {
    let bytes = hello_bytes("Info.Example.org", &["istio-http/1.1", "istio"]).await;
    let expected = "info.example.org [istio-http/1.1,istio]";
    assert_eq!(describe(ClientHelloReader::new().push(&bytes)), expected);
    for size in [1, 2, 5, 6, 100, 511] {
        let mut reader = ClientHelloReader::new();
        let mut result = None;
        for (index, portion) in bytes.chunks(size).enumerate() {
            match reader.push(portion) {
                Inspection::NeedMore(more) => reader = more,
                other => {
                    assert_eq!(index, bytes.len().div_ceil(size) - 1, "decided before the last portion of {size}");
                    result = Some(other);
                    break;
                }
            }
        }
        assert_eq!(describe(result.expect("a decision")), expected, "in portions of {size}");
    }
    assert_eq!(describe(ClientHelloReader::new().push(&hello_bytes("", &[]).await)), "- []");
}

#[test]
fn what_is_not_tls_is_given_back() {
    let check = |bytes: &[u8], expected: &str| assert_eq!(describe(ClientHelloReader::new().push(bytes)), expected);
    check(b"", "more");
    check(b"G", "not TLS, 1 bytes");
    check(b"GET / HTTP/1.1\r\n\r\n", "not TLS, 18 bytes");
    check(&[22], "more");
    check(&[22, 3, 1], "more");
    check(&[22, 2], "not TLS, 2 bytes");
    // A handshake record whose message is no ClientHello.
    check(&[22, 3, 1, 0, 4, 2, 0, 0, 0], "not TLS, 9 bytes");
    // A ClientHello whose inside is garbage.
    check(&[22, 3, 1, 0, 8, 1, 0, 0, 4, 0xff, 0xff, 0xff, 0xff], "not TLS, 13 bytes");
    // An empty record.
    check(&[22, 3, 1, 0, 0], "not TLS, 5 bytes");
    // An alert, SSL 2.
    check(&[21, 3, 1, 0, 2, 2, 40], "not TLS, 7 bytes");
    check(&[0x80, 0x2e, 1], "not TLS, 3 bytes");
}

#[tokio::test]
async fn no_change_of_a_byte_panics() {
    let bytes = hello_bytes("info.example.org", &["istio"]).await;
    for index in 0..bytes.len() {
        for value in [0, 0xff, bytes[index] ^ 0x40] {
            let mut changed = bytes.clone();
            changed[index] = value;
            let _ = describe(ClientHelloReader::new().push(&changed));
            let _ = describe(ClientHelloReader::new().push(&changed[..index]));
        }
    }
}

#[test]
fn a_hello_without_end_is_cut() {
    // Records of a ClientHello that announces 60000 bytes.
    let mut record = vec![22, 3, 1, 0x10, 0];
    record.extend([0; 4096]);
    let mut first = record.clone();
    first[5..9].copy_from_slice(&[1, 0, 0xea, 0x60]);
    let mut reader = ClientHelloReader::new();
    let mut pushed = first.len();
    let mut inspection = reader.push(&first);
    loop {
        match inspection {
            Inspection::NeedMore(more) => reader = more,
            Inspection::TooLarge => break,
            other => panic!("{}", describe(other)),
        }
        assert!(pushed < MAX_CLIENT_HELLO_BYTES, "{pushed} bytes were taken");
        pushed += record.len();
        inspection = reader.push(&record);
    }
}

#[tokio::test]
async fn garbage_after_the_hello_ends_the_handshake() {
    let ca = TestCa::new("root");
    let server = server(&server_context(&ca, &ca.workload(INFO)));
    for garbage in [&[0xff; 64][..], &[23, 3, 3, 0, 4, 1, 2, 3, 4], &[22, 3, 3, 0xff, 0xff], b"GET / HTTP/1.1\r\n"] {
        let (mut near, mut far) = sockets().await;
        near.write_all(&hello_bytes("info.example.org", &[]).await).await.unwrap();
        let hello = crate::support::read_hello(&mut far).await.unwrap();
        near.write_all(garbage).await.unwrap();
        near.shutdown().await.unwrap();
        let drain = async { while near.read(&mut [0; 4096]).await.is_ok_and(|count| count > 0) {} };
        let (outcome, ()) = tokio::join!(server.accept(hello, far), drain);
        assert!(outcome.is_err(), "{garbage:?}");
    }
    // And the next client is served.
    let web = ca.workload(WEB);
    let (near, far) = crate::support::shake(&client(&client_context(&ca, &web, INFO)), &server).await;
    assert!(near.is_ok() && far.is_ok());
}

#[tokio::test]
async fn bytes_pushed_after_the_hello_are_not_lost() {
    // The hello of a passthrough chain goes on as it came, with all that followed in the same read.
    let mut bytes = hello_bytes("info.example.org", &[]).await;
    bytes.extend([0x17; 9000]);
    match ClientHelloReader::new().push(&bytes) {
        Inspection::Hello(hello) => assert!(hello.into_bytes() == bytes),
        other => panic!("{}", describe(other)),
    }
}
