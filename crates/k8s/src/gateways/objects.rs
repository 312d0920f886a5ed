//! What is deployed for a Gateway, as JSON, from the Gateway alone.
//!
//! The Pod has only what differs among gateways: the admission webhook gives it its proxy when it is created, as the Pods of the
//! chart `gateway`.

use std::collections::BTreeMap;

use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

/// The label with the name of the Gateway, by which its Pods are selected.
pub const GATEWAY_NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The label with the class of the Gateway.
const CLASS_NAME: &str = "gateway.networking.k8s.io/gateway-class-name";
/// Istio's label with the controller.
const MANAGED: &str = "gateway.istio.io/managed";
/// The prefix of labels and annotations that `infrastructure` cannot set.
const RESERVED: &str = "gateway.networking.k8s.io/";
/// Istio's annotation of a Gateway: the type of its Service.
const SERVICE_TYPE: &str = "networking.istio.io/service-type";
/// Istio's annotation of a Gateway: the name of what is deployed.
const NAME_OVERRIDE: &str = "gateway.istio.io/name-override";
/// Istio's annotation of a Gateway: a service account of the user.
const SERVICE_ACCOUNT: &str = "gateway.istio.io/service-account";
/// What `kubectl apply` notes on an object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// The port of the agent that says whether the Pod is ready.
const STATUS_PORT: u16 = 15021;

/// A Gateway, as far as it says what is deployed.
#[derive(Debug, Clone)]
pub(super) struct Blueprint {
    pub(super) gateway: String,
    pub(super) namespace: String,
    /// The name of what is deployed.
    pub(super) name: String,
    pub(super) account: String,
    /// Whether the service account is the user's.
    pub(super) has_own_account: bool,
    owner: Value,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    service_type: String,
    address: Option<String>,
    listeners: Vec<Value>,
    /// The revision of the control plane; empty: the default one.
    revision: String,
}

impl Blueprint {
    /// Of a Gateway of the class that this controller serves.
    pub(super) fn of(gateway: &DynamicObject, controller: &str, revision: &str) -> Option<Self> {
        let (metadata, spec) = (&gateway.metadata, gateway.data.get("spec")?);
        let (name, uid) = (metadata.name.clone()?, metadata.uid.clone()?);
        let class = spec["gatewayClassName"].as_str()?;
        let annotation = |key: &str| metadata.annotations.as_ref()?.get(key).cloned();
        let default = format!("{name}-{class}");
        let account = annotation(SERVICE_ACCOUNT);
        let mut labels = extra(&spec["infrastructure"]["labels"], metadata.labels.as_ref());
        labels.insert(GATEWAY_NAME.to_owned(), name.clone());
        labels.insert(CLASS_NAME.to_owned(), class.to_owned());
        labels.insert(MANAGED.to_owned(), controller.replace('/', "-"));
        let addresses = spec["addresses"].as_array().into_iter().flatten();
        let mut ips = addresses.filter(|address| address["type"].as_str().is_none_or(|kind| kind == "IPAddress"));
        Some(Self {
            namespace: metadata.namespace.clone()?,
            name: annotation(NAME_OVERRIDE).unwrap_or_else(|| default.clone()),
            has_own_account: account.is_some(),
            account: account.unwrap_or(default),
            owner: json!({
                "apiVersion": "gateway.networking.k8s.io/v1",
                "kind": "Gateway",
                "name": name,
                "uid": uid,
                "controller": true,
            }),
            labels,
            annotations: extra(&spec["infrastructure"]["annotations"], metadata.annotations.as_ref()),
            service_type: annotation(SERVICE_TYPE).unwrap_or_else(|| "LoadBalancer".to_owned()),
            address: ips.find_map(|address| address["value"].as_str().map(str::to_owned)),
            listeners: spec["listeners"].as_array().cloned().unwrap_or_default(),
            revision: revision.to_owned(),
            gateway: name,
        })
    }

    /// Adds the listeners of ListenerSets after the Gateway's own.
    pub(super) fn add_listeners(&mut self, listeners: Vec<Value>) {
        self.listeners.extend(listeners);
    }

