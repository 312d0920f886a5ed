//! From an object of an API server to what the control plane keeps of it.
//!
//! A cluster changes its objects all the time: counters, times, who wrote which field. What no proxy can see is left out here,
//! so that a change of it is no change, and so that thousands of Pods take little memory.

use evenkeel_api::Kind;
use evenkeel_api::decode::{Field, Schema, Status};
use evenkeel_model::labels::may_concern_mesh;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Map, Value, json};

/// The label by which injection marks Pods with a sidecar.
const TLS_MODE: &str = "security.istio.io/tlsMode";
/// The label of an EndpointSlice that names its Service, and others about it.
const OF_SERVICE: &str = "kubernetes.io/service";
/// What an object was before `kubectl apply` changed it last: a copy of it.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// What an API server says about an object.
#[derive(Debug, Clone)]
pub struct Listed {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// The rest, besides version and kind.
    pub data: Value,
}

/// Returns the object as the control plane keeps it, and the time of its creation in seconds since 1970.
pub fn convert(api_version: &str, kind: &str, listed: Listed) -> (Value, i64) {
    let Listed { metadata, data } = listed;
    let created = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let known = Kind::ALL.iter().find(|known| known.group() == group && known.as_str() == kind).copied();
    let mut object = match data {
        Value::Object(fields) => fields,
        _ => Map::new(),
    };
    object.remove("metadata");
    if let Some(known) = known {
        reduce(known, &mut object);
    } else {
        object.remove("status");
    }
    object.insert("apiVersion".to_owned(), api_version.into());
    object.insert("kind".to_owned(), kind.into());
    object.insert("metadata".to_owned(), kept_metadata(metadata, known));
    (Value::Object(object), created)
}

fn kept_metadata(metadata: ObjectMeta, kind: Option<Kind>) -> Value {
    let mut reduced = Map::new();
    reduced.extend(metadata.name.map(|name| ("name".to_owned(), name.into())));
    reduced.extend(metadata.namespace.map(|namespace| ("namespace".to_owned(), namespace.into())));
    let mut labels = metadata.labels.unwrap_or_default();
    if kind == Some(Kind::Pod) {
        // Of files a namespace's labels tell which Pods will get a sidecar; these Pods run, and injection has marked those with one.
        labels.entry(TLS_MODE.to_owned()).or_insert_with(|| "disabled".to_owned());
    }
    // GitOps tools change those of others all day, and the controller of EndpointSlices copies them.
    if let Some(Kind::Service | Kind::EndpointSlice) = kind {
        labels.retain(|name, _| may_concern_mesh(name) || name.starts_with(OF_SERVICE));
    }
    if !labels.is_empty() {
        reduced.insert("labels".to_owned(), json!(labels));
    }
    let mut annotations = metadata.annotations.unwrap_or_default();
    annotations.remove(LAST_APPLIED);
    if kind == Some(Kind::Service) {
        annotations.retain(|name, _| may_concern_mesh(name));
    }
    // The controller of EndpointSlices notes there when it last looked.
    if !annotations.is_empty() && kind != Some(Kind::EndpointSlice) {
        reduced.insert("annotations".to_owned(), json!(annotations));
    }
    if kind == Some(Kind::Pod) {
        let owners = metadata.owner_references.unwrap_or_default();
        let owners: Vec<Value> = owners.iter().map(|owner| json!({"kind": owner.kind, "name": owner.name})).collect();
        reduced.extend((!owners.is_empty()).then(|| ("ownerReferences".to_owned(), owners.into())));
    }
    reduced.extend(metadata.deletion_timestamp.map(|time| ("deletionTimestamp".to_owned(), time.0.to_string().into())));
    // Only objects that get a status need it.
    let has_status = kind.is_some_and(|kind| kind.group().contains('.') && !kind.group().ends_with("k8s.io"))
        || kind.is_some_and(|kind| kind.group() == "gateway.networking.k8s.io");
    reduced.extend(metadata.generation.filter(|_| has_status).map(|number| ("generation".to_owned(), number.into())));
    Value::Object(reduced)
}

