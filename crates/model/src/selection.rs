//! Which workloads a policy applies to.

use evenkeel_api::istio::{
    AuthorizationPolicySpec, RequestAuthenticationSpec, TargetRef, TelemetrySpec, WorkloadSelector,
};

use crate::Labels;
use crate::labels::Selectable;

/// The label by which a Gateway of the Gateway API finds its Pods.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";

/// The workloads that a policy is for: those of its namespace, or of the mesh for a policy in the root namespace, that …
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// … have these labels (`selector`); empty = all.
    Labels(Labels),
    /// … are the Pods of one of these Gateways (`targetRefs`), each by the label that its Pods have. A Gateway is always one of the
    /// policy's own namespace, also for a policy in the root namespace. None: what is named has no workloads here.
    Gateways(Vec<Labels>),
}

impl Selection {
    /// All workloads.
    pub fn everything() -> Self {
        Self::Labels(Labels::new())
    }

    /// Returns the selection of an AuthorizationPolicy.
    pub fn of_policy(spec: &AuthorizationPolicySpec) -> Self {
        Self::written(spec.selector.as_ref(), spec.target_ref.iter().chain(&spec.target_refs))
    }

    /// Returns the selection of a RequestAuthentication.
    pub fn of_request_authentication(spec: &RequestAuthenticationSpec) -> Self {
        Self::written(spec.selector.as_ref(), spec.target_ref.iter().chain(&spec.target_refs))
    }

    /// Returns the selection of a Telemetry object.
    pub fn of_telemetry(spec: &TelemetrySpec) -> Self {
        Self::written(spec.selector.as_ref(), spec.target_ref.iter().chain(&spec.target_refs))
    }

    /// Sidecars and gateways are no waypoints: for them, what a policy says about Services, ServiceEntries and GatewayClasses
    /// selects nothing, as in Istio.
    fn written<'a>(selector: Option<&WorkloadSelector>, targets: impl Iterator<Item = &'a TargetRef>) -> Self {
        let mut targets = targets.peekable();
        if targets.peek().is_none() {
            return Self::Labels(selector.map(|selector| selector.match_labels.clone()).unwrap_or_default());
        }
        Self::of_gateways(targets.filter(|target| target.is_gateway()).map(|target| &*target.name.value))
    }

    /// The Pods of Gateways of the Gateway API.
    pub fn of_gateways<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let label = |name: &str| Labels::from([(GATEWAY_NAME.to_owned(), name.to_owned())]);
        Self::Gateways(names.into_iter().map(label).collect())
    }

    /// Whether it selects a workload of `namespace`, for a policy of the namespace `of_policy` that may be for this workload.
    pub fn includes(&self, of_policy: &str, namespace: &str, workload: &impl Selectable) -> bool {
        match self {
            Self::Labels(labels) => workload.selected_by(labels),
            Self::Gateways(_) => of_policy == namespace && self.fits(workload),
        }
    }

    /// Whether it selects workloads with these labels, in whichever namespace they are.
    pub fn fits(&self, workload: &impl Selectable) -> bool {
        match self {
            Self::Labels(labels) => workload.selected_by(labels),
            Self::Gateways(gateways) => gateways.iter().any(|labels| workload.selected_by(labels)),
        }
    }

    /// Whether it can select no workload.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Gateways(gateways) if gateways.is_empty())
    }

    /// Whether it is for all workloads of the namespace, or of the mesh.
    pub fn is_everything(&self) -> bool {
        matches!(self, Self::Labels(labels) if labels.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_are_of_the_namespace_of_the_policy() {
        let labels =
            |pairs: &[(&str, &str)]| -> Labels { pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect() };
        let edge = labels(&[(GATEWAY_NAME, "edge"), ("app", "edge")]);
        let check = |selection: &Selection, of_policy: &str, namespace: &str, workload: &Labels, expected: bool| {
            let found = selection.includes(of_policy, namespace, workload);
            assert_eq!(found, expected, "{selection:?} {of_policy} {namespace} {workload:?}");
        };
        let gateways = Selection::of_gateways(["other", "edge"]);
        check(&gateways, "shop", "shop", &edge, true);
        check(&gateways, "istio-system", "shop", &edge, false);
        check(&gateways, "shop", "shop", &labels(&[("app", "edge")]), false);
        check(&gateways, "shop", "shop", &labels(&[(GATEWAY_NAME, "edge2")]), false);
        check(&Selection::of_gateways([]), "shop", "shop", &edge, false);
        let by_label = Selection::Labels(labels(&[("app", "edge")]));
        check(&by_label, "istio-system", "shop", &edge, true);
        check(&by_label, "shop", "shop", &labels(&[]), false);
        let all = Selection::Labels(Labels::new());
        check(&all, "istio-system", "shop", &labels(&[]), true);
        let everything = [&gateways, &by_label, &all, &Selection::of_gateways([])].map(Selection::is_everything);
        assert_eq!(everything, [false, false, true, false]);
    }
}