    fn metadata(&self, name: &str) -> Value {
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels,
            "annotations": self.annotations,
            "ownerReferences": [self.owner],
        })
    }

    /// The service account of its Pods.
    pub(super) fn service_account(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": self.metadata(&self.account)})
    }

    /// The Service, with the ports of the listeners.
    pub(super) fn service(&self) -> Value {
        let mut spec = json!({
            "type": self.service_type,
            "selector": {GATEWAY_NAME: self.gateway},
            "ports": self.ports(),
        });
        if let Some(address) = &self.address {
            spec["loadBalancerIP"] = address.as_str().into();
        }
        json!({"apiVersion": "v1", "kind": "Service", "metadata": self.metadata(&self.name), "spec": spec})
    }

    fn ports(&self) -> Vec<Value> {
        let status = json!({"name": "status-port", "port": STATUS_PORT, "protocol": "TCP", "appProtocol": "tcp"});
        let mut ports = vec![status];
        for listener in &self.listeners {
            let (number, protocol) = (&listener["port"], listener["protocol"].as_str().unwrap_or_default());
            let is_served = matches!(protocol, "HTTP" | "HTTPS" | "TLS" | "TCP" | "UDP");
            let transport = if protocol == "UDP" { "UDP" } else { "TCP" };
            if is_served && !ports.iter().any(|port| port["port"] == *number && port["protocol"] == transport) {
                let name = port_name(listener["name"].as_str().unwrap_or_default(), number, transport, &ports);
                let mut port = json!({"name": name, "port": number, "protocol": transport});
                if transport == "TCP" {
                    port["appProtocol"] = protocol.to_lowercase().into();
                }
                ports.push(port);
            }
        }
        ports
    }

    /// The Deployment. `selector`: the labels that an existing one selects, which cannot be changed.
    pub(super) fn deployment(&self, selector: Option<&Map<String, Value>>) -> Value {
        let own = Map::from_iter([(GATEWAY_NAME.to_owned(), Value::from(self.gateway.as_str()))]);
        let selector = selector.unwrap_or(&own);
        let mut labels: Map<String, Value> =
            self.labels.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        labels.insert("sidecar.istio.io/inject".to_owned(), "true".into());
        labels.insert("service.istio.io/canonical-name".to_owned(), self.name.as_str().into());
        labels.insert("service.istio.io/canonical-revision".to_owned(), "latest".into());
        if !matches!(self.revision.as_str(), "" | "default") {
            labels.insert("istio.io/rev".to_owned(), self.revision.as_str().into());
        }
        labels.extend(selector.clone());
        let mut annotations = json!({
            "prometheus.io/port": "15020",
            "prometheus.io/scrape": "true",
            "prometheus.io/path": "/stats/prometheus",
        });
        self.annotations.iter().for_each(|(name, value)| annotations[name] = value.as_str().into());
        annotations["inject.istio.io/templates"] = "gateway".into();
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": self.metadata(&self.name),
            "spec": {
                "selector": {"matchLabels": selector},
                "strategy": {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": 0}},
                "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": self.pod()},
            },
        })
    }

    fn pod(&self) -> Value {
        json!({
            "serviceAccountName": self.account,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": 1337,
                "runAsGroup": 1337,
                "seccompProfile": {"type": "RuntimeDefault"},
                // Ports below 1024 without a capability.
                "sysctls": [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}],
            },
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "containers": [{
                "name": "istio-proxy",
                // Injected when the Pod is created.
                "image": "auto",
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "runAsNonRoot": true,
                    "capabilities": {"drop": ["ALL"]},
                },
                "ports": [{"name": "http-envoy-prom", "containerPort": 15090, "protocol": "TCP"}],
            }],
        })
    }

    /// The autoscaler that parameters may ask for.
    pub(super) fn autoscaler(&self) -> Value {
        json!({
            "apiVersion": "autoscaling/v2",
            "kind": "HorizontalPodAutoscaler",
            "metadata": self.metadata(&self.name),
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": self.name},
                "maxReplicas": 1,
            },
        })
    }

    /// The disruption budget that parameters may ask for.
    pub(super) fn disruption_budget(&self) -> Value {
        json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": self.metadata(&self.name),
            "spec": {"selector": {"matchLabels": {GATEWAY_NAME: self.gateway}}},
        })
    }
}

/// Whether something is deployed for a Gateway: not if it names the Service of proxies that exist.
pub(super) fn is_deployed(spec: &Value) -> bool {
    let addresses = spec["addresses"].as_array().into_iter().flatten();
    addresses.filter_map(|address| address["type"].as_str()).all(|kind| kind != "Hostname")
}

/// The labels or annotations of `infrastructure`, or else those of the Gateway, as Istio's.
fn extra(written: &Value, own: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    if let Some(written) = written.as_object() {
        let allowed = written.iter().filter(|(name, _)| !name.starts_with(RESERVED));
        return allowed.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect();
    }
    let mut own = own.cloned().unwrap_or_default();
    own.remove(LAST_APPLIED);
    own
}

