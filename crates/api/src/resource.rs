//! The supported kinds, and names of kinds that are known but not supported. A kind is a group and a name: two groups
//! may each have a `Gateway`.

use std::fmt;
use std::sync::Arc;

use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::Node;

use crate::decode::{Context, Decode, Schema};
use crate::{gateway_api, istio, kubernetes};

/// Declares the kinds: variant (and the kind as written, where another group has one of that name), API group,
/// versions, whether it is namespaced, `later` if it is known but not supported yet, type.
macro_rules! kinds {
    ($( $kind:ident $(as $name:literal)?: $group:literal [$($version:literal),+] $scope:ident $($stage:ident)? => $ty:ty; )*) => {
        /// A kind of an API group.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind {
            $( #[doc = concat!("`", stringify!($kind), "` of the API group `", $group, "`.")] $kind, )*
        }

        /// The content of an object.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Resource {
            $( #[doc = concat!("A ", stringify!($kind), ".")] $kind(Arc<$ty>), )*
        }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Kind] = &[$( Kind::$kind, )*];

            /// The kind as written. Another group may have one of the same name.
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$kind => written!($kind $($name)?), )* }
            }

            /// Its name in tables of kinds of all groups, where each has a name of its own.
            pub(crate) fn variant(self) -> &'static str {
                match self { $( Self::$kind => stringify!($kind), )* }
            }

            /// Whether documents of this kind are read. The others are named in a warning and left out.
            pub fn is_supported(self) -> bool {
                match self { $( Self::$kind => is_supported!($($stage)?), )* }
            }

            /// Its API group; empty for Kubernetes' core.
            pub fn group(self) -> &'static str {
                match self { $( Self::$kind => $group, )* }
            }

            /// The versions of the group that are accepted.
            pub fn versions(self) -> &'static [&'static str] {
                match self { $( Self::$kind => &[$($version),+], )* }
            }

            /// Whether its objects are namespaced.
            pub fn is_namespaced(self) -> bool {
                match self { $( Self::$kind => matches!(Scope::$scope, Scope::Namespaced), )* }
            }

            /// Returns the schema of an object of this kind, besides `apiVersion`, `kind` and `metadata`.
            pub fn schema(self) -> Schema {
                match self { $( Self::$kind => <$ty>::schema(), )* }
            }

            /// Reads the content of an object of this kind, without `apiVersion`, `kind` and `metadata`.
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

/// A kind as written.
macro_rules! written {
    ($kind:ident) => {
        stringify!($kind)
    };
    ($kind:ident $name:literal) => {
        $name
    };
}

/// Whether a row of the table says `later`.
macro_rules! is_supported {
    () => {
        true
    };
    (later) => {
        false
    };
}

/// Whether a kind is namespaced.
enum Scope {
    Cluster,
    Namespaced,
}

