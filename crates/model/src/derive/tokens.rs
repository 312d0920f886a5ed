//! RequestAuthentications: the tokens that requests may carry.
//!
//! A refused RequestAuthentication closes what it might have judged: any header or parameter may carry a token, so its
//! workloads deny every request. One that is ignored because its name is taken stays, without keys: requests with a token of
//! its issuers are denied.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::istio::{self, RequestAuthenticationSpec};
use evenkeel_api::{Kind, Object, ObjectKey, Resource};
use evenkeel_base::hostname::Hostname;
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_jwt::Jwks;
use serde_json::Value;

use super::run::Run;
use super::selections::note_idle;
use super::step::Results;
use super::tracking::Cx;
use super::{refused, renew, reuse_if_equal, shared, unsupported};
use crate::mesh::JwksFetching;
use crate::policy::Rule;
use crate::request_authentication::{
    JWKS_KEY, JwksSource, JwtKeys, JwtRule, NOT_FETCHED, RemoteJwks, RequestAuthentication,
};
use crate::{AuthorizationAction, AuthorizationPolicy, Selection, Service, Snapshot};

/// RequestAuthentications, by key: the one in force, and others of its name.
#[derive(Debug, Default)]
pub(super) struct Table {
    all: BTreeMap<ObjectKey, Vec<Arc<RequestAuthentication>>>,
    changed: bool,
}

pub(super) fn step(run: &mut Run<'_>, key: &ObjectKey) -> bool {
    let (read, keep) = run.read(|cx, found| (read(cx, key, found), cx.object(key).is_some()));
    run.tables.policies.set_authorization(key, read.closing);
    run.tables.tokens.set(key, read.built);
    keep
}

impl Table {
    fn set(&mut self, key: &ObjectKey, new: Vec<RequestAuthentication>) {
        let old = self.all.remove(key).unwrap_or_default();
        let new = new.into_iter().map(|one| reuse_if_equal(old.iter().find(|old| ***old == one), one));
        let new: Vec<Arc<RequestAuthentication>> = new.collect();
        self.changed |= !old.iter().map(Arc::as_ptr).eq(new.iter().map(Arc::as_ptr));
        if !new.is_empty() {
            self.all.insert(key.clone(), new);
        }
    }
}

impl Results for Table {
    fn publish(&mut self, next: &mut Snapshot) -> bool {
        let changed = std::mem::take(&mut self.changed).then(|| self.all.values().flatten().cloned());
        renew(&mut next.request_authentications, changed)
    }
}

/// The result of an object and others of its name.
#[derive(Default)]
struct Read {
    built: Vec<RequestAuthentication>,
    /// Stand-ins for refused objects.
    closing: Vec<AuthorizationPolicy>,
}

fn read(cx: &Cx<'_>, key: &ObjectKey, found: &mut Diagnostics) -> Read {
    let mut read = Read::default();
    let Some(first) = cx.object(key) else { return read };
    for object in std::iter::once(first).chain(refused::ignored(cx, first)) {
        let Resource::RequestAuthentication(authentication) = &object.resource else { continue };
        let spec = authentication.spec.as_ref();
        if object.refused.is_some() {
            found.push(refused::closed(object, "its workloads refuse every request, because any might carry a token"));
            read.closing.push(closing(cx, object, spec));
            continue;
        }
        let is_ignored = !Arc::ptr_eq(object, first);
        if is_ignored {
            found.push(refused::closed(object, "its workloads refuse every request with a token of its issuers"));
        }
        let Some(spec) = spec else { continue };
        let selection = Selection::of_request_authentication(spec);
        let targets = spec.target_ref.iter().chain(&spec.target_refs);
        let of_all = closing(cx, object, Some(spec));
        let before = found.len();
        let of_waypoint = unsupported::of_waypoint(cx, object, &of_all, targets.clone(), found);
        let is_told = found.len() > before;
        note_idle(cx, object, &selection, targets, is_told, found);
        read.closing.extend(of_waypoint);
        if selection.is_nothing() {
            continue;
        }
        let mut rules: Vec<JwtRule> = spec.jwt_rules.iter().map(|rule| jwt_rule(cx, object, rule, found)).collect();
        if is_ignored {
            rules.iter_mut().for_each(|rule| rule.keys = JwtKeys::None);
        }
        if !rules.is_empty() {
            read.built.push(RequestAuthentication {
                name: object.name.clone(),
                namespace: object.namespace.clone(),
                selection,
                rules,
                origin: object.origin.clone(),
            });
        }
    }
    read
}

