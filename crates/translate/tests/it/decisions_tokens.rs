//! Dry-run policies, and RequestAuthentications: their decisions about calls.

use std::sync::LazyLock;

use evenkeel_base::Severity;
use evenkeel_model::{AddressBook, JwksFetching, JwksSource, MeshConfig};
use evenkeel_testkit::jwt::{Signer, jwks};
use serde_json::Value;

use crate::decisions::{Client, PLAIN_HTTP, mesh, outcome};
use crate::own_proxy::compile;
use crate::refused;
use crate::scenario::{as_json, translate, view_of};

/// The mesh of the refused objects, whose service has a TCP port too.
fn mesh_text() -> String {
    refused::MESH.replace("targetPort: 8080}", "targetPort: 8080}, {name: tcp, port: 81, targetPort: 8081}")
}

fn object(kind: &str, name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: {name}, namespace: shop, annotations: {{{annotations}}}}}\nspec: {{{spec}}}\n"
    )
}

/// How calls to a Pod end, and the warnings that something is closed.
fn calls(
    objects: &str,
    pod: &str,
    port: u16,
    client: &Client,
    requests: &[&str],
    settings: MeshConfig,
) -> (Vec<String>, usize) {
    let (loaded, _) = crate::recorded::load(&[("mesh.yaml".into(), (mesh_text() + objects).into())]);
    let (snapshot, found) = evenkeel_model::build(&loaded, &settings, &mut AddressBook::default());
    let (config, refused) = compile(&translate(&view_of(&format!("sidecar {pod}.shop"), &snapshot), &snapshot));
    assert!(refused.is_empty(), "{refused:?}");
    let to = format!("10.244.0.3:{port}");
    let ends = requests.iter().map(|request| outcome(&config, "virtualInbound", client, &to, request, 0)).collect();
    (ends, found.iter().filter(|finding| finding.code == "closed" && finding.severity == Severity::Warning).count())
}

#[test]
fn a_policy_on_trial_is_not_enforced() {
    let check = |annotations: &str, spec: &str, expected: &str| {
        let policy = object("AuthorizationPolicy", "p", annotations, spec);
        let (ends, _) = calls(&policy, "web-0", 8080, &PLAIN_HTTP, &["GET web /x"], MeshConfig::default());
        assert_eq!(ends, [expected], "{annotations} {spec}");
    };
    let (open, deny) = ("inbound|8080|| web/x", "action: DENY, rules: [{}]");
    let dry = "istio.io/dry-run: 'true'";
    check("", deny, "denied by ns[shop]-policy[p]-rule[0]");
    check(dry, deny, open);
    check("istio.io/dry-run: 'false'", deny, "denied by ns[shop]-policy[p]-rule[0]");
    check("istio.io/dry-run: 'yes'", deny, "denied by ns[shop]-policy[p]-rule[0]");
    check("", "action: ALLOW", "denied by default");
    check(dry, "action: ALLOW", open);
    // One that is refused would have refused nothing, either.
    check(dry, "action: DENNY", open);
    check("", "action: DENNY", "denied by ns[shop]-policy[p]-refused-rule[0]");
}

#[test]
fn what_is_ambiguous_is_refused_only_where_a_policy_may_refuse() {
    let check = |annotations: &str, action: &str, expected: &str| {
        let spec = format!("action: {action}, rules: [{{to: [{{operation: {{paths: [/admin]}}}}]}}]");
        let policy = object("AuthorizationPolicy", "p", annotations, &spec);
        let (ends, _) = calls(&policy, "web-0", 8080, &PLAIN_HTTP, &["GET web /x%2Fadmin"], MeshConfig::default());
        assert_eq!(ends, [expected], "{annotations} {action}");
    };
    let open = "inbound|8080|| web/x%2Fadmin";
    check("", "DENY", "denied by ambiguous-path[encoded-slash]");
    check("istio.io/dry-run: 'true'", "DENY", open);
    check("", "AUDIT", open);
}

