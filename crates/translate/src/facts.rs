//! Questions of generators about the proxy they generate for.
//!
//! Kind, Sidecar and ProxyConfig are not recorded, because proxies that differ in them share no units. In all other respects two
//! proxies are equal for a generator if they give the same answers.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_api::istio::{InterceptionMode, ProxyConfig};
use evenkeel_api::remote::name_in;
use evenkeel_model::labels::selects;
use evenkeel_model::{Labels, Sidecar, Snapshot, Workload};

use crate::proxy_options::ProxyOptions;
use crate::view::{ProxyKind, ProxyView};

/// One proxy: its node, and its workload in the snapshot.
#[derive(Debug, Clone, PartialEq)]
pub struct Client {
    /// Its node.
    pub view: Arc<ProxyView>,
    /// The workload of a sidecar, or the gateway's own Pod; `None` until it is in the snapshot.
    pub workload: Option<Arc<Workload>>,
    /// The remote cluster that it is in; empty: the control plane's own, or none.
    pub cluster: Arc<str>,
    /// The network that it is in; empty if unknown.
    pub network: Arc<str>,
    /// The Sidecar that applies to it; a gateway has none.
    pub sidecar: Option<Arc<Sidecar>>,
    /// Whether calls of unknown hosts are refused, whatever Sidecar and mesh say, because a refused Sidecar might
    /// forbid them.
    pub registry_only: bool,
    /// The parts of its ProxyConfig that its configuration depends on.
    pub options: Arc<ProxyOptions>,
}

/// A question about a proxy.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Question {
    /// Does its workload have all these labels?
    SelectedBy(Labels),
    /// Is it in this namespace?
    IsIn(Arc<str>),
    /// In which namespace is it?
    Namespace,
    /// Is this one of its addresses?
    HasAddress(IpAddr),
    /// On which machine does it run?
    Node,
    /// In which remote cluster does it run?
    Cluster,
    /// What does it call the control plane's own cluster, if it is in that?
    ClusterName,
    /// In which network does it run?
    Network,
    /// In which locality does it run?
    Locality,
    /// What is its workload's label of this name?
    Label(Arc<str>),
    /// Has its certificate proved its namespace?
    IsAuthenticated,
    /// Does a load balancer in front of it send the PROXY protocol?
    TakesProxyProtocol,
    /// Does its agent answer its workload's DNS queries?
    CapturesDns,
    /// Does it have a local cluster?
    DiscoversItself,
    /// To which of its ports do the services in front of it lead from this port?
    TargetPort(u16),
    /// All properties of its workload, which are different for each proxy.
    Workload,
}

/// The answer to a [`Question`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// Yes.
    Yes,
    /// No.
    No,
    /// A name.
    Text(Arc<str>),
    /// `namespace/pod`, an answer that no other proxy gives.
    Alone(Arc<str>, Arc<str>),
}

impl Client {
    /// The proxy `view` with its workload in `snapshot`.
    pub fn new(view: Arc<ProxyView>, snapshot: &Snapshot) -> Self {
        let workload = workload_of(&view, snapshot);
        // Whoever names a cluster that nobody knows is in the control plane's own.
        let cluster = workload.map(|workload| workload.cluster.clone()).unwrap_or_default();
        let labels = workload.map_or(&view.labels, |workload| &workload.labels);
        let is_sidecar = view.kind == ProxyKind::Sidecar;
        let sidecar = snapshot.sidecar_for(&view.namespace, labels).filter(|_| is_sidecar);
        let registry_only = is_sidecar && snapshot.is_registry_only(&view.namespace, labels);
        let options = options(&view, workload.map(AsRef::as_ref), labels, snapshot);
        let sidecar = match options.interception {
            InterceptionMode::None if is_sidecar => {
                Some(sidecar.map_or_else(Sidecar::of_uncaptured, |written| written.uncaptured()))
            }
            _ => sidecar.cloned(),
        };
        let of_workload = workload.map(|workload| &workload.network).filter(|network| !network.is_empty());
        let network = of_workload.unwrap_or(&view.network).clone();
        Self { workload: workload.cloned(), cluster, network, sidecar, registry_only, options, view }
    }

    /// The labels for selectors: those in the snapshot, otherwise those of the proxy's node.
    fn labels(&self) -> &Labels {
        self.workload.as_ref().map_or(&self.view.labels, |workload| &workload.labels)
    }

    /// `region/zone/subzone`; may be empty. As in Istio, what the proxy says of itself counts if nothing else does.
    pub fn locality(&self) -> &Arc<str> {
        let of_workload = self.workload.as_ref().map(|workload| &workload.locality);
        of_workload.filter(|locality| !locality.is_empty()).unwrap_or(&self.view.locality)
    }

    /// The name of the control plane's own cluster, if the proxy is in it and says so; else empty.
    fn own_cluster_name(&self) -> Arc<str> {
        if self.cluster.is_empty() { self.view.cluster.clone() } else { "".into() }
    }

    /// The machine it runs on; empty if unknown.
    pub fn node(&self) -> Arc<str> {
        self.workload.as_ref().map_or_else(|| "".into(), |workload| workload.node.clone())
    }

