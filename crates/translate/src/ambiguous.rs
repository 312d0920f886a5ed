//! Denies ambiguous requests at proxies with AuthorizationPolicies: requests whose path, host or method the policies match,
//! if a server may read these differently.
//!
//! A policy compares text. A server may decode escapes, merge slashes, resolve dot segments or drop path parameters before it uses
//! the same text, and then a request for `/admin%2Fusers` is one for `/admin/users`, which a policy denies. Normalization
//! (`pathNormalization`) removes some of these differences before policies are asked; a path that keeps one is *ambiguous*. It is
//! refused by a rule of the DENY filter, so Evenkeel and stock Envoy refuse the same requests, with the reason in
//! `%RESPONSE_CODE_DETAILS%`: `rbac_access_denied_matched_policy[ambiguous-path[encoded-slash]]`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_model::policy::{ConditionKey, Operation, PathMatch, Rule};
use evenkeel_model::{AuthorizationAction, AuthorizationPolicy, PathNormalization, StringMatch};

use crate::context::Context;
use crate::pb::config::rbac::permission::Rule as Is;
use crate::pb::config::rbac::{Permission, Policy, Principal, permission, principal};
use crate::pb::config::route::HeaderMatcher;
use crate::pb::config::route::header_matcher::HeaderMatchSpecifier;
use crate::pb::hcm::http_connection_manager::PathWithEscapedSlashesAction;
use crate::pb::matcher::string_matcher::MatchPattern;
use crate::pb::matcher::{PathMatcher, StringMatcher, path_matcher};
use crate::proto::{quote, regex, string_matcher};
use crate::view::ClientKind;

/// Prefix of the name of a rule about paths; the reason follows in brackets.
const PATH: &str = "ambiguous-path";
/// Prefix for hosts.
const HOST: &str = "ambiguous-host";
/// Prefix for methods.
const METHOD: &str = "ambiguous-method";
/// Prefix for identities.
const IDENTITY: &str = "ambiguous-identity";
/// The reason for a certificate with names of several trust domains.
const SEVERAL_DOMAINS: &str = "several-trust-domains";

/// The reasons in names of rules, and their meaning for users.
const REASONS: [(&str, &str); 16] = [
    ("backslash", "some servers read a backslash in the path as a slash"),
    ("dot-segment", "servers resolve `.` and `..` in the path, which the policies were not asked about"),
    ("double-encoding", "a server that decodes the path twice reads another one"),
    ("empty-segment", "some servers read `//` in the path as one slash"),
    (
        "encoded-character",
        "the path has an escape for a character that the policies have as it is, and servers read both alike",
    ),
    ("encoded-delimiter", "a server that decodes the path early reads `%3F` or `%23` as its end"),
    ("encoded-nul", "some servers read `%00` as the end of the path"),
    ("encoded-slash", "some servers read `%2F` or `%5C` in the path as a slash"),
    ("invalid-escape", "servers differ about a `%` without two hexadecimal digits"),
    ("lower-case", "some servers read the method in upper case"),
    ("non-ascii", "a path has only ASCII characters"),
    ("overlong-escape", "some servers read an overlong UTF-8 sequence in the path as ASCII"),
    ("path-parameter", "some servers drop what follows `;` in a segment of the path"),
    ("trailing-space", "some servers drop white space at the end of the decoded path"),
    (
        SEVERAL_DOMAINS,
        "an authority vouches for its own trust domain only, and Envoy compares every name of a certificate",
    ),
    ("trailing-dot", "servers read a host with a final dot as the one without it"),
];

/// A path with an escaped control character or white space at its end, also of Unicode: servers trim it, and `$` in an
/// expression matches before a line feed. Envoy takes no larger expression if its bootstrap does not say so.
const TRAILING_SPACE: &str = ".*%([01][0-9A-Fa-f]|20|7[Ff]|[Cc]2%(85|[Aa]0)|[Ee]1%9[Aa]%80|\
[Ee]2%80%(8[0-9A-Fa-f]|[Aa][89Ff])|[Ee]2%81%(9[Ff]|[Aa]0)|[Ee]3%80%80|[Ee][Ff]%[Bb][Bb]%[Bb][Ff])";
/// The same of Latin-1, where the last byte is not part of a character in UTF-8 (`%C3%A0`).
const TRAILING_LATIN_SPACE: &str = "(.{0,2}|.*([^%]..|%[^89A-Fa-f].))%(85|[Aa]0)";