#[test]
fn a_policy_on_trial_is_counted_beside_those_in_force() {
    let policies = object("AuthorizationPolicy", "a", "istio.io/dry-run: 'true'", "action: DENY, rules: [{}]")
        + &object("AuthorizationPolicy", "b", "", "action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]")
        + &object(
            "AuthorizationPolicy",
            "c",
            "istio.io/dry-run: 'true'",
            "rules: [{to: [{operation: {paths: [/x]}}]}]",
        );
    let (loaded, found) = crate::recorded::load(&[("mesh.yaml".into(), (mesh_text() + &policies).into())]);
    assert!(!found.has_errors(), "{found}");
    let (snapshot, _) = evenkeel_model::build(&loaded, &MeshConfig::default(), &mut AddressBook::default());
    let all = as_json(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot));
    let mut filters = Vec::new();
    rbac_filters(&all, &mut filters);
    let http: Vec<&Value> =
        filters.into_iter().filter(|f| f["@type"].as_str().is_some_and(|t| t.contains("http.rbac"))).collect();
    let shown = |filter: &Value| {
        let names = |rules: &Value| {
            let own = |name: &&String| !name.starts_with("ambiguous-");
            rules["policies"]
                .as_object()
                .map(|p| p.keys().filter(own).cloned().collect::<Vec<_>>().join(","))
                .unwrap_or_default()
        };
        let prefix = filter["shadow_rules_stat_prefix"].as_str().unwrap_or("-");
        format!("{} | {} | {prefix}", names(&filter["rules"]), names(&filter["shadow_rules"]))
    };
    let first: Vec<String> = http.iter().take(2).map(|filter| shown(filter)).collect();
    assert_eq!(
        first,
        [
            "ns[shop]-policy[b]-rule[0] | ns[shop]-policy[a]-rule[0] | istio_dry_run_deny_",
            " | ns[shop]-policy[c]-rule[0] | istio_dry_run_allow_"
        ]
    );
}

fn rbac_filters<'v>(value: &'v Value, found: &mut Vec<&'v Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| rbac_filters(item, found)),
        Value::Object(fields) => {
            if fields.get("@type").and_then(Value::as_str).is_some_and(|name| name.ends_with("rbac.v3.RBAC")) {
                found.push(value);
            }
            fields.values().for_each(|field| rbac_filters(field, found));
        }
        _ => {}
    }
}

const REFUSED: &str = "denied by ns[shop]-request-authentication[jwt]-refused-rule";
/// What the explanation of a request that passes to the workload is.
const OPEN: &str = "inbound|8080|| web/";

/// Keys of two issuers and of a stranger.
static SIGNERS: LazyLock<[Signer; 3]> =
    LazyLock::new(|| [Signer::ec("me", "P-256"), Signer::ec("you", "P-384"), Signer::ec("me", "P-256")]);

/// A token of `me`, `you`, or of a stranger who says that he is `me`.
fn token(signer: usize, claims: &str) -> String {
    SIGNERS[signer].token(claims)
}

/// The key set of an issuer, as a YAML string.
fn keys(signer: usize) -> String {
    format!("'{}'", jwks(&[&SIGNERS[signer]]))
}

/// Checks requests to a workload, each with what its end contains.
#[track_caller]
fn check_objects(objects: &str, pod: &str, requests: &[(String, &str)]) {
    let texts: Vec<&str> = requests.iter().map(|(request, _)| request.as_str()).collect();
    let client = mesh("shop/sa/web");
    let (ends, _) = calls(objects, pod, 8080, &client, &texts, MeshConfig::default());
    for ((request, expected), end) in requests.iter().zip(&ends) {
        assert!(end.contains(expected), "{request}: {end}, expected {expected}\n{objects}");
    }
}

#[track_caller]
fn check(spec: &str, requests: &[(String, &str)]) {
    check_objects(&object("RequestAuthentication", "jwt", "", spec), "web-0", requests);
}

