//! Mutual TLS and authorization.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use evenkeel_api::{Places, ProxyPlace};
use evenkeel_base::Span;
use evenkeel_base::cidr::IpNet;

use crate::labels::Selectable;
use crate::{Labels, Selection, StringMatch};

/// The mode of mutual TLS that a workload accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MtlsMode {
    /// Plain text only.
    Disable,
    /// Plain text and mutual TLS.
    Permissive,
    /// Mutual TLS only.
    Strict,
}

impl fmt::Display for MtlsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Disable => "DISABLE",
            Self::Permissive => "PERMISSIVE",
            Self::Strict => "STRICT",
        })
    }
}

/// The mutual TLS that workloads accept.
#[derive(Debug, Clone, PartialEq)]
pub struct PeerAuthentication {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace; in the root namespace it applies to the whole mesh.
    pub namespace: Arc<str>,
    /// Labels of the workloads; empty = all of the namespace.
    pub selector: Labels,
    /// The mode; none = inherited.
    pub mode: Option<MtlsMode>,
    /// Modes of single ports of the workload (not of the service); none = inherited.
    pub port_modes: BTreeMap<u16, Option<MtlsMode>>,
    /// Where it was written.
    pub origin: Span,
    /// Whether it is a stand-in for a refused one: the workloads it selects accept only mutual TLS, whatever others say.
    pub refused: bool,
}

/// The action of a policy for matching requests, in the order of evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AuthorizationAction {
    /// Lets a provider decide.
    Custom,
    /// Marks them for logs.
    Audit,
    /// Refuses them.
    Deny,
    /// Allows them; requests that no ALLOW policy of a workload matches are refused.
    Allow,
}

impl fmt::Display for AuthorizationAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Custom => "CUSTOM",
            Self::Audit => "AUDIT",
            Self::Deny => "DENY",
            Self::Allow => "ALLOW",
        })
    }
}

/// Access control for workloads.
#[derive(Debug, Clone, PartialEq)]
pub struct AuthorizationPolicy {
    /// Its name.
    pub name: Arc<str>,
    /// Its namespace; in the root namespace it applies to the whole mesh.
    pub namespace: Arc<str>,
    /// The workloads it is for.
    pub selection: Selection,
    /// Its action.
    pub action: AuthorizationAction,
    /// The extension provider that decides, of CUSTOM policies.
    pub provider: Option<Arc<str>>,
    /// The policy matches if any of these does; without rules it matches nothing.
    pub rules: Vec<Rule>,
    /// Where it was written.
    pub origin: Span,
    /// Whether it is a stand-in for a refused policy.
    pub refused: bool,
    /// Whether it is only logged and counted (`istio.io/dry-run`).
    pub dry_run: bool,
    /// Whether it stands in for a RequestAuthentication: it refuses requests with tokens, and says nothing about bytes.
    pub of_tokens: bool,
    /// What it stands in for, if that is not supported.
    pub unsupported: Option<Unsupported>,
}

/// An object that protects something and is not supported. Whether its policy closes what it would have judged, its
/// rules tell.
#[derive(Debug, Clone, PartialEq)]
pub struct Unsupported {
    /// What is not supported: `WasmPlugin shop/auth`.
    pub what: Arc<str>,
    /// Where it would have been enforced.
    pub at: Places,
}

impl AuthorizationPolicy {
    /// The object that says it: `AuthorizationPolicy shop/web`.
    pub fn object(&self) -> String {
        match &self.unsupported {
            Some(unsupported) => unsupported.what.to_string(),
            None => format!("AuthorizationPolicy {}/{}", self.namespace, self.name),
        }
    }

    /// What tools say about answers that depend on an object that is not supported.
    pub fn unknown(&self) -> Option<String> {
        let unsupported = self.unsupported.as_ref()?;
        let instead = if self.closes() { "what it would judge is refused" } else { "nothing enforces it here" };
        Some(format!("unknown: {} is not supported; {instead}", unsupported.what))
    }

