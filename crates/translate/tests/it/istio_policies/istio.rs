//! What istiod makes of AuthorizationPolicies (`pilot/pkg/security/authz`), written down from its behaviour: an oracle for what
//! this control plane makes of them.
//!
//! A policy is the JSON of its `spec`. Of each rule, conditions on the caller become principals and the rest permissions. A part that
//! bytes do not have is left out of a rule that denies or logs, and drops a rule that allows.

use std::collections::HashMap;

use evenkeel_xds::pb::envoy::config::core::v3::CidrRange;
use evenkeel_xds::pb::envoy::config::rbac::v3::permission::{self, Rule as Is};
use evenkeel_xds::pb::envoy::config::rbac::v3::principal::{self, Authenticated, Identifier as Id};
use evenkeel_xds::pb::envoy::config::rbac::v3::rbac::Action;
use evenkeel_xds::pb::envoy::config::rbac::v3::{Permission, Policy, Principal, Rbac};
use evenkeel_xds::pb::envoy::config::route::v3::HeaderMatcher;
use evenkeel_xds::pb::envoy::config::route::v3::header_matcher::HeaderMatchSpecifier;
use evenkeel_xds::pb::envoy::r#type::matcher::v3::metadata_matcher::{PathSegment, path_segment::Segment};
use evenkeel_xds::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use evenkeel_xds::pb::envoy::r#type::matcher::v3::value_matcher::MatchPattern as ValuePattern;
use evenkeel_xds::pb::envoy::r#type::matcher::v3::{
    ListMatcher, MetadataMatcher, OrMatcher, PathMatcher, RegexMatcher, StringMatcher, ValueMatcher, list_matcher,
    path_matcher,
};
use serde_json::Value;

/// A policy of a workload.
pub struct Written {
    pub namespace: &'static str,
    pub name: String,
    pub spec: Value,
}

/// A part of a rule that only requests have.
struct HttpOnly;

/// The rules of the filters of a workload, in their order.
pub fn filters(policies: &[Written], tcp: bool) -> Vec<Rbac> {
    let of = |name: &str, action: Action| {
        let is_it = |policy: &&Written| policy.spec["action"].as_str().unwrap_or("ALLOW") == name;
        let chosen: Vec<&Written> = policies.iter().filter(is_it).collect();
        (!chosen.is_empty()).then(|| rules(&chosen, action, tcp))
    };
    [of("AUDIT", Action::Log), of("DENY", Action::Deny), of("ALLOW", Action::Allow)].into_iter().flatten().collect()
}

fn rules(policies: &[&Written], action: Action, tcp: bool) -> Rbac {
    let mut compiled = HashMap::new();
    for policy in policies {
        let name = |rule: usize| format!("ns[{}]-policy[{}]-rule[{rule}]", policy.namespace, policy.name);
        let rules = list(&policy.spec, "rules");
        if rules.is_empty() {
            compiled.insert(name(0), never());
        }
        for (at, rule) in rules.iter().enumerate() {
            if let Ok(made) = (Translation { tcp, action, namespace: policy.namespace }).rule(rule) {
                compiled.insert(name(at), made);
            }
        }
    }
    Rbac { action: action as i32, policies: compiled, ..Rbac::default() }
}

fn never() -> Policy {
    Policy {
        permissions: vec![is(Is::NotRule(Box::new(is(Is::Any(true)))))],
        principals: vec![id(Id::NotId(Box::new(id(Id::Any(true)))))],
        ..Policy::default()
    }
}

struct Translation {
    tcp: bool,
    action: Action,
    /// The policy's.
    namespace: &'static str,
}

impl Translation {
    fn rule(&self, rule: &Value) -> Result<Policy, HttpOnly> {
        let one = [Value::Null];
        let or_one = |all: &'_ [Value]| if all.is_empty() { one.to_vec() } else { all.to_vec() };
        let permissions: Result<_, HttpOnly> =
            or_one(list(rule, "to")).iter().map(|to| self.permission(&to["operation"], rule)).collect();
        let principals: Result<_, HttpOnly> =
            or_one(list(rule, "from")).iter().map(|from| self.principal(&from["source"], rule)).collect();
        Ok(Policy { permissions: permissions?, principals: principals?, ..Policy::default() })
    }

