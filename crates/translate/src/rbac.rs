//! AuthorizationPolicies as RBAC filters: one for AUDIT, then one for DENY, then one for ALLOW. CUSTOM policies come
//! before them ([`crate::ext_authz`]).

use std::collections::BTreeMap;

use evenkeel_api::ProxyPlace;
use evenkeel_base::cidr::IpNet;
use evenkeel_model::policy::{Condition, ConditionKey, Operation, PathMatch, Rule, Source};
use evenkeel_model::{AuthorizationAction, AuthorizationPolicy, MeshConfig, StringMatch, trust_domains};
use prost::Name;

use crate::ambiguous;
use crate::context::Context;
use crate::pb::config::listener::Filter;
use crate::pb::config::rbac::permission::Rule as PermissionRule;
use crate::pb::config::rbac::principal::{Authenticated, Identifier};
use crate::pb::config::rbac::rbac::Action;
use crate::pb::config::rbac::{Permission, Policy, Principal, permission, principal};
use crate::pb::config::route::HeaderMatcher;
use crate::pb::config::route::header_matcher::HeaderMatchSpecifier;
use crate::pb::core::CidrRange;
use crate::pb::envoy_type::Int32Range;
use crate::pb::hcm::{HttpFilter, http_filter};
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::pb::matcher::{PathMatcher, StringMatcher, path_matcher};
use crate::proto::{HttpRbac, NetworkRbac, RbacRules, any_named, network_filter, quote, string_matcher, u32_value};
use crate::string_match::{regex_matcher, string};
use crate::tokens;

/// Statistics prefix of network RBAC filters, as Istio's.
const NETWORK_STAT_PREFIX: &str = "tcp.";

/// The layer of the traffic, which determines which conditions can be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    /// Requests.
    Http,
    /// Connections.
    Tcp,
}

/// Why a filter chain carries bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bytes {
    /// The port is declared to carry them.
    Declared,
    /// On a port that may carry HTTP, they did not look like it.
    Unrecognized,
}

/// The rules of one filter.
struct FilterRules {
    /// The enforced rules.
    enforced: Option<RbacRules>,
    /// Rules of `istio.io/dry-run`, which are only logged and counted.
    shadow: Option<RbacRules>,
}

/// RBAC filters for requests.
pub fn http_filters(context: Context<'_>) -> Vec<HttpFilter> {
    rules(context, Layer::Http, Bytes::Declared).into_iter().map(http_filter_of).collect()
}

/// RBAC filters for connections.
pub fn network_filters(context: Context<'_>, bytes: Bytes) -> Vec<Filter> {
    rules(context, Layer::Tcp, bytes).into_iter().map(network_filter_of).collect()
}

/// The RBAC filter for requests that the workload sends.
pub fn outbound_http_filter(context: Context<'_>) -> Option<HttpFilter> {
    outbound_rules(context, Layer::Http).map(http_filter_of)
}

/// The RBAC filter for connections that the workload opens.
pub fn outbound_network_filter(context: Context<'_>) -> Option<Filter> {
    outbound_rules(context, Layer::Tcp).map(network_filter_of)
}

fn http_filter_of(rules: FilterRules) -> HttpFilter {
    let shadow_rules_stat_prefix = rules.shadow.as_ref().map_or("", stat_prefix).to_owned();
    let config = HttpRbac { rules: rules.enforced, shadow_rules: rules.shadow, shadow_rules_stat_prefix };
    HttpFilter {
        name: "envoy.filters.http.rbac".to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(any_named(
            &crate::pb::http_rbac::Rbac::full_name(),
            &config,
        ))),
        ..Default::default()
    }
}

fn network_filter_of(rules: FilterRules) -> Filter {
    let config = NetworkRbac {
        shadow_rules_stat_prefix: rules.shadow.as_ref().map_or("", stat_prefix).to_owned(),
        rules: rules.enforced,
        shadow_rules: rules.shadow,
        stat_prefix: NETWORK_STAT_PREFIX.to_owned(),
    };
    network_filter("envoy.filters.network.rbac", any_named(&crate::pb::network_rbac::Rbac::full_name(), &config))
}

