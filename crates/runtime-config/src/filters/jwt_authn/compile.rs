//! `JwtAuthentication` and its `PerRouteConfig`.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_jwt::{Audiences, Jwks};
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::envoy::extensions::filters::http::jwt_authn::v3 as filter;

use crate::compile::Cx;
use crate::compile::address::data_source;
use crate::compile::matcher::string;
use crate::compile::route::route_match;
use crate::filters::jwt_authn::{
    ClaimHeader, FilterStateRules, HeaderLocation, Issuers, JwtAuthn, KeySource, Lenience, Locations,
    MAX_CACHED_TOKENS, PerRoute, Provider, RemoteJwks, Requirement, Rule, TokenCache,
};
use crate::retry::{RetryOn, RetryPolicy};

/// Accepted difference of clocks if a provider does not say, in seconds.
const DEFAULT_CLOCK_SKEW_SECONDS: u64 = 60;
/// How long fetched keys are used by default.
const DEFAULT_CACHE_DURATION: Duration = Duration::from_secs(600);
/// Time until the next fetch after a failed one, if a provider does not say.
const DEFAULT_FAILED_REFETCH: Duration = Duration::from_secs(1);
/// Minimum time between two fetches, whatever the configuration says.
const MIN_REFETCH: Duration = Duration::from_millis(100);
/// Tokens kept if `jwt_cache_config` does not say how many.
const DEFAULT_CACHED_TOKENS: u32 = 100;
/// Maximum size of a cached token, in bytes, unless `jwt_cache_config` sets it.
const DEFAULT_CACHED_TOKEN_BYTES: u32 = 4096;
/// Deepest nesting of requirements, in levels. Istio needs four.
const MAX_DEPTH: usize = 16;
/// The header that says that a token was not verified.
const VERIFICATION_STATUS: &str = "x-jwt-signature-verified";
const DEFAULT_HEADER: (&str, &str) = ("authorization", "Bearer ");
const DEFAULT_PARAMETER: &str = "access_token";

/// The providers by name.
type Providers = [Arc<Provider>];

pub(crate) fn per_route(cx: &mut Cx<'_>, config: &filter::PerRouteConfig) -> Option<PerRoute> {
    use filter::per_route_config::RequirementSpecifier;
    match &config.requirement_specifier {
        Some(RequirementSpecifier::Disabled(true)) => Some(PerRoute::Disabled),
        Some(RequirementSpecifier::Disabled(false)) => cx.fail_at("disabled", "must be true"),
        Some(RequirementSpecifier::RequirementName(name)) => {
            cx.non_empty("requirement_name", name).map(|name| PerRoute::Named(name.into()))
        }
        None => cx.fail("one of disabled, requirement_name is required"),
    }
}

pub(crate) fn jwt_authn(cx: &mut Cx<'_>, config: &filter::JwtAuthentication) -> Option<JwtAuthn> {
    let mut messages: Vec<_> = config.providers.iter().collect();
    messages.sort_by_key(|(name, _)| *name);
    let compiled = cx.at("providers", |cx| {
        let each = messages.iter().map(|(name, message)| {
            cx.element(format_args!("{name:?}"), |cx| provider(cx, name, message).map(Arc::new))
        });
        each.collect::<Vec<_>>()
    });
    let providers: Vec<Arc<Provider>> = compiled.into_iter().collect::<Option<_>>()?;
    let messages: Vec<&filter::JwtProvider> = messages.into_iter().map(|(_, message)| message).collect();
    let compiler = Requirements { providers: &providers, messages: &messages };

    let mut named: Vec<_> = config.requirement_map.iter().collect();
    named.sort_by_key(|(name, _)| *name);
    let compiled = cx.at("requirement_map", |cx| compiler.all_named(cx, &named));
    let rules = cx.each("rules", &config.rules, |cx, rule| compiler.rule(cx, rule, config));
    let filter_state = match &config.filter_state_rules {
        None => None,
        Some(rules) => Some(cx.at("filter_state_rules", |cx| compiler.filter_state(cx, rules))?),
    };
    if rules.len() != config.rules.len() {
        return None;
    }
    let filled = compiler.locations_of(0..providers.len()).filled;
    Some(JwtAuthn {
        rules,
        filter_state,
        named: compiled?,
        bypass_cors_preflight: config.bypass_cors_preflight,
        strip_failure_response: config.strip_failure_response,
        stat_prefix: config.stat_prefix.as_str().into(),
        filled_headers: filled,
        providers,
    })
}

