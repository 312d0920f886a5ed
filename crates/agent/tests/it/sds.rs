use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_agent::sds::{PemBundle, SdsServer, Secrets};
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Client, Connection, Protocol};
use evenkeel_xds::pb::envoy::config::core::v3::data_source::Specifier;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, Node};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{
    Secret, SpiffeCertValidatorConfig, secret::Type,
};
use evenkeel_xds::{ResourceType, unpack};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::support::PATIENCE;

fn material(chain: &str, roots: &str) -> PemBundle {
    PemBundle {
        chain: chain.into(),
        key: "key".into(),
        roots: roots.into(),
        domains: Vec::new(),
        lists: None,
        control_plane_roots: roots.into(),
    }
}

pub async fn channel(path: PathBuf) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let path = path.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(path).await?)) }
    });
    Endpoint::from_static("http://sds").connect_with_connector(connector).await.unwrap()
}

/// Trust domains, each with its roots.
fn domains(validator: &evenkeel_xds::Any) -> String {
    let config: SpiffeCertValidatorConfig = unpack(validator).unwrap();
    let text = |source: Option<DataSource>| match source.unwrap().specifier {
        Some(Specifier::InlineBytes(bytes)) => String::from_utf8(bytes).unwrap(),
        other => panic!("{other:?}"),
    };
    config.trust_domains.into_iter().map(|domain| format!("[{}]{}", domain.name, text(domain.trust_bundle))).collect()
}

/// One secret in short: its name and its first text.
fn describe(any: &evenkeel_xds::Any) -> String {
    let secret: Secret = unpack(any).unwrap();
    let source = match secret.r#type.unwrap() {
        Type::TlsCertificate(certificate) => certificate.certificate_chain,
        Type::ValidationContext(context) => match context.custom_validator_config {
            None => context.trusted_ca,
            Some(validator) => return format!("{}={}", secret.name, domains(&validator.typed_config.unwrap())),
        },
        other => panic!("{other:?}"),
    };
    match source.unwrap().specifier.unwrap() {
        Specifier::InlineBytes(bytes) => format!("{}={}", secret.name, String::from_utf8(bytes).unwrap()),
        other => panic!("{other:?}"),
    }
}

/// The secrets of the next response, accepted.
pub async fn next(client: &mut Client, connection: &mut Connection) -> Vec<String> {
    let response = tokio::time::timeout(PATIENCE, connection.next()).await.expect("a response in time").unwrap();
    let update = client.on_response(response).unwrap();
    let mut secrets: Vec<_> = update.added.iter().map(|received| describe(&received.any)).collect();
    secrets.sort();
    client.answer(&update, &[]);
    while let Some(request) = client.poll_request() {
        connection.send(request).await.unwrap();
    }
    secrets
}

/// The secrets of these names that a server has now.
pub async fn secrets(socket: &Path, names: [&str; 2]) -> Vec<String> {
    let mut client = Client::new(Protocol::Delta, Node { id: "test".into(), ..Node::default() });
    client.set_names(ResourceType::Secret, names);
    client.on_connect();
    let first = client.poll_request().unwrap();
    let channel = channel(socket.to_owned()).await;
    let mut connection = Connection::open(channel, Service::Secrets, first).await.unwrap();
    next(&mut client, &mut connection).await
}

#[tokio::test]
async fn both_protocols_deliver_and_follow_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sds.sock");
    for protocol in [Protocol::Delta, Protocol::Sotw] {
        let secrets = Secrets::new();
        secrets.publish(&material("first", "root"));
        let server = tokio::spawn(SdsServer::bind(&path, secrets.clone()).unwrap().run());

        let mut client = Client::new(protocol, Node { id: "sidecar".into(), ..Node::default() });
        client.set_names(ResourceType::Secret, ["ROOTCA", "default"]);
        client.on_connect();
        let first = client.poll_request().unwrap();
        let mut connection = Connection::open(channel(path.clone()).await, Service::Secrets, first).await.unwrap();
        assert_eq!(next(&mut client, &mut connection).await, ["ROOTCA=root", "default=first"], "{protocol:?}");

        secrets.publish(&material("second", "root"));
        // Only what changed; state of the world may be partial for secrets, too.
        assert_eq!(next(&mut client, &mut connection).await, ["default=second"], "{protocol:?}");
        secrets.publish(&material("second", "root+new"));
        assert_eq!(next(&mut client, &mut connection).await, ["ROOTCA=root+new"], "{protocol:?}");

        server.abort();
        let _ = server.await;
        assert!(!path.exists(), "the socket's file stays behind");
    }
}

#[tokio::test]
async fn the_socket_is_private_and_replaces_a_leftover() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sds.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let _server = SdsServer::bind(&path, Secrets::new()).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

#[tokio::test]
async fn garbage_on_the_socket_harms_nobody() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("sds.sock");
    let secrets = Secrets::new();
    secrets.publish(&material("first", "root"));
    tokio::spawn(SdsServer::bind(&path, secrets).unwrap().run());
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 300], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff"] {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(garbage).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        // It may end with an error; what counts is that it ends.
        let _ = tokio::time::timeout(Duration::from_secs(20), read).await.expect("the connection ends");
    }
    let mut client = Client::new(Protocol::Delta, Node::default());
    client.set_names(ResourceType::Secret, ["default"]);
    client.on_connect();
    let first = client.poll_request().unwrap();
    let mut connection = Connection::open(channel(path).await, Service::Secrets, first).await.unwrap();
    assert_eq!(next(&mut client, &mut connection).await, ["default=first"]);
}
