//! The effects of the mesh's settings: decisions about calls, and the resources where a call does not show the effect.

use evenkeel_base::Diagnostics;
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use serde_json::Value;

use crate::decisions::{Client, PLAIN_HTTP, mesh, outcome};
use crate::own_proxy::compile;
use crate::recorded::compared;
use crate::scenario::{translate, view_of};

/// Two namespaces: a client and a server in `shop`, a service and an external host in `stock`.
const OBJECTS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop}}
---
apiVersion: v1
kind: Namespace
metadata: {name: stock, labels: {team: stock}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.1.1, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: grpc, port: 81, targetPort: 8081}, {name: raw, port: 82, targetPort: 8082, appProtocol: tcp}, {name: any, port: 83, targetPort: 8083}]}
---
apiVersion: v1
kind: Service
metadata: {name: ledger, namespace: stock}
spec: {clusterIP: 10.96.2.1, selector: {app: ledger}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web, topology.kubernetes.io/region: r1}}
spec: {serviceAccountName: web, containers: [{name: web}]}
status: {podIP: 10.244.0.3, phase: Running, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ledger-0, namespace: stock, labels: {app: ledger, topology.kubernetes.io/region: r2}}
spec: {serviceAccountName: ledger, containers: [{name: ledger}]}
status: {podIP: 10.244.0.4, phase: Running, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: stock}
spec: {hosts: [api.example.com], location: MESH_EXTERNAL, resolution: DNS, ports: [{number: 80, name: http, protocol: HTTP}]}
";

/// The mesh with these settings (lines of MeshConfig) and further objects.
pub fn built(settings: &str, more: &str) -> (Snapshot, Diagnostics) {
    let settings = settings.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let text = format!(
        "{OBJECTS}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    # Settings.\n{settings}{more}"
    );
    let (objects, mut found) = crate::recorded::load(&[("mesh.yaml".into(), text.as_str().into())]);
    let (snapshot, built) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    found.extend(built);
    (snapshot, found)
}

/// How a call of the Pod `web-0` ends.
fn out(settings: &str, more: &str, to: &str, request: &str) -> String {
    let (snapshot, _) = built(settings, more);
    let (config, refused) = compile(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot));
    assert!(refused.is_empty(), "{settings}: {refused:?}");
    outcome(&config, "0.0.0.0_80", &PLAIN_HTTP, to, request, 0)
}

/// How a call to the Pod `web-0` ends.
fn call_in(settings: &str, more: &str, client: &Client, request: &str) -> String {
    let (snapshot, _) = built(settings, more);
    let (config, refused) = compile(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot));
    assert!(refused.is_empty(), "{settings}: {refused:?}");
    outcome(&config, "virtualInbound", client, "10.244.0.3:8080", request, 0)
}

/// The resource of a kind (`CDS`, `LDS`, `EDS`, `RDS`) and name that the sidecar of `web-0` gets.
pub fn resource(settings: &str, more: &str, proxy: &str, kind: &str, name: &str) -> Value {
    let (snapshot, found) = built(settings, more);
    let set = translate(&view_of(proxy, &snapshot), &snapshot);
    let (_, refused) = compile(&set);
    assert!(refused.is_empty(), "{settings}: {refused:?}");
    let all = compared(&set);
    let list = all[kind]
        .as_array()
        .unwrap_or_else(|| panic!("no {kind} in {:?}; {found}", all.as_object().map(|o| o.keys().collect::<Vec<_>>())));
    let is_it =
        |resource: &&Value| [&resource["name"], &resource["cluster_name"]].iter().any(|n| n.as_str() == Some(name));
    list.iter().find(is_it).cloned().unwrap_or_else(|| panic!("no {name}"))
}

#[track_caller]
fn check(settings: &str, kind: &str, name: &str, pointer: &str, expected: &str) {
    let found = resource(settings, "", "sidecar web-0.shop", kind, name);
    let at = found.pointer(pointer).map_or_else(|| "-".to_owned(), ToString::to_string);
    assert_eq!(at, expected, "{settings}: {name}{pointer}");
}

const WEB: &str = "outbound|80||web.shop.svc.cluster.local";
const LEDGER: &str = "outbound|80||ledger.stock.svc.cluster.local";

#[test]
fn paths_are_normalized_before_a_policy_sees_them() {
    let deny = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: admin, namespace: shop}\nspec: {action: DENY, rules: [{to: [{operation: {paths: [/admin/x]}}]}]}\n";
    let check = |mode: &str, path: &str, expected: &str| {
        let settings =
            if mode.is_empty() { String::new() } else { format!("pathNormalization: {{normalization: {mode}}}") };
        let got = call_in(&settings, deny, &mesh("shop/sa/web"), &format!("GET web {path}"));
        let expected = match expected {
            "denied" => "denied by ns[shop]-policy[admin]-rule[0]".to_owned(),
            path if path.starts_with('/') => format!("inbound|8080|| web{path}"),
            reason => format!("denied by ambiguous-path[{reason}]"),
        };
        assert_eq!(got, expected, "{mode} {path}");
    };
    for base in ["", "DEFAULT", "BASE"] {
        check(base, "/admin/x", "denied");
        check(base, "/a/../admin/x", "denied");
        check(base, "/admin//x", "empty-segment");
        check(base, "/admin%2Fx", "encoded-slash");
        check(base, "/admin%5cx", "encoded-slash");
        check(base, "/a?x=//%2F", "/a?x=//%2F");
    }
    check("NONE", "/a/../admin/x", "dot-segment");
    check("NONE", "/admin/.", "dot-segment");
    check("NONE", "/%61dmin/x", "encoded-character");
    check("NONE", "/admin\\x", "backslash");
    check("NONE", "/admin/x", "denied");
    check("NONE", "/a.b/c", "/a.b/c");
    check("MERGE_SLASHES", "/admin//x", "denied");
    check("MERGE_SLASHES", "/a/../admin/x", "denied");
    check("MERGE_SLASHES", "/admin%2Fx", "encoded-slash");
    check("DECODE_AND_MERGE_SLASHES", "/admin;a/x", "path-parameter");
    check("DECODE_AND_MERGE_SLASHES", "/admin%252fx", "double-encoding");
    check("DECODE_AND_MERGE_SLASHES", "/admin%3fx", "encoded-delimiter");
    check("DECODE_AND_MERGE_SLASHES", "/admin%c0%afx", "overlong-escape");
    check("DECODE_AND_MERGE_SLASHES", "/admin%zz", "invalid-escape");
    check("DECODE_AND_MERGE_SLASHES", "/caf%C3%A9/%20x", "/caf%C3%A9/%20x");
    check("DECODE_AND_MERGE_SLASHES", "/admin/x%20", "trailing-space");
    check("DECODE_AND_MERGE_SLASHES", "/admin/x%0d%0A", "trailing-space");
    check("DECODE_AND_MERGE_SLASHES", "/admin%2Fx", "denied");
    check("DECODE_AND_MERGE_SLASHES", "/admin%5Cx", "denied");
    check("DECODE_AND_MERGE_SLASHES", "/admin%2F/x", "denied");
    check("DECODE_AND_MERGE_SLASHES", "/a%2Fb", "/a/b");
    // Where no policy compares paths, or where that is asked for, nothing is ambiguous.
    let forward = "defaultConfig: {proxyMetadata: {EVENKEEL_AMBIGUOUS_REQUESTS: FORWARD}}";
    let anything = deny.replace("/admin/x", "'*'").replace("DENY", "ALLOW");
    for (settings, policy) in [("", ""), ("", &*anything), (forward, deny)] {
        let got = call_in(settings, policy, &mesh("shop/sa/web"), "GET web /admin//x");
        assert_eq!(got, "inbound|8080|| web/admin//x", "{settings} {policy}");
    }
}

