//! Clients that a server with strict mutual TLS must not talk to.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Identity, Process, TestCa, eventually, free_port};

use super::talk;

/// The serial number of a revoked certificate.
const REVOKED: u64 = 4711;

/// A proxy with filter chains by server name, all of which answer: `strict.test` requires a certificate of the mesh, `open.test`
/// none, `listed.test` one that is not revoked, `federated.test` one of `cluster.local` or of `partner.example`, each signed by the root of its own trust domain.
pub struct Server {
    pub address: SocketAddr,
    pub process: Process,
    ca: TestCa,
    /// The authority of `partner.example`.
    partner: TestCa,
    folder: tempfile::TempDir,
}

impl Server {
    pub fn new() -> Self {
        let (folder, ca) = (tempfile::tempdir().expect("a temporary folder"), TestCa::new());
        let partner = TestCa::new();
        std::fs::write(folder.path().join("ca.pem"), ca.root_pem()).expect("a writable folder");
        std::fs::write(folder.path().join("partner.pem"), partner.root_pem()).expect("a writable folder");
        std::fs::write(folder.path().join("crl.pem"), ca.revocation_list(&[REVOKED])).expect("a writable folder");
        for name in ["strict", "open", "federated", "listed"] {
            ca.for_dns(&[&format!("{name}.test")]).write(folder.path(), name);
        }
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let file = folder.path().join("bootstrap.yaml");
        std::fs::write(&file, bootstrap(address, folder.path())).expect("a writable folder");
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let mut process = Process::spawn(command.args(["proxy", "--concurrency", "1", "-c"]).arg(file));
        process.wait_for_port(address);
        Self { address, process, ca, partner, folder }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("access.log")).unwrap_or_default()
    }

    /// What a client with this certificate is answered, asking for this server.
    fn ask(&self, server_name: &str, identity: Option<&Identity>) -> std::io::Result<String> {
        let client = TlsClient { server_name, root_pem: self.ca.root_pem(), identity, alpn: &[] };
        Ok(client.open(self.address)?.get("a", "/", "Connection: close\r\n")?.text())
    }

    /// A workload of the mesh is still served.
    pub fn serves_others(&self) {
        let own = self.ca.for_spiffe("spiffe://cluster.local/ns/shop/sa/web");
        assert_eq!(self.ask("strict.test", Some(&own)).expect("it answers"), "strict");
    }
}

fn bootstrap(address: SocketAddr, folder: &Path) -> String {
    let (port, folder) = (address.port(), folder.display());
    let log = format!(
        "access_log: [{{name: file, typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, \
         path: {folder}/access.log, log_format: {{text_format_source: {{inline_string: \"%DOWNSTREAM_TRANSPORT_FAILURE_REASON% \
         %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% %RESPONSE_FLAGS% %DOWNSTREAM_PEER_URI_SAN%\\n\"}}}}}}}}]"
    );
    let names = "match_typed_subject_alt_names: [{san_type: URI, matcher: {prefix: spiffe://cluster.local/}}]";
    // Names are only looked at in certificates: where they matter, there has to be one.
    let one_root = format!("trusted_ca: {{filename: {folder}/ca.pem}}");
    let by_domain = format!(
        "custom_validator_config: {{name: envoy.tls.cert_validator.spiffe, typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.SPIFFECertValidatorConfig, \
         trust_domains: [{{name: cluster.local, trust_bundle: {{filename: {folder}/ca.pem}}}}, {{name: partner.example, trust_bundle: {{filename: {folder}/partner.pem}}}}]}}}}"
    );
    let chain = |name: &str, validation: &str, roots: &str, names: &str| {
        format!(
            "    - filter_chain_match: {{server_names: [{name}.test]}}
      transport_socket:
        name: tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          {validation}
          common_tls_context:
            tls_certificates: [{{certificate_chain: {{filename: {folder}/{name}-cert.pem}}, private_key: {{filename: {folder}/{name}-key.pem}}}}]
            validation_context:
              {roots}
              {names}
      filters:
      - name: http
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          {log}
          route_config: {{virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200, body: {{inline_string: {name}}}}}}}]}}]}}
          http_filters: [{{name: r, typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]
"
        )
    };
    format!(
        "static_resources:
  listeners:
  - name: l
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    {log}
    listener_filters: [{{name: tls, typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}}}]
    filter_chains:
{}{}{}{}",
        chain("strict", "require_client_certificate: true", &one_root, names),
        chain("open", "require_client_certificate: false", &one_root, ""),
        chain("federated", "require_client_certificate: true", &by_domain, ""),
        chain(
            "listed",
            "require_client_certificate: true",
            &one_root,
            &format!("crl: {{filename: {folder}/crl.pem}}")
        ),
    )
}