    /// Whether it refuses anything. What stands in for an object that is left out is only there to be told of.
    pub fn closes(&self) -> bool {
        self.unsupported.is_none() || !self.rules.is_empty()
    }

    /// Whether a proxy in that place enforces it. A policy that is supported judges what its workloads are sent.
    pub fn is_for(&self, place: ProxyPlace) -> bool {
        self.unsupported.as_ref().map_or(Places::CALLED, |unsupported| unsupported.at).has(place)
    }
}

/// A rule: one of `from` (if any), one of `to` (if any), and all of `when`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rule {
    /// The callers; empty = anyone.
    pub from: Vec<Source>,
    /// The operations; empty = any.
    pub to: Vec<Operation>,
    /// Further conditions.
    pub when: Vec<Condition>,
}

/// A caller. Each list that is not empty must have (for `not_…`: must not have) a match.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Source {
    /// Identities without `spiffe://`.
    pub principals: Vec<StringMatch>,
    /// Identities that must not match.
    pub not_principals: Vec<StringMatch>,
    /// Subjects of tokens, `ISSUER/SUBJECT`.
    pub request_principals: Vec<StringMatch>,
    /// Subjects that must not match.
    pub not_request_principals: Vec<StringMatch>,
    /// Trust domains of identities.
    pub trust_domains: Vec<StringMatch>,
    /// Trust domains that must not match.
    pub not_trust_domains: Vec<StringMatch>,
    /// Namespaces of identities.
    pub namespaces: Vec<StringMatch>,
    /// Namespaces that must not match.
    pub not_namespaces: Vec<StringMatch>,
    /// Service accounts as (namespace, name).
    pub service_accounts: Vec<(Arc<str>, Arc<str>)>,
    /// Service accounts that must not match.
    pub not_service_accounts: Vec<(Arc<str>, Arc<str>)>,
    /// Ranges of the address of the connection.
    pub ip_blocks: Vec<IpNet>,
    /// Ranges that must not match.
    pub not_ip_blocks: Vec<IpNet>,
    /// Ranges of the client's address as told by `X-Forwarded-For` or the PROXY protocol.
    pub remote_ip_blocks: Vec<IpNet>,
    /// Ranges that must not match.
    pub not_remote_ip_blocks: Vec<IpNet>,
}

/// An operation. Each list that is not empty must have (for `not_…`: must not have) a match.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Operation {
    /// Hosts as in the request, without regard to case.
    pub hosts: Vec<StringMatch>,
    /// Hosts that must not match.
    pub not_hosts: Vec<StringMatch>,
    /// Ports of the workload.
    pub ports: Vec<u16>,
    /// Ports that must not match.
    pub not_ports: Vec<u16>,
    /// Methods.
    pub methods: Vec<StringMatch>,
    /// Methods that must not match.
    pub not_methods: Vec<StringMatch>,
    /// Paths without query.
    pub paths: Vec<PathMatch>,
    /// Paths that must not match.
    pub not_paths: Vec<PathMatch>,
}

/// A test on a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathMatch {
    /// A test as for other values.
    String(StringMatch),
    /// A template in Envoy's URI template syntax, with `{*}` for one segment and `{**}` for any number.
    Template(Arc<str>),
}

/// A further condition: the attribute has one of `values` and none of `not_values`.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The attribute that is compared.
    pub key: ConditionKey,
    /// One of these must match; empty = any value.
    pub values: Vec<StringMatch>,
    /// None of these may match.
    pub not_values: Vec<StringMatch>,
}