#[test]
fn a_mode_that_is_misspelt_leaves_no_way_around_a_policy() {
    let deny = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: admin, namespace: shop}\nspec: {action: DENY, rules: [{to: [{operation: {paths: [/admin/x]}}]}]}\n";
    let got = call_in("pathNormalization: {normalization: DECODE}", deny, &mesh("shop/sa/web"), "GET web /admin%2Fx");
    assert_eq!(got, "denied by ns[shop]-policy[admin]-rule[0]");
}

#[test]
fn unknown_hosts_are_called_as_the_mesh_says() {
    let check = |settings: &str, expected: &str| {
        assert_eq!(out(settings, "", "192.0.2.1:80", "GET unknown.example.com /"), expected, "{settings}");
    };
    let passes = "PassthroughCluster unknown.example.com/";
    check("", passes);
    check("outboundTrafficPolicy: {mode: ALLOW_ANY}", passes);
    let looked_up = "AllowAnyDynamicDNSCluster unknown.example.com/";
    check("outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS}", looked_up);
    check("outboundTrafficPolicy: {mode: REGISTRY_ONLY}", "502");
    // A setting of a newer version is left out, and the others hold.
    check("outboundTrafficPolicy: {mode: REGISTRY_ONLY}\nsettingOfTheFuture: {x: 1}", "502");
    check("outboundTrafficPolicy: {mode: REGISTRYONLY}", "502");
    check("outboundTraficPolicy: {mode: REGISTRY_ONLY}", "502");
    let (_, found) = built("settingOfTheFuture: {x: 1}", "");
    assert!(
        found.iter().any(|f| f.code == "unknown-field" && f.severity == evenkeel_base::Severity::Warning),
        "{found}"
    );
    assert!(!found.has_errors(), "{found}");
}

#[test]
fn calls_of_unknown_hosts_go_to_the_egress_proxy_of_the_mesh() {
    let egress = |to: &str| format!("outboundTrafficPolicy: {{mode: ALLOW_ANY, egressProxy: {{{to}}}}}");
    let check = |settings: &str, more: &str, request: &str, expected: &str| {
        assert_eq!(out(settings, more, "192.0.2.1:80", request), expected, "{settings} {more}");
    };
    let unknown = "GET unknown.example.com /";
    let full = egress("host: ledger.stock.svc.cluster.local, port: {number: 80}");
    check(&full, "", unknown, &format!("{LEDGER} unknown.example.com/"));
    check(&full, "", "GET web.shop /", &format!("{WEB} web.shop/"));
    // ALLOW_ANY is the default.
    check(&full.replace("mode: ALLOW_ANY, ", ""), "", unknown, &format!("{LEDGER} unknown.example.com/"));
    // A short name is one of the root namespace; what is not there answers 503.
    let short = egress("host: ledger, port: {number: 80}");
    check(&short, "", unknown, "503 no cluster");
    let subset = egress("host: ledger.stock.svc.cluster.local, subset: v1, port: {number: 80}");
    let rule = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: ledger, namespace: stock}\nspec: {host: ledger, subsets: [{name: v1, labels: {app: ledger}}]}\n";
    check(&subset, rule, unknown, "outbound|80|v1|ledger.stock.svc.cluster.local unknown.example.com/");
    // A Sidecar that imports nothing sees the egress proxy, and its own policy takes precedence.
    let sidecar = |policy: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: default, namespace: shop}}\nspec: {{{policy}egress: [{{hosts: ['shop/*']}}]}}\n"
        )
    };
    check(&full, &sidecar(""), unknown, &format!("{LEDGER} unknown.example.com/"));
    check(&full, &sidecar(""), "GET ledger.stock /", &format!("{LEDGER} ledger.stock/"));
    check(&full, &sidecar("outboundTrafficPolicy: {mode: REGISTRY_ONLY}, "), unknown, "502");
    let passes = "PassthroughCluster unknown.example.com/";
    check(&full, &sidecar("outboundTrafficPolicy: {mode: ALLOW_ANY}, "), unknown, passes);
    // Connections to ports without a listener go there, too.
    let listener = resource(&full, "", "sidecar web-0.shop", "LDS", "virtualOutbound").to_string();
    assert!(listener.contains(LEDGER) && !listener.contains("PassthroughCluster"), "{listener}");
    // Whatever is wrong with it, nothing passes by it.
    check(&full.replace("ALLOW_ANY", "REGISTRY_ONLY"), "", unknown, "502");
    check(&full.replace("ALLOW_ANY", "ALLOW_ANY_DYNAMIC_DNS"), "", unknown, "502");
    check(&egress("host: ledger.stock.svc.cluster.local"), "", unknown, "502");
    check(&egress("host: ledger.stock.svc.cluster.local, port: {number: 80}, x: 1"), "", unknown, "502");
}

