//! What is watched: kinds, their versions, and which objects of them.

use evenkeel_api::Kind;
use evenkeel_api::istio::SettingsLayer;

use crate::revision::settings_name;

/// Kinds that only `evenkeel up` reads: in a cluster, Pods say what their workloads run.
const UNWATCHED: &[Kind] = &[Kind::Deployment, Kind::StatefulSet, Kind::DaemonSet];

/// The kinds that are not supported, and of which an object closes what it would have judged.
const CLOSING: &[(&str, &str, &[&str])] = &[
    ("networking.istio.io", "EnvoyFilter", &["v1alpha3"]),
    ("extensions.istio.io", "WasmPlugin", &["v1alpha1"]),
    ("extensions.istio.io", "TrafficExtension", &["v1alpha1"]),
];

/// Secrets that are no certificates, keys or roots, and may be many and large.
const OTHER_SECRETS: &str = "type!=kubernetes.io/service-account-token,type!=helm.sh/release.v1,type!=kubernetes.io/dockerconfigjson,\
                             type!=kubernetes.io/dockercfg,type!=bootstrap.kubernetes.io/token";

/// Maximum number of watches of Secrets.
pub const MAX_SECRET_WATCHES: usize = 256;

/// What becomes of the objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// They are objects of the configuration.
    Object,
    /// Their labels say where Pods are.
    Locality,
    /// Those with certificates are objects of the configuration, without what else is in them.
    Roots,
    /// They are settings of the mesh, in this layer.
    Settings(SettingsLayer),
    /// The labels of the root namespace say in which network a remote cluster is.
    Network,
    /// Their labels may declare tags of revisions.
    Tag,
}

/// Objects of one kind that are watched together.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Selection {
    /// The API group; empty for Kubernetes' core.
    pub group: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The namespace; `None`: all.
    pub namespace: Option<String>,
    /// A field selector.
    pub fields: Option<String>,
}

/// The field selector of one object.
const BY_NAME: &str = "metadata.name=";

impl Selection {
    /// Whether it is not one object by its name.
    pub fn is_wider_than_a_name(&self) -> bool {
        !self.fields.as_ref().is_some_and(|fields| fields.starts_with(BY_NAME))
    }
}

/// A row of the table of what is watched.
#[derive(Debug, Clone)]
pub struct Watched {
    /// Which objects.
    pub selection: Selection,
    /// The versions that can be read, the preferred one first.
    pub versions: &'static [&'static str],
    /// What becomes of them.
    pub purpose: Use,
    /// Whether their metadata are enough.
    pub metadata_only: bool,
    /// Whether the mesh works without them, where RBAC forbids them.
    pub optional: bool,
}

impl Watched {
    fn all(group: &'static str, kind: &'static str, versions: &'static [&'static str]) -> Self {
        let selection = Selection { group, kind, namespace: None, fields: None };
        Self { selection, versions, purpose: Use::Object, metadata_only: false, optional: false }
    }

    fn of(kind: Kind) -> Self {
        let all = Self::all(kind.group(), kind.as_str(), kind.versions());
        let metadata_only = matches!(kind, Kind::Namespace | Kind::ServiceAccount);
        let optional = matches!(kind, Kind::Secret | Kind::ServiceAccount | Kind::Ingress | Kind::IngressClass);
        let fields = (kind == Kind::Secret).then(|| OTHER_SECRETS.to_owned());
        Self { metadata_only, optional, selection: Selection { fields, ..all.selection }, ..all }
    }

    /// The Secrets of a namespace, or the one of this name.
    pub fn secrets(namespace: &str, name: Option<&str>) -> Self {
        let all = Self::of(Kind::Secret);
        let fields = name.map_or_else(|| OTHER_SECRETS.to_owned(), |name| format!("{BY_NAME}{name}"));
        let selection = Selection { namespace: Some(namespace.to_owned()), fields: Some(fields), ..all.selection };
        Self { selection, ..all }
    }

    /// The ConfigMap of this name, with settings of the mesh.
    fn settings(namespace: &str, name: &str, layer: SettingsLayer) -> Self {
        let all = Self::of(Kind::ConfigMap);
        let fields = Some(format!("{BY_NAME}{name}"));
        let selection = Selection { namespace: Some(namespace.to_owned()), fields, ..all.selection };
        Self { selection, purpose: Use::Settings(layer), ..all }
    }
}

/// What a control plane reads of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scope {
    /// The namespace of the mesh's settings.
    pub root: String,
    /// The revision; empty: objects of all revisions are read.
    pub revision: String,
    /// The ConfigMap with the settings of all revisions (`SHARED_MESH_CONFIG`), if there is one.
    pub shared_settings: Option<String>,
}

impl Scope {
    /// Everything that is there, with the settings of this namespace.
    pub fn all(root: &str) -> Self {
        Self { root: root.to_owned(), revision: String::new(), shared_settings: None }
    }
}

/// Returns what a control plane watches in a remote cluster: where workloads are. What they are to do is in its own cluster.
pub fn watched_in_remote() -> Vec<Watched> {
    let node = Watched::all("", "Node", &["v1"]);
    let node = Watched { purpose: Use::Locality, metadata_only: true, optional: true, ..node };
    // Without its network, endpoints that only a gateway reaches would be called directly.
    let namespace = Watched { purpose: Use::Network, ..Watched::of(Kind::Namespace) };
    let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Pod].map(Watched::of);
    kinds.into_iter().chain([node, namespace]).collect()
}

/// Returns what a control plane watches.
pub fn watched(scope: &Scope) -> Vec<Watched> {
    let is_watched = |kind: &&Kind| kind.is_supported() && !UNWATCHED.contains(kind) && **kind != Kind::ConfigMap;
    let kinds = Kind::ALL.iter().filter(is_watched).map(|kind| Watched::of(*kind));
    // One that becomes supported is watched as such.
    let is_supported = |group: &str, kind: &str| Kind::ALL.iter().any(|it| it.group() == group && it.as_str() == kind);
    let closing = CLOSING.iter().filter(|(group, kind, _)| !is_supported(group, kind));
    let closing = closing.map(|(group, kind, versions)| Watched::all(group, kind, versions));
    let node = Watched::all("", "Node", &["v1"]);
    let node = Watched { purpose: Use::Locality, metadata_only: true, optional: true, ..node };
    // Without them what refers to them is closed.
    let roots = Watched { purpose: Use::Roots, optional: true, ..Watched::of(Kind::ConfigMap) };
    let settings = |name: &str, layer| Watched::settings(&scope.root, name, layer);
    let own = settings(&settings_name(&scope.revision), SettingsLayer::Revision);
    let shared = scope.shared_settings.as_ref().map(|name| settings(name, SettingsLayer::Shared));
    let tags = Watched::all("admissionregistration.k8s.io", "MutatingWebhookConfiguration", &["v1"]);
    let tags = Watched { purpose: Use::Tag, metadata_only: true, optional: true, ..tags };
    let tags = (!scope.revision.is_empty()).then_some(tags);
    kinds.chain(closing).chain([own, roots, node]).chain(shared).chain(tags).collect()
}

/// `Service`, `ConfigMap istio-system (metadata.name=istio)`
impl std::fmt::Display for Selection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if let Some(namespace) = &self.namespace {
            write!(f, " {namespace}")?;
        }
        match &self.fields {
            Some(fields) => write!(f, " ({fields})"),
            None => Ok(()),
        }
    }
}
