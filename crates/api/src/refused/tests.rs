//! Which stand-ins close access in place of refused documents.

use evenkeel_base::Spanned;

use super::*;
use crate::istio::{ClientTlsMode, MeshConfig, MeshOutboundMode};

/// The stand-ins of a text: `AuthorizationPolicy shop/web {app: web} DENY 2 1/1/0` (from, to and when of each rule).
fn shown(text: &str) -> Vec<String> {
    let (objects, found) = crate::load(&[("policies.yaml".into(), text.into())]);
    let stand_ins: Vec<_> = objects.iter().filter(|object| object.refused.is_some()).collect();
    assert!(stand_ins.is_empty() || found.has_errors(), "{text}\n{found}");
    stand_ins.iter().map(|object| format!("{object}{}", of_resource(object))).collect()
}

fn of_resource(object: &Object) -> String {
    let labels = |labels: &BTreeMap<String, String>| {
        labels.iter().map(|(name, value)| format!(" {name}={value}")).collect::<String>()
    };
    match &object.resource {
        Resource::AuthorizationPolicy(policy) => {
            let spec = policy.spec.as_ref().expect("a specification");
            let mut selected = spec.selector.iter().map(|s| labels(&s.match_labels)).collect::<String>();
            selected.extend(spec.target_refs.iter().map(|target| format!(" {}/{}", *target.kind, *target.name)));
            let rule =
                |rule: &crate::istio::Rule| format!(" {}/{}/{}", rule.from.len(), rule.to.len(), rule.when.len());
            let rules = spec.rules.iter().map(|written| rule(written)).collect::<String>();
            format!("{selected} {}{rules}", spec.action.expect("an action").as_str())
        }
        Resource::PeerAuthentication(policy) => {
            let spec = policy.spec.as_ref().expect("a specification");
            let mode = spec.mtls.as_ref().and_then(|mtls| mtls.mode).expect("a mode");
            let selected = spec.selector.iter().map(|s| labels(&s.match_labels)).collect::<String>();
            format!("{selected} {}", mode.as_str())
        }
        Resource::DestinationRule(rule) => {
            let tls = rule.spec.traffic_policy.as_ref().and_then(|policy| policy.tls.as_ref()).expect("TLS");
            let nobody = tls.subject_alt_names.iter().any(|name| name.ends_with(".invalid"));
            let whom = if nobody { "nobody" } else { "as written" };
            format!(" {} {} {whom}", rule.spec.host.value, tls.mode.map_or("", ClientTlsMode::as_str))
        }
        Resource::Sidecar(sidecar) => {
            let spec = &sidecar.spec;
            let selected = spec.workload_selector.iter().map(|s| labels(&s.labels)).collect::<String>();
            let mode = spec.outbound_traffic_policy.as_ref().and_then(|policy| policy.mode).expect("a mode");
            format!("{selected} {} {}/{}", mode.as_str(), spec.ingress.len(), spec.egress.len())
        }
        Resource::RequestAuthentication(authentication) => {
            let rules = authentication.spec.iter().map(|spec| spec.jwt_rules.len()).sum::<usize>();
            if rules == 0 { " any".to_owned() } else { format!(" {rules}") }
        }
        Resource::ConfigMap(_) => {
            let (settings, _) = MeshConfig::of_object(object).expect("settings");
            let mode = settings.outbound_traffic_policy.and_then(|policy| policy.mode);
            format!(" {}", mode.map_or("", |mode| MeshOutboundMode::as_str(mode.value)))
        }
        other => panic!("{other:?}"),
    }
}

/// A policy `web` of the namespace `shop` with these fields in its `spec`.
fn policy(spec: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: web, namespace: shop}}\nspec:\n{}",
        spec.lines().map(|line| format!("  {line}\n")).collect::<String>()
    )
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    assert_eq!(shown(text), expected, "{text}");
}

const SELECTOR: &str = "selector: {matchLabels: {app: web}}\n";
const CLOSED: &str = "AuthorizationPolicy shop/web app=web DENY 0/0/0";

#[test]
fn what_is_sound_or_guards_nothing_has_no_stand_in() {
    check(&policy("selector: {matchLabels: {app: web}}\nrules: [{}]"), &[]);
    check("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {prots: []}\n", &[]);
    check("apiVersion: policy.linkerd.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: web}\nspec: {x: 1}\n", &[]);
    check("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: other}\ndata: {a: 1}\n", &[]);
    check("a: [\n", &[]);
}

