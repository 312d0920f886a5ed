//! Tells the control plane which replicas run, as Kubernetes `Pod` objects: the same interface as in a cluster.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::istio::{INTERCEPTION_ANNOTATION, PROXY_CONFIG_ANNOTATION};
use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_inject::ProxySettings;
use tokio::sync::watch;

use crate::process::Exit;

/// Time between a failed write and the next try; meanwhile the control plane's list of replicas is out of date.
const RETRY: Duration = Duration::from_secs(1);

/// The properties of a replica that do not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pod {
    /// Its name, unique in its namespace.
    pub name: String,
    /// Its Kubernetes namespace.
    pub namespace: String,
    /// The Deployment it belongs to.
    pub workload: String,
    /// Its labels, which Services and policies select by.
    pub labels: BTreeMap<String, String>,
    /// The account its certificate is issued for.
    pub service_account: String,
    /// Its address.
    pub address: Ipv4Addr,
    /// Ports its containers declare.
    pub ports: Vec<ContainerPort>,
    /// Whether it has a sidecar or is a gateway proxy.
    pub in_mesh: bool,
    /// Whether its proxy is a gateway.
    pub is_gateway: bool,
    /// Settings of its proxy.
    pub proxy: ProxySettings,
}

/// One declared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerPort {
    /// Its name, for Services whose `targetPort` is a name.
    pub name: Option<String>,
    /// Its number.
    pub number: u16,
    /// `TCP` or `UDP`.
    pub protocol: String,
}

/// A replica as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodStatus {
    /// Its identity and address.
    pub pod: Arc<Pod>,
    /// Whether it may receive requests.
    pub ready: bool,
    /// Whether it is about to end.
    pub leaving: bool,
    /// Why not, in a few words; empty when ready.
    pub detail: String,
    /// How often its program was restarted.
    pub restarts: u32,
    /// How often another process has taken over from its proxy.
    pub takeovers: u32,
    /// The last exits of its program and its proxy, if they have ended.
    pub ends: Vec<LastExit>,
}

/// The last exit of a replica's program or proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastExit {
    /// `program` or `proxy`.
    pub part: &'static str,
    /// How often it was restarted.
    pub restarts: u32,
    /// Whether it runs again.
    pub runs: bool,
    /// The exit.
    pub end: Exit,
}

/// The status of all replicas by (namespace, pod name), to which others can subscribe.
pub type Roster = watch::Sender<BTreeMap<(String, String), PodStatus>>;
/// A subscription to the [`Roster`].
pub type RosterView = watch::Receiver<BTreeMap<(String, String), PodStatus>>;

/// Writes the Pod objects to `folder/pods.yaml` now and after every change, until the roster is gone. While writing
/// fails, as on a full disk, the last written list stays in effect; `say` is called once when that begins and once when
/// it ends.
pub async fn publish(folder: &Path, mut roster: RosterView, say: impl Fn(String)) -> io::Result<()> {
    let (mut written, mut failed) = (None, false);
    loop {
        let document = render(roster.borrow_and_update().values());
        if failed || written.as_ref() != Some(&document) {
            match replace(folder, &document) {
                Ok(()) => {
                    written = Some(document);
                    if std::mem::take(&mut failed) {
                        say("the control plane gets the list of replicas again".to_owned());
                    }
                }
                Err(error) if !std::mem::replace(&mut failed, true) => {
                    say(format!("warning: cannot tell the control plane which replicas run: {error}; trying again"));
                }
                Err(_) => {}
            }
        }
        let changed = if failed {
            tokio::time::timeout(RETRY, roster.changed()).await.unwrap_or(Ok(()))
        } else {
            roster.changed().await
        };
        if changed.is_err() {
            return Ok(());
        }
    }
}

/// Renames a finished file into place, so that no reader ever sees half of one.
fn replace(folder: &Path, document: &str) -> io::Result<()> {
    // The temporary file does not end in `.yaml`, because the control plane, which watches the folder, would read it.
    write_atomically(&folder.join("pods.yaml"), document.as_bytes(), Readers::All)
}

/// The YAML documents; scalars are quoted as JSON strings, which YAML includes.
fn render<'a>(pods: impl Iterator<Item = &'a PodStatus>) -> String {
    let mut out = String::from("# Written by `evenkeel up`: the replicas that run now.\n");
    // A replica that registers itself is not a Pod, but a WorkloadEntry that the control plane writes.
    for status in pods.filter(|status| status.pod.proxy.membership.is_none()) {
        render_pod(&mut out, status);
    }
    out
}

