//! TLS of gateways: the context for each setting of a server, and the Secrets that a proxy gets.

use std::path::Path;
use std::sync::Arc;

use evenkeel_model::{AddressBook, Builder, MeshConfig, Snapshot};
use evenkeel_testkit::{TestCa, objects};
use evenkeel_translate::{ProxyView, Translator};
use evenkeel_xds::{Cause, ResourceSet, ResourceType, Schema, json};
use serde_json::Value;

use crate::decisions::{PLAIN_HTTP, outcome};
use crate::own_proxy::compile;
use crate::scenario::{translate, view_of};

const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge-0, namespace: ingress, labels: {istio: edge}}\n\
                   spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.4.1, phase: Running}\n---\n\
                   apiVersion: v1\nkind: Pod\nmetadata: {name: edge-1, namespace: other, labels: {istio: edge}}\n\
                   spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.4.2, phase: Running}\n";

/// A Gateway with one HTTPS server for each host, with these TLS settings.
fn gateway(servers: &[(&str, &str)]) -> String {
    let server = |(host, tls): &(&str, &str)| {
        let name = host.replace('.', "-");
        format!("    - {{port: {{number: 8443, name: {name}, protocol: HTTPS}}, hosts: [{host}], tls: {{{tls}}}}}\n")
    };
    let servers: String = servers.iter().map(server).collect();
    format!(
        "---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
         spec:\n  selector: {{istio: edge}}\n  servers:\n{servers}"
    )
}

fn built(text: &str) -> Snapshot {
    let (objects, found) = crate::recorded::load(&[("mesh.yaml".into(), text.into())]);
    assert!(!found.has_errors(), "{found}\n{text}");
    evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).0
}

fn edge(snapshot: &Snapshot) -> ProxyView {
    view_of("router edge-0.ingress", snapshot)
}

fn message(set: &ResourceSet, kind: ResourceType, name: &str) -> Value {
    let resource = set.get(kind, name).unwrap_or_else(|| panic!("no {kind} `{name}`"));
    json::any_to_json(&Schema::acquire(), &resource.any())
}