#[test]
fn what_is_wrong_with_an_egress_proxy_is_named() {
    let check = |policy: &str, code: &str, expected: &str| {
        let (_, found) = built(&format!("outboundTrafficPolicy: {{{policy}}}"), "");
        let one = found.iter().find(|finding| finding.code == code);
        let one = one.unwrap_or_else(|| panic!("{policy}: {found}"));
        assert!(one.message.contains(expected) && one.help.is_some(), "{policy}: {one}");
    };
    let ledger = "ledger.stock.svc.cluster.local";
    check(&format!("egressProxy: {{host: {ledger}}}"), "missing-field", "needs a `port`");
    check(
        &format!("mode: REGISTRY_ONLY, egressProxy: {{host: {ledger}, port: {{number: 80}}}}"),
        "conflict",
        "ALLOW_ANY",
    );
    check(&format!("egressProxy: {{host: {ledger}, port: {{number: 81}}}}"), "missing-port", "has no port 81");
    check("egressProxy: {host: proxy, port: {number: 80}}", "missing-service", "proxy.istio-system.svc.cluster.local");
}

#[test]
fn clusters_have_the_names_in_statistics_that_the_mesh_says() {
    let name = |settings: &str, more: &str, cluster: &str| {
        let found = resource(settings, more, "sidecar web-0.shop", "CDS", cluster);
        found["alt_stat_name"].as_str().unwrap_or("-").to_owned()
    };
    let check = |pattern: &str, cluster: &str, expected: &str| {
        assert_eq!(
            name(&format!("outboundClusterStatName: '{pattern}'"), "", cluster),
            expected,
            "{pattern} {cluster}"
        );
    };
    check("", WEB, "-");
    check("%SERVICE%", WEB, "web.shop");
    check("%SERVICE_NAME%", WEB, "web");
    check("%SERVICE_FQDN%_%SERVICE_PORT%", WEB, "web.shop.svc.cluster.local_80");
    check("%SERVICE_PORT_NAME%-%TARGET_PORT%", WEB, "http-8080");
    check("a%SUBSET_NAME%b", WEB, "ab");
    check("%OTHER%.%SERVICE_NAME%.%SERVICE_NAME%", WEB, "%OTHER%.web.web");
    // The names of other services are their hosts.
    let external = "outbound|80||api.example.com";
    check("%SERVICE% %SERVICE_NAME% %SERVICE_FQDN%", external, "api.example.com api.example.com api.example.com");
    check("%SERVICE%", "inbound|8080||", "-");
    check("%SERVICE%", "PassthroughCluster", "-");
    let rule = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: web, namespace: shop}\nspec: {host: web, subsets: [{name: v1, labels: {app: web}}]}\n";
    let of_subset = "outbound|80|v1|web.shop.svc.cluster.local";
    assert_eq!(name("outboundClusterStatName: '%SERVICE%_%SUBSET_NAME%'", rule, of_subset), "web.shop_v1");
    let inbound =
        "inboundClusterStatName: 'in_%SERVICE%_%SERVICE_PORT%_%TARGET_PORT%_%SERVICE_PORT_NAME%%SUBSET_NAME%'";
    assert_eq!(name(inbound, "", "inbound|8080||"), "in_web.shop_80_8080_http");
    assert_eq!(name(inbound, "", "inbound|8082||"), "in_web.shop_82_8082_raw");
    assert_eq!(name(inbound, "", WEB), "-");
    // TCP connections are counted under these names, too.
    let both = "outboundClusterStatName: 'out_%SERVICE_NAME%'\ninboundClusterStatName: 'in_%SERVICE_NAME%'";
    let listener = |name: &str| resource(both, "", "sidecar web-0.shop", "LDS", name).to_string();
    assert!(listener("10.96.1.1_82").contains("\"stat_prefix\":\"out_web\""), "{}", listener("10.96.1.1_82"));
    assert!(listener("virtualInbound").contains("\"stat_prefix\":\"in_web\""), "{}", listener("virtualInbound"));
    let (_, found) = built("outboundClusterStatName: '%SERVICES%-%SERVICE_PORT%'", "");
    let finding = found.iter().find(|f| f.code == "bad-value" && f.message.contains("`%SERVICES%` is no variable"));
    assert!(finding.is_some_and(|f| f.help.as_deref().is_some_and(|help| help.contains("`%SERVICE%`"))), "{found}");
}

#[test]
fn objects_without_export_to_are_seen_by_whom_the_mesh_says() {
    let only = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}";
    let check = |settings: &str, more: &str, request: &str, expected: &str| {
        let settings = format!("{only}\n{settings}");
        assert_eq!(out(&settings, more, "10.96.2.1:80", request), expected, "{settings} {more}");
    };
    let (call, reached) = ("GET ledger.stock /", format!("{LEDGER} ledger.stock/"));
    check("", "", call, &reached);
    check("defaultServiceExportTo: ['.']", "", call, "502");
    check("defaultServiceExportTo: ['~']", "", call, "Some(NoListener { name: \"0.0.0.0_80\" })");
    check("defaultServiceExportTo: [shop]", "", call, &reached);
    check("defaultServiceExportTo: ['*']", "", call, &reached);
    check("defaultServiceExportTo: ['.']", "", "GET api.example.com /", "502");
    check("", "", "GET api.example.com /", "outbound|80||api.example.com api.example.com/");
    // What an object says itself counts.
    let shared = "---\napiVersion: v1\nkind: Service\nmetadata: {name: open, namespace: stock, annotations: {networking.istio.io/exportTo: '*'}}\nspec: {selector: {app: ledger}, ports: [{name: http, port: 80}]}\n";
    check(
        "defaultServiceExportTo: ['.']",
        shared,
        "GET open.stock /",
        "outbound|80||open.stock.svc.cluster.local open.stock/",
    );

    let routes = |export: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: stock}}\nspec: {{hosts: [ledger.stock.svc.cluster.local]{export}, http: [{{directResponse: {{status: 418}}}}]}}\n"
        )
    };
    check("", &routes(""), call, "418");
    check("defaultVirtualServiceExportTo: ['.']", &routes(""), call, &reached);
    check("defaultVirtualServiceExportTo: ['.']", &routes(", exportTo: ['*']"), call, "418");

    let rule = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: stock}\nspec: {host: ledger, trafficPolicy: {connectionPool: {tcp: {connectTimeout: 3s}}}}\n";
    let timeout =
        |settings: &str| resource(settings, rule, "sidecar web-0.shop", "CDS", LEDGER)["connect_timeout"].clone();
    assert_eq!(timeout(""), "3s");
    assert_eq!(timeout("defaultDestinationRuleExportTo: ['.']"), "10s");
    assert_eq!(timeout("connectTimeout: 2s\ndefaultDestinationRuleExportTo: ['.']"), "2s");
}

