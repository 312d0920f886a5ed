//! Dry-run policies, and RequestAuthentications whose tokens cannot be checked: what calls come to.

use evenkeel_base::Severity;
use evenkeel_model::{AddressBook, MeshConfig};
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

const REFUSED: &str = "denied by ns[shop]-request-authentication[jwt]-not-supported-rule";

/// Checks requests, each with whether it is refused.
#[track_caller]
fn check(spec: &str, requests: &[(&str, bool)]) {
    let authentication = object("RequestAuthentication", "jwt", "", spec);
    let texts: Vec<&str> = requests.iter().map(|(request, _)| *request).collect();
    let client = mesh("shop/sa/web");
    let (ends, told) = calls(&authentication, "web-0", 8080, &client, &texts, MeshConfig::default());
    let refused: Vec<(&str, bool)> =
        texts.iter().copied().zip(ends.iter().map(|end| end.starts_with(REFUSED))).collect();
    assert_eq!((refused.as_slice(), told), (requests, 1), "{spec}: {ends:?}");
}

#[test]
fn requests_with_a_token_are_refused_until_it_can_be_checked() {
    check(
        "selector: {matchLabels: {app: web}}, jwtRules: [{issuer: me, jwksUri: 'https://me/keys'}]",
        &[
            ("GET web /", false),
            ("GET web / authorization=Basic", false),
            ("GET web /?access_token=x", true),
            ("GET web /?a=b&access_token=x", true),
            ("GET web /?access%5Ftoken=x", true),
            ("GET web /?my_access_token=x", false),
            ("GET web /access_token=x", false),
        ],
    );
    check(
        "jwtRules: [{issuer: me, fromHeaders: [{name: x-jwt}, {name: x-auth, prefix: 'T:'}]}]",
        &[
            ("GET web / x-jwt=x", true),
            ("GET web / x-jwt=", true),
            ("GET web / x-auth=T:x", true),
            ("GET web / x-auth=x", false),
            ("GET web /?access_token=x", false),
        ],
    );
    check("jwtRules: [{issuer: me, fromParams: [t.x]}]", &[("GET web /?t.x=1", true), ("GET web /?tyx=1", false)]);
    check(
        "jwtRules: [{issuer: me, fromCookies: [jwt]}]",
        &[("GET web / cookie=jwt=x", true), ("GET web / cookie=a=b;jwt=x", true), ("GET web / cookie=myjwt=x", false)],
    );
    // Programs trust headers that the filter would have filled, and removed before.
    check(
        "jwtRules: [{issuer: me, fromCookies: [jwt], outputPayloadToHeader: x-payload, outputClaimToHeaders: [{header: x-group, claim: group}]}]",
        &[("GET web / x-payload=e30", true), ("GET web / x-group=admin", true), ("GET web /", false)],
    );
}

#[test]
fn a_bearer_token_is_one() {
    let authentication = object("RequestAuthentication", "jwt", "", "jwtRules: [{issuer: me}]");
    let (loaded, _) = crate::recorded::load(&[("mesh.yaml".into(), (mesh_text() + &authentication).into())]);
    let (snapshot, _) = evenkeel_model::build(&loaded, &MeshConfig::default(), &mut AddressBook::default());
    let policy = snapshot.authorization_policies.first().expect("a stand-in");
    let shown = format!("{:?}", policy.rules);
    assert!(shown.contains("authorization") && shown.contains("Bearer "), "{shown}");
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
    check(
        &object("RequestAuthentication", "jwt", "", "jwtRules: [{issuer: me}]"),
        "GET web /?access_token=x",
        "inbound|8080|| web/?access_token=x",
    );
    check(&object("RequestAuthentication", "jwt", "", "jwtRulez: []"), "GET web /", open);
    check(&object("PeerAuthentication", "p", "", "mtls: {mode: STRIKT}"), "GET web /", open);
    // A sound policy still holds.
    check(
        &object("AuthorizationPolicy", "p", "", "action: DENY, rules: [{}]"),
        "GET web /",
        "denied by ns[shop]-policy[p]-rule[0]",
    );
}
