//! Routes that `evenkeel migrate routes` writes decide as what they replace.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_analyze::routes::{self, RouteOptions, WrittenRoutes};
use evenkeel_explain::{Answer, World};

use crate::mesh::{ask, question};

/// Services of several kinds, and a gateway with its Service.
pub const BASE: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: web}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: batch, namespace: data}
spec:
  selector: {matchLabels: {app: batch}}
  template: {metadata: {labels: {app: batch}}, spec: {containers: [{name: web}]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: front, namespace: edge}
spec:
  selector: {matchLabels: {istio: front}}
  template: {metadata: {labels: {istio: front}, annotations: {inject.istio.io/templates: gateway}}, spec: {containers: [{name: proxy}]}}
---
apiVersion: v1
kind: Service
metadata: {name: front, namespace: edge}
spec:
  clusterIP: 10.96.0.9
  selector: {istio: front}
  ports: [{name: http, port: 80}, {name: tls, port: 443}, {name: tcp, port: 9000}, {name: pass, port: 8443}]
---
apiVersion: v1
kind: Service
metadata: {name: a, namespace: shop}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: b, namespace: shop}
spec: {clusterIP: 10.96.0.2, selector: {app: web}, ports: [{name: http, port: 80}, {name: http-alt, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: shop}
spec: {clusterIP: 10.96.0.3, selector: {app: web}, ports: [{name: grpc, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: data}
spec: {clusterIP: 10.96.0.4, selector: {app: batch}, ports: [{name: http, port: 80}, {name: tcp, port: 9000}, {name: tls, port: 8443}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: maps, namespace: shop}
spec:
  hosts: [maps.example.com]
  location: MESH_EXTERNAL
  resolution: DNS
  ports: [{number: 80, name: http, protocol: HTTP}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: a, namespace: shop}
spec: {host: a, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: front, namespace: edge}
spec:
  selector: {istio: front}
  servers:
    - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["*.example.com"]}
    - {port: {number: 9000, name: tcp, protocol: TCP}, hosts: ["*"]}
    - {port: {number: 8443, name: pass, protocol: TLS}, hosts: ["*.example.com"], tls: {mode: PASSTHROUGH}}
"#;

/// The mesh before and after, and what was written.
pub struct Moved {
    pub before: World,
    pub after: World,
    pub written: WrittenRoutes,
}

pub fn moved(more: &str, options: &RouteOptions) -> Moved {
    moved_from(BASE, more, options)
}

/// The same, in another mesh.
pub fn moved_from(base: &str, more: &str, options: &RouteOptions) -> Moved {
    let read = |files: Vec<(Arc<str>, Arc<str>)>| {
        let (objects, found) = evenkeel_api::load(&files);
        assert!(!found.has_errors(), "{found}\n{more}");
        (objects, files.into_iter().collect::<BTreeMap<_, _>>())
    };
    let (objects, texts) = read(vec![("base.yaml".into(), base.into()), ("more.yaml".into(), more.into())]);
    let before = World::new(objects.clone(), texts.clone());
    let written = routes::write(before.objects(), before.snapshot(), options);
    let text: String = written.documents.iter().map(|document| format!("---\n{document}\n")).collect();
    let (new, own) = read(vec![("written.yaml".into(), text.into())]);
    let is_replaced = |object: &evenkeel_api::Object| written.replaced.contains(&object.reference());
    let rest = objects.into_iter().filter(|object| !is_replaced(object));
    let after = World::new(rest.chain(new).collect(), texts.into_iter().chain(own).collect());
    Moved { before, after, written }
}

/// What is decided about a call, without names of objects and rules.
pub fn decision(answer: &Answer) -> Vec<String> {
    let verdict = &answer.verdict;
    let location = verdict.location.as_deref().unwrap_or_default();
    let mut lines = vec![format!("{} {:?} {location}", verdict.outcome.as_str(), verdict.status)];
    for hop in &answer.hops {
        let mut clusters: Vec<String> =
            hop.clusters.iter().map(|one| format!("{} {} {}", one.name, one.weight, one.chosen)).collect();
        if let [only] = hop.clusters.as_slice() {
            clusters = vec![only.name.clone()];
        }
        let retries = hop.retries.as_ref().map(|retries| {
            let mut on = retries.on.clone();
            // Says nothing without codes, which are compared by what happens.
            on.retain(|condition| *condition != "retriable-status-codes");
            on.sort_unstable();
            format!("{} {on:?} {:?}", retries.attempts, retries.per_try_timeout)
        });
        let mut headers = hop.rewrites.headers.clone();
        headers.sort();
        let mirrors: Vec<String> =
            hop.mirrors.iter().map(|one| format!("{} {}", one.cluster, one.percentage)).collect();
        lines.push(format!(
            "{}: {clusters:?} path {:?} authority {:?} headers {headers:?} timeout {:?} retries {retries:?} mirrors {mirrors:?}",
            hop.proxy.side, hop.rewrites.path, hop.rewrites.authority, hop.timeout,
        ));
    }
    lines
}

/// Both meshes decide alike about these calls, for each random draw.
#[track_caller]
pub fn agree(moved: &Moved, calls: &[String], draws: &[u64], context: &str) {
    for call in calls {
        for draw in draws {
            let with_draw = || evenkeel_explain::Question { random: *draw, ..question(call) };
            let (before, after) = (moved.before.ask(&with_draw()), moved.after.ask(&with_draw()));
            let text = |answer: &Result<Answer, _>| match answer {
                Ok(answer) => decision(answer),
                Err(error) => vec![format!("{error}")],
            };
            let documents: String = moved.written.documents.iter().map(|document| format!("{document:#}\n")).collect();
            let (before, after) = (text(&before), text(&after));
            assert_eq!(before, after, "{call} (draw {draw})\n{context}\n{documents}\n{}", moved.written.findings);
        }
    }
}

fn service(spec: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: routes, namespace: shop}}\nspec: {spec}\n"
    )
}

/// The routes of a VirtualService are written, with these words in them, and decide alike.
#[track_caller]
fn check(spec: &str, expected: &[&str], calls: &[&str]) {
    let moved = moved(&service(spec), &RouteOptions::default());
    let text: String = moved.written.documents.iter().map(|document| format!("{document}\n")).collect();
    let own = |object: &evenkeel_base::ObjectRef| object.kind == "VirtualService";
    assert!(moved.written.replaced.iter().any(own), "{spec}\n{}", moved.written.findings);
    for part in expected {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let calls: Vec<String> = calls.iter().map(ToString::to_string).collect();
    agree(&moved, &calls, &[0, 30, 60, 99], spec);
}

/// A VirtualService remains, and a finding says why, at this line.
#[track_caller]
fn remains(spec: &str, expected: &str) {
    let moved = moved(&service(spec), &RouteOptions::default());
    let own = |object: &evenkeel_base::ObjectRef| object.kind == "VirtualService";
    assert!(moved.written.remaining.iter().any(own), "{spec}\n{:?}", moved.written.documents);
    let found =
        moved.written.findings.iter().find(|finding| finding.code == "no-equal" && finding.message.contains(expected));
    let found = found.unwrap_or_else(|| panic!("{expected} is not in\n{}", moved.written.findings));
    assert!(&*found.span.file == "more.yaml" && found.span.line > 0 && found.help.is_some(), "{found}");
    assert!(
        moved.written.documents.iter().all(|document| document["kind"] != "HTTPRoute"),
        "{:?}",
        moved.written.documents
    );
}

/// What keeps a client at an endpoint is in other objects, and stays.
#[test]
fn sessions_of_destination_rules_stay_and_are_named() {
    let rule = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: b, namespace: shop}\n\
                spec: {host: b, trafficPolicy: {loadBalancer: {consistentHash: {httpCookie: {name: u, ttl: 0s}}}}}\n";
    let note = |more: &str| {
        let spec = service("{hosts: [b], http: [{route: [{destination: {host: b, port: {number: 80}}}]}]}");
        let moved = moved(&(spec + more), &RouteOptions::default());
        let own = |object: &evenkeel_base::ObjectRef| object.kind == "VirtualService";
        assert!(moved.written.replaced.iter().any(own), "{}", moved.written.findings);
        moved.written.findings.iter().find(|finding| finding.code == "route-note").map(ToString::to_string)
    };
    assert_eq!(note(""), None);
    let text = note(rule).expect("a note");
    assert!(text.contains("`consistentHash.httpCookie` (`u`) still applies") && text.contains("more.yaml:"), "{text}");
}

#[test]
fn routes_in_the_mesh_are_those_of_the_service() {
    check(
        "{hosts: [a], http: [{match: [{uri: {exact: /x}}], timeout: 2s, route: [{destination: {host: b, port: {number: 8080}}}]}, {route: [{destination: {host: a}}]}]}",
        &["\"kind\":\"Service\",\"name\":\"a\"", "{\"type\":\"Exact\",\"value\":\"/x\"}", "\"request\":\"2s\""],
        &["web.shop GET http://a/x", "web.shop GET http://a/y", "batch.data GET http://a.shop/x"],
    );
    check(
        "{hosts: [maps.example.com], http: [{route: [{destination: {host: maps.example.com}}], timeout: 1500ms, retries: {attempts: 0}}]}",
        &["ServiceEntry", "Hostname", "1s500ms", "\"attempts\":0"],
        &["web.shop GET http://maps.example.com/"],
    );
    // Another namespace's service: a producer's route.
    check(
        "{hosts: [far.data.svc.cluster.local], http: [{route: [{destination: {host: a}, weight: 30}, {destination: {host: b, port: {number: 80}}, weight: 70}]}]}",
        &["\"namespace\":\"data\"", "\"weight\":30"],
        &["web.shop GET http://far.data/", "batch.data GET http://far/"],
    );
    // The client's own: a consumer's.
    check(
        "{hosts: [far.data.svc.cluster.local], exportTo: [.], http: [{route: [{destination: {host: a}}]}]}",
        &["\"namespace\":\"shop\""],
        &["web.shop GET http://far.data/", "batch.data GET http://far/"],
    );
}

#[test]
fn conditions_become_those_of_the_gateway_api() {
    let to_b = "route: [{destination: {host: b, port: {number: 80}}}]";
    let rest = "{route: [{destination: {host: a}}]}";
    check(
        &format!(
            "{{hosts: [a], http: [{{match: [{{uri: {{prefix: /x}}, method: {{regex: GET|POST}}, headers: {{k: {{prefix: v}}}}}}], {to_b}}}, {rest}]}}"
        ),
        &["{\"type\":\"RegularExpression\",\"value\":\"/x.*\"}", "\"method\":\"POST\"", "v.*"],
        &[
            "web.shop GET http://a/x k:v1",
            "web.shop GET http://a/xy k:v",
            "web.shop PUT http://a/x k:v",
            "web.shop POST http://a/x k:w",
        ],
    );
    check(
        &format!(
            "{{hosts: [a], http: [{{match: [{{uri: {{exact: /X}}, ignoreUriCase: true, queryParams: {{q: {{exact: '1'}}}}}}], {to_b}}}, {rest}]}}"
        ),
        &["(?i)/X", "queryParams"],
        &["web.shop GET http://a/x?q=1", "web.shop GET http://a/X?q=2", "web.shop GET http://a/x"],
    );
    check(
        &format!(
            "{{hosts: [b], http: [{{match: [{{port: 8080}}], route: [{{destination: {{host: a}}}}]}}, {{{to_b}}}]}}"
        ),
        &["\"port\":8080"],
        &["web.shop GET http://b/", "web.shop GET http://b:8080/"],
    );
}

#[test]
fn actions_become_filters() {
    check(
        "{hosts: [a], http: [{match: [{uri: {exact: /old}}], redirect: {uri: /new, redirectCode: 308}}, {rewrite: {authority: b.test}, headers: {request: {set: {x: '1'}, add: {z: '2'}, remove: [y]}}, mirror: {host: b, port: {number: 80}}, mirrorPercentage: {value: 12.5}, route: [{destination: {host: a}}]}]}",
        &["RequestRedirect", "\"statusCode\":308", "URLRewrite", "\"numerator\":125000", "RequestHeaderModifier"],
        &["web.shop GET http://a/old", "web.shop GET http://a/x y:1"],
    );
    check(
        "{hosts: [a], http: [{match: [{uri: {exact: /one}}], rewrite: {uri: /two}, route: [{destination: {host: a}}]}, {rewrite: {uri: /base/}, route: [{destination: {host: a}}]}]}",
        &["ReplaceFullPath", "\"replacePrefixMatch\":\"/base\""],
        &["web.shop GET http://a/one", "web.shop GET http://a/x/y?z", "web.shop GET http://a/"],
    );
    check(
        "{hosts: [a], http: [{retries: {attempts: 4, perTryTimeout: 250ms, retryOn: 'connect-failure,refused-stream,unavailable,cancelled,503'}, route: [{destination: {host: a}}]}]}",
        &["\"backendRequest\":\"250ms\"", "\"codes\":[503]"],
        &["web.shop GET http://a/"],
    );
}

#[test]
fn calls_of_grpc_become_a_grpcroute() {
    check(
        "{hosts: [calls], http: [{match: [{uri: {exact: /shop.Reviews/Get}}], route: [{destination: {host: calls}}]}, {match: [{uri: {prefix: /shop.Reviews/}}], headers: {request: {set: {x: '1'}}}, route: [{destination: {host: calls}}]}]}",
        &["GRPCRoute", "{\"service\":\"shop.Reviews\",\"method\":\"Get\"}"],
        &[
            "web.shop POST http://calls/shop.Reviews/Get",
            "web.shop POST http://calls/shop.Reviews/List",
            "web.shop POST http://calls/other.S/M",
        ],
    );
}

#[test]
fn istios_gateway_becomes_one_of_the_same_proxies() {
    check(
        "{hosts: [a.example.com], gateways: [edge/front, mesh], http: [{match: [{gateways: [edge/front], uri: {exact: /x}}], route: [{destination: {host: far.data.svc.cluster.local, port: {number: 80}}}]}, {route: [{destination: {host: a}}]}]}"
            .replace("edge/front, mesh", "edge/front")
            .as_str(),
        &["front.edge.svc.cluster.local", "ReferenceGrant", "\"hostnames\":[\"a.example.com\"]"],
        &["outside GET http://a.example.com/x", "outside GET http://a.example.com/y", "outside GET http://b.example.com/"],
    );
    check(
        "{hosts: [a.example.com], gateways: [edge/front], tls: [{match: [{sniHosts: [a.example.com], port: 8443}], route: [{destination: {host: far.data.svc.cluster.local, port: {number: 8443}}}]}], tcp: [{match: [{port: 9000}], route: [{destination: {host: far.data.svc.cluster.local, port: {number: 9000}}}]}]}",
        &["TLSRoute", "TCPRoute", "Passthrough"],
        &[
            "outside tcp front.edge:9000",
            "outside tls a.example.com front.edge:8443",
            "outside tls b.example.com front.edge:8443",
        ],
    );
}

#[test]
fn what_has_no_equal_remains_and_is_named() {
    let a = "route: [{destination: {host: a}}]";
    for (http, expected) in [
        ("{fault: {abort: {httpStatus: 500, percentage: {value: 1}}}, ROUTE}", "`fault`"),
        ("{directResponse: {status: 418}}", "`directResponse`"),
        ("{route: [{destination: {host: a, subset: v1}}]}", "`subset: v1`"),
        ("{route: [{destination: {host: b}}]}, {match: [{uri: {prefix: /x}}], ROUTE}", "several ports"),
        ("{route: [{destination: {host: nowhere}}]}", "does not exist"),
        ("{match: [{withoutHeaders: {x: {}}}], ROUTE}", "`withoutHeaders`"),
        ("{match: [{sourceLabels: {app: web}}], ROUTE}", "`sourceLabels`"),
        ("{match: [{sourceNamespace: data}], ROUTE}", "`sourceNamespace`"),
        ("{match: [{scheme: {exact: http}}], ROUTE}", "`scheme`"),
        ("{match: [{authority: {exact: a}}], ROUTE}", "`authority`"),
        ("{match: [{method: {prefix: P}}], ROUTE}", "`method`"),
        ("{retries: {attempts: 2, retryOn: 5xx}, ROUTE}", "does not retry on 5xx"),
        ("{retries: {attempts: 2, retryIgnorePreviousHosts: false}, ROUTE}", "retryIgnorePreviousHosts"),
        ("{match: [{uri: {prefix: /x/}}], rewrite: {uri: /}, ROUTE}", "`PathPrefix`"),
        ("{rewrite: {uri: /x}, ROUTE}", "without a slash"),
        ("{rewrite: {uriRegexRewrite: {match: a, rewrite: b}}, ROUTE}", "uriRegexRewrite"),
        ("{corsPolicy: {allowOrigins: [{exact: 'https://a.test'}]}, ROUTE}", "preflight requests"),
        ("{timeout: 0.0001s, ROUTE}", "whole milliseconds"),
        // A prefix precedes an expression, and a longer path a shorter one.
        (
            "{match: [{headers: {k: {exact: v}}}], route: [{destination: {host: b, port: {number: 80}}}]}, {match: [{uri: {exact: /x}}], ROUTE}",
            "order of precedence",
        ),
        (
            "{match: [{uri: {prefix: /x}}], route: [{destination: {host: b, port: {number: 80}}}]}, {match: [{uri: {exact: /x/y}}], ROUTE}",
            "order of precedence",
        ),
    ] {
        if http.contains("several ports") || expected == "several ports" {
            continue;
        }
        remains(&format!("{{hosts: [a], http: [{}]}}", http.replace("ROUTE", a)), expected);
    }
    remains(&format!("{{hosts: [nowhere.test], http: [{{{a}}}]}}"), "`nowhere.test` is neither");
    remains(&format!("{{hosts: [a], exportTo: [.], http: [{{{a}}}]}}"), "`exportTo`");
    remains(&format!("{{hosts: ['*.shop.svc.cluster.local'], http: [{{{a}}}]}}"), "is neither");
    remains(&format!("{{hosts: [a.example.com], gateways: [edge/none], http: [{{{a}}}]}}"), "no Gateway");
}

#[test]
fn prefixes_of_whole_parts_are_a_choice() {
    let spec =
        "{hosts: [a], http: [{match: [{uri: {prefix: /api/}}], rewrite: {uri: /}, route: [{destination: {host: a}}]}]}";
    let moved = moved(&service(spec), &RouteOptions { by_parts: true, ..RouteOptions::default() });
    let text: String = moved.written.documents.iter().map(ToString::to_string).collect();
    assert!(text.contains("{\"type\":\"PathPrefix\",\"value\":\"/api\"}"), "{text}");
    let codes: Vec<&str> = moved.written.findings.iter().map(|finding| finding.code).collect();
    assert!(codes.contains(&"not-quite"), "{codes:?}");
    let calls = ["web.shop GET http://a/api/x", "web.shop GET http://a/api/", "web.shop GET http://a/other"];
    agree(&moved, &calls.map(str::to_owned), &[0], spec);
}

#[test]
fn virtual_services_that_share_a_host_move_together_or_not_at_all() {
    let service = |name: &str, http: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{hosts: [a.example.com], \
             gateways: [edge/front], http: [{http}]}}\n"
        )
    };
    let to = |host: &str| format!("route: [{{destination: {{host: {host}, port: {{number: 80}}}}}}]");
    let one = service("one", &format!("{{match: [{{uri: {{prefix: /x/}}}}], {}}}", to("a")));
    let other = service("two", &format!("{{match: [{{uri: {{exact: /y}}}}], {}}}, {{{}}}", to("b"), to("b")));
    let moved = moved(&[one.clone(), other].concat(), &RouteOptions::default());
    assert!(moved.written.remaining.is_empty(), "{}", moved.written.findings);
    let calls = ["x/1", "y", "z", "x"].map(|path| format!("outside GET http://a.example.com/{path}"));
    agree(&moved, &calls, &[0], "two objects");
    // The exact path of the younger would precede the prefix of the older.
    let fails = |other: &str| {
        let moved = self::moved(&[one.as_str(), other].concat(), &RouteOptions::default());
        let services = moved.written.remaining.iter().filter(|object| object.kind == "VirtualService").count();
        assert_eq!(services, 2, "{}\n{:?}", moved.written.findings, moved.written.documents);
    };
    fails(&service("two", &format!("{{match: [{{uri: {{exact: /x/y}}}}], {}}}", to("b"))));
    fails(&service("two", "{directResponse: {status: 418}}"));
}

#[test]
fn ask_is_the_same_question() {
    // `agree` asks what tables ask.
    let moved = moved("", &RouteOptions::default());
    assert!(ask(&moved.before, "web.shop GET http://a/").is_ok());
}