#[test]
fn only_the_namespaces_that_are_chosen_are_read() {
    let check = |selectors: &str, expected: &str| {
        let settings = format!("outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}\ndiscoverySelectors: {selectors}");
        assert_eq!(out(&settings, "", "10.96.2.1:80", "GET ledger.stock /"), expected, "{selectors}");
    };
    let reached = format!("{LEDGER} ledger.stock/");
    check("[{matchLabels: {team: shop}}, {matchLabels: {team: stock}}]", &reached);
    check("[{matchLabels: {team: shop}}]", "502");
    check("[{matchExpressions: [{key: team, operator: In, values: [shop, stock]}]}]", &reached);
    check("[{matchExpressions: [{key: team, operator: NotIn, values: [stock]}]}]", "502");
    check("[{matchExpressions: [{key: team, operator: Exists}]}]", &reached);
    check("[{matchLabels: {kubernetes.io/metadata.name: shop}}]", "502");
    check(
        "[{matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: [shop]}]}, {matchLabels: {team: shop}}]",
        &reached,
    );
}

#[test]
fn service_entries_are_seen_within_the_limits_of_the_mesh() {
    let check = |visibility: &str, expected: &str| {
        let settings = format!("outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}\nserviceEntryVisibility: {visibility}");
        assert_eq!(out(&settings, "", "192.0.2.1:80", "GET api.example.com /"), expected, "{visibility}");
    };
    let reached = "outbound|80||api.example.com api.example.com/";
    check("{defaultVisibility: NAMESPACE, applyToSidecars: true}", "502");
    check("{defaultVisibility: NONE, applyToSidecars: true}", "502");
    check("{defaultVisibility: PUBLIC, applyToSidecars: true}", reached);
    check("{defaultVisibility: NAMESPACE}", reached);
    let policy = |team: &str, visibility: &str| {
        format!(
            "{{visibility: {visibility}, matchingRules: [{{namespaceSelector: {{matchLabels: {{team: {team}}}}}}}]}}"
        )
    };
    check(
        &format!("{{defaultVisibility: NAMESPACE, applyToSidecars: true, policies: [{}]}}", policy("stock", "PUBLIC")),
        reached,
    );
    check(
        &format!("{{defaultVisibility: NAMESPACE, applyToSidecars: true, policies: [{}]}}", policy("shop", "PUBLIC")),
        "502",
    );
    check(&format!("{{applyToSidecars: true, policies: [{}]}}", policy("stock", "NONE")), "502");
}

#[test]
fn trust_domain_aliases_name_the_same_identities() {
    let allow = "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: a, namespace: shop}\nspec: {rules: [{from: [{source: {principals: [old.example/ns/shop/sa/web]}}]}]}\n";
    let check = |settings: &str, expected: &str| {
        assert_eq!(call_in(settings, allow, &mesh("shop/sa/web"), "GET web /"), expected, "{settings}");
    };
    check("", "denied by default");
    check("trustDomainAliases: [old.example]", "inbound|8080|| web/");
    check("trustDomainAliases: [other.example]", "denied by default");
}

/// Istio's `pilot/pkg/security/trustdomain`: which identities a value names when the trust domain changes.
#[test]
fn values_that_name_a_trust_domain_of_the_mesh_name_all_of_them() {
    // The mesh moves from `old-td` to `new-td`. Identities: `new-td`, `old-td`, and one of another mesh.
    let settings = "trustDomain: new-td\ntrustDomainAliases: [old-td, first.example]";
    let clients = ["new-td", "old-td", "first.example", "cluster.local", "foreign-td"];
    let is_named = |source: &str, domain: &str| {
        let spec = format!("{{action: DENY, rules: [{{from: [{{source: {{{source}}}}}]}}]}}");
        let policy = format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: a, namespace: shop}}\nspec: {spec}\n"
        );
        let client = mesh(format!("spiffe://{domain}/ns/shop/sa/web").leak());
        call_in(settings, &policy, &client, "GET web /").starts_with("denied")
    };
    let own = ["new-td", "old-td", "first.example"];
    for (source, expected) in [
        ("principals: [old-td/ns/shop/sa/web]", own.to_vec()),
        ("principals: [new-td/ns/shop/sa/web]", own.to_vec()),
        ("principals: [cluster.local/ns/shop/sa/web]", own.to_vec()),
        ("principals: [foreign-td/ns/shop/sa/web]", vec!["foreign-td"]),
        ("principals: [old-td/ns/shop/sa/other]", vec![]),
        // A trust domain that is not compared stands for any.
        ("principals: ['*/ns/shop/sa/web']", clients.to_vec()),
        ("principals: ['*/sa/web']", clients.to_vec()),
        // The end of one names those with this end, and the mesh's others.
        ("principals: ['*-td/ns/shop/sa/web']", vec!["new-td", "old-td", "first.example", "foreign-td"]),
        ("principals: ['*foreign-td/ns/shop/sa/web']", vec!["foreign-td"]),
        // istiod leaves prefixes shorter than a namespace's accounts as they are; here they name the aliases, too.
        ("principals: ['old-td/ns/shop/*']", own.to_vec()),
        ("principals: ['old-td/ns/shop/sa/*']", own.to_vec()),
        ("trustDomains: [old-td]", own.to_vec()),
        ("trustDomains: [new-td]", own.to_vec()),
        ("trustDomains: [foreign-td]", vec!["foreign-td"]),
        // Only in principals `cluster.local` stands for the mesh's.
        ("trustDomains: [cluster.local]", vec!["cluster.local"]),
        ("trustDomains: ['*-td']", vec!["new-td", "old-td", "foreign-td"]),
        ("trustDomains: ['old*']", vec!["old-td"]),
        ("notTrustDomains: [old-td]", vec!["cluster.local", "foreign-td"]),
        ("notPrincipals: [old-td/ns/shop/sa/web]", vec!["cluster.local", "foreign-td"]),
        // Accounts are of any trust domain.
        ("serviceAccounts: [shop/web]", clients.to_vec()),
        ("serviceAccounts: [web]", clients.to_vec()),
        ("serviceAccounts: [other/web]", vec![]),
    ] {
        let named: Vec<&str> = clients.into_iter().filter(|domain| is_named(source, domain)).collect();
        assert_eq!(named, expected, "{source}");
    }
}

