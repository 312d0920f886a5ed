//! RequestAuthentication: which tokens (JWT) requests may carry.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::WorkloadSelector;
use crate::decode::{Context, HeaderName};

object! {
    /// Which tokens requests may carry. A request without a token passes; one with an invalid token does not.
    pub struct RequestAuthentication {
        /// The specification.
        spec: Option<RequestAuthenticationSpec> = "spec",
    }
    inert: ["status"];
}

object! {
    /// Which tokens requests may carry.
    pub struct RequestAuthenticationSpec {
        /// The selected workloads of the namespace; all if not given.
        selector: Option<WorkloadSelector> = "selector",
        /// The issuers whose tokens are accepted.
        jwt_rules: Vec<JwtRule> = "jwtRules",
        /// The resource whose workloads are selected.
        target_ref: Option<TargetRef> = "targetRef",
        /// The resources whose workloads are selected.
        target_refs: Vec<TargetRef> = "targetRefs",
    }
    check: check_targets;
}

object! {
    /// A resource whose workloads are selected.
    pub struct TargetRef {
        /// Its group.
        group: Option<String> = "group",
        /// Its kind.
        kind: Spanned<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace, which has to be that of the policy.
        namespace: Option<Spanned<String>> = "namespace",
    }
    check: check_target;
}

impl TargetRef {
    /// Whether it is a Gateway of the Gateway API.
    pub fn is_gateway(&self) -> bool {
        self.kind.as_str() == "Gateway" && self.group.as_deref() == Some("gateway.networking.k8s.io")
    }
}

/// The kinds of resources that Istio's policies may be for, each with its group.
const TARGETS: [(&str, &str); 4] = [
    ("Gateway", "gateway.networking.k8s.io"),
    ("GatewayClass", "gateway.networking.k8s.io"),
    ("Service", ""),
    ("ServiceEntry", "networking.istio.io"),
];

fn check_target(target: &TargetRef, _: &Node, cx: &mut Context) {
    let group = target.group.as_deref().unwrap_or_default();
    // Kubernetes calls the group of its first kinds `core`, too.
    let is_it =
        |(kind, of): &&(&str, &str)| *kind == target.kind.value && (*of == group || (of.is_empty() && group == "core"));
    if !target.kind.is_empty() && TARGETS.iter().find(is_it).is_none() {
        let kinds =
            TARGETS.map(|(kind, group)| if group.is_empty() { kind.to_owned() } else { format!("{kind} ({group})") });
        let message = format!("no policy can be for the kind `{}` of the group `{group}`", *target.kind);
        let help = match TARGETS.iter().find(|(kind, _)| *kind == target.kind.value) {
            Some((kind, group)) => format!("the group of {kind} is `{group}`"),
            None => format!("the kinds are {}; or select the workloads by `selector`", kinds.join(", ")),
        };
        cx.at_field("kind", |cx| cx.error("bad-value", &target.kind.span, message, help));
    }
    for (field, text) in [("kind", &target.kind), ("name", &target.name)] {
        if text.is_empty() {
            let message = format!("`{field}` is empty");
            cx.at_field(field, |cx| cx.error("missing-field", &text.span, message, "write what the policy is for"));
        }
    }
    if let Some(namespace) = &target.namespace {
        let help = "remove it: a policy is for resources of its own namespace";
        let message = "`namespace` cannot be given here".to_owned();
        cx.at_field("namespace", |cx| cx.error("bad-value", &namespace.span, message, help));
    }
}

fn check_targets(spec: &RequestAuthenticationSpec, _: &Node, cx: &mut Context) {
    let first = spec.target_ref.iter().chain(&spec.target_refs).next();
    if let (Some(target), Some(_)) = (first, &spec.selector) {
        let message = "`selector` and `targetRefs` exclude each other".to_owned();
        cx.at_field("selector", |cx| cx.error("conflict", &target.kind.span, message, "remove one of them"));
    }
}

object! {
    /// An issuer whose tokens are accepted.
    pub struct JwtRule {
        /// The issuer.
        issuer: Spanned<String> = "issuer",
        /// The audiences that are accepted.
        audiences: Vec<String> = "audiences",
        /// Where its keys are.
        jwks_uri: Option<Spanned<String>> = "jwksUri",
        /// Its keys.
        jwks: Option<Spanned<String>> = "jwks",
        /// Headers that may carry a token.
        from_headers: Vec<JwtHeader> = "fromHeaders",
        /// Query parameters that may carry a token.
        from_params: Vec<String> = "fromParams",
        /// Cookies that may carry a token.
        from_cookies: Vec<String> = "fromCookies",
        /// The header that gets the payload.
        output_payload_to_header: Option<HeaderName> = "outputPayloadToHeader",
        /// Headers that get claims.
        output_claim_to_headers: Vec<ClaimToHeader> = "outputClaimToHeaders",
        /// Whether the token is passed on.
        forward_original_token: bool = "forwardOriginalToken",
        /// Limit for fetching the keys.
        timeout: Option<Duration> = "timeout",
        /// Claims whose values are separated by spaces.
        space_delimited_claims: Vec<String> = "spaceDelimitedClaims",
    }
    inert: ["jwks_uri"];
    check: check_rule;
}

object! {
    /// A header that may carry a token.
    pub struct JwtHeader {
        /// Its name.
        name: HeaderName = "name",
        /// What stands before the token.
        prefix: Option<String> = "prefix",
    }
}

object! {
    /// A header that gets a claim.
    pub struct ClaimToHeader {
        /// Its name.
        header: HeaderName = "header",
        /// The claim.
        claim: String = "claim",
    }
}

fn check_rule(rule: &JwtRule, _: &Node, cx: &mut Context) {
    if rule.issuer.is_empty() {
        let help = "write the value that tokens have in `iss`";
        cx.at_field("issuer", |cx| cx.error("missing-field", &rule.issuer.span, "the issuer is empty", help));
    }
    if let Some(uri) = rule.jwks_uri.as_ref().filter(|uri| !is_url(uri)) {
        let message = format!("`{}` is no URL", uri.value);
        cx.at_field("jwksUri", |cx| {
            cx.error("bad-value", &uri.span, message, "write the URL of a JSON Web Key Set: `https://HOST/PATH`")
        });
    }
    if let (Some(jwks), Some(_)) = (&rule.jwks, &rule.jwks_uri) {
        let help = "remove one of them";
        cx.at_field("jwks", |cx| cx.error("conflict", &jwks.span, "`jwks` and `jwksUri` exclude each other", help));
    }
}

fn is_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    rest.is_some_and(|rest| {
        let authority = rest.split(['/', '?']).next().unwrap_or_default();
        !authority.is_empty() && !authority.contains('@') && rest.bytes().all(|byte| byte.is_ascii_graphic())
    })
}

impl RequestAuthentication {
    /// A stand-in for one that is refused: it may name any place for tokens.
    pub(crate) fn of_anything(selector: BTreeMap<String, String>) -> Self {
        let selector = (!selector.is_empty()).then_some(WorkloadSelector { match_labels: selector });
        Self {
            spec: Some(RequestAuthenticationSpec {
                selector,
                jwt_rules: Vec::new(),
                target_ref: None,
                target_refs: Vec::new(),
            }),
        }
    }
}
