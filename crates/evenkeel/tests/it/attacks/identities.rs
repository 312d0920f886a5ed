//! A certificate of another trust domain that names an identity of the mesh: as a DNS name, in its subject, in a second URI. Policies see the
//! URI that the handshake has verified, and nothing else.

use std::fmt::Write as _;
use std::net::SocketAddr;

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Backend, Connection, Identity, Reply, TestCa, eventually};

use crate::mesh::Plane;
use crate::pair::{A, B, Gateway, local_ports, objects, trusting};

/// The partner's workload, which says that it is `A`.
const PARTNER: &str = "spiffe://partner.example/ns/other/sa/b";

/// Conditions on the caller, and who meets them: the mesh's own `A`, the partner's workload.
const CONDITIONS: [(&str, bool, bool); 25] = [
    ("from: [{source: {principals: [cluster.local/ns/shop/sa/a]}}]", true, false),
    ("from: [{source: {principals: ['cluster.local/*']}}]", true, false),
    ("from: [{source: {principals: ['*/ns/shop/sa/a']}}]", true, false),
    ("from: [{source: {namespaces: [shop]}}]", true, false),
    ("from: [{source: {namespaces: ['sho*']}}]", true, false),
    ("from: [{source: {serviceAccounts: [a]}}]", true, false),
    ("from: [{source: {serviceAccounts: [shop/a]}}]", true, false),
    ("from: [{source: {trustDomains: [cluster.local]}}]", true, false),
    ("from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/a]}}]", false, true),
    ("from: [{source: {notPrincipals: ['cluster.local/*']}}]", false, true),
    ("from: [{source: {notNamespaces: [shop]}}]", false, true),
    ("from: [{source: {notServiceAccounts: [shop/a]}}]", false, true),
    ("from: [{source: {notTrustDomains: [cluster.local]}}]", false, true),
    ("from: [{source: {principals: [partner.example/ns/other/sa/b]}}]", false, true),
    ("from: [{source: {namespaces: [other]}}]", false, false), // Namespaces are the mesh's own.
    ("when: [{key: source.principal, values: [cluster.local/ns/shop/sa/a]}]", true, false),
    ("when: [{key: source.principal, notValues: ['cluster.local/*']}]", false, true),
    ("when: [{key: source.namespace, values: [shop]}]", true, false),
    ("when: [{key: source.namespace, notValues: [shop]}]", false, true),
    ("when: [{key: source.serviceAccount, values: [a]}]", true, false),
    ("when: [{key: source.serviceAccount, values: [shop/a]}]", true, false),
    ("when: [{key: source.serviceAccount, notValues: [a]}]", false, true),
    ("when: [{key: source.trustDomain, values: [cluster.local]}]", true, false),
    ("when: [{key: source.trustDomain, notValues: [cluster.local]}]", false, true),
    ("when: [{key: source.principal, values: [partner.example/ns/other/sa/b]}]", false, true),
];

/// A policy of each action, with a rule for each condition, which says something about its own path only.
fn policies() -> String {
    let mut text = String::new();
    for action in ["ALLOW", "DENY"] {
        _ = write!(
            text,
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p{}, namespace: shop}}\n\
             spec:\n  selector: {{matchLabels: {{app: b}}}}\n  action: {action}\n  rules:\n",
            action.to_lowercase()
        );
        for (number, (condition, ..)) in CONDITIONS.iter().enumerate() {
            _ = writeln!(text, "  - {{{condition}, to: [{{operation: {{paths: [/{action}/{number}]}}}}]}}");
        }
    }
    // What no DENY rule refuses is allowed, below its paths.
    let all = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: rest, namespace: shop}\n\
               spec: {selector: {matchLabels: {app: b}}, rules: [{to: [{operation: {paths: ['/DENY/*']}}]}]}\n";
    text + all
}

/// The status of `A`, through its gateway.
fn status(a: SocketAddr, path: &str) -> Option<u16> {
    Some(Connection::open(a).ok()?.get("any.test", path, "").ok()?.status)
}

