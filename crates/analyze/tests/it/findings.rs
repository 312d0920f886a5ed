//! Each code: a mesh that has it, at its line, and one that does not.

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_analyze::{Finding, Suppression, analyze};
use evenkeel_model::MeshConfig;

fn findings(text: &str, suppressed: &[&str]) -> Vec<Finding> {
    let file: Arc<str> = "mesh.yaml".into();
    let (objects, read) = evenkeel_api::load(&[(file, text.into())]);
    let suppressed: Vec<Suppression> = suppressed.iter().map(|text| text.parse().expect("a suppression")).collect();
    analyze(&objects, &MeshConfig::default(), read, &suppressed)
}

/// `LEVEL CODE:LINE`, of findings with an Istio code.
fn codes(text: &str) -> Vec<String> {
    let with_code = |finding: &Finding| {
        Some(format!("{} {}:{}", finding.diagnostic.severity, finding.istio?.code, finding.diagnostic.span.line))
    };
    findings(text, &[]).iter().filter_map(with_code).collect()
}

fn check(text: &str, expected: &[&str]) {
    assert_eq!(codes(text), expected, "{text}\n{:#?}", findings(text, &[]));
}

const APP: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web}]}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
";

/// A document of Istio's after the application.
fn istio(kind: &str, name: &str, spec: &str) -> String {
    let group = if kind == "PeerAuthentication" { "security" } else { "networking" };
    format!(
        "{APP}apiVersion: {group}.istio.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop}}\nspec: {spec}\n"
    )
}

#[test]
fn a_mesh_without_mistakes_has_no_findings() {
    check(APP, &[]);
    check(&istio("VirtualService", "web", "{hosts: [web], http: [{route: [{destination: {host: web}}]}]}"), &[]);
}

#[test]
fn references_lead_somewhere() {
    check(
        &istio("VirtualService", "web", "{hosts: [web], http: [{route: [{destination: {host: nowhere}}]}]}"),
        &["error IST0101:14"],
    );
    check(
        &istio("VirtualService", "web", "{hosts: [web], http: [{route: [{destination: {host: web, subset: v9}}]}]}"),
        &["error IST0101:14"],
    );
    check(
        &istio(
            "VirtualService",
            "web",
            "{hosts: [web], gateways: [nowhere], http: [{route: [{destination: {host: web}}]}]}",
        ),
        &["error IST0101:14"],
    );
    check(&istio("DestinationRule", "web", "{host: nowhere}"), &["warning IST0174:14"]);
    check(
        &istio("DestinationRule", "web", "{host: web, subsets: [{name: v1, labels: {version: v1}}]}"),
        &["error IST0173:14"],
    );
}

#[test]
fn schemas_are_held() {
    check(
        &istio("VirtualService", "web", "{hosts: [web], http: [{route: [{destination: {host: web}}]}], htp: []}"),
        &["error IST0106:14"],
    );
    check(
        &istio(
            "VirtualService",
            "web",
            "{hosts: [web], http: [{match: [{uri: {regex: '('}}], route: [{destination: {host: web}}]}]}",
        ),
        &["error IST0122:14"],
    );
}

#[test]
fn rules_have_effect() {
    let rule = |first: &str, second: &str| {
        format!(
            "{{hosts: [web], http: [{{{first}route: [{{destination: {{host: web}}}}]}}, {{{second}route: [{{destination: {{host: web}}}}]}}]}}"
        )
    };
    check(&istio("VirtualService", "web", &rule("", "match: [{uri: {prefix: /a}}], ")), &["warning IST0130:14"]);
    check(
        &istio("VirtualService", "web", &rule("match: [{uri: {prefix: /a}}], ", "match: [{uri: {prefix: /a}}], ")),
        &["warning IST0130:14"],
    );
    check(
        &istio(
            "VirtualService",
            "web",
            &rule("match: [{uri: {prefix: /a}}], ", "match: [{uri: {prefix: /a}}, {uri: {prefix: /b}}], "),
        ),
        &["info IST0131:14"],
    );
    check(
        &istio("VirtualService", "web", &rule("match: [{uri: {prefix: /a}}], ", "match: [{uri: {prefix: /b}}], ")),
        &[],
    );
}

