//! What a platform, such as Kubernetes, provides beside files and the state directory.

use std::sync::Arc;

use evenkeel_admin::clusters::RemoteClusters;
use evenkeel_store::Store;
use tokio::sync::watch;

use crate::authentication::TokenAuthenticator;
use crate::mesh_roots::MeshRoots;
use crate::source::LiveSource;

/// The parts of a control plane that its platform provides. The default is none of them.
#[derive(Debug, Default)]
pub struct Platform {
    /// Sources of objects beside the configuration directories.
    pub sources: Vec<Box<dyn LiveSource>>,
    /// Who verifies the tokens of workloads; `None`: the control plane's own key. With it, debug pages need a token, too,
    /// unless they are requested over loopback.
    pub tokens: Option<Arc<dyn TokenAuthenticator>>,
    /// Where the roots of the mesh are published for the platform's workloads, if they get them there.
    pub namespace_roots: Option<watch::Sender<MeshRoots>>,
    /// What is known of remote clusters, if there can be any.
    pub remote_clusters: Option<watch::Receiver<RemoteClusters>>,
    /// Where state is kept; `None`: in the state directory.
    pub store: Option<Store>,
    /// Who gets the roots of the control plane's own certificate, PEM, whenever they change: those who call its webhooks.
    pub roots: Option<watch::Sender<Arc<str>>>,
}
