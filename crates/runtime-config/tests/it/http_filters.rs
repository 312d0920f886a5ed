//! HTTP filters of a connection manager, and the settings that routes have for them by name.

use std::borrow::Cow;
use std::sync::Arc;

use evenkeel_runtime_config::custom::{CustomFilter, CustomFilterKind, CustomRouteKind};
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::fault::{AbortStatus, Fault};
use evenkeel_runtime_config::hcm::{HttpConnectionManager, HttpFilterConfig, RouteSource};
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::view::{PlainRequest, RequestView};
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_tls::SecretStore;

use crate::input;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const FAULT: &str = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault";
/// In the schema, and not supported.
const LUA: &str = "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua";
const JWT: &str = "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication";
const WITH_MATCHER: &str = "type.googleapis.com/envoy.extensions.common.matching.v3.ExtensionWithMatcher";
const WRAPPED: &str = "type.googleapis.com/envoy.config.route.v3.FilterConfig";

/// A connection manager with these filters before the router, and this route table.
fn manager(filters: &str, table: &str) -> Result<Arc<HttpConnectionManager>, String> {
    manager_of(&mut input::builder(), &text_of(filters, table))
}

fn text_of(filters: &str, table: &str) -> String {
    format!(
        "name: l
address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}
filter_chains:
- filters:
  - name: hcm
    typed_config:
      \"@type\": {HCM}
      stat_prefix: s
      http_filters:
{filters}      - {{ name: r, typed_config: {{ \"@type\": {ROUTER} }} }}
      route_config:
        validate_clusters: false
{}",
        input::indent(table, 8)
    )
}

fn manager_of(builder: &mut Builder, text: &str) -> Result<Arc<HttpConnectionManager>, String> {
    builder.set_listener(&input::listener(text)).map_err(|rejection| rejection.to_string())?;
    match &builder.build().listeners["l"].filter_chains[0].terminal {
        Terminal::Http(manager) => Ok(Arc::clone(manager)),
        Terminal::Tcp(_) => panic!("a connection manager was configured"),
    }
}

fn fault(status: u16) -> String {
    format!("{{ \"@type\": {FAULT}, abort: {{ http_status: {status} }} }}")
}

#[test]
fn each_level_says_its_own_to_the_filter_of_its_name() {
    let wrapped = |rest: &str| format!("{{ \"@type\": {WRAPPED}, {rest} }}");
    let table = format!(
        "typed_per_filter_config: {{ f: {}, g: {} }}
virtual_hosts:
- name: h
  domains: [\"*\"]
  typed_per_filter_config: {{ f: {} }}
  routes:
  - {{ match: {{ path: /host }}, route: {{ cluster: c }} }}
  - {{ match: {{ path: /route }}, route: {{ cluster: c }}, typed_per_filter_config: {{ f: {} }} }}
  - {{ match: {{ path: /off }}, route: {{ cluster: c }}, typed_per_filter_config: {{ f: {}, g: {} }} }}
  - {{ match: {{ path: /on }}, route: {{ cluster: c }}, typed_per_filter_config: {{ f: {}, g: {} }} }}
  - match: {{ path: /cluster }}
    route: {{ weighted_clusters: {{ clusters: [ {{ name: c, weight: 1, typed_per_filter_config: {{ f: {} }} }} ] }} }}
    typed_per_filter_config: {{ f: {} }}
",
        fault(501),
        fault(502),
        fault(503),
        fault(504),
        wrapped("disabled: true"),
        wrapped("disabled: true"),
        wrapped("config: {}"),
        wrapped(&format!("config: {}", fault(505))),
        fault(506),
        fault(507),
    );
    let filters = format!(
        "      - {{ name: f, typed_config: {{ \"@type\": {FAULT} }} }}
      - {{ name: g, disabled: true, typed_config: {{ \"@type\": {FAULT} }} }}
"
    );
    let manager = manager(&filters, &table).unwrap_or_else(|error| panic!("{error}"));
    let flags: Vec<_> = manager.filters.iter().map(|filter| (&*filter.name, filter.disabled)).collect();
    assert_eq!(flags, [("f", false), ("g", true)]);
    let RouteSource::Static(table) = &manager.routes else { panic!("the table is inline") };
    for (path, f, g) in [
        ("/host", (Some(false), 503), (Some(false), 502)),
        ("/route", (Some(false), 504), (Some(false), 502)),
        ("/off", (Some(true), 503), (Some(true), 502)),
        ("/on", (Some(false), 503), (Some(false), 505)),
        ("/cluster", (Some(false), 506), (Some(false), 502)),
    ] {
        let RouteSelection::Route(_, route) = table.select(&PlainRequest::new("GET", "a", path), 0) else {
            panic!("{path} has a route")
        };
        let RouteAction::Forward(action) = &route.action else { panic!("{path} forwards") };
        let says =
            RouteFilters::new(&table.filters, &route.filters, action.pick_cluster(0).map(|entry| &entry.filters));
        let status = |name: &str| match says.most_specific::<Arc<Fault>>(name).and_then(|fault| fault.abort) {
            Some(abort) => abort.status,
            None => panic!("{path}: nothing for {name}"),
        };
        assert_eq!((says.disabled("f"), status("f")), (f.0, AbortStatus::Http(f.1)), "{path}");
        assert_eq!((says.disabled("g"), status("g")), (g.0, AbortStatus::Http(g.1)), "{path}");
        assert_eq!(says.disabled("r"), None, "{path}");
    }
}

/// A request about which filters have found something out.
struct Known(PlainRequest, DynamicMetadata);

impl RequestView for Known {
    fn method(&self) -> &[u8] {
        self.0.method()
    }

    fn path(&self) -> &[u8] {
        self.0.path()
    }

    fn authority(&self) -> &[u8] {
        self.0.authority()
    }

    fn scheme(&self) -> &[u8] {
        self.0.scheme()
    }

    fn header(&self, name: &str) -> Option<Cow<'_, [u8]>> {
        self.0.header(name)
    }

    fn any_value(&self, name: &str, wanted: impl FnMut(&[u8]) -> bool) -> Option<bool> {
        self.0.any_value(name, wanted)
    }

    fn dynamic_metadata(&self) -> Option<&DynamicMetadata> {
        Some(&self.1)
    }
}

#[test]
fn routes_may_go_by_what_filters_have_found_out() {
    let table = "virtual_hosts:
- name: h
  domains: [\"*\"]
  routes:
  - match:
      prefix: /
      dynamic_metadata:
      - { filter: jwt, path: [ { key: claims }, { key: team } ], value: { or_match: { value_matchers: [ { string_match: { exact: blue } }, { bool_match: true } ] } } }
      - { filter: jwt, path: [ { key: left } ], value: { present_match: true }, invert: true }
    route: { cluster: blue }
  - { match: { prefix: / }, route: { cluster: other } }
";
    let manager = manager("", table).unwrap_or_else(|error| panic!("{error}"));
    let RouteSource::Static(table) = &manager.routes else { panic!("the table is inline") };
    let cluster = |fields: &[(Box<str>, MetadataValue)]| {
        let mut metadata = DynamicMetadata::default();
        metadata.merge("jwt", fields);
        let RouteSelection::Route(_, route) = table.select(&Known(PlainRequest::new("GET", "a", "/"), metadata), 0)
        else {
            panic!("every request has a route")
        };
        let RouteAction::Forward(action) = &route.action else { panic!("every route forwards") };
        action.clusters[0].cluster.to_string()
    };
    let claims = |team: MetadataValue| ("claims".into(), MetadataValue::Object(vec![("team".into(), team)]));
    let text = |text: &str| MetadataValue::Text(text.into());
    assert_eq!(cluster(&[]), "other");
    assert_eq!(cluster(&[claims(text("blue"))]), "blue");
    assert_eq!(cluster(&[claims(MetadataValue::Bool(true))]), "blue");
    assert_eq!(cluster(&[claims(text("red"))]), "other");
    assert_eq!(cluster(&[claims(text("blue")), ("left".into(), MetadataValue::Null)]), "other");
}

#[test]
fn what_is_optional_may_be_unknown_but_not_wrong() {
    let filter = |rest: &str| format!("      - {{ name: f, {rest} }}\n");
    let table = |config: &str| {
        format!(
            "virtual_hosts: [{{ name: h, domains: [\"*\"], typed_per_filter_config: {{ f: {config} }}, routes: [] }}]\n"
        )
    };
    let wrapped = |rest: &str| table(&format!("{{ \"@type\": {WRAPPED}, {rest} }}"));
    let unknown = format!("{{ \"@type\": {LUA} }}");
    let no_table = "virtual_hosts: []\n".to_owned();
    let at = "filter_chains[0].filters[0].typed_config";
    let lua = "envoy.extensions.filters.http.lua.v3.Lua is not supported";
    let host = format!("{at}.route_config.virtual_hosts[0].typed_per_filter_config[\"f\"]");
    for (filters, table, expected) in [
        (
            filter(&format!("typed_config: {unknown}")),
            no_table.clone(),
            Some(format!("{at}.http_filters[0].typed_config: extension {lua}")),
        ),
        (filter(&format!("typed_config: {unknown}, is_optional: true")), no_table.clone(), None),
        (
            filter(&format!("typed_config: {{ \"@type\": {FAULT}, delay: {{}} }}, is_optional: true")),
            no_table.clone(),
            Some(format!("{at}.http_filters[0].typed_config.delay: one of fixed_delay, header_delay is required")),
        ),
        (String::new(), wrapped(&format!("config: {unknown}, is_optional: true")), None),
        (String::new(), wrapped(&format!("config: {unknown}")), Some(format!("{host}.config: extension {lua}"))),
        (String::new(), table(&unknown), Some(format!("{host}: extension {lua}"))),
        (String::new(), wrapped("is_optional: true"), Some(format!("{host}.config: is required"))),
        (
            String::new(),
            wrapped(&format!("config: {{ \"@type\": {ROUTER} }}")),
            Some(format!(
                "{host}.config: envoy.extensions.filters.http.router.v3.Router is no configuration for one route"
            )),
        ),
        (
            (0..64).map(|n| format!("      - {{ name: f{n}, typed_config: {{ \"@type\": {FAULT} }} }}\n")).collect(),
            no_table.clone(),
            Some(format!("{at}.http_filters: there may be 64 at most")),
        ),
    ] {
        match (manager(&filters, &table), expected) {
            (Ok(manager), None) => assert!(manager.filters.is_empty()),
            (Err(error), Some(expected)) => assert!(error.contains(&expected), "{expected}\nis not in\n{error}"),
            (outcome, expected) => panic!("{expected:?}: {:?}\n{filters}{table}", outcome.err()),
        }
    }
}

#[test]
fn what_a_matcher_cannot_do_is_refused() {
    let header = "{ name: i, typed_config: { \"@type\": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-a } }";
    let skip = "{ action: { name: s, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.common.matcher.action.v3.SkipFilter } } }";
    let fault = format!("extension_config: {{ name: f, typed_config: {} }}", fault(500));
    let list = |predicate: &str, then: &str| {
        format!(
            "{fault}, xds_matcher: {{ matcher_list: {{ matchers: [ {{ predicate: {predicate}, on_match: {then} }} ] }} }}"
        )
    };
    let is = format!("{{ single_predicate: {{ input: {header}, value_match: {{ exact: a }} }} }}");
    let other = |kind: &str| format!("{{ name: o, typed_config: {{ \"@type\": {kind} }} }}");
    let entry = "xds_matcher.matcher_list.matchers[0]";
    for (config, expected) in [
        (list(&is, skip), None),
        (fault.clone(), Some("xds_matcher: is required".to_owned())),
        (format!("xds_matcher: {{ on_no_match: {skip} }}"), Some("extension_config: is required".to_owned())),
        (
            format!(
                "extension_config: {{ name: r, typed_config: {{ \"@type\": {ROUTER} }} }}, xds_matcher: {{ on_no_match: {skip} }}"
            ),
            Some(
                "extension_config.typed_config: envoy.extensions.filters.http.router.v3.Router is no HTTP filter"
                    .to_owned(),
            ),
        ),
        (
            list(&is, &format!("{{ action: {} }}", other(ROUTER))),
            Some(format!(
                "{entry}.on_match.action.typed_config: only envoy.extensions.filters.common.matcher.action.v3.SkipFilter is supported"
            )),
        ),
        (
            list(&format!("{{ single_predicate: {{ input: {}, value_match: {{ exact: a }} }} }}", other(ROUTER)), skip),
            Some(format!(
                "{entry}.predicate.single_predicate.input.typed_config: only envoy.type.matcher.v3.HttpRequestHeaderMatchInput is supported"
            )),
        ),
        (
            list(&format!("{{ single_predicate: {{ input: {header} }} }}"), skip),
            Some(format!("{entry}.predicate.single_predicate: value_match is required")),
        ),
        (
            list(&format!("{{ or_matcher: {{ predicate: [ {is} ] }} }}"), skip),
            Some(format!("{entry}.predicate.or_matcher: must have two predicates at least")),
        ),
        (
            list(&is, &skip.replacen('{', "{ keep_matching: true,", 1)),
            Some(format!("{entry}.on_match.keep_matching: not supported")),
        ),
        (
            format!("{fault}, xds_matcher: {{ matcher_tree: {{ input: {header} }} }}"),
            Some("xds_matcher.matcher_tree: one of exact_match_map, prefix_match_map is required".to_owned()),
        ),
        (
            format!(
                "{fault}, xds_matcher: {{ matcher_tree: {{ input: {header}, exact_match_map: {{ map: {{ a: {{}} }} }} }} }}"
            ),
            Some("xds_matcher.matcher_tree.exact_match_map.map[\"a\"]: one of matcher, action is required".to_owned()),
        ),
    ] {
        let filters = format!("      - {{ name: f, typed_config: {{ \"@type\": {WITH_MATCHER}, {config} }} }}\n");
        match (manager(&filters, "virtual_hosts: []\n"), expected) {
            (Ok(manager), None) => assert!(manager.filters[0].skip.is_some()),
            (Err(error), Some(expected)) => assert!(error.contains(&expected), "{expected}\nis not in\n{error}"),
            (outcome, expected) => panic!("{expected:?}: {:?}\n{filters}", outcome.err()),
        }
    }
}

#[test]
fn mistakes_in_what_tokens_requests_need_are_rejected() {
    let at = "filter_chains[0].filters[0].typed_config.http_filters[0].typed_config";
    let fails = |config: &str, path: &str, reason: &str| {
        let filter = format!("      - {{ name: j, typed_config: {{ \"@type\": {JWT}, {config} }} }}\n");
        let error = manager(&filter, "virtual_hosts: []\n").expect_err(config);
        assert!(error.contains(&format!("{at}{path}: ")) && error.contains(reason), "{config}: {error}");
    };
    let keys = r#"local_jwks: { inline_string: '{"keys":[{"kty":"EC","x":"J_l_srxIoxg1EXQJzNZXKunxXGyhJUAJKrSgIE_RCeM","y":"IEvCIZNHKJLIhjkiRorUuPlu4FNxr7_wDbXGXipiq0o"}]}' }"#;
    let provider = |fields: &str| {
        if fields.contains("_jwks") {
            format!("providers: {{ p: {{ {fields} }} }}")
        } else {
            format!("providers: {{ p: {{ {fields}, {keys} }} }}")
        }
    };
    let rule = |requires: &str| {
        format!("providers: {{ p: {{ {keys} }} }}, rules: [ {{ match: {{ prefix: / }}, {requires} }} ]")
    };
    for (config, path, reason) in [
        (rule("requires: { provider_name: q }"), ".rules[0].requires.provider_name", "is not in providers"),
        (rule("requirement_name: q"), ".rules[0].requirement_name", "is not in requirement_map"),
        (
            rule("requires: { requires_any: { requirements: [ { provider_name: p } ] } }"),
            ".rules[0].requires.requires_any.requirements",
            "at least 2 entries",
        ),
        ("rules: [ {} ]".to_owned(), ".rules[0].match", "is required"),
        (provider("forward_payload_header: \"a b\""), ".providers[\"p\"].forward_payload_header", "no header name"),
        (provider("from_headers: [ { name: \"\" } ]"), ".providers[\"p\"].from_headers[0].name", "must not be empty"),
        (provider("from_params: [ \"\" ]"), ".providers[\"p\"].from_params[0]", "must not be empty"),
        (
            provider("claim_to_headers: [ { header_name: \":path\", claim_name: a } ]"),
            ".providers[\"p\"].claim_to_headers[0].header_name",
            "no header name",
        ),
        (
            provider("claim_to_headers: [ { header_name: a } ]"),
            ".providers[\"p\"].claim_to_headers[0].claim_name",
            "must not be empty",
        ),
        (
            provider("subjects: { safe_regex: { regex: \"(\" } }"),
            ".providers[\"p\"].subjects.safe_regex.regex",
            "regular expression",
        ),
        (
            provider("jwt_cache_config: { jwt_cache_size: 1000000 }"),
            ".providers[\"p\"].jwt_cache_config.jwt_cache_size",
            "at most 100000",
        ),
        ("providers: { p: {} }".to_owned(), ".providers[\"p\"]", "one of remote_jwks, local_jwks is required"),
        (provider("local_jwks: { inline_string: x }"), ".providers[\"p\"].local_jwks", "not valid JSON"),
        (
            provider("local_jwks: { inline_string: '{\"keys\":[{\"kty\":\"oct\",\"k\":\"AA\"}]}' }"),
            ".providers[\"p\"].local_jwks",
            "shared secret",
        ),
        (provider("local_jwks: { filename: /nowhere }"), ".providers[\"p\"].local_jwks.filename", "cannot read"),
        (provider("remote_jwks: {}"), ".providers[\"p\"].remote_jwks.http_uri", "is required"),
        (
            provider("remote_jwks: { http_uri: { uri: keys, cluster: c, timeout: 1s } }"),
            ".providers[\"p\"].remote_jwks.http_uri.uri",
            "no http:// or https:// URI",
        ),
        (
            provider("remote_jwks: { http_uri: { uri: \"http://u@h/\", cluster: c, timeout: 1s } }"),
            ".providers[\"p\"].remote_jwks.http_uri.uri",
            "no http://",
        ),
        (
            provider("remote_jwks: { http_uri: { uri: \"http://h/\", timeout: 1s } }"),
            ".providers[\"p\"].remote_jwks.http_uri.cluster",
            "is required",
        ),
        (
            provider("remote_jwks: { http_uri: { uri: \"http://h/\", cluster: c } }"),
            ".providers[\"p\"].remote_jwks.http_uri.timeout",
            "is required",
        ),
    ] {
        fails(&config, path, reason);
    }
    let filter = format!(
        "      - {{ name: j, typed_config: {{ \"@type\": {JWT}, {} }} }}\n",
        rule("requires: { provider_name: p }")
    );
    manager(&filter, "virtual_hosts: []\n").expect("accepted");
}

#[test]
fn filters_of_kinds_that_the_process_adds_are_compiled_by_them() {
    const KIND: CustomFilterKind = CustomFilterKind {
        message: "envoy.extensions.filters.http.lua.v3.Lua",
        compile: |message| match message {
            [] => Err("has no code".to_owned()),
            message => {
                Ok(CustomFilter { message: "Lua", clusters: vec!["called".into()], factory: Arc::new(message.len()) })
            }
        },
        per_route: None,
    };
    let with_kinds = |custom_filters: Vec<CustomFilterKind>, config: &str| {
        let environment = Environment { custom_filters, ..Environment::process() };
        let text = text_of(&format!("      - {{ name: own, typed_config: {{ \"@type\": {LUA}{config} }} }}\n"), "");
        let mut builder = Builder::new(environment, SecretStore::new());
        manager_of(&mut builder, &text).map(|manager| match manager.filters.as_slice() {
            [filter] => match &filter.config {
                HttpFilterConfig::Custom(custom) => custom.factory.downcast_ref::<usize>().copied(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        })
    };
    let code = ", inline_code: x";
    assert_eq!(with_kinds(vec![KIND], code), Ok(Some(3)));
    let fails = |kinds, config, reason: &str| {
        let error = with_kinds(kinds, config).expect_err(reason);
        assert!(error.contains(reason), "{error}");
    };
    fails(vec![KIND], "", "has no code");
    fails(Vec::new(), code, "lua.v3.Lua is not supported");
}

#[test]
fn routes_configure_filters_of_kinds_that_the_process_adds() {
    const ROUTE: CustomRouteKind = CustomRouteKind {
        message: "google.protobuf.UInt32Value",
        compile: |message| match message {
            [] => Err("says nothing".to_owned()),
            message => Ok(Arc::new(message.len())),
        },
    };
    const KIND: CustomFilterKind = CustomFilterKind {
        message: "envoy.extensions.filters.http.lua.v3.Lua",
        compile: |_| Ok(CustomFilter { message: "Lua", clusters: Vec::new(), factory: Arc::new(0_usize) }),
        per_route: Some(ROUTE),
    };
    let with = |kind: CustomFilterKind, number: u32| {
        let environment = Environment { custom_filters: vec![kind], ..Environment::process() };
        let filter = format!("      - {{ name: own, typed_config: {{ \"@type\": {LUA} }} }}\n");
        let route = format!(
            "typed_per_filter_config: {{ own: {{ \"@type\": type.googleapis.com/google.protobuf.UInt32Value, value: {number} }} }}"
        );
        let text = text_of(&filter, &format!("virtual_hosts: []\n{route}\n"));
        manager_of(&mut Builder::new(environment, SecretStore::new()), &text).map(|_| ())
    };
    assert_eq!(with(KIND, 7), Ok(()));
    let fails = |kind, number, reason: &str| {
        let error = with(kind, number).expect_err(reason);
        assert!(error.contains(reason), "{error}");
    };
    fails(KIND, 0, "says nothing");
    fails(CustomFilterKind { per_route: None, ..KIND }, 7, "UInt32Value is not supported");
}

const COMPRESSOR: &str = "type.googleapis.com/envoy.extensions.filters.http.compressor.v3.Compressor";
const DECOMPRESSOR: &str = "type.googleapis.com/envoy.extensions.filters.http.decompressor.v3.Decompressor";
const LIMIT: &str = "type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit";

/// What compresses, with a library of this kind and its settings.
fn library(kind: &str, direction: &str, settings: &str) -> String {
    let coding = kind.to_lowercase();
    format!(
        "{{ name: l, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.compression.{coding}.{direction}.v3.{kind}, {settings} }} }}"
    )
}

#[test]
fn compression_is_refused_where_it_would_not_be_what_is_meant() {
    let gzip = library("Gzip", "compressor", "");
    let compressor =
        |settings: &str| format!("      - {{ name: c, typed_config: {{ \"@type\": {COMPRESSOR}, {settings} }} }}\n");
    let of = |library: &str, more: &str| compressor(&format!("compressor_library: {library}, {more}"));
    let decompressor = |library: &str| {
        format!(
            "      - {{ name: d, typed_config: {{ \"@type\": {DECOMPRESSOR}, decompressor_library: {library} }} }}\n"
        )
    };
    let limit = |settings: &str| {
        format!("      - {{ name: rl, typed_config: {{ \"@type\": {LIMIT}, stat_prefix: s, {settings} }} }}\n")
    };
    for (filter, expected) in [
        (of(&gzip, "response_direction_config: { weaken_etag_on_compress: true }"), None),
        (of(&library("Brotli", "compressor", "quality: 11, window_bits: 24"), ""), None),
        (of(&library("Zstd", "compressor", "compression_level: 22"), "choose_first: true"), None),
        (decompressor(&library("Gzip", "decompressor", "max_inflate_ratio: 1000")), None),
        (compressor(""), Some("compressor_library: is required")),
        (of("{ name: l }", ""), Some("compressor_library.typed_config: is required")),
        (of(&library("Gzip", "compressor", "window_bits: 16"), ""), Some("window_bits: must lie between 9 and 15")),
        (of(&library("Brotli", "compressor", "quality: 12"), ""), Some("quality: must lie between 0 and 11")),
        (of(&library("Zstd", "compressor", "dictionary: { inline_string: a }"), ""), Some("dictionary: not supported")),
        (of(&library("Gzip", "decompressor", ""), ""), Some("does not compress; expected ")),
        (decompressor(&gzip), Some("decompresses nothing; expected ")),
        (
            decompressor(&library("Gzip", "decompressor", "max_inflate_ratio: 0")),
            Some("max_inflate_ratio: must lie between 1 and 1032"),
        ),
        (
            of(&gzip, "response_direction_config: { status_header_enabled: true }"),
            Some("status_header_enabled: not supported"),
        ),
        (
            of(&gzip, "response_direction_config: { uncompressible_response_codes: [100] }"),
            Some("uncompressible_response_codes[0]: must lie between 200 and 599"),
        ),
        (
            of(&gzip, "response_direction_config: { disable_on_etag_header: true, weaken_etag_on_compress: true }"),
            Some("weaken_etag_on_compress: has no effect beside disable_on_etag_header"),
        ),
        (
            of(
                &gzip,
                "request_direction_config: { common_config: { content_type: [a], content_type_matcher: [ { exact: b } ] } }",
            ),
            Some("request_direction_config.common_config.content_type: must not be set beside content_type_matcher"),
        ),
        (limit("stage: 11"), Some("stage: must be at most 10")),
        (limit("rate_limits: [ { actions: [] } ]"), Some("rate_limits[0].actions: must not be empty")),
        (
            limit("rate_limits: [ { actions: [ { masked_remote_address: { v4_prefix_mask_len: 33 } } ] } ]"),
            Some("rate_limits[0].actions[0].masked_remote_address.v4_prefix_mask_len: must be at most 32"),
        ),
        (
            limit("rate_limits: [ { actions: [ { extension: { name: e } } ] } ]"),
            Some("rate_limits[0].actions[0].extension: not supported"),
        ),
    ] {
        match (manager(&filter, "name: t"), expected) {
            (Ok(_), None) => {}
            (Err(rejection), Some(expected)) => assert!(rejection.contains(expected), "{filter}: {rejection}"),
            (outcome, expected) => panic!("{filter}: {outcome:?}, expected {expected:?}"),
        }
    }
}

#[test]
fn a_route_cannot_lift_a_limit_by_leaving_out_its_bucket() {
    let bucket = "token_bucket: { max_tokens: 1, fill_interval: 1s }";
    for (config, expected) in [(bucket, None), ("status: { code: TooManyRequests }", Some("token_bucket: is required"))]
    {
        let table = format!(
            "name: t\nvirtual_hosts: [ {{ name: h, domains: [\"*\"], routes: [ {{ match: {{ prefix: / }}, route: {{ cluster: c }}, \
             typed_per_filter_config: {{ rl: {{ \"@type\": {LIMIT}, stat_prefix: s, {config} }} }} }} ] }} ]"
        );
        let filter =
            format!("      - {{ name: rl, typed_config: {{ \"@type\": {LIMIT}, stat_prefix: s, {bucket} }} }}\n");
        match (manager(&filter, &table), expected) {
            (Ok(_), None) => {}
            (Err(rejection), Some(expected)) => assert!(rejection.contains(expected), "{config}: {rejection}"),
            (outcome, expected) => panic!("{config}: {outcome:?}, expected {expected:?}"),
        }
    }
}
