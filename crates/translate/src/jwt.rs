//! RequestAuthentications as a `jwt_authn` filter, as istiod writes it (`pilot/pkg/security/authn`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_model::{JwtKeys, JwtRule, RemoteJwks, Service};

use crate::context::Context;
use crate::names;
use crate::pb::config::rbac::permission::Rule as PermissionRule;
use crate::pb::config::rbac::principal::Identifier;
use crate::pb::config::rbac::rbac::Action;
use crate::pb::config::rbac::{Permission, Policy, Principal};
use crate::pb::config::route::header_matcher::HeaderMatchSpecifier;
use crate::pb::config::route::route_match::PathSpecifier;
use crate::pb::config::route::{HeaderMatcher, RouteMatch};
use crate::pb::core::http_uri::HttpUpstreamType;
use crate::pb::core::{DataSource, HttpUri, data_source};
use crate::pb::hcm::{HttpFilter, http_filter};
use crate::pb::jwt_authn::jwt_provider::{JwksSourceSpecifier, NormalizePayload};
use crate::pb::jwt_authn::jwt_requirement::RequiresType;
use crate::pb::jwt_authn::requirement_rule::RequirementType;
use crate::pb::jwt_authn::{
    JwksAsyncFetch, JwtAuthentication as Message, JwtClaimToHeader, JwtHeader, JwtProvider, JwtRequirement,
    JwtRequirementAndList, JwtRequirementOrList, RemoteJwks as RemoteMessage, RequirementRule,
};
use crate::pb::matcher::StringMatcher;
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::proto::{HttpRbac, JwtAuthentication, RbacRules, any_named, duration, regex};
use crate::traffic::Direction;
use prost::Name;

/// The filter's name, under which its dynamic metadata is.
pub const FILTER: &str = "envoy.filters.http.jwt_authn";
/// The key of the claims in the dynamic metadata.
pub const PAYLOAD: &str = "payload";
/// Claims that are lists of words everywhere.
const WORDS: [&str; 2] = ["permission", "scope"];
/// Limit of one fetch if no rule sets one, and how long keys are good, as istiod writes them.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);
const CACHE_DURATION: Duration = Duration::from_secs(5 * 60);
/// A key set that verifies nothing, since Envoy refuses one without keys: every token fails. Nobody has its private key: the
/// point is the first whose x is the SHA-256 of `evenkeel: the key of an issuer whose keys are not known N`.
const NO_KEYS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","kid":"evenkeel-no-keys","x":"J_l_srxIoxg1EXQJzNZXKunxXGyhJUAJKrSgIE_RCeM","y":"IEvCIZNHKJLIhjkiRorUuPlu4FNxr7_wDbXGXipiq0o"}]}"#;

/// The rules of a workload: those of all its RequestAuthentications, by issuer.
fn rules<'a>(context: Context<'a>) -> Vec<&'a JwtRule> {
    let all = context.snapshot.request_authentications_for(context.namespace(), &context);
    let mut rules: Vec<&JwtRule> = all.into_iter().flat_map(|one| &one.rules).collect();
    rules.sort_by(|a, b| a.issuer.cmp(&b.issuer));
    rules
}

/// The filter for requests; `None`: no RequestAuthentication is for this workload.
pub fn filter(context: Context<'_>, side: Direction) -> Option<HttpFilter> {
    let rules = rules(context);
    if rules.is_empty() {
        return None;
    }
    let names: Vec<String> = (0..rules.len()).map(|index| format!("origins-{index}")).collect();
    let provider = |(name, rule): (&String, &&JwtRule)| (name.clone(), provider(context, rule, side));
    let config = JwtAuthentication {
        providers: names.iter().zip(&rules).map(provider).collect(),
        rules: vec![RequirementRule {
            r#match: Some(RouteMatch {
                path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
                ..Default::default()
            }),
            requirement_type: Some(RequirementType::Requires(requirement(&names, &rules))),
        }],
        bypass_cors_preflight: true,
    };
    Some(HttpFilter {
        name: FILTER.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any_named(&Message::full_name(), &config))),
        ..Default::default()
    })
}

fn provider(context: Context<'_>, rule: &JwtRule, side: Direction) -> JwtProvider {
    let words: BTreeSet<&str> =
        WORDS.into_iter().chain(rule.space_delimited_claims.iter().map(|claim| &**claim)).collect();
    let owned = |texts: &[std::sync::Arc<str>]| texts.iter().map(|text| text.to_string()).collect();
    JwtProvider {
        issuer: rule.issuer.to_string(),
        audiences: owned(&rule.audiences),
        forward: rule.forward,
        from_headers: rule
            .from_headers
            .iter()
            .map(|(name, prefix)| JwtHeader { name: name.to_string(), value_prefix: prefix.to_string() })
            .collect(),
        from_params: owned(&rule.from_params),
        from_cookies: owned(&rule.from_cookies),
        forward_payload_header: rule.payload_header.as_deref().unwrap_or_default().to_owned(),
        payload_in_metadata: PAYLOAD.to_owned(),
        normalize_payload_in_metadata: Some(NormalizePayload {
            space_delimited_claims: words.into_iter().map(str::to_owned).collect(),
        }),
        claim_to_headers: rule
            .claim_headers
            .iter()
            .map(|(header, claim)| JwtClaimToHeader {
                header_name: header.to_string(),
                claim_name: claim.to_string(),
                ..Default::default()
            })
            .collect(),
        // Only gateways have routes that look at claims.
        clear_route_cache: side == Direction::Gateway,
        jwks_source_specifier: Some(keys(context, &rule.keys)),
        ..Default::default()
    }
}

