//! Finds what a call lacks to match a rule of an AuthorizationPolicy, by checking its conditions one by one in the policy's
//! own terms.
//!
//! The proxy's RBAC filter decides; this only names the condition that did not hold.

use std::net::IpAddr;

use evenkeel_base::cidr::IpNet;
use evenkeel_base::re2::Regex;
use evenkeel_model::policy::{Condition, ConditionKey, Operation, PathMatch, Rule, Source};
use evenkeel_model::{MeshConfig, StringMatch, trust_domains};
use evenkeel_runtime_config::matching::split_path;
use evenkeel_runtime_config::view::{PlainRequest, RequestView};

use crate::answer::Missing;

/// The attributes of a call that a policy can match.
#[derive(Debug)]
pub struct Facts<'a> {
    /// The caller's identity without `spiffe://`; `None` without a verified certificate.
    pub principal: Option<String>,
    /// The socket's peer.
    pub source: IpAddr,
    /// The client, as trusted headers tell it.
    pub client: IpAddr,
    /// The address and port that was called.
    pub destination: (IpAddr, u16),
    /// The name in the ClientHello.
    pub sni: Option<&'a str>,
    /// The request; `None` for a TCP connection.
    pub request: Option<&'a PlainRequest>,
    /// Whether attributes that TCP does not have are ignored, as in all policies but ALLOW.
    pub is_deny: bool,
    /// The mesh: its trust domain, which `cluster.local` stands for, and those whose namespaces are not its own.
    pub mesh: &'a MeshConfig,
}

