//! The workloads of the mesh, and random policies and routes for them.

use std::fmt::Write as _;

use evenkeel_testkit::Random;

/// The modes of mutual TLS.
pub const MODES: [&str; 3] = ["PERMISSIVE", "STRICT", "DISABLE"];
/// Workloads, their namespaces, and whether they have a sidecar.
pub const WORKLOADS: [(&str, &str, bool); 5] = [
    ("client", "shop", true),
    ("plain", "shop", false),
    ("server-v1", "shop", true),
    ("server-v2", "shop", true),
    ("other", "other", true),
];

/// A program that answers on these ports, and names its workload.
pub fn application(workload: &str, ports: &[u16]) -> String {
    let listener = |port: u16| {
        format!(
            "{{name: p{port}, address: {{socket_address: {{address: 0.0.0.0, port_value: {port}}}}}, filter_chains: [{{filters: [{{name: hcm, \
             typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, \
             stat_prefix: web, route_config: {{name: local, response_headers_to_add: [{{header: {{key: x-served-by, value: {workload}}}}}], \
             virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}]}}, \
             http_filters: [{{name: router, typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]}}}}]}}]}}"
        )
    };
    let listeners: Vec<String> = ports.iter().copied().map(listener).collect();
    format!("{{static_resources: {{listeners: [{}]}}}}", listeners.join(", "))
}

/// The workloads and their services. `program`: the binary.
pub fn workloads(program: &str) -> String {
    let mut text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: Namespace\nmetadata: {name: other}\n---\n"
        .to_owned();
    for (name, namespace, has_sidecar) in WORKLOADS {
        let (app, version) = name.split_once('-').unwrap_or((name, "v1"));
        let run =
            format!("exec {program} proxy --concurrency 1 --config-yaml '{}'", application(name, &[8080, 8081, 8082]));
        let annotation = if has_sidecar { "" } else { "        sidecar.istio.io/inject: \"false\"\n" };
        let _ = write!(
            text,
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
             selector: {{matchLabels: {{app: {app}, version: {version}}}}}\n  template:\n    metadata:\n      \
             labels: {{app: {app}, version: {version}}}\n      annotations:\n        local.evenkeel.dev/run: {run:?}\n{annotation}    \
             spec: {{serviceAccountName: {app}, containers: [{{name: main, ports: [{{containerPort: 8080}}, {{containerPort: 8081}}, {{containerPort: 8082}}]}}]}}\n---\n"
        );
    }
    for (name, namespace) in [("server", "shop"), ("other", "other")] {
        let _ = write!(
            text,
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{selector: {{app: {name}}}, ports: \
             [{{name: http, port: 80, targetPort: 8080}}, {{name: tcp, port: 81, targetPort: 8081}}, {{name: any, port: 82, targetPort: 8082}}]}}\n---\n"
        );
    }
    text + "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: gateway, namespace: shop}\n\
            spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n"
}

/// Objects one after the other.
#[derive(Default)]
struct Objects(String);

impl Objects {
    fn add(&mut self, group: &str, kind: &str, (name, namespace): (&str, &str), spec: &str) {
        let _ = write!(
            self.0,
            "---\napiVersion: {group}.istio.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n"
        );
    }
}

/// Policies and routes of a mesh with this mode.
pub fn random(random: &mut Random, mode: &str) -> String {
    let mut all = Objects::default();
    all.add("security", "PeerAuthentication", ("default", "istio-system"), &format!("mtls: {{mode: {mode}}}"));
    if random.once_in(3) {
        let own = random.pick(&MODES);
        all.add("security", "PeerAuthentication", ("default", "shop"), &format!("mtls: {{mode: {own}}}"));
    }
    if random.once_in(3) {
        let (own, of_port, port) = (random.pick(&MODES), random.pick(&MODES), random.pick(&[8080, 8081, 8082]));
        let spec = format!(
            "selector: {{matchLabels: {{app: server}}}}, mtls: {{mode: {own}}}, portLevelMtls: {{{port}: {{mode: {of_port}}}}}"
        );
        all.add("security", "PeerAuthentication", ("server", "shop"), &spec);
    }
    let has_subsets = rule(random, &mut all);
    routes(random, &mut all, has_subsets);
    for (name, namespace) in [("one", "shop"), ("two", "shop"), ("three", "other"), ("all", "istio-system")] {
        if random.once_in(3) {
            all.add("security", "AuthorizationPolicy", (name, namespace), &policy(random, namespace));
        }
    }
    if random.once_in(4) {
        let hosts = random.pick(&["'*/*'", "'./*', 'other/*'", "'./*', 'istio-system/*', 'other/*'"]);
        let outbound = random.pick(&["", ", outboundTrafficPolicy: {mode: REGISTRY_ONLY}"]);
        let spec = format!("workloadSelector: {{labels: {{app: client}}}}, egress: [{{hosts: [{hosts}]}}]{outbound}");
        all.add("networking", "Sidecar", ("client", "shop"), &spec);
    }
    all.0
}