kinds! {
    Namespace: "" ["v1"] Cluster => kubernetes::Namespace;
    ServiceAccount: "" ["v1"] Namespaced => kubernetes::ServiceAccount;
    ConfigMap: "" ["v1"] Namespaced => kubernetes::ConfigMap;
    Secret: "" ["v1"] Namespaced => kubernetes::Secret;
    Pod: "" ["v1"] Namespaced => kubernetes::Pod;
    Service: "" ["v1"] Namespaced => kubernetes::Service;
    EndpointSlice: "discovery.k8s.io" ["v1"] Namespaced => kubernetes::EndpointSlice;
    Ingress: "networking.k8s.io" ["v1"] Namespaced => kubernetes::Ingress;
    IngressClass: "networking.k8s.io" ["v1"] Cluster => kubernetes::IngressClass;
    Deployment: "apps" ["v1"] Namespaced => kubernetes::Deployment;
    StatefulSet: "apps" ["v1"] Namespaced => kubernetes::StatefulSet;
    DaemonSet: "apps" ["v1"] Namespaced => kubernetes::DaemonSet;
    Gateway: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] Namespaced => istio::Gateway;
    VirtualService: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] Namespaced => istio::VirtualService;
    DestinationRule: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] Namespaced => istio::DestinationRule;
    ServiceEntry: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] Namespaced => istio::ServiceEntry;
    WorkloadEntry: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] Namespaced => istio::WorkloadEntry;
    WorkloadGroup: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] Namespaced => istio::WorkloadGroup;
    Sidecar: "networking.istio.io" ["v1", "v1beta1", "v1alpha3"] Namespaced => istio::Sidecar;
    ProxyConfig: "networking.istio.io" ["v1beta1"] Namespaced => istio::ProxyConfigKind;
    Telemetry: "telemetry.istio.io" ["v1", "v1alpha1"] Namespaced => istio::Telemetry;
    PeerAuthentication: "security.istio.io" ["v1", "v1beta1"] Namespaced => istio::PeerAuthentication;
    AuthorizationPolicy: "security.istio.io" ["v1", "v1beta1"] Namespaced => istio::AuthorizationPolicy;
    RequestAuthentication: "security.istio.io" ["v1", "v1beta1"] Namespaced => istio::RequestAuthentication;
    GatewayClass: "gateway.networking.k8s.io" ["v1", "v1beta1"] Cluster => gateway_api::GatewayClass;
    KubernetesGateway as "Gateway": "gateway.networking.k8s.io" ["v1", "v1beta1"] Namespaced => gateway_api::Gateway;
    HttpRoute as "HTTPRoute": "gateway.networking.k8s.io" ["v1", "v1beta1"] Namespaced => gateway_api::HttpRoute;
    GrpcRoute as "GRPCRoute": "gateway.networking.k8s.io" ["v1", "v1alpha2"] Namespaced => gateway_api::GrpcRoute;
    TlsRoute as "TLSRoute": "gateway.networking.k8s.io" ["v1", "v1alpha3", "v1alpha2"] Namespaced => gateway_api::TlsRoute;
    TcpRoute as "TCPRoute": "gateway.networking.k8s.io" ["v1", "v1alpha2"] Namespaced => gateway_api::TcpRoute;
    UdpRoute as "UDPRoute": "gateway.networking.k8s.io" ["v1", "v1alpha2"] Namespaced => gateway_api::UdpRoute;
    ReferenceGrant: "gateway.networking.k8s.io" ["v1", "v1beta1"] Namespaced => gateway_api::ReferenceGrant;
    ListenerSet: "gateway.networking.k8s.io" ["v1"] Namespaced => gateway_api::ListenerSet;
    BackendTlsPolicy as "BackendTLSPolicy": "gateway.networking.k8s.io" ["v1", "v1alpha3"] Namespaced => gateway_api::BackendTlsPolicy;
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The meaning of `apiVersion` and `kind`.
pub(crate) enum Named {
    /// A supported kind.
    Supported(Kind),
    /// A kind that is known but not supported yet.
    Later,
    /// An unknown kind of another API; with a hint.
    Foreign(String),
    /// A known kind or group, misspelt or mismatched; with a hint.
    Unknown(String),
    /// A supported kind in an unsupported version; with the supported ones.
    OtherVersion(String),
}

impl Kind {
    /// Returns who defines it, for messages.
    pub(crate) fn owner(self) -> &'static str {
        if self.group().ends_with("istio.io") { "Istio" } else { "Kubernetes" }
    }

    pub(crate) fn api_versions(self) -> impl Iterator<Item = String> {
        self.versions().iter().map(move |version| match self.group() {
            "" => (*version).to_owned(),
            group => format!("{group}/{version}"),
        })
    }
}

/// The kind of this name in this group, supported or not.
pub(crate) fn kind_named(group: &str, kind: &str) -> Option<Kind> {
    Kind::ALL.iter().copied().find(|known| known.as_str() == kind && known.group() == group)
}

/// Looks up a kind.
pub(crate) fn named(api_version: &str, kind: &str) -> Named {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let same = kind_named(group, kind);
    if let Some(found) = same.filter(|found| found.is_supported()) {
        return if found.versions().contains(&version) {
            Named::Supported(found)
        } else {
            Named::OtherVersion(format!(
                "supported: {}",
                one_of(found.api_versions().collect::<Vec<_>>().iter().map(String::as_str))
            ))
        };
    }
    if same.is_some() || is_later(group, kind) {
        return Named::Later;
    }
    if let Some((_, successor)) = REMOVED.iter().find(|(removed, _)| *removed == group) {
        return Named::Unknown(format!("Istio has removed this group: write {successor} instead"));
    }
    misspelt(group, kind)
        .map_or_else(|| Named::Foreign("`.evenkeelignore` excludes whole files".to_owned()), Named::Unknown)
}

/// What to write instead of a kind that is known and not supported.
const SUBSTITUTES: &[(&str, &str, &str)] = &[
    ("extensions.istio.io", "WasmPlugin", "for authorization use an AuthorizationPolicy with `action: CUSTOM`"),
    ("networking.k8s.io", "NetworkPolicy", "use an AuthorizationPolicy (docs/control-plane.md)"),
    ("gateway.networking.k8s.io", "", "use a VirtualService of networking.istio.io"),
    ("apps", "ReplicaSet", "use a Deployment"),
    ("", "ReplicationController", "use a Deployment"),
    ("", "Endpoints", "use an EndpointSlice"),
    ("batch", "", "run it by hand in a workload's place: `evenkeel exec WORKLOAD -- COMMAND`"),
];