impl Facts<'_> {
    /// Returns what the call lacks to match the rule; empty if it matches. Of alternatives the closest is used.
    pub fn missing(&self, rule: &Rule) -> Vec<Missing> {
        let mut all = closest(&rule.from, |at, source| self.source(&format!("from[{at}].source"), source));
        all.extend(closest(&rule.to, |at, operation| self.operation(&format!("to[{at}].operation"), operation)));
        all.extend(rule.when.iter().enumerate().flat_map(|(at, condition)| self.condition(at, condition)));
        all
    }

    fn source(&self, at: &str, source: &Source) -> Vec<Missing> {
        let mut test = Test { at, all: Vec::new() };
        let principal = self.principal.as_deref();
        let namespace = principal.and_then(|principal| self.namespace(principal));
        let account = principal.and_then(|principal| Some((namespace?, principal.rsplit_once("/sa/")?.1)));
        let of_mesh = |wanted: &StringMatch, has: &str| self.is_principal(wanted, has);
        test.texts("principals", &source.principals, &source.not_principals, principal, &of_mesh);
        let domain = principal.map(trust_domain);
        let of_domains = |wanted: &StringMatch, has: &str| self.is_trust_domain(wanted, has);
        test.texts("trustDomains", &source.trust_domains, &source.not_trust_domains, domain, &of_domains);
        // Which token a call has is only known to the proxy.
        if !(self.request.is_none() && self.is_deny) {
            let (wanted, unwanted) = (&source.request_principals, &source.not_request_principals);
            test.texts("requestPrincipals", wanted, unwanted, None, &matches);
        }
        test.texts("namespaces", &source.namespaces, &source.not_namespaces, namespace, &is_namespace);
        let accounts = |list: &[(std::sync::Arc<str>, std::sync::Arc<str>)]| -> Vec<StringMatch> {
            list.iter().map(|(namespace, name)| StringMatch::Exact(format!("{namespace}/{name}").into())).collect()
        };
        let account = account.map(|(namespace, name)| format!("{namespace}/{name}"));
        let (wanted, unwanted) = (accounts(&source.service_accounts), accounts(&source.not_service_accounts));
        test.texts("serviceAccounts", &wanted, &unwanted, account.as_deref(), &matches);
        test.addresses("ipBlocks", &source.ip_blocks, &source.not_ip_blocks, self.source);
        test.addresses("remoteIpBlocks", &source.remote_ip_blocks, &source.not_remote_ip_blocks, self.client);
        test.all
    }

    fn operation(&self, at: &str, operation: &Operation) -> Vec<Missing> {
        let mut test = Test { at, all: Vec::new() };
        let port = self.destination.1.to_string();
        let ports = |list: &[u16]| -> Vec<StringMatch> {
            list.iter().map(|port| StringMatch::Exact(port.to_string().into())).collect()
        };
        test.texts("ports", &ports(&operation.ports), &ports(&operation.not_ports), Some(&port), &matches);
        if self.request.is_none() && self.is_deny {
            return test.all;
        }
        let request = self.request;
        let host = request.map(|request| &*request.authority);
        let ignoring_case = |wanted: &StringMatch, has: &str| is_header(&lower(wanted), &has.to_ascii_lowercase());
        test.texts("hosts", &operation.hosts, &operation.not_hosts, host, &ignoring_case);
        let method = request.map(|request| &*request.method);
        test.texts("methods", &operation.methods, &operation.not_methods, method, &is_header);
        let path = request.map(|request| String::from_utf8_lossy(split_path(request.path()).0).into_owned());
        test.paths(&operation.paths, &operation.not_paths, path.as_deref());
        test.all
    }

    fn condition(&self, at: usize, condition: &Condition) -> Vec<Missing> {
        let (source, client, destination) =
            (self.source.to_string(), self.client.to_string(), self.destination.0.to_string());
        let port = self.destination.1.to_string();
        let principal = self.principal.as_deref();
        let account = principal
            .and_then(|principal| Some(format!("{}/{}", self.namespace(principal)?, principal.rsplit_once("/sa/")?.1)));
        let header;
        let (key, has): (String, Option<&str>) = match &condition.key {
            ConditionKey::RequestHeader(_) if self.request.is_none() && self.is_deny => return Vec::new(),
            ConditionKey::RequestHeader(name) => {
                header = self
                    .request
                    .and_then(|request| request.header(name))
                    .map(|value| String::from_utf8_lossy(&value).into_owned());
                (format!("request.headers[{name}]"), header.as_deref())
            }
            ConditionKey::RequestPrincipal | ConditionKey::RequestClaim(_)
                if self.request.is_none() && self.is_deny =>
            {
                return Vec::new();
            }
            ConditionKey::RequestPrincipal => ("request.auth.principal".to_owned(), None),
            ConditionKey::RequestClaim(path) => (format!("request.auth.claims[{}]", path.join("][")), None),
            ConditionKey::FilterMetadata { filter, key } => (format!("experimental.{filter}[{key}]"), None),
            ConditionKey::SourceIp => ("source.ip".to_owned(), Some(&source)),
            ConditionKey::RemoteIp => ("remote.ip".to_owned(), Some(&client)),
            ConditionKey::SourceNamespace => {
                ("source.namespace".to_owned(), principal.and_then(|principal| self.namespace(principal)))
            }
            ConditionKey::SourcePrincipal => ("source.principal".to_owned(), principal),
            ConditionKey::SourceServiceAccount => ("source.serviceAccount".to_owned(), account.as_deref()),
            ConditionKey::SourceTrustDomain => ("source.trustDomain".to_owned(), principal.map(trust_domain)),
            ConditionKey::DestinationIp => ("destination.ip".to_owned(), Some(&destination)),
            ConditionKey::DestinationPort => ("destination.port".to_owned(), Some(&port)),
            ConditionKey::ConnectionSni => ("connection.sni".to_owned(), Some(self.sni.unwrap_or_default())),
        };
        let at = format!("when[{at}]");
        let mut test = Test { at: &at, all: Vec::new() };
        let holds = |wanted: &StringMatch, has: &str| match &condition.key {
            ConditionKey::SourceIp | ConditionKey::RemoteIp | ConditionKey::DestinationIp => {
                let range = text(wanted).parse::<IpNet>().ok();
                let address = text(wanted).parse::<IpAddr>().ok();
                let has: Option<IpAddr> = has.parse().ok();
                has.is_some_and(|has| range.is_some_and(|net| net.contains(&has)) || address == Some(has))
            }
            ConditionKey::SourcePrincipal => self.is_principal(wanted, has),
            ConditionKey::SourceTrustDomain => self.is_trust_domain(wanted, has),
            ConditionKey::SourceNamespace => is_namespace(wanted, has),
            ConditionKey::RequestHeader(_) => is_header(wanted, has),
            _ => matches(wanted, has),
        };
        test.texts("values", &condition.values, &condition.not_values, has, &holds);
        // The key says more than `when[0].values`.
        test.all.into_iter().map(|missing| Missing { field: format!("{} ({key})", missing.field), ..missing }).collect()
    }

    /// Returns the namespace of an identity, if it is one of the mesh: once trust domains have their own roots, only
    /// identities of the mesh's trust domain have a namespace.
    fn namespace<'p>(&self, principal: &'p str) -> Option<&'p str> {
        let domain = trust_domain(principal);
        let is_own = || self.mesh.own_trust_domains().any(|own| **own == *domain);
        (self.mesh.federated_trust_domains().is_empty() || is_own()).then(|| namespace(principal)).flatten()
    }

    fn is_principal(&self, wanted: &StringMatch, has: &str) -> bool {
        trust_domains::principals(wanted, self.mesh).iter().any(|one| matches(one, has))
    }

    fn is_trust_domain(&self, wanted: &StringMatch, has: &str) -> bool {
        trust_domains::trust_domains(wanted, self.mesh).iter().any(|one| matches(one, has))
    }
}