#[test]
fn rules_about_requests_on_tcp_ports_are_named_by_their_line() {
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec: {selector: {app: db}, ports: [{name: tcp, port: 5432}]}\n";
    let policy = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: db, namespace: shop}\nspec:\n  rules:\n    - from: [{source: {namespaces: [shop]}}]\n    - to: [{operation: {paths: [/a]}}]\n";
    let lines = |policy: &str| -> Vec<u32> {
        let found = findings(&format!("{policy}{service}"), &[]);
        let found = found.iter().map(|finding| &finding.diagnostic).filter(|found| found.code == "http-on-tcp");
        found.map(|found| found.span.line).collect()
    };
    assert_eq!(lines(policy), [7]);
    assert_eq!(lines(&policy.replace("{paths: [/a]}", "{ports: ['80']}")), [0; 0]);
}

#[test]
fn mutual_tls_is_agreed_on() {
    let strict = format!(
        "{}---\napiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: all, namespace: shop}}\nspec: {{mtls: {{mode: STRICT}}}}\n",
        istio("DestinationRule", "web", "{host: web, trafficPolicy: {tls: {mode: DISABLE}}}")
    );
    // Endpoints are those of Pods.
    let pod = "---\napiVersion: v1\nkind: Pod\nmetadata: {name: web-0, namespace: shop, labels: {app: web}}\nspec: {containers: [{name: web}]}\nstatus: {podIP: 10.0.0.1, phase: Running, conditions: [{type: Ready, status: 'True'}]}\n";
    check(&format!("{strict}{pod}"), &["error IST0113:13"]);
    check(&format!("{}{pod}", strict.replace("STRICT", "PERMISSIVE")), &[]);
}

#[test]
fn ports_lead_where_a_program_listens_and_speak_its_protocol() {
    let service = |ports: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: db, namespace: shop}}\nspec: {{selector: {{app: db}}, ports: [{ports}]}}\n"
        )
    };
    let workload = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: db, namespace: shop}\nspec: {selector: {matchLabels: {app: db}}, \
                    template: {metadata: {labels: {app: db}}, spec: {containers: [{name: db, ports: [{containerPort: 8080, name: web}]}]}}}\n";
    let check = |ports: &str, expected: &[&str]| {
        let found = findings(&(service(ports) + workload), &[]);
        let codes = found.iter().map(|finding| finding.diagnostic.code);
        let told: BTreeSet<&str> = codes.filter(|code| ["target-port", "other-protocol"].contains(code)).collect();
        assert_eq!(told.into_iter().collect::<Vec<_>>(), expected, "{ports}");
    };
    check("{name: http, port: 80, targetPort: 8080}", &[]);
    check("{name: http, port: 80, targetPort: web}", &[]);
    check("{name: http, port: 80, targetPort: 8081}", &["target-port"]);
    check("{name: http, port: 80}", &["target-port"]);
    check("{name: http, port: 80, targetPort: nosuch}", &["target-port"]);
    check("{name: http-redis, port: 6379, targetPort: 8080}", &[]);
    check("{name: http-redis, port: 6379}", &["other-protocol", "target-port"]);
    check("{name: tcp-redis, port: 6379}", &["target-port"]);
}

#[test]
fn services_and_workloads_are_as_istio_wants_them() {
    let check_after = |more: &str, expected: &[&str]| check(&format!("{APP}{more}"), expected);
    check_after(
        "apiVersion: v1\nkind: Service\nmetadata: {name: two, namespace: shop}\nspec: {selector: {app: web}, ports: [{name: web, port: 8080}]}\n",
        &["info IST0118:14"],
    );
    check_after(
        "apiVersion: v1\nkind: Service\nmetadata: {name: two, namespace: shop}\nspec: {selector: {app: web}, ports: [{name: http, port: 81, targetPort: 80}]}\n",
        &["warning IST0137:14"],
    );
    check_after(
        "apiVersion: v1\nkind: Service\nmetadata: {name: two, namespace: shop}\nspec: {type: ExternalName, externalName: a.example.com, ports: [{name: tcp, port: 81}]}\n",
        &["warning IST0150:14"],
    );
    check_after(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio-injection: enabled, istio.io/rev: x}}\n",
        &["warning IST0123:13"],
    );
    check(&APP.replace("containers:", "securityContext: {runAsUser: 1337}, containers:"), &["warning IST0144:4"]);
    let of_container = "containers: [{name: web, securityContext: {runAsUser: 1337}}]";
    check(&APP.replace("containers: [{name: web}]", of_container), &["warning IST0144:4"]);
    let of_other = "securityContext: {runAsUser: 1337}, containers: [{name: web, securityContext: {runAsUser: 7}}]";
    check(&APP.replace("containers: [{name: web}]", of_other), &[]);
    // Proxies run as this user, and so does the control plane.
    let proxy = "securityContext: {runAsUser: 1337}, containers: [{name: istio-proxy}]";
    check(&APP.replace("containers: [{name: web}]", proxy), &[]);
    let istiod = APP.replace("containers: [{name: web}]", of_container).replace("app: web", "app: istiod");
    check(&istiod.replace("namespace: shop", "namespace: istio-system"), &[]);
    check(&istiod, &["warning IST0144:4"]);
    check(
        &istio(
            "ServiceEntry",
            "out",
            "{hosts: [a.example.com], resolution: NONE, ports: [{number: 9000, name: tcp, protocol: TCP}]}",
        ),
        &["warning IST0134:14"],
    );
}