fn provider(cx: &mut Cx<'_>, name: &str, message: &filter::JwtProvider) -> Option<Provider> {
    let subjects = match &message.subjects {
        None => None,
        Some(matcher) => Some(string(cx, "subjects", matcher)?),
    };
    let max_lifetime = match &message.max_lifetime {
        None => None,
        some => Some(cx.duration("max_lifetime", some.as_ref())?),
    };
    let lifetime = (message.require_expiration || max_lifetime.is_some()).then_some(max_lifetime);
    let claim_headers = cx.each("claim_to_headers", &message.claim_to_headers, claim_header);
    if claim_headers.len() != message.claim_to_headers.len() {
        return None;
    }
    for (field, names) in [("from_params", &message.from_params), ("from_cookies", &message.from_cookies)] {
        let compiled =
            cx.each(field, names, |cx, name| if name.is_empty() { cx.fail("must not be empty") } else { Some(()) });
        if compiled.len() != names.len() {
            return None;
        }
    }
    let headers = cx.each("from_headers", &message.from_headers, |cx, header| header_name(cx, "name", &header.name));
    if headers.len() != message.from_headers.len() {
        return None;
    }
    let payload_header = match message.forward_payload_header.as_str() {
        "" => Box::default(),
        name => header_name(cx, "forward_payload_header", name)?,
    };
    let keys = key_source(cx, message)?;
    let claims = message.normalize_payload_in_metadata.iter().flat_map(|normalize| &normalize.space_delimited_claims);
    Some(Provider {
        name: name.into(),
        issuer: message.issuer.as_str().into(),
        audiences: Audiences::new(message.audiences.iter().map(String::as_str)),
        subjects,
        lifetime,
        clock_skew_seconds: match message.clock_skew_seconds {
            0 => DEFAULT_CLOCK_SKEW_SECONDS,
            seconds => seconds.into(),
        },
        keys,
        forward: message.forward,
        payload_header,
        pad_payload_header: message.pad_forward_payload_header,
        claim_headers,
        payload_in_metadata: message.payload_in_metadata.as_str().into(),
        space_delimited_claims: claims.map(|claim| claim.as_str().into()).collect(),
        header_in_metadata: message.header_in_metadata.as_str().into(),
        failed_status_in_metadata: message.failed_status_in_metadata.as_str().into(),
        clear_route_cache: message.clear_route_cache,
        cache: match &message.jwt_cache_config {
            None => None,
            Some(cache) => Some(cx.at("jwt_cache_config", |cx| token_cache(cx, cache))?),
        },
    })
}

fn token_cache(cx: &mut Cx<'_>, cache: &filter::JwtCacheConfig) -> Option<TokenCache> {
    let or = |value: u32, default: u32| if value == 0 { default } else { value };
    let tokens = or(cache.jwt_cache_size, DEFAULT_CACHED_TOKENS) as usize;
    if tokens > MAX_CACHED_TOKENS {
        return cx.fail_at("jwt_cache_size", format!("must be at most {MAX_CACHED_TOKENS}"));
    }
    Some(TokenCache { tokens, token_bytes: or(cache.jwt_max_token_size, DEFAULT_CACHED_TOKEN_BYTES) as usize })
}

/// A header's name, in lower case.
fn header_name(cx: &mut Cx<'_>, field: &str, name: &str) -> Option<Box<str>> {
    let name = cx.non_empty(field, name)?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if !name.bytes().all(token) {
        return cx.fail_at(field, format!("{name:?} is no header name"));
    }
    Some(name.to_ascii_lowercase().into())
}

fn claim_header(cx: &mut Cx<'_>, message: &filter::JwtClaimToHeader) -> Option<ClaimHeader> {
    let header = header_name(cx, "header_name", &message.header_name)?;
    let path: Vec<Box<str>> = if message.claim_path.is_empty() {
        cx.non_empty("claim_name", &message.claim_name)?.split('.').map(Into::into).collect()
    } else {
        let keys =
            cx.each("claim_path", &message.claim_path, |cx, segment| cx.non_empty("key", &segment.key).map(Into::into));
        if keys.len() != message.claim_path.len() {
            return None;
        }
        keys
    };
    Some(ClaimHeader { header, path })
}

