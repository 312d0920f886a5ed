//! What the new version would do differently on the cluster's own objects: findings, and resources of connected proxies. The old
//! version's answers come from the pages of the running control plane.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_admin::client::Address;
use evenkeel_admin::diagnostics::{self, Finding};
use evenkeel_admin::syncz::{self, Proxy, Syncz};
use evenkeel_api::in_force;
use evenkeel_base::{Diagnostic, Severity};
use evenkeel_install::upgrade::differences;
use evenkeel_k8s::cluster::{Cluster, ObjectKind, Selection};
use evenkeel_model::{AddressBook, Snapshot};
use evenkeel_translate::{ClientKind, ProxyKind, ProxyView, Translator};
use evenkeel_xds::json::any_to_json;
use evenkeel_xds::{Cause, ResourceType, Schema};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::super::Target;
use super::super::object::text_of;
use crate::admin;
use crate::manifests::Manifests;

/// Maximum number of proxies whose resources are compared; proxies of one workload hold the same.
const MAX_PROXIES: usize = 40;
/// Maximum number of lines of a list.
const MAX_LINES: usize = 20;
/// How long a page may take: the resources of a proxy in a large mesh have tens of millions of bytes.
const PAGE_TIMEOUT: Duration = Duration::from_secs(20);
/// The control plane's HTTP port in its Pod.
const PORT: u16 = 15014;
/// Types whose resources follow from the configuration. Keys and names are no text to compare.
const COMPARED: [ResourceType; 5] = [
    ResourceType::Listener,
    ResourceType::Route,
    ResourceType::VirtualHost,
    ResourceType::Cluster,
    ResourceType::Endpoint,
];

/// The differences.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Configuration {
    /// Findings that only the new version has.
    appearing: Vec<String>,
    /// Findings that only the old version has.
    vanishing: Vec<String>,
    /// How many connected proxies were compared.
    proxies: usize,
    /// How many resources were compared.
    resources: usize,
    /// Resources that proxies hold and that would change.
    changing: Vec<Changing>,
    /// What could not be compared, and why.
    not_compared: Vec<String>,
}

/// A resource that would change.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Changing {
    /// POD.NAMESPACE.
    proxy: String,
    /// `CDS`, `LDS`, ….
    kind: &'static str,
    /// The resource.
    name: String,
    /// The fields that differ; empty: the new version has no such resource.
    fields: Vec<String>,
}

/// Compares what can be compared; the rest is named with the reason.
pub async fn compare(cluster: &Cluster, target: &Target, at: Option<SocketAddr>) -> Configuration {
    let mut found = Configuration::default();
    let manifests = match Manifests::read_cluster(target.options()).await {
        Ok(manifests) => manifests,
        Err(error) => {
            found.not_compared.push(format!("the cluster's objects cannot be read: {error:#}"));
            return found;
        }
    };
    let pages = match at {
        Some(address) => Pages(address.into()),
        None => match replica(cluster, target).await {
            Ok(pod) => Pages(Address::Dialed(Arc::new(cluster.pod_port(target.namespace(), &pod, PORT)))),
            Err(error) => {
                found.not_compared.push(format!("the running control plane: {error:#}"));
                return found;
            }
        },
    };
    let new = Built::of(&manifests);
    match pages.read::<diagnostics::Page>(diagnostics::PATH).await {
        Ok(page) => found.compare_findings(&page.diagnostics, &new.findings),
        Err(error) => found.not_compared.push(format!("findings: {error:#}")),
    }
    match pages.read::<Syncz>(syncz::PATH).await {
        Ok(page) => found.compare_proxies(&pages, &page, new.snapshot).await,
        Err(error) => found.not_compared.push(format!("proxies: {error:#}")),
    }
    found
}

/// The pages of the running control plane.
struct Pages(Address);

impl Pages {
    async fn read<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<T> {
        let (address, page) = (self.0.clone(), path.to_owned());
        // It has an event loop of its own.
        let read = move || admin::get_within(PAGE_TIMEOUT, admin::CONTROL_PLANE, address, &page);
        let body = tokio::task::spawn_blocking(read).await??;
        serde_json::from_slice(&body).with_context(|| format!("{path} is not the page of a control plane of this kind"))
    }
}

