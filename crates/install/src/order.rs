//! The order in which objects are applied and deleted: what others refer to comes first.

use serde_json::Value;

/// Kinds in Helm's order of installation. Webhooks come last: before the control plane is there they would only be in the way.
const KINDS: &[&str] = &[
    "Namespace",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "ServiceAccount",
    "ConfigMap",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "Deployment",
    "HorizontalPodAutoscaler",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

fn place(object: &Value) -> usize {
    let kind = object["kind"].as_str().unwrap_or_default();
    KINDS.iter().position(|known| *known == kind).unwrap_or(KINDS.len())
}

/// Sorts objects for their installation.
pub fn in_install_order(objects: &mut [Value]) {
    objects.sort_by_key(place);
}

/// Sorts objects for their removal: webhooks first, so that none is called whose server is gone.
pub fn in_uninstall_order(objects: &mut [Value]) {
    objects.sort_by_key(|object| std::cmp::Reverse(place(object)));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_others_refer_to_comes_first() {
        let kinds = |objects: &[Value]| -> Vec<String> {
            objects.iter().map(|object| object["kind"].as_str().unwrap_or_default().to_owned()).collect()
        };
        let mut objects = ["ValidatingWebhookConfiguration", "Other", "Deployment", "ServiceAccount"]
            .map(|kind| json!({"kind": kind}));
        in_install_order(&mut objects);
        assert_eq!(kinds(&objects), ["ServiceAccount", "Deployment", "ValidatingWebhookConfiguration", "Other"]);
        in_uninstall_order(&mut objects);
        assert_eq!(kinds(&objects), ["Other", "ValidatingWebhookConfiguration", "Deployment", "ServiceAccount"]);
    }
}
