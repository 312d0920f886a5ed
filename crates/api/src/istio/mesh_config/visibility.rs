//! MeshConfig: which namespaces and services are seen.

use std::collections::BTreeMap;

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use crate::decode::Context;

object! {
    /// Chooses namespaces by their labels; all parts must match (Kubernetes' LabelSelector).
    pub struct NamespaceSelector {
        /// Labels that must match.
        match_labels: BTreeMap<String, String> = "matchLabels",
        /// Conditions that must hold.
        match_expressions: Vec<MatchExpression> = "matchExpressions",
    }
}

object! {
    /// A condition on one label.
    pub struct MatchExpression {
        /// The label.
        key: String = "key",
        /// The condition.
        operator: Spanned<MatchOperator> = "operator",
        /// Values of `In` and `NotIn`.
        values: Vec<String> = "values",
    }
    check: check_expression;
}

choices! {
    /// A condition on a label.
    pub enum MatchOperator {
        /// It has one of the values.
        In = "In",
        /// It has none of the values, or is missing.
        NotIn = "NotIn",
        /// It is there.
        Exists = "Exists",
        /// It is missing.
        DoesNotExist = "DoesNotExist",
    }
}

fn check_expression(expression: &MatchExpression, _: &Node, cx: &mut Context) {
    let wants_values = matches!(expression.operator.value, MatchOperator::In | MatchOperator::NotIn);
    if wants_values == expression.values.is_empty() {
        let operator = expression.operator.value.as_str();
        let (message, help) = if wants_values {
            (format!("`{operator}` needs values"), "add `values`")
        } else {
            (format!("`{operator}` has no values"), "remove `values`")
        };
        cx.at_field("operator", |cx| cx.error("conflict", &expression.operator.span, message, help));
    }
}

impl NamespaceSelector {
    /// Whether a namespace with these labels is chosen.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let holds = |expression: &MatchExpression| {
            let value = labels.get(&expression.key);
            let is_in = || value.is_some_and(|value| expression.values.contains(value));
            match expression.operator.value {
                MatchOperator::In => is_in(),
                MatchOperator::NotIn => !is_in(),
                MatchOperator::Exists => value.is_some(),
                MatchOperator::DoesNotExist => value.is_none(),
            }
        };
        self.match_labels.iter().all(|(name, value)| labels.get(name) == Some(value))
            && self.match_expressions.iter().all(holds)
    }
}

object! {
    /// Settings of the services with these hosts.
    pub struct ServiceSettings {
        /// The settings.
        settings: Option<Settings> = "settings",
        /// Host names; may be wildcards.
        hosts: Vec<Spanned<Hostname>> = "hosts",
    }
}

object! {
    /// Settings of services.
    pub struct Settings {
        /// Whether clients use only the endpoints of their own cluster. Those of `kube-system` and `kubernetes.default` are so by default.
        cluster_local: Option<bool> = "clusterLocal",
    }
}

object! {
    /// Who may see ServiceEntries, by the namespace they are in.
    pub struct ServiceEntryVisibility {
        /// The visibility if no policy matches; PUBLIC if not given.
        default_visibility: Option<VisibilityLevel> = "defaultVisibility",
        /// The first that matches applies.
        policies: Vec<VisibilityPolicy> = "policies",
        /// Whether sidecars and gateways follow it; without it only ambient proxies do, and there are none.
        apply_to_sidecars: Option<bool> = "applyToSidecars",
    }
    check: check_visibility;
}

object! {
    /// The visibility of the ServiceEntries of some namespaces.
    pub struct VisibilityPolicy {
        /// PUBLIC if not given.
        visibility: Option<VisibilityLevel> = "visibility",
        /// All must match; without rules it matches everything.
        matching_rules: Vec<VisibilityRule> = "matchingRules",
    }
}

object! {
    /// A condition on the namespace of a ServiceEntry.
    pub struct VisibilityRule {
        /// Labels of the namespace. A rule without a selector never matches, as in Istio.
        namespace_selector: Option<NamespaceSelector> = "namespaceSelector",
    }
}

choices! {
    /// Who may see a ServiceEntry.
    pub enum VisibilityLevel {
        /// As PUBLIC.
        Unspecified = "VISIBILITY_UNSPECIFIED",
        /// Those whom its `exportTo` names.
        Public = "PUBLIC",
        /// Its own namespace.
        Namespace = "NAMESPACE",
        /// Nobody.
        None = "NONE",
    }
}

fn check_visibility(visibility: &ServiceEntryVisibility, node: &Node, cx: &mut Context) {
    if visibility.apply_to_sidecars != Some(true) {
        let message = "it applies to ambient proxies only, and there are none";
        cx.warning("no-effect", &node.span, message, "add `applyToSidecars: true`");
    }
}

impl ServiceEntryVisibility {
    /// The visibility of the ServiceEntries of a namespace with these labels.
    pub fn of(&self, labels: &BTreeMap<String, String>) -> VisibilityLevel {
        if self.apply_to_sidecars != Some(true) {
            return VisibilityLevel::Public;
        }
        let matches = |policy: &&VisibilityPolicy| {
            policy.matching_rules.iter().all(|rule| rule.namespace_selector.as_ref().is_some_and(|s| s.selects(labels)))
        };
        let of_policy = self.policies.iter().find(matches).map(|policy| policy.visibility);
        of_policy.unwrap_or(self.default_visibility).unwrap_or(VisibilityLevel::Public)
    }
}
