//! Random AuthorizationPolicies: the rules that this control plane makes of them decide about random calls as istiod's do
//! ([`istio`]).

mod istio;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_filters::rbac::{Subject, evaluate};
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::hcm::HttpFilterConfig;
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::rbac::Rules;
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity, PlainRequest};
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_testkit::{Random, cases};
use evenkeel_tls::SecretStore;
use evenkeel_xds::pb::envoy::config::listener::v3 as listener;
use evenkeel_xds::pb::envoy::config::rbac::v3::Rbac;
use evenkeel_xds::pb::envoy::config::route::v3::RouteConfiguration;
use evenkeel_xds::pb::envoy::extensions::filters::http::rbac::v3::Rbac as HttpRbac;
use evenkeel_xds::pb::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3 as hcm;
use evenkeel_xds::pb::envoy::extensions::filters::network::rbac::v3::Rbac as NetworkRbac;
use evenkeel_xds::{Any, ResourceType, pack, unpack};
use serde_json::{Map, Value, json};

use self::istio::Written;
use crate::scenario::{SCHEMA, view_of};

const OBJECTS: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: web}]}
status: {podIP: 10.244.0.3, phase: Running, conditions: [{type: Ready, status: 'True'}]}
";

/// Policies of one workload.
fn random_policies(random: &mut Random) -> Vec<Written> {
    let policy = |random: &mut Random, name: usize| {
        let action = random.pick(&["ALLOW", "ALLOW", "DENY", "DENY", "AUDIT"]);
        let least = usize::from(action != "ALLOW");
        let rules: Vec<Value> = (0..least + random.below(2)).map(|_| random_rule(random)).collect();
        let namespace = random.pick(&["shop", "shop", "istio-system"]);
        Written { namespace, name: format!("p{name}"), spec: json!({"action": action, "rules": rules}) }
    };
    (0..1 + random.below(3)).map(|name| policy(random, name)).collect()
}

fn random_rule(random: &mut Random) -> Value {
    let mut rule = Map::new();
    let several = |random: &mut Random, part: &str, one: fn(&mut Random) -> Value| -> Value {
        (0..1 + random.below(2)).map(|_| json!({ part: one(random) })).collect()
    };
    if random.once_in(2) {
        rule.insert("from".to_owned(), several(random, "source", random_source));
    }
    if random.once_in(2) {
        rule.insert("to".to_owned(), several(random, "operation", random_operation));
    }
    if random.once_in(2) {
        let conditions: Value = (0..1 + random.below(2)).map(|_| random_condition(random)).collect();
        rule.insert("when".to_owned(), conditions);
    }
    Value::Object(rule)
}

const PRINCIPALS: &[&str] = &[
    "*",
    "cluster.local/ns/shop/sa/web",
    "cluster.local/ns/bank/sa/api",
    "cluster.local/ns/*",
    "cluster.local/*",
    "other.example/*",
    "*/ns/shop/sa/web",
    "*/sa/api",
];
const NAMESPACES: &[&str] = &["*", "shop", "bank", "sh*", "*op", "s*p", "*h*"];
const ACCOUNTS: &[&str] = &["web", "shop/web", "bank/api", "api", "istio-system/web"];
const DOMAINS: &[&str] = &["*", "cluster.local", "other.example", "cluster.*", "*.example"];
const RANGES: &[&str] = &["10.1.0.0/16", "10.1.2.3", "192.0.2.0/24"];
const TOKENS: &[&str] =
    &["*", "https://i.example/ann", "https://i.example/*", "*/ann", "https://i.example/a*", "*.example/bob"];
const HOSTS: &[&str] = &["*", "web.example", "WEB.example", "*.example", "web*"];
const METHODS: &[&str] = &["*", "GET", "POST", "P*", "*T"];
const PATHS: &[&str] = &["*", "/admin", "/admin*", "*/x", "/a/x", "*.html"];
const CLAIMS: &[&str] = &["*", "admin", "a*", "*n", "user"];

fn random_source(random: &mut Random) -> Value {
    let mut source = Map::new();
    let by_account = random.once_in(4);
    let fields: &[(&str, &[&str])] = if by_account {
        &[("serviceAccounts", ACCOUNTS), ("trustDomains", DOMAINS), ("ipBlocks", RANGES)]
    } else {
        &[
            ("principals", PRINCIPALS),
            ("namespaces", NAMESPACES),
            ("trustDomains", DOMAINS),
            ("requestPrincipals", TOKENS),
            ("ipBlocks", RANGES),
            ("remoteIpBlocks", RANGES),
        ]
    };
    fill(random, &mut source, fields);
    Value::Object(source)
}

fn random_operation(random: &mut Random) -> Value {
    let mut operation = Map::new();
    let ports: &[&str] = &["8080", "9000"];
    fill(random, &mut operation, &[("hosts", HOSTS), ("methods", METHODS), ("paths", PATHS), ("ports", ports)]);
    Value::Object(operation)
}