    fn permission(&self, operation: &Value, rule: &Value) -> Result<Permission, HttpOnly> {
        let mut all = Vec::new();
        let path = |text: &str| Is::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(string(text))) });
        let lists = |name: &str| (texts(operation, name), texts(operation, &negated(name)));
        self.rules(&mut all, lists("hosts"), |text| self.http(Is::Header(header(":authority", text, true))))?;
        self.rules(&mut all, lists("methods"), |text| self.http(Is::Header(header(":method", text, false))))?;
        self.rules(&mut all, lists("paths"), |text| self.http(path(text)))?;
        self.rules(&mut all, lists("ports"), |text| Ok(Is::DestinationPort(number(text))))?;
        for condition in list(rule, "when") {
            let key = condition["key"].as_str().unwrap_or_default();
            let lists = || (texts(condition, "values"), texts(condition, "notValues"));
            match key {
                "destination.ip" => self.rules(&mut all, lists(), |text| Ok(Is::DestinationIp(range(text))))?,
                "destination.port" => self.rules(&mut all, lists(), |text| Ok(Is::DestinationPort(number(text))))?,
                "connection.sni" => self.rules(&mut all, lists(), |text| Ok(Is::RequestedServerName(string(text))))?,
                _ if key.starts_with("experimental.") => {
                    let of_filter = |text: &str| {
                        let (filter, keys) = bracketed(key.trim_start_matches("experimental."));
                        let value = if text.starts_with('[') && text.ends_with(']') {
                            one_of(of_text(string(text.trim_matches(['[', ']']))))
                        } else {
                            of_text(string(text))
                        };
                        #[allow(deprecated, reason = "what istiod sends")]
                        Ok(Is::Metadata(metadata(filter, &keys, value)))
                    };
                    self.rules(&mut all, lists(), of_filter)?;
                }
                _ => {}
            }
        }
        if all.is_empty() {
            all.push(is(Is::Any(true)));
        }
        Ok(is(Is::AndRules(permission::Set { rules: all })))
    }

    fn principal(&self, source: &Value, rule: &Value) -> Result<Principal, HttpOnly> {
        let mut all = Vec::new();
        let lists = |name: &str| (texts(source, name), texts(source, &negated(name)));
        self.ids(&mut all, lists("principals"), |text| Ok(of_identity(text)))?;
        self.ids(&mut all, lists("requestPrincipals"), |text| self.http(of_token(text)))?;
        self.ids(&mut all, lists("namespaces"), |text| Ok(of_namespace(text)))?;
        self.ids(&mut all, lists("serviceAccounts"), |text| Ok(self.of_account(text)))?;
        self.ids(&mut all, lists("trustDomains"), |text| Ok(of_trust_domain(text)))?;
        self.ids(&mut all, lists("remoteIpBlocks"), |text| Ok(Id::RemoteIp(range(text))))?;
        self.ids(&mut all, lists("ipBlocks"), |text| Ok(Id::DirectRemoteIp(range(text))))?;
        for condition in list(rule, "when") {
            let key = condition["key"].as_str().unwrap_or_default();
            let lists = (texts(condition, "values"), texts(condition, "notValues"));
            let (name, names) = bracketed(key);
            let claim = |path: &[&str], text: &str| self.http(of_claim(path, text));
            match name {
                "source.ip" => self.ids(&mut all, lists, |text| Ok(Id::DirectRemoteIp(range(text))))?,
                "remote.ip" => self.ids(&mut all, lists, |text| Ok(Id::RemoteIp(range(text))))?,
                "source.namespace" => self.ids(&mut all, lists, |text| Ok(of_namespace(text)))?,
                "source.principal" => self.ids(&mut all, lists, |text| Ok(of_identity(text)))?,
                "source.serviceAccount" => self.ids(&mut all, lists, |text| Ok(self.of_account(text)))?,
                "source.trustDomain" => self.ids(&mut all, lists, |text| Ok(of_trust_domain(text)))?,
                "request.auth.principal" => self.ids(&mut all, lists, |text| self.http(of_token(text)))?,
                "request.auth.audiences" => self.ids(&mut all, lists, |text| claim(&["aud"], text))?,
                "request.auth.presenter" => self.ids(&mut all, lists, |text| claim(&["azp"], text))?,
                "request.auth.claims" => self.ids(&mut all, lists, |text| claim(&names, text))?,
                "request.headers" => {
                    let of_header = |text: &str| self.http(Id::Header(header(names[0], text, false)));
                    self.ids(&mut all, lists, of_header)?;
                }
                _ => {}
            }
        }
        if all.is_empty() {
            all.push(id(Id::Any(true)));
        }
        Ok(id(Id::AndIds(principal::Set { ids: all })))
    }

    fn http<T>(&self, part: T) -> Result<T, HttpOnly> {
        if self.tcp { Err(HttpOnly) } else { Ok(part) }
    }

    /// One of the values has to match, and none of the others may.
    fn rules(
        &self,
        all: &mut Vec<Permission>,
        (values, not_values): (Vec<&str>, Vec<&str>),
        part: impl Fn(&str) -> Result<Is, HttpOnly>,
    ) -> Result<(), HttpOnly> {
        let any =
            self.known(values, &part)?.map(|rules| permission::Set { rules: rules.into_iter().map(is).collect() });
        all.extend(any.map(|set| is(Is::OrRules(set))));
        let none =
            self.known(not_values, &part)?.map(|rules| permission::Set { rules: rules.into_iter().map(is).collect() });
        all.extend(none.map(|set| is(Is::NotRule(Box::new(is(Is::OrRules(set)))))));
        Ok(())
    }

    fn ids(
        &self,
        all: &mut Vec<Principal>,
        (values, not_values): (Vec<&str>, Vec<&str>),
        part: impl Fn(&str) -> Result<Id, HttpOnly>,
    ) -> Result<(), HttpOnly> {
        let any = self.known(values, &part)?.map(|ids| principal::Set { ids: ids.into_iter().map(id).collect() });
        all.extend(any.map(|set| id(Id::OrIds(set))));
        let none = self.known(not_values, &part)?.map(|ids| principal::Set { ids: ids.into_iter().map(id).collect() });
        all.extend(none.map(|set| id(Id::NotId(Box::new(id(Id::OrIds(set)))))));
        Ok(())
    }

    /// The parts of the values; `None`: there are none.
    fn known<T>(
        &self,
        values: Vec<&str>,
        part: impl Fn(&str) -> Result<T, HttpOnly>,
    ) -> Result<Option<Vec<T>>, HttpOnly> {
        let mut parts = Vec::new();
        for value in values {
            match part(value) {
                Ok(part) => parts.push(part),
                Err(bad) if self.action == Action::Allow => return Err(bad),
                Err(_) => {}
            }
        }
        Ok((!parts.is_empty()).then_some(parts))
    }

    fn of_account(&self, text: &str) -> Id {
        let (namespace, account) = text.split_once('/').unwrap_or((self.namespace, text));
        named(regex(format!("spiffe://.+/ns/{namespace}/(.+/|)sa/{account}(/.+)?")))
    }
}

