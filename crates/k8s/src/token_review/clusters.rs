//! Tokens of several clusters: each is verified by the API server of the cluster that it is said to be from, and by no other. An API
//! server that got the tokens of other clusters could pass itself off as their workloads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use evenkeel_api::remote::name_in;
use evenkeel_ca::Workload;
use evenkeel_ca::tokens::ACCOUNT_PREFIX;
use evenkeel_control::authentication::{Presented, Review, TokenAuthenticator, TokenRefusal};
use kube::Client;

use super::{TokenReviews, check};

/// The API servers of remote clusters, by cluster. Clones share them.
#[derive(Clone, Default)]
pub struct RemoteReviews(Arc<Mutex<BTreeMap<String, Arc<TokenReviews>>>>);

impl RemoteReviews {
    /// Has the API server of this client verify the tokens of a cluster.
    pub(crate) fn set(&self, cluster: &str, client: Client) {
        self.lock().insert(cluster.to_owned(), Arc::new(TokenReviews::new(client)));
    }

    /// Refuses the tokens of a cluster.
    pub(crate) fn remove(&self, cluster: &str) {
        self.lock().remove(cluster);
    }

    fn get(&self, cluster: &str) -> Option<Arc<TokenReviews>> {
        self.lock().get(cluster).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<TokenReviews>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RemoteReviews {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

/// Verifies the tokens of the control plane's own cluster, and those of remote ones.
#[derive(Debug)]
pub struct ClusterTokens {
    own: TokenReviews,
    /// The name of the control plane's own cluster.
    name: String,
    remote: RemoteReviews,
}

/// Whose token it is.
enum Issuer {
    /// The control plane's own cluster.
    Own,
    /// A remote cluster.
    Remote(Arc<TokenReviews>),
}

impl ClusterTokens {
    /// Verifies tokens by the API server of `client`, whose cluster has this name, and by those of remote clusters.
    pub fn new(client: Client, name: &str, remote: RemoteReviews) -> Self {
        Self { own: TokenReviews::new(client), name: name.to_owned(), remote }
    }

    fn issuer(&self, cluster: &str) -> Result<Issuer, TokenRefusal> {
        if cluster.is_empty() || cluster == self.name {
            return Ok(Issuer::Own);
        }
        let unknown = || TokenRefusal::Unavailable("no remote cluster of the name in `clusterid` is known".to_owned());
        self.remote.get(cluster).map(Issuer::Remote).ok_or_else(unknown)
    }
}

impl TokenAuthenticator for ClusterTokens {
    fn verdict(&self, presented: Presented<'_>, now: SystemTime) -> Option<Result<Workload, TokenRefusal>> {
        match self.issuer(presented.cluster) {
            Ok(Issuer::Own) => self.own.verdict(presented, now),
            Ok(Issuer::Remote(server)) => server
                .verdict(presented, now)
                .map(|verdict| verdict.map(|workload| of_cluster(workload, presented.cluster))),
            Err(unknown) => Some(Err(refusal(unknown, presented, now))),
        }
    }

    fn review<'a>(&'a self, presented: Presented<'a>, now: SystemTime) -> Review<'a> {
        match self.issuer(presented.cluster) {
            Ok(Issuer::Own) => self.own.review(presented, now),
            Ok(Issuer::Remote(server)) => Box::pin(async move {
                let workload = server.review(presented, now).await?;
                Ok(of_cluster(workload, presented.cluster))
            }),
            Err(unknown) => Box::pin(std::future::ready(Err(refusal(unknown, presented, now)))),
        }
    }
}

/// The refusal of a token whose cluster is not known: what no API server would accept proves nothing, whatever cluster is named with it.
fn refusal(unknown: TokenRefusal, presented: Presented<'_>, now: SystemTime) -> TokenRefusal {
    check(presented.token, now).err().unwrap_or(unknown)
}

/// The workload with the name that its Pod has among those of all clusters.
fn of_cluster(workload: Workload, cluster: &str) -> Workload {
    let is_account = workload.pod.starts_with(ACCOUNT_PREFIX);
    let pod = if is_account { workload.pod } else { name_in(cluster, &workload.pod) };
    Workload { pod, ..workload }
}