/// A ClientHello of TLS 1.2 or older for `strict.test`, with these cipher suites.
fn hello(version: u16, suites: &[u16]) -> Vec<u8> {
    let short = |text: Vec<u8>| [&u16::try_from(text.len()).expect("short").to_be_bytes(), text.as_slice()].concat();
    let extension = |number: u16, content: Vec<u8>| [&number.to_be_bytes(), short(content).as_slice()].concat();
    let name = b"strict.test";
    let names = short([&[0][..], &short(name.to_vec())].concat());
    let extensions = [
        extension(0, names),
        extension(10, short(vec![0, 29, 0, 23])),
        extension(11, vec![1, 0]),
        extension(13, short(vec![4, 3, 8, 4, 4, 1, 2, 1])),
    ]
    .concat();
    let suites = suites.iter().flat_map(|suite| suite.to_be_bytes()).collect();
    let body = [&version.to_be_bytes()[..], &[7; 32], &[0], &short(suites), &[1, 0], &short(extensions)].concat();
    let length = u32::try_from(body.len()).expect("short").to_be_bytes();
    let message = [&[1][..], &length[1..], &body].concat();
    [&[22, 3, 1][..], &short(message)].concat()
}

/// ECDHE with ECDSA and AES-GCM: what the server takes.
const GOOD: [u16; 2] = [0xc02b, 0xc02c];
/// CBC, RSA key transport, 3DES, RC4, no encryption, anonymous Diffie-Hellman.
const WEAK: [u16; 8] = [0xc009, 0xc013, 0x002f, 0x000a, 0x0005, 0x0001, 0x0000, 0x0034];