/// Each row: TLS settings, and a part of the `DownstreamTlsContext` as JSON.
#[test]
fn each_setting_has_its_field() {
    let check = |tls: &str, pointer: &str, expected: Value| {
        let snapshot = built(&(POD.to_owned() + &gateway(&[("a.example.com", tls)])));
        let set = translate(&edge(&snapshot), &snapshot);
        let listener = message(&set, ResourceType::Listener, "0.0.0.0_8443");
        let context = &listener["filter_chains"][0]["transport_socket"]["typed_config"];
        assert_eq!(context.pointer(pointer).unwrap_or(&Value::Null), &expected, "{tls} {pointer}: {context:#}");
    };
    let ads = serde_json::json!({"ads": {}, "resource_api_version": "V3"});
    let sds = |name: &str| serde_json::json!({"name": name, "sds_config": ads});
    let common = "/common_tls_context";
    let at = |field: &str| format!("{common}/{field}");
    let certificates = at("tls_certificate_sds_secret_configs");
    check("mode: SIMPLE, credentialName: c", &certificates, serde_json::json!([sds("kubernetes://c")]));
    check("mode: SIMPLE, credentialName: 'kubernetes://c'", &certificates, serde_json::json!([sds("kubernetes://c")]));
    check("mode: SIMPLE, credentialName: c", "/require_client_certificate", Value::Null);
    let both = serde_json::json!([sds("kubernetes://rsa"), sds("kubernetes://ecdsa")]);
    check("mode: SIMPLE, credentialNames: [rsa, ecdsa]", &certificates, both);
    // A credential takes precedence over files.
    let files = "serverCertificate: /c.crt, privateKey: /c.key, caCertificates: /ca.crt";
    check(&format!("mode: SIMPLE, credentialName: c, {files}"), &at("tls_certificates"), Value::Null);
    let two = "tlsCertificates: [{serverCertificate: /a.crt, privateKey: /a.key}, {serverCertificate: /b.crt, privateKey: /b.key}]";
    check(
        &format!("mode: SIMPLE, {two}"),
        &at("tls_certificates/1"),
        serde_json::json!({"certificate_chain": {"filename": "/b.crt"}, "private_key": {"filename": "/b.key"}}),
    );
    let simple = "mode: SIMPLE, credentialName: c";
    check(simple, &at("alpn_protocols"), serde_json::json!(["h2", "http/1.1"]));
    let own = format!("{simple}, alpnProtocols: [http/1.1, acme-tls/1], ecdhCurves: [P-256]");
    check(&own, &at("alpn_protocols"), serde_json::json!(["http/1.1", "acme-tls/1"]));
    check(&own, &at("tls_params/ecdh_curves"), serde_json::json!(["P-256"]));
    let roots = at("combined_validation_context/validation_context_sds_secret_config");
    check("mode: MUTUAL, credentialName: c", &roots, sds("kubernetes://c-cacert"));
    check("mode: MUTUAL, credentialName: c", "/require_client_certificate", true.into());
    check("mode: OPTIONAL_MUTUAL, credentialName: c", &roots, sds("kubernetes://c-cacert"));
    check("mode: OPTIONAL_MUTUAL, credentialName: c", "/require_client_certificate", Value::Null);
    check("mode: MUTUAL, credentialNames: [c, d]", &roots, sds("kubernetes://c-cacert"));
    check("mode: MUTUAL, credentialName: c, caCertCredentialName: r", &roots, sds("kubernetes://r-cacert"));
    check(
        &format!("mode: MUTUAL, {files}"),
        &at("validation_context/trusted_ca"),
        serde_json::json!({"filename": "/ca.crt"}),
    );
    let checks = |field: &str| at(&format!("combined_validation_context/default_validation_context/{field}"));
    let hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let key = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
    let pinned =
        format!("mode: MUTUAL, credentialName: c, verifyCertificateHash: ['{hash}'], verifyCertificateSpki: ['{key}']");
    check(&pinned, &checks("verify_certificate_hash"), serde_json::json!([hash]));
    check(&pinned, &checks("verify_certificate_spki"), serde_json::json!([key]));
    check(
        "mode: MUTUAL, credentialName: c, subjectAltNames: [client.example.com]",
        &checks("match_typed_subject_alt_names/0"),
        serde_json::json!({"san_type": "DNS", "matcher": {"exact": "client.example.com"}}),
    );
    let listed = "mode: MUTUAL, credentialName: c, caCrl: /ca.crl";
    check(listed, &checks("crl"), serde_json::json!({"filename": "/ca.crl"}));
    let params = |field: &str| at(&format!("tls_params/{field}"));
    let limited = "mode: SIMPLE, credentialName: c, minProtocolVersion: TLSV1_2, maxProtocolVersion: TLSV1_2, \
                   cipherSuites: [ECDHE-RSA-AES256-GCM-SHA384, NONSENSE, AES256-SHA, ECDHE-RSA-AES256-GCM-SHA384], \
                   ecdhCurves: [P-521, P-256, P-224]";
    check(limited, &params("tls_maximum_protocol_version"), "TLSv1_2".into());
    check(limited, &params("cipher_suites"), serde_json::json!(["ECDHE-RSA-AES256-GCM-SHA384", "AES256-SHA"]));
    check(limited, &params("ecdh_curves"), serde_json::json!(["P-521", "P-256"]));
    check("mode: ISTIO_MUTUAL", &at("tls_certificate_sds_secret_configs/0/name"), "default".into());
    // With the mesh's certificates, a server's own demands hold just as well.
    let names = checks("match_typed_subject_alt_names");
    let mesh = serde_json::json!([{"san_type": "URI", "matcher": {"prefix": "spiffe://cluster.local/"}}]);
    check("mode: ISTIO_MUTUAL", &names, mesh.clone());
    check("mode: ISTIO_MUTUAL", "/require_client_certificate", true.into());
    let identity = "spiffe://cluster.local/ns/ops/sa/admin";
    let named = format!("mode: ISTIO_MUTUAL, subjectAltNames: ['{identity}']");
    check(&named, &names, serde_json::json!([{"san_type": "URI", "matcher": {"exact": identity}}]));
    let pinned = format!("mode: ISTIO_MUTUAL, verifyCertificateHash: ['{hash}'], verifyCertificateSpki: ['{key}']");
    check(&pinned, &names, mesh.clone());
    check(&pinned, &checks("verify_certificate_hash"), serde_json::json!([hash]));
    check(&pinned, &checks("verify_certificate_spki"), serde_json::json!([key]));
    check("mode: ISTIO_MUTUAL, caCrl: /ca.crl", &names, mesh);
    check("mode: ISTIO_MUTUAL, caCrl: /ca.crl", &checks("crl"), serde_json::json!({"filename": "/ca.crl"}));
    let limited = "mode: ISTIO_MUTUAL, minProtocolVersion: TLSV1_3, ecdhCurves: [P-256]";
    check(limited, &params("tls_minimum_protocol_version"), "TLSv1_3".into());
    check(limited, &params("ecdh_curves"), serde_json::json!(["P-256"]));
}

