//! What an object of a remote cluster gets before it is put: a name with the cluster before it, and the labels of cluster and network.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_api::remote::{CLUSTER_LABEL, NETWORK_LABEL, name_in};
use evenkeel_api::{Kind, ObjectKey};
use evenkeel_control::source::feed::ObjectFeed;
use serde_json::{Map, Value};
use tokio::sync::watch;

/// A remote cluster, as its objects need it.
#[derive(Debug)]
pub struct RemotePlace {
    cluster: Arc<str>,
    state: Mutex<State>,
    /// Whether the namespaces have been listed, which say what the network is.
    is_network_known: watch::Sender<bool>,
}

/// An object that is about to be put.
#[derive(Debug)]
pub struct Placed<'p> {
    /// Its key among the objects of all clusters.
    pub key: ObjectKey,
    _state: MutexGuard<'p, State>,
}

#[derive(Debug, Default)]
struct State {
    /// The network of the cluster: a label of its root namespace.
    network: Option<String>,
    /// The objects that have the cluster's network, and none of their own.
    without_own: BTreeSet<ObjectKey>,
}

impl RemotePlace {
    /// The cluster of this name.
    pub fn new(cluster: &str) -> Self {
        Self { cluster: cluster.into(), state: Mutex::default(), is_network_known: watch::Sender::new(false) }
    }

    /// Names and labels an object. While the result is there, the cluster stays in its network.
    pub fn place(&self, json: &mut Value) -> Option<Placed<'_>> {
        let mut state = self.lock();
        let own = json.pointer("/metadata/name")?.as_str()?.to_owned();
        json["metadata"]["name"] = name_in(&self.cluster, &own).into();
        let key = ObjectKey::of_json(json)?;
        if !matches!(key.kind, Kind::Pod | Kind::EndpointSlice) {
            return Some(Placed { key, _state: state });
        }
        for endpoint in json.get_mut("endpoints").and_then(Value::as_array_mut).into_iter().flatten() {
            if let Some(name) = endpoint.pointer_mut("/targetRef/name")
                && let Some(pod) = name.as_str()
            {
                *name = name_in(&self.cluster, pod).into();
            }
        }
        let labels = labels_of(json)?;
        labels.insert(CLUSTER_LABEL.to_owned(), (&*self.cluster).into());
        if labels.contains_key(NETWORK_LABEL) {
            state.without_own.remove(&key);
        } else {
            if let Some(network) = &state.network {
                labels.insert(NETWORK_LABEL.to_owned(), network.as_str().into());
            }
            state.without_own.insert(key.clone());
        }
        Some(Placed { key, _state: state })
    }

    /// Forgets an object.
    pub fn forget(&self, key: &ObjectKey) {
        self.lock().without_own.remove(key);
    }

    /// Takes over the network of the cluster, and changes the objects that have no other.
    pub fn set_network(&self, network: Option<&String>, feed: &ObjectFeed) {
        let mut state = self.lock();
        let network = network.filter(|network| !network.is_empty()).cloned();
        if state.network == network {
            return;
        }
        state.network = network;
        for key in &state.without_own {
            let Some(known) = feed.get(key) else { continue };
            let mut json = known.json.value();
            let Some(labels) = labels_of(&mut json) else { continue };
            match &state.network {
                Some(network) => labels.insert(NETWORK_LABEL.to_owned(), network.as_str().into()),
                None => labels.remove(NETWORK_LABEL),
            };
            feed.put(json, known.created);
        }
    }

    /// From now on objects can be put: it is known in which network they are, or that they are in none.
    pub fn network_is_known(&self) {
        self.is_network_known.send_replace(true);
    }

    /// Waits until objects can be put. Earlier, endpoints of another network would be called directly.
    pub async fn until_network_is_known(&self) {
        // The sender is there as long as this.
        _ = self.is_network_known.subscribe().wait_for(|is_known| *is_known).await;
    }

    /// The key that an object of the cluster has among all.
    pub fn key(&self, own: ObjectKey) -> ObjectKey {
        ObjectKey { name: name_in(&self.cluster, &own.name).into(), ..own }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn labels_of(json: &mut Value) -> Option<&mut Map<String, Value>> {
    let metadata = json.get_mut("metadata")?.as_object_mut()?;
    metadata.entry("labels").or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{Rank, SourceId};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_no_network_has_that_of_its_cluster() {
        let (feed, _source) = ObjectFeed::new(SourceId::new("remote-clusters", Rank(201)));
        let place = RemotePlace::new("west");
        let put = |name: &str, labels: Value| {
            let mut pod = json!({
                "apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main"}]},
                "metadata": {"name": name, "namespace": "shop", "labels": labels},
            });
            let placed = place.place(&mut pod).expect("a key");
            feed.put(pod, 0);
            placed.key.clone()
        };
        let network =
            |key: &ObjectKey| feed.get(key).expect("a Pod").json.value()["metadata"]["labels"][NETWORK_LABEL].clone();
        let early = put("early", json!({}));
        place.set_network(Some(&"n2".to_owned()), &feed);
        let late = put("late", json!({CLUSTER_LABEL: "east"}));
        let own = put("own", json!({NETWORK_LABEL: "n3"}));
        assert_eq!([network(&early), network(&late), network(&own)], ["n2", "n2", "n3"]);
        place.set_network(Some(&"n4".to_owned()), &feed);
        assert_eq!([network(&early), network(&late), network(&own)], ["n4", "n4", "n3"]);
        place.forget(&late);
        place.set_network(None, &feed);
        assert_eq!([network(&early), network(&late), network(&own)], [Value::Null, "n4".into(), "n3".into()]);
        // Nobody can be of another cluster by a label.
        assert_eq!(feed.get(&late).expect("a Pod").json.value()["metadata"]["labels"][CLUSTER_LABEL], "west");
        assert_eq!(&*late.name, "west/late");
    }

    #[test]
    fn endpoints_name_the_pods_of_their_cluster() {
        let mut slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "web-x", "namespace": "shop"},
            "endpoints": [{"addresses": ["10.0.0.1"], "targetRef": {"kind": "Pod", "name": "web-1"}}, {"addresses": ["10.0.0.2"]}],
        });
        RemotePlace::new("west").place(&mut slice).expect("a key");
        assert_eq!(slice["metadata"]["name"], "west/web-x");
        assert_eq!(slice["endpoints"][0]["targetRef"]["name"], "west/web-1");
    }
}
