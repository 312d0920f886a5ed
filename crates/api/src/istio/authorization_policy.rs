//! AuthorizationPolicy: who may call what.

use evenkeel_base::Spanned;
use evenkeel_base::cidr::{self, IpNet};
use evenkeel_base::suggest::closest;
use evenkeel_base::yaml::Node;

use super::target_ref::{TargetRef, check_only_one};
use super::{WorkloadSelector, never_matching};
use crate::decode::Context;

object! {
    /// Access control for workloads.
    pub struct AuthorizationPolicy {
        /// The specification; if it is missing, nothing is allowed.
        spec: Option<AuthorizationPolicySpec> = "spec",
    }
    inert: ["status"];
}

object! {
    /// Access control for workloads.
    pub struct AuthorizationPolicySpec {
        /// The selected workloads of the namespace; all if not given.
        selector: Option<WorkloadSelector> = "selector",
        /// The action for requests that a rule matches; ALLOW if not given.
        action: Option<Action> = "action",
        /// The provider that decides about the requests of a CUSTOM policy.
        provider: Option<Provider> = "provider",
        /// The rules.
        rules: Vec<Spanned<Rule>> = "rules",
        /// The resource whose workloads are selected.
        target_ref: Option<TargetRef> = "targetRef",
        /// The resources whose workloads are selected.
        target_refs: Vec<TargetRef> = "targetRefs",
    }
    check: check;
}

choices! {
    /// The action for a request that matches.
    pub enum Action {
        /// The request is allowed.
        Allow = "ALLOW",
        /// The request is refused.
        Deny = "DENY",
        /// The request is logged; it passes, as far as this policy is concerned.
        Audit = "AUDIT",
        /// The provider decides about the request.
        Custom = "CUSTOM",
    }
}

object! {
    /// The extension provider of the MeshConfig that decides.
    pub struct Provider {
        /// Its name there.
        name: Option<Spanned<String>> = "name",
    }
}

object! {
    /// One rule.
    pub struct Rule {
        /// The caller.
        from: Vec<From> = "from",
        /// The operation that is called.
        to: Vec<To> = "to",
        /// Further conditions.
        when: Vec<Condition> = "when",
    }
}

object! {
    /// The caller.
    pub struct From {
        /// The properties of the caller.
        source: Source = "source",
    }
}

object! {
    /// The operation that is called.
    pub struct To {
        /// The properties of the request.
        operation: Operation = "operation",
    }
}

object! {
    /// The caller.
    pub struct Source {
        /// Identities without `spiffe://`.
        principals: Vec<String> = "principals",
        /// The excluded values.
        not_principals: Vec<String> = "notPrincipals",
        /// Subjects of tokens, `ISSUER/SUBJECT`.
        request_principals: Vec<String> = "requestPrincipals",
        /// The excluded values.
        not_request_principals: Vec<String> = "notRequestPrincipals",
        /// Trust domains of identities.
        trust_domains: Vec<String> = "trustDomains",
        /// The excluded values.
        not_trust_domains: Vec<String> = "notTrustDomains",
        /// Namespaces.
        namespaces: Vec<String> = "namespaces",
        /// The excluded values.
        not_namespaces: Vec<String> = "notNamespaces",
        /// Service accounts, `[namespace/]name`.
        service_accounts: Vec<Spanned<String>> = "serviceAccounts",
        /// The excluded values.
        not_service_accounts: Vec<Spanned<String>> = "notServiceAccounts",
        /// Addresses of connections.
        ip_blocks: Vec<IpNet> = "ipBlocks",
        /// The excluded values.
        not_ip_blocks: Vec<IpNet> = "notIpBlocks",
        /// Addresses of clients.
        remote_ip_blocks: Vec<IpNet> = "remoteIpBlocks",
        /// The excluded values.
        not_remote_ip_blocks: Vec<IpNet> = "notRemoteIpBlocks",
    }
    check: check_source;
}

object! {
    /// The operation that is called.
    #[derive(Default)]
    pub struct Operation {
        /// Hosts.
        hosts: Vec<String> = "hosts",
        /// The excluded values.
        not_hosts: Vec<String> = "notHosts",
        /// Ports of the workload.
        ports: Vec<Spanned<String>> = "ports",
        /// The excluded values.
        not_ports: Vec<Spanned<String>> = "notPorts",
        /// Methods.
        methods: Vec<String> = "methods",
        /// The excluded values.
        not_methods: Vec<String> = "notMethods",
        /// Paths.
        paths: Vec<Spanned<String>> = "paths",
        /// The excluded values.
        not_paths: Vec<Spanned<String>> = "notPaths",
    }
    check: check_operation;
}

