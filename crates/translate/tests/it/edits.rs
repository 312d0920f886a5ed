//! Random edits of a mesh: an object of any kind is written, changed or removed. There are few names, so that they collide.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use evenkeel_api::Kind;
use evenkeel_testkit::{Identity, Random, TestCa, objects};

/// Names of each kind, of which a run picks.
const NAMES: usize = 4;

const HOSTS: [&str; 9] = [
    "s0.shop.svc.cluster.local",
    "s1.shop.svc.cluster.local",
    "s2.other.svc.cluster.local",
    "*.shop.svc.cluster.local",
    "e0.example.com",
    "e1.example.com",
    "*.example.com",
    "x.example.com",
    "nowhere.test",
];
/// Where routes lead.
const DESTINATIONS: [&str; 3] = ["s0.shop.svc.cluster.local", "e0.example.com", "s1.shop.svc.cluster.local"];

const NETWORKING: &str = "networking.istio.io/v1";
const SECURITY: &str = "security.istio.io/v1";

/// What Secrets hold.
static SECRETS: LazyLock<(TestCa, [Identity; 2])> = LazyLock::new(|| {
    let ca = TestCa::new();
    let identities = ["e0.example.com", "e1.example.com"].map(|host| ca.for_dns(&[host]));
    (ca, identities)
});

/// One file and its text; no text: it is gone.
pub fn edit(random: &mut Random) -> (String, String) {
    let mut draw = Draw {
        n: random.below(NAMES),
        namespace: random.pick(&["shop", "shop", "other", "istio-system"]),
        app: random.pick(&["a", "b", "c"]),
        random,
    };
    let (file, text) = match draw.random.below(17) {
        0 | 1 => draw.service(),
        2 | 3 => draw.service_entry(),
        4 => draw.pod(),
        5 | 6 => draw.virtual_service(),
        7 | 8 => draw.destination_rule(),
        9 => draw.gateway(),
        10 => draw.peer_authentication(),
        11 => draw.sidecar(),
        12 => draw.of_the_cluster(),
        13 => draw.secret(),
        14 if draw.random.once_in(3) => draw.ingress(),
        14 => draw.workload_entry(),
        15 => draw.gateway_api(),
        _ if draw.random.once_in(4) => draw.mesh_config(),
        _ if draw.random.once_in(4) => draw.request_authentication(),
        _ if draw.random.once_in(4) => draw.proxy_config(),
        _ if draw.random.once_in(3) => draw.telemetry(),
        _ => draw.authorization_policy(),
    };
    let gone = random.once_in(4);
    (file, if gone { String::new() } else { text })
}

/// What one edit is about.
struct Draw<'r> {
    random: &'r mut Random,
    n: usize,
    namespace: &'static str,
    app: &'static str,
}

