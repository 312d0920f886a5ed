//! Pods for workloads that do not run: a directory has Deployments, but only a cluster has their Pods, and without Pods
//! no service has endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use evenkeel_api::kubernetes::PodTemplate;
use evenkeel_api::{Object, Resource};
use evenkeel_model::labels::selects;

/// The file that stand-ins seem to be written in.
pub const FILE: &str = "<stand-ins>";
/// Maximum number of Pods of one workload: more add nothing.
const MAX_REPLICAS: u32 = 4;
/// Maximum number of stand-ins in all: a bound on the work for one question.
const MAX_PODS: usize = 20_000;
/// The first address, in the range that clusters commonly give to Pods.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([10, 244, 0, 1]);
/// The namespace of gateways that Istio installs.
const GATEWAY_NAMESPACE: &str = "istio-system";

/// Returns Pods for the workloads without known Pods, and for the gateways that no Pod serves.
pub fn pods(objects: &[Object]) -> Vec<Object> {
    let mut made = Maker::new(objects);
    for object in objects.iter().filter(|object| object.refused.is_none()) {
        let (template, replicas) = match &object.resource {
            Resource::Deployment(set) => (&set.spec.template, set.replicas()),
            Resource::StatefulSet(set) => (&set.spec.template, set.spec.replicas.unwrap_or(1)),
            Resource::DaemonSet(set) => (&set.spec.template, 1),
            _ => continue,
        };
        if !made.runs(&object.namespace, &template.labels()) {
            (0..replicas.min(MAX_REPLICAS)).for_each(|index| made.replica(object, template, index));
        }
    }
    for object in objects {
        let Resource::Gateway(gateway) = &object.resource else { continue };
        let selector = &gateway.spec.selector;
        if !selector.is_empty() && !made.serves(selector) {
            made.gateway(selector);
        }
    }
    let text: Arc<str> = made.text.into();
    evenkeel_api::load(&[(FILE.into(), text)]).0
}

struct Maker<'o> {
    /// Labels of the Pods there are, by namespace.
    pods: BTreeMap<&'o str, Vec<&'o BTreeMap<String, String>>>,
    /// Labels of the Pods that were made.
    made: Vec<(Arc<str>, BTreeMap<String, String>)>,
    taken: BTreeSet<IpAddr>,
    next: u32,
    text: String,
}

impl<'o> Maker<'o> {
    fn new(objects: &'o [Object]) -> Self {
        let mut maker =
            Self { pods: BTreeMap::new(), made: Vec::new(), taken: BTreeSet::new(), next: 0, text: String::new() };
        for object in objects {
            let Resource::Pod(pod) = &object.resource else { continue };
            maker.pods.entry(&object.namespace).or_default().push(&object.labels);
            maker.taken.extend(pod.status.iter().flat_map(|status| status.addresses()));
        }
        maker
    }

    /// Whether a Pod of a namespace has these labels.
    fn runs(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.pods.get(namespace).is_some_and(|pods| pods.iter().any(|pod| selects(labels, pod)))
    }

    /// Whether some Pod has the labels of a Gateway's selector.
    fn serves(&self, selector: &BTreeMap<String, String>) -> bool {
        self.pods.values().flatten().any(|labels| selects(selector, labels))
            || self.made.iter().any(|(_, labels)| selects(selector, labels))
    }

    fn replica(&mut self, object: &Object, template: &PodTemplate, index: u32) {
        let annotations: BTreeMap<&String, &String> = template
            .metadata
            .iter()
            .flat_map(|metadata| &metadata.annotations)
            .map(|(name, value)| (name, &value.value))
            .collect();
        let ports: Vec<_> = template
            .spec
            .containers
            .iter()
            .flat_map(|container| &container.ports)
            .map(|port| {
                let name = port.name.as_ref().map(ToString::to_string);
                let protocol = port.protocol.map_or("TCP", |protocol| protocol.as_str());
                serde_json::json!({"containerPort": port.container_port.0, "name": name, "protocol": protocol})
            })
            .collect();
        let host_network = template.spec.host_network.as_ref().is_some_and(|on| on.value);
        let spec = serde_json::json!({
            "serviceAccountName": template.spec.service_account(),
            "hostNetwork": host_network,
            "containers": [{"name": "main", "ports": ports}],
        });
        let metadata = serde_json::json!({
            "name": format!("{}-{index}", object.name),
            "namespace": &*object.namespace,
            "labels": template.labels(),
            "annotations": annotations,
            "ownerReferences": [{"kind": object.kind().as_str(), "name": &*object.name}],
        });
        self.made.push((object.namespace.clone(), template.labels()));
        self.write(&metadata, &spec);
    }

    fn gateway(&mut self, selector: &BTreeMap<String, String>) {
        let name = match selector.get("istio").or_else(|| selector.get("app")) {
            Some(name) if name.starts_with("istio") => name.clone(),
            Some(name) => format!("istio-{name}"),
            None => format!("gateway-{}", self.made.len()),
        };
        let mut labels = selector.clone();
        labels.entry("app".to_owned()).or_insert_with(|| name.clone());
        let metadata = serde_json::json!({
            "name": format!("{name}-0"),
            "namespace": GATEWAY_NAMESPACE,
            "labels": labels,
            "ownerReferences": [{"kind": "Deployment", "name": name}],
        });
        let account = format!("{name}-service-account");
        let spec = serde_json::json!({"serviceAccountName": account, "containers": [{"name": "istio-proxy"}]});
        self.made.push((GATEWAY_NAMESPACE.into(), labels));
        self.write(&metadata, &spec);
    }

    fn write(&mut self, metadata: &serde_json::Value, spec: &serde_json::Value) {
        if self.made.len() > MAX_PODS {
            return;
        }
        let address = loop {
            let address = IpAddr::V4(Ipv4Addr::from(FIRST_ADDRESS + self.next));
            self.next += 1;
            if self.taken.insert(address) {
                break address.to_string();
            }
        };
        let status = serde_json::json!({
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        });
        // Writing to a string cannot fail.
        let _ =
            writeln!(self.text, "---\napiVersion: v1\nkind: Pod\nmetadata: {metadata}\nspec: {spec}\nstatus: {status}");
    }
}
