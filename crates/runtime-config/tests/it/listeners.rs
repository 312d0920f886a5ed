//! Listeners, connection managers and TLS contexts: defaults, and the compiled form of each field.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::Builder;
use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::bind::SocketState;
use evenkeel_runtime_config::hcm::{
    ClientCertDetails, EscapedSlashes, ForwardClientCert, HeadersWithUnderscores, HttpConnectionManager, RouteSource,
    ServerHeader, StripPort,
};
use evenkeel_runtime_config::listener::{Listener, Terminal};
use evenkeel_runtime_config::retry::RetryOn;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_testkit::TestCa;

use crate::input;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const TCP: &str = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";

fn listener(text: &str) -> Arc<Listener> {
    let mut builder = input::builder();
    let text = format!("name: l\naddress: {{ socket_address: {{ address: \"::1\", port_value: 80 }} }}\n{text}");
    builder.set_listener(&input::listener(&text)).unwrap_or_else(|error| panic!("{error}"));
    builder.build().listeners["l"].clone()
}

fn tcp(rest: &str) -> String {
    format!(
        "filter_chains: [{{ filters: [{{ name: t, typed_config: {{ \"@type\": {TCP}, stat_prefix: s, {rest} }} }}] }}]"
    )
}

fn hcm(rest: &str) -> Arc<HttpConnectionManager> {
    let text = format!(
        "filter_chains:
- filters:
  - name: hcm
    typed_config:
      \"@type\": {HCM}
      stat_prefix: s
      http_filters: [{{ name: r, typed_config: {{ \"@type\": {ROUTER} }} }}]
{rest}"
    );
    match &listener(&text).filter_chains[0].terminal {
        Terminal::Http(manager) => Arc::clone(manager),
        Terminal::Tcp(_) => panic!("a connection manager was configured"),
    }
}

#[test]
fn defaults_are_envoys() {
    let l = listener(&tcp("cluster: c"));
    assert!(l.bind_to_port && l.reuse_port && !l.use_original_dst);
    assert_eq!(l.address, ListenAddress::Socket("[::1]:80".parse().unwrap()));
    assert_eq!(l.listener_filters.timeout, Some(Duration::from_secs(15)));
    assert_eq!(l.filter_chains[0].handshake_timeout, Duration::from_secs(15));
    let Terminal::Tcp(proxy) = &l.filter_chains[0].terminal else { panic!("tcp_proxy was configured") };
    assert_eq!((proxy.idle_timeout, proxy.max_connect_attempts), (Some(Duration::from_secs(3600)), 1));

    let m = hcm("      route_config: {}");
    assert_eq!(&*m.server_name, "envoy");
    assert_eq!(m.idle_timeout, Some(Duration::from_secs(3600)));
    assert_eq!(m.stream_idle_timeout, Some(Duration::from_secs(300)));
    assert_eq!(m.stream_flush_timeout, Duration::from_secs(300));
    assert_eq!((m.request_timeout, m.request_headers_timeout), (None, Some(Duration::from_secs(60))));
    assert_eq!((m.max_request_headers_bytes, m.max_headers_count), (60 * 1024, 100));
    assert_eq!((m.underscores, m.absolute_urls), (HeadersWithUnderscores::Allow, true));
    assert!(m.generate_request_id && !m.use_remote_address && !m.normalize_path && !m.accept_http_10);
    assert_eq!(m.forward_client_cert, ForwardClientCert::Sanitize);
    assert_eq!((m.server_header, m.strip_port), (ServerHeader::Overwrite, StripPort::None));
}

#[test]
fn every_field_of_a_connection_manager_arrives() {
    let m = hcm("      route_config: { name: r }
      codec_type: HTTP1
      server_name: istio-envoy
      server_header_transformation: PASS_THROUGH
      use_remote_address: true
      xff_num_trusted_hops: 2
      skip_xff_append: true
      generate_request_id: false
      preserve_external_request_id: true
      always_set_request_id_in_response: true
      forward_client_cert_details: APPEND_FORWARD
      set_current_client_cert_details: { subject: true, cert: true, chain: true, uri: true }
      normalize_path: true
      merge_slashes: true
      path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT
      strip_any_host_port: true
      stream_idle_timeout: 0s
      request_timeout: 3s
      request_headers_timeout: 0.5s
      max_request_headers_kb: 96
      common_http_protocol_options: { idle_timeout: 7s, max_headers_count: 50, max_requests_per_connection: 9, headers_with_underscores_action: DROP_HEADER }
      http_protocol_options: { accept_http_10: true, allow_absolute_url: false, default_host_for_http_10: d, header_key_format: { proper_case_words: {} } }
      upgrade_configs: [{ upgrade_type: WebSocket }, { upgrade_type: other, enabled: false }]
      proxy_100_continue: true
      via: mesh");
    assert!(matches!(&m.routes, RouteSource::Static(table) if &*table.name == "r"));
    assert_eq!((&*m.server_name, m.server_header), ("istio-envoy", ServerHeader::PassThrough));
    assert!(m.use_remote_address && m.skip_xff_append && m.preserve_external_request_id);
    assert!(!m.generate_request_id && m.always_set_request_id_in_response);
    assert_eq!(m.xff_num_trusted_hops, 2);
    assert_eq!(m.forward_client_cert, ForwardClientCert::AppendForward);
    let details = ClientCertDetails { subject: true, cert: true, chain: true, dns: false, uri: true };
    assert_eq!(m.client_cert_details, details);
    assert!(m.normalize_path && m.merge_slashes);
    assert_eq!((m.escaped_slashes, m.strip_port), (EscapedSlashes::UnescapeAndRedirect, StripPort::Any));
    assert_eq!((m.stream_idle_timeout, m.request_timeout), (None, Some(Duration::from_secs(3))));
    assert_eq!(m.stream_flush_timeout, Duration::from_secs(300), "an answer may not wait for ever all the same");
    assert_eq!(m.request_headers_timeout, Some(Duration::from_millis(500)));
    assert_eq!((m.max_request_headers_bytes, m.max_headers_count), (96 * 1024, 50));
    assert_eq!((m.underscores, m.absolute_urls), (HeadersWithUnderscores::Drop, false));
    assert_eq!((m.idle_timeout, m.max_requests_per_connection), (Some(Duration::from_secs(7)), Some(9)));
    assert!(m.accept_http_10 && m.proper_case_response_headers && m.proxy_100_continue);
    assert_eq!((m.default_host_for_http_10.as_deref(), m.via.as_deref()), (Some("d"), Some("mesh")));
    assert_eq!(m.upgrades, [Box::from("websocket")]);
}

#[test]
fn inspectors_leave_ports_alone() {
    let inspector = |name: &str, kind: &str, disabled: &str| {
        format!(
            "{{ name: {name}, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.listener.{name}.v3.{kind} }}{disabled} }}"
        )
    };
    let disabled = ", filter_disabled: { or_match: { rules: [{ destination_port_range: { start: 3306, end: 3307 } }, { not_match: { destination_port_range: { start: 1, end: 65536 } } }] } }";
    let l = listener(&format!(
        "listener_filters: [{}, {}, {}]\nlistener_filters_timeout: 0s\ncontinue_on_listener_filters_timeout: true\n{}",
        inspector("original_dst", "OriginalDst", ""),
        inspector("tls_inspector", "TlsInspector", disabled),
        inspector("http_inspector", "HttpInspector", ""),
        tcp("cluster: c"),
    ));
    let filters = &l.listener_filters;
    assert!(filters.original_dst && filters.continue_on_timeout && filters.timeout.is_none());
    assert!(filters.inspects_tls(80) && filters.inspects_http(80));
    assert!(!filters.inspects_tls(3306) && filters.inspects_tls(3307) && filters.inspects_http(3306));
    assert!(!filters.inspects_tls(0));
}

#[test]
fn retries_have_envoys_defaults() {
    let retry = |policy: &str| {
        let m = hcm(&format!(
            "      route_config: {{ validate_clusters: false, virtual_hosts: [{{ name: h, domains: [\"*\"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: c, retry_policy: {policy} }} }}] }}] }}"
        ));
        let RouteSource::Static(table) = &m.routes else { panic!("an inline table was configured") };
        let RouteAction::Forward(action) = &table.virtual_hosts[0].routes[0].action else { panic!("a forward") };
        assert_eq!(action.timeout, Some(Duration::from_secs(15)));
        action.retry.clone().expect("a policy was configured")
    };
    let plain = retry("{ retry_on: \"connect-failure, 5xx\" }");
    assert_eq!(plain.on, RetryOn { connect_failure: true, any_5xx: true, ..RetryOn::default() });
    assert_eq!((plain.num_retries, plain.host_selection_max_attempts), (1, 1));
    assert_eq!((plain.base_interval, plain.max_interval), (Duration::from_millis(25), Duration::from_millis(250)));
    let full = retry(
        "{ retry_on: retriable-status-codes, retriable_status_codes: [503], num_retries: 5, per_try_timeout: 2s, retry_back_off: { base_interval: 1s }, host_selection_retry_max_attempts: 5, retry_host_predicate: [{ name: p, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate } }] }",
    );
    assert_eq!((full.retriable_status_codes.as_slice(), full.num_retries), (&[503][..], 5));
    assert_eq!((full.per_try_timeout, full.max_interval), (Some(Duration::from_secs(2)), Duration::from_secs(10)));
    assert!(full.avoid_previous_hosts && full.host_selection_max_attempts == 5);
}

#[test]
fn tables_inside_a_listener_name_only_clusters_that_exist() {
    let route = |validate: &str| {
        format!(
            "name: l\naddress: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}\nfilter_chains: [{{ filters: [{{ name: h, typed_config: {{ \"@type\": {HCM}, stat_prefix: s, http_filters: [{{ name: r, typed_config: {{ \"@type\": {ROUTER} }} }}], route_config: {{ {validate}virtual_hosts: [{{ name: h, domains: [\"*\"], routes: [{{ match: {{ prefix: / }}, route: {{ cluster: c }} }}] }}] }} }} }}] }}]"
        )
    };
    let mut builder = input::builder();
    let error = builder.set_listener(&input::listener(&route(""))).unwrap_err().to_string();
    assert!(error.contains("routes[0].route.cluster: there is no cluster \"c\""), "{error}");
    builder.set_listener(&input::listener(&route("validate_clusters: false, "))).unwrap();
    builder.set_cluster(&input::cluster("name: c")).unwrap();
    builder.set_listener(&input::listener(&route(""))).unwrap();
}

#[test]
fn downstream_tls_from_inline_material() {
    let ca = TestCa::new();
    let identity = ca.for_dns(&["a.test"]);
    let text = |rest: &str| {
        format!(
            "filter_chains:
- filters: [{{ name: t, typed_config: {{ \"@type\": {TCP}, stat_prefix: s, cluster: c }} }}]
  transport_socket_connect_timeout: 3s
  transport_socket:
    name: tls
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
{rest}
      common_tls_context:
        alpn_protocols: [http/1.1]
        tls_params: {{ tls_minimum_protocol_version: TLSv1_3 }}
        validation_context: {{ trusted_ca: {{ inline_string: {root:?} }}, match_typed_subject_alt_names: [{{ san_type: URI, matcher: {{ prefix: \"spiffe://\" }} }}] }}
        tls_certificates:
        - certificate_chain: {{ inline_string: {cert:?} }}
          private_key: {{ inline_string: {key:?} }}
",
            root = ca.root_pem(),
            cert = identity.cert_pem,
            key = identity.key_pem,
        )
    };
    let chain = |rest: &str| listener(&text(rest)).filter_chains[0].clone();
    let mutual = chain("      require_client_certificate: true");
    assert_eq!(mutual.handshake_timeout, Duration::from_secs(3));
    assert!(mutual.tls.as_ref().is_some_and(|tls| tls.is_mutual() && tls.missing_secret().is_none()));
    // Whoever says which names to take takes nobody without one, as in Envoy.
    assert!(chain("").tls.as_ref().is_some_and(|tls| tls.is_mutual()));
    let names = ", match_typed_subject_alt_names: [{ san_type: URI, matcher: { prefix: \"spiffe://\" } }]";
    let optional = listener(&text("").replace(names, "")).filter_chains[0].clone();
    assert!(optional.tls.as_ref().is_some_and(|tls| !tls.is_mutual()));
    // Who takes untrusted certificates, too, takes clients without one whatever names it lists, as in Envoy.
    let untrusted = |rest: &str| {
        let text = text(rest)
            .replace("match_typed_subject", "trust_chain_verification: ACCEPT_UNTRUSTED, match_typed_subject");
        listener(&text).filter_chains[0].tls.clone().expect("TLS")
    };
    assert!(!untrusted("").is_mutual());
    let required = untrusted("      require_client_certificate: true");
    assert!(required.is_mutual() && !required.identifies_clients());
}

#[test]
fn an_address_is_bound_by_one_listener() {
    let at = |name: &str, port: u16, rest: &str| {
        let address = format!("address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}");
        input::listener(&format!("name: {name}\n{address}\n{rest}\n{}", tcp("cluster: c")))
    };
    let refused =
        |builder: &mut Builder, resource: &evenkeel_xds::Any| builder.set_listener(resource).unwrap_err().to_string();
    let mut builder = input::builder();
    builder.set_listener(&at("a", 8080, "")).unwrap();
    let reason = "Listener \"b\": address: 127.0.0.1:8080 is a duplicate address: listener \"a\" has it";
    assert_eq!(refused(&mut builder, &at("b", 8080, "")), reason);
    assert_eq!(builder.set_static_listener(&at("b", 8080, "")).unwrap_err().to_string(), reason);

    // Itself again, another port, a listener without a socket, and ports the system picks.
    for free in [
        at("a", 8080, "tcp_backlog_size: 7"),
        at("b", 8081, ""),
        at("c", 8080, "bind_to_port: false"),
        at("d", 0, ""),
        at("e", 0, ""),
    ] {
        builder.set_listener(&free).unwrap();
    }
    assert_eq!(builder.build().listeners["a"].backlog, 7);

    // An address is free once its listener has left it or is gone.
    builder.set_listener(&at("a", 8082, "")).unwrap();
    assert!(refused(&mut builder, &at("b", 8080, "")).contains("listener \"a\""), "it still serves there");
    builder.build();
    builder.set_listener(&at("b", 8080, "")).unwrap();
    builder.remove_listener("b");
    builder.set_listener(&at("f", 8080, "")).unwrap();
    assert_eq!(builder.build().listeners["f"].address.port(), Some(8080));
}

#[test]
fn a_listener_refused_for_its_address_is_admitted_once_it_is_free() {
    let at = |name: &str, port: u16| {
        let address = format!("address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}");
        input::listener(&format!("name: {name}\n{address}\n{}", tcp("cluster: c")))
    };
    let admitted = |builder: &mut Builder| -> Vec<String> {
        let config = builder.build();
        let admitted = builder.take_admitted();
        assert!(admitted.iter().all(|name| config.listeners.contains_key(name)));
        admitted.iter().map(ToString::to_string).collect()
    };
    let mut builder = input::builder();
    builder.set_listener(&at("a", 8080)).unwrap();
    for name in ["b", "c", "d"] {
        builder.set_listener(&at(name, 8080)).unwrap_err();
    }
    assert!(admitted(&mut builder).is_empty());
    // "b" is told to be elsewhere; of the others the first refused comes first.
    builder.set_listener(&at("b", 8081)).unwrap();
    builder.set_listener(&at("a", 8082)).unwrap();
    assert_eq!(admitted(&mut builder), ["c"]);
    assert!(admitted(&mut builder).is_empty(), "said once");
    builder.remove_listener("d");
    builder.remove_listener("c");
    assert!(admitted(&mut builder).is_empty(), "it is not wanted any more");
}

/// Chains by name; `changed` has another idle timeout, and `elsewhere` is in the listener's own fields.
fn chains(names: &[&str], changed: &str, elsewhere: &str) -> evenkeel_xds::Any {
    let chain = |name: &&str| {
        let limit = if *name == changed { "idle_timeout: 7s" } else { "idle_timeout: 8s" };
        let filter =
            format!("{{ name: t, typed_config: {{ \"@type\": {TCP}, stat_prefix: s, cluster: c, {limit} }} }}");
        format!("- {{ name: {name}, filter_chain_match: {{ server_names: [{name}.test] }}, filters: [{filter}] }}\n")
    };
    let list = names.iter().map(chain).collect::<String>();
    input::listener(&format!("name: l\n{elsewhere}\nfilter_chains:\n{list}"))
}

#[test]
fn filter_chains_that_come_again_as_they_were_are_the_same() {
    let at = |port: u16| format!("address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}");
    let first = chains(&["a", "b", "c"], "", &at(80));
    let check = |next: &evenkeel_xds::Any, kept: &[&str]| {
        let mut builder = input::builder();
        let mut build = |resource| {
            builder.set_listener(resource).unwrap();
            builder.build().listeners["l"].clone()
        };
        let (before, after) = (build(&first), build(next));
        let is_kept = |chain: &&Arc<_>| before.filter_chains.iter().any(|known| Arc::ptr_eq(known, chain));
        let names: Vec<&str> = after.filter_chains.iter().filter(is_kept).map(|chain| &*chain.name).collect();
        assert_eq!(names, kept);
    };
    check(&chains(&["a", "b", "c"], "b", &at(80)), &["a", "c"]);
    check(&chains(&["c", "new", "a"], "", &at(80)), &["c", "a"]);
    check(&chains(&["a", "b", "c"], "", &format!("{}\ntcp_backlog_size: 7", at(80))), &["a", "b", "c"]);
    check(&chains(&["a", "b", "c"], "", &at(81)), &[]);
    check(&chains(&["a", "b", "c"], "", &format!("{}\ntraffic_direction: INBOUND", at(80))), &[]);
}

#[test]
fn a_kept_filter_chain_still_awaits_its_routes() {
    let mut builder = input::builder();
    let text = crate::routes::rds_listener("one");
    builder.set_listener(&input::listener(&text)).unwrap();
    builder.set_route(&input::route("name: one")).unwrap();
    let before = builder.build().listeners["l"].clone();
    builder.set_listener(&input::listener(&format!("{text}tcp_backlog_size: 7\n"))).unwrap();
    let after = builder.build().listeners["l"].clone();
    assert!(Arc::ptr_eq(&before.filter_chains[0], &after.filter_chains[0]));
    builder.build();
    assert_eq!(builder.interest().routes[0].name, "one".into());
}

#[test]
fn a_listener_of_the_bootstrap_needs_no_name() {
    let mut builder = input::builder();
    let text =
        format!("address: {{ socket_address: {{ address: 127.0.0.1, port_value: 8080 }} }}\n{}", tcp("cluster: c"));
    builder.set_static_listener(&input::listener(&text)).unwrap();
    assert!(builder.build().listeners.contains_key("127.0.0.1_8080"));
    assert!(builder.set_listener(&input::listener(&text)).is_err());
}

#[test]
fn a_listener_may_be_a_unix_socket() {
    let of = |address: &str, more: &str| {
        let text = format!(
            "{{name: u, address: {address}, {more} filter_chains: [{{filters: [{{name: tcp, typed_config: {{\"@type\": \
             type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c}}}}]}}]}}"
        );
        let mut builder = input::builder();
        if let Err(refused) = builder.set_listener(&input::listener(&text)) {
            return refused.to_string();
        }
        let listener = builder.build().listeners["u"].clone();
        format!("{} {:?}", listener.address, listener.file_mode)
    };
    let check = |address: &str, more: &str, expected: &str| {
        let found = of(address, more);
        assert!(found.contains(expected), "{address} {more}: {found}");
    };
    check("{pipe: {path: /run/a}}", "", "/run/a None");
    check("{pipe: {path: /run/a, mode: 384}}", "", "/run/a Some(384)");
    check("{pipe: {path: \"@a\"}}", "", "@a None");
    check("{pipe: {path: \"@a\", mode: 384}}", "", "address.pipe.mode");
    check("{pipe: {path: /run/a, mode: 4096}}", "", "address.pipe.mode");
    check("{pipe: {path: \"\"}}", "", "address.pipe.path");
    check(&format!("{{pipe: {{path: /{}}}}}", "x".repeat(107)), "", "address.pipe.path");
    check("{pipe: {path: /run/a}}", "bind_to_port: false,", "bind_to_port");
}

#[test]
fn options_of_sockets() {
    use SocketState::{Bound, Listening, Prebind};
    let built = |address: &str, fields: &str| {
        let text = format!("name: l\naddress: {address}\n{fields}\n{}", tcp("cluster: c"));
        let mut builder = input::builder();
        let set = builder.set_listener(&input::listener(&text)).map_err(|error| error.to_string());
        set.map(|()| builder.build().listeners["l"].socket_options.clone())
    };
    let socket = |ip: &str| format!("{{ socket_address: {{ address: \"{ip}\", port_value: 80 }} }}");
    let check = |ip: &str, fields: &str, expected: &[(i32, i32, &[u8], SocketState)]| {
        let options = built(&socket(ip), fields).unwrap_or_else(|error| panic!("{fields}: {error}"));
        let options: Vec<_> = options.iter().map(|it| (it.level, it.name, &*it.value, it.state)).collect();
        assert_eq!(options, expected, "{fields}");
    };
    let (on, many) = (1i32.to_ne_bytes(), 500i32.to_ne_bytes());
    check("10.0.0.1", "freebind: false", &[]);
    check("10.0.0.1", "freebind: true", &[(0, 15, &on, Prebind)]);
    check("fd00::1", "freebind: true", &[(41, 78, &on, Prebind)]);
    check("10.0.0.1", "tcp_fast_open_queue_length: 500", &[(6, 23, &many, Listening)]);
    check(
        "10.0.0.1",
        "socket_options: [ { level: 6, name: 2, int_value: 500 }, { level: 1, name: 9, int_value: 1, state: STATE_BOUND }, \
         { level: 1, name: 13, buf_value: AQAAAAUAAAA=, state: STATE_LISTENING } ]",
        &[(6, 2, &many, Prebind), (1, 9, &on, Bound), (1, 13, &[1, 0, 0, 0, 5, 0, 0, 0], Listening)],
    );
    for (address, fields, expected) in [
        (&socket("10.0.0.1"), "socket_options: [ { level: 6 } ]", "socket_options[0]: one of int_value, buf_value is"),
        (
            &socket("10.0.0.1"),
            "socket_options: [ { level: 6, name: 2, int_value: 99999999999 } ]",
            "socket_options[0].int_value: does not fit 32 bits",
        ),
        (
            &socket("10.0.0.1"),
            "socket_options: [ { level: 6, name: 99999999999, int_value: 9 } ]",
            "socket_options[0].name: out of range",
        ),
        (&"{ pipe: { path: /a } }".to_owned(), "freebind: true", "freebind: is not supported on a Unix socket"),
    ] {
        let error = built(address, fields).expect_err(fields);
        assert!(error.contains(expected), "{fields}: {error}");
    }
}