#[test]
fn a_workload_has_one_sidecar() {
    let two = format!(
        "{}---\napiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {{name: b, namespace: shop}}\nspec: {{workloadSelector: {{labels: {{app: web}}}}, egress: [{{hosts: ['*/*']}}]}}\n",
        istio("Sidecar", "a", "{workloadSelector: {labels: {app: web, x: y}}, egress: [{hosts: ['*/*']}]}")
    );
    check(
        &two.replace("{app: web}}, spec: {containers", "{app: web, x: y}}, spec: {containers"),
        &["error IST0110:18"],
    );
}

#[test]
fn gateways_are_reached() {
    let gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: NAME, namespace: shop}\nspec: {selector: {istio: gw}, servers: [{port: {number: PORT, name: https, protocol: HTTPS}, hosts: [NAME.example.com], tls: {mode: SIMPLE, serverCertificate: /a.pem, privateKey: /a.key}}]}\n";
    let of = |name: &str, port: &str| gateway.replace("NAME", name).replace("PORT", port);
    let proxy = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: gw, namespace: shop}\nspec: {selector: {matchLabels: {istio: gw}}, template: {metadata: {labels: {istio: gw}}, spec: {containers: [{name: x}]}}}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: gw, namespace: shop}\nspec: {selector: {istio: gw}, ports: [{name: https, port: 443}]}\n";
    check(&format!("{}{proxy}", of("a", "443")), &[]);
    check(&format!("{}{proxy}", of("a", "444")), &["warning IST0162:4"]);
    check(&format!("{}---\n{}{proxy}", of("a", "443"), of("b", "443")), &["warning IST0138:9"]);
}

#[test]
fn subsets_split_calls_from_outside_too() {
    let text = "{hosts: [web], http: [{route: [{destination: {host: web, subset: v1}}]}]}\n---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: web, namespace: shop}\nspec: {host: web, subsets: [{name: v1, labels: {app: web}}]}\n---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: gw, namespace: shop}\nspec: {selector: {istio: ingressgateway}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: edge, namespace: shop}\nspec: {hosts: ['*'], gateways: [gw], http: [{route: [{destination: {host: web}}]}]}\n";
    let found = codes(&istio("VirtualService", "web", text));
    assert!(found.contains(&"warning IST0140:29".to_owned()), "{found:?}");
}

#[test]
fn findings_are_suppressed_by_annotation_and_by_flag() {
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: two, namespace: shop, annotations: {ANNOTATION}}\nspec: {selector: {app: web}, ports: [{name: web, port: 80}]}\n";
    let count = |annotation: &str, flags: &[&str]| {
        findings(&format!("{APP}{}", service.replace("ANNOTATION", annotation)), flags).len()
    };
    assert_eq!(count("a: b", &[]), 1);
    assert_eq!(count("galley.istio.io/analyze-suppress: 'IST0001, IST0118'", &[]), 0);
    assert_eq!(count("galley.istio.io/analyze-suppress: '*'", &[]), 0);
    assert_eq!(count("galley.istio.io/analyze-suppress: IST0001", &[]), 1);
    assert_eq!(count("a: b", &["IST0118"]), 0);
    assert_eq!(count("a: b", &["port-name"]), 0);
    assert_eq!(count("a: b", &["IST0118=Service two.shop"]), 0);
    assert_eq!(count("a: b", &["*=Service *.shop"]), 0);
    assert_eq!(count("a: b", &["IST0118=Service other.shop"]), 1);
}