/// The name of a Service's port: at most 15 small letters, digits and hyphens, and none of another port.
fn port_name(listener: &str, number: &Value, transport: &str, others: &[Value]) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_name = listener.len() <= 15
        && listener.chars().all(is_plain)
        && listener.starts_with(|c: char| c.is_ascii_lowercase())
        && !listener.ends_with('-')
        && listener != "status-port";
    let is_taken = |name: &str| others.iter().any(|port| port["name"] == name);
    let by_number = format!("port-{number}");
    match () {
        () if is_name && !is_taken(listener) => listener.to_owned(),
        () if !is_taken(&by_number) => by_number,
        () => format!("{}-{number}", transport.to_lowercase()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn blueprint(metadata: Value, spec: Value) -> Blueprint {
        let mut gateway = json!({
            "apiVersion": "gateway.networking.k8s.io/v1",
            "kind": "Gateway",
            "metadata": {"name": "edge", "namespace": "shop", "uid": "u"},
            "spec": {"gatewayClassName": "istio", "listeners": []},
        });
        for (part, fields) in [("metadata", metadata), ("spec", spec)] {
            for (name, value) in fields.as_object().cloned().unwrap_or_default() {
                gateway[part][name] = value;
            }
        }
        let gateway: DynamicObject = serde_json::from_value(gateway).expect("an object");
        Blueprint::of(&gateway, "istio.io/gateway-controller", "").expect("a Gateway")
    }

    #[test]
    fn names_labels_and_annotations_are_istios() {
        let check = |metadata: Value, spec: Value, pointer: &str, expected: Value| {
            let deployment = blueprint(metadata, spec).deployment(None);
            assert_eq!(deployment.pointer(pointer).cloned().unwrap_or_default(), expected, "{pointer}: {deployment:#}");
        };
        check(json!({}), json!({}), "/metadata/name", json!("edge-istio"));
        check(json!({"annotations": {NAME_OVERRIDE: "x"}}), json!({}), "/metadata/name", json!("x"));
        let account = "/spec/template/spec/serviceAccountName";
        check(json!({}), json!({}), account, json!("edge-istio"));
        check(json!({"annotations": {SERVICE_ACCOUNT: "mine"}}), json!({}), account, json!("mine"));
        check(json!({}), json!({}), "/spec/selector/matchLabels", json!({GATEWAY_NAME: "edge"}));
        check(json!({}), json!({}), "/metadata/ownerReferences/0/uid", json!("u"));
        let managed = "/metadata/labels/gateway.istio.io~1managed";
        check(json!({}), json!({}), managed, json!("istio.io-gateway-controller"));
        let (label, annotation) = ("/spec/template/metadata/labels/team", "/spec/template/metadata/annotations/note");
        check(json!({"labels": {"team": "a"}}), json!({}), label, json!("a"));
        let infrastructure = json!({"infrastructure": {"labels": {"team": "b"}, "annotations": {"note": "n"}}});
        check(json!({"labels": {"team": "a"}}), infrastructure.clone(), label, json!("b"));
        check(json!({}), infrastructure, annotation, json!("n"));
        let reserved = json!({"infrastructure": {"labels": {GATEWAY_NAME: "other"}}});
        check(
            json!({}),
            reserved,
            "/spec/template/metadata/labels/gateway.networking.k8s.io~1gateway-name",
            json!("edge"),
        );
    }

    #[test]
    fn an_existing_selector_stays_and_its_labels_are_those_of_the_pods() {
        let selector = Map::from_iter([("app".to_owned(), json!("old"))]);
        let deployment = blueprint(json!({}), json!({})).deployment(Some(&selector));
        assert_eq!(deployment["spec"]["selector"]["matchLabels"], json!({"app": "old"}));
        let labels = &deployment["spec"]["template"]["metadata"]["labels"];
        assert_eq!((&labels["app"], &labels[GATEWAY_NAME]), (&json!("old"), &json!("edge")));
    }

    #[test]
    fn the_service_has_the_ports_of_the_listeners() {
        let check = |spec: Value, expected: &str| {
            let service = blueprint(json!({"annotations": {SERVICE_TYPE: "NodePort"}}), spec).service();
            assert_eq!(service["spec"]["type"], "NodePort");
            let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
            let text = |port: &Value| format!("{}:{}:{}", port["name"], port["port"], port["appProtocol"]);
            assert_eq!(ports.iter().map(text).collect::<Vec<_>>().join(" ").replace('"', ""), expected);
        };
        let listener =
            |name: &str, port: u16, protocol: &str| json!({"name": name, "port": port, "protocol": protocol});
        check(json!({}), "status-port:15021:tcp");
        let two = [listener("web", 80, "HTTP"), listener("Web.Secure", 443, "HTTPS"), listener("again", 80, "HTTP")];
        check(json!({"listeners": two}), "status-port:15021:tcp web:80:http port-443:443:https");
        let both = [listener("dns", 53, "UDP"), listener("dns-tcp", 53, "TCP"), listener("more", 53, "UDP")];
        check(json!({"listeners": both}), "status-port:15021:tcp dns:53:null dns-tcp:53:tcp");
        // Those of ListenerSets may have the names of the Gateway's own.
        let mut with_sets = blueprint(json!({}), json!({"listeners": [listener("web", 80, "HTTP")]}));
        with_sets.add_listeners(vec![
            listener("web", 8080, "HTTP"),
            listener("web", 8080, "UDP"),
            listener("x", 80, "HTTP"),
        ]);
        let names: Vec<Value> = with_sets.ports().iter().map(|port| port["name"].clone()).collect();
        assert_eq!(names, ["status-port", "web", "port-8080", "udp-8080"]);
        let service = blueprint(json!({}), json!({"addresses": [{"value": "192.0.2.1"}]})).service();
        assert_eq!(
            (&service["spec"]["loadBalancerIP"], &service["spec"]["type"]),
            (&json!("192.0.2.1"), &json!("LoadBalancer"))
        );
        assert!(is_deployed(&json!({"addresses": [{"value": "192.0.2.1"}]})));
        assert!(!is_deployed(&json!({"addresses": [{"type": "Hostname", "value": "web"}]})));
    }
}