object! {
    /// A further condition.
    pub struct Condition {
        /// The attribute that is compared.
        key: Spanned<String> = "key",
        /// One of these values must match.
        values: Vec<Spanned<String>> = "values",
        /// None of these values may match.
        not_values: Vec<Spanned<String>> = "notValues",
    }
    check: check_condition;
}

fn check(spec: &AuthorizationPolicySpec, node: &Node, cx: &mut Context) {
    if spec.action == Some(Action::Deny) && spec.rules.is_empty() {
        let help = "add a rule; `rules: [{}]` refuses everything";
        cx.warning("no-rules", node.span_of_path("action"), "a DENY policy without rules refuses nothing", help);
    }
    check_only_one(spec.selector.as_ref(), spec.target_ref.as_ref(), &spec.target_refs, cx);
    check_provider(spec, node, cx);
    // A rule of a CUSTOM policy that matches nothing keeps its provider from being asked.
    let denies = matches!(spec.action, Some(Action::Deny | Action::Custom));
    for (at, rule) in node.get("rules").and_then(Node::as_sequence).into_iter().flatten().enumerate() {
        cx.at_field("rules", |cx| cx.at_index(at, |cx| never_matching::check(rule, denies, cx)));
    }
}

/// CUSTOM policies have a provider and rules; no other policy has a provider.
fn check_provider(spec: &AuthorizationPolicySpec, node: &Node, cx: &mut Context) {
    let name = spec.provider.as_ref().and_then(|provider| provider.name.as_ref()).filter(|name| !name.is_empty());
    let action = node.span_of_path("action");
    match (spec.action == Some(Action::Custom), name) {
        (true, None) => {
            let help = "add `provider: {name: …}` with the name of one of `meshConfig.extensionProviders`";
            cx.error("missing-field", action, "a CUSTOM policy needs a provider", help);
        }
        (false, _) if spec.provider.is_some() => {
            let message = "only CUSTOM policies have a provider";
            let span = node.span_of_path("provider");
            cx.error("conflict", span, message, "remove `provider`, or write `action: CUSTOM`");
        }
        _ => {}
    }
    if spec.action == Some(Action::Custom) && spec.rules.is_empty() {
        let help = "add a rule; with `rules: [{}]` the provider decides about everything";
        let span = node.span_of_path("action");
        cx.warning("no-rules", span, "a CUSTOM policy without rules never asks its provider", help);
    }
}

fn check_source(source: &Source, node: &Node, cx: &mut Context) {
    let by_account = !source.service_accounts.is_empty() || !source.not_service_accounts.is_empty();
    let by_other = [&source.principals, &source.not_principals, &source.namespaces, &source.not_namespaces];
    if by_account && by_other.iter().any(|list| !list.is_empty()) {
        let message = "service accounts cannot be combined with `principals` or `namespaces`";
        cx.error("conflict", &node.span, message, "split it into two entries of `from`");
    }
    for account in source.service_accounts.iter().chain(&source.not_service_accounts) {
        let parts: Vec<&str> = account.split('/').collect();
        if parts.len() > 2 || parts.iter().any(|p| p.is_empty() || p.contains('*')) {
            let message = format!("`{}` is not a service account", account.value);
            cx.error("bad-value", &account.span, message, "expected `name` or `namespace/name`, without `*`");
        }
    }
    if node.as_mapping().is_some_and(|m| m.0.is_empty()) {
        cx.error(
            "missing-field",
            &node.span,
            "the source has no fields",
            "name who may call, or remove `from` to mean anyone",
        );
    }
}

fn check_operation(operation: &Operation, node: &Node, cx: &mut Context) {
    for port in operation.ports.iter().chain(&operation.not_ports) {
        check_port(port, cx);
    }
    for path in operation.paths.iter().chain(&operation.not_paths) {
        check_template(path, cx);
    }
    if node.as_mapping().is_some_and(|m| m.0.is_empty()) {
        cx.error(
            "missing-field",
            &node.span,
            "the operation has no fields",
            "name what may be called, or remove `to` to mean anything",
        );
    }
}