/// What each is sent: only Secrets of its own namespace, and only if it has proved that it belongs there.
#[test]
fn a_proxy_gets_only_the_secrets_it_may_have() {
    let ca = TestCa::new();
    let mutual = "mode: MUTUAL, credentialName: c, caCertCredentialName: roots";
    let servers = gateway(&[
        ("a.example.com", "mode: SIMPLE, credentialName: a"),
        ("b.example.com", "mode: SIMPLE, credentialName: ingress/b"),
        ("c.example.com", mutual),
        ("d.example.com", "mode: SIMPLE, credentialName: shop/d"),
        ("e.example.com", "mode: MUTUAL, credentialName: e"),
        ("f.example.com", "mode: SIMPLE, credentialName: broken"),
    ]);
    let key = ca.for_dns(&["x"]).key_pem;
    let text = [
        POD.to_owned(),
        servers,
        objects::tls_secret(&ca, "ingress", "a", "a.example.com"),
        objects::tls_secret(&ca, "ingress", "b", "b.example.com"),
        objects::tls_secret(&ca, "ingress", "c", "c.example.com"),
        objects::secret("ingress", "roots-cacert", &[("cacert", &ca.root_pem())]),
        objects::tls_secret(&ca, "shop", "d", "d.example.com"),
        objects::tls_secret(&ca, "ingress", "e", "e.example.com"),
        objects::tls_secret(&ca, "other", "a", "a.example.com"),
        objects::tls_secret(&ca, "ingress", "unused", "u.example.com"),
        objects::secret("ingress", "broken", &[("tls.crt", &ca.root_pem()), ("tls.key", &key)]),
    ];
    let snapshot = built(&text.concat());
    let check = |proxy: &str, authenticated: bool, expected: &[&str]| {
        let view = ProxyView { authenticated, ..view_of(proxy, &snapshot) };
        let set = translate(&view, &snapshot);
        let names: Vec<&str> = set.of(ResourceType::Secret).keys().map(|name| &**name).collect();
        assert_eq!(names, expected, "{proxy} {authenticated}");
        let (_, refused) = compile(&set);
        assert!(refused.is_empty(), "{refused:?}");
    };
    let own = [
        "kubernetes://a",
        "kubernetes://c",
        "kubernetes://e",
        "kubernetes://e-cacert",
        "kubernetes://ingress/b",
        "kubernetes://roots-cacert",
    ];
    check("router edge-0.ingress", true, &own);
    check("router edge-0.ingress", false, &[]);
    check("router edge-1.other", true, &["kubernetes://a"]);
    check("router edge-1.other", false, &[]);
}

/// Names of the resources that a change of the files touches.
fn touched(before: &[(&str, String)], after: &[(&str, String)]) -> Vec<String> {
    let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(true);
    let mut apply = |files: &[(&str, String)]| {
        let objects = |(name, text): &(&str, String)| {
            let (objects, found) = crate::recorded::load(&[((*name).into(), text.as_str().into())]);
            assert!(!found.has_errors(), "{found}");
            (Path::new(name).into(), objects.into_iter().map(Arc::new).collect())
        };
        builder.apply_files(files.iter().map(objects).collect::<Vec<_>>()).snapshot
    };
    let first = apply(before);
    let mut translator = Translator::new(first.clone(), Cause::default());
    let joined = translator.join(Arc::new(edge(&first)));
    let old = joined.set();
    translator.update(apply(after), Cause { generation: 2, time_us: 0 });
    let new = translator.joined(&joined.view).expect("it joined").set();
    new.diff(&old).map(|difference| format!("{} {}", difference.kind, difference.name)).collect()
}