/// What to do about a kind that is known and not supported.
pub(crate) fn substitute(api_version: &str, kind: &str) -> &'static str {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let is_it = |(of, named, _): &&(&str, &str, &str)| *of == group && (*named == kind || named.is_empty());
    SUBSTITUTES.iter().find(is_it).map_or("`.evenkeelignore` excludes whole files", |(_, _, instead)| *instead)
}

/// The kind that is probably meant, if group or kind look like a misspelling of a known one. A misspelt security policy
/// must not be ignored silently.
fn misspelt(group: &str, kind: &str) -> Option<String> {
    let same_kind = Kind::ALL.iter().find(|k| k.as_str() == kind);
    if !known().any(|(known, _)| known == group) {
        // Other projects have kinds of the same names in groups of their own (Knative's Service), and groups of similar
        // names.
        let with_kind = known().filter(|(group, known)| !group.is_empty() && *known == kind);
        return closest(group, with_kind.map(|(group, _)| group)).map(|meant| format!("did you mean `{meant}`?"));
    }
    if let Some(other) = same_kind {
        let versions: Vec<String> = other.api_versions().collect();
        return Some(format!("a {kind} has `apiVersion: {}`", versions.first().map_or("", String::as_str)));
    }
    closest(kind, known().map(|(_, name)| name)).map(|name| format!("did you mean `{name}`?"))
}

/// Groups and kinds that are known, supported or not.
fn known() -> impl Iterator<Item = (&'static str, &'static str)> {
    let later = LATER.iter().flat_map(|(group, kinds)| kinds.iter().map(move |kind| (*group, *kind)));
    Kind::ALL.iter().map(|kind| (kind.group(), kind.as_str())).chain(later)
}

/// Kinds of Kubernetes, Istio and the Gateway API that are not supported yet, by API group.
const LATER: &[(&str, &[&str])] = &[
    (
        "",
        &[
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
        ],
    ),
    ("apps", &["ReplicaSet", "ControllerRevision"]),
    ("batch", &["Job", "CronJob"]),
    ("autoscaling", &["HorizontalPodAutoscaler"]),
    ("policy", &["PodDisruptionBudget", "PodSecurityPolicy"]),
    ("networking.k8s.io", &["NetworkPolicy", "IPAddress", "ServiceCIDR"]),
    ("rbac.authorization.k8s.io", &["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"]),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingWebhookConfiguration",
            "ValidatingWebhookConfiguration",
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ],
    ),
    ("storage.k8s.io", &["StorageClass", "CSIDriver", "CSINode", "CSIStorageCapacity", "VolumeAttachment"]),
    ("scheduling.k8s.io", &["PriorityClass"]),
    ("coordination.k8s.io", &["Lease"]),
    ("events.k8s.io", &["Event"]),
    ("node.k8s.io", &["RuntimeClass"]),
    ("certificates.k8s.io", &["CertificateSigningRequest", "ClusterTrustBundle"]),
    ("apiregistration.k8s.io", &["APIService"]),
    ("networking.istio.io", &["EnvoyFilter"]),
    ("extensions.istio.io", &["WasmPlugin", "TrafficExtension"]),
    ("install.istio.io", &["IstioOperator"]),
    ("inference.networking.k8s.io", &["InferencePool"]),
];

/// Groups of older versions of Istio whose kinds protected workloads, and what replaces them. They are mistakes, because
/// nothing enforces them any more.
const REMOVED: &[(&str, &str)] = &[
    ("rbac.istio.io", "an AuthorizationPolicy (security.istio.io/v1)"),
    ("authentication.istio.io", "a PeerAuthentication or a RequestAuthentication (security.istio.io/v1)"),
];

/// Whether some API group has a kind of this name.
pub(crate) fn is_known(kind: &str) -> bool {
    Kind::ALL.iter().any(|known| known.as_str() == kind) || LATER.iter().any(|(_, kinds)| kinds.contains(&kind))
}

/// Whether a kind of a group is known, supported or not.
pub(crate) fn is_known_in(group: &str, kind: &str) -> bool {
    kind_named(group, kind).is_some() || is_later(group, kind)
}

fn is_later(group: &str, kind: &str) -> bool {
    LATER.iter().any(|(known, kinds)| *known == group && kinds.contains(&kind))
}