fn render_pod(out: &mut String, status: &PodStatus) {
    let PodStatus { pod, ready, leaving: ends, .. } = status;
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let mut line = |text: std::fmt::Arguments<'_>| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{text}");
    };
    line(format_args!("---\napiVersion: v1\nkind: Pod\nmetadata:"));
    line(format_args!("  name: {}\n  namespace: {}", quote(&pod.name), quote(&pod.namespace)));
    line(format_args!("  labels:{}", if pod.labels.is_empty() { " {}" } else { "" }));
    for (name, value) in &pod.labels {
        line(format_args!("    {}: {}", quote(name), quote(value)));
    }
    if *ends {
        // The time does not matter: what counts is that there is one.
        line(format_args!("  deletionTimestamp: \"1970-01-01T00:00:00Z\""));
    }
    if !pod.in_mesh {
        line(format_args!("  annotations:\n    sidecar.istio.io/inject: \"false\""));
    } else {
        let (config, mode) = (pod.proxy.annotation.as_ref(), pod.proxy.interception.as_ref());
        let given = [(PROXY_CONFIG_ANNOTATION, config), (INTERCEPTION_ANNOTATION, mode)];
        let mut given = given.into_iter().filter_map(|(name, value)| Some((name, value?))).peekable();
        if given.peek().is_some() {
            line(format_args!("  annotations:"));
        }
        given.for_each(|(name, value)| line(format_args!("    {name}: {}", quote(value))));
    }
    line(format_args!("spec:\n  serviceAccountName: {}", quote(&pod.service_account)));
    line(format_args!("  containers:\n    - name: {}", quote(&pod.workload)));
    line(format_args!("      ports:{}", if pod.ports.is_empty() { " []" } else { "" }));
    for port in &pod.ports {
        line(format_args!("        - containerPort: {}\n          protocol: {}", port.number, quote(&port.protocol)));
        if let Some(name) = &port.name {
            line(format_args!("          name: {}", quote(name)));
        }
    }
    let condition = if *ready { "True" } else { "False" };
    line(format_args!(
        "status:\n  phase: Running\n  podIP: {}\n  podIPs:\n    - ip: {0}",
        quote(&pod.address.to_string())
    ));
    line(format_args!("  conditions:\n    - type: Ready\n      status: \"{condition}\""));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica(ready: bool) -> PodStatus {
        let pod = Pod {
            name: "web-5d4f-x2x4z".to_owned(),
            namespace: "shop".to_owned(),
            workload: "web".to_owned(),
            labels: BTreeMap::from([
                ("app".to_owned(), "web".to_owned()),
                ("odd".to_owned(), "yes: \"no\"".to_owned()),
            ]),
            service_account: "web".to_owned(),
            address: Ipv4Addr::new(10, 244, 1, 2),
            ports: vec![ContainerPort { name: Some("http".to_owned()), number: 8080, protocol: "TCP".to_owned() }],
            in_mesh: false,
            is_gateway: false,
            proxy: ProxySettings::default(),
        };
        PodStatus {
            pod: Arc::new(pod),
            ready,
            leaving: false,
            detail: String::new(),
            restarts: 0,
            takeovers: 0,
            ends: Vec::new(),
        }
    }

    #[test]
    fn a_replica_is_written_as_the_pod_a_cluster_would_have() {
        let expected = r#"# Written by `evenkeel up`: the replicas that run now.
---
apiVersion: v1
kind: Pod
metadata:
  name: "web-5d4f-x2x4z"
  namespace: "shop"
  labels:
    "app": "web"
    "odd": "yes: \"no\""
  annotations:
    sidecar.istio.io/inject: "false"
spec:
  serviceAccountName: "web"
  containers:
    - name: "web"
      ports:
        - containerPort: 8080
          protocol: "TCP"
          name: "http"
status:
  phase: Running
  podIP: "10.244.1.2"
  podIPs:
    - ip: "10.244.1.2"
  conditions:
    - type: Ready
      status: "True"
"#;
        assert_eq!(render([replica(true)].iter()), expected);
        let leaving = PodStatus { leaving: true, ..replica(false) };
        assert!(render([leaving].iter()).contains("  deletionTimestamp: \"1970-01-01T00:00:00Z\"\n"));
    }

    #[tokio::test]
    async fn the_file_follows_the_roster_and_ends_with_it() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let roster: Roster = watch::Sender::new(BTreeMap::new());
        let key = ("shop".to_owned(), "web-5d4f-x2x4z".to_owned());
        roster.send_modify(|pods| {
            pods.insert(key.clone(), replica(false));
        });
        let view = roster.subscribe();
        let path = folder.path().to_path_buf();
        let publisher = tokio::spawn(async move { publish(&path, view, drop).await });
        tokio::task::yield_now().await;
        let read = || std::fs::read_to_string(folder.path().join("pods.yaml"));
        assert!(read()?.contains("status: \"False\""));
        roster.send_modify(|pods| {
            pods.insert(key, replica(true));
        });
        drop(roster);
        publisher.await??;
        assert!(read()?.contains("status: \"True\""));
        Ok(())
    }
}
