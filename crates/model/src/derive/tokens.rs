//! RequestAuthentications, until proxies can check tokens: requests that they would have judged are refused.
//!
//! A RequestAuthentication accepts requests without a token, and refuses those whose token is not valid. So leaving it
//! out would let invalid tokens pass, and nothing else: a request without a token is refused by the AuthorizationPolicy
//! that asks for one, which is closed by its own stand-in. Proxies cannot tell valid tokens from others, so they refuse
//! every request with something in a place where its rules look for tokens. Besides, its filter would have removed the
//! headers that it fills from requests that bring their own (`outputPayloadToHeader`, `outputClaimToHeaders`); programs
//! trust these, so requests with such a header are refused, too. Bytes that are not HTTP carry no tokens and pass.

use std::fmt::Write;
use std::sync::Arc;

use evenkeel_api::istio::{JwtRule, RequestAuthenticationSpec};
use evenkeel_api::{Object, ObjectKey, Resource};
use evenkeel_base::{Diagnostic, Diagnostics};

use super::policies::selector;
use super::run::Run;
use super::tracking::Cx;
use super::{refused, shared};
use crate::policy::{Condition, ConditionKey, Rule};
use crate::{AuthorizationAction, AuthorizationPolicy, StringMatch};

/// Where tokens are if a rule does not say (Envoy's `JwtProvider`).
const DEFAULT_HEADER: (&str, &str) = ("authorization", "Bearer ");
const DEFAULT_PARAMETER: &str = "access_token";

pub(super) fn step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (policies, keep) = run.read(|cx, found| (policies(cx, key, found), cx.object(key).is_some()));
    run.tables.policies.set_authorization(key, policies);
    keep
}

/// The policies that stand in for an object, and for others of the same name.
fn policies(cx: &Cx<'_>, key: &ObjectKey, found: &mut Diagnostics) -> Vec<AuthorizationPolicy> {
    let Some(object) = cx.object(key) else { return Vec::new() };
    let mut policies = Vec::new();
    for object in std::iter::once(object).chain(refused::ignored(cx, object)) {
        let Resource::RequestAuthentication(authentication) = &object.resource else { continue };
        if object.refused.is_some() {
            found.push(refused::closed(object, "its workloads refuse every request, because any might carry a token"));
            policies.push(policy(cx, object, authentication.spec.as_ref(), vec![Rule::default()]));
            continue;
        }
        let rules: Vec<Rule> =
            authentication.spec.iter().flat_map(|spec| &spec.jwt_rules).flat_map(judged).map(rule).collect();
        if rules.is_empty() {
            continue;
        }
        if cx.mesh().leave_out_refused {
            found.push(note(object, "it is left out, so requests with an invalid token pass"));
            continue;
        }
        found.push(note(object, "until then its workloads refuse every request with a token"));
        policies.push(policy(cx, object, authentication.spec.as_ref(), rules));
    }
    policies
}

fn note(object: &Object, effect: &str) -> Diagnostic {
    let message = format!("{object}: tokens cannot be checked yet; {effect}");
    let finding = Diagnostic::warning("closed", object.origin.clone(), message).about(object.reference());
    finding.with_help("requests without a token are judged by AuthorizationPolicies alone, as before")
}

fn policy(
    cx: &Cx<'_>,
    object: &Object,
    spec: Option<&RequestAuthenticationSpec>,
    rules: Vec<Rule>,
) -> AuthorizationPolicy {
    // A namespace that cannot be read may be any.
    let namespace = if object.namespace.is_empty() { &cx.mesh().root_namespace } else { &object.namespace };
    AuthorizationPolicy {
        name: object.name.clone(),
        namespace: namespace.clone(),
        selector: selector(spec.and_then(|spec| spec.selector.as_ref())),
        action: AuthorizationAction::Deny,
        provider: None,
        rules,
        origin: object.origin.clone(),
        refused: object.refused.is_some(),
        dry_run: false,
        of_tokens: true,
    }
}

/// What a rule judges: headers, each with an expression for its value.
fn judged(rule: &JwtRule) -> Vec<(Arc<str>, String)> {
    let contains = |text: &str| format!(".*{}.*", quoted(text));
    let header = |header: &evenkeel_api::istio::JwtHeader| {
        let prefix = header.prefix.as_deref().unwrap_or_default();
        (header.name.0.clone(), contains(prefix))
    };
    let parameter = |name: &str| (shared(":path"), format!(".*[?&]{}=.*", encoded(name)));
    let cookie = |name: &String| (shared("cookie"), format!("(?:.*[;,]\\s*)?\"?{}\"?\\s*=.*", quoted(name)));
    let mut places: Vec<_> = rule.from_headers.iter().map(header).collect();
    places.extend(rule.from_params.iter().map(|name| parameter(name)));
    places.extend(rule.from_cookies.iter().map(cookie));
    if places.is_empty() {
        let (name, prefix) = DEFAULT_HEADER;
        places.extend([(shared(name), contains(prefix)), parameter(DEFAULT_PARAMETER)]);
    }
    let payload = rule.output_payload_to_header.iter().map(|header| &header.0);
    let filled = payload.chain(rule.output_claim_to_headers.iter().map(|claim| &claim.header.0));
    places.extend(filled.map(|name| (name.clone(), ".*".to_owned())));
    places
}

fn rule((name, pattern): (Arc<str>, String)) -> Rule {
    let values = vec![StringMatch::Regex(pattern.as_str().into())];
    let condition = Condition { key: ConditionKey::RequestHeader(name), values, not_values: Vec::new() };
    Rule { when: vec![condition], ..Rule::default() }
}

/// The expression that matches only this text.
fn quoted(text: &str) -> String {
    text.chars().fold(String::new(), |mut quoted, c| {
        if !c.is_alphanumeric() && !matches!(c, '_' | ' ') {
            quoted.push('\\');
        }
        quoted.push(c);
        quoted
    })
}

/// The expression for the name of a query parameter, any byte of which may be percent-encoded.
fn encoded(name: &str) -> String {
    name.bytes().fold(String::new(), |mut pattern, byte| {
        let plain = quoted(&char::from(byte).to_string());
        // Writing to a String cannot fail.
        let _ = match byte.is_ascii() {
            true => write!(pattern, "(?:{plain}|(?i:%{byte:02x}))"),
            false => write!(pattern, "(?i:%{byte:02x})"),
        };
        pattern
    })
}
