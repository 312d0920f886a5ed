//! Annotations and labels under the prefixes of Istio and of the Gateway API: each is in a table, and honoured or named
//! in a finding. Nothing under these prefixes is silently without effect.

mod for_proxy;
mod table;
mod traffic;

pub use for_proxy::{AGENT_ANNOTATIONS, LogLevels, program_metrics, status_port};
pub use table::{ANNOTATIONS, Known, LABELS, Verdict};
pub use traffic::{CaptureRules, TRAFFIC_ANNOTATIONS, parse_interfaces, parse_ports, parse_ranges, virtual_interfaces};

use std::collections::BTreeMap;

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::{Entry, Node};
use evenkeel_base::{Span, Spanned};

use crate::decode::Context;
use crate::istio::{
    INTERCEPTION_ANNOTATION, InterceptionMode, PROXY_CONFIG_ANNOTATION, ProxyConfig, UNCAPTURED, UNCAPTURED_HELP,
};

/// The annotation of an AuthorizationPolicy that is only logged and counted.
pub const DRY_RUN: &str = "istio.io/dry-run";
/// The annotation with the codes of `analyze` that are not reported for its object.
pub const ANALYZE_SUPPRESS: &str = "galley.istio.io/analyze-suppress";
/// The annotation and label that says whether a Pod gets a sidecar.
pub const INJECT: &str = "sidecar.istio.io/inject";
/// The label of a namespace that says whether its Pods get sidecars.
pub const NAMESPACE_INJECTION: &str = "istio-injection";
/// The label of a ServiceEntry that says whether its hosts get virtual addresses.
pub const AUTO_ALLOCATE: &str = "networking.istio.io/enable-autoallocate-ip";
/// Further identities of a Service's endpoints, as they are in certificates.
pub const CANONICAL_ACCOUNTS: &str = "alpha.istio.io/canonical-serviceaccounts";
/// Further service accounts of a Service's endpoints.
pub const KUBERNETES_ACCOUNTS: &str = "alpha.istio.io/kubernetes-serviceaccounts";
/// The annotation that says to which addresses of a host connections are made.
pub const CONNECT_STRATEGY: &str = "istio.io/connect-strategy";
/// Its values, in any case.
const CONNECT_STRATEGIES: [&str; 2] = ["DEFAULT", "RACE_FIRST_TCP_CONNECT"];
/// The API group of the Gateway API, also the prefix of its labels.
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// Checks the annotations and labels of the `metadata` of an object, at the decoder's position. `place` is the object's kind in
/// the tables; a Pod template has those of a Pod.
pub(crate) fn check(place: &str, metadata: &Node, cx: &mut Context) {
    for (field, table) in [("annotations", ANNOTATIONS), ("labels", LABELS)] {
        let entries = metadata.get(field).and_then(Node::as_mapping);
        cx.at_field(field, |cx| {
            for entry in entries.into_iter().flatten() {
                cx.at_key(&entry.key, |cx| check_entry(place, field, table, entry, cx));
            }
        });
    }
}

fn check_entry(place: &str, field: &str, table: &[Known], entry: &Entry, cx: &mut Context) {
    let name = &*entry.key;
    let Some(known) = table.iter().find(|known| known.name == name) else {
        return check_unknown(field, name, &entry.key_span, cx);
    };
    if !known.places.is_empty() && !known.places.contains(&place) {
        let message = format!("it has no effect on a {place}");
        let help = format!("its place is {}", one_of(known.places.iter().copied()));
        let help = if known.places == ["Pod"] { format!("{help}, or the template of a Deployment") } else { help };
        return cx.warning("misplaced-annotation", &entry.key_span, message, help);
    }
    let value = entry.value.as_str().unwrap_or_default();
    match known.verdict {
        Verdict::Honoured => check_value(known.name, entry, cx),
        Verdict::OnlyValues(values) if values.contains(&value) => {
            if (name, value) == (INTERCEPTION_ANNOTATION, InterceptionMode::None.as_str()) {
                cx.note("not-captured", &entry.value.span, UNCAPTURED, UNCAPTURED_HELP);
            }
        }
        Verdict::OnlyValues(values) => {
            let message = format!("`{value}` is not supported; {}", known.note);
            cx.warning(
                "unsupported-value",
                &entry.value.span,
                message,
                format!("supported: {}", one_of(values.iter().copied())),
            );
        }
        Verdict::NotYet => {
            let message = format!("known to Istio, not supported yet: {}", known.note);
            cx.warning("unsupported-annotation", &entry.key_span, message, "the rest of this document applies");
        }
        Verdict::Inert => {
            cx.note(
                "no-effect",
                &entry.key_span,
                format!("known to Istio, has no effect here: {}", known.note),
                "it can stay",
            );
        }
    }
}