#[test]
fn a_missing_token_passes_and_a_bad_one_does_not() {
    let keys = keys(0);
    let good = token(0, r#"{"iss":"me","sub":"a","aud":"app"}"#);
    let with = |token: &str| format!("GET web /?access_token={token}");
    let rows = [
        ("GET web /".to_owned(), OPEN),
        ("GET web / authorization=Basic".to_owned(), OPEN),
        // The token is removed.
        (with(&good), "inbound|8080|| web/\u{0}"),
        ("GET web /?access_token=x".to_owned(), "Jwt_is_not_in_the_form"),
        (with(&token(2, r#"{"iss":"me"}"#)), "Jwt_verification_fails"),
        (with(&token(0, r#"{"iss":"you"}"#)), "Jwt_issuer_is_not_configured"),
        (with(&token(0, r#"{"iss":"me","exp":1}"#)), "Jwt_is_expired"),
        (with(&format!("{good}&access_token=x")), "Jwt_is_not_in_the_form"),
    ];
    let rows = rows.map(|(request, expected)| (request, expected.trim_end_matches('\u{0}')));
    check(&format!("selector: {{matchLabels: {{app: web}}}}, jwtRules: [{{issuer: me, jwks: {keys}}}]"), &rows);
    let kept = format!("web/?access_token={good}");
    check(&format!("jwtRules: [{{issuer: me, jwks: {keys}, forwardOriginalToken: true}}]"), &[(with(&good), &kept)]);
    check(
        &format!("jwtRules: [{{issuer: me, jwks: {keys}, audiences: [app]}}]"),
        &[(with(&good), OPEN), (with(&token(0, r#"{"iss":"me","aud":"b"}"#)), "Audiences_in_Jwt_are_not_allowed")],
    );
}

/// `presence: REQUIRED`: there has to be a valid token of some issuer.
#[test]
fn a_rule_may_require_a_token() {
    let of = |index: u8| if index == 0 { keys(0) } else { keys(2) };
    let (me, you) = (token(0, r#"{"iss":"me"}"#), token(2, r#"{"iss":"you"}"#));
    let with = |token: &str| format!("GET web /?access_token={token}");
    let rule = |issuer: &str, index: u8, more: &str| {
        format!("{{issuer: {issuer}, jwks: {}, forwardOriginalToken: true{more}}}", of(index))
    };
    let required = ", presence: REQUIRED";
    let passes = |token: &str| format!("web/?access_token={token}");
    let (of_me, of_you) = (passes(&me), passes(&you));
    let missing = ("GET web /".to_owned(), "Jwt_is_missing");
    check(
        &format!("jwtRules: [{}]", rule("me", 0, required)),
        &[missing.clone(), (with(&me), &of_me), (with("x"), "Jwt_is_not_in_the_form")],
    );
    check(&format!("jwtRules: [{}]", rule("me", 0, ", presence: OPTIONAL")), &[("GET web /".to_owned(), OPEN)]);
    let both = format!("jwtRules: [{}, {}]", rule("me", 0, required), rule("you", 1, ""));
    check(&both, &[missing, (with(&me), &of_me), (with(&you), &of_you)]);
}

/// What policies read is what the rule writes from a valid token, and never what the client has sent in its place.
#[test]
fn claims_and_payload_become_headers() {
    let good = token(0, r#"{"iss":"me","team":"a"}"#);
    let rules = format!(
        "jwtRules: [{{issuer: me, jwks: {}, outputPayloadToHeader: x-payload, \
         outputClaimToHeaders: [{{header: x-team, claim: team}}]}}]",
        keys(0)
    );
    for (header, values) in [("x-team", "[a]"), ("x-payload", "['*']")] {
        let condition =
            format!("action: DENY, rules: [{{when: [{{key: 'request.headers[{header}]', values: {values}}}]}}]");
        let objects =
            object("RequestAuthentication", "jwt", "", &rules) + &object("AuthorizationPolicy", "p", "", &condition);
        let rows = [
            (format!("GET web /?access_token={good}"), "denied by ns[shop]-policy[p]-rule[0]"),
            ("GET web /".to_owned(), OPEN),
            (format!("GET web / {header}=a"), OPEN),
        ];
        check_objects(&objects, "web-0", &rows);
    }
}

#[test]
fn rules_for_a_gateway_judge_no_tokens_of_a_sidecar() {
    // A target of another namespace is a mistake, and the object closes what it could have judged.
    for (namespace, expected) in [("", OPEN), (", namespace: shop", REFUSED)] {
        let target = format!("targetRef: {{group: gateway.networking.k8s.io, kind: Gateway, name: edge{namespace}}}");
        check(
            &format!("{target}, jwtRules: [{{issuer: me, jwks: {}}}]", keys(0)),
            &[("GET web /?access_token=x".to_owned(), expected)],
        );
    }
}

#[test]
fn tokens_are_where_the_rule_says() {
    let keys = keys(0);
    let good = token(0, r#"{"iss":"me"}"#);
    let rows = |places: &str, rows: &[(String, &str)]| {
        check(&format!("jwtRules: [{{issuer: me, jwks: {keys}, {places}}}]"), rows);
    };
    rows(
        "fromHeaders: [{name: x-jwt}, {name: X-Auth, prefix: 'T:'}]",
        &[
            (format!("GET web / x-jwt={good}"), OPEN),
            ("GET web / x-jwt=x".to_owned(), "Jwt_is_not_in_the_form"),
            (format!("GET web / x-auth=T:{good}"), OPEN),
            ("GET web / x-auth=T:x".to_owned(), "Jwt_is_not_in_the_form"),
            ("GET web / x-auth=x".to_owned(), OPEN),
            ("GET web /?access_token=x".to_owned(), OPEN),
        ],
    );
    rows(
        "fromParams: [t.x]",
        &[
            (format!("GET web /?t.x={good}"), OPEN),
            ("GET web /?t%2Ex=1".to_owned(), "Jwt_is_not_in_the_form"),
            ("GET web /?tyx=1".to_owned(), OPEN),
        ],
    );
    rows(
        "fromCookies: [jwt]",
        &[
            (format!("GET web / cookie=a=b;jwt={good}"), OPEN),
            ("GET web / cookie=jwt=x".to_owned(), "Jwt_is_not_in_the_form"),
            ("GET web / cookie=myjwt=x".to_owned(), OPEN),
        ],
    );
}

#[test]
fn all_that_apply_are_merged() {
    let rule = |issuer: &str, signer: usize| format!("jwtRules: [{{issuer: {issuer}, jwks: {}}}]", keys(signer));
    let own = object("RequestAuthentication", "own", "", &rule("me", 0));
    let selecting = object(
        "RequestAuthentication",
        "selecting",
        "",
        &format!("selector: {{matchLabels: {{app: web}}}}, {}", rule("you", 1)),
    );
    let of_root = own.replace("namespace: shop", "namespace: istio-system").replace("name: own", "name: root");
    let (me, you) = (token(0, r#"{"iss":"me"}"#), token(1, r#"{"iss":"you"}"#));
    let with = |token: &str| format!("GET web /?access_token={token}");
    let unknown = "Jwt_issuer_is_not_configured";
    for (objects, pod, expected) in [
        (own.clone(), "web-0", [OPEN, unknown]),
        (selecting.clone(), "web-0", [unknown, OPEN]),
        (own.clone() + &selecting, "web-0", [OPEN, OPEN]),
        (of_root.clone(), "web-0", [OPEN, unknown]),
        (of_root + &selecting, "web-0", [OPEN, OPEN]),
        (selecting.clone(), "other-0", ["InboundPassthroughCluster", "InboundPassthroughCluster"]),
    ] {
        check_objects(&objects, pod, &[(with(&me), expected[0]), (with(&you), expected[1])]);
    }
    // Several rules: each issuer's tokens have to be valid, whoever says that he is one.
    let both = own + &selecting;
    check_objects(
        &both,
        "web-0",
        &[
            ("GET web /".to_owned(), OPEN),
            (with(&token(1, r#"{"iss":"me"}"#)), "Jwks_doesn't_have_key"),
            (with(&token(2, r#"{"iss":"me"}"#)), "Jwt_verification_fails"),
            (with("x"), "Jwt_is_not_in_the_form"),
            (with(&token(0, r#"{"iss":"nobody"}"#)), unknown),
        ],
    );
}

#[test]
fn without_usable_keys_every_token_fails() {
    let good = format!("GET web /?access_token={}", token(0, r#"{"iss":"me"}"#));
    let no_keys = "Jwks_doesn't_have_key_to_match_kid_or_alg_from_Jwt";
    let rows = |expected| [("GET web /".to_owned(), OPEN), (good.clone(), expected)];
    let uri = "jwtRules: [{issuer: me, jwksUri: 'https://me.test/keys'}]";
    for spec in [
        "jwtRules: [{issuer: me}]",
        "jwtRules: [{issuer: me, jwks: '{}'}]",
        "jwtRules: [{issuer: me, jwks: 'no JSON'}]",
        r#"jwtRules: [{issuer: me, jwks: '{"keys":[{"kty":"oct","k":"AAAA"}]}'}]"#,
        uri,
    ] {
        check(spec, &rows(no_keys));
    }
    // What the control plane has fetched.
    let name = JwksSource::Uri("https://me.test/keys".into()).config_map();
    let fetched = format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: istio-system}}\ndata: {{jwks: {}}}\n",
        keys(0)
    );
    // The field has an older name.
    for uri in [uri, &uri.replace("jwksUri", "jwks_uri")] {
        let authentication = object("RequestAuthentication", "jwt", "", uri);
        check_objects(&(authentication.clone() + &fetched), "web-0", &rows(OPEN));
        check_objects(&(authentication + &fetched.replace("istio-system", "shop")), "web-0", &rows(no_keys));
    }
}

/// Istio's `PILOT_JWT_ENABLE_REMOTE_JWKS`: whether a proxy fetches the keys itself, and over which cluster.
#[test]
fn proxies_fetch_keys_of_services() {
    use JwksFetching::{ControlPlane, Hybrid, Proxies};
    let (local, remote) = ("local", |cluster: &str| format!("remote {cluster}"));
    let web = "outbound|80||web.shop.svc.cluster.local";
    for (uri, fetching, expected, missing) in [
        ("http://web.shop.svc.cluster.local/keys", ControlPlane, local.to_owned(), "fetched from http://web"),
        ("http://web.shop.svc.cluster.local/keys", Hybrid, remote(web), ""),
        ("http://web.shop.svc.cluster.local:80/keys?a=b", Proxies, remote(web), ""),
        // The service has no such port, the host is not one of a service.
        ("https://web.shop.svc.cluster.local/keys", Hybrid, local.to_owned(), "fetched from https://web"),
        ("http://web.shop/keys", Hybrid, local.to_owned(), "fetched from http://web.shop/keys"),
        ("https://me.test/keys", Hybrid, local.to_owned(), "fetched from https://me.test/keys"),
        ("https://me.test/keys", Proxies, local.to_owned(), "no service of the mesh has the host and port"),
    ] {
        let spec = format!("jwtRules: [{{issuer: me, jwksUri: '{uri}', timeout: 2s}}]");
        let text = mesh_text() + &object("RequestAuthentication", "jwt", "", &spec);
        let (loaded, _) = crate::recorded::load(&[("mesh.yaml".into(), text.into())]);
        let mesh = MeshConfig { jwks_fetching: fetching, ..MeshConfig::default() };
        let (snapshot, found) = evenkeel_model::build(&loaded, &mesh, &mut AddressBook::default());
        let all = as_json(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot));
        let mut providers = Vec::new();
        each_object(&all, &mut |fields| providers.extend(fields.get("providers").cloned()));
        let provider = &providers.first().expect("a filter")["origins-0"];
        let source = &provider["remote_jwks"];
        let text = match source["http_uri"]["cluster"].as_str() {
            Some(cluster) => {
                assert_eq!(source["http_uri"]["uri"], uri);
                assert_eq!((&source["http_uri"]["timeout"], &source["cache_duration"]), (&"2s".into(), &"300s".into()));
                remote(cluster)
            }
            None if provider["local_jwks"].is_object() => local.to_owned(),
            None => provider.to_string(),
        };
        assert_eq!(text, expected, "{uri} {fetching:?}");
        let said: Vec<_> =
            found.iter().filter(|one| one.code.contains("jwks")).map(|one| one.message.clone()).collect();
        assert_eq!(said.is_empty(), missing.is_empty(), "{uri} {fetching:?}: {said:?}");
        assert!(said.iter().all(|message| message.contains(missing)), "{uri} {fetching:?}: {said:?}");
        let fetched_here = !missing.is_empty() && fetching != Proxies;
        assert_eq!(snapshot.jwks_sources().len(), usize::from(fetched_here), "{uri} {fetching:?}");
    }
}

/// Calls `with` with each object in a value.
fn each_object(value: &Value, with: &mut dyn FnMut(&serde_json::Map<String, Value>)) {
    match value {
        Value::Array(entries) => entries.iter().for_each(|entry| each_object(entry, with)),
        Value::Object(fields) => {
            with(fields);
            fields.values().for_each(|field| each_object(field, with));
        }
        _ => {}
    }
}

/// Stock Envoy would verify tokens with a shared secret, so it is not told of one.
#[test]
fn shared_secrets_reach_no_proxy() {
    let mixed = format!(r#"'{{"keys":[{{"kty":"oct","k":"c2VjcmV0"}},{}]}}'"#, SIGNERS[0].jwk());
    let authentication =
        object("RequestAuthentication", "jwt", "", &format!("jwtRules: [{{issuer: me, jwks: {mixed}}}]"));
    let good = token(0, r#"{"iss":"me"}"#);
    check_objects(&authentication, "web-0", &[(format!("GET web /?access_token={good}"), OPEN)]);
    let (loaded, _) = crate::recorded::load(&[("mesh.yaml".into(), (mesh_text() + &authentication).into())]);
    let (snapshot, _) = evenkeel_model::build(&loaded, &MeshConfig::default(), &mut AddressBook::default());
    let shown = as_json(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot)).to_string();
    assert!(shown.contains("local_jwks") && !shown.contains("c2VjcmV0"), "{shown}");
}

/// Each mistake with keys is reported where it is.
#[test]
fn mistakes_with_keys_are_found() {
    for (spec, code, expected) in [
        ("jwtRules: [{issuer: me, jwks: '{}'}]", "bad-jwks", "no JSON object with the list `keys`"),
        (r#"jwtRules: [{issuer: me, jwks: '{"keys":[{"kty":"oct","k":"AA"}]}'}]"#, "bad-jwks", "shared secret"),
        ("jwtRules: [{issuer: me}]", "no-jwks", "nothing says where its keys are"),
        ("jwtRules: [{issuer: me, jwksUri: 'https://me.test/keys'}]", "jwks-not-fetched", "https://me.test/keys"),
        (
            "jwtRules: [{issuer: 'https://me.test/'}]",
            "jwks-not-fetched",
            "https://me.test/.well-known/openid-configuration",
        ),
        ("jwtRules: [{issuer: me, jwksUri: 'me.test/keys'}]", "bad-value", "no URL"),
        ("targetRefs: [{kind: Service, group: '', name: web}], jwtRules: [{issuer: me}]", "closed", "for a waypoint"),
        ("targetRefs: [{kind: ServiceEntry, group: networking.istio.io, name: web}]", "no-effect", "waypoints"),
        ("targetRefs: [{kind: Gatway, group: gateway.networking.k8s.io, name: web}]", "bad-value", "the kind `Gatway`"),
        ("targetRefs: [{kind: Gateway, group: networking.istio.io, name: web}]", "bad-value", "`networking.istio.io`"),
        ("targetRefs: [{kind: Gateway, name: web}]", "bad-value", "of the group ``"),
        ("targetRefs: [{kind: Deployment, group: apps, name: web}]", "bad-value", "the kind `Deployment`"),
        (
            "selector: {matchLabels: {app: web}}, targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: g}]",
            "conflict",
            "exclude",
        ),
    ] {
        let text = mesh_text() + &object("RequestAuthentication", "jwt", "", spec);
        let (loaded, found) = crate::recorded::load(&[("mesh.yaml".into(), text.into())]);
        let (_, built) = evenkeel_model::build(&loaded, &MeshConfig::default(), &mut AddressBook::default());
        let finding = found.iter().chain(built.iter()).find(|finding| finding.code == code);
        let finding = finding.unwrap_or_else(|| panic!("{spec}: {found} {built}"));
        assert!(finding.message.contains(expected), "{spec}: {}", finding.message);
    }
}

#[test]
fn what_it_does_not_judge_passes() {
    let all =
        object("RequestAuthentication", "jwt", "", "selector: {matchLabels: {app: web}}, jwtRules: [{issuer: me}]");
    let client = mesh("shop/sa/web");
    let token = ["GET web /?access_token=x"];
    let (other, _) = calls(&all, "other-0", 8080, &client, &token, MeshConfig::default());
    assert_eq!(other, ["InboundPassthroughCluster web/?access_token=x"]);
    // Bytes carry no tokens.
    let (tcp, _) = calls(&all, "web-0", 8081, &client, &[""], MeshConfig::default());
    assert_eq!(tcp, ["inbound|8081||"]);
    // Without rules it accepts everything.
    let none = object("RequestAuthentication", "jwt", "", "selector: {matchLabels: {app: web}}");
    let (ends, told) = calls(&none, "web-0", 8080, &client, &token, MeshConfig::default());
    assert_eq!((ends, told), (vec!["inbound|8080|| web/?access_token=x".to_owned()], 0));
}

#[test]
fn one_that_is_refused_may_ask_for_tokens_anywhere() {
    let authentication =
        object("RequestAuthentication", "jwt", "", "jwtRules: [{issuer: me, fromHeader: [{name: x}]}]");
    let client = mesh("shop/sa/web");
    let (ends, told) = calls(&authentication, "web-0", 8080, &client, &["GET web /"], MeshConfig::default());
    assert_eq!((ends, told), (vec![format!("{REFUSED}[0]")], 1));
}

#[test]
fn an_option_leaves_out_what_is_refused() {
    let option = || MeshConfig { leave_out_refused: true, ..MeshConfig::default() };
    let client = mesh("shop/sa/web");
    let check = |objects: &str, request: &str, expected: &str| {
        let (ends, _) = calls(objects, "web-0", 8080, &client, &[request], option());
        assert_eq!(ends, [expected], "{objects}");
    };
    let open = "inbound|8080|| web/";
    check(&object("AuthorizationPolicy", "p", "", "action: DENNY"), "GET web /", open);
    check(&object("RequestAuthentication", "jwt", "", "jwtRulez: []"), "GET web /", open);
    check(&object("PeerAuthentication", "p", "", "mtls: {mode: STRIKT}"), "GET web /", open);
    // A sound policy still holds.
    check(
        &object("AuthorizationPolicy", "p", "", "action: DENY, rules: [{}]"),
        "GET web /",
        "denied by ns[shop]-policy[p]-rule[0]",
    );
}