#[test]
fn an_allow_policy_allows_nothing() {
    let check =
        |rest: &str| check(&policy(&format!("{SELECTOR}{rest}")), &["AuthorizationPolicy shop/web app=web ALLOW"]);
    check("rules: [{from: [{source: {requestPrincipalz: ['*']}}]}]");
    check("rules: [{from: [{source: {principals: ['a']}}]}, {form: []}]");
    check("action: ALLOW\nrulez: []");
    check("action: ALLOW\nrules: {}");
}

#[test]
fn a_deny_policy_refuses_what_its_rules_may_mean() {
    let check = |rest: &str, expected: &str| {
        check(
            &policy(&format!("{SELECTOR}{rest}")),
            &[&format!("AuthorizationPolicy shop/web app=web DENY{expected}")],
        );
    };
    let to = "to: [{operation: {paths: [/admin]}}]";
    let sound = "from: [{source: {namespaces: [a]}}]";
    // An unreadable part of a rule matches anything; the rest of it, and other rules, stay.
    check(&format!("action: DENY\nrules: [{{from: [{{source: {{notRequestPrincipalz: ['*']}}}}], {to}}}]"), " 0/1/0");
    check(
        &format!("action: DENY\nrules: [{{{sound}, to: [{{operation: {{pathz: [/a]}}}}]}}, {{{to}}}]"),
        " 1/0/0 0/1/0",
    );
    check(&format!("action: DENY\nrules: [{{{to}, when: [{{key: 'request.auth.claim[a]', values: [b]}}]}}]"), " 0/1/0");
    check(&format!("action: DENY\nrules: [{{{to}, frm: []}}, 5]"), " 0/1/0 0/0/0");
    check("action: DENY\nrules: 5", " 0/0/0");
    // No provider is asked: requests that it would have been asked about are denied.
    check(&format!("action: CUSTOM\nprovider: {{nam: oidc}}\nrules: [{{{to}}}]"), " 0/1/0");
    check("action: CUSTOM\nprovider: {nam: oidc}", "");
}

#[test]
fn what_leaves_its_action_in_doubt_closes_all_it_selects() {
    let check = |rest: &str| check(&policy(&format!("{SELECTOR}{rest}")), &[CLOSED]);
    check("action: DENNY\nrules: [{}]");
    check("action: 7");
    check("acton: DENY\nrules: [{}]");
    check("action: DENY\nrulez: [{}]");
}

#[test]
fn references_with_a_mistake_are_to_the_whole_namespace() {
    let check = |spec: &str, expected: &str| {
        check(&policy(spec), &[&format!("AuthorizationPolicy shop/web{expected} DENY 0/0/0")]);
    };
    let gateway = "{group: gateway.networking.k8s.io, kind: Gateway, name: edge}";
    // The kind of each is of another group, or there is no such kind.
    for kind in ["Gateway", "GatewayClass", "ServiceEntry", "Gatway", "''"] {
        check(&format!("action: DENY\nrules: [{{}}]\ntargetRef: {{kind: {kind}, name: x}}"), "");
        check(&format!("action: DENY\nrules: [{{}}]\ntargetRefs: [{{kind: {kind}, name: x}}]"), "");
    }
    check("action: DENY\nrules: [{}]\ntargetRefs: [{kind: Service, name: ''}]", "");
    check("action: DENY\nrules: [{}]\ntargetRefs: [{kind: Service, name: x, namespace: shop}]", "");
    check(&format!("action: DENY\nrules: [{{}}]\ntargetRef: {gateway}\ntargetRefs: [{gateway}]"), "");
    check(&format!("{SELECTOR}action: DENY\nrules: [{{}}]\ntargetRefs: [{gateway}]"), "");
    check(&format!("action: DENNY\ntargetRefs: [{gateway}, 5]"), "");
    // Mistakes elsewhere leave the references as they are.
    check(&format!("action: DENNY\ntargetRefs: [{gateway}]"), " Gateway/edge");
    check(&format!("action: DENNY\ntargetRef: {gateway}"), " Gateway/edge");
    check(&format!("action: DENNY\n{SELECTOR}targetRefs: []"), " app=web");
}

#[test]
fn what_is_only_looked_at_closes_nothing() {
    check(&policy("action: AUDIT\nrules: [{}]"), &[]);
}

