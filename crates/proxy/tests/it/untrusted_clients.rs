//! Clients that are let in with a certificate that does not verify (`trust_chain_verification: ACCEPT_UNTRUSTED`): policies
//! and servers see no identity of theirs.

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Backend, Identity, Reply, TestCa};

use crate::harness::{MeshTls, Proxy, http_listener, stat, static_bootstrap, static_cluster};

/// A route to the backend for each name of a client, guarded by a policy: `/any` wants some authenticated client, `/named`
/// the mesh's.
fn policies() -> String {
    let policy = |name: &str, principal: &str| {
        format!(
            "{name}: {{permissions: [{{url_path: {{path: {{exact: /{name}}}}}}}], principals: [{{authenticated: {{{principal}}}}}]}}"
        )
    };
    let named = format!("principal_name: {{exact: \"{}\"}}", MeshTls::CLIENT);
    let open = "open: {permissions: [{url_path: {path: {exact: /open}}}], principals: [{any: true}]}";
    format!(
        "http_filters:\n      - name: rbac\n        typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC, \
         rules: {{action: ALLOW, policies: {{{}, {}, {open}}}}}}}",
        policy("any", ""),
        policy("named", &named)
    )
}

/// What a client gets at `/open`, `/any` and `/named`; `None`: it is not let in.
fn statuses(proxy: &Proxy, tls: &MeshTls, identity: Option<&Identity>) -> Option<[u16; 3]> {
    let (server_name, root_pem) = (MeshTls::SERVER_NAME, tls.ca.root_pem());
    let client = TlsClient { server_name, root_pem, identity, alpn: &["http/1.1"] };
    let mut connection = client.open(proxy.listener("edge")).ok()?;
    let forged = format!("x-forwarded-client-cert: URI={}\r\n", MeshTls::CLIENT);
    let mut status = |path: &str| Some(connection.get("a", path, &forged).ok()?.status);
    Some([status("/open")?, status("/any")?, status("/named")?])
}

fn edge(tls: &MeshTls, backend: &Backend, required: bool) -> Proxy {
    let context = tls.listener("http/1.1");
    let required_client = "require_client_certificate: true";
    assert!(context.contains(required_client) && context.contains("ca.pem}}"), "{context}");
    let context = context.replace(required_client, &format!("require_client_certificate: {required}"));
    let context = context.replace("ca.pem}}", "ca.pem}, trust_chain_verification: ACCEPT_UNTRUSTED}");
    let routes = "forward_client_cert_details: SANITIZE_SET\n      set_current_client_cert_details: {uri: true}\n      \
                  route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                  route: {cluster: next}}]}]}";
    let listener = http_listener("edge", routes, &context).replace("http_filters:", &policies());
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &[static_cluster("next", backend.address(), "")]), 1);
    proxy.wait_live();
    proxy
}

#[test]
fn an_untrusted_certificate_is_let_in_and_identifies_nobody() {
    let (tls, stranger) = (MeshTls::new(), TestCa::new());
    let backend = Backend::start(|request| {
        let forwarded = request.header("x-forwarded-client-cert").unwrap_or("none").to_owned();
        Reply::text(&forwarded)
    });
    let (foreign, expired) = (stranger.for_spiffe(MeshTls::CLIENT), tls.ca.expired(MeshTls::CLIENT));
    let (known, open) = (Some([200, 200, 200]), Some([200, 403, 403]));
    for (required, without) in [(false, open), (true, None)] {
        let proxy = edge(&tls, &backend, required);
        let check = |name: &str, identity: Option<&Identity>, expected: Option<[u16; 3]>| {
            let before = backend.requests().len();
            assert_eq!(statuses(&proxy, &tls, identity), expected, "{name}, required: {required}");
            for request in &backend.requests()[before..] {
                let forwarded = request.header("x-forwarded-client-cert");
                assert_eq!(forwarded.is_some(), expected == known, "{name}: {forwarded:?}");
            }
        };
        check("valid", Some(&tls.client), known);
        check("another authority", Some(&foreign), open);
        check("expired", Some(&expired), open);
        check("no certificate", None, without);
        assert_eq!(stat(&proxy, ".ssl.fail_verify_error"), [2]);
        assert_eq!(stat(&proxy, ".ssl.no_certificate"), [u64::from(!required)]);
    }
}