/// How the proxy normalizes a path before it evaluates policies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathReading {
    /// Dot segments are resolved, backslashes replaced, and escapes of unreserved characters decoded.
    pub normalizes: bool,
    /// Adjacent slashes become one.
    pub merges: bool,
    /// `%2F` and `%5C`.
    pub escaped_slashes: PathWithEscapedSlashesAction,
}

impl PathReading {
    /// As istiod's `buildHTTPConnectionManager` translates `pathNormalization`; the proxy's own settings override it.
    pub fn of(context: Context<'_>) -> Self {
        let mode = context.snapshot.mesh().path_normalization;
        let limits = context.options().connections.at(!context.is_sidecar());
        let merges = matches!(mode, PathNormalization::MergeSlashes | PathNormalization::DecodeAndMergeSlashes);
        let escaped = match mode {
            PathNormalization::DecodeAndMergeSlashes => PathWithEscapedSlashesAction::UnescapeAndForward,
            // They are kept unchanged.
            _ => PathWithEscapedSlashesAction::ImplementationSpecificDefault,
        };
        Self {
            normalizes: mode != PathNormalization::None,
            merges: limits.merge_slashes.unwrap_or(merges),
            escaped_slashes: limits.escaped_slashes.unwrap_or(escaped),
        }
    }

    fn keeps_escaped_slashes(self) -> bool {
        use PathWithEscapedSlashesAction::{ImplementationSpecificDefault, KeepUnchanged};
        matches!(self.escaped_slashes, ImplementationSpecificDefault | KeepUnchanged)
    }
}

/// The attributes that policies compare with requests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Mentions {
    /// The texts of the paths.
    paths: BTreeSet<String>,
    hosts: bool,
    methods: bool,
}

impl Mentions {
    fn of<'p>(policies: impl Iterator<Item = &'p AuthorizationPolicy>) -> Self {
        let mut mentions = Self::default();
        policies.flat_map(|policy| &policy.rules).for_each(|rule| mentions.add(rule));
        mentions
    }

    fn add(&mut self, rule: &Rule) {
        let says = |values: &[StringMatch]| values.iter().any(|value| *value != StringMatch::Present);
        for Operation { paths, not_paths, hosts, not_hosts, methods, not_methods, .. } in &rule.to {
            self.hosts |= says(hosts) || says(not_hosts);
            self.methods |= says(methods) || says(not_methods);
            self.paths.extend(paths.iter().chain(not_paths).filter_map(|path| match path {
                PathMatch::String(value) => text(value),
                PathMatch::Template(template) => Some(template.to_string()),
            }));
        }
        for condition in &rule.when {
            let ConditionKey::RequestHeader(name) = &condition.key else { continue };
            let values = || condition.values.iter().chain(&condition.not_values);
            match &**name {
                ":path" => self.paths.extend(values().filter_map(text)),
                ":authority" | "host" => self.hosts |= values().any(|value| *value != StringMatch::Present),
                ":method" => self.methods |= values().any(|value| *value != StringMatch::Present),
                _ => {}
            }
        }
    }
}

/// The text that a path is compared with; `None`: any path matches.
fn text(value: &StringMatch) -> Option<String> {
    match value {
        StringMatch::Exact(text) | StringMatch::Prefix(text) | StringMatch::Suffix(text) | StringMatch::Regex(text) => {
            Some(text.to_string())
        }
        StringMatch::Present => None,
    }
}

/// Returns the rules that deny requests that are ambiguous to these policies.
pub(crate) fn refusals<'p>(
    context: Context<'_>,
    policies: impl Iterator<Item = &'p AuthorizationPolicy>,
) -> BTreeMap<String, Policy> {
    if context.options().forwards_ambiguous {
        return BTreeMap::new();
    }
    let mentions = Mentions::of(policies);
    let mut rules = BTreeMap::new();
    if !mentions.paths.is_empty() {
        let reading = PathReading::of(context);
        let of_path = path_rules(reading, &mentions.paths, context.client_kind().is_evenkeel());
        rules.extend(of_path.into_iter().map(|(reason, rule)| (format!("{PATH}[{reason}]"), rule)));
    }
    if mentions.hosts {
        // With a port or without.
        let host = |pattern| header(":authority", pattern);
        let dotted =
            any_of(vec![host(MatchPattern::Suffix(".".to_owned())), host(MatchPattern::Contains(".:".to_owned()))]);
        rules.insert(format!("{HOST}[trailing-dot]"), dotted);
    }
    if mentions.methods {
        rules.insert(format!("{METHOD}[lower-case]"), header(":method", MatchPattern::SafeRegex(regex(".*[a-z].*"))));
    }
    rules.into_iter().map(|(name, rule)| (name, policy(rule))).collect()
}