fn is(rule: Is) -> Permission {
    Permission { rule: Some(rule) }
}

fn id(identifier: Id) -> Principal {
    Principal { identifier: Some(identifier) }
}

fn named(name: StringMatcher) -> Id {
    Id::Authenticated(Authenticated { principal_name: Some(name) })
}

fn of_identity(text: &str) -> Id {
    named(match text {
        "*" => regex(".+".to_owned()),
        _ if text.starts_with('*') => regex(format!("spiffe://.*{}", &text[1..])),
        _ => string(&format!("spiffe://{text}")),
    })
}

fn of_namespace(text: &str) -> Id {
    named(regex(format!(".*/ns/{}/.*", text.replace('*', ".*"))))
}

fn of_trust_domain(text: &str) -> Id {
    named(match text {
        "*" => regex(".+".to_owned()),
        _ => regex(format!("spiffe://{}/.*", text.replace('.', r"\.").replace('*', "[^/]*"))),
    })
}

/// `ISSUER/SUBJECT`, where the last slash counts; a star may be at either end.
#[allow(deprecated, reason = "what istiod sends")]
fn of_token(text: &str) -> Id {
    let any = || regex(".+".to_owned());
    let pattern = |pattern| StringMatcher { match_pattern: Some(pattern), ignore_case: false };
    let exact = |text: &str| pattern(MatchPattern::Exact(text.to_owned()));
    let (issuer, subject) = match (text, text.rsplit_once('/')) {
        ("*", _) => (any(), any()),
        (_, Some(("*", subject))) => (any(), exact(subject)),
        (_, Some((issuer, subject))) if issuer.starts_with('*') => {
            (pattern(MatchPattern::Suffix(issuer[1..].to_owned())), exact(subject))
        }
        (_, Some((issuer, "*"))) => (exact(issuer), any()),
        (_, Some((issuer, subject))) if subject.ends_with('*') => {
            (exact(issuer), pattern(MatchPattern::Prefix(subject.trim_end_matches('*').to_owned())))
        }
        (_, Some((issuer, subject))) => (exact(issuer), exact(subject)),
        (_, None) if text.starts_with('*') => (any(), pattern(MatchPattern::Suffix(text[1..].to_owned()))),
        (_, None) if text.ends_with('*') => {
            (pattern(MatchPattern::Prefix(text.trim_end_matches('*').to_owned())), any())
        }
        (_, None) => (exact(text), exact("")),
    };
    let claim = |name: &str, value| id(Id::Metadata(metadata(JWT, &["payload", name], of_text(value))));
    Id::AndIds(principal::Set { ids: vec![claim("iss", issuer), claim("sub", subject)] })
}

