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
        ("nine digits", "dns_refresh_rate: 1.123456789s", Valid),
        ("ten digits", "dns_refresh_rate: 1.12345678900s", Refused),
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
        (
            "servers in the oldest place",
            "dns_resolvers: [{socket_address: {address: 127.0.0.1, port_value: 53}}]",
            Valid,
        ),
        (
            "servers in an older place",
            "dns_resolution_config: {resolvers: [{socket_address: {address: 127.0.0.1, port_value: 53}}]}",
            Valid,
        ),
        ("the name of a type's extension", "cluster_type: {name: envoy.cluster.strict_dns}", Valid),
        ("a name that is no extension's", "cluster_type: {name: envoy.cluster.no_such}", Refused),
        (
            "the type of DNS clusters",
            "load_assignment: {cluster_name: a}, cluster_type: {name: x, typed_config: {\"@type\": \
             type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster, dns_lookup_family: v4_only}}",
            Valid,
        ),
        (
            "a rate that is too short in it",
            "cluster_type: {name: x, typed_config: {\"@type\": \
             type.googleapis.com/envoy.extensions.clusters.dns.v3.DnsCluster, dns_refresh_rate: 0.0001s}}",
            Refused,
        ),
        ("the protocol in the older place", "http2_protocol_options: {}", Valid),
        ("older options", "max_requests_per_connection: 1, common_http_protocol_options: {idle_timeout: 5s}", Valid),
    ] {
        check(name, &format!("static_resources: {{clusters: [{{name: a, connect_timeout: 1s, {field}}}]}}"), expected);
    }
}

/// An octal number is in the range of a port, and the same digits as a decimal number are not.
#[test]
fn octal_numbers() {
    for (name, port, expected) in [
        ("octal", "0100000", Valid),
        ("in quotes", "\"0100000\"", Refused),
        ("a digit that is not octal", "0100008", Refused),
        ("YAML 1.2's octal", "0o10", EnvoyRefuses),
        ("hexadecimal", "0x10", Valid),
        ("a sign", "+7", Valid),
    ] {
        let address = format!("{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}");
        let endpoints = format!("[{{lb_endpoints: [{{endpoint: {{address: {address}}}}}]}}]");
        let cluster =
            format!("{{name: a, connect_timeout: 1s, load_assignment: {{cluster_name: a, endpoints: {endpoints}}}}}");
        check(name, &format!("static_resources: {{clusters: [{cluster}]}}"), expected);
    }
}

/// Access loggers, and the log of the admin port.
#[test]
fn logs() {
    let file = |fields: &str| {
        format!(
            "\"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, path: /dev/null, {fields}"
        )
    };
    let stream = |name: &str| {
        format!("\"@type\": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.{name}AccessLog")
    };
    for (name, logger, expected) in [
        ("the present form", file("log_format: {text_format_source: {inline_string: x}}"), Valid),
        ("the oldest form", file("format: \"%PROTOCOL%\\n\""), Valid),
        ("a mistake in it", file("format: \"%PROTOCOL\""), Refused),
        ("an empty format", file("format: ''"), Valid),
        ("older JSON", file("json_format: {a: \"%PROTOCOL%\"}"), Valid),
        ("older JSON with types", file("typed_json_format: {a: {b: \"%PROTOCOL%\"}}"), Valid),
        ("standard output", stream("Stdout"), Valid),
        ("standard error", stream("Stderr") + ", log_format: {text_format: x}", Valid),
        ("a stream that does not exist", stream("Stdin"), Refused),
    ] {
        for filter in ["", ", filter: {not_health_check_filter: {}}"] {
            let log = format!("{{name: a, typed_config: {{{logger}}}{filter}}}");
            let admin = "address: {socket_address: {address: 127.0.0.1, port_value: 0}}";
            check(name, &format!("admin: {{{admin}, access_log: [{log}]}}"), expected);
        }
    }
    let admin = |fields: &str| {
        format!("admin: {{{fields}, address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}")
    };
    check("the oldest place", &admin("access_log_path: /dev/null"), Valid);
    check("a profile", &admin("access_log_path: /dev/null, profile_path: /dev/null"), Valid);
    check("no such field", &admin("access_log_file: /dev/null"), Refused);
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
        ("watchdogs", "watchdog: {}".to_owned(), Valid),
        ("two documents", "static_resources: {}\n---\nstatic_resources: {}".to_owned(), EvenkeelRefuses),
        ("a type in lower case, no version", source(&format!("api_type: grpc, {grpc}")), Valid),
        ("the present version", source(&format!("api_type: DELTA_GRPC, transport_api_version: v3, {grpc}")), Valid),
        ("a limit of requests", source(&format!("api_type: GRPC, rate_limit_settings: {{}}, {grpc}")), Valid),
        ("the removed version", source(&format!("api_type: GRPC, transport_api_version: V2, {grpc}")), Refused),
    ] {
        check(name, &text, expected);
    }
}