fn key_source(cx: &mut Cx<'_>, message: &filter::JwtProvider) -> Option<KeySource> {
    use filter::jwt_provider::JwksSourceSpecifier;
    match &message.jwks_source_specifier {
        None => cx.fail("one of remote_jwks, local_jwks is required"),
        Some(JwksSourceSpecifier::LocalJwks(source)) => {
            let text = data_source(cx, "local_jwks", Some(source))?;
            let keys = cx.check("local_jwks", Jwks::parse(&text))?;
            Some(KeySource::Local(Arc::new(keys)))
        }
        Some(JwksSourceSpecifier::RemoteJwks(remote)) => {
            cx.at("remote_jwks", |cx| remote_jwks(cx, remote)).map(|remote| KeySource::Remote(Arc::new(remote)))
        }
    }
}

fn remote_jwks(cx: &mut Cx<'_>, message: &filter::RemoteJwks) -> Option<RemoteJwks> {
    use core::http_uri::HttpUpstreamType;
    let uri = cx.required("http_uri", message.http_uri.as_ref())?;
    let (https, authority, path, cluster, timeout) = cx.at("http_uri", |cx| {
        let Some((https, authority, path)) = split_uri(&uri.uri) else {
            return cx.fail_at("uri", format!("{:?} is no http:// or https:// URI", uri.uri));
        };
        let Some(HttpUpstreamType::Cluster(cluster)) = &uri.http_upstream_type else {
            return cx.fail_at("cluster", "is required");
        };
        let cluster = cx.non_empty("cluster", cluster)?;
        cx.required("timeout", uri.timeout.as_ref())?;
        let timeout = cx.duration("timeout", uri.timeout.as_ref())?;
        Some((https, authority, path, cluster, timeout))
    })?;
    let or = |duration: Option<Duration>, default: Duration| duration.unwrap_or(default).max(MIN_REFETCH);
    let fetch = message.async_fetch.as_ref();
    let failed = fetch.and_then(|fetch| fetch.failed_refetch_duration.as_ref());
    let failed_refetch = cx.at("async_fetch", |cx| cx.duration("failed_refetch_duration", failed));
    Some(RemoteJwks {
        uri: uri.uri.as_str().into(),
        https,
        authority: authority.into(),
        path: path.into(),
        cluster: cluster.into(),
        timeout,
        cache_duration: or(cx.duration("cache_duration", message.cache_duration.as_ref()), DEFAULT_CACHE_DURATION),
        retry: match &message.retry_policy {
            None => None,
            Some(policy) => Some(Arc::new(cx.at("retry_policy", |cx| retry(cx, policy))?)),
        },
        failed_refetch: or(failed_refetch, DEFAULT_FAILED_REFETCH),
        keep_fresh: fetch.is_some(),
    })
}

/// Whether a URI is `https`, its authority and its path.
fn split_uri(uri: &str) -> Option<(bool, &str, &str)> {
    let (https, rest) = match (uri.strip_prefix("http://"), uri.strip_prefix("https://")) {
        (Some(rest), _) => (false, rest),
        (_, Some(rest)) => (true, rest),
        _ => return None,
    };
    let visible = rest.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    let at = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at_checked(at)?;
    let path = if path.is_empty() { "/" } else { path };
    (visible && !authority.is_empty() && !authority.contains('@') && path.starts_with('/'))
        .then_some((https, authority, path))
}

/// `core.v3.RetryPolicy`: how Envoy retries its own calls.
fn retry(cx: &mut Cx<'_>, policy: &core::RetryPolicy) -> Option<RetryPolicy> {
    let mut on = RetryOn::default();
    if let Err(word) = on.add("5xx,gateway-error,connect-failure,reset") {
        return cx.fail(format!("{word:?} is no supported retry condition"));
    }
    let (base, max) = match &policy.retry_back_off {
        None => (Duration::from_secs(1), None),
        Some(back_off) => cx.at("retry_back_off", |cx| {
            cx.required("base_interval", back_off.base_interval.as_ref())?;
            let base = cx.duration("base_interval", back_off.base_interval.as_ref())?;
            Some((base, cx.duration("max_interval", back_off.max_interval.as_ref())))
        })?,
    };
    let max = max.unwrap_or(base * 10);
    if max < base {
        return cx.fail_at("retry_back_off.max_interval", "must not be shorter than base_interval");
    }
    Some(RetryPolicy {
        on,
        num_retries: policy.num_retries.as_ref().map_or(1, |retries| retries.value),
        base_interval: base,
        max_interval: max,
        ..RetryPolicy::default()
    })
}