/// Returns the rule that denies clients whose certificate has names of several trust domains, each of which has its own
/// authority. Stock Envoy compares policies with all URIs and DNS names of a certificate, but only one has chosen the roots
/// that it was verified with. Our proxy refuses the certificate, or does not take the other name for an identity.
pub(crate) fn identity_refusals(context: Context<'_>) -> BTreeMap<String, Policy> {
    let mesh = context.snapshot.mesh();
    if context.client_kind() != ClientKind::Envoy || mesh.federated_trust_domains().is_empty() {
        return BTreeMap::new();
    }
    let of = |domain: &str| {
        let name = string_matcher(MatchPattern::Prefix(format!("spiffe://{domain}/")));
        let authenticated = principal::Authenticated { principal_name: Some(name) };
        Principal { identifier: Some(principal::Identifier::Authenticated(authenticated)) }
    };
    let of_all = |ids: Vec<Principal>, all: fn(principal::Set) -> principal::Identifier| Principal {
        identifier: Some(all(principal::Set { ids })),
    };
    let foreign: Vec<_> = mesh.federated_trust_domains().into_iter().collect();
    let pairs = foreign.iter().enumerate().map(|(at, domain)| {
        let others = mesh.own_trust_domains().chain(foreign.iter().skip(at + 1).copied()).map(|other| of(other));
        let any = of_all(others.collect(), principal::Identifier::OrIds);
        of_all(vec![of(domain), any], principal::Identifier::AndIds)
    });
    let principals = pairs.collect();
    let anything = vec![Permission { rule: Some(Is::Any(true)) }];
    let policy = Policy { permissions: anything, principals, ..Default::default() };
    BTreeMap::from([(format!("{IDENTITY}[{SEVERAL_DOMAINS}]"), policy)])
}

/// Describes what the rule of this name denies; `None`: it is none of these.
pub fn meaning(policy: &str) -> Option<String> {
    let (of, reason) = policy.strip_suffix(']')?.split_once('[')?;
    let what = match of {
        PATH => "the path can be read in several ways",
        HOST => "the host can be read in several ways",
        METHOD => "the method can be read in several ways",
        IDENTITY => return why_of(reason).map(|why| format!("the certificate has several identities: {why}")),
        _ => return None,
    };
    Some(format!("{what}, and policies of the workload mention it: {}", why_of(reason)?))
}

fn why_of(reason: &str) -> Option<&'static str> {
    REASONS.iter().find(|(name, _)| *name == reason).map(|(_, why)| *why)
}

/// The rule with hosts that also match with a port, where that makes it refuse more: `hosts` of DENY and `notHosts` of ALLOW. A server
/// takes `Host: admin.example:8080` for `admin.example`.
pub(crate) fn with_ports(rule: &Rule, action: AuthorizationAction) -> Cow<'_, Rule> {
    let hosts = |operation: &Operation| match action {
        AuthorizationAction::Allow => !operation.not_hosts.is_empty(),
        _ => !operation.hosts.is_empty(),
    };
    if !rule.to.iter().any(hosts) {
        return Cow::Borrowed(rule);
    }
    let mut rule = rule.clone();
    for operation in &mut rule.to {
        let hosts = match action {
            AuthorizationAction::Allow => &mut operation.not_hosts,
            _ => &mut operation.hosts,
        };
        let ported: Vec<StringMatch> = hosts.iter().filter_map(with_port).collect();
        hosts.extend(ported);
    }
    Cow::Owned(rule)
}

/// Returns the same host with any port; `None`: it has one, or matches with ports already.
fn with_port(host: &StringMatch) -> Option<StringMatch> {
    let has_port = |text: &str| text.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
    match host {
        StringMatch::Exact(text) if !has_port(text) => Some(StringMatch::Prefix(format!("{text}:").into())),
        StringMatch::Suffix(text) if !has_port(text) => {
            Some(StringMatch::Regex(format!("(?i).*{}:[0-9]*", quote(text)).into()))
        }
        _ => None,
    }
}

