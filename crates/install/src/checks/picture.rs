//! What the checks look at: the objects of a cluster at one moment, as far as the user may read them.

use std::collections::BTreeMap;

use serde_json::Value;

/// A kind of objects that checks read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needed {
    /// Its group and version.
    pub api_version: &'static str,
    /// Its name.
    pub kind: &'static str,
    /// Whether only those of the control plane's namespace are read.
    pub is_local: bool,
}

const fn everywhere(api_version: &'static str, kind: &'static str) -> Needed {
    Needed { api_version, kind, is_local: false }
}

const fn local(api_version: &'static str, kind: &'static str) -> Needed {
    Needed { api_version, kind, is_local: true }
}

/// All kinds that checks read.
pub const NEEDED: &[Needed] = &[
    everywhere("v1", "Namespace"),
    everywhere("v1", "Node"),
    everywhere("v1", "Pod"),
    everywhere("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
    everywhere("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    everywhere("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration"),
    everywhere("rbac.authorization.k8s.io/v1", "ClusterRole"),
    everywhere("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
    everywhere("coordination.k8s.io/v1", "Lease"),
    local("v1", "Service"),
    local("v1", "ServiceAccount"),
    local("v1", "ConfigMap"),
    local("apps/v1", "Deployment"),
    local("discovery.k8s.io/v1", "EndpointSlice"),
    local("policy/v1", "PodDisruptionBudget"),
    local("autoscaling/v2", "HorizontalPodAutoscaler"),
];

/// A right that the installation needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// The verb.
    pub verb: &'static str,
    /// The group of the resource.
    pub group: &'static str,
    /// Its name in the plural.
    pub resource: &'static str,
    /// Whether it is needed in the control plane's namespace only.
    pub is_local: bool,
}

const fn create(group: &'static str, resource: &'static str) -> Right {
    Right { verb: "create", group, resource, is_local: false }
}

const fn create_local(group: &'static str, resource: &'static str) -> Right {
    Right { verb: "create", group, resource, is_local: true }
}

/// All rights that the installation needs.
pub const RIGHTS: &[Right] = &[
    create("", "namespaces"),
    create("apiextensions.k8s.io", "customresourcedefinitions"),
    create("rbac.authorization.k8s.io", "clusterroles"),
    create("rbac.authorization.k8s.io", "clusterrolebindings"),
    create("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
    create("admissionregistration.k8s.io", "validatingwebhookconfigurations"),
    create("admissionregistration.k8s.io", "validatingadmissionpolicies"),
    create("admissionregistration.k8s.io", "validatingadmissionpolicybindings"),
    create_local("rbac.authorization.k8s.io", "roles"),
    create_local("rbac.authorization.k8s.io", "rolebindings"),
    create_local("", "serviceaccounts"),
    create_local("", "configmaps"),
    create_local("", "services"),
    create_local("apps", "deployments"),
    create_local("autoscaling", "horizontalpodautoscalers"),
    create_local("policy", "poddisruptionbudgets"),
];

/// The answer about a right.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The right.
    pub right: Right,
    /// Whether the user has it, or why that is not known.
    pub allowed: Result<bool, String>,
}

/// A cluster at one moment.
#[derive(Debug, Clone, Default)]
pub struct Picture {
    /// Namespace of the control plane.
    pub namespace: String,
    /// Its revision.
    pub revision: String,
    /// The version of this program.
    pub version: String,
    /// What the API server says about its version, or why it says nothing.
    pub server_version: Option<Result<String, String>>,
    /// How many seconds the API server's clock is ahead of this machine's.
    pub skew_s: Option<i64>,
    /// This machine's time, in seconds since 1970.
    pub now_s: i64,
    /// Objects by kind, or why they could not be read.
    pub objects: BTreeMap<&'static str, Result<Vec<Value>, String>>,
    /// Rights of the user.
    pub rights: Vec<Answer>,
}

impl Picture {
    /// The objects of a kind; why a check cannot look at them otherwise.
    pub(super) fn all(&self, kind: &'static str) -> Result<&[Value], String> {
        match self.objects.get(kind) {
            Some(Ok(objects)) => Ok(objects),
            Some(Err(reason)) => Err(format!("{kind}s cannot be read: {reason}")),
            None => Ok(&[]),
        }
    }

    /// An object of the kind by its name.
    pub(super) fn named(&self, kind: &'static str, wanted: &str) -> Result<Option<&Value>, String> {
        Ok(self.all(kind)?.iter().find(|object| name(object) == wanted))
    }

    /// The name of the Deployment, Service and others of the revision.
    pub(super) fn control_plane(&self) -> String {
        match self.revision.as_str() {
            "" | "default" => "istiod".to_owned(),
            revision => format!("istiod-{revision}"),
        }
    }

    /// What follows a name if the revision is not the default one.
    pub(super) fn suffix(&self) -> String {
        match self.revision.as_str() {
            "" | "default" => String::new(),
            revision => format!("-{revision}"),
        }
    }

    /// The revision as labels name it.
    pub(super) fn revision(&self) -> &str {
        if self.revision.is_empty() { "default" } else { &self.revision }
    }

    /// The Pods of the control plane.
    pub(super) fn replicas(&self) -> Result<Vec<&Value>, String> {
        let is_one = |pod: &&Value| {
            namespace(pod) == self.namespace
                && label(pod, "app") == Some("istiod")
                && label(pod, "istio.io/rev") == Some(self.revision())
        };
        Ok(self.all("Pod")?.iter().filter(is_one).collect())
    }
}

/// The name of an object.
pub(super) fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// The namespace of an object.
pub(super) fn namespace(object: &Value) -> &str {
    object["metadata"]["namespace"].as_str().unwrap_or_default()
}

/// A label of an object.
pub(super) fn label<'a>(object: &'a Value, label: &str) -> Option<&'a str> {
    object["metadata"]["labels"][label].as_str()
}

/// An annotation of an object.
pub(super) fn annotation<'a>(object: &'a Value, annotation: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][annotation].as_str()
}

/// A list in an object.
pub(super) fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Whether a condition of an object's status holds.
pub(super) fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    list(object, "/status/conditions").iter().find(|condition| condition["type"] == kind)
}