#[test]
fn another_trust_domain_is_in_no_namespace_of_the_mesh() {
    let allow = |source: &str| {
        format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: a, namespace: shop}}\nspec: {{rules: [{{from: [{{source: {{{source}}}}}]}}]}}\n"
        )
    };
    // The caller's trust domain is cluster.local, which is first the mesh's own and then another one.
    let settings = |own: &str, other: &str| {
        format!(
            "trustDomain: {own}\ncaCertificates: [{{spiffeBundleUrl: 'https://b.example', trustDomains: [{other}]}}]"
        )
    };
    let passes = |settings: &str, source: &str| {
        call_in(settings, &allow(source), &mesh("shop/sa/web"), "GET web /") == "inbound|8080|| web/"
    };
    for (source, of_mesh, of_other) in [
        ("namespaces: [shop]", true, false),
        ("namespaces: ['*']", true, false),
        ("serviceAccounts: [shop/web]", true, false),
        ("notNamespaces: [shop]", false, true),
        ("principals: [other.example/ns/shop/sa/web]", false, false),
        ("trustDomains: [cluster.local]", true, true),
        ("principals: ['*']", true, true),
    ] {
        assert_eq!(passes(&settings("cluster.local", "other.example"), source), of_mesh, "{source}");
        assert_eq!(passes(&settings("own.example", "cluster.local"), source), of_other, "{source}");
    }
}

#[test]
fn servers_accept_trust_domains_with_roots_and_clients_do_not() {
    let names = |kind: &str, name: &str| {
        let settings = "caCertificates: [{spiffeBundleUrl: 'https://b.example', trustDomains: [partner.example]}]";
        resource(settings, "", "sidecar web-0.shop", kind, name).to_string()
    };
    let partner = "spiffe://partner.example/";
    assert!(names("LDS", "virtualInbound").contains(partner));
    assert!(!names("CDS", WEB).contains(partner));
}

#[test]
fn connections_are_made_as_the_mesh_says() {
    check("", "CDS", WEB, "/upstream_connection_options", "-");
    let keepalive = "tcpKeepalive: {probes: 3, time: 10s, interval: 5s}";
    check(keepalive, "CDS", WEB, "/upstream_connection_options/tcp_keepalive/keepalive_probes", "3");
    check(keepalive, "CDS", WEB, "/upstream_connection_options/tcp_keepalive/keepalive_time", "10");
    check(keepalive, "CDS", "inbound|8080||", "/upstream_connection_options/tcp_keepalive/keepalive_interval", "5");
    check(keepalive, "CDS", "PassthroughCluster", "/upstream_connection_options/tcp_keepalive/keepalive_probes", "3");
    check("connectTimeout: 1s", "CDS", WEB, "/connect_timeout", "\"1s\"");
    check("dnsRefreshRate: 5s", "CDS", "outbound|80||api.example.com", "/dns_refresh_rate", "\"5s\"");
    check("", "CDS", "outbound|80||api.example.com", "/dns_refresh_rate", "\"60s\"");
    check("protocolDetectionTimeout: 2s", "LDS", "virtualInbound", "/listener_filters_timeout", "\"2s\"");
    check("", "LDS", "virtualInbound", "/listener_filters_timeout", "\"0s\"");
    check("enableAutoMtls: false", "CDS", WEB, "/transport_socket_matches", "-");
    check("", "CDS", WEB, "/transport_socket_matches/0/name", "\"tlsMode-istio\"");
    check(
        "inboundTrafficPolicy: {mode: LOCALHOST}",
        "CDS",
        "inbound|8080||",
        "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/address",
        "\"127.0.0.1\"",
    );
    check(
        "inboundTrafficPolicy: {mode: LOCALHOST}",
        "CDS",
        "inbound|8080||",
        "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value",
        "8080",
    );
    check("inboundTrafficPolicy: {mode: PASSTHROUGH}", "CDS", "inbound|8080||", "/type", "\"ORIGINAL_DST\"");
}

/// How requests go upstream: `http1`, `http2` or `as received`.
fn upstream(settings: &str, more: &str, cluster: &str) -> String {
    let found = resource(settings, more, "sidecar web-0.shop", "CDS", cluster);
    let options = &found["typed_extension_protocol_options"]["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"];
    match (
        options.pointer("/explicit_http_config/http2_protocol_options"),
        options.get("use_downstream_protocol_config"),
    ) {
        (Some(_), _) => "http2",
        (None, Some(_)) => "as received",
        (None, None) => "http1",
    }
    .to_owned()
}

#[test]
fn http1_is_upgraded_where_the_mesh_or_a_rule_says_so() {
    let rule = |policy: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: r, namespace: shop}}\nspec: {{host: web, trafficPolicy: {{connectionPool: {{http: {{{policy}}}}}}}}}\n"
        )
    };
    let upgrade = "h2UpgradePolicy: UPGRADE";
    let check = |settings: &str, rule: &str, port: u16, expected: &str| {
        let cluster = format!("outbound|{port}||web.shop.svc.cluster.local");
        assert_eq!(upstream(settings, rule, &cluster), expected, "{settings} {rule} {port}");
    };
    check("", "", 80, "http1");
    check(upgrade, "", 80, "http2");
    check("h2UpgradePolicy: DO_NOT_UPGRADE", "", 80, "http1");
    check(upgrade, &rule("h2UpgradePolicy: DO_NOT_UPGRADE"), 80, "http1");
    check(upgrade, &rule("h2UpgradePolicy: DEFAULT"), 80, "http2");
    check("", &rule("h2UpgradePolicy: UPGRADE"), 80, "http2");
    check(upgrade, &rule("useClientProtocol: true"), 80, "as received");
    // A port whose protocol is detected is never upgraded.
    check(upgrade, "", 83, "as received");
    check("", &rule("h2UpgradePolicy: UPGRADE"), 83, "as received");
    check("", "", 81, "http2");
}

#[test]
fn limits_and_outlier_detection_of_the_mesh_hold_where_a_rule_says_nothing() {
    let settings = "defaultTrafficPolicy:\n  connectionPool: {tcp: {maxConnections: 7, connectTimeout: 4s}, http: {http1MaxPendingRequests: 9}}\n  outlierDetection: {consecutive5xxErrors: 3, interval: 8s}";
    let rule = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: shop}\nspec: {host: web, trafficPolicy: {connectionPool: {tcp: {maxConnections: 5}}, outlierDetection: {interval: 2s}}}\n";
    let check = |more: &str, cluster: &str, pointer: &str, expected: &str| {
        let found = resource(settings, more, "sidecar web-0.shop", "CDS", cluster);
        assert_eq!(
            found.pointer(pointer).map_or_else(|| "-".to_owned(), ToString::to_string),
            expected,
            "{cluster}{pointer}"
        );
    };
    let connections = "/circuit_breakers/thresholds/0/max_connections";
    check("", WEB, connections, "7");
    check("", WEB, "/connect_timeout", "\"4s\"");
    check("", WEB, "/outlier_detection/consecutive_5xx", "3");
    check("", "inbound|8080||", connections, "7");
    check("", "PassthroughCluster", connections, "7");
    check(rule, WEB, connections, "5");
    check(rule, WEB, "/circuit_breakers/thresholds/0/max_pending_requests", "9");
    check(rule, WEB, "/outlier_detection/interval", "\"2s\"");
    check(rule, WEB, "/outlier_detection/consecutive_5xx", "3");
}