fn fill(random: &mut Random, object: &mut Map<String, Value>, fields: &[(&str, &[&str])]) {
    for _ in 0..1 + random.below(2) {
        let (name, values) = random.pick(fields);
        let name =
            if random.once_in(3) { format!("not{}{}", name[..1].to_uppercase(), &name[1..]) } else { name.to_owned() };
        object.insert(name, random_values(random, values));
    }
}

fn random_values(random: &mut Random, values: &[&str]) -> Value {
    (0..1 + random.below(2)).map(|_| random.pick(values)).collect()
}

fn random_condition(random: &mut Random) -> Value {
    let keys: &[(&str, &[&str])] = &[
        ("request.headers[x-debug]", &["*", "on", "o*", "*n", ""]),
        ("request.headers[:authority]", HOSTS),
        ("request.headers[:method]", METHODS),
        ("source.ip", RANGES),
        ("remote.ip", RANGES),
        ("source.namespace", NAMESPACES),
        ("source.principal", PRINCIPALS),
        ("source.serviceAccount", ACCOUNTS),
        ("source.trustDomain", DOMAINS),
        ("request.auth.principal", TOKENS),
        ("request.auth.audiences", CLAIMS),
        ("request.auth.presenter", CLAIMS),
        ("request.auth.claims[groups]", CLAIMS),
        ("request.auth.claims[nested][key]", CLAIMS),
        ("destination.ip", &["10.244.0.0/16", "10.244.0.3", "192.0.2.1"]),
        ("destination.port", &["8080", "9000"]),
        ("connection.sni", &["*", "web.example", "web*", "*.example"]),
        ("experimental.envoy.filters.http.x[key]", &["*", "admin", "[admin]", "[a*]"]),
    ];
    let (key, values) = random.pick(keys);
    let mut condition = Map::from_iter([("key".to_owned(), json!(key))]);
    let (with, without) = random.pick(&[(true, false), (true, false), (false, true), (true, true)]);
    if with {
        condition.insert("values".to_owned(), random_values(random, values));
    }
    if without {
        condition.insert("notValues".to_owned(), random_values(random, values));
    }
    Value::Object(condition)
}

/// A call that both sides judge. No header has two lines, no host has a port and no path is ambiguous: about these, this control plane's
/// rules are stricter.
#[derive(Debug)]
struct Call {
    connection: ConnectionView,
    remote: SocketAddr,
    request: PlainRequest,
    metadata: DynamicMetadata,
}

fn random_call(random: &mut Random) -> Call {
    let address = |random: &mut Random| -> SocketAddr {
        random.pick(&["10.1.2.3:4000", "10.1.9.9:4000", "192.0.2.7:4000", "203.0.113.1:4000"]).parse().unwrap()
    };
    let identities = [
        "",
        "spiffe://cluster.local/ns/shop/sa/web",
        "spiffe://cluster.local/ns/bank/sa/api",
        "spiffe://cluster.local/ns/shop/zone/1/sa/web",
        "spiffe://cluster.local/ns/shop/sa/web/pod/1",
        "spiffe://cluster.local/ns//sa/web",
        "spiffe://cluster.local/ns/sp/sa/web",
        "spiffe://other.example/ns/shop/sa/web",
        "spiffe://other.example",
        "spiffe://cluster.local",
    ];
    let identity = random.pick(&identities);
    let peer = PeerIdentity { uri_sans: vec![identity.to_owned()], ..PeerIdentity::default() };
    let local = random.pick(&["10.244.0.3:8080", "10.244.0.3:9000"]).parse().unwrap();
    let connection = ConnectionView {
        tls: !identity.is_empty(),
        peer: (!identity.is_empty()).then(|| Arc::new(peer)),
        server_name: random.pick(&[None, Some("web.example"), Some("other.test")]).map(Into::into),
        ..ConnectionView::plaintext(address(random), local)
    };
    let mut request = PlainRequest::new(
        random.pick(&["GET", "POST", "PUT", "DELETE"]),
        random.pick(&["web.example", "Web.Example", "api.example", "web", ""]),
        random.pick(&["/", "/admin", "/admin/x", "/a/x", "/a.html", "/admin?b=c"]),
    );
    if let Some(value) = random.pick(&[None, Some(""), Some("on"), Some("off")]) {
        request = request.with_header("x-debug", value);
    }
    Call { connection, remote: address(random), request, metadata: random_metadata(random) }
}