#[test]
fn programs_can_read_them() {
    let found = findings(
        &istio("VirtualService", "web", "{hosts: [web], http: [{route: [{destination: {host: nowhere}}]}]}"),
        &[],
    );
    let json = evenkeel_analyze::report::json(&found);
    assert_eq!(json[0]["code"], "IST0101");
    assert_eq!(json[0]["level"], "Error");
    assert_eq!(json[0]["origin"], "VirtualService shop/web");
    assert_eq!(json[0]["location"]["line"], 14);
    let sarif = evenkeel_analyze::report::sarif(&found);
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!((&result["ruleId"], &result["level"]), (&"IST0101".into(), &"error".into()));
    assert_eq!(result["locations"][0]["physicalLocation"]["region"]["startLine"], 14);
    assert_eq!(sarif["runs"][0]["tool"]["driver"]["rules"][0]["id"], "IST0101");
}

/// The public key of RFC 7515, appendix A.3.
const KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

#[test]
fn routes_by_claims_need_tokens() {
    let gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\n\
        spec: {selector: {app: web}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}\n---\n";
    let route = |gateways: &str| {
        let spec = format!(
            "{{hosts: [web.test], {gateways}http: [{{match: [{{headers: {{'@request.auth.claims.team': {{exact: a}}}}}}], \
             route: [{{destination: {{host: web}}}}]}}]}}"
        );
        istio("VirtualService", "web", &spec) + "---\n" + gateway
    };
    let tokens = |namespace: &str, selector: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: jwt, namespace: {namespace}}}\n\
             spec: {{{selector}jwtRules: [{{issuer: me, jwks: '{KEYS}'}}]}}\n"
        )
    };
    let at_edge = route("gateways: [edge], ");
    let missing = ["error IST0149:14"];
    check(&at_edge, &missing);
    check(&(at_edge.clone() + &tokens("shop", "")), &[]);
    check(&(at_edge.clone() + &tokens("istio-system", "")), &[]);
    check(&(at_edge.clone() + &tokens("shop", "selector: {matchLabels: {app: web}}, ")), &[]);
    check(&(at_edge + &tokens("other", "")), &missing);
    check(&(route("") + &tokens("shop", "")), &missing);
}

/// A gRPC program that is an xDS client itself has no filter for tokens.
#[test]
fn grpc_programs_without_a_proxy_cannot_verify_tokens() {
    let program = |annotations: &str, env: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web, namespace: shop}}\nspec: {{selector: {{matchLabels: {{app: web}}}}, \
             template: {{metadata: {{labels: {{app: web}}, annotations: {{{annotations}}}}}, spec: {{containers: [{{name: web, env: [{env}]}}]}}}}}}\n---\n"
        )
    };
    let tokens = |namespace: &str, selector: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {{name: jwt, namespace: {namespace}}}\n\
             spec: {{{selector}jwtRules: [{{issuer: me, jwks: '{KEYS}'}}]}}\n"
        )
    };
    let agent = "inject.istio.io/templates: grpc-agent";
    let bootstrap = "{name: GRPC_XDS_BOOTSTRAP, value: /etc/b.json}";
    let no_sidecar = "sidecar.istio.io/inject: 'false'";
    let own = tokens("shop", "selector: {matchLabels: {app: web}}, ");
    let about_it = |text: &str| {
        let found = findings(text, &[]);
        found.iter().filter(|finding| finding.diagnostic.code == "grpc-without-tokens").count()
    };
    for (text, expected) in [
        (program(agent, "") + &own, 1),
        (program("inject.istio.io/templates: 'grpc-simple'", "") + &own, 1),
        (program(agent, "") + &tokens("istio-system", ""), 1),
        (program(no_sidecar, bootstrap) + &own, 1),
        (program(agent, "") + &tokens("shop", "selector: {matchLabels: {app: other}}, "), 0),
        (program(agent, "") + &tokens("other", ""), 0),
        (program("", "") + &own, 0),
        // It has a sidecar, too.
        (program("", bootstrap) + &own, 0),
        (program(no_sidecar, "") + &own, 0),
    ] {
        assert_eq!(about_it(&text), expected, "{text}");
    }
}