#[test]
fn localities_are_preferred_as_the_mesh_says() {
    let outliers = "defaultTrafficPolicy: {outlierDetection: {consecutive5xxErrors: 3}}";
    let far = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-1, namespace: shop, labels: {app: web, topology.kubernetes.io/region: r2}}\nspec: {containers: [{name: web}]}\nstatus: {podIP: 10.244.0.9, phase: Running, conditions: [{type: Ready, status: 'True'}]}\n";
    let priorities = |settings: &str, rule: &str| {
        let found = resource(settings, &format!("{far}{rule}"), "sidecar web-0.shop", "EDS", WEB);
        let of = |group: &Value| {
            (
                group["locality"]["region"].as_str().unwrap_or("-").to_owned(),
                group["priority"].as_u64().unwrap_or_default(),
                group["load_balancing_weight"].as_u64().unwrap_or_default(),
            )
        };
        found["endpoints"].as_array().expect("localities").iter().map(of).collect::<Vec<_>>()
    };
    let groups = |first: (u64, u64), second: (u64, u64)| {
        vec![("r1".to_owned(), first.0, first.1), ("r2".to_owned(), second.0, second.1)]
    };
    assert_eq!(priorities(outliers, ""), groups((0, 0), (1, 0)));
    assert_eq!(priorities(&format!("{outliers}\nlocalityLbSetting: {{enabled: false}}"), ""), groups((0, 0), (0, 0)));
    let shares = "localityLbSetting: {distribute: [{from: r1/*, to: {r1/*: 80, r2/*: 20}}]}";
    assert_eq!(priorities(&format!("{outliers}\n{shares}"), ""), groups((0, 80), (0, 20)));
    // A rule's own setting replaces the mesh's.
    let rule = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: shop}\nspec: {host: web, trafficPolicy: {loadBalancer: {localityLbSetting: {enabled: true}}}}\n";
    assert_eq!(priorities(&format!("{outliers}\n{shares}"), rule), groups((0, 0), (1, 0)));
}

#[test]
fn tls_has_the_versions_and_suites_of_the_mesh() {
    let params = |settings: &str| {
        let found = resource(settings, "", "sidecar web-0.shop", "LDS", "virtualInbound");
        let chains = found["filter_chains"].as_array().expect("chains").clone();
        let socket = chains.iter().find_map(|chain| chain.get("transport_socket")).expect("a socket");
        socket["typed_config"]["common_tls_context"]["tls_params"].clone()
    };
    assert_eq!(params("")["tls_minimum_protocol_version"], "TLSv1_2");
    let strict = params("meshMTLS: {minProtocolVersion: TLSV1_3}");
    assert_eq!(strict["tls_minimum_protocol_version"], "TLSv1_3");
    let suites = params("meshMTLS: {cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384, AES128-SHA]}");
    assert_eq!(suites["cipher_suites"], serde_json::json!(["ECDHE-RSA-AES256-GCM-SHA384"]));
    let curves = params("meshMTLS: {ecdhCurves: [P-384, P-521, X25519]}");
    assert_eq!(curves["ecdh_curves"], serde_json::json!(["P-384", "X25519"]));
    // `tlsDefaults` is for all other connections.
    assert_eq!(params("tlsDefaults: {minProtocolVersion: TLSV1_3}")["tls_minimum_protocol_version"], "TLSv1_2");
    let simple = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: stock}\nspec: {host: api.example.com, trafficPolicy: {tls: {mode: SIMPLE, sni: api.example.com}}}\n";
    let client = |settings: &str| {
        let found = resource(settings, simple, "sidecar web-0.shop", "CDS", "outbound|80||api.example.com");
        found["transport_socket"]["typed_config"]["common_tls_context"]["tls_params"].clone()
    };
    assert_eq!(client("")["tls_maximum_protocol_version"], "TLSv1_3");
    assert_eq!(client("tlsDefaults: {minProtocolVersion: TLSV1_3}")["tls_minimum_protocol_version"], "TLSv1_3");
}

#[test]
fn access_logs_have_the_form_that_the_mesh_says() {
    let log = |settings: &str| {
        let found = resource(settings, "", "sidecar web-0.shop", "LDS", "virtualOutbound");
        let chains = found["filter_chains"].as_array().expect("chains").clone();
        let filters = chains
            .iter()
            .chain([&found["default_filter_chain"]])
            .filter_map(|chain| chain["filters"].as_array())
            .flatten();
        let logs = filters.map(|filter| filter["typed_config"]["access_log"].clone()).find(|log| !log.is_null());
        (
            logs.map(|logs| logs[0]["typed_config"].clone()).unwrap_or_default(),
            resource(settings, "", "sidecar web-0.shop", "LDS", "virtualInbound")["access_log"]
                .as_array()
                .map_or(0, Vec::len),
        )
    };
    assert_eq!(log("").0, Value::Null);
    let (text, unmatched) = log("accessLogFile: /dev/stdout\naccessLogFormat: '%DURATION%'");
    assert_eq!(
        (&text["path"], &text["log_format"]["text_format_source"]["inline_string"], unmatched),
        (&"/dev/stdout".into(), &"%DURATION%".into(), 1)
    );
    assert_eq!(log("accessLogFile: /dev/stdout\ndisableEnvoyListenerLog: true").1, 0);
    let nested = r#"accessLogFile: /dev/stdout
accessLogEncoding: JSON
accessLogFormat: '{"b": {"method": "%REQ(:METHOD)%", "deep": {"x": ["%PROTOCOL%", 7, true]}}, "a": "%DURATION%"}'"#;
    let (json, _) = log(nested);
    let expected = serde_json::json!({"a": "%DURATION%", "b": {"deep": {"x": ["%PROTOCOL%", "7", "true"]}, "method": "%REQ(:METHOD)%"}});
    assert_eq!(json["log_format"]["json_format"], expected);
    let provider = "extensionProviders:\n- name: file\n  envoyFileAccessLog: {path: /tmp/log, logFormat: {labels: {m: '%REQ(:METHOD)%'}}}\ndefaultProviders: {accessLogging: [file]}";
    let (json, _) = log(provider);
    assert_eq!(
        (&json["path"], &json["log_format"]["json_format"]["m"]),
        (&"/tmp/log".into(), &"%REQ(:METHOD)%".into())
    );
    let (json, _) = log("defaultProviders: {accessLogging: [envoy]}");
    assert_eq!(json["path"], "/dev/stdout");
}

