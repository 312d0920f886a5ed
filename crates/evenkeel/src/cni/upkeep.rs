//! Looks after the Pods of the node: whether the rules of each are loaded, and whether a connection reaches the sidecar; what is done
//! where not.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use evenkeel_capture::Capture;
use evenkeel_cni::networks::{Networks, within};
use evenkeel_cni::upkeep::{Action, Loader, Probe, Remedy, Reported, Stage, decide};
use evenkeel_inject::{INIT, VALIDATION};
use evenkeel_k8s::node_pods::{MeshPod, NodeError, NodePods, PodEvent, PodStage, RuleContainers, remove_taint};
use tokio::time::MissedTickBehavior;

use super::State;
use super::rules::capture_of;
use crate::capture_probe::{self, Listing};
use crate::istio_iptables;

/// In which round the rules of a Pod are listed although a connection has been captured: that needs a process for each Pod. With the
/// default interval, missing ones are found within 24 s.
const LISTING_ROUNDS: u64 = 3;
/// Who writes Events.
const COMPONENT: &str = "evenkeel-cni-node";
/// The taint of nodes whose agent is not ready, as in Istio.
const TAINT: &str = "cni.istio.io/not-ready";
/// How soon its removal is tried again after an error, and while the agent is not ready.
const TAINT_RETRY: Duration = Duration::from_secs(5);
/// How often it is looked for after that.
const TAINT_INTERVAL: Duration = Duration::from_secs(300);

/// Flags about Pods of the node.
#[derive(Debug, Clone, clap::Args)]
pub struct UpkeepArguments {
    /// The name of this node [default: $NODE_NAME]; without it, Pods are not looked after.
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,

    /// What happens to Pods that were started before the plugin was ready, and to Pods that run outside the mesh. `delete` deletes
    /// only Pods whose programs do not run yet.
    #[arg(long, value_enum, value_name = "REMEDY", default_value_t = BrokenPods::Repair)]
    broken_pods: BrokenPods,

    /// The label that `--broken-pods=label` gives them.
    #[arg(long, value_name = "KEY=VALUE", default_value = "cni.istio.io/uninitialized=true", value_parser = parse_label)]
    broken_pod_label: Label,

    /// The node's folder of networks.
    #[arg(long, value_name = "DIR", default_value = "/host/var/run/netns")]
    netns_dir: PathBuf,

    /// How often Pods are looked at, in seconds. Rules are listed in every third round, unless a connection has failed.
    #[arg(long, value_name = "SECONDS", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=60))]
    probe_interval: u64,

    /// Remove the taint cni.istio.io/not-ready of the node when the plugin is in place.
    #[arg(long)]
    remove_taint: bool,
}

/// What happens to Pods without rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum BrokenPods {
    /// Pods are not looked after.
    Ignore,
    /// An Event, a metric and a line in the log.
    Report,
    /// A label.
    Label,
    /// They are deleted.
    Delete,
    /// Their rules are loaded.
    Repair,
}

/// A label.
#[derive(Debug, Clone)]
struct Label {
    key: String,
    value: String,
}

fn parse_label(text: &str) -> Result<Label, String> {
    let (key, value) = text.split_once('=').filter(|(key, _)| !key.is_empty()).ok_or("expected KEY=VALUE")?;
    Ok(Label { key: key.to_owned(), value: value.to_owned() })
}

/// What has been found and done, for the page.
#[derive(Debug, Default)]
pub struct Findings {
    probes: [AtomicU64; Probe::NAMES.len()],
    /// By [`TYPES`], and by whether it succeeded.
    remedies: [[AtomicU64; 2]; 3],
    outside: AtomicUsize,
}

/// The label `type` of `istio_cni_repair_pods_repaired_total`.
const TYPES: [&str; 3] = ["label", "delete", "repair"];
/// Its label `result`.
const RESULTS: [&str; 2] = ["success", "fail"];

impl Findings {
    fn count_probe(&self, probe: &Probe) {
        let index = Probe::NAMES.iter().position(|name| *name == probe.name()).unwrap_or_default();
        self.probes[index].fetch_add(1, Relaxed);
    }

    fn count_remedy(&self, remedy: Remedy, succeeded: bool) {
        let index = match remedy {
            Remedy::Report => return,
            Remedy::Label => 0,
            Remedy::Delete => 1,
            Remedy::Repair => 2,
        };
        self.remedies[index][usize::from(!succeeded)].fetch_add(1, Relaxed);
    }