/// Returns what is missing for the closest alternative; empty if there are no alternatives.
fn closest<T>(alternatives: &[T], missing: impl Fn(usize, &T) -> Vec<Missing>) -> Vec<Missing> {
    alternatives.iter().enumerate().map(|(at, one)| missing(at, one)).min_by_key(Vec::len).unwrap_or_default()
}

/// The tests of one source, operation or condition.
struct Test<'t> {
    at: &'t str,
    all: Vec<Missing>,
}

impl Test<'_> {
    fn texts(
        &mut self,
        field: &str,
        wanted: &[StringMatch],
        unwanted: &[StringMatch],
        has: Option<&str>,
        holds: &dyn Fn(&StringMatch, &str) -> bool,
    ) {
        let got = has.map_or_else(|| "none".to_owned(), |has| format!("\"{has}\""));
        if !wanted.is_empty() && !has.is_some_and(|has| wanted.iter().any(|one| holds(one, has))) {
            self.miss(field, &wanted.iter().map(shown).collect::<Vec<_>>(), &got);
        }
        if let Some(has) = has
            && let Some(found) = unwanted.iter().find(|one| holds(one, has))
        {
            self.miss(&negated(field), &[format!("anything but {}", shown(found))], &got);
        }
    }

    fn paths(&mut self, wanted: &[PathMatch], unwanted: &[PathMatch], has: Option<&str>) {
        let holds = |one: &PathMatch, has: &str| match one {
            PathMatch::String(one) => matches(one, has),
            PathMatch::Template(template) => is_of_template(template, has),
        };
        let shown = |one: &PathMatch| match one {
            PathMatch::String(one) => shown(one),
            PathMatch::Template(template) => format!("\"{template}\""),
        };
        let got = has.map_or_else(|| "none".to_owned(), |has| format!("\"{has}\""));
        if !wanted.is_empty() && !has.is_some_and(|has| wanted.iter().any(|one| holds(one, has))) {
            self.miss("paths", &wanted.iter().map(shown).collect::<Vec<_>>(), &got);
        }
        if let Some(has) = has
            && let Some(found) = unwanted.iter().find(|one| holds(one, has))
        {
            self.miss("notPaths", &[format!("anything but {}", shown(found))], &got);
        }
    }

    fn addresses(&mut self, field: &str, wanted: &[IpNet], unwanted: &[IpNet], has: IpAddr) {
        if !wanted.is_empty() && !wanted.iter().any(|net| net.contains(&has)) {
            self.miss(field, &wanted.iter().map(ToString::to_string).collect::<Vec<_>>(), &has.to_string());
        }
        if let Some(found) = unwanted.iter().find(|net| net.contains(&has)) {
            self.miss(&negated(field), &[format!("anything but {found}")], &has.to_string());
        }
    }

    fn miss(&mut self, field: &str, wanted: &[String], got: &str) {
        let field = format!("{}.{field}", self.at);
        self.all.push(Missing { field, wanted: wanted.join(" or "), got: got.to_owned() });
    }
}