#[test]
fn gateways_that_no_proxy_serves_are_found() {
    let gateway = |selector: &str| {
        let spec = "servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]";
        istio("Gateway", "edge", &format!("{{selector: {{{selector}}}, {spec}}}"))
    };
    check(&gateway("istio: edge"), &["error IST0101:13"]);
    check(&gateway("app: web"), &[]);
    // Those of Istio's installation are run if the files have none.
    check(&gateway("istio: ingressgateway"), &[]);
    check(&gateway("app: istio-egressgateway, istio: egressgateway"), &[]);
    check(&gateway("app: istio-egressgateway, istio: ingressgateway"), &["error IST0101:13"]);
    // Files without workloads are a part of a mesh.
    let (_, alone) =
        gateway("istio: edge").rsplit_once("---\n").map(|(a, b)| (a.to_owned(), b.to_owned())).expect("parts");
    check(&alone, &[]);
}

#[test]
fn what_grpc_programs_pass_over_is_told() {
    let program = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: go, namespace: shop}\nspec:\n  selector: {matchLabels: {app: go}}\n  \
                   template:\n    metadata: {labels: {app: go}, annotations: {inject.istio.io/templates: grpc-agent}}\n    \
                   spec: {containers: [{name: go}]}\n---\n";
    let told = |document: &str| -> Vec<String> {
        let found = findings(document, &[]).into_iter().map(|finding| finding.diagnostic);
        let found = found.filter(|finding| finding.code == "grpc-passes-over");
        found
            .map(|finding| {
                format!("{} {}", finding.severity, finding.message.split("pass over ").nth(1).unwrap_or_default())
            })
            .collect()
    };
    let check = |kind: &str, spec: &str, expected: &[&str]| {
        let rule = istio(kind, "web", spec);
        assert_eq!(told(&format!("{program}{rule}")), expected, "{spec}");
        // Sidecars have all of it.
        assert_eq!(told(&rule), [""; 0], "{spec}");
    };
    let rule = |policy: &str, expected: &[&str]| {
        check("DestinationRule", &format!("{{host: web, trafficPolicy: {{{policy}}}}}"), expected);
        check(
            "DestinationRule",
            &format!("{{host: web, subsets: [{{name: a, trafficPolicy: {{{policy}}}}}]}}"),
            expected,
        );
    };
    rule("tls: {mode: SIMPLE}", &["warning `tls`"]);
    rule("tls: {mode: ISTIO_MUTUAL}", &[]);
    rule("outlierDetection: {}, retryBudget: {}", &["info `outlierDetection`, `retryBudget`"]);
    rule("connectionPool: {http: {http2MaxRequests: 7}}", &[]);
    rule("connectionPool: {tcp: {maxConnections: 7}}", &["info `connectionPool`"]);
    let routes = |route: &str, expected: &[&str]| {
        check(
            "VirtualService",
            &format!("{{hosts: [web], http: [{{route: [{{destination: {{host: web}}}}], {route}}}]}}"),
            expected,
        );
    };
    routes("timeout: 3s", &[]);
    routes("mirror: {host: web}", &["info `mirror`"]);
    routes("rewrite: {uri: /x}, headers: {request: {remove: [a]}}", &["info `rewrite`, `headers`"]);
    routes("match: [{queryParams: {a: {exact: b}}}]", &["info `match.queryParams`"]);
}

/// A mesh whose settings have this line, with an object of this kind in line 12.
fn with_providers(line: &str, kind: &str, spec: &str) -> String {
    let group = if kind == "Telemetry" { "telemetry" } else { "security" };
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |
    {line}
    extensionProviders:
    - {{name: trace, zipkin: {{service: lost.shop.svc.cluster.local, port: 9411}}}}
    - {{name: log, envoyOtelAls: {{service: lost.shop.svc.cluster.local, port: 4317}}}}
    - {{name: ask, envoyExtAuthzGrpc: {{service: lost.shop.svc.cluster.local, port: 9000}}}}
---
{{apiVersion: {group}.istio.io/v1, kind: {kind}, metadata: {{name: t, namespace: shop}}, spec:
  {spec}}}
"
    )
}

