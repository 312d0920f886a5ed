//! All kinds: which there are, and what is known of those there are not.

use std::fmt;
use std::sync::Arc;

use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Decode, Schema};
use crate::{istio, kubernetes};

/// Declares the kinds: variant, API group, versions, whether it lives in a namespace, type.
macro_rules! kinds {
    ($( $kind:ident: $group:literal [$($version:literal),+] $scope:ident => $ty:ty; )*) => {
        /// A supported kind.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $( #[doc = concat!("`", stringify!($kind), "` of the API group `", $group, "`.")] $kind, )*
        }

        /// What an object says.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Resource {
            $( #[doc = concat!("A ", stringify!($kind), ".")] $kind(Arc<$ty>), )*
        }

        impl Kind {
            /// Every supported kind.
            pub const ALL: &'static [Kind] = &[$( Kind::$kind, )*];

            /// The kind as written.
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$kind => stringify!($kind), )* }
            }

            /// Its API group; empty for Kubernetes' core.
            pub fn group(self) -> &'static str {
                match self { $( Self::$kind => $group, )* }
            }

            /// The versions of the group that are accepted.
            pub fn versions(self) -> &'static [&'static str] {
                match self { $( Self::$kind => &[$($version),+], )* }
            }

            /// Whether its objects live in a namespace.
            pub fn is_namespaced(self) -> bool {
                match self { $( Self::$kind => stringify!($scope) == "namespaced", )* }
            }

            /// What an object of this kind accepts, besides `apiVersion`, `kind` and `metadata`.
            pub fn schema(self) -> Schema {
                match self { $( Self::$kind => <$ty>::schema(), )* }
            }

            /// Reads what an object of this kind says, without `apiVersion`, `kind` and `metadata`.
            pub(crate) fn decode(self, node: &Node, cx: &mut Context) -> Option<Resource> {
                match self {
                    $( Self::$kind => <$ty>::decode(node, cx).map(|value| Resource::$kind(Arc::new(value))), )*
                }
            }
        }

        impl Resource {
            /// Its kind.
            pub fn kind(&self) -> Kind {
                match self { $( Self::$kind(_) => Kind::$kind, )* }
            }
        }
    };
}

kinds! {
    Namespace: "" ["v1"] cluster => kubernetes::Namespace;
    ServiceAccount: "" ["v1"] namespaced => kubernetes::ServiceAccount;
    ConfigMap: "" ["v1"] namespaced => kubernetes::ConfigMap;
    Pod: "" ["v1"] namespaced => kubernetes::Pod;
    Service: "" ["v1"] namespaced => kubernetes::Service;
    EndpointSlice: "discovery.k8s.io" ["v1"] namespaced => kubernetes::EndpointSlice;
    Deployment: "apps" ["v1"] namespaced => kubernetes::Deployment;
    Gateway: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] namespaced => istio::Gateway;
    VirtualService: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] namespaced => istio::VirtualService;
    DestinationRule: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] namespaced => istio::DestinationRule;
    ServiceEntry: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] namespaced => istio::ServiceEntry;
    PeerAuthentication: "security.istio.io" ["v1", "v1beta1"] namespaced => istio::PeerAuthentication;
    AuthorizationPolicy: "security.istio.io" ["v1", "v1beta1"] namespaced => istio::AuthorizationPolicy;
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What `apiVersion` and `kind` name.
pub(crate) enum Named {
    /// A supported kind.
    Supported(Kind),
    /// A kind that is known but not supported yet.
    Later,
    /// No known kind; says how to go on.
    Unknown(String),
    /// A supported kind in a version that is not; says which are.
    OtherVersion(String),
}

impl Kind {
    /// Who defines it, for messages.
    pub(crate) fn owner(self) -> &'static str {
        if self.group().ends_with("istio.io") { "Istio" } else { "Kubernetes" }
    }

    fn api_versions(self) -> impl Iterator<Item = String> {
        self.versions().iter().map(move |version| match self.group() {
            "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        })
    }
}

/// Looks up a kind.
pub(crate) fn named(api_version: &str, kind: &str) -> Named {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let same = Kind::ALL.iter().find(|k| k.as_str() == kind && k.group() == group);
    if let Some(found) = same {
        return match found.versions().contains(&version) {
            true => Named::Supported(*found),
            false => Named::OtherVersion(format!(
                "supported: {}",
                one_of(found.api_versions().collect::<Vec<_>>().iter().map(String::as_str))
            )),
        };
    }
    if is_known(group, kind) {
        return Named::Later;
    }
    if let Some(other) = Kind::ALL.iter().find(|k| k.as_str() == kind) {
        let versions: Vec<String> = other.api_versions().collect();
        return Named::Unknown(format!("a {kind} has `apiVersion: {}`", versions.first().map_or("", String::as_str)));
    }
    let names = || Kind::ALL.iter().map(|k| k.as_str());
    Named::Unknown(match closest(kind, names()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("supported kinds: {}", one_of(names())),
    })
}

/// Groups whose every kind is known: those of Kubernetes, Istio and the Gateway API.
const KNOWN_GROUPS: &[&str] = &[
    "apps",
    "batch",
    "autoscaling",
    "policy",
    "networking.istio.io",
    "security.istio.io",
    "telemetry.istio.io",
    "extensions.istio.io",
    "install.istio.io",
    "gateway.networking.k8s.io",
    "inference.networking.k8s.io",
    "networking.k8s.io",
    "discovery.k8s.io",
    "rbac.authorization.k8s.io",
    "apiextensions.k8s.io",
    "admissionregistration.k8s.io",
    "storage.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "events.k8s.io",
    "node.k8s.io",
    "certificates.k8s.io",
    "apiregistration.k8s.io",
];

/// Kinds of those groups, and of Kubernetes' core, that are not supported yet.
const KNOWN_KINDS: &[&str] = &[
    // Kubernetes
    "Secret",
    "Endpoints",
    "Node",
    "Event",
    "PersistentVolume",
    "PersistentVolumeClaim",
    "ReplicationController",
    "ResourceQuota",
    "LimitRange",
    "PodTemplate",
    "Binding",
    "ComponentStatus",
    "StatefulSet",
    "DaemonSet",
    "ReplicaSet",
    "ControllerRevision",
    "Job",
    "CronJob",
    "HorizontalPodAutoscaler",
    "PodDisruptionBudget",
    "Ingress",
    "IngressClass",
    "NetworkPolicy",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
    "StorageClass",
    "PriorityClass",
    "Lease",
    "RuntimeClass",
    "CertificateSigningRequest",
    "CSIDriver",
    "CSINode",
    "VolumeAttachment",
    "PodSecurityPolicy",
    "APIService",
    // Istio
    "Sidecar",
    "WorkloadEntry",
    "WorkloadGroup",
    "EnvoyFilter",
    "ProxyConfig",
    "RequestAuthentication",
    "Telemetry",
    "WasmPlugin",
    "IstioOperator",
    "TrafficExtension",
    // Gateway API
    "GatewayClass",
    "Gateway",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "TCPRoute",
    "UDPRoute",
    "ReferenceGrant",
    "BackendTLSPolicy",
    "ListenerSet",
    "InferencePool",
];

fn is_known(group: &str, kind: &str) -> bool {
    (group.is_empty() || KNOWN_GROUPS.contains(&group))
        && KNOWN_KINDS.contains(&kind)
        && !(kind == "Gateway" && group != "gateway.networking.k8s.io")
}