/// Leaves out what has no effect.
fn reduce(kind: Kind, object: &mut Map<String, Value>) {
    match kind {
        Kind::Pod => reduce_pod(object),
        Kind::Secret => _ = object.remove("type"),
        Kind::Namespace | Kind::ServiceAccount => object.clear(),
        Kind::EndpointSlice => {}
        Kind::ServiceEntry => keep_addresses(object),
        Kind::Service => keep_balancer(object),
        _ => _ = object.remove("status"),
    }
    // The API server has validated Kubernetes' own kinds. What it knows and this version does not is of a newer Kubernetes and
    // must not refuse the object. Kinds of users keep what is known and has no effect, for the findings.
    let keeps = match kind {
        Kind::Pod | Kind::Secret | Kind::ConfigMap | Kind::EndpointSlice => Keeps::Working,
        Kind::Service | Kind::Ingress | Kind::IngressClass => Keeps::Known,
        _ => return,
    };
    if let Schema::Object(fields) = kind.schema() {
        object.retain(|name, value| keep_field(fields, name, value, keeps));
    }
}

/// Which fields stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// Those with an effect.
    Working,
    /// Those that are known.
    Known,
}

fn keep_field(fields: &'static [Field], name: &str, value: &mut Value, keeps: Keeps) -> bool {
    let Some(field) = fields.iter().find(|field| field.name == name) else { return false };
    if field.status != Status::Works {
        return keeps == Keeps::Known;
    }
    if let Some(schema) = field.schema {
        keep_within(&schema(), value, keeps);
    }
    true
}

fn keep_within(schema: &Schema, value: &mut Value, keeps: Keeps) {
    match (schema, value) {
        (Schema::Object(fields), Value::Object(object)) => {
            object.retain(|name, value| keep_field(fields, name, value, keeps));
        }
        (Schema::List(item), Value::Array(items)) => items.iter_mut().for_each(|one| keep_within(item, one, keeps)),
        (Schema::Map(item), Value::Object(entries)) => {
            entries.values_mut().for_each(|one| keep_within(item, one, keeps));
        }
        _ => {}
    }
}

/// Of the status of a ServiceEntry only the addresses that its hosts have been allotted have an effect.
fn keep_addresses(entry: &mut Map<String, Value>) {
    let addresses = entry.remove("status").and_then(|mut status| status.get_mut("addresses").map(Value::take));
    if let Some(addresses @ Value::Array(_)) = addresses {
        entry.insert("status".to_owned(), json!({"addresses": addresses}));
    }
}

/// Of the status of a Service only the addresses of its load balancer have an effect, in the statuses of Gateways.
fn keep_balancer(service: &mut Map<String, Value>) {
    let ingress =
        service.remove("status").and_then(|mut status| status.pointer_mut("/loadBalancer/ingress").map(Value::take));
    if let Some(ingress @ Value::Array(_)) = ingress {
        service.insert("status".to_owned(), json!({"loadBalancer": {"ingress": ingress}}));
    }
}