/// A port named `http` is HTTP/1.1 towards the server, whatever the client speaks, on both sides of the call.
#[test]
fn a_server_is_spoken_to_as_its_port_says() {
    let check = |cluster: &str, expected: &str| assert_eq!(upstream("", "", cluster), expected, "{cluster}");
    check("outbound|80||web.shop.svc.cluster.local", "http1");
    check("inbound|8080||", "http1");
    check("outbound|81||web.shop.svc.cluster.local", "http2");
    check("inbound|8081||", "http2");
    // Nothing says what it speaks.
    check("outbound|83||web.shop.svc.cluster.local", "as received");
    check("inbound|8083||", "as received");
    check("PassthroughCluster", "as received");
    check("InboundPassthroughCluster", "as received");
}

/// The action of the first route to a port of the workload.
fn inbound_action(settings: &str, port: u16) -> Value {
    let listener = resource(settings, "", "sidecar web-0.shop", "LDS", "virtualInbound");
    let chains = listener["filter_chains"].as_array().expect("chains").clone();
    let chain = chains.iter().find(|chain| chain["name"] == format!("0.0.0.0_{port}")).expect("a chain");
    let filters = chain["filters"].as_array().expect("filters");
    let manager = filters.iter().find(|filter| filter["typed_config"]["route_config"].is_object()).expect("routes");
    manager["typed_config"]["route_config"]["virtual_hosts"][0]["routes"][0]["route"].clone()
}

#[test]
fn what_did_not_reach_the_workload_is_sent_again() {
    let check = |settings: &str, port: u16, expected: Value| {
        let policy = inbound_action(settings, port)["retry_policy"].clone();
        assert_eq!(policy, expected, "{settings} {port}");
    };
    let unsent = || serde_json::json!({"retry_on": "reset-before-request", "num_retries": 2});
    check("", 8080, unsent());
    check("", 8083, unsent());
    // Clients of gRPC repeat calls themselves.
    check("", 8081, Value::Null);
    check("defaultInboundHttpRetryPolicy: {}", 8080, Value::Null);
    check("defaultInboundHttpRetryPolicy: {attempts: 0}", 8080, Value::Null);
    check("defaultInboundHttpRetryPolicy: {attempts: 5}", 8081, Value::Null);
    let own = "defaultInboundHttpRetryPolicy: {attempts: 5, retryOn: \"connect-failure,503\", retryIgnorePreviousHosts: false}";
    check(
        own,
        8080,
        serde_json::json!({
            "retry_on": "connect-failure,retriable-status-codes", "num_retries": 5, "retriable_status_codes": [503],
        }),
    );
    // The clients' own policy is another one.
    check("defaultHttpRetryPolicy: {attempts: 7}", 8080, unsent());
}

/// `grpc-timeout` of a client ends its call at the proxies.
#[test]
fn clients_of_grpc_may_ask_for_less_time() {
    let limit = |more: &str, name: &str| {
        let found = resource("", more, "sidecar web-0.shop", "RDS", "80");
        let hosts = found["virtual_hosts"].as_array().expect("hosts").clone();
        let host = hosts.iter().find(|host| host["name"] == name).expect("a host");
        let route = &host["routes"][0]["route"];
        [route["timeout"].clone(), route["max_grpc_timeout"].clone()]
    };
    let web = "web.shop.svc.cluster.local:80";
    assert_eq!(limit("", web), ["0s", "0s"]);
    assert_eq!(limit("", "allow_any"), ["0s", "0s"]);
    let routes = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: v, namespace: shop}\nspec: {hosts: [web], http: [{timeout: 3s, route: [{destination: {host: web}}]}]}\n";
    assert_eq!(limit(routes, web), ["3s", "3s"]);
    assert_eq!(inbound_action("", 8081)["max_stream_duration"]["grpc_timeout_header_max"], "0s");
}

#[test]
fn retries_are_those_of_the_mesh_where_a_route_has_none() {
    let retries = |settings: &str| {
        let found = resource(settings, "", "sidecar web-0.shop", "RDS", "80");
        let hosts = found["virtual_hosts"].as_array().expect("hosts").clone();
        let host = hosts.iter().find(|host| host["name"] == "web.shop.svc.cluster.local:80").expect("a host");
        host["routes"][0]["route"]["retry_policy"]["num_retries"].clone()
    };
    assert_eq!(retries(""), 2);
    assert_eq!(retries("defaultHttpRetryPolicy: {attempts: 5}"), 5);
    assert_eq!(retries("defaultHttpRetryPolicy: {attempts: 0}"), Value::Null);
}

