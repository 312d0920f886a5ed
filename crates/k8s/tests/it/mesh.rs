//! A source of an API server, and what the model makes of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_api::Kind;
use evenkeel_control::metrics::Event;
use evenkeel_control::source::feed::ObjectSource;
use evenkeel_control::source::{Extent, LiveSource as _};
use evenkeel_k8s::client::{ClusterOptions, ExecPlugins};
use evenkeel_k8s::source::{self, Scope, Watching};
use evenkeel_model::{AddressBook, Builder, MeshConfig, Snapshot, Source as _};
use evenkeel_testkit::kubernetes::ApiServer;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Time limit of every wait, also on a busy machine; only a failure takes that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A source, and the model of its objects.
pub struct Mesh {
    pub source: ObjectSource,
    pub watching: Watching,
    pub snapshot: Arc<Snapshot>,
    /// How often the source has told of something.
    pub events: usize,
    builder: Builder,
}

/// Starts a source, and waits until it has everything.
pub async fn start(kubeconfig: &Path) -> (Watching, ObjectSource) {
    start_in(kubeconfig, &Scope::all("istio-system")).await
}

/// Starts a source.
pub async fn begin(kubeconfig: &Path) -> (Watching, ObjectSource) {
    begin_in(kubeconfig, &Scope::all("istio-system")).await
}

async fn begin_in(kubeconfig: &Path, scope: &Scope) -> (Watching, ObjectSource) {
    let options = ClusterOptions { kubeconfig: Some(kubeconfig.to_owned()), context: None };
    source::start(options.client(ExecPlugins::Refuse).await.expect("a client"), scope)
}

/// Starts a source of what is in a scope, and waits until it has everything.
pub async fn start_in(kubeconfig: &Path, scope: &Scope) -> (Watching, ObjectSource) {
    let (mut watching, source) = begin_in(kubeconfig, scope).await;
    let synced = tokio::time::timeout(PATIENCE, watching.synced()).await;
    let Ok(synced) = synced else { panic!("not listed in time: {:?}", watching.progress().borrow()) };
    synced.expect("the source goes on");
    (watching, source)
}

impl Mesh {
    /// Starts a source, and waits until it has everything.
    pub async fn start(kubeconfig: &Path) -> Self {
        let (watching, source) = start(kubeconfig).await;
        Self::of(watching, source)
    }

    /// The model of what a source has.
    pub fn of(watching: Watching, mut source: ObjectSource) -> Self {
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default());
        source.first();
        let snapshot = builder.apply(source.tell()).snapshot;
        Self { source, watching, snapshot, events: 0, builder }
    }

    /// Takes over changes until the snapshot is as wanted.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&Snapshot) -> bool) {
        let wait = async {
            while !is_so(&self.snapshot) {
                self.source.changed().await.expect("the source goes on");
                self.take().await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, wait).await;
        assert!(in_time.is_ok(), "never: {what}; {:?}", hosts(&self.snapshot));
    }

    /// Takes over changes for a time.
    pub async fn during(&mut self, time: Duration) {
        let wait = async {
            loop {
                self.source.changed().await.expect("the source goes on");
                self.take().await;
            }
        };
        _ = tokio::time::timeout(time, wait).await;
    }

    async fn take(&mut self) {
        self.source.refresh(Extent::All).await;
        let events = self.source.tell();
        self.events += events.len();
        self.snapshot = self.builder.apply(events).snapshot;
    }

    /// Waits until the API server has told of this many changes of a kind that changed nothing.
    pub async fn until_unchanged(&mut self, kind: Kind, wanted: u64) {
        let mut count = 0;
        let wait = async {
            while count < wanted {
                count += self.source.unchanged().get(&(kind, Event::UpdateSame)).copied().unwrap_or_default();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, wait).await;
        assert!(in_time.is_ok(), "never {wanted} of {kind}");
    }
}

/// The hosts of all services, and their ready endpoints.
pub fn hosts(snapshot: &Snapshot) -> Vec<String> {
    let all = snapshot.services.iter().flat_map(|service| {
        service.ports.iter().map(|port| {
            let endpoints = snapshot.endpoints(service, port.number);
            let mut ready: Vec<String> = endpoints
                .iter()
                .filter(|endpoint| endpoint.ready)
                .map(|endpoint| format!("{:?}", endpoint.address))
                .collect();
            ready.sort();
            format!("{}:{} {ready:?}", service.host, port.number)
        })
    });
    let mut all: Vec<String> = all.collect();
    all.sort();
    all
}

/// Whether a service has this many ready endpoints at its first port; `None`: there is no such service.
pub fn ready(snapshot: &Snapshot, host: &str) -> Option<usize> {
    let service = snapshot.services_of(host).first()?;
    let port = service.ports.first()?.number;
    Some(snapshot.endpoints(service, port).iter().filter(|endpoint| endpoint.ready).count())
}

/// A Service with one HTTP port.
pub fn service(namespace: &str, name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: {port}, targetPort: 8080}}]}}\n---\n"
    )
}

/// A Pod; its status is [`set_ready`].
pub fn pod(namespace: &str, name: &str, app: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {{app: {app}}}}}\n\
         spec: {{nodeName: n1, containers: [{{name: main, image: x, ports: [{{containerPort: 8080}}]}}]}}\n---\n"
    )
}

/// Gives a Pod an address, and makes it ready or not.
pub fn set_ready(server: &ApiServer, namespace: &str, name: &str, ip: &str, ready: bool) {
    let ready = if ready { "True" } else { "False" };
    let patch = format!(
        r#"{{"status":{{"phase":"Running","podIP":"{ip}","podIPs":[{{"ip":"{ip}"}}],"conditions":[{{"type":"Ready","status":"{ready}"}}]}}}}"#
    );
    server.kubectl(&["patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", &patch]);
}

/// A way to an API server that can be cut: connections end, and no new ones are taken.
pub struct Wire {
    is_open: watch::Sender<bool>,
    kubeconfig: PathBuf,
    _folder: tempfile::TempDir,
}

impl Wire {
    /// Makes a way to this server.
    pub async fn to(server: &ApiServer) -> Self {
        let (is_open, open) = watch::channel(true);
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let (from, to) = (listener.local_addr().expect("an address"), server.address());
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let mut open = open.clone();
                tokio::spawn(async move {
                    if !*open.borrow() {
                        return;
                    }
                    let Ok(mut server) = TcpStream::connect(to).await else { return };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                        _ = open.wait_for(|open| !*open) => {}
                    }
                });
            }
        });
        let folder = tempfile::tempdir().expect("a directory");
        let kubeconfig = folder.path().join("kubeconfig");
        let text = std::fs::read_to_string(server.kubeconfig()).expect("a file");
        std::fs::write(&kubeconfig, text.replace(&to.to_string(), &from.to_string())).expect("a file");
        Self { is_open, kubeconfig, _folder: folder }
    }

    /// The kubeconfig that leads over it.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Cuts it, or mends it.
    pub fn set_open(&self, is_open: bool) {
        self.is_open.send_replace(is_open);
    }
}