#[test]
fn providers_that_cannot_be_called_are_found_where_they_are_named() {
    let check = |line: &str, kind: &str, spec: &str, expected: &[&str]| {
        let text = with_providers(line, kind, spec);
        let all = findings(&text, &[]);
        let of_provider = |finding: &&Finding| {
            ["missing-service", "unsupported-provider", "unknown-provider"].contains(&finding.diagnostic.code)
        };
        let found = all.iter().filter(of_provider).map(|finding| {
            let Finding { diagnostic, .. } = finding;
            format!("{} {}:{}", diagnostic.code, diagnostic.span.file, diagnostic.span.line)
        });
        assert_eq!(found.collect::<Vec<_>>(), expected, "{text}\n{all:#?}");
    };
    let telemetry = |line: &str, spec: &str, expected: &[&str]| check(line, "Telemetry", spec, expected);
    telemetry("{}", "{accessLogging: [{disabled: true}]}", &[]);
    telemetry("", "{tracing: [{providers: [{name: trace}]}]}", &["missing-service mesh.yaml:13"]);
    telemetry("", "{tracing: [{providers: [{name: other}]}]}", &["unsupported-provider mesh.yaml:13"]);
    telemetry("", "{accessLogging: [{providers: [{name: log}]}]}", &["missing-service mesh.yaml:13"]);
    let of_mesh = "{accessLogging: [{disabled: true}]}";
    telemetry("defaultProviders: {tracing: [trace]}", of_mesh, &["missing-service mesh.yaml:8"]);
    telemetry("defaultProviders: {accessLogging: [log]}", of_mesh, &["missing-service mesh.yaml:9"]);
    telemetry("defaultProviders: {tracing: [other]}", of_mesh, &["unsupported-provider mesh.yaml:6"]);
    telemetry("defaultProviders: {accessLogging: [other]}", of_mesh, &["unsupported-provider mesh.yaml:6"]);
    telemetry("defaultProviders: {metrics: [other]}", of_mesh, &["unsupported-provider mesh.yaml:6"]);
    for provider in ["ask", "other", "trace"] {
        let spec = format!("{{action: CUSTOM, rules: [{{}}],\n  provider: {{name: {provider}}}}}");
        check("", "AuthorizationPolicy", &spec, &["unknown-provider mesh.yaml:14"]);
    }
}

#[test]
fn a_port_of_a_host_has_one_protocol() {
    let entry = |name: &str, namespace: &str, fields: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{hosts: [api.test], resolution: DNS{fields}}}\n---\n"
        )
    };
    let http = ", ports: [{number: 443, name: http, protocol: HTTP}]";
    let tls = ", ports: [{number: 443, name: tls, protocol: TLS}]";
    let conflicts = |text: &str| {
        let all = findings(text, &[]);
        all.iter().filter(|finding| finding.istio.is_some_and(|code| code.code == "IST0177")).count()
    };
    let private = ", exportTo: ['.']";
    assert_eq!(conflicts(&[entry("a", "shop", http), entry("b", "data", tls)].concat()), 2);
    assert_eq!(conflicts(&[entry("a", "shop", http), entry("b", "shop", http)].concat()), 0);
    assert_eq!(conflicts(&[entry("a", "shop", http), entry("b", "data", &format!("{tls}{private}"))].concat()), 2);
    let apart = [entry("a", "shop", &format!("{http}{private}")), entry("b", "data", &format!("{tls}{private}"))];
    assert_eq!(conflicts(&apart.concat()), 0, "no namespace sees both");
    let other_port = ", ports: [{number: 444, name: tls, protocol: TLS}]";
    assert_eq!(conflicts(&[entry("a", "shop", http), entry("b", "shop", other_port)].concat()), 0);
}

#[test]
fn policies_that_close_datagrams_are_named() {
    let gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: shop}\n\
                   spec: {gatewayClassName: istio, listeners: [{name: dns, port: 53, protocol: UDP}]}\n---\n";
    let policy = |namespace: &str, selector: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: p, namespace: {namespace}}}\n\
             spec: {{{selector}action: DENY, rules: [{{from: [{{source: {{namespaces: [x]}}}}]}}]}}\n"
        )
    };
    let closed = |policy: String| {
        let all = findings(&format!("{gateway}{policy}"), &[]);
        all.iter().filter(|finding| finding.diagnostic.code == "closed-datagrams").count()
    };
    assert_eq!(closed(policy("shop", "")), 1);
    assert_eq!(closed(policy("istio-system", "")), 1);
    assert_eq!(closed(policy("shop", "selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: edge}}, ")), 1);
    assert_eq!(closed(policy("shop", "selector: {matchLabels: {app: web}}, ")), 0);
    assert_eq!(closed(policy("other", "")), 0);
}