/// Keys as text, or how the proxy fetches them. A proxy that does not see the service with the keys has none.
fn keys(context: Context<'_>, keys: &JwtKeys) -> JwksSourceSpecifier {
    if let Some(remote) = keys.remote() {
        let service = context.service(&remote.host);
        let has_port = |service: &Service| context.ports(service).iter().any(|(port, _)| port.number == remote.port);
        if service.is_some_and(|service| has_port(service)) {
            return JwksSourceSpecifier::RemoteJwks(remote_jwks(remote));
        }
    }
    JwksSourceSpecifier::LocalJwks(DataSource {
        specifier: Some(data_source::Specifier::InlineString(keys.text().map_or(NO_KEYS, |text| text).to_owned())),
        ..Default::default()
    })
}

fn remote_jwks(remote: &RemoteJwks) -> RemoteMessage {
    let cluster = names::outbound_cluster(remote.port, "", &remote.host);
    RemoteMessage {
        http_uri: Some(HttpUri {
            uri: remote.uri.to_string(),
            timeout: Some(duration(remote.timeout.unwrap_or(FETCH_TIMEOUT))),
            http_upstream_type: Some(HttpUpstreamType::Cluster(cluster)),
        }),
        cache_duration: Some(duration(CACHE_DURATION)),
        // Keys are there before the first token, and new ones before the old ones are outdated. A listener does not wait
        // for them: the service with the keys may be one of its own.
        async_fetch: Some(JwksAsyncFetch { fast_listener: true, ..JwksAsyncFetch::default() }),
        ..RemoteMessage::default()
    }
}

/// A token of some issuer, or none at all: each issuer's tokens have to be valid wherever they are. istiod's requirement of
/// several issuers is met by one good token, beside which a bad one of another issuer would reach the program; here every
/// token has to be good. If several rules have one issuer, the proxy would judge all of its tokens by the first, so the requirement
/// is istiod's. If a rule requires a token (`presence: REQUIRED`), there has to be a valid one of some issuer, as with
/// istiod: a requirement of all would look for the token again after the first has taken it from the request.
fn requirement(names: &[String], rules: &[&JwtRule]) -> JwtRequirement {
    let of = |requires| JwtRequirement { requires_type: Some(requires) };
    let provider = |name: &String| of(RequiresType::ProviderName(name.clone()));
    let any = |requirements| of(RequiresType::RequiresAny(JwtRequirementOrList { requirements }));
    let or_missing = |name: &String| {
        any(vec![provider(name), of(RequiresType::AllowMissing(crate::pb::google::protobuf::Empty {}))])
    };
    let issuers: BTreeSet<&str> = rules.iter().map(|rule| &*rule.issuer).collect();
    let is_required = rules.iter().any(|rule| rule.required);
    match names {
        [single] if is_required => provider(single),
        [single] => or_missing(single),
        several if is_required => any(several.iter().map(provider).collect()),
        _ if issuers.len() == names.len() => of(RequiresType::AllowMissing(crate::pb::google::protobuf::Empty {})),
        several => {
            let each = several.iter().map(or_missing).collect();
            let all = of(RequiresType::RequiresAll(JwtRequirementAndList { requirements: each }));
            any(several.iter().map(provider).chain([all]).collect())
        }
    }
}

/// Returns a replacement of the filter for gRPC programs, which have none: it denies calls with a value where a rule reads
/// tokens. gRPC has no query parameters.
pub fn grpc_filter(context: Context<'_>) -> Option<HttpFilter> {
    let mut policies = BTreeMap::new();
    for rule in rules(context) {
        if rule.required {
            // Nobody could verify the token that it asks for.
            let policy = Policy {
                permissions: vec![Permission { rule: Some(PermissionRule::Any(true)) }],
                principals: vec![Principal { identifier: Some(Identifier::Any(true)) }],
                ..Default::default()
            };
            policies.insert(format!("token-required-{}", rule.issuer), policy);
        }
        for (name, pattern) in judged(rule) {
            let specifier = HeaderMatchSpecifier::StringMatch(StringMatcher {
                match_pattern: Some(MatchPattern::SafeRegex(regex(&pattern))),
                ignore_case: false,
            });
            let header = HeaderMatcher { name, header_match_specifier: Some(specifier), ..Default::default() };
            let policy = Policy {
                permissions: vec![Permission { rule: Some(PermissionRule::Any(true)) }],
                principals: vec![Principal { identifier: Some(Identifier::Header(header)) }],
                ..Default::default()
            };
            policies.insert(format!("tokens-of-{}-{}", rule.issuer, policies.len()), policy);
        }
    }
    if policies.is_empty() {
        return None;
    }
    let rules = RbacRules { action: Action::Deny as i32, policies };
    let config = HttpRbac { rules: Some(rules), shadow_rules: None, shadow_rules_stat_prefix: String::new() };
    let full_name = crate::pb::http_rbac::Rbac::full_name();
    Some(HttpFilter {
        name: "envoy.filters.http.rbac".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any_named(&full_name, &config))),
        ..Default::default()
    })
}

/// The headers that a rule judges or fills, each with an expression for its value.
fn judged(rule: &JwtRule) -> Vec<(String, String)> {
    let contains = |text: &str| format!(".*{}.*", crate::proto::quote(text));
    let mut places: Vec<_> =
        rule.from_headers.iter().map(|(name, prefix)| (name.to_string(), contains(prefix))).collect();
    if !rule.from_cookies.is_empty() {
        places.push(("cookie".to_owned(), ".*".to_owned()));
    }
    if places.is_empty() && rule.from_params.is_empty() {
        places.push(("authorization".to_owned(), contains("Bearer ")));
    }
    let filled = rule.payload_header.iter().chain(rule.claim_headers.iter().map(|(header, _)| header));
    places.extend(filled.map(|name| (name.to_string(), ".*".to_owned())));
    places
}