/// istiod's prefixes of the statistics and dynamic metadata of rules that are not enforced (`pilot/pkg/security/authz`).
fn stat_prefix(shadow: &RbacRules) -> &'static str {
    match Action::try_from(shadow.action) {
        Ok(Action::Deny) => "istio_dry_run_deny_",
        Ok(Action::Allow) => "istio_dry_run_allow_",
        _ => "",
    }
}

/// The rules of the filters: AUDIT, DENY, ALLOW. What stands in for a RequestAuthentication says nothing about bytes, unless they
/// might be a request.
fn rules(context: Context<'_>, layer: Layer, bytes: Bytes) -> Vec<FilterRules> {
    let policies = context.snapshot.policies_for(context.namespace(), &context);
    let place = if context.is_sidecar() { ProxyPlace::Inbound } else { ProxyPlace::Gateway };
    let of = |action, dry_run| -> Vec<&AuthorizationPolicy> {
        let judges = |policy: &&&std::sync::Arc<AuthorizationPolicy>| {
            let is_judged = layer == Layer::Http || bytes == Bytes::Unrecognized || !policy.of_tokens;
            policy.action == action && policy.dry_run == dry_run && is_judged && policy.is_for(place)
        };
        policies.iter().filter(judges).map(|p| p.as_ref()).collect()
    };
    let is_enforced = |policy: &&&std::sync::Arc<AuthorizationPolicy>| enforces(policy) && policy.is_for(place);
    let enforcing = || policies.iter().filter(is_enforced).map(|policy| policy.as_ref());
    let mut refusals = match layer {
        Layer::Http => ambiguous::refusals(context, enforcing()),
        Layer::Tcp => BTreeMap::new(),
    };
    if enforcing().next().is_some() {
        refusals.extend(ambiguous::identity_refusals(context));
    }
    let deny = FilterRules {
        enforced: with_refusals(
            refusals,
            deny_rules(context, &of(AuthorizationAction::Deny, false), &of(AuthorizationAction::Allow, false), layer),
        ),
        shadow: deny_rules(context, &of(AuthorizationAction::Deny, true), &[], layer),
    };
    let allow = FilterRules {
        enforced: allow_rules(context, &of(AuthorizationAction::Allow, false), layer),
        shadow: allow_rules(context, &of(AuthorizationAction::Allow, true), layer),
    };
    let logged = |dry_run| {
        let policies = of(AuthorizationAction::Audit, dry_run);
        let policies = compile(&policies, context.snapshot.mesh(), layer);
        (!policies.is_empty()).then_some(RbacRules { action: Action::Log as i32, policies })
    };
    let audit = FilterRules { enforced: logged(false), shadow: logged(true) };
    [audit, deny, allow].into_iter().filter(|rules| rules.enforced.is_some() || rules.shadow.is_some()).collect()
}

/// The rules for what the workload sends: those of stand-ins for what would judge it and is not supported.
fn outbound_rules(context: Context<'_>, layer: Layer) -> Option<FilterRules> {
    // Without any, proxies of all namespaces share what they get.
    if !context.is_sidecar() || !context.snapshot.has_outbound_policies() {
        return None;
    }
    let policies = context.snapshot.outbound_policies_for(context.namespace(), &context);
    let policies: Vec<&AuthorizationPolicy> = policies.into_iter().map(AsRef::as_ref).collect();
    Some(FilterRules { enforced: Some(deny_rules(context, &policies, &[], layer)?), shadow: None })
}

/// Whether it may refuse requests: one that is on trial or only logs refuses none, however they are read.
fn enforces(policy: &AuthorizationPolicy) -> bool {
    !policy.dry_run && policy.action != AuthorizationAction::Audit && policy.closes()
}

/// The enforced DENY rules, and the refusals of what the policies could not judge.
fn with_refusals(refusals: BTreeMap<String, Policy>, denying: Option<RbacRules>) -> Option<RbacRules> {
    if refusals.is_empty() {
        return denying;
    }
    let mut rules = denying.unwrap_or(RbacRules { action: Action::Deny as i32, policies: BTreeMap::new() });
    rules.policies.extend(refusals);
    Some(rules)
}