/// A Pod of the running control plane that is ready. A further revision is compared with the one that runs.
async fn replica(cluster: &Cluster, target: &Target) -> anyhow::Result<String> {
    let pods = ObjectKind { api_version: "v1", kind: "Pod" };
    let found = cluster.list(pods, Selection { namespace: Some(target.namespace()), labels: "app=istiod" }).await?;
    let is_ready = |pod: &&Value| {
        let mut conditions = pod.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
        conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
    };
    let is_own = |pod: &&Value| pod["metadata"]["labels"]["istio.io/rev"] == target.label();
    let ready: Vec<&Value> = found.iter().filter(is_ready).collect();
    let chosen = ready.iter().find(|pod| is_own(pod)).or(ready.first());
    let chosen = chosen.with_context(|| format!("no Pod app=istiod of {} is ready", target.namespace()))?;
    Ok(text_of(chosen, "/metadata/name").to_owned())
}

/// What the new version builds of the cluster's objects.
struct Built {
    snapshot: Arc<Snapshot>,
    findings: BTreeMap<Key, Diagnostic>,
}

/// By what a finding of two versions is the same one.
type Key = (String, String, String);

impl Built {
    fn of(manifests: &Manifests) -> Self {
        let objects = in_force(manifests.objects.clone());
        let (snapshot, built) = evenkeel_model::build(&objects, &manifests.mesh, &mut AddressBook::default());
        let checked = evenkeel_analyze::unsuppressed(&objects, &snapshot);
        let all = manifests.diagnostics.iter().cloned().chain(built).chain(checked);
        let findings = all.map(|finding| (key_of(&finding), finding)).collect();
        Self { snapshot: Arc::new(snapshot), findings }
    }
}

fn key_of(finding: &Diagnostic) -> Key {
    let object = finding.object.as_ref();
    let object = object.map(|object| format!("{}/{}/{}", object.kind, object.namespace, object.name));
    (finding.code.to_owned(), object.unwrap_or_default(), finding.message.clone())
}

fn key_of_page(finding: &Finding) -> Key {
    let object = finding.object.as_ref();
    let object = object.map(|object| format!("{}/{}/{}", object.kind, object.namespace, object.name));
    (finding.code.clone(), object.unwrap_or_default(), finding.message.clone())
}

impl Configuration {
    fn compare_findings(&mut self, old: &[Finding], new: &BTreeMap<Key, Diagnostic>) {
        let known: BTreeSet<Key> = old.iter().map(key_of_page).collect();
        let matters = |finding: &&Diagnostic| finding.severity >= Severity::Warning;
        let appearing = new.iter().filter(|(key, _)| !known.contains(*key)).map(|(_, finding)| finding).filter(matters);
        self.appearing = appearing.map(ToString::to_string).collect();
        let vanishing =
            old.iter().filter(|finding| finding.severity != "info" && !new.contains_key(&key_of_page(finding)));
        self.vanishing = vanishing.map(|finding| format!("{}: {}", finding.file, finding.message)).collect();
    }

    /// Compares what one proxy of each workload holds with what the new version would send it.
    async fn compare_proxies(&mut self, pages: &Pages, page: &Syncz, snapshot: Arc<Snapshot>) {
        let mut translator = Translator::new(snapshot.clone(), Cause::default());
        let mut compared = BTreeSet::new();
        let proxies: Vec<&Proxy> = page.proxies.iter().filter(|proxy| proxy.is_proxy()).collect();
        for proxy in &proxies {
            let Some(view) = view(proxy, &snapshot) else { continue };
            let workload = (view.namespace.clone(), view.service_account.clone(), format!("{:?}", view.labels));
            if compared.len() >= MAX_PROXIES || !compared.insert(workload) {
                continue;
            }
            let path = format!("/debug/config_dump?proxyID={}", proxy.name());
            match pages.read::<Value>(&path).await {
                Ok(dump) if dump["view"].is_null() => {
                    self.not_compared
                        .push(format!("{}: the running version does not say what it knows of it", proxy.name()));
                }
                Ok(dump) => self.compare_resources(proxy.name(), &dump, &mut translator, view),
                Err(error) => self.not_compared.push(format!("{}: {error:#}", proxy.name())),
            }
        }
        if proxies.len() > compared.len() && compared.len() >= MAX_PROXIES {
            self.not_compared.push(format!("{} further proxies", proxies.len() - compared.len()));
        }
    }

