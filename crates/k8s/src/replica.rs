//! What a cluster provides to a replica of the control plane: its objects, the verdicts about tokens, the statuses that the
//! leader writes, and the place of its state.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::annotations::parse_bool;
use evenkeel_control::source::feed::ObjectSource;
use evenkeel_control::{MeshRoots, Platform};
use evenkeel_store::Store;
use kube::{Client, Config};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::gateways::{DeploymentOptions, GatewayDeployments};
use crate::lease::{Candidate, LeaseTimes};
use crate::ownership::Ownership;
use crate::root_certificates::{NAME, RootCertificates};
use crate::status::{StatusQueue, StatusWriter};
use crate::store_backend::KubernetesStore;
use crate::token_review::TokenReviews;
use crate::webhooks::WebhookConfigurations;

/// Name of the Lease, and of the field manager, of statuses; a revision other than the default one adds its name.
const STATUS: &str = "evenkeel-status";
/// Istio's variable that switches the deployment of Gateways off.
const DEPLOYS_GATEWAYS: &str = "PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER";
/// How long the leader may take to give its Lease back at the end.
const RELEASE: Duration = Duration::from_secs(3);

/// Which replica this is.
#[derive(Debug, Clone)]
pub struct ReplicaOptions {
    /// Its namespace (`POD_NAMESPACE`).
    pub namespace: String,
    /// Its revision (`REVISION`); empty or `default`: the default one.
    pub revision: String,
    /// Its name (`POD_NAME`): another one for each replica.
    pub name: String,
    /// The namespace of the mesh's settings.
    pub root: String,
    /// Whether Gateways are deployed (`PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER`).
    pub deploys_gateways: bool,
}

impl ReplicaOptions {
    /// Reads istiod's variables through `lookup`. `root`: the namespace without `POD_NAMESPACE`.
    pub fn from_env(lookup: impl Fn(&str) -> Option<String>, root: &str) -> Self {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let unnamed = || format!("{}_{}", set("HOSTNAME").unwrap_or_default(), std::process::id());
        Self {
            namespace: set("POD_NAMESPACE").unwrap_or_else(|| root.to_owned()),
            revision: set("REVISION").unwrap_or_default(),
            name: set("POD_NAME").unwrap_or_else(unnamed),
            root: root.to_owned(),
            deploys_gateways: set(DEPLOYS_GATEWAYS).is_none_or(|value| parse_bool(&value).unwrap_or(true)),
        }
    }

    /// The revision's name, as the label `istio.io/rev` has it.
    fn revision(&self) -> &str {
        if self.revision.is_empty() { "default" } else { &self.revision }
    }

    /// The name of the Lease and field manager of this revision.
    fn status_name(&self) -> String {
        match self.revision.as_str() {
            "" | "default" => STATUS.to_owned(),
            revision => format!("{STATUS}-{revision}"),
        }
    }
}

/// The tasks of a replica; they end with this value.
#[derive(Debug)]
pub struct Replica {
    stop: watch::Sender<bool>,
    candidates: [JoinHandle<()>; 2],
    writers: Vec<JoinHandle<()>>,
}

impl Replica {
    /// Starts the tasks, and returns what the control plane gets. State stays in its directory.
    pub fn start(client: Client, source: ObjectSource, options: &ReplicaOptions) -> (Self, Platform) {
        let (queue, name) = (StatusQueue::default(), options.status_name());
        let candidate = Candidate::new(client.clone(), &options.namespace, &name, &options.name, LeaseTimes::default());
        let ownership = Ownership::new(client.clone(), options.revision());
        let writer = StatusWriter::new(queue.clone(), candidate.leadership(), &name, ownership);
        let (roots, published) = watch::channel::<Arc<str>>("".into());
        let webhooks =
            WebhookConfigurations::new(client.clone(), options.revision(), candidate.leadership(), published);
        let for_roots = Candidate::new(client.clone(), &options.namespace, NAME, &options.name, LeaseTimes::default());
        let (namespace_roots, follow) = watch::channel(MeshRoots::default());
        let certificates = RootCertificates::new(client.clone(), follow, for_roots.leadership());
        let (stop, stopped) = watch::channel(false);
        let run = |candidate: Candidate| {
            let mut stopped = stopped.clone();
            tokio::spawn(candidate.run(async move { drop(stopped.wait_for(|stopped| *stopped).await) }))
        };
        let deployments = DeploymentOptions { root: options.root.clone(), revision: options.revision().to_owned() };
        let gateways = GatewayDeployments::new(client.clone(), candidate.leadership(), deployments, queue.clone());
        let mut writers =
            vec![tokio::spawn(writer.run()), tokio::spawn(webhooks.run()), tokio::spawn(certificates.run())];
        if options.deploys_gateways {
            writers.push(tokio::spawn(gateways.run()));
        }
        let replica = Self { stop, candidates: [run(candidate), run(for_roots)], writers };
        let platform = Platform {
            sources: vec![Box::new(source.with_statuses(Box::new(queue)))],
            tokens: Some(Arc::new(TokenReviews::new(client))),
            namespace_roots: Some(namespace_roots),
            remote_clusters: None,
            store: None,
            roots: Some(roots),
        };
        (replica, platform)
    }

    /// Ends the tasks. Another replica need not wait for the Lease of this one.
    pub async fn end(self) {
        self.writers.iter().for_each(JoinHandle::abort);
        self.stop.send_replace(true);
        // Otherwise they end by themselves.
        let _ = tokio::time::timeout(RELEASE, futures_util::future::join_all(self.candidates)).await;
    }
}

/// Opens the store of state in the replica's namespace, with logs in the directory `local`. It waits for the API server.
pub fn store(config: Config, options: &ReplicaOptions, local: &Path) -> io::Result<Store> {
    Ok(Store::new(KubernetesStore::new(config, &options.namespace, local)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_is_named_by_istiods_variables() {
        let check = |variables: &[(&str, &str)], expected: [&str; 2]| {
            let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
            let options = ReplicaOptions::from_env(lookup, "istio-system");
            assert_eq!([options.namespace.as_str(), options.status_name().as_str()], expected, "{variables:?}");
        };
        check(&[], ["istio-system", "evenkeel-status"]);
        check(&[("REVISION", "default"), ("POD_NAMESPACE", "")], ["istio-system", "evenkeel-status"]);
        check(&[("REVISION", "canary"), ("POD_NAMESPACE", "mesh")], ["mesh", "evenkeel-status-canary"]);
        let named = ReplicaOptions::from_env(|name| (name == "POD_NAME").then(|| "istiod-7".to_owned()), "a").name;
        assert_eq!(named, "istiod-7");
        let deploys = |value: &str| {
            let lookup = |name: &str| (name == DEPLOYS_GATEWAYS).then(|| value.to_owned());
            ReplicaOptions::from_env(lookup, "a").deploys_gateways
        };
        assert_eq!(["", "true", "false"].map(deploys), [true, true, false]);
    }
}