/// Compiles requirements.
struct Requirements<'p> {
    providers: &'p Providers,
    messages: &'p [&'p filter::JwtProvider],
}

impl Requirements<'_> {
    fn all_named(
        &self,
        cx: &mut Cx<'_>,
        named: &[(&String, &filter::JwtRequirement)],
    ) -> Option<Vec<(Box<str>, Requirement)>> {
        let one = |(name, requirement): &(&String, &filter::JwtRequirement)| {
            let compiled = cx.element(format_args!("{name:?}"), |cx| self.requirement(cx, requirement, 0))?;
            Some((name.as_str().into(), compiled))
        };
        let all: Vec<Option<_>> = named.iter().map(one).collect();
        all.into_iter().collect()
    }

    fn rule(
        &self,
        cx: &mut Cx<'_>,
        rule: &filter::RequirementRule,
        config: &filter::JwtAuthentication,
    ) -> Option<Rule> {
        use filter::requirement_rule::RequirementType;
        let matches = cx.required("match", rule.r#match.as_ref())?;
        let matches = cx.at("match", |cx| route_match(cx, matches))?;
        let requirement = match &rule.requirement_type {
            None => None,
            Some(RequirementType::Requires(requirement)) => {
                Some(cx.at("requires", |cx| self.requirement(cx, requirement, 0))?)
            }
            Some(RequirementType::RequirementName(name)) => match config.requirement_map.get(name) {
                Some(requirement) => Some(cx.at("requirement_name", |cx| self.requirement(cx, requirement, 0))?),
                None => return cx.fail_at("requirement_name", format!("{name:?} is not in requirement_map")),
            },
        };
        Some(Rule { matches, requirement })
    }

    fn filter_state(&self, cx: &mut Cx<'_>, rules: &filter::FilterStateRule) -> Option<FilterStateRules> {
        let key = cx.non_empty("name", &rules.name)?.into();
        let mut requirements: Vec<_> = rules.requires.iter().collect();
        requirements.sort_by_key(|(text, _)| *text);
        let requirements = cx.at("requires", |cx| self.all_named(cx, &requirements))?;
        Some(FilterStateRules { key, requirements })
    }

    fn requirement(&self, cx: &mut Cx<'_>, message: &filter::JwtRequirement, depth: usize) -> Option<Requirement> {
        use filter::jwt_requirement::RequiresType;
        if depth > MAX_DEPTH {
            return cx.fail(format!("requirements are nested in more than {MAX_DEPTH} levels"));
        }
        match &message.requires_type {
            None => Some(Requirement::Nothing),
            Some(RequiresType::ProviderName(name)) => self.provider(cx, "provider_name", name, None),
            Some(RequiresType::ProviderAndAudiences(both)) => cx.at("provider_and_audiences", |cx| {
                let audiences = Audiences::new(both.audiences.iter().map(String::as_str));
                let audiences = (!both.audiences.is_empty()).then_some(audiences);
                self.provider(cx, "provider_name", &both.provider_name, audiences)
            }),
            Some(RequiresType::RequiresAny(list)) => {
                cx.at("requires_any", |cx| self.any(cx, &list.requirements, depth + 1))
            }
            Some(RequiresType::RequiresAll(list)) => {
                cx.at("requires_all", |cx| self.children(cx, &list.requirements, depth + 1).map(Requirement::All))
            }
            Some(RequiresType::AllowMissing(_)) => Some(self.lenient(Lenience::Missing)),
            Some(RequiresType::AllowMissingOrFailed(_)) => Some(self.lenient(Lenience::MissingOrFailed)),
            Some(RequiresType::ExtractOnlyWithoutValidation(only)) => {
                let header = match only.verification_status_header.as_str() {
                    "" => Some(VERIFICATION_STATUS.into()),
                    "-" => None,
                    name => Some(cx.at("extract_only_without_validation", |cx| {
                        header_name(cx, "verification_status_header", name)
                    })?),
                };
                Some(self.lenient(Lenience::ExtractOnly(header)))
            }
        }
    }

    fn children(&self, cx: &mut Cx<'_>, list: &[filter::JwtRequirement], depth: usize) -> Option<Vec<Requirement>> {
        if list.len() < 2 {
            return cx.fail_at("requirements", format!("must have at least 2 entries, has {}", list.len()));
        }
        let compiled = cx.each("requirements", list, |cx, child| self.requirement(cx, child, depth));
        (compiled.len() == list.len()).then_some(compiled)
    }

    /// Lenient alternatives apply to the result of the others, as in Envoy; alone, they are checked themselves.
    fn any(&self, cx: &mut Cx<'_>, list: &[filter::JwtRequirement], depth: usize) -> Option<Requirement> {
        let mut lenience = None;
        let mut strict = Vec::new();
        for child in self.children(cx, list, depth)? {
            match child {
                Requirement::Lenient { lenience: Lenience::MissingOrFailed, .. } => {
                    lenience = Some(Lenience::MissingOrFailed);
                }
                Requirement::Lenient { lenience: Lenience::Missing, .. } => {
                    lenience.get_or_insert(Lenience::Missing);
                }
                other => strict.push(other),
            }
        }
        match (strict.is_empty(), lenience) {
            (true, Some(lenience)) => Some(self.lenient(lenience)),
            (_, lenience) => Some(Requirement::Any { children: strict, lenience }),
        }
    }

    fn provider(&self, cx: &mut Cx<'_>, field: &str, name: &str, audiences: Option<Audiences>) -> Option<Requirement> {
        let Some(provider) = self.providers.iter().position(|provider| *provider.name == *name) else {
            return cx.fail_at(field, format!("{name:?} is not in providers"));
        };
        let locations = self.locations_of(provider..provider + 1);
        Some(Requirement::Provider { provider, audiences, locations })
    }

    fn lenient(&self, lenience: Lenience) -> Requirement {
        Requirement::Lenient { lenience, locations: self.locations_of(0..self.providers.len()) }
    }

    fn locations_of(&self, range: std::ops::Range<usize>) -> Locations {
        let mut locations = Locations::default();
        for (message, provider) in self.messages.iter().zip(self.providers).take(range.end).skip(range.start) {
            add_locations(&mut locations, message, provider);
        }
        locations.headers.sort_by_key(|header| format!("{}{}", header.name, header.prefix));
        locations.parameters.sort_by(|(a, _), (b, _)| a.cmp(b));
        locations.cookies.sort_by(|(a, _), (b, _)| a.cmp(b));
        locations
    }
}