    /// The metrics as text for Prometheus.
    pub fn metrics(&self) -> String {
        let mut text =
            "# HELP istio_cni_repair_pods_repaired_total Pods without capture rules, by what was done about them.\n\
                        # TYPE istio_cni_repair_pods_repaired_total counter\n"
                .to_owned();
        for (kind, counts) in TYPES.iter().zip(&self.remedies) {
            for (result, count) in RESULTS.iter().zip(counts) {
                let count = count.load(Relaxed);
                text +=
                    &format!("istio_cni_repair_pods_repaired_total{{type=\"{kind}\",result=\"{result}\"}} {count}\n");
            }
        }
        text += "# HELP evenkeel_cni_probes_total Probes of Pods, by what they found.\n# TYPE evenkeel_cni_probes_total counter\n";
        for (name, count) in Probe::NAMES.iter().zip(&self.probes) {
            text += &format!("evenkeel_cni_probes_total{{result=\"{name}\"}} {}\n", count.load(Relaxed));
        }
        let outside = self.outside.load(Relaxed);
        text + &format!(
            "# HELP evenkeel_cni_pods_outside_mesh Pods of this node that run outside the mesh now, although they have a sidecar.\n\
             # TYPE evenkeel_cni_pods_outside_mesh gauge\nevenkeel_cni_pods_outside_mesh {outside}\n"
        )
    }
}

/// Looks after Pods.
struct Upkeep {
    pods: NodePods,
    remedy: Remedy,
    label: Label,
    netns_dir: PathBuf,
    state: Arc<State>,
    reported: Mutex<Reported>,
    runtime: tokio::runtime::Handle,
}

/// Starts to look after the Pods of the node, and after its taint. Only inside of an event loop.
pub fn start(
    arguments: UpkeepArguments,
    client: evenkeel_k8s::client::Client,
    state: &Arc<State>,
) -> anyhow::Result<()> {
    let UpkeepArguments { node_name, broken_pods, broken_pod_label: label, netns_dir, probe_interval, remove_taint } =
        arguments;
    let node = node_name.or_else(|| std::env::var("NODE_NAME").ok());
    if remove_taint {
        let node = node.clone().context("--remove-taint needs the node's name: --node-name, or NODE_NAME")?;
        tokio::spawn(keep_untainted(client.clone(), node, state.clone()));
    }
    let remedy = match broken_pods {
        BrokenPods::Ignore => return Ok(()),
        BrokenPods::Report => Remedy::Report,
        BrokenPods::Label => Remedy::Label,
        BrokenPods::Delete => Remedy::Delete,
        BrokenPods::Repair => Remedy::Repair,
    };
    let Some(node) = node else {
        tracing::warn!("Pods are not looked after, as the node's name is not known: --node-name, or NODE_NAME");
        return Ok(());
    };
    let containers = RuleContainers { verifies: VALIDATION, loads: INIT };
    let upkeep = Arc::new(Upkeep {
        pods: NodePods::follow(client, &node, containers),
        remedy,
        label,
        netns_dir,
        state: state.clone(),
        reported: Mutex::default(),
        runtime: tokio::runtime::Handle::current(),
    });
    tokio::spawn(keep(upkeep, Duration::from_secs(probe_interval)));
    Ok(())
}

async fn keep(upkeep: Arc<Upkeep>, interval: Duration) {
    let mut ticks = tokio::time::interval(interval);
    // A round that takes longer is not made up for.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for round in 0.. {
        ticks.tick().await;
        let now = upkeep.clone();
        // Programs are run, and networks are entered.
        if let Err(error) = tokio::task::spawn_blocking(move || now.look(round)).await {
            tracing::error!(%error, "the Pods of this node could not be looked at");
        }
    }
}

async fn keep_untainted(client: evenkeel_k8s::client::Client, node: String, state: Arc<State>) {
    loop {
        let pause = if state.is_installed.load(Relaxed) {
            match remove_taint(&client, &node, TAINT).await {
                Ok(true) => {
                    tracing::info!(node, taint = TAINT, "the plugin is in place: the taint is removed");
                    TAINT_INTERVAL
                }
                Ok(false) => TAINT_INTERVAL,
                Err(error) => {
                    tracing::warn!(node, %error, "the taint cannot be removed");
                    TAINT_RETRY
                }
            }
        } else {
            TAINT_RETRY
        };
        tokio::time::sleep(pause).await;
    }
}

impl Upkeep {
    /// Looks at all Pods once.
    fn look(&self, round: u64) {
        let pods = self.pods.of_mesh();
        let networks = match Networks::read(&self.netns_dir) {
            Ok(networks) => networks,
            Err(error) => {
                tracing::warn!(%error, folder = %self.netns_dir.display(), "the networks of Pods cannot be read: no Pod is looked at");
                return;
            }
        };
        for pod in pods.iter().filter(|pod| pod.stage != PodStage::Other) {
            let probe = probe(pod, &networks, round);
            self.state.findings.count_probe(&probe);
            self.act(pod, &probe, &networks);
        }
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        reported.retain(|uid| pods.iter().any(|pod| pod.uid == uid));
        self.state.findings.outside.store(reported.outside(), Relaxed);
    }

    fn act(&self, pod: &MeshPod, probe: &Probe, networks: &Networks) {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let stage = match pod.stage {
            PodStage::Waiting => Stage::Waiting,
            PodStage::Failed => Stage::Failed,
            PodStage::Running => Stage::Running,
            PodStage::Other => Stage::Other,
        };
        let loader = if pod.loads_itself { Loader::Container } else { Loader::Plugin };
        match decide(stage, loader, probe, self.remedy) {
            Action::Report { reason, message, remedy } => {
                let is_new = self.reported().is_new(&pod.uid, reason);
                if is_new {
                    tracing::error!(namespace, name, reason, finding = message, "a Pod is not captured");
                    self.report(pod, true, reason, &message);
                }
                // Rules are tried until they are loaded; the rest is done once.
                if is_new || remedy == Remedy::Repair {
                    self.apply(pod, remedy, networks);
                }
            }
            Action::None if *probe == Probe::Captured => {
                if self.reported().clear(&pod.uid) {
                    tracing::info!(namespace, name, "the Pod is captured again");
                }
            }
            Action::None => tracing::debug!(namespace, name, ?probe, "a Pod could not be looked at"),
        }
    }