fn closing(cx: &Cx<'_>, object: &Object, spec: Option<&RequestAuthenticationSpec>) -> AuthorizationPolicy {
    // A namespace that cannot be read may be any.
    let namespace = if object.namespace.is_empty() { &cx.mesh().root_namespace } else { &object.namespace };
    AuthorizationPolicy {
        name: object.name.clone(),
        namespace: namespace.clone(),
        selection: spec.map_or_else(Selection::everything, Selection::of_request_authentication),
        action: AuthorizationAction::Deny,
        provider: None,
        rules: vec![Rule::default()],
        origin: object.origin.clone(),
        refused: true,
        dry_run: false,
        of_tokens: true,
        unsupported: None,
    }
}

fn jwt_rule(cx: &Cx<'_>, object: &Object, rule: &istio::JwtRule, found: &mut Diagnostics) -> JwtRule {
    let list = |texts: &[String]| texts.iter().map(|text| shared(text)).collect();
    let header =
        |header: &istio::JwtHeader| (header.name.0.clone(), shared(header.prefix.as_deref().unwrap_or_default()));
    JwtRule {
        issuer: shared(&rule.issuer),
        audiences: list(&rule.audiences),
        keys: keys(cx, object, rule, found),
        from_headers: rule.from_headers.iter().map(header).collect(),
        from_params: list(&rule.from_params),
        from_cookies: list(&rule.from_cookies),
        forward: rule.forward_original_token,
        payload_header: rule.output_payload_to_header.as_ref().map(|header| header.0.clone()),
        claim_headers: rule
            .output_claim_to_headers
            .iter()
            .map(|claim| (claim.header.0.clone(), shared(&claim.claim)))
            .collect(),
        space_delimited_claims: list(&rule.space_delimited_claims),
        required: rule.presence == Some(istio::TokenPresence::Required),
        origin: rule.issuer.span.clone(),
    }
}