/// Returns the DENY rules. DENY policies that match nothing need no filter.
fn deny_rules(
    context: Context<'_>,
    denying: &[&AuthorizationPolicy],
    allowing: &[&AuthorizationPolicy],
    layer: Layer,
) -> Option<RbacRules> {
    let mesh = context.snapshot.mesh();
    let mut policies = compile(denying, mesh, layer);
    if allowing.iter().all(|policy| policy.refused) {
        // Nothing is allowed; the responsible policy names the rule.
        policies.extend(allowing.iter().map(|policy| (name_of(policy), compile_rule(&Rule::default(), mesh, layer))));
    }
    (!policies.is_empty()).then_some(RbacRules { action: Action::Deny as i32, policies })
}

/// Returns the ALLOW rules. ALLOW policies that match nothing deny everything.
fn allow_rules(context: Context<'_>, allowing: &[&AuthorizationPolicy], layer: Layer) -> Option<RbacRules> {
    if allowing.is_empty() {
        return None;
    }
    let mut policies = compile(allowing, context.snapshot.mesh(), layer);
    // If there are other policies, a refused one is named by a rule that matches nothing.
    policies.extend(allowing.iter().filter(|policy| policy.refused).map(|policy| (name_of(policy), nothing())));
    Some(RbacRules { action: Action::Allow as i32, policies })
}

pub(crate) fn compile(policies: &[&AuthorizationPolicy], mesh: &MeshConfig, layer: Layer) -> BTreeMap<String, Policy> {
    let mut compiled = BTreeMap::new();
    for policy in policies {
        for (i, rule) in policy.rules.iter().enumerate() {
            // An ALLOW rule about requests cannot match TCP traffic; any other rule is widened by leaving out the parts
            // that cannot be evaluated.
            if layer == Layer::Tcp && policy.action == AuthorizationAction::Allow && rule.needs_http() {
                continue;
            }
            let has_ports = rule.to.iter().any(|operation| !operation.ports.is_empty());
            let rule = ambiguous::with_ports(rule, policy.action);
            let mut rules = compile_rule(&rule, mesh, layer);
            if policy.unsupported.is_some() && has_ports {
                rules.permissions.push(without_port());
            }
            compiled.insert(format!("{}-rule[{i}]", name_of(policy)), rules);
        }
    }
    compiled
}

/// Matches what comes by a Unix socket, which has no port: what stands in for an object about some ports cannot tell which they are.
fn without_port() -> Permission {
    let any_port = PermissionRule::DestinationPortRange(Int32Range { start: 1, end: 65_536 });
    let any_port = Permission { rule: Some(any_port) };
    Permission { rule: Some(PermissionRule::NotRule(Box::new(any_port))) }
}

/// Returns a rule that matches nothing. Our proxy names it when no other of an ALLOW filter matched; Envoy says `none`.
fn nothing() -> Policy {
    let any = Permission { rule: Some(PermissionRule::Any(true)) };
    Policy {
        permissions: vec![Permission { rule: Some(PermissionRule::NotRule(Box::new(any))) }],
        principals: vec![Principal { identifier: Some(Identifier::Any(true)) }],
        ..Default::default()
    }
}

/// The name that the details of denied calls have, with the number of the rule.
pub(crate) fn name_of(policy: &AuthorizationPolicy) -> String {
    let refused = if policy.refused { "-refused" } else { "" };
    let kind = if policy.of_tokens { "request-authentication" } else { "policy" };
    format!("ns[{}]-{kind}[{}]{refused}", policy.namespace, policy.name)
}

fn compile_rule(rule: &Rule, mesh: &MeshConfig, layer: Layer) -> Policy {
    let anything = [Operation::default()];
    let anyone = [Source::default()];
    let operations = if rule.to.is_empty() { &anything[..] } else { &rule.to };
    let sources = if rule.from.is_empty() { &anyone[..] } else { &rule.from };
    let permission = |operation: &Operation| {
        let mut all = operation_rules(operation, layer);
        all.extend(rule.when.iter().flat_map(condition_rules));
        and_rules(all)
    };
    let principal = |source: &Source| {
        let mut all = source_ids(source, mesh, layer);
        all.extend(rule.when.iter().flat_map(|c| condition_ids(c, mesh, layer)));
        and_ids(all)
    };
    Policy {
        permissions: operations.iter().map(permission).collect(),
        principals: sources.iter().map(principal).collect(),
        ..Default::default()
    }
}