/// A name that is in no table: a finding if it is under one of the prefixes, or looks like a misspelling.
fn check_unknown(field: &str, name: &str, span: &Span, cx: &mut Context) {
    let all = || ANNOTATIONS.iter().chain(LABELS).map(|known| known.name);
    let (noun, other) = match field {
        "labels" => ("label", "annotation"),
        _ => ("annotation", "label"),
    };
    if all().any(|known| known == name) {
        let message = format!("this {noun} has no effect; Istio reads it as {other}");
        return cx.warning("misplaced-annotation", span, message, format!("move it to `{other}s`"));
    }
    let is_known = has_known_prefix(name);
    // Most labels are the user's own: no suggestion is searched for these.
    if !is_known && !resembles_prefix(name) {
        return;
    }
    let suggestion = closest(name, all()).map(|meant| format!("did you mean `{meant}`?"));
    let help = match suggestion {
        Some(suggestion) => suggestion,
        None if is_known => "remove it, or correct its name".to_owned(),
        None => return,
    };
    cx.warning("unknown-annotation", span, format!("Istio has no {noun} of this name; it has no effect"), help);
}

/// Whether the part before the slash belongs to Istio or to the Gateway API.
fn has_known_prefix(name: &str) -> bool {
    let Some((prefix, _)) = name.split_once('/') else { return false };
    prefix == "istio.io" || prefix.ends_with(".istio.io") || prefix == GATEWAY_API
}

/// Whether a name looks like one with such a prefix, or like `istio-injection`.
fn resembles_prefix(name: &str) -> bool {
    match name.split_once('/') {
        None => closest(name, [NAMESPACE_INJECTION]).is_some(),
        Some((prefix, _)) => {
            let known = ANNOTATIONS
                .iter()
                .chain(LABELS)
                .filter_map(|known| known.name.split_once('/'))
                .map(|(prefix, _)| prefix);
            closest(prefix, known).is_some()
        }
    }
}

/// Checks the values of annotations that are read.
fn check_value(name: &str, entry: &Entry, cx: &mut Context) {
    let Some(text) = entry.value.as_str() else { return };
    let span = &entry.value.span;
    match name {
        PROXY_CONFIG_ANNOTATION => {
            let (_, found) = ProxyConfig::of_annotation(&Spanned::new(text.to_owned(), span.clone()));
            found.into_iter().for_each(|finding| cx.push(finding));
        }
        DRY_RUN if parse_bool(text).is_none() => {
            cx.warning(
                "bad-value",
                span,
                format!("`{text}` is neither true nor false; the policy is enforced"),
                "write \"true\" or \"false\"",
            );
        }
        CONNECT_STRATEGY if !CONNECT_STRATEGIES.iter().any(|known| text.eq_ignore_ascii_case(known)) => {
            let message = format!("`{text}` is none of Istio's strategies; the default applies");
            cx.warning("bad-value", span, message, format!("known: {}", one_of(CONNECT_STRATEGIES)));
        }
        INJECT if !matches!(text, "true" | "false") => {
            cx.warning(
                "bad-value",
                span,
                format!("`{text}` is neither true nor false; the Pod gets a sidecar"),
                "write \"true\" or \"false\"",
            );
        }
        NAMESPACE_INJECTION if !matches!(text, "enabled" | "disabled") => {
            cx.warning(
                "bad-value",
                span,
                format!("`{text}` is neither enabled nor disabled; Pods get sidecars"),
                "write enabled or disabled",
            );
        }
        AUTO_ALLOCATE if !text.eq_ignore_ascii_case("true") && !text.eq_ignore_ascii_case("false") => {
            let message =
                format!("`{text}` is neither true nor false; the ServiceEntry counts as one without the label");
            cx.warning("bad-value", span, message, "write \"true\" or \"false\"");
        }
        CANONICAL_ACCOUNTS => {
            if let Some(bad) = listed(text).find(|identity| !is_identity(identity)) {
                let message = format!("`{bad}` is no SPIFFE id; no certificate of the mesh has this identity");
                cx.warning(
                    "bad-value",
                    span,
                    message,
                    "write identities such as spiffe://cluster.local/ns/shop/sa/web",
                );
            }
        }
        KUBERNETES_ACCOUNTS => {
            if let Some(bad) = listed(text).find(|name| !is_account_name(name)) {
                let message = format!("`{bad}` is no name of a service account; it is left out");
                cx.warning("bad-value", span, message, "write names of service accounts of the Service's namespace");
            }
        }
        _ if for_proxy::check(name, text, span, cx) => {}
        _ if TRAFFIC_ANNOTATIONS.contains(&name) => {
            if let Err(problem) = traffic::check(name, text) {
                cx.error("bad-value", span, problem, traffic::expected(name));
            } else if let Some(range) = traffic::range_of_ipv6(name, text) {
                let message = format!("`{range}` has no effect: replicas have no IPv6 addresses");
                cx.warning("no-effect", span, message, "write ranges of IPv4 addresses, such as 10.0.0.0/8");
            }
        }
        _ => {}
    }
}