#[test]
fn a_selector_with_a_mistake_selects_more() {
    let check = |selector: &str, expected: &str| {
        check(
            &policy(&format!("{selector}\naction: ALLOW\nbogus: 1")),
            &[&format!("AuthorizationPolicy shop/web{expected} ALLOW")],
        );
    };
    check("selector: {matchLabels: {app: web, version: 1}}", " app=web");
    check("selector: {matchlabels: {app: web}}", "");
    check("selctor: {matchLabels: {app: web}}", "");
    check("selector: web", "");
}

#[test]
fn it_is_found_whatever_is_wrong_around_it() {
    let all = "metadata: {name: web, namespace: shop}\nspec: {selector: {matchLabels: {app: web}}, action: DENY, rules: [{}], x: 1}\n";
    for head in [
        "apiVersion: security.istio.io/v7\nkind: AuthorizationPolicy\n",
        "apiVersion: securty.istio.io/v1\nkind: AuthorizationPolicy\n",
        "apiVersion: v1\nkind: AuthorizationPolicy\n",
        "kind: AuthorizationPolicy\n",
        "apiVersion: security.istio.io/v1\nkind: AuthorisationPolicy\n",
        "apiVersion: security.istio.io/v1\nkind: authorizationpolicy\n",
        "apiVersion: security.istio.io/v1\n",
        "apiVersion: security.istio.io/v1\nkind: [AuthorizationPolicy]\n",
        "apiVersion: security.istio.io/v1\nkid: AuthorizationPolicy\n",
    ] {
        check(&format!("{head}{all}"), &[CLOSED]);
        // In lists of all kinds.
        let item = format!("{head}{all}").replace("\n", "\n    ");
        check(&format!("apiVersion: v1\nkind: List\nitems:\n  - {item}\n"), &[CLOSED]);
        check(&format!("apiVersion: v1\nkind: List\nitmes:\n  - {item}\n"), &[CLOSED]);
        check(&format!("- {}\n", item.replace("\n    ", "\n  ")), &[CLOSED]);
    }
    let nested = policy("rules: [{}]").replace('\n', "\n        ");
    let list = format!(
        "apiVersion: v1\nkind: List\nitems:\n  - apiVersion: v1\n    kind: List\n    items:\n      - {nested}\n"
    );
    check(&list, &["AuthorizationPolicy shop/web ALLOW"]);
}

#[test]
fn a_namespace_is_guessed_and_a_name_made_up() {
    let check_metadata = |metadata: &str, expected: &str| {
        let text = format!("apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n{metadata}\nspec: {{}}\n");
        check(&text, &[expected]);
    };
    check_metadata("metadata: {name: web, namspace: shop}", "AuthorizationPolicy shop/web ALLOW");
    check_metadata("metdata: {name: web, namespace: shop}", "AuthorizationPolicy shop/web DENY 0/0/0");
    check_metadata("namespace: shop\nmetadata: {name: web}", "AuthorizationPolicy shop/web DENY 0/0/0");
    check_metadata("metadata: {namespace: shop}", "AuthorizationPolicy shop/policies.yaml:1 ALLOW");
    check_metadata("metadata: {name: Web_}", "AuthorizationPolicy default/Web_ ALLOW");
    check_metadata("metadata: {name: web, namespace: 7}", "AuthorizationPolicy 7/web ALLOW");
}

#[test]
fn a_text_that_is_not_yaml_closes_the_namespaces_it_names() {
    let sound = policy("rules: [{}]");
    check(
        &format!("{sound}---\n{}  rules: [\n---\n{sound}", policy("")),
        &["AuthorizationPolicy shop/policies.yaml:6 DENY 0/0/0"],
    );
    check(&policy("rules: [{}]\nrules: [{}]"), &["AuthorizationPolicy shop/policies.yaml:1 DENY 0/0/0"]);
    check(
        "kind AuthorizationPolicy\nmetadata:\n  namespace: 'b'\n\tx: 1\n",
        &["AuthorizationPolicy b/policies.yaml:1 DENY 0/0/0"],
    );
    let json = "{\"kind\": \"AuthorizationPolicy\", \"metadata\": {\"name\": \"web\", \"namespace\": \"b\"}, ";
    check(json, &["AuthorizationPolicy b/policies.yaml:1 DENY 0/0/0"]);
    check("kind: PeerAuthentication\nspec: {\n", &["PeerAuthentication default/policies.yaml:1 STRICT"]);
    check("# AuthorizationPolicy\nkind: Service\nspec: {\n", &[]);
    let settings = "kind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\ndata: {\n";
    check(settings, &["ConfigMap istio-system/istio REGISTRY_ONLY"]);
}