fn operation_rules(operation: &Operation, layer: Layer) -> Vec<Permission> {
    let mut all = Vec::new();
    let port = |port: &u16| PermissionRule::DestinationPort(u32::from(*port));
    add_rules(&mut all, &operation.ports, &operation.not_ports, port);
    if layer == Layer::Http {
        let host = |value: &StringMatch| PermissionRule::Header(header(":authority", value, Case::Ignored));
        let method = |value: &StringMatch| PermissionRule::Header(header(":method", value, Case::Compared));
        let path = |value: &PathMatch| PermissionRule::UrlPath(path_matcher(value));
        add_rules(&mut all, &operation.hosts, &operation.not_hosts, host);
        add_rules(&mut all, &operation.methods, &operation.not_methods, method);
        add_rules(&mut all, &operation.paths, &operation.not_paths, path);
    }
    all
}

fn source_ids(source: &Source, mesh: &MeshConfig, layer: Layer) -> Vec<Principal> {
    let mut all = Vec::new();
    if layer == Layer::Http {
        add_ids(&mut all, &source.request_principals, &source.not_request_principals, |value| {
            vec![tokens::principal(value)]
        });
    }
    add_ids(&mut all, &source.trust_domains, &source.not_trust_domains, |value| of_trust_domain(value, mesh));
    add_ids(&mut all, &source.principals, &source.not_principals, |value| principals(value, mesh));
    add_ids(&mut all, &source.namespaces, &source.not_namespaces, |value| vec![authenticated(namespace(value, mesh))]);
    add_ids(&mut all, &source.service_accounts, &source.not_service_accounts, |(namespace, account)| {
        vec![authenticated(service_account(namespace, account, mesh))]
    });
    add_ids(&mut all, &source.ip_blocks, &source.not_ip_blocks, |net| vec![Identifier::DirectRemoteIp(cidr(net))]);
    add_ids(&mut all, &source.remote_ip_blocks, &source.not_remote_ip_blocks, |net| {
        vec![Identifier::RemoteIp(cidr(net))]
    });
    all
}

/// Conditions on the request.
#[allow(deprecated)] // Metadata of any source is what istiod sends.
fn condition_rules(condition: &Condition) -> Vec<Permission> {
    let mut all = Vec::new();
    let mut add = |rule: &dyn Fn(&StringMatch) -> Option<PermissionRule>| {
        let values: Vec<_> = condition.values.iter().filter_map(rule).collect();
        let not_values: Vec<_> = condition.not_values.iter().filter_map(rule).collect();
        add_rules(&mut all, &values, &not_values, Clone::clone);
    };
    match &condition.key {
        ConditionKey::DestinationIp => add(&|v| range(v).map(PermissionRule::DestinationIp)),
        ConditionKey::DestinationPort => {
            add(&|v| text(v).parse::<u16>().ok().map(|p| PermissionRule::DestinationPort(u32::from(p))));
        }
        ConditionKey::ConnectionSni => add(&|v| Some(PermissionRule::RequestedServerName(string(v)))),
        ConditionKey::FilterMetadata { filter, key } => {
            add(&|v| Some(PermissionRule::Metadata(tokens::of_filter(filter, key, v))));
        }
        _ => {}
    }
    all
}

/// Conditions on the caller.
#[allow(deprecated)] // Metadata of any source is what istiod sends.
fn condition_ids(condition: &Condition, mesh: &MeshConfig, layer: Layer) -> Vec<Principal> {
    let mut all = Vec::new();
    let mut add = |id: &dyn Fn(&StringMatch) -> Vec<Identifier>| {
        add_ids(&mut all, &condition.values, &condition.not_values, id);
    };
    match &condition.key {
        ConditionKey::RequestHeader(name) if layer == Layer::Http => {
            add(&|v| vec![Identifier::Header(header(name, v, Case::Compared))]);
        }
        ConditionKey::RequestPrincipal if layer == Layer::Http => add(&|v| vec![tokens::principal(v)]),
        ConditionKey::RequestClaim(path) if layer == Layer::Http => {
            add(&|v| vec![Identifier::Metadata(tokens::claim_of_policy(path, v))]);
        }
        ConditionKey::SourceIp => add(&|v| range(v).map(Identifier::DirectRemoteIp).into_iter().collect()),
        ConditionKey::RemoteIp => add(&|v| range(v).map(Identifier::RemoteIp).into_iter().collect()),
        ConditionKey::SourceNamespace => add(&|v| vec![authenticated(namespace(v, mesh))]),
        ConditionKey::SourcePrincipal => add(&|v| principals(v, mesh)),
        ConditionKey::SourceTrustDomain => add(&|v| of_trust_domain(v, mesh)),
        ConditionKey::SourceServiceAccount => add(&|v| match v.as_policy_value().split_once('/') {
            Some((namespace, account)) => vec![authenticated(service_account(namespace, account, mesh))],
            // The model names the namespace of every account.
            None => vec![nobody()],
        }),
        _ => {}
    }
    all
}