fn add_locations(locations: &mut Locations, message: &filter::JwtProvider, provider: &Provider) {
    let issuer = &*provider.issuer;
    let mut header = |name: &str, prefix: &str| {
        let name = name.to_ascii_lowercase();
        let known = locations.headers.iter_mut().find(|known| *known.name == *name && *known.prefix == *prefix);
        match known {
            Some(known) => known.issuers.add(issuer),
            None => {
                let mut issuers = Issuers::default();
                issuers.add(issuer);
                locations.headers.push(HeaderLocation { name: name.into(), prefix: prefix.into(), issuers });
            }
        }
    };
    message.from_headers.iter().for_each(|from| header(&from.name, &from.value_prefix));
    let unsaid = message.from_headers.is_empty() && message.from_params.is_empty() && message.from_cookies.is_empty();
    if unsaid {
        header(DEFAULT_HEADER.0, DEFAULT_HEADER.1);
        add_named(&mut locations.parameters, DEFAULT_PARAMETER, issuer);
    }
    message.from_params.iter().for_each(|name| add_named(&mut locations.parameters, name, issuer));
    message.from_cookies.iter().for_each(|name| add_named(&mut locations.cookies, name, issuer));
    let payload = Some(&provider.payload_header).filter(|header| !header.is_empty());
    let filled = payload.into_iter().chain(provider.claim_headers.iter().map(|claim| &claim.header));
    for name in filled {
        if !locations.filled.contains(name) {
            locations.filled.push(name.clone());
        }
    }
}

fn add_named(places: &mut Vec<(Box<str>, Issuers)>, name: &str, issuer: &str) {
    match places.iter_mut().find(|(known, _)| **known == *name) {
        Some((_, issuers)) => issuers.add(issuer),
        None => {
            let mut issuers = Issuers::default();
            issuers.add(issuer);
            places.push((name.into(), issuers));
        }
    }
}
