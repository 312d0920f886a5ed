//! The same objects by files and by an API server give the same resources, byte for byte.

use std::path::PathBuf;

use evenkeel_base::yaml;
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use evenkeel_testkit::workspace;
use evenkeel_translate::{ClientKind, ProxyKind, ProxyView, resources};
use evenkeel_xds::ResourceType;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::fixture::admin;
use crate::mesh::Mesh;

/// A kind, and the version that is asked for.
#[derive(Clone, Copy)]
struct Kind {
    group: &'static str,
    version: &'static str,
    name: &'static str,
}

/// The kinds that a cluster's control plane reads.
const KINDS: [Kind; 18] = [
    Kind { group: "", version: "v1", name: "Namespace" },
    Kind { group: "", version: "v1", name: "ServiceAccount" },
    Kind { group: "", version: "v1", name: "Secret" },
    Kind { group: "", version: "v1", name: "Pod" },
    Kind { group: "", version: "v1", name: "Service" },
    Kind { group: "discovery.k8s.io", version: "v1", name: "EndpointSlice" },
    Kind { group: "networking.istio.io", version: "v1", name: "Gateway" },
    Kind { group: "networking.istio.io", version: "v1", name: "VirtualService" },
    Kind { group: "networking.istio.io", version: "v1", name: "DestinationRule" },
    Kind { group: "networking.istio.io", version: "v1", name: "ServiceEntry" },
    Kind { group: "networking.istio.io", version: "v1", name: "WorkloadEntry" },
    Kind { group: "networking.istio.io", version: "v1", name: "WorkloadGroup" },
    Kind { group: "networking.istio.io", version: "v1", name: "Sidecar" },
    Kind { group: "networking.istio.io", version: "v1beta1", name: "ProxyConfig" },
    Kind { group: "security.istio.io", version: "v1", name: "PeerAuthentication" },
    Kind { group: "security.istio.io", version: "v1", name: "AuthorizationPolicy" },
    Kind { group: "security.istio.io", version: "v1", name: "RequestAuthentication" },
    Kind { group: "telemetry.istio.io", version: "v1", name: "Telemetry" },
];
/// Part of the objects that the API server takes: it knows fewer fields, and some are for other readers than the cluster.
const MIN_SHARE: f64 = 0.9;

fn api(client: &Client, kind: Kind, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(kind.group, kind.version, kind.name));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

/// The objects of some manifests that a cluster has.
fn objects(files: &[PathBuf]) -> Vec<Value> {
    let of_file = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (nodes, found) = yaml::parse(&"input".into(), &text);
        assert!(!found.has_errors(), "{found}");
        nodes.iter().map(yaml::Node::to_json).collect::<Vec<_>>()
    };
    let is_known = |object: &Value| KINDS.iter().any(|kind| object["kind"] == kind.name);
    files.iter().flat_map(of_file).filter(is_known).collect()
}