#[test]
fn a_changed_secret_is_one_changed_resource() {
    let ca = TestCa::new();
    let servers = gateway(&[
        ("a.example.com", "mode: SIMPLE, credentialName: a"),
        ("b.example.com", "mode: SIMPLE, credentialName: b"),
    ]);
    let secret = |name: &str| objects::tls_secret(&ca, "ingress", name, &format!("{name}.example.com"));
    let both = secret("b");
    let before = [("mesh.yaml", POD.to_owned() + &servers), ("a.yaml", secret("a")), ("b.yaml", both)];
    assert_eq!(touched(&before, &[("a.yaml", secret("a"))]), ["SDS kubernetes://a"]);
    assert_eq!(touched(&before, &[("a.yaml", String::new())]), ["SDS kubernetes://a"]);
    assert_eq!(touched(&before, &[("c.yaml", secret("c"))]), [""; 0]);
    let without = [before[0].clone(), before[2].clone()];
    assert_eq!(touched(&without, &[("a.yaml", secret("a"))]), ["SDS kubernetes://a"]);
}

/// TLS to servers outside the mesh: what each setting of a DestinationRule leads to, at a gateway and at sidecars.
#[test]
fn calls_to_servers_outside_the_mesh() {
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web-0, namespace: shop, labels: {app: web}}\n\
               spec: {containers: [{name: main}]}\nstatus: {podIP: 10.244.4.3, phase: Running}\n---\n";
    let ca = TestCa::new();
    let check = |proxy: &str, rule: &str, entry: &str, pointer: &str, expected: Value| {
        let text = [
            POD,
            "---\n",
            pod,
            &format!(
                "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: e, namespace: shop}}\n\
                 spec: {{hosts: [www.test], ports: [{{number: 443, name: http, protocol: HTTP}}], resolution: DNS{entry}}}\n---\n\
                 apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: d, namespace: shop}}\n\
                 spec: {{host: www.test, {rule}}}\n"
            ),
            &objects::tls_secret(&ca, "ingress", "c", "c"),
            &objects::tls_secret(&ca, "shop", "c", "c"),
        ];
        let snapshot = built(&text.concat());
        let set = translate(&view_of(proxy, &snapshot), &snapshot);
        let mut cluster = message(&set, ResourceType::Cluster, "outbound|443||www.test");
        let names: Vec<&str> = set.of(ResourceType::Secret).keys().map(|name| &**name).collect();
        cluster["secrets"] = names.into();
        assert_eq!(
            cluster.pointer(pointer).unwrap_or(&Value::Null),
            &expected,
            "{proxy} {rule} {pointer}: {cluster:#}"
        );
        let (_, mut refused) = compile(&set);
        // There is no such file.
        refused.retain(|message| !message.contains(".crl: "));
        assert!(refused.is_empty(), "{refused:?}");
    };
    let (edge, web) = ("router edge-0.ingress", "sidecar web-0.shop");
    let http = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions/upstream_http_protocol_options";
    let socket = "/transport_socket/typed_config";
    let common = |field: &str| format!("{socket}/common_tls_context/{field}");
    let simple = |more: &str| format!("trafficPolicy: {{tls: {{mode: SIMPLE{more}}}}}");
    let mutual = |more: &str| format!("trafficPolicy: {{tls: {{mode: MUTUAL{more}}}}}");
    let selected = "workloadSelector: {matchLabels: {app: web}}, ";
    let both = serde_json::json!({"auto_sni": true, "auto_san_validation": true});
    let sni_only = serde_json::json!({"auto_sni": true});

    // The call's host is sent and checked, unless something else is to be.
    check(web, &simple(""), "", http, both.clone());
    check(edge, &simple(""), "", http, both);
    check(web, &simple(", sni: other.test"), "", http, Value::Null);
    check(web, &simple(", sni: other.test"), "", &format!("{socket}/sni"), "other.test".into());
    check(web, &simple(", subjectAltNames: [a.test]"), "", http, sni_only.clone());
    check(web, &simple(", insecureSkipVerify: true"), "", http, sni_only.clone());
    check(web, &simple(""), ", subjectAltNames: [b.test]", http, sni_only);
    let san = common("validation_context/match_typed_subject_alt_names");
    let exact = |name: &str| serde_json::json!([{"san_type": "DNS", "matcher": {"exact": name}}]);
    check(web, &simple(""), ", subjectAltNames: [b.test]", &san, exact("b.test"));
    check(web, &simple(", subjectAltNames: [a.test]"), ", subjectAltNames: [b.test]", &san, exact("a.test"));
    check(web, "trafficPolicy: {tls: {mode: DISABLE}}", "", http, Value::Null);

    // The mesh's own certificates: revoked servers are refused, and nothing skips their verification.
    let istio = |more: &str| format!("trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL{more}}}}}");
    let of_mesh = |field: &str| common(&format!("combined_validation_context/default_validation_context/{field}"));
    let lists = serde_json::json!({"filename": "/ca.crl"});
    let any = serde_json::json!([{"san_type": "URI", "matcher": {"prefix": "spiffe://cluster.local/"}}]);
    check(web, &istio(", caCrl: /ca.crl"), "", &of_mesh("crl"), lists);
    check(web, &istio(""), "", &of_mesh("crl"), Value::Null);
    check(web, &istio(", insecureSkipVerify: true"), "", &of_mesh("match_typed_subject_alt_names"), any);

    // Credentials: gateways always, sidecars if the rule selects them.
    let roots = common("combined_validation_context/validation_context_sds_secret_config/name");
    let own = common("tls_certificate_sds_secret_configs/0/name");
    let secrets = |names: &[&str]| serde_json::json!(names);
    check(edge, &simple(", credentialName: c"), "", &roots, "kubernetes://c-cacert".into());
    check(edge, &simple(", credentialName: c"), "", &own, Value::Null);
    check(edge, &simple(", credentialName: c"), "", "/secrets", secrets(&["kubernetes://c-cacert"]));
    check(edge, &mutual(", credentialName: c"), "", &own, "kubernetes://c".into());
    check(edge, &mutual(", credentialName: c"), "", "/secrets", secrets(&["kubernetes://c", "kubernetes://c-cacert"]));
    check(web, &mutual(", credentialName: c"), "", "/secrets", secrets(&[]));
    check(web, &mutual(", credentialName: c"), "", &roots, Value::Null);
    let with_selector = format!("{selected}{}", mutual(", credentialName: c"));
    check(web, &with_selector, "", &own, "kubernetes://c".into());
    check(web, &with_selector, "", "/secrets", secrets(&["kubernetes://c", "kubernetes://c-cacert"]));
}