    fn apply(&self, pod: &MeshPod, remedy: Remedy, networks: &Networks) {
        let (namespace, name) = (&pod.namespace, &pod.name);
        let result = match remedy {
            Remedy::Report => return,
            Remedy::Repair => repair(pod, networks),
            Remedy::Label => self.call(self.pods.label(pod, &self.label.key, &self.label.value)),
            Remedy::Delete => self.call(self.pods.delete(pod)),
        };
        self.state.findings.count_remedy(remedy, result.is_ok());
        match result {
            Ok(()) => {
                tracing::info!(namespace, name, ?remedy, "done about a Pod without rules");
                let message = match remedy {
                    Remedy::Repair => "the capture rules are loaded: new connections go through the sidecar",
                    Remedy::Label => "the Pod is labelled",
                    Remedy::Delete | Remedy::Report => "the Pod is deleted, so that its owner creates a new one",
                };
                self.report(pod, false, "CaptureRepaired", message);
            }
            Err(error) => {
                tracing::error!(namespace, name, ?remedy, error, "nothing could be done about a Pod without rules");
                // The next round tries again.
                self.reported().clear(&pod.uid);
            }
        }
    }

    fn report(&self, pod: &MeshPod, is_warning: bool, reason: &str, message: &str) {
        let event = PodEvent { is_warning, reason, message, component: COMPONENT };
        if let Err(error) = self.call(self.pods.report(pod, &event)) {
            tracing::warn!(error, reason, "an Event could not be written");
        }
    }

    fn call(&self, call: impl Future<Output = Result<(), NodeError>>) -> Result<(), String> {
        self.runtime.block_on(call).map_err(|error| error.to_string())
    }

    fn reported(&self) -> std::sync::MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks at one Pod.
fn probe(pod: &MeshPod, networks: &Networks, round: u64) -> Probe {
    let capture = match capture_of(&pod.arguments, &pod.name_servers) {
        Ok(capture) => capture,
        Err(error) => return Probe::Unknown(error),
    };
    let network = match networks.with(&pod.addresses) {
        Ok(network) => network,
        Err(error) => return Probe::Unknown(error.to_string()),
    };
    let connects = pod.stage == PodStage::Running && pod.is_sidecar_ready;
    let listing = if pod.loads_itself {
        Listing::Never
    } else if is_turn(&pod.uid, round) {
        Listing::Always
    } else {
        Listing::IfNeeded
    };
    let look = || capture_probe::probe(&istio_iptables::for_network(capture), connects, listing);
    let looked = within(network, look);
    looked.unwrap_or_else(|error| Probe::Unknown(error.to_string()))
}

/// Whether the rules of a Pod are listed in this round: a third of all Pods has its turn.
fn is_turn(uid: &str, round: u64) -> bool {
    let mut hash = DefaultHasher::new();
    uid.hash(&mut hash);
    hash.finish() % LISTING_ROUNDS == round % LISTING_ROUNDS
}

fn repair(pod: &MeshPod, networks: &Networks) -> Result<(), String> {
    let capture: Capture = capture_of(&pod.arguments, &pod.name_servers)?;
    let network = networks.with(&pod.addresses).map_err(|error| error.to_string())?;
    let loaded = within(network, || istio_iptables::load(&capture).map_err(|error| format!("{error:#}")));
    loaded.map_err(|error| error.to_string())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_has_its_turn_within_the_rounds() {
        for uid in ["a", "b", "c", "d"] {
            for first in 0..10 {
                assert!((first..first + LISTING_ROUNDS).any(|round| is_turn(uid, round)), "{uid} {first}");
            }
        }
    }

    #[test]
    fn metrics_have_the_names_of_istio() {
        let findings = Findings::default();
        findings.count_remedy(Remedy::Repair, true);
        findings.count_remedy(Remedy::Delete, false);
        findings.count_remedy(Remedy::Report, true);
        findings.count_probe(&Probe::Missing(String::new()));
        let text = findings.metrics();
        for line in [
            "istio_cni_repair_pods_repaired_total{type=\"repair\",result=\"success\"} 1\n",
            "istio_cni_repair_pods_repaired_total{type=\"delete\",result=\"fail\"} 1\n",
            "istio_cni_repair_pods_repaired_total{type=\"label\",result=\"success\"} 0\n",
            "evenkeel_cni_probes_total{result=\"missing\"} 1\n",
            "evenkeel_cni_pods_outside_mesh 0\n",
        ] {
            assert!(text.contains(line), "{line:?} is not in {text}");
        }
    }
}