/// Identities by SPIFFE id. `cluster.local` stands for the mesh's trust domain, and aliases are equal to it.
fn principals(value: &StringMatch, mesh: &MeshConfig) -> Vec<Identifier> {
    let spiffe =
        |pattern: &dyn Fn(String) -> MatchPattern, text: &str| string_matcher(pattern(format!("spiffe://{text}")));
    let matcher = |value: StringMatch| match value {
        StringMatch::Exact(text) => spiffe(&MatchPattern::Exact, &text),
        StringMatch::Prefix(text) => spiffe(&MatchPattern::Prefix, &text),
        StringMatch::Suffix(text) => regex_matcher(&format!("spiffe://.*{}", quote(&text))),
        StringMatch::Regex(text) => regex_matcher(&format!("spiffe://{text}")),
        StringMatch::Present => regex_matcher(".+"),
    };
    trust_domains::principals(value, mesh).into_iter().map(|value| authenticated(matcher(value))).collect()
}

/// Identities of a trust domain.
fn of_trust_domain(value: &StringMatch, mesh: &MeshConfig) -> Vec<Identifier> {
    trust_domains::trust_domains(value, mesh).iter().map(|value| authenticated(trust_domain(value))).collect()
}

/// Returns the trust domain of a SPIFFE id: the part before its path. `*` is every client with a certificate, also one
/// whose identity has no path.
fn trust_domain(value: &StringMatch) -> StringMatcher {
    let inner = match value {
        StringMatch::Exact(text) => quote(text),
        StringMatch::Prefix(text) => format!("{}[^/]*", quote(text)),
        StringMatch::Suffix(text) => format!("[^/]*{}", quote(text)),
        StringMatch::Regex(text) => text.to_string(),
        StringMatch::Present => return regex_matcher(".+"),
    };
    regex_matcher(&format!("spiffe://{inner}/.*"))
}

/// A namespace of the mesh. Identities of other trust domains may have the same names in their paths: they are in no
/// namespace. A star stands for any text wherever it is, as in Istio. Unlike istiod's, the expression begins with the
/// scheme, so that no subject of a certificate matches it (`CN=x/ns/shop/sa/web`).
fn namespace(value: &StringMatch, mesh: &MeshConfig) -> StringMatcher {
    let inner = match value {
        StringMatch::Regex(text) => text.to_string(),
        value => value.as_policy_value().split('*').map(quote).collect::<Vec<_>>().join(".*"),
    };
    let domains = of_own_domains(mesh).unwrap_or_else(|| ".*".to_owned());
    regex_matcher(&format!("spiffe://{domains}/ns/{inner}/.*"))
}

/// A service account. As in Istio the identity may have further pairs of names and values in its path.
fn service_account(namespace: &str, account: &str, mesh: &MeshConfig) -> StringMatcher {
    let domains = of_own_domains(mesh).unwrap_or_else(|| ".+".to_owned());
    let (namespace, account) = (quote(namespace), quote(account));
    regex_matcher(&format!("spiffe://{domains}/ns/{namespace}/(.+/|)sa/{account}(/.+)?"))
}

/// The mesh's trust domains as a pattern, if proxies accept identities of others, too.
fn of_own_domains(mesh: &MeshConfig) -> Option<String> {
    let names: Vec<String> = mesh.own_trust_domains().map(|domain| quote(domain)).collect();
    (!mesh.federated_trust_domains().is_empty()).then(|| format!("({})(/.+)?", names.join("|")))
}