#[test]
fn a_peer_authentication_takes_mutual_tls_only() {
    let check = |spec: &str, expected: &str| {
        let text = format!(
            "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: p, namespace: a}}\nspec: {spec}\n"
        );
        super::tests::check(&text, &[&format!("PeerAuthentication a/p{expected} STRICT")]);
    };
    check("{mtls: {mode: STRIKT}}", "");
    check("{selector: {matchLabels: {app: web}}, mtls: {mode: PERMISSIVE, x: 1}}", " app=web");
}

#[test]
fn a_destination_rule_that_asks_for_tls_never_leads_to_plain_text() {
    let check = |policy: &str, expected: &[&str]| {
        let head = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: d}\n";
        let text = format!("{head}spec: {{host: a.example, bogus: 1, {policy}}}\n");
        super::tests::check(&text, expected);
    };
    let nobody = "DestinationRule default/d a.example SIMPLE nobody";
    check("trafficPolicy: {connectionPool: {}}", &[]);
    check("trafficPolicy: {tls: {mode: DISABLE}}", &[]);
    check(
        "trafficPolicy: {tls: {mode: SIMPLE, sni: a.example}}",
        &["DestinationRule default/d a.example SIMPLE as written"],
    );
    check(
        "trafficPolicy: {tls: {mode: SIMPLE, credentialName: c}}",
        &["DestinationRule default/d a.example SIMPLE as written"],
    );
    check("trafficPolicy: {tls: {mode: SIMPEL}}", &[nobody]);
    check("trafficPolicy: {portLevelSettings: [{port: {number: 443}, tls: {mode: SIMPLE}}]}", &[nobody]);
    check("subsets: [{name: v1, trafficPolicy: {tls: {mode: SIMPLE}}}]", &[nobody]);
}

#[test]
fn settings_of_the_mesh_that_can_be_read_hold() {
    let check = |settings: &str, expected: &str| {
        let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio, namespace: istio-system}\n";
        let text = format!("{head}data:\n  mesh: |-\n    {}\n", settings.replace('\n', "\n    "));
        super::tests::check(&text, &[format!("ConfigMap istio-system/istio {expected}").as_str()]);
    };
    let only = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}";
    check(&format!("{only}\nconnectTimeout: soon"), "REGISTRY_ONLY");
    check("outboundTrafficPolicy: {mode: ALLOW_ANY}\nconnectTimeout: soon", "ALLOW_ANY");
    check("connectTimeout: soon", "");
    // A field of a newer version is only left out.
    check(&format!("{only}\nfutureSetting: 1\nconnectTimeout: soon"), "REGISTRY_ONLY");
    check("outboundTrafficPolicy: {mode: REGISTRYONLY}", "REGISTRY_ONLY");
    check("outboundTraficPolicy: {mode: REGISTRY_ONLY}", "REGISTRY_ONLY");
    check("trustDomain: [", "REGISTRY_ONLY");
}

#[test]
fn settings_that_restrict_are_as_strict_as_they_can_be_if_they_are_unclear() {
    use crate::istio::{Normalization, VisibilityLevel};
    let read = |settings: &str| {
        let text = Spanned::new(settings.to_owned(), evenkeel_base::Span::whole_file("mesh.yaml"));
        mesh_config(&text).expect("settings")
    };
    let normalization = |settings: &str| read(settings).path_normalization.and_then(|path| path.normalization);
    assert_eq!(normalization("pathNormalization: {normalization: DECODE}"), Some(Normalization::DecodeAndMergeSlashes));
    assert_eq!(normalization("pathNormalisation: {normalization: NONE}"), Some(Normalization::DecodeAndMergeSlashes));
    assert_eq!(normalization("pathNormalization: {normalization: NONE}"), Some(Normalization::None));
    assert_eq!(normalization("connectTimeout: soon"), None);
    assert!(read("meshMTLS: {minProtocolVersion: TLS13}").mesh_mtls.is_some_and(|tls| tls.is_1_3_only()));
    assert!(read("tlsDefaults: {cipherSuites: [NULL]}").tls_defaults.is_some_and(|tls| tls.is_1_3_only()));
    let limits = read("serviceEntryVisibility: {defaultVisiblity: NONE}").service_entry_visibility.expect("limits");
    assert_eq!(limits.of(&Default::default()), VisibilityLevel::Namespace);
}