/// `notPrincipals` of `principals`.
fn negated(field: &str) -> String {
    let mut letters = field.chars();
    let first = letters.next().map(|letter| letter.to_ascii_uppercase()).unwrap_or_default();
    format!("not{first}{}", letters.as_str())
}

fn namespace(principal: &str) -> Option<&str> {
    principal.split_once("/ns/")?.1.split('/').next()
}

fn trust_domain(principal: &str) -> &str {
    principal.split_once('/').map_or(principal, |(domain, _)| domain)
}

/// Stars stand for any text, wherever they are.
fn is_namespace(wanted: &StringMatch, has: &str) -> bool {
    let wanted = wanted.as_policy_value();
    let Some((start, rest)) = wanted.split_once('*') else { return *wanted == *has };
    let Some(mut left) = has.strip_prefix(start) else { return false };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(end)
}

/// `*` matches an empty value, too.
fn is_header(wanted: &StringMatch, has: &str) -> bool {
    *wanted == StringMatch::Present || matches(wanted, has)
}

fn matches(wanted: &StringMatch, has: &str) -> bool {
    match wanted {
        StringMatch::Exact(text) => **text == *has,
        StringMatch::Prefix(text) => has.starts_with(&**text),
        StringMatch::Suffix(text) => has.ends_with(&**text),
        StringMatch::Regex(text) => Regex::whole(text).is_ok_and(|regex| regex.is_match(has.as_bytes())),
        StringMatch::Present => !has.is_empty(),
    }
}

fn lower(wanted: &StringMatch) -> StringMatch {
    let lower = |text: &str| text.to_ascii_lowercase().into();
    match wanted {
        StringMatch::Exact(text) => StringMatch::Exact(lower(text)),
        StringMatch::Prefix(text) => StringMatch::Prefix(lower(text)),
        StringMatch::Suffix(text) => StringMatch::Suffix(lower(text)),
        StringMatch::Regex(text) => StringMatch::Regex(text.clone()),
        StringMatch::Present => StringMatch::Present,
    }
}

fn text(wanted: &StringMatch) -> &str {
    match wanted {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) | StringMatch::Regex(text) => {
            text
        }
        StringMatch::Present => "*",
    }
}

fn shown(wanted: &StringMatch) -> String {
    match wanted {
        StringMatch::Exact(text) => format!("\"{text}\""),
        StringMatch::Prefix(text) => format!("\"{text}*\""),
        StringMatch::Suffix(text) => format!("\"*{text}\""),
        StringMatch::Regex(text) => format!("/{text}/"),
        StringMatch::Present => "any".to_owned(),
    }
}

