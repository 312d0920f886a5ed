//! `envoy.config.rbac.v3.RBAC`, compiled. Evaluation lives in crate `filters`.

pub(crate) mod compile;
mod index;
pub mod policy;

use std::sync::Arc;
use std::time::Duration;

use self::index::PolicyIndex;
use crate::dynamic_metadata::{DynamicMetadata, FilterMetadata};
use crate::filter_needs::FilterNeeds;
use crate::filters::rbac::policy::{OutcomeMetadata, Permission, Policy};
use crate::metadata::MetadataValue;
use crate::support::message::{MessageSupport, extension};
use crate::view::PeerIdentity;

/// An RBAC filter, network or HTTP.
#[derive(Debug)]
pub struct RbacFilter {
    /// Statistics prefix.
    pub stat_prefix: Arc<str>,
    /// Enforced rules; `None`: everything is allowed.
    pub rules: Option<Arc<Rules>>,
    /// Rules only counted and logged (dry run).
    pub shadow_rules: Option<Arc<Rules>>,
    /// Statistics prefix of shadow rules.
    pub shadow_stat_prefix: Arc<str>,
}

impl FilterNeeds for RbacFilter {
    fn may_stand_upstream(&self) -> bool {
        true
    }

    fn reads(&self, name: &str) -> bool {
        self.rules.iter().flat_map(|rules| rules.policies()).any(|policy| policy.reads_header(name))
    }
}

/// `envoy.filters.network.rbac`.
#[derive(Debug)]
pub struct NetworkRbac {
    /// Rules and prefixes.
    pub filter: RbacFilter,
    /// Every piece of data that the client sends is decided about (`enforcement_type` CONTINUOUS), not only the connection.
    pub continuous: bool,
    /// A connection that is denied is closed after this (`delay_deny`).
    pub delay_deny: Duration,
}

impl FilterNeeds for NetworkRbac {}

impl NetworkRbac {
    /// Whether some rule reads dynamic metadata, which other filters may only have set when the client has sent data.
    pub fn reads_metadata(&self) -> bool {
        let rules = [&self.filter.rules, &self.filter.shadow_rules].into_iter().flatten();
        rules.flat_map(|rules| rules.policies()).any(Policy::reads_metadata)
    }
}

/// RBAC of one route; replaces the filter's rules.
#[derive(Debug)]
pub struct RbacPerRoute {
    /// `None`: RBAC is off for this route.
    pub filter: Option<RbacFilter>,
}

/// A set of policies with one action.
#[derive(Debug)]
pub struct Rules {
    /// The effect of a match.
    pub action: RbacAction,
    policies: Vec<Policy>,
    index: PolicyIndex,
    fields: FieldNames,
    unnamed: OutcomeMetadata,
}

impl Rules {
    /// `policies` in order of their names.
    pub fn new(action: RbacAction, policies: Vec<Policy>, fields: FieldNames) -> Self {
        let index = PolicyIndex::new(&policies);
        Self { action, policies, index, fields, unnamed: OutcomeMetadata::default() }
    }

    /// Returns the dynamic metadata of an outcome of these rules. `policy`: one of their policies, if one is named.
    pub fn metadata<'r>(&'r self, allowed: bool, policy: Option<&'r Policy>) -> &'r Arc<FilterMetadata> {
        let known = policy.map_or(&self.unnamed, |policy| &policy.metadata);
        let place = if allowed { &known.allowed } else { &known.denied };
        place.get_or_init(|| Arc::new(self.fields.of_outcome(allowed, policy)))
    }

    /// Policies in order of their names.
    pub fn policies(&self) -> &[Policy] {
        &self.policies
    }

    /// Returns the first policy whose only permission matches nothing: it exists only for its name.
    pub fn idle(&self) -> Option<&Policy> {
        let is_idle = |policy: &&Policy| match policy.permissions.as_slice() {
            [Permission::Not(inner)] => matches!(**inner, Permission::Any),
            _ => false,
        };
        self.policies.iter().find(is_idle)
    }

    /// The first policy, in the order of names, for which `matches` is true. Only those are asked that may match this peer, path
    /// (without its query; `None` where there is no request) and dynamic metadata, so the cost does not grow with their number.
    pub fn first_match(
        &self,
        of: (Option<&PeerIdentity>, Option<&[u8]>, Option<&DynamicMetadata>),
        matches: impl Fn(&Policy) -> bool,
    ) -> Option<&Policy> {
        self.index.first_match(&self.policies, of, matches)
    }
}

/// The namespace and the names of the rules' dynamic metadata: `PREFIXenforced_engine_result`.
#[derive(Debug, Clone, Default)]
pub struct FieldNames {
    /// The namespace, whatever the filter's name.
    pub filter: &'static str,
    /// Prefix of the names.
    pub prefix: Arc<str>,
    /// `enforced` or `shadow`.
    pub kind: &'static str,
}

impl FieldNames {
    fn of_outcome(&self, allowed: bool, policy: Option<&Policy>) -> FilterMetadata {
        let text = |name: &str, text: &str| {
            (format!("{}{}_{name}", self.prefix, self.kind).into(), MetadataValue::Text(text.into()))
        };
        let result = text("engine_result", if allowed { "allowed" } else { "denied" });
        let policy = policy.map(|policy| text("effective_policy_id", &policy.name));
        FilterMetadata::new(self.filter, &policy.into_iter().chain([result]).collect::<Vec<_>>())
    }
}

/// `RBAC.Action`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RbacAction {
    /// Allowed only when some policy matches.
    Allow,
    /// Denied when some policy matches.
    Deny,
    /// Allowed; a match sets metadata for the log.
    Log,
}

/// The supported fields of its messages.
#[rustfmt::skip]
pub(crate) const FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.http.rbac.v3.RBAC",
        &["rules", "shadow_rules", "shadow_rules_stat_prefix", "rules_stat_prefix"]),
    extension("envoy.extensions.filters.http.rbac.v3.RBACPerRoute", &["rbac"]),
];

/// The supported fields of the network filter.
#[rustfmt::skip]
pub(crate) const NETWORK_FIELDS: &[MessageSupport] = &[
    extension("envoy.extensions.filters.network.rbac.v3.RBAC",
        &["rules", "shadow_rules", "shadow_rules_stat_prefix", "stat_prefix", "enforcement_type", "delay_deny"]),
];