fn path_rules(reading: PathReading, patterns: &BTreeSet<String>, evenkeel: bool) -> Vec<(&'static str, Is)> {
    let has = |text: &str| path(MatchPattern::Contains(text.to_owned()), false);
    let has_in_any_case = |text: &str| path(MatchPattern::Contains(text.to_owned()), true);
    let ends = |text: &str| path(MatchPattern::Suffix(text.to_owned()), false);
    let mut rules = vec![
        // Escapes are only examined where there is one: most paths have none.
        ("double-encoding", all_of(vec![has("%25"), path_regex(".*%25[0-9A-Fa-f][0-9A-Fa-f].*")])),
        ("encoded-delimiter", any_of(vec![has_in_any_case("%3f"), has("%23")])),
        ("invalid-escape", all_of(vec![has("%"), path_regex(".*%([0-9A-Fa-f]?([^0-9A-Fa-f].*)?)")])),
        ("overlong-escape", any_of(["%c0", "%c1", "%e0%8", "%e0%9", "%f0%8"].map(has_in_any_case).into())),
        ("path-parameter", any_of(vec![has(";"), has_in_any_case("%3b")])),
        (
            "trailing-space",
            all_of(vec![has("%"), any_of([TRAILING_SPACE, TRAILING_LATIN_SPACE].map(path_regex).into())]),
        ),
    ];
    let mut spellings = other_spellings(patterns);
    if !reading.normalizes {
        rules.push(("backslash", has("\\")));
        rules.push(("dot-segment", any_of(vec![has("/./"), has("/../"), ends("/."), ends("/..")])));
        rules.push(("encoded-nul", has("%00")));
        // Letters, digits, and `-._~`.
        let unreserved = path_regex(".*%(2[DdEe]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe]).*");
        spellings.push(all_of(vec![has("%"), unreserved]));
    }
    if !reading.merges {
        rules.push(("empty-segment", has("//")));
    }
    if reading.keeps_escaped_slashes() {
        rules.push(("encoded-slash", any_of(vec![has_in_any_case("%2f"), has_in_any_case("%5c")])));
    }
    if !spellings.is_empty() {
        rules.push(("encoded-character", any_of(spellings)));
    }
    if !evenkeel {
        // Our proxy refuses such paths in any case.
        let ascii = path_regex("[!-~]*");
        rules.push(("non-ascii", Is::NotRule(Box::new(Permission { rule: Some(ascii) }))));
    }
    rules
}

/// Other notations of what the policies' paths are made of, which normalization leaves as they are: `%3A` for `:`, and `%c3` for `%C3`.
fn other_spellings(patterns: &BTreeSet<String>) -> Vec<Is> {
    let mut rules = Vec::new();
    let characters: BTreeSet<char> = patterns.iter().flat_map(|pattern| pattern.chars()).collect();
    let compared = |c: &char| c.is_ascii_graphic() && !c.is_ascii_alphanumeric() && !"/-._~%*{}".contains(*c);
    for character in characters.into_iter().filter(compared) {
        rules.push(path(MatchPattern::Contains(format!("%{:02x}", u32::from(character))), true));
    }
    for (own, others) in escapes(patterns) {
        let not_own = others.into_iter().filter(|other| *other != own);
        rules.extend(not_own.map(|other| path(MatchPattern::Contains(other), false)));
    }
    rules
}

/// The escapes in the patterns, each with all ways to write it, in upper and lower case.
fn escapes(patterns: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
    let mut escapes = BTreeMap::new();
    for pattern in patterns {
        for (at, _) in pattern.match_indices('%') {
            let Some(digits) = pattern.get(at + 1..at + 3) else { continue };
            let [high, low] = digits.as_bytes() else { continue };
            if !(high.is_ascii_hexdigit() && low.is_ascii_hexdigit()) {
                continue;
            }
            let both = |digit: &u8| [digit.to_ascii_lowercase(), digit.to_ascii_uppercase()].map(char::from);
            let spelled = |high: char| both(low).map(|low| format!("%{high}{low}"));
            escapes.insert(format!("%{digits}"), both(high).into_iter().flat_map(spelled).collect());
        }
    }
    escapes
}

fn policy(rule: Is) -> Policy {
    Policy {
        permissions: vec![Permission { rule: Some(rule) }],
        principals: vec![Principal { identifier: Some(principal::Identifier::Any(true)) }],
        ..Default::default()
    }
}

