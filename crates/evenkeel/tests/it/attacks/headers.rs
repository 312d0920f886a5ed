//! Headers with which proxies tell each other about a client, sent by a client.

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Identity, TestCa, eventually};

use super::gateway::Gateway;

/// All of them, with a client's lies.
const LIES: &str = "x-forwarded-for: 6.6.6.6\r\nx-forwarded-proto: https\r\nx-forwarded-client-cert: By=a;URI=spiffe://cluster.local/ns/x/sa/root\r\n\
                    x-envoy-external-address: 6.6.6.6\r\nx-envoy-internal: true\r\nx-envoy-peer-metadata: lies\r\n\
                    x-envoy-peer-metadata-id: lies\r\nx-envoy-original-path: /lies\r\nx-envoy-original-dst-host: 6.6.6.6:80\r\n\
                    x-envoy-decorator-operation: lies\r\nx-envoy-max-retries: 99\r\nx-envoy-retry-on: 5xx\r\n\
                    x-envoy-upstream-rq-timeout-ms: 1\r\nx-envoy-attempt-count: 9\r\nx-request-id: lies\r\n";

/// What arrives of them: lines of the request as the server got it.
fn arrives(gateway: &Gateway, headers: &str) -> Vec<String> {
    let mut connection = Connection::open(gateway.address).expect("it accepts");
    let response = connection.get("a.test", "/public", &format!("{headers}Connection: close\r\n")).expect("an answer");
    assert_eq!(response.status, 200, "{response:?}");
    let text = response.text();
    let mut lines: Vec<String> = text.lines().skip(1).map(str::to_owned).collect();
    lines.retain(|line| (line.starts_with("x-") || line.contains('_')) && !line.starts_with("x-request-id"));
    lines.sort();
    assert!(!text.contains("lies"), "{text}");
    lines
}

#[test]
fn a_client_says_nothing_about_itself_unless_proxies_in_front_are_trusted() {
    let check = |config: &str, headers: &str, expected: &[&str]| {
        let gateway = Gateway::with(config);
        assert_eq!(arrives(&gateway, headers), expected, "{config}");
    };
    check(
        "gatewayTopology: {}",
        // Programs that follow CGI do not tell underscores and hyphens apart.
        &(LIES.to_owned() + &LIES.replace('-', "_") + "x-forwarded_client-cert: lies\r\n"),
        &[
            "x-envoy-attempt-count: 1",
            "x-envoy-external-address: 127.0.0.1",
            "x-forwarded-for: 6.6.6.6,127.0.0.1",
            "x-forwarded-proto: http",
        ],
    );
    // One proxy in front is trusted: the address that it added is the client's, and so is the scheme it tells.
    check(
        "gatewayTopology: {numTrustedProxies: 1}",
        "x-forwarded-for: 6.6.6.6, 10.9.8.7\r\nx-forwarded-proto: https\r\n",
        &[
            "x-envoy-attempt-count: 1",
            "x-envoy-external-address: 10.9.8.7",
            "x-forwarded-for: 6.6.6.6, 10.9.8.7,127.0.0.1",
            "x-forwarded-proto: https",
        ],
    );
    // Fewer addresses than trusted proxies: none is taken for the client's.
    check(
        "gatewayTopology: {numTrustedProxies: 3}",
        "x-forwarded-for: 6.6.6.6\r\n",
        &[
            "x-envoy-attempt-count: 1",
            "x-envoy-external-address: 127.0.0.1",
            "x-forwarded-for: 6.6.6.6,127.0.0.1",
            "x-forwarded-proto: http",
        ],
    );
    let xfcc = "x-forwarded-client-cert: By=a;URI=spiffe://cluster.local/ns/x/sa/root\r\n";
    for (details, passes) in [
        ("SANITIZE", false),
        ("FORWARD_ONLY", false),
        ("APPEND_FORWARD", false),
        ("SANITIZE_SET", false),
        ("ALWAYS_FORWARD_ONLY", true),
    ] {
        let gateway = Gateway::with(&format!("gatewayTopology: {{forwardClientCertDetails: {details}}}"));
        let lines = arrives(&gateway, xfcc);
        assert_eq!(
            lines.iter().any(|line| line.starts_with("x-forwarded-client-cert")),
            passes,
            "{details}: {lines:?}"
        );
    }
}

/// Who the client with a certificate is.
const CLIENT: &str = "spiffe://partner.example/ns/a/sa/client";
/// What it says it is.
const FORGED: &str = "By=spiffe://x;Hash=00;URI=spiffe://cluster.local/ns/x/sa/root";

#[test]
fn of_a_client_with_a_certificate_a_server_is_told_what_the_certificate_says() {
    // What arrives begins and ends so: whether the client's own words pass, and whether its certificate is told.
    let check = |details: &str, forged: bool, told: bool| {
        let gateway = Gateway::with(&format!("gatewayTopology: {{forwardClientCertDetails: {details}}}"));
        let (ca, other) = (TestCa::new(), TestCa::new());
        let address = gateway.asks_for_certificates(&ca);
        let ask = |identity: Option<&Identity>| {
            let client = TlsClient { server_name: "a.test", root_pem: ca.root_pem(), identity, ..TlsClient::default() };
            let headers = format!("x-forwarded-client-cert: {FORGED}\r\nConnection: close\r\n");
            client.open(address).and_then(|mut connection| connection.get("a.test", "/public", &headers))
        };
        let identity = ca.for_spiffe(CLIENT);
        let response = eventually("an answer", || ask(Some(&identity)).ok().filter(|response| response.status == 200));
        let text = response.text();
        let value = text.lines().find_map(|line| line.strip_prefix("x-forwarded-client-cert: ")).unwrap_or_default();
        let (first, last) = value.rsplit_once(',').unwrap_or((value, value));
        assert_eq!(first == FORGED, forged, "{details}: {value}");
        let is_told = last.starts_with("By=") || last.starts_with("Hash=");
        assert_eq!(is_told && last.contains(&format!("URI={CLIENT}")), told, "{details}: {value}");
        assert_eq!(value.contains("sa/root"), forged, "{details}: {value}");
        // Neither without a certificate nor with another authority's.
        assert!(ask(None).is_err(), "{details}");
        assert!(ask(Some(&other.for_spiffe(CLIENT))).is_err(), "{details}");
    };
    check("SANITIZE", false, false);
    check("FORWARD_ONLY", true, false);
    check("APPEND_FORWARD", true, true);
    check("SANITIZE_SET", false, true);
    check("ALWAYS_FORWARD_ONLY", true, false);
}