/// The parts of a Pod that only the programs in it see: variables, volumes, limits.
fn reduce_pod(pod: &mut Map<String, Value>) {
    if let Some(Value::Object(spec)) = pod.get_mut("spec") {
        spec.remove("volumes");
        if let Some(Value::Array(containers)) = spec.get_mut("containers") {
            for container in containers.iter_mut().filter_map(Value::as_object_mut) {
                for field in ["env", "envFrom", "resources", "volumeMounts", "lifecycle"] {
                    container.remove(field);
                }
            }
        }
    }
    let Some(Value::Object(status)) = pod.get_mut("status") else { return };
    let Some(Value::Array(conditions)) = status.get_mut("conditions") else { return };
    conditions.retain(|condition| condition["type"] == "Ready");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(json: &Value) -> Listed {
        let metadata = serde_json::from_value(json["metadata"].clone()).expect("metadata");
        let mut data = json.clone();
        data.as_object_mut()
            .expect("an object")
            .retain(|name, _| !["apiVersion", "kind", "metadata"].contains(&&**name));
        Listed { metadata, data }
    }

    #[test]
    fn keeps_what_a_proxy_can_see() {
        let check = |version: &str, kind: &str, object: Value, expected: Value| {
            let (reduced, created) = convert(version, kind, listed(&object));
            let mut expected = expected;
            (expected["apiVersion"], expected["kind"]) = (version.into(), kind.into());
            assert_eq!(reduced, expected);
            assert_eq!(created, 1_700_000_000);
        };
        let meta = |generation: bool| {
            let mut all = json!({
                "name": "a", "namespace": "shop", "uid": "1", "resourceVersion": "7", "generateName": "a-",
                "creationTimestamp": "2023-11-14T22:13:20Z", "labels": {"app": "a"},
                "annotations": {LAST_APPLIED: "{}", "note": "x"},
                "managedFields": [{"manager": "kubectl", "operation": "Apply"}],
            });
            if generation {
                all["generation"] = 3.into();
            }
            all
        };
        let reduced = json!({"name": "a", "namespace": "shop", "labels": {"app": "a"}, "annotations": {"note": "x"}});
        let mut owned = meta(true);
        owned["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a-1", "uid": "2"}]);
        let mut kept_owned = reduced.clone();
        kept_owned["labels"][TLS_MODE] = "disabled".into();
        kept_owned["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "a-1"}]);
        check(
            "v1",
            "Pod",
            json!({
                "metadata": owned,
                "spec": {
                    "serviceAccountName": "a", "nodeName": "n", "tolerations": [{}], "ofANewerKubernetes": 1, "volumes": [{"name": "v"}],
                    "containers": [{"name": "main", "image": "x", "env": [{"name": "PASSWORD", "value": "x"}],
                        "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP"}]}],
                },
                "status": {
                    "phase": "Running", "podIP": "10.0.0.1", "hostIP": "10.1.0.1", "containerStatuses": [{"restartCount": 7}],
                    "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "x"}, {"type": "Initialized", "status": "True"}],
                },
            }),
            json!({
                "metadata": kept_owned,
                "spec": {"serviceAccountName": "a", "nodeName": "n",
                    "containers": [{"name": "main", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]},
                "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]},
            }),
        );
        check(
            "v1",
            "Service",
            json!({
                "metadata": meta(false),
                "spec": {"ports": [{"port": 80, "ofANewerKubernetes": 1}], "externalIPs": ["10.0.0.1"], "ofANewerKubernetes": 1},
                "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
            }),
            json!({
                "metadata": {"name": "a", "namespace": "shop"},
                "spec": {"ports": [{"port": 80}], "externalIPs": ["10.0.0.1"]},
                "status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.1"}]}},
            }),
        );
        let mut of_mesh = meta(false);
        of_mesh["labels"] = json!({"app": "a", "istio.io/persistent-session": "x", "kubernetes.io/service-name": "a"});
        of_mesh["annotations"] = json!({"note": "x", "networking.istio.io/exportTo": "."});
        let mut kept_of_mesh = reduced.clone();
        kept_of_mesh["labels"] = json!({"istio.io/persistent-session": "x", "kubernetes.io/service-name": "a"});
        kept_of_mesh["annotations"] = json!({"networking.istio.io/exportTo": "."});
        check("v1", "Service", json!({"metadata": of_mesh}), json!({"metadata": kept_of_mesh}));
        kept_of_mesh.as_object_mut().expect("metadata").remove("annotations");
        let slice = json!({"metadata": of_mesh, "addressType": "IPv4", "endpoints": []});
        let kept_slice = json!({"metadata": kept_of_mesh, "addressType": "IPv4", "endpoints": []});
        check("discovery.k8s.io/v1", "EndpointSlice", slice, kept_slice);
        let mut kept_generation = reduced.clone();
        kept_generation["generation"] = 3.into();
        check(
            "networking.istio.io/v1",
            "VirtualService",
            json!({"metadata": meta(true), "spec": {"hosts": ["a"], "ofANewerIstio": 1}, "status": {"conditions": []}}),
            json!({"metadata": kept_generation.clone(), "spec": {"hosts": ["a"], "ofANewerIstio": 1}}),
        );
        let status = json!({"conditions": [{"type": "x"}], "addresses": [{"value": "240.240.0.1", "host": "a.com"}]});
        check(
            "networking.istio.io/v1",
            "ServiceEntry",
            json!({"metadata": meta(true), "spec": {"hosts": ["a.com"]}, "status": status}),
            json!({"metadata": kept_generation, "spec": {"hosts": ["a.com"]}, "status": {"addresses": status["addresses"]}}),
        );
        check("v1", "Namespace", json!({"metadata": meta(false)}), json!({"metadata": reduced}));
    }
}