/// Two servers of one port with addresses of their own have listeners and routes of their own.
#[test]
fn servers_of_one_port_listen_where_each_says() {
    let server = |name: &str, bind: &str, host: &str| {
        format!("{{port: {{number: 8080, name: {name}, protocol: HTTP}}, {bind}hosts: [{host}]}}")
    };
    let servers = [
        server("a", "", "a.test"),
        server("b", "bind: 127.0.0.2, ", "b.test"),
        server("c", "bind: 127.0.0.2, ", "c.test"),
    ];
    let answer = |name: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{hosts: [{name}.test], gateways: [g], http: [{{redirect: {{authority: {name}}}}}]}}\n"
        )
    };
    let text = format!(
        "{POD}---\napiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
         spec: {{selector: {{istio: edge}}, servers: [{}]}}\n{}",
        servers.join(", "),
        ["a", "b", "c"].map(answer).concat()
    );
    let snapshot = built(&text);
    let set = translate(&edge(&snapshot), &snapshot);
    let names = |kind| set.of(kind).keys().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(names(ResourceType::Listener), ["0.0.0.0_8080", "127.0.0.2_8080"]);
    assert_eq!(names(ResourceType::Route), ["http.8080", "http.8080.127.0.0.2"]);
    let (config, refused) = compile(&set);
    assert!(refused.is_empty(), "{refused:?}");
    let check = |listener: &str, host: &str, expected: &str| {
        let to = format!("{}:8080", listener.trim_end_matches("_8080"));
        assert_eq!(
            outcome(&config, listener, &PLAIN_HTTP, &to, &format!("GET {host} /"), 0),
            expected,
            "{listener} {host}"
        );
    };
    check("0.0.0.0_8080", "a.test", "301 http://a/");
    check("0.0.0.0_8080", "b.test", "404");
    check("127.0.0.2_8080", "a.test", "404");
    check("127.0.0.2_8080", "b.test", "301 http://b/");
    check("127.0.0.2_8080", "c.test", "301 http://c/");
}