fn check_port(port: &Spanned<String>, cx: &mut Context) {
    if !port.parse::<u16>().is_ok_and(|p| p > 0) {
        let message = format!("`{}` is not a port", port.value);
        cx.error("bad-port", &port.span, message, "expected a number from 1 to 65535 in quotes");
    }
}

/// Path templates: `{*}` is one segment, `{**}` any number, and the last of these operators; other braces and stars are not
/// allowed.
fn check_template(path: &Spanned<String>, cx: &mut Context) {
    let is_template = path.contains("{*}") || path.contains("{**}");
    if !is_template {
        return;
    }
    let mut ends = false;
    let fine = path.split('/').all(|segment| match segment {
        "{*}" => !ends,
        "{**}" => !std::mem::replace(&mut ends, true),
        other => !other.contains(['{', '}', '*']),
    });
    if !fine {
        let help = "`{*}` stands for a whole segment, `{**}` for any number of them, once and behind every `{*}`";
        cx.error("bad-value", &path.span, format!("`{}` is not a path template", path.value), help);
    }
}

/// Keys of conditions; those with brackets are at the end.
const KEYS: &[&str] = &[
    "source.ip",
    "remote.ip",
    "source.namespace",
    "source.principal",
    "source.serviceAccount",
    "source.trustDomain",
    "destination.ip",
    "destination.port",
    "connection.sni",
    "request.auth.principal",
    "request.auth.audiences",
    "request.auth.presenter",
    "request.headers",
    "request.auth.claims",
];
/// How many of them, counted from the end, have a name in brackets.
const IN_BRACKETS: usize = 2;
/// Metadata of any filter: followed by its name without `envoy.filters.`, and a key in brackets.
const OF_FILTER: &str = "experimental.envoy.filters.";

/// The names in brackets behind a key: `[a][b]` has two. `None`: the text is something else.
pub fn names_in_brackets(text: &str) -> Option<Vec<&str>> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    let names: Vec<&str> = inner.split("][").collect();
    names.iter().all(|name| !name.is_empty() && !name.contains(['[', ']'])).then_some(names)
}

fn check_key(key: &Spanned<String>, cx: &mut Context) {
    let at = key.find('[').unwrap_or(key.len());
    let (name, rest) = key.split_at(at);
    let (plain, bracketed) = KEYS.split_at(KEYS.len() - IN_BRACKETS);
    let names = names_in_brackets(rest).map_or(0, |names| names.len());
    let is_known = match name {
        "request.auth.claims" => names > 0,
        name if bracketed.contains(&name) => names == 1,
        name if name.starts_with(OF_FILTER) => name.len() > OF_FILTER.len() && names == 1,
        name => plain.contains(&name) && rest.is_empty(),
    };
    if is_known {
        return;
    }
    let help = match closest(name, KEYS.iter().copied()) {
        _ if name.starts_with("experimental.") => format!("expected `{OF_FILTER}http.jwt_authn[key]` or such"),
        Some("request.headers") => "did you mean `request.headers[x-name]`?".to_owned(),
        Some("request.auth.claims") => "did you mean `request.auth.claims[name]`?".to_owned(),
        Some(known) => format!("did you mean `{known}`?"),
        None => format!("allowed: {}", evenkeel_base::suggest::one_of(KEYS.iter().copied())),
    };
    cx.error("bad-value", &key.span, format!("`{}` is not an attribute", key.value), help);
}

fn check_condition(condition: &Condition, node: &Node, cx: &mut Context) {
    let key = condition.key.as_str();
    check_key(&condition.key, cx);
    if condition.values.is_empty() && condition.not_values.is_empty() {
        cx.error("missing-field", &node.span, "a condition needs `values` or `notValues`", "add `values: [...]`");
    }
    for value in condition.values.iter().chain(&condition.not_values) {
        match key {
            "source.ip" | "remote.ip" | "destination.ip" => {
                if let Err(error) = cidr::parse(value) {
                    cx.error("bad-cidr", &value.span, error, "expected an address or CIDR range such as `10.1.0.0/16`");
                }
            }
            "destination.port" => check_port(value, cx),
            _ => {}
        }
    }
}