fn random_metadata(random: &mut Random) -> DynamicMetadata {
    let text = |text: &str| MetadataValue::Text(text.into());
    let value = |random: &mut Random| match random.below(5) {
        0 => text(""),
        1 => MetadataValue::List(vec![text("user"), text("admin")]),
        2 => MetadataValue::List(Vec::new()),
        3 => text("admin"),
        _ => text("user"),
    };
    let mut metadata = DynamicMetadata::default();
    if random.once_in(2) {
        let mut claims: BTreeMap<&str, MetadataValue> = BTreeMap::new();
        claims.insert("iss", text(random.pick(&["https://i.example", "https://j.example"])));
        if random.below(4) > 0 {
            claims.insert("sub", text(random.pick(&["ann", "bob", ""])));
        }
        for name in ["aud", "azp", "groups"] {
            if random.once_in(2) {
                claims.insert(name, value(random));
            }
        }
        if random.once_in(2) {
            claims.insert("nested", MetadataValue::Object(vec![("key".into(), value(random))]));
        }
        let claims = claims.into_iter().map(|(name, value)| (name.into(), value)).collect();
        metadata.merge("envoy.filters.http.jwt_authn", &[("payload".into(), MetadataValue::Object(claims))]);
    }
    if random.once_in(2) {
        metadata.merge("envoy.filters.http.x", &[("key".into(), value(random))]);
    }
    metadata
}

/// The policies as YAML, which JSON is.
fn objects(policies: &[Written]) -> String {
    let object = |policy: &Written| {
        let Written { namespace, name, spec } = policy;
        let metadata = json!({"name": name, "namespace": namespace});
        let all = json!({"apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy", "metadata": metadata, "spec": spec});
        format!("---\n{all}\n")
    };
    policies.iter().map(object).collect()
}

/// A mesh with these objects, too.
fn snapshot(more: &str) -> Snapshot {
    let text = format!("{OBJECTS}{more}");
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.as_str().into())]);
    assert!(!found.has_errors(), "{text}\n{found}");
    evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).0
}

/// This control plane's rules for requests and for connections of `web-0`.
fn own_filters(snapshot: &Snapshot) -> (Vec<Rbac>, Vec<Rbac>) {
    let set = evenkeel_translate::resources(&view_of("sidecar web-0.shop", snapshot), snapshot, 1);
    let inbound = &set.of(ResourceType::Listener)["virtualInbound"];
    let inbound: listener::Listener = unpack(&inbound.any()).expect("a listener");
    let (mut http, mut tcp) = (Vec::new(), Vec::new());
    for filter in inbound.filter_chains.iter().flat_map(|chain| &chain.filters) {
        let Some(listener::filter::ConfigType::TypedConfig(config)) = &filter.config_type else { continue };
        if let Ok(manager) = unpack::<hcm::HttpConnectionManager>(config) {
            let rules = manager.http_filters.iter().filter_map(|filter| match &filter.config_type {
                Some(hcm::http_filter::ConfigType::TypedConfig(config)) => unpack::<HttpRbac>(config).ok()?.rules,
                _ => None,
            });
            http.push(rules.collect::<Vec<_>>());
        } else if let Ok(rbac) = unpack::<NetworkRbac>(config) {
            tcp.push(rbac.rules.expect("rules"));
        }
    }
    // All chains have the same; of connections there is a filter for each action.
    tcp.dedup_by(|a, b| a == b);
    let actions = tcp.iter().map(|rules| rules.action).collect::<std::collections::BTreeSet<_>>().len();
    tcp.truncate(actions);
    (http.into_iter().next().unwrap_or_default(), tcp)
}

/// The rules as the proxy compiles them.
fn compiled(filters: &[&[Rbac]]) -> Vec<Vec<Arc<Rules>>> {
    let typed = |name: String, config: Any| hcm::HttpFilter {
        name,
        config_type: Some(hcm::http_filter::ConfigType::TypedConfig(config)),
        ..hcm::HttpFilter::default()
    };
    let named = filters.iter().enumerate().flat_map(|(of, rules)| rules.iter().map(move |rules| (of, rules)));
    let mut http_filters: Vec<hcm::HttpFilter> = named
        .map(|(of, rules)| typed(of.to_string(), pack(&HttpRbac { rules: Some(rules.clone()), ..HttpRbac::default() })))
        .collect();
    http_filters.push(typed("router".to_owned(), pack(&Router::default())));
    let manager = hcm::HttpConnectionManager {
        stat_prefix: "test".to_owned(),
        route_specifier: Some(hcm::http_connection_manager::RouteSpecifier::RouteConfig(RouteConfiguration::default())),
        http_filters,
        ..hcm::HttpConnectionManager::default()
    };
    let filter = listener::Filter {
        name: "http".to_owned(),
        config_type: Some(listener::filter::ConfigType::TypedConfig(pack(&manager))),
    };
    let chain = listener::FilterChain { filters: vec![filter], ..listener::FilterChain::default() };
    let listener = listener::Listener {
        name: "test".to_owned(),
        address: Some(address("127.0.0.1", 15006)),
        filter_chains: vec![chain],
        ..listener::Listener::default()
    };
    let _schema = Arc::clone(&SCHEMA);
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    builder.set_listener(&pack(&listener)).expect("a listener");
    let config = builder.build();
    let chain = &config.listeners.get("test").expect("the listener").filter_chains[0];
    let Terminal::Http(manager) = &chain.terminal else { panic!("no connection manager") };
    let of = |index: usize| {
        let own = manager.filters.iter().filter(|filter| *filter.name == *index.to_string());
        own.filter_map(|filter| match &filter.config {
            HttpFilterConfig::Rbac(rbac) => rbac.rules.clone(),
            _ => None,
        })
        .collect()
    };
    (0..filters.len()).map(of).collect()
}