#[test]
fn a_sidecar_closes_the_way_out_unless_it_can_be_read_that_it_does_not() {
    let head = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: web, namespace: shop}\n";
    let spec = |spec: &str| format!("{head}spec: {{{spec}}}\n");
    let closed = "Sidecar shop/web REGISTRY_ONLY 0/0";
    let selector = "workloadSelector: {labels: {app: web}}";
    let only = "outboundTrafficPolicy: {mode: REGISTRY_ONLY}";
    let own = "egress: [{hosts: ['./*']}]";
    check(&spec(&format!("{only}, {own}")), &[]);
    // The document says so.
    check(&spec(&format!("{only}, {own}, bogus: 1")), &["Sidecar shop/web REGISTRY_ONLY 0/1"]);
    check(
        &spec(&format!("{only}, egress: [{{hosts: [nowhere]}}], {selector}")),
        &["Sidecar shop/web app=web REGISTRY_ONLY 0/0"],
    );
    check(
        &spec(&format!("{only}, {own}, ingress: [{{port: {{number: 80, protocol: HTTP}}}}], x: 1")),
        &["Sidecar shop/web REGISTRY_ONLY 1/1"],
    );
    // The document may have said so.
    check(&spec("outboundTrafficPolicy: {mode: REGISTRYONLY}"), &[closed]);
    check(&spec("outboundTrafficPolicy: {mode: ALLOW_ANY, x: 1}"), &[closed]);
    check(&spec("outboundTraficPolicy: {mode: ALLOW_ANY}"), &[closed]);
    check(&spec(&format!("{own}, outboundPolicy: {{}}")), &["Sidecar shop/web REGISTRY_ONLY 0/1"]);
    check(&format!("{head}spek: {{{only}}}\n"), &[closed]);
    // Calls that were to go elsewhere go nowhere.
    check(&spec("outboundTrafficPolicy: {mode: ALLOW_ANY, egressProxy: {host: egress.shop.svc}}, x: 1"), &[closed]);
    // The document says something else, or leaves it to the mesh.
    check(&spec("outboundTrafficPolicy: {mode: ALLOW_ANY}, bogus: 1"), &[]);
    check(&spec("egress: [{hosts: [nowhere]}]"), &[]);
    // Regardless of errors around it.
    let body = format!("metadata: {{name: web, namespace: shop}}\nspec: {{{only}}}\n");
    for head in [
        "apiVersion: networking.istio.io/v7\nkind: Sidecar\n",
        "apiVersion: networking.istio.io/v1\nkind: Sidecars\n",
        "apiVersion: networking.istio.io/v1\n",
        "kind: Sidecar\n",
        "apiVersion: networking.istio.io/v1\nkid: Sidecar\n",
    ] {
        check(&format!("{head}{body}"), &[closed]);
    }
    check(&format!("{head}spec: {{{only}\n"), &["Sidecar shop/policies.yaml:1 REGISTRY_ONLY 0/0"]);
    let unread = super::everything(
        &"a/b.yaml".into(),
        Refusal { place: Span::whole_file("b.yaml"), message: String::new(), unsupported: None },
    );
    let unread: Vec<String> =
        unread.iter().map(|object| format!("{:?}{}", object.namespace, of_resource(object))).collect();
    assert_eq!(unread, ["\"\" DENY 0/0/0", "\"\" REGISTRY_ONLY 0/0"]);
}

/// An unreadable RequestAuthentication closes what it would have judged; policies that match claims are valid.
#[test]
fn what_judges_tokens_is_closed_and_what_asks_for_them_is_sound() {
    let tokens = "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\nmetadata: {name: t, namespace: shop}\nspec: {jwtRulez: [}]}\n";
    // Which tokens it asks for is not known.
    check(tokens, &["RequestAuthentication shop/policies.yaml:1 any"]);
    check(&tokens.replace("}]", "]"), &["RequestAuthentication shop/t any"]);
    for action in ["ALLOW", "DENY"] {
        for source in ["requestPrincipals: ['*']", "notRequestPrincipals: ['*']"] {
            let rules = format!("action: {action}\nrules: [{{from: [{{source: {{{source}}}}}]}}]");
            check(&policy(&rules), &[]);
        }
        for key in ["request.auth.principal", "request.auth.claims[iss]"] {
            for values in ["values", "notValues"] {
                let rules = format!("action: {action}\nrules: [{{when: [{{key: '{key}', {values}: [a]}}]}}]");
                check(&policy(&rules), &[]);
            }
        }
    }
}