/// The attribute that a condition compares. Values for addresses and ports have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConditionKey {
    /// `request.headers[NAME]`, the name in lower case.
    RequestHeader(Arc<str>),
    /// `source.ip`
    SourceIp,
    /// `remote.ip`
    RemoteIp,
    /// `source.namespace`
    SourceNamespace,
    /// `source.principal`
    SourcePrincipal,
    /// `source.serviceAccount`; the values have a namespace: `namespace/name`.
    SourceServiceAccount,
    /// `source.trustDomain`
    SourceTrustDomain,
    /// `destination.ip`
    DestinationIp,
    /// `destination.port`
    DestinationPort,
    /// `connection.sni`
    ConnectionSni,
    /// `request.auth.principal`
    RequestPrincipal,
    /// `request.auth.audiences`, `request.auth.presenter` and `request.auth.claims[…]`: the path of the claim.
    RequestClaim(Arc<[Arc<str>]>),
    /// `experimental.envoy.filters.NAME[KEY]`: metadata of a filter.
    FilterMetadata {
        /// `envoy.filters.NAME`.
        filter: Arc<str>,
        /// The key in it.
        key: Arc<str>,
    },
}

impl AuthorizationPolicy {
    /// Whether some rule needs properties that only HTTP has (hosts, methods, paths, headers, tokens). On a TCP port
    /// such a rule of an ALLOW policy never matches; in any other policy the HTTP parts are ignored, so that it refuses,
    /// or asks about, more.
    pub fn needs_http(&self) -> bool {
        self.rules.iter().any(Rule::needs_http)
    }
}

impl Rule {
    /// Whether it needs properties that only HTTP has.
    pub fn needs_http(&self) -> bool {
        let operation = |o: &Operation| {
            !(o.hosts.is_empty()
                && o.not_hosts.is_empty()
                && o.methods.is_empty()
                && o.not_methods.is_empty()
                && o.paths.is_empty()
                && o.not_paths.is_empty())
        };
        let condition = |c: &Condition| {
            matches!(
                c.key,
                ConditionKey::RequestHeader(_) | ConditionKey::RequestPrincipal | ConditionKey::RequestClaim(_)
            )
        };
        let source = |s: &Source| !(s.request_principals.is_empty() && s.not_request_principals.is_empty());
        self.to.iter().any(operation) || self.when.iter().any(condition) || self.from.iter().any(source)
    }
}

/// Returns the mode of mutual TLS that a workload accepts on a port, by the PeerAuthentications of its namespace and of the
/// root namespace, each in the order of precedence. Port overrides workload, which overrides namespace, which overrides mesh;
/// without any policy both are accepted.
pub(crate) fn mtls_mode(
    own: &[Arc<PeerAuthentication>],
    root: &[Arc<PeerAuthentication>],
    workload: &impl Selectable,
    port: u16,
) -> MtlsMode {
    if is_closed(own, root, |selector| workload.selected_by(selector)) {
        return MtlsMode::Strict;
    }
    let of_workload = own.iter().find(|p| !p.selector.is_empty() && workload.selected_by(&p.selector));
    let of_port = of_workload.and_then(|p| p.port_modes.get(&port).copied().flatten());
    of_port.or_else(|| of_workload.and_then(|p| p.mode)).unwrap_or_else(|| namespace_mtls_mode(own, root))
}

/// Returns the mode of mutual TLS of a namespace's workloads without a policy of their own.
pub(crate) fn namespace_mtls_mode(own: &[Arc<PeerAuthentication>], root: &[Arc<PeerAuthentication>]) -> MtlsMode {
    if is_closed(own, root, Labels::is_empty) {
        return MtlsMode::Strict;
    }
    let whole = |list: &[Arc<PeerAuthentication>]| list.iter().find(|p| p.selector.is_empty()).and_then(|p| p.mode);
    whole(own).or_else(|| whole(root)).unwrap_or(MtlsMode::Permissive)
}

/// Whether a stand-in for a refused policy selects the workload.
fn is_closed(
    own: &[Arc<PeerAuthentication>],
    root: &[Arc<PeerAuthentication>],
    selects: impl Fn(&Labels) -> bool,
) -> bool {
    own.iter().chain(root).any(|policy| policy.refused && selects(&policy.selector))
}