/// The status of a client with this certificate, straight at the server; `None`: it was not let in.
fn status_of(b: SocketAddr, identity: &Identity, path: &str) -> Option<u16> {
    use std::io::{Read as _, Write as _};
    let client = TlsClient { identity: Some(identity), ..TlsClient::default() };
    let mut answer = Vec::new();
    let request = format!("GET {path} HTTP/1.1\r\nhost: b.test\r\nconnection: close\r\n\r\n");
    // Refused, the client sees it when it reads.
    let asked = client.open_unverified(b, |stream| {
        drop(stream.write_all(request.as_bytes()));
        drop(stream.read_to_end(&mut answer));
    });
    asked.ok()?;
    String::from_utf8_lossy(&answer).strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()
}

/// The server runs with these flags. `lying`: what a certificate gets that names two trust domains; `None`: what its URI gets.
fn check(flags: &[String], lying: Option<u16>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (plane, partner, [a, b]) = (Plane::new(), TestCa::new(), local_ports());
    let backend = Backend::start(|_| Reply::text("served"));
    plane.write("objects", &(objects(a, b, backend.address(), B) + &policies()));
    plane.write("mesh", &trusting("cluster.local", "partner.example", &partner.root_pem()));
    let _control = plane.start();
    let (caller, called) = (Gateway::new(folder.path(), "a"), Gateway::new(folder.path(), "b"));
    let _processes = (caller.start(&plane, &[]), called.start(&plane, flags));
    eventually("the policies", || {
        (status(a, "/DENY/none") == Some(200) && status(a, "/ALLOW/none") == Some(403)).then_some(())
    });
    let honest = partner.for_spiffe(PARTNER);
    eventually("the partner's roots", || status_of(b, &honest, "/DENY/none"));
    let name = A.trim_start_matches("spiffe://");
    let callers = [
        ("the partner's own", None, honest),
        ("a DNS name", lying, partner.for_server(PARTNER, A)),
        // It is no identity to anybody.
        ("a DNS name without a scheme", None, partner.for_server(PARTNER, name)),
        ("the subject", None, partner.with_common_name(PARTNER, A)),
        ("the subject without a scheme", None, partner.with_common_name(PARTNER, name)),
    ];
    for (number, (condition, is_own, is_partner)) in CONDITIONS.iter().enumerate() {
        let (allowed, denied) = (format!("/ALLOW/{number}"), format!("/DENY/{number}"));
        let expected = |is_met: bool| if is_met { [Some(200), Some(403)] } else { [Some(403), Some(200)] };
        assert_eq!([status(a, &allowed), status(a, &denied)], expected(*is_own), "{condition}: the mesh's own");
        for (what, instead, identity) in &callers {
            let found = [&allowed, &denied].map(|path| status_of(b, identity, path));
            let expected = instead.map_or_else(|| expected(*is_partner), |status| [Some(status); 2]);
            assert_eq!(found, expected, "{condition}: {what}");
        }
    }
    // Two URIs are no identity, in whatever order; Envoy looks at the first one in the handshake, and at all of them afterwards.
    for uris in [[PARTNER, A], [A, PARTNER]] {
        let found = status_of(b, &partner.for_uris(&uris), "/DENY/none");
        assert!(found.is_none() || found == lying, "{uris:?}: {found:?}");
    }
    assert_eq!(status_of(b, &partner.for_spiffe(A), "/DENY/none"), None, "the partner's root for the mesh's identity");
}

#[test]
fn a_partners_certificate_is_what_its_uri_says() {
    check(&[], None);
}

/// Stock Envoy compares DNS names as well, so the control plane has it refuse certificates with names of several trust domains.
#[test]
fn a_partners_certificate_is_no_identity_of_the_mesh_where_envoy_serves() {
    check(&["--envoy".to_owned(), evenkeel_testkit::envoy().display().to_string()], Some(403));
}
