//! RequestAuthentication: which tokens (JWT) requests may carry.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::yaml::Node;

use super::WorkloadSelector;
use super::target_ref::{TargetRef, check_only_one};
use crate::decode::{Context, HeaderName};

object! {
    /// Which tokens requests may carry. A request without a token passes unless a rule says otherwise; one with an invalid token
    /// does not.
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

fn check_targets(spec: &RequestAuthenticationSpec, _: &Node, cx: &mut Context) {
    check_only_one(spec.selector.as_ref(), spec.target_ref.as_ref(), &spec.target_refs, cx);
}

object! {
    /// An issuer whose tokens are accepted.
    pub struct JwtRule {
        /// The issuer.
        issuer: Spanned<String> = "issuer",
        /// The audiences that are accepted.
        audiences: Vec<String> = "audiences",
        /// The URI of its keys.
        jwks_uri: Option<Spanned<String>> = "jwksUri",
        /// The older name of `jwksUri`.
        jwks_uri_older: Option<Spanned<String>> = "jwks_uri",
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
        /// Whether a request needs a token of one of the rules; OPTIONAL if not given.
        presence: Option<TokenPresence> = "presence",
    }
    check: check_rule;
}

choices! {
    /// Whether a request needs a token.
    pub enum TokenPresence {
        /// It passes without one.
        Optional = "OPTIONAL",
        /// It does not pass without one.
        Required = "REQUIRED",
    }
}

object! {
    /// A header that may carry a token.
    pub struct JwtHeader {
        /// Its name.
        name: HeaderName = "name",
        /// The prefix of the token.
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
    for (name, uri) in [("jwksUri", &rule.jwks_uri), ("jwks_uri", &rule.jwks_uri_older)] {
        if let Some(uri) = uri.as_ref().filter(|uri| !is_url(uri)) {
            let message = format!("`{}` is no URL", uri.value);
            cx.at_field(name, |cx| {
                cx.error("bad-value", &uri.span, message, "write the URL of a JSON Web Key Set: `https://HOST/PATH`")
            });
        }
    }
    if let (Some(_), Some(older)) = (&rule.jwks_uri, &rule.jwks_uri_older) {
        let message = "`jwks_uri` is the older name of `jwksUri`; both are given";
        cx.at_field("jwks_uri", |cx| cx.error("conflict", &older.span, message, "remove one of them"));
    }
    if let (Some(jwks), Some(_)) = (&rule.jwks, rule.key_set_uri()) {
        let help = "remove one of them";
        cx.at_field("jwks", |cx| cx.error("conflict", &jwks.span, "`jwks` and `jwksUri` exclude each other", help));
    }
}

impl JwtRule {
    /// The URI of its keys.
    pub fn key_set_uri(&self) -> Option<&Spanned<String>> {
        self.jwks_uri.as_ref().or(self.jwks_uri_older.as_ref())
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
    /// Returns a stand-in for a refused one, which may read tokens anywhere.
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