fn path(pattern: MatchPattern, ignore_case: bool) -> Is {
    let matcher = StringMatcher { ignore_case, ..string_matcher(pattern) };
    Is::UrlPath(PathMatcher { rule: Some(path_matcher::Rule::Path(matcher)) })
}

fn path_regex(pattern: &str) -> Is {
    path(MatchPattern::SafeRegex(regex(pattern)), false)
}

fn header(name: &str, pattern: MatchPattern) -> Is {
    Is::Header(HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(string_matcher(pattern))),
        ..Default::default()
    })
}

fn set(rules: Vec<Is>) -> permission::Set {
    permission::Set { rules: rules.into_iter().map(|rule| Permission { rule: Some(rule) }).collect() }
}

fn any_of(rules: Vec<Is>) -> Is {
    Is::OrRules(set(rules))
}

fn all_of(rules: Vec<Is>) -> Is {
    Is::AndRules(set(rules))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_words_and_no_name_twice() {
        let all: Vec<&str> = REASONS.iter().map(|(name, _)| *name).collect();
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
        let none = PathReading {
            normalizes: false,
            merges: false,
            escaped_slashes: PathWithEscapedSlashesAction::KeepUnchanged,
        };
        let patterns = BTreeSet::from(["/v1/a:b".to_owned()]);
        for (reason, _) in path_rules(none, &patterns, false) {
            assert!(meaning(&format!("{PATH}[{reason}]")).is_some(), "{reason}");
        }
        for name in [
            "ambiguous-host[trailing-dot]",
            "ambiguous-method[lower-case]",
            "ambiguous-identity[several-trust-domains]",
        ] {
            assert!(meaning(name).is_some(), "{name}");
        }
        for name in ["", "ns[a]-policy[b]-rule[0]", "ambiguous-path", "ambiguous-path[other]"] {
            assert_eq!(meaning(name), None, "{name}");
        }
    }

    #[test]
    fn white_space_at_the_end_is_found() {
        let [utf8, latin] = [TRAILING_SPACE, TRAILING_LATIN_SPACE]
            .map(|text| evenkeel_base::re2::Regex::whole(text).expect("an expression"));
        let check = |path: &str, expected: bool| {
            let found = utf8.is_match(path.as_bytes()) || latin.is_match(path.as_bytes());
            assert_eq!(found, expected, "{path}");
        };
        for space in ["%0a", "%0D%0A", "%20", "%1F", "%7f", "%a0", "%85", "%c2%a0", "%C2%85", "%e2%80%a8", "%E3%80%80"]
        {
            check(&format!("/admin{space}"), true);
            check(&format!("/{space}"), true);
            check(&format!("/x%41{space}"), true);
            check(&format!("/admin{space}x"), false);
        }
        // Letters whose last byte is that of a space in Latin-1.
        for letter in ["%c3%a0", "%C3%85", "%e6%97%a0", "%d0%a0"] {
            check(&format!("/voil{letter}"), false);
        }
        for path in ["/admin", "/a%20b", "/a%2", "/a%", "/%E2%82%AC", "/a20"] {
            check(path, false);
        }
    }

    #[test]
    fn hosts_that_are_denied_are_denied_with_ports() {
        let check =
            |host: StringMatch, expected: Option<StringMatch>| assert_eq!(with_port(&host), expected, "{host:?}");
        check(StringMatch::Exact("a.test".into()), Some(StringMatch::Prefix("a.test:".into())));
        check(StringMatch::Suffix(".a.test".into()), Some(StringMatch::Regex(r"(?i).*\.a\.test:[0-9]*".into())));
        check(StringMatch::Exact("a.test:80".into()), None);
        check(StringMatch::Prefix("a.".into()), None);
        check(StringMatch::Present, None);
    }

    #[test]
    fn escapes_have_all_their_spellings() {
        let patterns = BTreeSet::from(["/%C3%a9/%20%zz%4".to_owned()]);
        let got = escapes(&patterns);
        let of = |escape: &str| got[escape].iter().map(String::as_str).collect::<Vec<_>>();
        assert_eq!(got.len(), 3);
        assert_eq!(of("%C3"), ["%C3", "%c3"]);
        assert_eq!(of("%a9"), ["%A9", "%a9"]);
        assert_eq!(of("%20"), ["%20"]);
    }
}
