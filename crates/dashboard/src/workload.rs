//! One workload: its signals over time, its replicas with their workers and certificates, and its edges.

use evenkeel_admin::dashboard::{Certificate, ConfigObject, Note, Replica, Worker, WorkloadPage};
use evenkeel_admin::diagnostics::Finding;
use evenkeel_admin::syncz::Syncz;
use serde_json::Value;

use crate::collector::Collector;
use crate::graph;
use crate::node::NodeKey;
use crate::objects;
use crate::source::{ProxyRole, ReplicaStatus, Source};
use crate::status;

/// The usual namespace of the mesh-wide objects.
const ROOT_NAMESPACE: &str = "istio-system";
/// Maximum number of replicas whose proxies are read.
const MAX_REPLICAS: usize = 20;

/// What the collector knows about the node with this id; `None`: there is none.
pub(crate) fn remembered(collector: &Collector, id: &str) -> Option<WorkloadPage> {
    let key = graph::find(collector, id)?;
    let series = collector.inbound.get(&key).cloned().unwrap_or_default();
    Some(WorkloadPage {
        node: graph::node(collector, &key),
        recent: collector.ticks.recent_history(&series),
        hour: collector.ticks.hour_history(&series),
        edges: graph::edges_of(collector, &key),
        notes: collector.notes.clone(),
        ..WorkloadPage::default()
    })
}

/// Adds what proxies and the control plane say now.
pub(crate) async fn complete(page: &mut WorkloadPage, source: &dyn Source) {
    let all: Vec<ReplicaStatus> =
        source.replicas().into_iter().filter(|replica| NodeKey::of(replica).to_string() == page.node.id).collect();
    page.notes.retain(|note| all.iter().any(|replica| replica.key.to_string() == note.subject));
    let streams = match status::syncz(source).await {
        Ok(streams) => streams,
        Err(message) => {
            page.notes.push(Note { subject: "control plane".to_owned(), message });
            Syncz::default()
        }
    };
    let findings = status::findings(source).await.unwrap_or_default();
    page.findings = findings.into_iter().filter(|finding| is_about(finding, page)).collect();
    let objects = objects::in_force(source).await.unwrap_or_default();
    page.objects = objects.into_iter().filter(|object| concerns(object, page)).collect();
    for replica in all.iter().take(MAX_REPLICAS) {
        page.replicas.push(shown(source, replica, &streams).await);
    }
    if all.len() > MAX_REPLICAS {
        let message = format!("{} more replicas are not shown", all.len() - MAX_REPLICAS);
        page.notes.push(Note { subject: page.node.id.clone(), message });
    }
}

/// Whether a finding is about an object with the workload's name, or about one of its edges' Services.
fn is_about(finding: &Finding, page: &WorkloadPage) -> bool {
    let Some(object) = &finding.object else { return false };
    let in_namespace = object.namespace == page.node.namespace;
    let host = format!("{}.{}.svc.", object.name, object.namespace);
    let serves = page.edges.iter().any(|edge| edge.to == page.node.id && edge.service.starts_with(&host));
    in_namespace && (object.name == page.node.name || object.name == page.node.app || serves)
}

/// Whether an object may say something about the workload: a Service that leads to it, another object of its namespace, or one of the
/// mesh's root namespace.
fn concerns(object: &ConfigObject, page: &WorkloadPage) -> bool {
    match &*object.kind {
        "Service" | "ServiceEntry" => {
            page.edges.iter().any(|edge| edge.to == page.node.id && edge.service == object.name)
        }
        _ => object.namespace == page.node.namespace || object.namespace == ROOT_NAMESPACE,
    }
}

async fn shown(source: &dyn Source, replica: &ReplicaStatus, streams: &Syncz) -> Replica {
    let name = replica.key.to_string();
    let stream = streams.proxies.iter().find(|stream| stream.is_proxy() && stream.name() == name);
    let mut shown = Replica {
        pod: replica.key.pod.clone(),
        address: replica.address.to_string(),
        ready: replica.ready,
        detail: replica.detail.clone(),
        restarts: replica.restarts,
        live: stream.map(|stream| stream.live),
        generation: stream.map(|stream| stream.settled_generation),
        ..Replica::default()
    };
    if replica.proxy != ProxyRole::None {
        let read = async |path: &str| -> Option<Value> {
            serde_json::from_slice(&source.proxy_page(&replica.key, path).await.ok()?).ok()
        };
        shown.workers = read("/workers?format=json").await.map(|page| workers(&page)).unwrap_or_default();
        shown.certificates = read("/certs").await.map(|page| certificates(&page)).unwrap_or_default();
    }
    shown
}

fn workers(page: &Value) -> Vec<Worker> {
    let rows = page["workers"].as_array().into_iter().flatten();
    rows.filter_map(|row| serde_json::from_value(row.clone()).ok()).collect()
}

/// The certificates of a page of Envoy's form, without roots.
fn certificates(page: &Value) -> Vec<Certificate> {
    let all = page["certificates"].as_array().into_iter().flatten();
    let chains = all.flat_map(|one| one["cert_chain"].as_array().into_iter().flatten());
    chains
        .map(|certificate| {
            let text = |name: &str| certificate[name].as_str().unwrap_or_default().to_owned();
            let names = certificate["subject_alt_names"].as_array().into_iter().flatten();
            let names = names.filter_map(|name| name["uri"].as_str().or_else(|| name["dns"].as_str()));
            Certificate {
                name: text("path").trim_start_matches("<sds: ").trim_end_matches('>').to_owned(),
                identities: names.map(str::to_owned).collect(),
                valid_from: text("valid_from"),
                expires: text("expiration_time"),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn workers_and_certificates_are_read_from_the_proxys_pages() {
        let page = json!({"workers": [{"worker": 1, "connections_active": 2, "requests_total": 3, "busy_share": 0.5}]});
        let worker = Worker { worker: 1, connections_active: 2, requests_total: 3, busy_share: 0.5 };
        assert_eq!(workers(&page), [worker]);
        assert_eq!(workers(&json!({"workers": 7})), []);
        let page = json!({"certificates": [{"ca_cert": [{"path": "<sds: ROOTCA>"}], "cert_chain": [{
            "path": "<sds: default>",
            "subject_alt_names": [{"uri": "spiffe://a"}, {"dns": "b"}],
            "valid_from": "2026-01-01T00:00:00Z",
            "expiration_time": "2026-01-01T01:00:00Z",
        }]}]});
        let expected = Certificate {
            name: "default".into(),
            identities: vec!["spiffe://a".into(), "b".into()],
            valid_from: "2026-01-01T00:00:00Z".into(),
            expires: "2026-01-01T01:00:00Z".into(),
        };
        assert_eq!(certificates(&page), [expected]);
    }
}