#[test]
fn nobody_gets_in_below_the_mesh_s_tls() {
    let server = Server::new();
    // The attack's own bytes are a ClientHello that is answered if version and suites are good.
    let answer = talk(server.address, &hello(0x0303, &GOOD)).expect("it accepts");
    assert!(answer.as_bytes().first() == Some(&22), "{answer:?}");
    for (version, suites) in [(0x0300, &GOOD[..]), (0x0301, &GOOD), (0x0302, &GOOD), (0x0303, &WEAK), (0x0301, &WEAK)] {
        let mut stream = std::net::TcpStream::connect(server.address).expect("it accepts");
        stream.write_all(&hello(version, suites)).expect("it reads");
        let mut answer = Vec::new();
        let _ = std::io::Read::read_to_end(&mut stream, &mut answer);
        // An alert, and no ServerHello.
        assert!(answer.is_empty() || answer[0] == 21, "{version:x} {suites:x?}: {answer:?}");
    }
    let plain = talk(server.address, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").expect("it accepts");
    assert_eq!(plain, "", "plain text");
    for name in ["other.test", "strict.test.evil", "STRICT.test.", "open"] {
        assert!(server.ask(name, None).is_err(), "{name}");
    }
    let said = |text: &str| {
        eventually(&format!("{text} in the log"), || server.log().contains(text).then_some(()));
    };
    said("peer_is_incompatible");
    said("filter_chain_not_found");
    server.serves_others();
}

#[test]
fn nobody_gets_in_without_an_identity_of_the_mesh() {
    let server = Server::new();
    let (id, stranger) = ("spiffe://cluster.local/ns/shop/sa/web", TestCa::new());
    let rows = [
        ("no certificate", None, "peer_did_not_provide_required_client_certificate"),
        ("another root", Some(stranger.for_spiffe(id)), "verify_cert_failed"),
        ("expired", Some(server.ca.expired(id)), "it_expired"),
        ("another trust domain", Some(server.ca.for_spiffe("spiffe://evil.example/ns/shop/sa/web")), "SAN_matcher"),
        (
            "a trust domain that begins alike",
            Some(server.ca.for_spiffe("spiffe://cluster.localhost/ns/shop/sa/web")),
            "SAN_matcher",
        ),
        ("a server's name", Some(server.ca.for_dns(&["strict.test"])), "SAN_matcher"),
    ];
    for (name, identity, reason) in rows {
        assert!(server.ask("strict.test", identity.as_ref()).is_err(), "{name}");
        eventually(&format!("{name}: {reason}"), || server.log().contains(reason).then_some(()));
    }
    server.serves_others();
}

#[test]
fn a_revoked_workload_is_refused_and_named() {
    let server = Server::new();
    let id = "spiffe://cluster.local/ns/shop/sa/web";
    let (good, revoked) = (server.ca.numbered(id, REVOKED + 1), server.ca.numbered(id, REVOKED));
    assert_eq!(server.ask("listed.test", Some(&good)).expect("it answers"), "listed");
    assert!(server.ask("listed.test", Some(&revoked)).is_err());
    // The list counts where it is given, and nowhere else.
    assert_eq!(server.ask("strict.test", Some(&revoked)).expect("it answers"), "strict");
    let line = eventually("the reason", || {
        let log = server.log();
        log.lines().find(|line| line.contains("it_has_been_revoked")).map(str::to_owned)
    });
    assert!(line.contains(id), "{line}");
}

#[test]
fn no_authority_vouches_for_another_trust_domain() {
    let server = Server::new();
    let (own, partner) = ("spiffe://cluster.local/ns/shop/sa/web", "spiffe://partner.example/ns/shop/sa/web");
    for identity in [server.ca.for_spiffe(own), server.partner.for_spiffe(partner)] {
        assert_eq!(server.ask("federated.test", Some(&identity)).expect("it answers"), "federated");
    }
    // All these roots have one name, so that each is tried for the others' certificates.
    let rows = [
        ("the partner's authority for the mesh", server.partner.for_spiffe(own), "its_signature_is_wrong"),
        ("the mesh's for the partner", server.ca.for_spiffe(partner), "its_signature_is_wrong"),
        ("nobody's trust domain", server.ca.for_spiffe("spiffe://evil.example/ns/a/sa/b"), "`evil.example`"),
        ("a stranger's authority", TestCa::new().for_spiffe(partner), "its_signature_is_wrong"),
        ("no SPIFFE id", server.partner.for_dns(&["partner.example"]), "no_SPIFFE_id"),
        ("expired", server.partner.expired(partner), "it_expired"),
    ];
    for (name, identity, reason) in rows {
        let before = server.log().len();
        assert!(server.ask("federated.test", Some(&identity)).is_err(), "{name}");
        eventually(&format!("{name}: {reason}"), || server.log().get(before..)?.contains(reason).then_some(()));
    }
    // A root of the partner does not help where its trust domain is not accepted at all.
    assert!(server.ask("strict.test", Some(&server.partner.for_spiffe(own))).is_err());
    server.serves_others();
}

#[test]
fn no_session_is_resumed_where_it_proves_nothing() {
    let server = Server::new();
    let client =
        TlsClient { server_name: "open.test", root_pem: server.ca.root_pem(), ..TlsClient::default() }.resuming();
    let get = |connection: &mut Connection| connection.get("a", "/", "").map(|response| response.text());
    let open = |name| client.open(server.address, name);
    let (mut first, resumed) = open("open.test").expect("a handshake");
    assert_eq!((get(&mut first).expect("an answer"), resumed), ("open".to_owned(), false));
    let (mut second, resumed) = open("open.test").expect("a handshake");
    assert!(resumed, "sessions are resumed at all");
    assert_eq!(get(&mut second).expect("an answer"), "open");
    // The same session, offered to the chain that requires a certificate.
    let strict = open("strict.test").and_then(|(mut connection, resumed)| Ok((get(&mut connection)?, resumed)));
    assert!(strict.is_err(), "{strict:?}");
    eventually("the reason", || {
        server.log().contains("peer_did_not_provide_required_client_certificate").then_some(())
    });
    server.serves_others();
}