/// A DestinationRule of the server. Returns whether it has subsets.
fn rule(random: &mut Random, all: &mut Objects) -> bool {
    let is_there = random.once_in(2);
    let has_subsets = is_there && !random.once_in(3);
    if is_there {
        let tls = random.pick(&[
            "",
            "tls: {mode: ISTIO_MUTUAL}",
            "tls: {mode: DISABLE}",
            "tls: {mode: SIMPLE, insecureSkipVerify: true}",
            "portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}]",
        ]);
        let subsets = if has_subsets {
            ", subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]"
        } else {
            ""
        };
        let spec = format!("host: server.shop.svc.cluster.local, trafficPolicy: {{{tls}}}{subsets}");
        let namespace = random.pick(&["shop", "other"]);
        all.add("networking", "DestinationRule", ("server", namespace), &spec);
    }
    has_subsets
}

/// Routes of the server, and of the gateway.
fn routes(random: &mut Random, all: &mut Objects, has_subsets: bool) {
    let subset = |name: &str| if has_subsets { format!(", subset: {name}") } else { String::new() };
    let to = |name: &str| {
        format!(
            "route: [{{destination: {{host: server.shop.svc.cluster.local, port: {{number: 80}}{}}}}}]",
            subset(name)
        )
    };
    let http = |random: &mut Random| {
        let mut rules = Vec::new();
        if random.once_in(2) {
            let what = random.pick(&[
                "directResponse: {status: 418}",
                "redirect: {uri: /elsewhere}",
                "rewrite: {uri: /admin}, ROUTE",
                "fault: {abort: {httpStatus: 503, percentage: {value: 100}}}, ROUTE",
                "headers: {request: {set: {x-user: b}}}, ROUTE",
            ]);
            let what = what.replace("ROUTE", &to("v2"));
            let condition =
                random.pick(&["uri: {prefix: /admin}", "headers: {x-user: {exact: a}}", "sourceLabels: {app: client}"]);
            rules.push(format!("{{match: [{{{condition}}}], {what}}}"));
        }
        if !random.once_in(8) {
            rules.push(format!("{{{}}}", to("v1")));
        }
        rules.join(", ")
    };
    if random.once_in(2) {
        let rules = http(random);
        if !rules.is_empty() {
            let spec = format!("hosts: [server.shop.svc.cluster.local], http: [{rules}]");
            all.add("networking", "VirtualService", ("server", "shop"), &spec);
        }
    }
    let rules = http(random).replace("sourceLabels: {app: client}", "uri: {exact: /}");
    if !rules.is_empty() {
        all.add(
            "networking",
            "VirtualService",
            ("edge", "shop"),
            &format!("hosts: ['*'], gateways: [gateway], http: [{rules}]"),
        );
    }
}

/// An AuthorizationPolicy.
fn policy(random: &mut Random, namespace: &str) -> String {
    let selector = match (namespace, random.once_in(2)) {
        ("shop", true) => "selector: {matchLabels: {app: server}}, ",
        _ => "",
    };
    let action = random.pick(&["ALLOW", "ALLOW", "DENY"]);
    let rule = |random: &mut Random| {
        let from = random.pick(&[
            "",
            "from: [{source: {principals: [cluster.local/ns/shop/sa/client]}}]",
            "from: [{source: {namespaces: [shop, istio-system]}}]",
            "from: [{source: {notNamespaces: [other]}}]",
            "from: [{source: {notPrincipals: ['*']}}]",
        ]);
        let to = random.pick(&[
            "",
            "to: [{operation: {paths: [/admin*]}}]",
            "to: [{operation: {notPaths: [/admin*]}}]",
            "to: [{operation: {methods: [GET]}}]",
            "to: [{operation: {ports: ['8080', '8082']}}]",
            "to: [{operation: {hosts: [server*]}}]",
        ]);
        let when = random.pick(&["", "", "when: [{key: 'request.headers[x-user]', values: [a]}]"]);
        let parts: Vec<&str> = [from, to, when].into_iter().filter(|part| !part.is_empty()).collect();
        format!("{{{}}}", parts.join(", "))
    };
    let rules: Vec<String> = (0..1 + random.below(2)).map(|_| rule(random)).collect();
    format!("{selector}action: {action}, rules: [{}]", rules.join(", "))
}