impl Draw<'_> {
    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        self.random.pick(from)
    }

    /// An object named after its number, in a file of its own.
    fn object(&self, api: &str, kind: &str, letter: char, spec: &str) -> (String, String) {
        let Self { n, namespace, .. } = self;
        let meta = format!("{{name: {letter}{n}, namespace: {namespace}}}");
        let text = format!("apiVersion: {api}\nkind: {kind}\nmetadata: {meta}\nspec: {spec}\n");
        (format!("{namespace}-{kind}-{n}.yaml"), text)
    }

    fn gateway_api(&mut self) -> (String, String) {
        const API: &str = "gateway.networking.k8s.io/v1";
        match self.random.below(12) {
            11 => {
                let parent = self.pick(&["k0, namespace: shop", "k1"]);
                let listener = self.pick(&["port: 80, protocol: HTTP", "port: 8080, protocol: HTTP, hostname: x.test"]);
                let spec = format!("{{parentRef: {{name: {parent}}}, listeners: [{{name: x, {listener}}}]}}");
                self.object(API, "ListenerSet", 'e', &spec)
            }
            9..11 => {
                let (n, section) = (self.n, self.pick(&["", ", sectionName: http"]));
                let roots = self.pick(&[
                    "wellKnownCACertificates: System",
                    "caCertificateRefs: [{group: '', kind: ConfigMap, name: a}]",
                ]);
                let spec = format!(
                    "{{targetRefs: [{{group: '', kind: Service, name: s{n}{section}}}], validation: {{hostname: a.test, {roots}}}}}"
                );
                self.object(API, "BackendTLSPolicy", 'b', &spec)
            }
            6..9 => {
                let kind = self.pick(&["GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute"]);
                let n = self.n;
                let parent = self
                    .pick(&["{name: k0, namespace: shop}", "{group: '', kind: Service, name: s0, namespace: shop}"]);
                let spec = format!("{{parentRefs: [{parent}], rules: [{{backendRefs: [{{name: s{n}, port: 80}}]}}]}}");
                self.object(API, kind, 'l', &spec)
            }
            0 => {
                let grant = "{from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: shop}], to: [{group: '', kind: Service}]}";
                self.object(API, "ReferenceGrant", 'r', grant)
            }
            1 => {
                let controller = self.pick(&["istio.io/gateway-controller", "a.test/other"]);
                let text = format!(
                    "apiVersion: {API}\nkind: GatewayClass\nmetadata: {{name: own}}\nspec: {{controllerName: {controller}}}\n"
                );
                ("class.yaml".to_owned(), text)
            }
            2 | 3 => {
                let class = self.pick(&["istio", "istio", "own"]);
                let listener = self.pick(&[
                    "port: 80, protocol: HTTP",
                    "port: 8080, protocol: HTTP, hostname: '*.example.com'",
                    "port: 9000, protocol: TCP",
                    "port: 80, protocol: UDP",
                    "port: 9443, protocol: TLS, tls: {mode: Passthrough}",
                    "port: 443, protocol: HTTPS, tls: {certificateRefs: [{name: s0}]}",
                ]);
                let spec = format!(
                    "{{gatewayClassName: {class}, addresses: [{{type: Hostname, value: s{}}}], listeners: [{{name: x, {listener}, allowedRoutes: {{namespaces: {{from: All}}}}}}]}}",
                    self.n
                );
                self.object(API, "Gateway", 'k', &spec)
            }
            _ => {
                let n = self.n;
                let parent = match self.random.below(2) {
                    0 => format!("{{name: k{n}, namespace: shop}}"),
                    _ => format!("{{group: '', kind: Service, name: s{n}, namespace: shop}}"),
                };
                let path = self.pick(&["/", "/a", "/b"]);
                let spec = format!(
                    "{{parentRefs: [{parent}], rules: [{{matches: [{{path: {{value: {path}}}}}], backendRefs: [{{name: s1, port: 80, weight: 3}}, {{name: s2, namespace: shop, port: 80}}]}}]}}"
                );
                self.object(API, "HTTPRoute", 'h', &spec)
            }
        }
    }

    fn service(&mut self) -> (String, String) {
        let ports = self.pick(&[
            "[{name: http, port: 80}]",
            "[{name: http, port: 80}, {name: tcp, port: 9000}]",
            "[{name: grpc-web, port: 80}]",
            "[{name: any, port: 7000}, {name: grpc, port: 80}]",
            "[{name: tls, port: 443}]",
            "[{name: http, port: 80}, {name: dns, port: 80, protocol: UDP}]",
            "[{name: http, port: 80, targetPort: 8080}, {name: http-b, port: 81, targetPort: http}]",
        ]);
        let own = format!("10.96.0.{}", self.n);
        let address = self.pick(&["None", &own, "10.96.0.1"]);
        let target = self.pick(&HOSTS).trim_start_matches("*.");
        let spec = if self.random.once_in(6) {
            format!("{{type: ExternalName, externalName: {target}}}")
        } else {
            format!("{{clusterIP: {address}, selector: {{app: {}}}, ports: {ports}}}", self.app)
        };
        self.object("v1", "Service", 's', &spec)
    }

    fn service_entry(&mut self) -> (String, String) {
        let ports = self.pick(&[
            "[{number: 80, name: http, protocol: HTTP}]",
            "[{number: 80, name: web, protocol: GRPC-WEB}]",
            "[{number: 443, name: tls, protocol: TLS}]",
            "[{number: 9000, name: tcp, protocol: TCP}, {number: 80, name: http, protocol: HTTP}]",
            "[{number: 7000, name: any}]",
            "[{number: 443, name: tls, protocol: TLS, targetPort: 8443}, {number: 9000, name: tcp, protocol: TCP, targetPort: 9001}]",
        ]);
        let addresses = self.pick(&["", "", "addresses: [192.0.2.0/28], ", "addresses: [10.97.0.9, 10.98.0.0/24], "]);
        let own = format!("e{}.example.com", self.n);
        let host = self.pick(&[&own, "*.example.com", "*.wild.test"]);
        let (resolution, endpoints) = match self.random.below(5) {
            3 => ("STATIC", "endpoints: [{address: 10.0.0.1, serviceAccount: vm}]"),
            4 => ("NONE", "workloadSelector: {labels: {app: b}}"),
            0 => ("STATIC", "endpoints: [{address: 192.0.2.1}, {address: 192.0.2.2, locality: north/a}]"),
            1 if !host.starts_with('*') => ("DNS", "endpoints: []"),
            1 if !ports.contains("TCP") => ("DYNAMIC_DNS", ""),
            _ => ("NONE", ""),
        };
        let visible = self.pick(&["", "exportTo: [\".\"], "]);
        // Several hosts share their addresses.
        let second = self.pick(&["", "", ", b.multi.test"]);
        let second = if endpoints.starts_with("workloadSelector") || resolution == "DYNAMIC_DNS" { "" } else { second };
        let spec = format!(
            "{{hosts: [\"{host}\"{second}], {visible}{addresses}ports: {ports}, resolution: {resolution}, {endpoints}}}"
        );
        self.object(NETWORKING, "ServiceEntry", 'e', &spec)
    }

    /// Of those that the proxies of the test run in, or of none.
    fn pod(&mut self) -> (String, String) {
        let Self { namespace, app, .. } = *self;
        let pod = self.pick(&["a-0", "b-0", "c-0", "z-0"]);
        let labels = self.pick(&[
            "",
            ", version: v1",
            ", topology.kubernetes.io/region: north",
            ", security.istio.io/tlsMode: disabled",
        ]);
        let account = self.pick(&["default", "default", "other"]);
        let ready = self.pick(&["True", "False"]);
        let address = match (pod, namespace) {
            ("a-0", "shop") => "10.0.0.1",
            ("b-0", "shop") => "10.0.0.2",
            ("c-0", "shop") => "10.0.0.3",
            ("a-0", "other") => "10.0.0.4",
            _ => "10.0.0.99",
        };
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {pod}, namespace: {namespace}, labels: {{app: {app}{labels}}}}}\n\
             spec: {{serviceAccountName: {account}, containers: [{{name: {app}}}]}}\n\
             status: {{podIP: {address}, conditions: [{{type: Ready, status: \"{ready}\"}}]}}\n"
        );
        (format!("{namespace}-pod-{pod}.yaml"), text)
    }

    fn ingress(&mut self) -> (String, String) {
        const API: &str = "networking.k8s.io/v1";
        if self.random.once_in(3) {
            let text = format!(
                "apiVersion: {API}\nkind: IngressClass\nmetadata: {{name: istio}}\n\
                 spec: {{controller: istio.io/ingress-controller}}\n"
            );
            return ("ingress-class.yaml".to_owned(), text);
        }
        let host = self.pick(&["host: e0.example.com, ", "host: \"*.example.com\", ", ""]);
        let path = self.pick(&[
            "path: /a, pathType: Prefix",
            "path: /a/b, pathType: Exact",
            "path: /c/*, pathType: ImplementationSpecific",
        ]);
        let port = self.pick(&["number: 80", "number: 80", "name: http"]);
        let backend = format!("{{service: {{name: s{}, port: {{{port}}}}}}}", self.n);
        let rule = format!("{{{host}http: {{paths: [{{{path}, backend: {backend}}}]}}}}");
        let tls = self.pick(&["", ", tls: [{hosts: [e0.example.com], secretName: k0}]", ", tls: [{secretName: k1}]"]);
        self.object(API, "Ingress", 'i', &format!("{{ingressClassName: istio, rules: [{rule}]{tls}}}"))
    }

    fn workload_entry(&mut self) -> (String, String) {
        let address = self.pick(&["10.0.0.1", "10.0.0.2", "10.5.0.1"]);
        let rest = self.pick(&["", ", serviceAccount: vm", ", ports: {http: 8081, tcp: 9001}", ", weight: 3"]);
        if self.random.once_in(4) {
            let spec = format!("{{template: {{labels: {{app: {}}}{rest}}}}}", self.app);
            return self.object(NETWORKING, "WorkloadGroup", 'g', &spec);
        }
        let spec = format!("{{address: {address}, labels: {{app: {}}}{rest}}}", self.app);
        self.object(NETWORKING, "WorkloadEntry", 'w', &spec)
    }

    /// What says where Services run, and what runs there.
    fn of_the_cluster(&mut self) -> (String, String) {
        let Self { n, namespace, app, .. } = *self;
        let meta = format!("metadata: {{name: k{n}, namespace: {namespace}");
        let kind = self.pick(&[
            "EndpointSlice",
            "Deployment",
            "StatefulSet",
            "DaemonSet",
            "Namespace",
            "ServiceAccount",
            "Secret",
        ]);
        let text = match kind {
            "EndpointSlice" => format!(
                "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
                 {meta}, labels: {{kubernetes.io/service-name: s{n}}}}}\naddressType: IPv4\n\
                 ports: [{{name: http, port: 8080}}]\nendpoints: [{{addresses: [10.0.2.{n}]}}]\n"
            ),
            "Deployment" | "StatefulSet" | "DaemonSet" => format!(
                "apiVersion: apps/v1\nkind: {kind}\n{meta}}}\nspec: {{selector: {{matchLabels: {{app: {app}}}}}, \
                 template: {{metadata: {{labels: {{app: {app}}}}}, spec: {{containers: [{{name: main}}]}}}}}}\n"
            ),
            "Namespace" => {
                format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{n: '{n}'}}}}\n")
            }
            _ => format!("apiVersion: v1\nkind: {kind}\n{meta}}}\n"),
        };
        (format!("{namespace}-{kind}-{n}.yaml"), text)
    }

    fn virtual_service(&mut self) -> (String, String) {
        let (host, other) = (self.pick(&HOSTS), self.pick(&DESTINATIONS));
        let condition = self.pick(&[
            "",
            "match: [{headers: {x: {exact: y}}}], ",
            "match: [{sourceLabels: {app: a}}], ",
            "match: [{sourceNamespace: other}], ",
            "match: [{port: 80, uri: {prefix: /a}}, {gateways: [istio-system/g0], method: {exact: POST}}], ",
        ]);
        let gateways =
            self.pick(&["", "gateways: [istio-system/g0], ", "gateways: [mesh, istio-system/g0, shop/g1], "]);
        let delegate = self.random.below(NAMES);
        if self.random.once_in(6) {
            return self.at_gateways_only();
        }
        let routes = match self.random.below(8) {
            0 => format!(
                "http: [{{{condition}delegate: {{name: v{delegate}}}}}, {{route: [{{destination: {{host: {other}}}}}]}}]"
            ),
            // A delegate, which belongs to no host.
            1 => {
                let spec = format!("{{http: [{{{condition}route: [{{destination: {{host: {other}}}}}]}}]}}");
                return self.object(NETWORKING, "VirtualService", 'v', &spec);
            }
            2 => format!(
                "http: [{{route: [{{destination: {{host: {other}}}}}], mirror: {{host: \"{host}\"}}, fault: {{delay: {{fixedDelay: 1s, percent: 1}}}}, corsPolicy: {{allowOrigins: [{{exact: a}}]}}}}]"
            ),
            3 | 4 => format!(
                "http: [{{{condition}route: [{{destination: {{host: {other}}}}}]}}, \
                 {{route: [{{destination: {{host: {other}, subset: v1}}}}], timeout: {}s}}]",
                self.n
            ),
            5 => format!(
                "tcp: [{{match: [{{destinationSubnets: [10.96.0.0/24]}}], route: [{{destination: {{host: {other}, port: {{number: 9000}}}}}}]}}]"
            ),
            6 => format!("tcp: [{{route: [{{destination: {{host: {other}, port: {{number: 9000}}}}}}]}}]"),
            _ => format!(
                "tls: [{{match: [{{sniHosts: [\"{host}\"]}}], route: [{{destination: {{host: {other}, port: {{number: 443}}}}}}]}}]"
            ),
        };
        let visible = self.pick(&["", "", "exportTo: [\".\"], ", "exportTo: [shop], "]);
        let second = self.pick(&["", "", ", x.example.com"]);
        let second = if host == "x.example.com" { "" } else { second };
        let spec = format!("{{hosts: [\"{host}\"{second}], {visible}{gateways}{routes}}}");
        self.object(NETWORKING, "VirtualService", 'v', &spec)
    }

    /// Routes for all hosts, or for several.
    fn at_gateways_only(&mut self) -> (String, String) {
        let to = format!("route: [{{destination: {{host: {}, port: {{number: 80}}}}}}]", self.pick(&DESTINATIONS));
        let hosts = self.pick(&["\"*\"", "\"*.example.com\", e0.example.com", "\"*\", x.example.com"]);
        let names = if hosts.starts_with("\"*\"") {
            self.pick(&["\"*\"", "\"*\", y.test", "y.test, z.test"])
        } else {
            self.pick(&["\"*.example.com\"", "e0.example.com, e1.example.com"])
        };
        let routes = match self.random.below(3) {
            0 => format!("http: [{{match: [{{port: 80}}, {{uri: {{exact: /b}}}}], {to}}}]"),
            1 => format!("tls: [{{match: [{{port: 9443, sniHosts: [{names}]}}], {to}}}]"),
            _ => format!("tls: [{{match: [{{sniHosts: [{names}]}}], {to}}}], http: [{{{to}}}]"),
        };
        let spec = format!("{{hosts: [{hosts}], gateways: [istio-system/g0, shop/g1, istio-system/g2], {routes}}}");
        self.object(NETWORKING, "VirtualService", 'v', &spec)
    }

    fn destination_rule(&mut self) -> (String, String) {
        let host = self.pick(&HOSTS);
        let policy = self.pick(&[
            "loadBalancer: {simple: ROUND_ROBIN}",
            "tls: {mode: ISTIO_MUTUAL}",
            "loadBalancer: {consistentHash: {httpHeaderName: x}}",
            "connectionPool: {tcp: {maxConnections: 5}}, tunnel: {targetHost: a.example.com, targetPort: 1}",
            "loadBalancer: {localityLbSetting: {enabled: true, distribute: [{from: \"north/*\", to: {\"north/*\": 100}}]}}",
        ]);
        let selector = self.pick(&["", "", "workloadSelector: {matchLabels: {app: a}}, "]);
        let subsets = self.pick(&[
            "",
            ", subsets: [{name: v1, labels: {version: v1}}]",
            ", subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {tls: {mode: SIMPLE}, portLevelSettings: [{port: {number: 80}, loadBalancer: {simple: RANDOM}}]}}, {name: v2}]",
        ]);
        let port = self.pick(&[
            "",
            ", portLevelSettings: [{port: {number: 80}, tls: {mode: DISABLE}}, {port: {number: 443}, loadBalancer: {simple: PASSTHROUGH}}]",
        ]);
        let visible =
            if selector.is_empty() { self.pick(&["", "", "exportTo: [\".\"], ", "exportTo: [other], "]) } else { "" };
        let spec = format!("{{host: \"{host}\", {visible}{selector}trafficPolicy: {{{policy}{port}}}{subsets}}}");
        self.object(NETWORKING, "DestinationRule", 'd', &spec)
    }

    fn gateway(&mut self) -> (String, String) {
        let selector = self.pick(&["{istio: ingressgateway}", "{istio: inner}"]);
        let servers = self.pick(&[
            "[{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]",
            "[{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*.example.com\"], tls: {httpsRedirect: true}}]",
            "[{port: {number: 9000, name: tcp, protocol: TCP}, hosts: [\"*\"]}, \
             {port: {number: 8088, name: http-b, protocol: HTTP}, hosts: [e0.example.com]}]",
            "[{port: {number: 9443, name: tls, protocol: TLS}, hosts: [\"*.example.com\"], tls: {mode: PASSTHROUGH}}]",
            "[{port: {number: 15443, name: tls, protocol: TLS}, hosts: [\"*\"], tls: {mode: AUTO_PASSTHROUGH}}]",
            "[{port: {number: 8443, name: https, protocol: HTTPS}, hosts: [e0.example.com], \
             tls: {mode: SIMPLE, credentialName: k0}}, \
             {port: {number: 8443, name: https-b, protocol: HTTPS}, hosts: [e1.example.com], \
             tls: {mode: MUTUAL, credentialNames: [k1, k2]}}]",
            "[{port: {number: 9443, name: tls, protocol: TLS}, hosts: [e0.example.com], tls: {mode: PASSTHROUGH}}, \
             {port: {number: 9443, name: mesh, protocol: TLS}, hosts: [\"shop/*\"], tls: {mode: AUTO_PASSTHROUGH}}]",
            "[{port: {number: 80, name: http, protocol: HTTP}, hosts: [e0.example.com, \"*.example.com\", shop/x.test]}, \
             {port: {number: 81, name: http-b, protocol: HTTP}, hosts: [e0.example.com, \"*\"]}]",
            "[{port: {number: 9443, name: tls, protocol: TLS}, hosts: [\"*\"], tls: {mode: PASSTHROUGH}}]",
            "[{port: {number: 9443, name: https, protocol: HTTPS}, hosts: [\"*\"], tls: {mode: PASSTHROUGH}}]",
        ]);
        self.object(NETWORKING, "Gateway", 'g', &format!("{{selector: {selector}, servers: {servers}}}"))
    }

    /// What it holds is one of four texts, good ones and bad ones.
    fn secret(&mut self) -> (String, String) {
        let (ca, hosts) = &*SECRETS;
        let suffix = self.pick(&["", "-cacert"]);
        let name = format!("k{}{suffix}", self.n);
        let namespace = self.namespace;
        let text = match self.random.below(4) {
            0 => objects::secret(namespace, &name, &[]),
            1 => objects::secret(namespace, &name, &[("cacert", &ca.root_pem())]),
            _ => {
                let identity = &hosts[self.random.below(hosts.len())];
                let key = &hosts[self.random.below(hosts.len())].key_pem;
                objects::secret(namespace, &name, &[("tls.crt", &identity.cert_pem), ("tls.key", key)])
            }
        };
        (format!("secret-{namespace}-{name}.yaml"), text)
    }

    fn peer_authentication(&mut self) -> (String, String) {
        let selector = self.pick(&["", "selector: {matchLabels: {app: a}}, "]);
        let mode = self.pick(&["STRICT", "DISABLE", "PERMISSIVE"]);
        self.object(SECURITY, "PeerAuthentication", 'p', &format!("{{{selector}mtls: {{mode: {mode}}}}}"))
    }

    fn sidecar(&mut self) -> (String, String) {
        let selector =
            self.pick(&["", "workloadSelector: {labels: {app: a}}, ", "workloadSelector: {labels: {app: c}}, "]);
        let policy = self.pick(&[
            "",
            "outboundTrafficPolicy: {mode: REGISTRY_ONLY}, ",
            "outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: e0.example.com, port: {number: 80}}}, ",
        ]);
        let first = self.pick(&[
            "",
            "{port: {number: 80, protocol: HTTP}, bind: 10.97.0.1, hosts: [\"*/*\"]}, ",
            "{port: {number: 80, protocol: HTTP}, captureMode: NONE, hosts: [\"*/*\"]}, ",
            "{port: {number: 80, protocol: TCP}, hosts: [\"./*\"]}, ",
            "{port: {number: 9000, protocol: HTTP}, hosts: [\"other/*\", \"shop/s1.shop.svc.cluster.local\"]}, ",
        ]);
        let rest = self.pick(&["./*", "*/*", "~/*", "*/*.example.com", "shop/s0.shop.svc.cluster.local"]);
        let ingress = self.pick(&[
            "",
            "ingress: [{port: {number: 80, protocol: HTTP}, defaultEndpoint: \"127.0.0.1:8080\"}], ",
            "ingress: [{port: {number: 90, protocol: TCP}, connectionPool: {tcp: {maxConnections: 3}}}], ",
            "ingress: [{port: {number: 90, protocol: TCP}, captureMode: NONE, defaultEndpoint: \"127.0.0.1:91\"}], ",
            "ingress: [{port: {number: 80, protocol: HTTPS}, defaultEndpoint: \"127.0.0.1:91\", tls: {mode: SIMPLE, serverCertificate: /c, privateKey: /k}}], ",
        ]);
        let spec = format!("{{{selector}{policy}{ingress}egress: [{first}{{hosts: [\"{rest}\"]}}]}}");
        self.object(NETWORKING, "Sidecar", 'c', &spec)
    }

    fn authorization_policy(&mut self) -> (String, String) {
        let action = self.pick(&["ALLOW", "DENY", "AUDIT", "CUSTOM, provider: {name: nobody}"]);
        let selector = self.pick(&["", "selector: {matchLabels: {app: b}}, "]);
        let rules = "[{from: [{source: {namespaces: [shop]}}]}]";
        self.object(SECURITY, "AuthorizationPolicy", 'z', &format!("{{{selector}action: {action}, rules: {rules}}}"))
    }

    fn request_authentication(&mut self) -> (String, String) {
        let selector = self.pick(&["", "selector: {matchLabels: {app: a}}, "]);
        let places = self.pick(&["", ", fromHeaders: [{name: x-token}]", ", fromCookies: [t]"]);
        let spec = format!("{{{selector}jwtRules: [{{issuer: me{places}}}]}}");
        self.object(SECURITY, "RequestAuthentication", 'q', &spec)
    }

    fn proxy_config(&mut self) -> (String, String) {
        let selector = self.pick(&["", "selector: {matchLabels: {app: a}}, "]);
        let capture = self.pick(&["true", "false"]);
        let spec = format!("{{{selector}environmentVariables: {{ISTIO_META_DNS_CAPTURE: '{capture}'}}}}");
        self.object("networking.istio.io/v1beta1", "ProxyConfig", 'c', &spec)
    }

    fn telemetry(&mut self) -> (String, String) {
        let selector = self.pick(&["", "", "selector: {matchLabels: {app: a}}, "]);
        let mode = self.pick(&["CLIENT", "SERVER", "CLIENT_AND_SERVER"]);
        let disabled = self.pick(&["true", "false"]);
        let spec = format!(
            "{{{selector}tracing: [{{match: {{mode: {mode}}}, providers: [{{name: z}}]}}], \
             accessLogging: [{{match: {{mode: {mode}}}, providers: [{{name: envoy}}], disabled: {disabled}}}]}}"
        );
        self.object("telemetry.istio.io/v1", "Telemetry", 'm', &spec)
    }

    fn mesh_config(&mut self) -> (String, String) {
        let policy = self.pick(&["ALLOW_ANY", "REGISTRY_ONLY", "ALLOW_ANY_DYNAMIC_DNS"]);
        let more = self.pick(&[
            "",
            "pathNormalization: {normalization: MERGE_SLASHES}",
            "defaultServiceExportTo: ['.']",
            "discoverySelectors: [{matchLabels: {kubernetes.io/metadata.name: shop}}]",
            "serviceEntryVisibility: {defaultVisibility: NAMESPACE, applyToSidecars: true}",
            "defaultConfig: {proxyHeaders: {server: {value: mine}}}",
            "tcpKeepalive: {time: 5s}",
            "proxyHttpPort: 15080",
            "enableTracing: false",
            "enableEnvoyAccessLogService: true",
            "defaultProviders: {tracing: [t]}\n    extensionProviders: [{name: t, zipkin: {service: e0.example.com, port: 80}}]",
            "defaultProviders: {accessLogging: [l]}\n    extensionProviders: [{name: l, envoyHttpAls: {service: e0.example.com, port: 80}}]",
            "defaultConfig: {tracing: {sampling: 50, customTags: {a: {literal: {value: b}}}}}",
            "outboundClusterStatName: '%SERVICE%_%SERVICE_PORT%'",
            "inboundClusterStatName: '%SERVICE_FQDN%_%TARGET_PORT%'",
        ]);
        let policy = match policy {
            "ALLOW_ANY" => {
                self.pick(&["ALLOW_ANY", "ALLOW_ANY\n      egressProxy: {host: e0.example.com, port: {number: 80}}"])
            }
            "ALLOW_ANY_DYNAMIC_DNS" => {
                self.pick(&["ALLOW_ANY_DYNAMIC_DNS", "ALLOW_ANY_DYNAMIC_DNS\n      tls: {mode: SIMPLE}"])
            }
            other => other,
        };
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\n\
             data:\n  mesh: |\n    outboundTrafficPolicy:\n      mode: {policy}\n    {more}\n"
        );
        ("mesh.yaml".to_owned(), text)
    }
}

/// A kind that is never written is not compared with what is made from nothing.
#[test]
fn every_kind_is_written() {
    let mut random = Random::new(0);
    let mut written = BTreeSet::new();
    for _ in 0..2_000 {
        let (name, text) = edit(&mut random);
        let (objects, found) = evenkeel_api::load(&[(name.as_str().into(), text.as_str().into())]);
        assert!(!found.has_errors(), "{found}\n{text}");
        written.extend(objects.iter().map(|object| object.resource.kind()));
    }
    let missing: Vec<_> = Kind::ALL.iter().filter(|kind| kind.is_supported() && !written.contains(*kind)).collect();
    assert!(missing.is_empty(), "`edit` writes no {missing:?}");
}