/// Puts an object into the cluster. Returns why the API server refuses it.
async fn put(client: &Client, mut object: Value) -> Result<(), String> {
    let kind = *KINDS.iter().find(|kind| object["kind"] == kind.name).expect("a known kind");
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
    if kind.name == "Pod" {
        // As the injector marks Pods with a sidecar. Of files all have one.
        object["metadata"]["labels"]["security.istio.io/tlsMode"] = json!("istio");
        for container in object["spec"]["containers"].as_array_mut().into_iter().flatten() {
            container["image"] = json!("none");
        }
    }
    let is_cluster_wide = kind.name == "Namespace";
    if !is_cluster_wide {
        let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        apply(&api(client, KINDS[0], None), "namespaces", &space).await?;
        apply(&api(client, KINDS[1], Some(&namespace)), "namespaces", &account).await?;
        if let Some(name) = object["spec"]["serviceAccountName"].as_str().filter(|_| kind.name == "Pod") {
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
            apply(&api(client, KINDS[1], Some(&namespace)), "accounts", &account).await?;
        }
    }
    let api = api(client, kind, (!is_cluster_wide).then_some(&namespace));
    let status = object.as_object_mut().and_then(|fields| fields.remove("status"));
    apply(&api, "objects", &object).await?;
    if let (Some(status), "Pod") = (status, kind.name) {
        let name = object["metadata"]["name"].as_str().expect("a name");
        let params = PatchParams::default();
        api.patch_status(name, &params, &Patch::Merge(json!({"status": status})))
            .await
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

async fn apply(api: &Api<DynamicObject>, manager: &str, object: &Value) -> Result<(), String> {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let applied = api.patch(name, &PatchParams::apply(manager).force(), &Patch::Apply(object)).await;
    applied.map(drop).map_err(|error| format!("{} {name}: {error}", object["kind"]))
}

/// What the API server has, as the text of a file. Objects are in the order of their age.
async fn dump(client: &Client) -> String {
    let mut all = Vec::new();
    for kind in KINDS {
        let list = api(client, kind, None).list(&ListParams::default()).await.expect("a list");
        for object in list.items {
            let created = object.creation_timestamp().map(|time| format!("{time:?}")).unwrap_or_default();
            let mut json = serde_json::to_value(&object).expect("JSON");
            json["apiVersion"] = json!(if kind.group.is_empty() {
                kind.version.to_owned()
            } else {
                format!("{}/{}", kind.group, kind.version)
            });
            json["kind"] = json!(kind.name);
            all.push((created, object.name_any(), json));
        }
    }
    all.sort_by(|a, b| (&a.0, &a.1).cmp(&(&b.0, &b.1)));
    all.iter().map(|(_, _, json)| format!("---\n{json}\n")).collect()
}

/// The proxies of a mesh: one beside each Pod, and each as a gateway, too.
fn proxies(snapshot: &Snapshot) -> Vec<ProxyView> {
    let views = snapshot.workloads.iter().flat_map(|workload| {
        [ProxyKind::Sidecar, ProxyKind::Router].map(|kind| ProxyView {
            locality: "".into(),
            kind,
            addresses: workload.addresses.clone(),
            pod: workload.pod.clone(),
            namespace: workload.namespace.clone(),
            service_account: workload.service_account.clone(),
            labels: workload.labels.clone(),
            authenticated: true,
            client_kind: ClientKind::EvenkeelLearned,
            takes_proxy_protocol: false,
            has_collector: false,
            has_log_service: false,
            proxy_config: "".into(),
            captures_dns: true,
            interception: None,
            takes_hybrid_curve: false,
            cluster: "".into(),
            network: "".into(),
            peer_labels: None,
        })
    });
    views.collect()
}

/// Compares what proxies get by files and by the API server. Returns how many resources were compared.
async fn compare(name: &str, files: &[PathBuf]) -> usize {
    let server = tokio::task::block_in_place(|| {
        let server = ApiServer::start();
        server.install(CustomResources::Istio);
        server
    });
    let client = admin(&server).await;
    let objects = objects(files);
    let mut refused = Vec::new();
    let count = objects.len();
    for object in objects {
        refused.extend(put(&client, object).await.err());
    }
    let taken = count - refused.len();
    assert!(taken as f64 >= MIN_SHARE * count as f64, "{name}: {taken} of {count}: {refused:#?}");
    let by_server = Mesh::start(&server.kubeconfig()).await.snapshot;
    let text = dump(&client).await;
    let (loaded, _) = evenkeel_api::load(&[("cluster.yaml".into(), text.into())]);
    let (by_files, _) = evenkeel_model::build(&loaded, &MeshConfig::default(), &mut AddressBook::default());
    let views = proxies(&by_files);
    assert_eq!(views.len(), proxies(&by_server).len(), "{name}");
    let mut compared = 0;
    for view in &views {
        let (files, server) = (resources(view, &by_files, 1), resources(view, &by_server, 1));
        for kind in ResourceType::ALL {
            let (files, server) = (files.of(kind), server.of(kind));
            let (ours, theirs): (Vec<_>, Vec<_>) = (files.keys().collect(), server.keys().collect());
            assert_eq!(ours, theirs, "{name}: {kind:?} of {:?} {}", view.kind, view.pod);
            for (resource, of_files) in files {
                compared += 1;
                let of_server = &server[resource];
                assert!(
                    of_files.any() == of_server.any(),
                    "{name}: {kind:?} {resource} of {:?} {}",
                    view.kind,
                    view.pod
                );
            }
        }
    }
    compared
}

#[tokio::test(flavor = "multi_thread")]
async fn files_and_an_api_server_give_the_same_resources() {
    let root = workspace::root();
    let scenario = |name: &str| vec![root.join(format!("crates/translate/tests/it/golden/{name}/input.yaml"))];
    let bookinfo =
        ["bookinfo", "destination-rules", "gateway"].map(|file| root.join(format!("examples/bookinfo/{file}.yaml")));
    for (name, files) in [
        ("routing", scenario("routing")),
        ("sidecars", scenario("sidecars")),
        ("gateways", scenario("gateways")),
        ("egress", scenario("egress")),
        ("bookinfo", bookinfo.to_vec()),
    ] {
        let compared = compare(name, &files).await;
        // Without Pods, as there are no controllers, nobody is served.
        assert!(compared > 20 || name == "bookinfo", "{name}: {compared}");
    }
}