fn keys(cx: &Cx<'_>, object: &Object, rule: &istio::JwtRule, found: &mut Diagnostics) -> JwtKeys {
    if let Some(inline) = &rule.jwks {
        return match Jwks::parse(inline.as_bytes()) {
            Ok(set) => {
                for (index, reason) in &set.skipped {
                    let message = format!("{object}: keys[{index}] of `{}` is not used: {reason}", *rule.issuer);
                    let finding = Diagnostic::warning("bad-jwks", inline.span.clone(), message);
                    found.push(finding.about(object.reference()).with_help("tokens that it has signed are refused"));
                }
                JwtKeys::Inline(usable(inline, &set))
            }
            Err(reason) => {
                let message = format!(
                    "{object}: every token of `{}` is refused, because `jwks` has no usable key: {reason}",
                    *rule.issuer
                );
                let finding = Diagnostic::warning("bad-jwks", inline.span.clone(), message).about(object.reference());
                found.push(finding.with_help(
                    "write a JSON Web Key Set with public keys: `{\"keys\": [{\"kty\": \"RSA\", …}]}` (RFC 7517)",
                ));
                JwtKeys::None
            }
        };
    }
    let from = match rule.key_set_uri() {
        Some(uri) if cx.mesh().jwks_fetching != JwksFetching::ControlPlane => match remote(cx, uri, rule.timeout) {
            Some(remote) => return JwtKeys::Remote(Arc::new(remote)),
            None if cx.mesh().jwks_fetching == JwksFetching::Hybrid => JwksSource::Uri(shared(uri)),
            None => {
                let message = format!(
                    "{object}: every token of `{}` is refused, because no service of the mesh has the host and port of {}",
                    *rule.issuer, **uri
                );
                found.push(no_keys(
                    object,
                    &uri.span,
                    message,
                    "write a ServiceEntry for it, or set PILOT_JWT_ENABLE_REMOTE_JWKS=hybrid, so that the control plane fetches",
                ));
                return JwtKeys::None;
            }
        },
        Some(uri) => JwksSource::Uri(shared(uri)),
        None if rule.issuer.starts_with("https://") || rule.issuer.starts_with("http://") => {
            JwksSource::Issuer(shared(&rule.issuer))
        }
        None => {
            let message = format!(
                "{object}: every token of `{}` is refused, because nothing says where its keys are",
                *rule.issuer
            );
            found.push(no_keys(
                object,
                &rule.issuer.span,
                message,
                "write `jwks` or `jwksUri`; without them the issuer has to be the URL of an OpenID provider",
            ));
            return JwtKeys::None;
        }
    };
    let keys = fetched(cx, &from);
    if keys.is_none() {
        let message = format!(
            "{object}: every token of `{}` is refused until its keys are fetched from {}",
            *rule.issuer,
            from.uri()
        );
        let finding = Diagnostic::warning(NOT_FETCHED, rule.issuer.span.clone(), message).about(object.reference());
        found.push(
            finding.with_help(
                "check that the control plane reaches this URI; it tries again and keeps the last good keys",
            ),
        );
    }
    JwtKeys::Fetched { from, timeout: rule.timeout, keys }
}

/// Returns how proxies fetch the keys at a URI: through the service of the mesh that has its host and port, if there is one.
fn remote(cx: &Cx<'_>, uri: &str, timeout: Option<Duration>) -> Option<RemoteJwks> {
    let (default_port, rest) = match uri.split_once("://")? {
        ("http", rest) => (80, rest),
        ("https", rest) => (443, rest),
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok()?),
        None => (authority, default_port),
    };
    let host = Hostname::parse(host).ok().filter(|host| !host.is_wildcard())?;
    let has_port = |service: &Service| service.ports.iter().any(|own| own.number == port);
    let is_known = cx.services_of(&host).iter().any(|(_, service)| has_port(service));
    is_known.then(|| RemoteJwks { uri: shared(uri), host, port, timeout })
}

fn no_keys(object: &Object, span: &Span, message: String, help: &str) -> Diagnostic {
    Diagnostic::warning("no-jwks", span.clone(), message).about(object.reference()).with_help(help)
}

/// The keys that the control plane has fetched.
fn fetched(cx: &Cx<'_>, from: &JwksSource) -> Option<Arc<str>> {
    let name = shared(&from.config_map());
    let key = ObjectKey { kind: Kind::ConfigMap, namespace: cx.mesh().root_namespace.clone(), name };
    let Resource::ConfigMap(map) = &cx.object(&key)?.resource else { return None };
    let text = map.data.get(JWKS_KEY)?;
    Some(usable(text, &Jwks::parse(text.as_bytes()).ok()?))
}

/// A key set without the keys that are not used: stock Envoy would verify tokens with a shared secret.
fn usable(text: &str, set: &Jwks) -> Arc<str> {
    let keys = evenkeel_jwt::parse_object(text.as_bytes()).and_then(|mut object| object.remove("keys"));
    match keys {
        Some(Value::Array(keys)) if !set.skipped.is_empty() => {
            let is_used = |index: usize| !set.skipped.iter().any(|(skipped, _)| *skipped == index);
            let keys = keys.into_iter().enumerate().filter(|(index, _)| is_used(*index));
            let keys: Vec<Value> = keys.map(|(_, key)| key).collect();
            shared(&serde_json::json!({ "keys": keys }).to_string())
        }
        _ => shared(text),
    }
}