    /// The value of a label of its workload; may be empty.
    pub fn label(&self, name: &str) -> Arc<str> {
        self.labels().get(name).map_or_else(|| "".into(), |value| value.as_str().into())
    }

    /// See [`Workload::target_port`].
    pub fn target_port(&self, port: u16) -> Option<u16> {
        self.workload.as_ref()?.target_port(port)
    }

    /// The answer to a question about this proxy.
    pub fn answer(&self, question: &Question) -> Answer {
        let yes_or_no = |yes| if yes { Answer::Yes } else { Answer::No };
        match question {
            Question::SelectedBy(selector) => yes_or_no(selects(selector, self.labels())),
            Question::IsIn(namespace) => yes_or_no(self.view.namespace == *namespace),
            Question::Namespace => Answer::Text(self.view.namespace.clone()),
            Question::HasAddress(address) => yes_or_no(self.view.addresses.contains(address)),
            Question::IsAuthenticated => yes_or_no(self.view.authenticated),
            Question::TakesProxyProtocol => yes_or_no(self.view.takes_proxy_protocol),
            Question::CapturesDns => yes_or_no(self.view.captures_dns),
            Question::DiscoversItself => yes_or_no(self.view.peer_labels.is_some()),
            Question::TargetPort(port) => {
                Answer::Text(self.target_port(*port).map(|port| port.to_string()).unwrap_or_default().into())
            }
            Question::Cluster => Answer::Text(self.cluster.clone()),
            Question::ClusterName => Answer::Text(self.own_cluster_name()),
            Question::Network => Answer::Text(self.network.clone()),
            Question::Locality => Answer::Text(self.locality().clone()),
            Question::Node => Answer::Text(self.node()),
            Question::Label(name) => Answer::Text(self.label(name)),
            Question::Workload => Answer::Alone(self.view.namespace.clone(), self.view.pod.clone()),
        }
    }
}

/// The workload of a proxy: the Pod in the cluster that it names, or else in the control plane's own one, or else by address.
fn workload_of<'s>(view: &ProxyView, snapshot: &'s Snapshot) -> Option<&'s Arc<Workload>> {
    let is_remote = !view.cluster.is_empty() && view.cluster != snapshot.mesh.cluster;
    let remote = is_remote.then(|| name_in(&view.cluster, &view.pod).into());
    let by_pod = remote.and_then(|pod| snapshot.workload(&view.namespace, &pod));
    let by_pod = by_pod.or_else(|| snapshot.workload(&view.namespace, &view.pod));
    // Another network may have the same addresses.
    let is_possible = |workload: &&Arc<Workload>| !is_remote || workload.namespace == view.namespace;
    let at = |address: &IpAddr| snapshot.workload_at(*address).filter(is_possible);
    by_pod.or_else(|| view.addresses.iter().find_map(at))
}

/// Returns the settings that the proxy's configuration depends on. The node determines how its traffic is captured, and what
/// its bootstrap contains.
fn options(view: &ProxyView, workload: Option<&Workload>, labels: &Labels, snapshot: &Snapshot) -> Arc<ProxyOptions> {
    let options = settings(view, workload, labels, snapshot);
    let (has_collector, has_log_service) = (view.has_collector, view.has_log_service);
    let interception = view.interception.unwrap_or(options.interception);
    let names_hybrid_curve = view.takes_hybrid_curve;
    if interception == options.interception && !has_collector && !has_log_service && !names_hybrid_curve {
        return options;
    }
    Arc::new(ProxyOptions { interception, has_collector, has_log_service, names_hybrid_curve, ..(*options).clone() })
}

/// The node's own ProxyConfig, or that of the mesh, of ProxyConfigs and of the Pod's annotation.
fn settings(view: &ProxyView, workload: Option<&Workload>, labels: &Labels, snapshot: &Snapshot) -> Arc<ProxyOptions> {
    if !view.proxy_config.is_empty() {
        let json = serde_json::from_str(&view.proxy_config).unwrap_or_default();
        return Arc::new(ProxyOptions::of(&ProxyConfig::of_metadata(&json)));
    }
    let own = workload.and_then(|workload| workload.proxy_config.as_deref());
    // Nearly always there are no such settings.
    if own.is_none() && snapshot.proxy_rules.is_empty() && *snapshot.mesh.proxy_defaults == ProxyConfig::default() {
        return ProxyOptions::none();
    }
    let shared = snapshot.proxy_config(&view.namespace, labels);
    let config = own.map_or(shared.clone(), |own| own.clone().over(shared));
    Arc::new(ProxyOptions::of(&config))
}

/// The questions recorded while one result is generated.
#[derive(Debug, Default)]
pub struct Facts(RefCell<Vec<Question>>);

impl Facts {
    /// An empty record.
    pub fn new() -> Self {
        Self::default()
    }

    /// The recorded questions, each once, in order.
    pub fn into_questions(self) -> Vec<Question> {
        let mut questions = self.0.into_inner();
        questions.sort_unstable();
        questions.dedup();
        questions
    }

    /// Records a question.
    pub fn note(&self, question: Question) {
        self.0.borrow_mut().push(question);
    }
}