/// The entries of a comma-separated list.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// Whether a text can be an identity in a certificate of the mesh.
fn is_identity(text: &str) -> bool {
    let rest = text.strip_prefix("spiffe://").filter(|rest| !rest.contains(char::is_whitespace));
    rest.and_then(|rest| rest.split_once('/')).is_some_and(|(domain, path)| !domain.is_empty() && !path.is_empty())
}

/// Whether a text can be the name of a ServiceAccount: a name that DNS allows.
fn is_account_name(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !name.is_empty() && name.chars().all(is_part)
}

/// Further identities of a Service's endpoints, by its annotations: as they are in certificates. What the decoder has
/// found wrong is left out.
pub fn further_identities(
    annotations: &BTreeMap<String, Spanned<String>>,
    trust_domain: &str,
    namespace: &str,
) -> Vec<String> {
    let text = |name: &str| annotations.get(name).map_or("", |value| value.as_str());
    let canonical = listed(text(CANONICAL_ACCOUNTS)).filter(|identity| is_identity(identity));
    let accounts = listed(text(KUBERNETES_ACCOUNTS)).filter(|name| is_account_name(name));
    let accounts = accounts.filter_map(|name| SpiffeId::new(trust_domain, namespace, name).ok());
    canonical.map(str::to_owned).chain(accounts.map(|id| id.to_string())).collect()
}

/// Whether the label of a ServiceEntry allows virtual addresses for its hosts.
pub fn allocates_addresses(labels: &BTreeMap<String, String>) -> bool {
    labels.get(AUTO_ALLOCATE).is_none_or(|value| !value.eq_ignore_ascii_case("false"))
}

/// As Go's `strconv.ParseBool` reads it.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Whether the annotation `istio.io/dry-run` says that a policy is only logged and counted.
pub fn is_dry_run(annotations: &BTreeMap<String, Spanned<String>>) -> bool {
    annotations.get(DRY_RUN).is_some_and(|value| parse_bool(value) == Some(true))
}

/// The codes of `analyze` that an object suppresses (`galley.istio.io/analyze-suppress: IST0103,IST0107` or `*`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Suppression(Vec<String>);

impl Suppression {
    /// Reads the annotation.
    pub fn of(annotations: &BTreeMap<String, Spanned<String>>) -> Self {
        let codes = annotations.get(ANALYZE_SUPPRESS).into_iter().flat_map(|value| value.split(','));
        Self(codes.map(|code| code.trim().to_owned()).filter(|code| !code.is_empty()).collect())
    }

    /// Whether a finding with this code is not reported for the object.
    pub fn covers(&self, code: &str) -> bool {
        self.0.iter().any(|suppressed| suppressed == "*" || suppressed.eq_ignore_ascii_case(code))
    }
}

/// Whether the Pods of a namespace with these labels get sidecars if they do not say themselves; the label
/// `istio-injection: disabled` takes them out. Without a label they get one, because everything here is in the mesh.
pub fn injects(namespace_labels: &BTreeMap<String, String>) -> bool {
    namespace_labels.get(NAMESPACE_INJECTION).map(String::as_str) != Some("disabled")
}

/// Whether a Pod gets a sidecar, from its own label or annotation (the label first, as in Istio's injector), otherwise
/// from its namespace.
pub fn gets_sidecar(
    labels: &BTreeMap<String, String>,
    annotation: Option<&str>,
    namespace_labels: &BTreeMap<String, String>,
) -> bool {
    match labels.get(INJECT).map(String::as_str).or(annotation) {
        Some("false") => false,
        Some(_) => true,
        None => injects(namespace_labels),
    }
}