    fn compare_resources(&mut self, proxy: &str, dump: &Value, translator: &mut Translator, view: ProxyView) {
        let schema = Schema::acquire();
        let view = view.with_json(&dump["view"]);
        // What a learned scope holds is a part of all that the proxy may use.
        let all = ProxyView {
            client_kind: match view.client_kind {
                ClientKind::EvenkeelLearned => ClientKind::EvenkeelFull,
                kind => kind,
            },
            ..view.clone()
        };
        let sets = [view, all].map(|view| translator.join(Arc::new(view)).set());
        self.proxies += 1;
        for kind in COMPARED {
            for old in dump[kind.short_name()].as_array().into_iter().flatten() {
                let name = old["name"].as_str().unwrap_or_default();
                self.resources += 1;
                let new = sets.iter().find_map(|set| set.of(kind).get(name));
                let fields = new.map(|new| differences(&old["resource"], &any_to_json(&schema, &new.any())));
                if fields.as_ref().is_none_or(|fields| !fields.is_empty()) {
                    let (proxy, name, fields) = (proxy.to_owned(), name.to_owned(), fields.unwrap_or_default());
                    self.changing.push(Changing { proxy, kind: kind.short_name(), name, fields });
                }
            }
        }
    }

    /// The differences for people.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        list(&mut text, "Findings that appear", &self.appearing);
        list(&mut text, "Findings that vanish", &self.vanishing);
        let changing: Vec<String> = self.changing.iter().map(Changing::line).collect();
        list(&mut text, "Configuration of proxies that changes", &changing);
        let (proxies, resources) = (self.proxies, self.resources);
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "\n{resources} resources of {proxies} proxies were compared, {} differ",
            self.changing.len()
        );
        list(&mut text, "Not compared", &self.not_compared);
        text
    }
}

impl Changing {
    fn line(&self) -> String {
        let Self { proxy, kind, name, fields } = self;
        let what = if fields.is_empty() { "is not there any more".to_owned() } else { fields.join(", ") };
        format!("{proxy} {kind} {name}: {what}")
    }
}

/// A heading and lines; nothing without lines.
fn list(text: &mut String, heading: &str, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    *text += &format!("\n{heading}: {}\n", lines.len());
    lines.iter().take(MAX_LINES).for_each(|line| *text += &format!("  {line}\n"));
    if lines.len() > MAX_LINES {
        *text += &format!("  and {} more (-o json has all)\n", lines.len() - MAX_LINES);
    }
}

/// The view of a connected proxy, as far as its workload says it.
fn view(proxy: &Proxy, snapshot: &Snapshot) -> Option<ProxyView> {
    let (pod, namespace) = proxy.name().rsplit_once('.')?;
    let workload = snapshot.workload(&namespace.into(), &pod.into())?;
    let kind = if proxy.kind == "router" { ProxyKind::Router } else { ProxyKind::Sidecar };
    ProxyView::of_workload(kind, workload).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_of_two_versions_are_compared_without_their_places() {
        let old = |code: &str, message: &str| Finding {
            severity: "warning".to_owned(),
            code: code.to_owned(),
            message: message.to_owned(),
            ..Finding::default()
        };
        let new = |code: &'static str, message: &str| {
            let finding = Diagnostic::warning(code, evenkeel_base::Span::at("b.yaml", 3, 1), message);
            (key_of(&finding), finding)
        };
        let mut found = Configuration::default();
        let both = BTreeMap::from([new("a", "stays"), new("b", "is new")]);
        found.compare_findings(&[old("a", "stays"), old("c", "goes")], &both);
        assert_eq!(found.appearing.len(), 1);
        assert!(found.appearing[0].contains("is new"), "{:?}", found.appearing);
        assert_eq!(found.vanishing, [": goes"]);
        let text = found.to_text();
        assert!(text.contains("Findings that appear: 1") && text.contains("Findings that vanish: 1"), "{text}");
    }
}
