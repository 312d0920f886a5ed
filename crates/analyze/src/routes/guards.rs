//! Policies that guard the proxies of a Gateway, and whether they would guard those of the Gateway that is written.

use std::sync::Arc;

use evenkeel_model::{Gateway, Labels, Snapshot};

/// The proxies that are deployed for a Gateway of the Gateway API.
pub(super) struct NewProxies<'a> {
    namespace: &'a Arc<str>,
    labels: Labels,
}

impl<'a> NewProxies<'a> {
    /// Those of the Gateway of this name.
    pub(super) fn of(namespace: &'a Arc<str>, gateway: &str) -> Self {
        let labels = Labels::from([("gateway.networking.k8s.io/gateway-name".to_owned(), gateway.to_owned())]);
        Self { namespace, labels }
    }
}

/// What guards the present proxies of a Gateway, which are in `namespace`, and would not guard others; `None`: nothing.
pub(super) fn lost_guard(
    snapshot: &Snapshot,
    gateway: &Gateway,
    namespace: &Arc<str>,
    new: &NewProxies<'_>,
) -> Option<String> {
    let mut policies = snapshot.policies_for(namespace, &gateway.selector);
    let mut tokens = snapshot.request_authentications_for(namespace, &gateway.selector);
    for pod in snapshot.workloads.iter().filter(|pod| gateway.selects(&***pod)) {
        policies.extend(snapshot.policies_for(&pod.namespace, &**pod));
        tokens.extend(snapshot.request_authentications_for(&pod.namespace, &**pod));
    }
    let selecting = snapshot.policies_for(new.namespace, &new.labels);
    let selecting_tokens = snapshot.request_authentications_for(new.namespace, &new.labels);
    let policy = policies.iter().find(|one| !selecting.iter().any(|other| Arc::ptr_eq(one, other)));
    let token = tokens.iter().find(|one| !selecting_tokens.iter().any(|other| Arc::ptr_eq(one, other)));
    policy
        .map(|one| format!("AuthorizationPolicy {}/{}", one.namespace, one.name))
        .or_else(|| token.map(|one| format!("RequestAuthentication {}/{}", one.namespace, one.name)))
}