/// Whether a path has the segments of a template: `*` or `{*}` one, `**` or `{**}` at least one.
fn is_of_template(template: &str, path: &str) -> bool {
    fn rest(template: &[&str], path: &[&str]) -> bool {
        match (template.split_first(), path.split_first()) {
            (None, None) => true,
            (Some((&("**" | "{**}"), template)), _) => (1..=path.len()).any(|taken| rest(template, &path[taken..])),
            (Some((&("*" | "{*}"), template)), Some((segment, path))) => !segment.is_empty() && rest(template, path),
            (Some((wanted, template)), Some((segment, path))) => wanted == segment && rest(template, path),
            (Some(_), None) | (None, Some(_)) => false,
        }
    }
    let (template, path): (Vec<&str>, Vec<&str>) = (template.split('/').collect(), path.split('/').collect());
    rest(&template, &path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts<'a>(request: &'a PlainRequest, mesh: &'a MeshConfig) -> Facts<'a> {
        Facts {
            principal: Some("cluster.local/ns/shop/sa/web".to_owned()),
            source: [10, 0, 0, 1].into(),
            client: [203, 0, 113, 7].into(),
            destination: ([10, 0, 0, 2].into(), 8080),
            sni: None,
            request: Some(request),
            is_deny: false,
            mesh,
        }
    }

    #[test]
    fn the_closest_alternative_is_told() {
        let request = PlainRequest::new("DELETE", "info", "/x/y").with_header("x-a", "1");
        let exact = |text: &str| StringMatch::Exact(text.into());
        let source = |name: &str| Source { principals: vec![exact(name)], ..Source::default() };
        let rule = Rule {
            from: vec![source("cluster.local/ns/other/sa/x"), source("cluster.local/ns/shop/sa/web")],
            to: vec![
                Operation { methods: vec![exact("GET")], ports: vec![9], ..Operation::default() },
                Operation { methods: vec![exact("GET"), exact("HEAD")], ..Operation::default() },
            ],
            when: vec![Condition {
                key: ConditionKey::RequestHeader("x-a".into()),
                values: vec![exact("1")],
                not_values: Vec::new(),
            }],
        };
        let mesh = MeshConfig::default();
        let missing = facts(&request, &mesh).missing(&rule);
        let told: Vec<String> = missing.iter().map(|m| format!("{}: {} / {}", m.field, m.wanted, m.got)).collect();
        assert_eq!(told, ["to[1].operation.methods: \"GET\" or \"HEAD\" / \"DELETE\""]);
    }

    #[test]
    fn an_identity_of_another_trust_domain_has_no_namespace_of_the_mesh() {
        let request = PlainRequest::new("GET", "info", "/");
        let by_namespace = Source { namespaces: vec![StringMatch::Exact("shop".into())], ..Source::default() };
        let source = |source| Rule { from: vec![source], to: Vec::new(), when: Vec::new() };
        let by_account = Source { service_accounts: vec![("shop".into(), "web".into())], ..Source::default() };
        let when = Condition {
            key: ConditionKey::SourceNamespace,
            values: vec![StringMatch::Exact("shop".into())],
            not_values: Vec::new(),
        };
        let rules = [source(by_namespace), source(by_account), Rule { from: vec![], to: vec![], when: vec![when] }];
        let check = |domain: &str, federated: &[&str], expected: usize| {
            let trust_domains = federated.iter().map(|&name| name.into()).collect();
            let source = evenkeel_model::RootsSource::Pem("".into());
            let further_roots = vec![evenkeel_model::FurtherRoots { source, trust_domains }];
            let mesh =
                MeshConfig { further_roots, trust_domain_aliases: vec!["old.example".into()], ..MeshConfig::default() };
            let facts = Facts { principal: Some(format!("{domain}/ns/shop/sa/web")), ..facts(&request, &mesh) };
            for rule in &rules {
                assert_eq!(facts.missing(rule).len(), expected, "{domain} {federated:?} {rule:?}");
            }
        };
        check("cluster.local", &["partner.example"], 0);
        check("old.example", &["partner.example"], 0);
        check("partner.example", &["partner.example"], 1);
        check("partner.example", &[], 0);
    }

    #[test]
    fn aliases_of_the_trust_domain_are_not_missed() {
        let request = PlainRequest::new("GET", "info", "/");
        let mesh = MeshConfig {
            trust_domain: "new.example".into(),
            trust_domain_aliases: vec!["old.example".into()],
            ..MeshConfig::default()
        };
        let text = |text: &str| StringMatch::from_policy_value(text);
        let principals = |value: &str| Source { principals: vec![text(value)], ..Source::default() };
        let not_principals = |value: &str| Source { not_principals: vec![text(value)], ..Source::default() };
        let domains = |value: &str| Source { trust_domains: vec![text(value)], ..Source::default() };
        let not_domains = |value: &str| Source { not_trust_domains: vec![text(value)], ..Source::default() };
        let check = |source: Source, caller: &str, misses: usize| {
            let facts = Facts { principal: Some(format!("{caller}/ns/shop/sa/web")), ..facts(&request, &mesh) };
            let of_rule = facts.missing(&Rule { from: vec![source.clone()], to: Vec::new(), when: Vec::new() });
            assert_eq!(of_rule.len(), misses, "{caller} {source:?}");
        };
        for caller in ["new.example", "old.example"] {
            for domain in ["cluster.local", "new.example", "old.example", "*.example"] {
                check(principals(&format!("{domain}/ns/shop/sa/web")), caller, 0);
                check(not_principals(&format!("{domain}/ns/shop/sa/web")), caller, 1);
            }
            check(principals("old.example/ns/shop/*"), caller, 0);
            check(principals("far.example/ns/shop/sa/web"), caller, 1);
            for domain in ["new.example", "old.example", "*.example", "old.*", "*"] {
                let expected = usize::from(domain == "old.*" && caller == "new.example");
                check(domains(domain), caller, expected);
                check(not_domains(domain), caller, 1 - expected);
            }
            check(domains("far.example"), caller, 1);
        }
        check(principals("old.example/ns/shop/sa/web"), "far.example", 1);
        check(domains("old.example"), "far.example", 1);
        let when = |value: &str| Condition {
            key: ConditionKey::SourcePrincipal,
            values: vec![text(value)],
            not_values: Vec::new(),
        };
        let facts = Facts { principal: Some("old.example/ns/shop/sa/web".to_owned()), ..facts(&request, &mesh) };
        let rule = Rule { from: vec![], to: vec![], when: vec![when("new.example/ns/shop/sa/web")] };
        assert!(facts.missing(&rule).is_empty());
    }

    #[test]
    fn stars_and_empty_values_are_read_as_the_proxy_reads_them() {
        let request = PlainRequest::new("GET", "info", "/").with_header("x-a", "");
        let mesh = MeshConfig::default();
        let check = |key: ConditionKey, value: &str, holds: bool| {
            let when = Condition { key, values: vec![StringMatch::from_policy_value(value)], not_values: Vec::new() };
            let facts = Facts { principal: Some("cluster.local/ns/shop/sa/web".to_owned()), ..facts(&request, &mesh) };
            let missing = facts.missing(&Rule { from: vec![], to: vec![], when: vec![when.clone()] });
            assert_eq!(missing.is_empty(), holds, "{when:?}");
        };
        for (value, holds) in [
            ("*", true),
            ("shop", true),
            ("s*p", true),
            ("*o*", true),
            ("sh*", true),
            ("*op", true),
            ("s*op*p", false),
            ("sho", false),
            ("*x*", false),
            ("shop*shop", false),
        ] {
            check(ConditionKey::SourceNamespace, value, holds);
        }
        check(ConditionKey::RequestHeader("x-a".into()), "*", true);
        check(ConditionKey::RequestHeader("x-b".into()), "*", false);
        check(ConditionKey::SourceTrustDomain, "cluster.local", true);
        check(ConditionKey::SourceTrustDomain, "other.example", false);
        check(ConditionKey::SourceServiceAccount, "shop/web", true);
    }

    #[test]
    fn templates_have_segments() {
        let check = |template: &str, path: &str, expected: bool| {
            assert_eq!(is_of_template(template, path), expected, "{template} {path}");
        };
        check("/a/{*}/c", "/a/b/c", true);
        check("/a/{*}/c", "/a/b/d/c", false);
        check("/a/{**}/c", "/a/b/d/c", true);
        check("/a/{**}", "/a", false);
        check("/a/{**}", "/a/", true);
    }
}