fn address(address: &str, port: u32) -> evenkeel_xds::pb::envoy::config::core::v3::Address {
    use evenkeel_xds::pb::envoy::config::core::v3::{Address, SocketAddress, address, socket_address};
    let socket = SocketAddress {
        address: address.to_owned(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(port)),
        ..SocketAddress::default()
    };
    Address { address: Some(address::Address::SocketAddress(socket)) }
}

/// The filter that refuses a call; `None`: none does.
fn refused(filters: &[Arc<Rules>], call: &Call, request: Option<&PlainRequest>) -> Option<String> {
    let remote = if request.is_some() { call.remote } else { call.connection.direct_remote };
    let subject =
        Subject { connection: &call.connection, remote: remote.ip(), request, metadata: Some(&call.metadata) };
    filters.iter().map(|rules| evaluate(rules, &subject)).find(|outcome| !outcome.allowed).map(|outcome| {
        let policy = outcome.policy.map(|policy| policy.name.to_string());
        policy.unwrap_or_else(|| "no policy matches".to_owned())
    })
}

#[test]
fn policies_decide_as_istios_do() {
    let mut refusals = 0;
    for seed in 0..cases(60, 3000) as u64 {
        let random = &mut Random::new(seed);
        let policies = random_policies(random);
        let (own_http, own_tcp) = own_filters(&snapshot(&objects(&policies)));
        let (http, tcp) = (istio::filters(&policies, false), istio::filters(&policies, true));
        let compiled = compiled(&[&own_http, &http, &own_tcp, &tcp]);
        for _ in 0..100 {
            let call = random_call(random);
            for (own, expected, request) in
                [(&compiled[0], &compiled[1], Some(&call.request)), (&compiled[2], &compiled[3], None)]
            {
                let (got, wanted) = (refused(own, &call, request), refused(expected, &call, request));
                let yaml = objects(&policies);
                assert_eq!(got.is_some(), wanted.is_some(), "seed {seed}: {got:?}, Istio {wanted:?}\n{yaml}\n{call:?}");
                refusals += usize::from(got.is_some());
            }
        }
    }
    assert!(refusals > 1000, "{refusals}");
}

#[test]
fn names_of_several_trust_domains_are_denied_at_stock_envoy() {
    let mesh = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata:\n  mesh: |\n    \
                caCertificates: [{spiffeBundleUrl: 'https://b.example', trustDomains: [b.example, c.example]}]\n";
    let spec = json!({"action": "DENY", "rules": [{"to": [{"operation": {"ports": ["1"]}}]}]});
    let policies = [Written { namespace: "shop", name: "p".to_owned(), spec }];
    let (http, tcp) = own_filters(&snapshot(&format!("{mesh}{}", objects(&policies))));
    let compiled = compiled(&[&http, &tcp]);
    let check = |uris: &[&str], denied: bool| {
        let uri_sans = uris.iter().map(|domain| format!("spiffe://{domain}/ns/a/sa/b")).collect();
        let peer = Some(Arc::new(PeerIdentity { uri_sans, ..PeerIdentity::default() }));
        let call = Call {
            connection: ConnectionView { peer, ..random_call(&mut Random::new(1)).connection },
            ..random_call(&mut Random::new(1))
        };
        for (rules, request) in [(&compiled[0], Some(&call.request)), (&compiled[1], None)] {
            let expected = denied.then(|| "ambiguous-identity[several-trust-domains]".to_owned());
            assert_eq!(refused(rules, &call, request), expected, "{uris:?}");
        }
    };
    check(&["cluster.local"], false);
    check(&["b.example"], false);
    check(&["b.example", "cluster.local"], true);
    check(&["cluster.local", "c.example"], true);
    check(&["c.example", "b.example"], true);
    check(&["b.example", "b.example"], false);
    // Without other trust domains there is no such rule.
    let (http, _) = own_filters(&snapshot(&objects(&policies)));
    assert!(http.iter().all(|rules| rules.policies.keys().all(|name| !name.starts_with("ambiguous-identity"))));
}