/// Nobody.
fn nobody() -> Identifier {
    Identifier::NotId(Box::new(Principal { identifier: Some(Identifier::Any(true)) }))
}

fn authenticated(name: StringMatcher) -> Identifier {
    Identifier::Authenticated(Authenticated { principal_name: Some(name) })
}

/// Whether a header's value is compared with regard to case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    Compared,
    Ignored,
}

/// A test on a header. `*` matches every value, even an empty one: a client could otherwise get past a DENY by sending the
/// header without a value.
fn header(name: &str, value: &StringMatch, case: Case) -> HeaderMatcher {
    let specifier = match value {
        StringMatch::Present => HeaderMatchSpecifier::PresentMatch(true),
        // Envoy refuses `ignore_case` for expressions, which say so themselves.
        StringMatch::Regex(_) => HeaderMatchSpecifier::StringMatch(string(value)),
        _ => HeaderMatchSpecifier::StringMatch(StringMatcher { ignore_case: case == Case::Ignored, ..string(value) }),
    };
    HeaderMatcher { name: name.to_owned(), header_match_specifier: Some(specifier), ..Default::default() }
}

fn path_matcher(value: &PathMatch) -> PathMatcher {
    let matcher = match value {
        PathMatch::String(value) => string(value),
        PathMatch::Template(template) => regex_matcher(&template_regex(template)),
    };
    PathMatcher { rule: Some(path_matcher::Rule::Path(matcher)) }
}

/// The expression equal to a URI template: `*` is one segment, `**` any text.
fn template_regex(template: &str) -> String {
    let segment = |segment: &str| match segment {
        "*" | "{*}" => "[^/]+".to_owned(),
        "**" | "{**}" => ".*".to_owned(),
        other => quote(other),
    };
    template.split('/').map(segment).collect::<Vec<_>>().join("/")
}

fn text(value: &StringMatch) -> &str {
    match value {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) | StringMatch::Regex(text) => {
            text
        }
        StringMatch::Present => "",
    }
}

fn range(value: &StringMatch) -> Option<CidrRange> {
    evenkeel_base::cidr::parse(text(value)).ok().map(|net| cidr(&net))
}

fn cidr(net: &IpNet) -> CidrRange {
    CidrRange { address_prefix: net.network().to_string(), prefix_len: Some(u32_value(u32::from(net.prefix_len()))) }
}

fn add_rules<T>(all: &mut Vec<Permission>, values: &[T], not_values: &[T], rule: impl Fn(&T) -> PermissionRule) {
    let any_of = |values: &[T]| {
        let rules = values.iter().map(|value| Permission { rule: Some(rule(value)) }).collect();
        Permission { rule: Some(PermissionRule::OrRules(permission::Set { rules })) }
    };
    if !values.is_empty() {
        all.push(any_of(values));
    }
    if !not_values.is_empty() {
        all.push(Permission { rule: Some(PermissionRule::NotRule(Box::new(any_of(not_values)))) });
    }
}

fn add_ids<T>(all: &mut Vec<Principal>, values: &[T], not_values: &[T], ids: impl Fn(&T) -> Vec<Identifier>) {
    let any_of = |values: &[T]| {
        let ids = values.iter().flat_map(&ids).map(|id| Principal { identifier: Some(id) }).collect();
        Principal { identifier: Some(Identifier::OrIds(principal::Set { ids })) }
    };
    if !values.is_empty() {
        all.push(any_of(values));
    }
    if !not_values.is_empty() {
        all.push(Principal { identifier: Some(Identifier::NotId(Box::new(any_of(not_values)))) });
    }
}

fn and_rules(mut rules: Vec<Permission>) -> Permission {
    if rules.is_empty() {
        rules.push(Permission { rule: Some(PermissionRule::Any(true)) });
    }
    Permission { rule: Some(PermissionRule::AndRules(permission::Set { rules })) }
}

fn and_ids(mut ids: Vec<Principal>) -> Principal {
    if ids.is_empty() {
        ids.push(Principal { identifier: Some(Identifier::Any(true)) });
    }
    Principal { identifier: Some(Identifier::AndIds(principal::Set { ids })) }
}