const JWT: &str = "envoy.filters.http.jwt_authn";

/// A claim that is a text, or a list with it.
#[allow(deprecated, reason = "what istiod sends")]
fn of_claim(path: &[&str], text: &str) -> Id {
    let value = || of_text(string(text));
    let either = OrMatcher { value_matchers: vec![one_of(value()), value()] };
    let path: Vec<&str> = ["payload"].iter().chain(path).copied().collect();
    Id::Metadata(metadata(JWT, &path, ValueMatcher { match_pattern: Some(ValuePattern::OrMatch(either)) }))
}

fn metadata(filter: &str, path: &[&str], value: ValueMatcher) -> MetadataMatcher {
    let path = path.iter().map(|key| PathSegment { segment: Some(Segment::Key((*key).to_owned())) }).collect();
    MetadataMatcher { filter: filter.to_owned(), path, value: Some(value), invert: false }
}

fn of_text(matcher: StringMatcher) -> ValueMatcher {
    ValueMatcher { match_pattern: Some(ValuePattern::StringMatch(matcher)) }
}

fn one_of(value: ValueMatcher) -> ValueMatcher {
    let list = ListMatcher { match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(value))) };
    ValueMatcher { match_pattern: Some(ValuePattern::ListMatch(Box::new(list))) }
}

/// A header; `*` is any value, if there is the header.
fn header(name: &str, text: &str, ignore_case: bool) -> HeaderMatcher {
    let specifier = match text {
        "*" => HeaderMatchSpecifier::PresentMatch(true),
        _ => HeaderMatchSpecifier::StringMatch(StringMatcher { ignore_case, ..string(text) }),
    };
    HeaderMatcher { name: name.to_lowercase(), header_match_specifier: Some(specifier), ..HeaderMatcher::default() }
}

/// A text; a star at one end leaves it open, and one alone is any text but the empty one.
fn string(text: &str) -> StringMatcher {
    let pattern = match text {
        "*" => return regex(".+".to_owned()),
        _ if text.starts_with('*') => MatchPattern::Suffix(text[1..].to_owned()),
        _ if text.ends_with('*') => MatchPattern::Prefix(text[..text.len() - 1].to_owned()),
        _ => MatchPattern::Exact(text.to_owned()),
    };
    StringMatcher { match_pattern: Some(pattern), ignore_case: false }
}

fn regex(regex: String) -> StringMatcher {
    let pattern = MatchPattern::SafeRegex(RegexMatcher { regex, ..RegexMatcher::default() });
    StringMatcher { match_pattern: Some(pattern), ignore_case: false }
}

fn range(text: &str) -> CidrRange {
    let net = address_and_bits(text);
    CidrRange {
        address_prefix: net.0,
        prefix_len: Some(evenkeel_xds::pb::google::protobuf::UInt32Value { value: net.1 }),
    }
}

/// An address, which is a range of one, or `ADDRESS/BITS`.
fn address_and_bits(text: &str) -> (String, u32) {
    let (address, bits) = text.split_once('/').unwrap_or((text, "32"));
    (address.to_owned(), bits.parse().expect("a number of bits"))
}

fn number(text: &str) -> u32 {
    text.parse().expect("a port")
}

/// `name[a][b]` as the name and what is in brackets.
fn bracketed(key: &str) -> (&str, Vec<&str>) {
    let (name, rest) = key.split_at(key.find('[').unwrap_or(key.len()));
    (name, rest.split(['[', ']']).filter(|part| !part.is_empty()).collect())
}

fn negated(name: &str) -> String {
    format!("not{}{}", name[..1].to_uppercase(), &name[1..])
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn texts<'v>(value: &'v Value, name: &str) -> Vec<&'v str> {
    list(value, name).iter().filter_map(Value::as_str).collect()
}
