//! Bootstrap files in every spelling that Envoy's reader accepts.

use std::process::Command;

use evenkeel_testkit::envoy_validate;

/// What the two programs say of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// Both load it.
    Valid,
    /// Both refuse it.
    Refused,
    /// Envoy refuses it and Evenkeel loads it: it has one meaning only.
    EnvoyRefuses,
    /// Evenkeel refuses it, since Envoy passes over a part of it in silence.
    EvenkeelRefuses,
}
use Verdict::*;

fn evenkeel_validate(bootstrap: &str) -> Result<(), String> {
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a temporary file");
    std::fs::write(file.path(), bootstrap).expect("a writable temporary file");
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
        .args(["proxy", "--mode", "validate", "-c"])
        .arg(file.path())
        .output()
        .expect("the program starts");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

fn check(name: &str, text: &str, expected: Verdict) {
    let (ours, envoys) = (evenkeel_validate(text), envoy_validate(text));
    let found = match (&ours, &envoys) {
        (Ok(()), Ok(())) => Valid,
        (Err(_), Err(_)) => Refused,
        (Ok(()), Err(_)) => EnvoyRefuses,
        (Err(_), Ok(())) => EvenkeelRefuses,
    };
    assert_eq!(found, expected, "{name}: {text}\nEvenkeel: {ours:?}\nEnvoy: {envoys:?}");
}

/// Fields of a cluster.
#[test]
fn clusters() {
    for (name, field, expected) in [
        ("the documented name", "type: STATIC", Valid),
        ("lower case", "type: static", Valid),
        ("mixed case", "lb_policy: Round_Robin", Valid),
        ("a number", "type: 0", Valid),
        ("a number in quotes", "type: \"0\"", Valid),
        ("an unknown number", "type: 77", Refused),
        ("another separator", "type: logical-dns", Refused),
        ("no name", "type: ''", Refused),
        ("an object", "dns_refresh_rate: {seconds: 2, nanos: 500000000}", Valid),
        ("an object with numbers in quotes", "dns_refresh_rate: {seconds: \"2\"}", Valid),
        ("a number without unit", "dns_refresh_rate: 2", Refused),
        ("another unit", "dns_refresh_rate: 250ms", Refused),
        ("no digit", "dns_refresh_rate: .5s", Refused),
        ("a wrapper as an object", "per_connection_buffer_limit_bytes: {value: 5}", Valid),
        ("a wrapper in quotes", "per_connection_buffer_limit_bytes: \"5\"", Valid),
        ("an empty wrapper", "per_connection_buffer_limit_bytes: {}", Valid),
        ("a whole number with a point", "per_connection_buffer_limit_bytes: 5.0", Valid),
        ("an exponent", "per_connection_buffer_limit_bytes: 1e3", Valid),
        ("a negative number", "per_connection_buffer_limit_bytes: -5", Refused),
        ("a number with a space", "per_connection_buffer_limit_bytes: ' 5'", Refused),
        ("a boolean in quotes", "respect_dns_ttl: \"true\"", Valid),
        ("YAML 1.1's yes", "respect_dns_ttl: yes", Valid),
        ("YAML 1.1's off", "respect_dns_ttl: off", Valid),
        ("YAML 1.1's y", "respect_dns_ttl: y", Valid),
        ("a capital", "respect_dns_ttl: True", Valid),
        ("a number for a boolean", "respect_dns_ttl: 1", Refused),
        ("nothing", "eds_cluster_config: null", Valid),
        ("text for a message", "eds_cluster_config: ''", Refused),
        ("no such field", "foo: 1", Refused),
        ("the protocol in the older place", "http2_protocol_options: {}", Valid),
        ("older options", "max_requests_per_connection: 1, common_http_protocol_options: {idle_timeout: 5s}", Valid),
    ] {
        check(name, &format!("static_resources: {{clusters: [{{name: a, connect_timeout: 1s, {field}}}]}}"), expected);
    }
}

/// Whole files.
#[test]
fn files() {
    let client = "node: {id: a, cluster: c}\nstatic_resources: {clusters: [{name: a, connect_timeout: 1s, http2_protocol_options: {}}]}\n";
    let source =
        |fields: &str| format!("{client}dynamic_resources: {{ads_config: {{{fields}}}, cds_config: {{ads: {{}}}}}}\n");
    let grpc = "grpc_services: {envoy_grpc: {cluster_name: a}}";
    for (name, text, expected) in [
        ("one value for a list", "static_resources: {clusters: {name: a, connect_timeout: 1s}}".to_owned(), Valid),
        ("a list in a list", "static_resources: {clusters: [[{name: a, connect_timeout: 1s}]]}".to_owned(), Valid),
        ("no list", "static_resources: {clusters: null}".to_owned(), Valid),
        ("an object for a list of texts", "node: {id: a, cluster: c, client_features: {a: b}}".to_owned(), Refused),
        ("a number for a text", "static_resources: {clusters: [{name: 5, connect_timeout: 1s}]}".to_owned(), Refused),
        ("a decimal for a text", "static_resources: {clusters: [{name: 1.5, connect_timeout: 1s}]}".to_owned(), Valid),
        ("a key twice", "static_resources: {clusters: [{name: '', name: a, connect_timeout: 1s}]}".to_owned(), Valid),
        (
            "a key twice, the last bad",
            "static_resources: {clusters: [{name: a, name: '', connect_timeout: 1s}]}".to_owned(),
            Refused,
        ),
        ("a message twice", "static_resources: {clusters: 5}\nstatic_resources: {}".to_owned(), Valid),
        ("both names of a field", "static_resources: {clusters: [{name: a, connectTimeout: 1s}]}".to_owned(), Valid),
        (
            "an ignored part",
            "!ignore parts: {a: &a {name: a, connect_timeout: 1s}}\nstatic_resources: {clusters: [*a]}".to_owned(),
            Valid,
        ),
        (
            "bytes without padding",
            "static_resources: {secrets: [{name: a, generic_secret: {secret: {inline_bytes: YQ}}}]}".to_owned(),
            EvenkeelRefuses,
        ),
        (
            "a merge key",
            "static_resources: {clusters: [&a {name: a, connect_timeout: 1s}, {<<: *a, name: b}]}".to_owned(),
            EnvoyRefuses,
        ),
        ("two documents", "static_resources: {}\n---\nstatic_resources: {}".to_owned(), EvenkeelRefuses),
        ("a type in lower case, no version", source(&format!("api_type: grpc, {grpc}")), Valid),
        ("the present version", source(&format!("api_type: DELTA_GRPC, transport_api_version: v3, {grpc}")), Valid),
        ("the removed version", source(&format!("api_type: GRPC, transport_api_version: V2, {grpc}")), Refused),
    ] {
        check(name, &text, expected);
    }
}