#[test]
fn settings_that_do_not_work_are_named() {
    let check = |settings: &str, code: &str, part: &str| {
        let (_, found) = built(settings, "");
        let is_it = |f: &&evenkeel_base::Diagnostic| f.code == code && f.message.contains(part) && f.span.line > 0;
        assert!(found.iter().any(|f| is_it(&f)), "{settings}: {found}");
    };
    check("proxyListenPort: 16001", "unsupported-value", "15001");
    check("proxyHttpPort: 15021", "port-conflict", "health");
    check("proxyHttpPort: 70000", "bad-value", "no port");
    check("outboundTrafficPolicy: {mode: ALLOW_ANY, tls: {mode: SIMPLE}}", "conflict", "ALLOW_ANY_DYNAMIC_DNS");
    let secret = "outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS, tls: {mode: SIMPLE, credentialName: a}}";
    check(secret, "unsupported-value", "no namespace");
    check("verifyCertificateAtClient: false", "unsupported-value", "in any case");
    let roots = |entry: &str, code: &str, part: &str| check(&format!("caCertificates: [{entry}]"), code, part);
    roots("{pem: x}", "bad-value", "BEGIN CERTIFICATE");
    roots("{pem: '-----BEGIN CERTIFICATE----- x'}", "bad-value", "not used");
    roots("{}", "missing-field", "no roots");
    roots("{pem: x, spiffeBundleUrl: 'https://a.example'}", "conflict", "exclude each other");
    roots("{spiffeBundleUrl: 'https://a.example'}", "missing-field", "vouch for every identity");
    roots("{spiffeBundleUrl: 'http://a.example', trustDomains: [a.example]}", "bad-value", "no https:// URL");
    roots("{spiffeBundleUrl: 'https://a.example', trustDomains: [A.example]}", "bad-value", "not a trust domain");
    roots("{pem: x, certSigners: [a.example/b]}", "unsupported-field", "not used");
    check(
        "defaultProviders: {tracing: [zipkn]}\nextensionProviders: [{name: zipkin, zipkin: {service: z.default, port: 9411}}]",
        "unsupported-provider",
        "no such provider",
    );
    check(
        "defaultProviders: {tracing: [z]}\nextensionProviders: [{name: z, datadog: {service: z.default, port: 9411}}]",
        "unsupported-provider",
        "not supported yet",
    );
    check(
        "defaultProviders: {accessLogging: [z]}\nextensionProviders: [{name: z, envoyOtelAls: {service: z.default, port: 1}}]",
        "missing-service",
        "z.default",
    );
    let zipkin = |more: &str| {
        format!(
            "defaultProviders: {{tracing: [z]}}\nextensionProviders: [{{name: z, zipkin: {{service: z.default, port: 9411{more}}}}}]"
        )
    };
    check(&zipkin(", path: 'a b'"), "bad-value", "not the path of a call");
    check(&zipkin(", headers: [{name: x, envName: Y}]"), "unsupported-field", "does not read its environment");
    check(
        &(zipkin("").replace("[z]", "[z, y]") + "\n")
            .replace("}}]", "}}, {name: y, zipkin: {service: y.default, port: 1}}]"),
        "unsupported-provider",
        "spans go to one collector",
    );
    check(
        "defaultProviders: {tracing: [o]}\nextensionProviders: [{name: o, opentelemetry: {service: o.default, port: 4317, resourceDetectors: {dynatrace: {}}}}]",
        "unsupported-field",
        "Dynatrace's files",
    );
    check(
        "extensionProviders: [{name: z, prometheus: {}}, {name: z, prometheus: {}}]",
        "duplicate-name",
        "two providers",
    );
    check(
        "extensionProviders: [{name: z, prometheus: {}, zipkin: {service: z.default, port: 9411}}]",
        "conflict",
        "several providers",
    );
    check("extensionProviders: [{name: z, providerOfTheFuture: {}}]", "missing-field", "not used");
    check("serviceEntryVisibility: {defaultVisibility: NAMESPACE}", "no-effect", "ambient");
    check("hboneIdleTimeout: 1h", "no-effect", "has no effect");
    check("enableEnvoyAccessLogService: true", "no-effect", "has no `envoyAccessLogService`");
    check("certificates: [{secretName: a}]", "unsupported-field", "no certificates for DNS names");
    check("configSources: [{address: 'fs:///etc'}]", "no-effect", "--config");
    check("accessLogEncoding: JSON\naccessLogFormat: '%METHOD%'", "bad-value", "not a JSON object");
    check("meshMTLS: {ecdhCurves: [P-521]}", "unsupported-value", "cannot use this curve");
    check("meshMTLS: {ecdhCurves: [P-255]}", "bad-value", "P-255");
    check("tlsDefaults: {cipherSuites: [AES128-SHA]}", "bad-value", "none of these suites");
    check("defaultServiceExportTo: ['*', '.']", "bad-value", "cannot be combined");
}

#[test]
fn which_ingresses_are_served_and_by_whom() {
    let objects = |class: &str, annotations: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: ours}}\nspec: {{controller: istio.io/ingress-controller}}\n\
             ---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: theirs}}\nspec: {{controller: example.com/other}}\n\
             ---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: front, namespace: shop, annotations: {{{annotations}}}}}\n\
             spec: {{{class}defaultBackend: {{service: {{name: web, port: {{number: 80}}}}}}, \
             rules: [{{host: a.example.com, http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: web, port: {{number: 80}}}}}}}}]}}}}]}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: one-0, namespace: istio-system, labels: {{istio: ingressgateway}}}}\n\
             spec: {{containers: [{{name: proxy}}]}}\nstatus: {{podIP: 10.244.0.8, phase: Running}}\n\
             ---\napiVersion: v1\nkind: Pod\nmetadata: {{name: two-0, namespace: istio-system, labels: {{istio: edge}}}}\n\
             spec: {{containers: [{{name: proxy}}]}}\nstatus: {{podIP: 10.244.0.9, phase: Running}}\n"
        )
    };
    // Which of the two gateways serves it.
    let check = |settings: &str, class: &str, annotations: &str, expected: [bool; 2]| {
        let (snapshot, _) = built(settings, &objects(class, annotations));
        let serves = |pod: &str| {
            let (config, _) =
                compile(&translate(&view_of(&format!("router {pod}.istio-system"), &snapshot), &snapshot));
            let listener = ["0.0.0.0_80", "0.0.0.0_8080"].into_iter().find(|name| config.listeners.contains_key(*name));
            let Some((listener, port)) = listener.and_then(|name| Some((name, name.rsplit_once('_')?.1))) else {
                return false;
            };
            let call = |host: &str| {
                outcome(&config, listener, &PLAIN_HTTP, &format!("10.244.0.8:{port}"), &format!("GET {host} /"), 0)
            };
            assert_eq!(call("b.example.com"), "404", "Istio does not serve `defaultBackend`");
            call("a.example.com").starts_with("outbound|80||web.shop")
        };
        assert_eq!(["one-0", "two-0"].map(serves), expected, "{settings} {class} {annotations}");
    };
    let ours = "ingressClassName: ours, ";
    let theirs = "ingressClassName: theirs, ";
    let named = |class: &str| format!("kubernetes.io/ingress.class: {class}");
    check("{}", ours, "", [true, false]);
    check("{}", theirs, "", [false, false]);
    check("{}", "", "", [false, false]);
    check("{}", "", &named("istio"), [true, false]);
    check("{}", "", &named("other"), [false, false]);
    check("ingressControllerMode: STRICT", "", "", [false, false]);
    check("ingressControllerMode: DEFAULT", "", "", [true, false]);
    check("ingressControllerMode: DEFAULT", theirs, "", [false, false]);
    check("ingressControllerMode: DEFAULT", "", &named("other"), [false, false]);
    check("ingressControllerMode: DEFAULT", "", &named("''"), [true, false]);
    check("ingressControllerMode: 'OFF'", ours, "", [false, false]);
    check("ingressClass: other", "", &named("other"), [true, false]);
    check("ingressClass: other", "", &named("istio"), [false, false]);
    check("ingressSelector: edge", ours, "", [false, true]);
    check("ingressService: edge", ours, "", [false, true]);
    check("ingressService: istio-ingressgateway", ours, "", [true, false]);
    check("ingressSelector: ingressgateway\ningressService: edge", ours, "", [true, false]);
}
