//! Where Pods are: the labels of their Nodes.
//!
//! Istio reads region, zone and subzone of a Pod from its Node. Here a Pod gets these labels, unless it has its own. A Node that
//! becomes known, or moves, changes its Pods.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_api::ObjectKey;
use evenkeel_control::source::feed::ObjectFeed;
use serde_json::{Map, Value};

/// The labels of Nodes that say where they are.
const LABELS: [&str; 3] = ["topology.kubernetes.io/region", "topology.kubernetes.io/zone", "topology.istio.io/subzone"];

/// The labels of one Node that say where it is.
type Locality = BTreeMap<&'static str, String>;

/// The Nodes, and which Pods they run.
#[derive(Debug, Default)]
pub struct Localities {
    nodes: BTreeMap<String, Locality>,
    pods: BTreeMap<String, BTreeSet<ObjectKey>>,
}

impl Localities {
    /// Adds where it runs to a Pod that is about to be put.
    pub fn place(&mut self, key: &ObjectKey, pod: &mut Value) {
        let Some(node) = pod.pointer("/spec/nodeName").and_then(Value::as_str).map(str::to_owned) else { return };
        if let Some(locality) = self.nodes.get(&node) {
            relabel(pod, &Locality::new(), locality);
        }
        self.pods.entry(node).or_default().insert(key.clone());
    }

    /// Forgets a Pod.
    pub fn forget(&mut self, key: &ObjectKey) {
        self.pods.retain(|_, pods| {
            pods.remove(key);
            !pods.is_empty()
        });
    }

    /// Notes the labels of a Node, and changes its Pods where they differ from the last ones.
    pub fn node(&mut self, name: &str, labels: &BTreeMap<String, String>, feed: &ObjectFeed) {
        let label = |name: &&'static str| labels.get(*name).map(|value| (*name, value.clone()));
        self.moved(name, LABELS.iter().filter_map(label).collect(), feed);
    }

    /// Forgets the Nodes that are not among these.
    pub fn retain_nodes(&mut self, listed: &BTreeSet<String>) {
        // Their Pods end with them, or stay where they were.
        self.nodes.retain(|name, _| listed.contains(name));
    }

    fn moved(&mut self, name: &str, locality: Locality, feed: &ObjectFeed) {
        let before = self.nodes.insert(name.to_owned(), locality.clone()).unwrap_or_default();
        if before == locality {
            return;
        }
        for key in self.pods.get(name).into_iter().flatten() {
            let Some(known) = feed.get(key) else { continue };
            let mut pod = known.json.value();
            relabel(&mut pod, &before, &locality);
            feed.put(pod, known.created);
        }
    }
}

/// Replaces the labels that a Pod got from its Node. Its own ones stay.
fn relabel(pod: &mut Value, before: &Locality, after: &Locality) {
    let Some(Value::Object(metadata)) = pod.get_mut("metadata") else { return };
    let labels = metadata.entry("labels").or_insert_with(|| Value::Object(Map::new()));
    let Value::Object(labels) = labels else { return };
    labels.retain(|name, value| before.get(name.as_str()).is_none_or(|old| value.as_str() != Some(old)));
    for (name, value) in after {
        labels.entry(*name).or_insert_with(|| value.as_str().into());
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{Rank, SourceId};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_where_its_node_is() {
        let (feed, _source) = ObjectFeed::new(SourceId::new("kubernetes", Rank(200)));
        let mut localities = Localities::default();
        let put = |localities: &mut Localities, name: &str, own: &[(&str, &str)]| {
            let labels: BTreeMap<_, _> = own.iter().copied().collect();
            let mut pod = json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": labels},
                "spec": {"nodeName": "n", "containers": [{"name": "main"}]},
            });
            let key = ObjectKey::of_json(&pod).expect("a key");
            localities.place(&key, &mut pod);
            feed.put(pod, 0);
            key
        };
        let labels = |zone: &str| {
            let all = [
                ("topology.kubernetes.io/region", "r"),
                ("topology.kubernetes.io/zone", zone),
                ("kubernetes.io/os", "linux"),
            ];
            all.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
        };
        let zone = |key: &ObjectKey| {
            let pod = feed.get(key).expect("a Pod").json.value();
            (
                pod["metadata"]["labels"]["topology.kubernetes.io/zone"].clone(),
                pod["metadata"]["labels"]["kubernetes.io/os"].clone(),
            )
        };
        let early = put(&mut localities, "early", &[]);
        assert_eq!(zone(&early), (Value::Null, Value::Null));
        localities.node("n", &labels("a"), &feed);
        let late = put(&mut localities, "late", &[]);
        let own = put(&mut localities, "own", &[("topology.kubernetes.io/zone", "z")]);
        assert_eq!([zone(&early).0, zone(&late).0, zone(&own).0], ["a", "a", "z"]);
        localities.node("n", &labels("b"), &feed);
        localities.forget(&late);
        localities.node("n", &labels("c"), &feed);
        assert_eq!([zone(&early).0, zone(&late).0, zone(&own).0], ["c", "b", "z"]);
        assert_eq!(zone(&early).1, Value::Null);
    }
}
