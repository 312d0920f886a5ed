//! What a Pod of the cluster captures, for the agent that loads its rules on a node.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client};

use crate::reason::reason;

/// How long the API server may take for an answer; the container runtime tries again.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The rules of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRules {
    /// The arguments of the container that names them.
    pub arguments: Vec<String>,
    /// Name servers that the Pod has beside those of the cluster.
    pub name_servers: Vec<IpAddr>,
}

/// Why the rules of a Pod are not known.
#[derive(Debug, thiserror::Error)]
pub enum PodRulesError {
    /// The API server has refused, or does not know the Pod.
    #[error("the API server: {0}")]
    Api(String),
    /// There was no answer.
    #[error("the API server has not answered within {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// Reads Pods of a cluster.
pub struct PodReader {
    client: Client,
    /// The init container with the arguments.
    container: &'static str,
}

impl PodReader {
    /// A reader that asks this client's API server. The rules of a Pod are the arguments of its init container of this name.
    pub fn new(client: Client, container: &'static str) -> Self {
        Self { client, container }
    }

    /// Asks for the rules of a Pod; `None`: it has none.
    pub async fn rules(&self, namespace: &str, name: &str) -> Result<Option<PodRules>, PodRulesError> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), namespace);
        match tokio::time::timeout(TIMEOUT, pods.get(name)).await {
            Ok(Ok(pod)) => Ok(rules(pod, self.container)),
            Ok(Err(error)) => Err(PodRulesError::Api(reason(&error))),
            Err(_) => Err(PodRulesError::Timeout),
        }
    }
}

impl std::fmt::Debug for PodReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodReader").field("container", &self.container).finish_non_exhaustive()
    }
}

fn rules(pod: Pod, container: &str) -> Option<PodRules> {
    let spec = pod.spec?;
    let named = spec.init_containers.into_iter().flatten().find(|one| one.name == container)?;
    let servers = spec.dns_config.and_then(|config| config.nameservers).unwrap_or_default();
    Some(PodRules {
        arguments: named.args.unwrap_or_default(),
        name_servers: servers.iter().filter_map(|server| server.parse().ok()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_those_of_the_container() {
        let check = |spec: serde_json::Value, expected: Option<(&[&str], &[&str])>| {
            let pod = serde_json::from_value(json!({"spec": spec})).expect("a Pod");
            let found = rules(pod, "istio-validation");
            let expected = expected.map(|(words, servers)| PodRules {
                arguments: words.iter().map(|word| (*word).to_owned()).collect(),
                name_servers: servers.iter().map(|server| server.parse().expect("an address")).collect(),
            });
            assert_eq!(found, expected);
        };
        let container = |name: &str| json!([{"name": name, "args": ["istio-iptables", "-p", "15001"]}]);
        let words = ["istio-iptables", "-p", "15001"];
        check(json!({"containers": []}), None);
        check(json!({"containers": [], "initContainers": container("istio-init")}), None);
        check(json!({"containers": [], "initContainers": container("istio-validation")}), Some((&words, &[])));
        let dns = json!({"nameservers": ["10.0.0.9", "no address"]});
        let spec = json!({"containers": [], "initContainers": container("istio-validation"), "dnsConfig": dns});
        check(spec, Some((&words, &["10.0.0.9"])));
    }
}
