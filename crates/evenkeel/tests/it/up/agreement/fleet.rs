//! A mesh whose workloads stay while its policies and routes change: real calls, what the proxies keep of them, and the mesh
//! as the commands read it.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_api::Object;
use evenkeel_control::source::files::Files;
use evenkeel_explain::World;
use evenkeel_explain::answer::ProxyName;
use evenkeel_explain::plan::Sampled;
use evenkeel_explain::recent::RecordedRequest;
use evenkeel_filters::explain::query::{RecentRequest, RecentRequests};
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::exec;
use evenkeel_model::{MeshConfig, PublishedPort};
use evenkeel_testkit::{Process, Signal};

use super::super::user::User;
use super::super::{PATIENCE, wait_ready};

/// The file whose objects change.
const CHANGING: &str = "policies.yaml";
/// An object that is applied only to wait for the proxies.
const MARK: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: mark}\n";

/// A running `evenkeel up` of its own directory.
pub struct Fleet {
    user: User,
    up: Process,
    directory: tempfile::TempDir,
}

/// A call, by the client's name (`WORKLOAD.NAMESPACE`, or `outside`).
#[derive(Debug, Clone)]
pub struct Call {
    /// The client.
    pub from: String,
    /// Its method.
    pub method: String,
    /// Host and port, without the scheme.
    pub to: String,
    /// Its path; a parameter tells the calls apart.
    pub path: String,
    /// Names and values; `host` replaces the URL's.
    pub headers: Vec<(String, String)>,
}

/// What came of a call: the status, 0 for none; and the workload whose program answered.
pub type Outcome = (u16, String);

impl Call {
    /// As curl takes it.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.to, self.path)
    }
}

/// The mesh's objects and texts as the commands read them.
pub struct Read {
    objects: Vec<Object>,
    texts: BTreeMap<Arc<str>, Arc<str>>,
    addresses: evenkeel_model::AddressBook,
    mesh: MeshConfig,
    published: Vec<PublishedPort>,
}

impl Fleet {
    /// Starts the mesh of these objects. `replicas`: with gateways. `ports`: those of Gateways, which get free ones of the machine.
    pub fn start(objects: &str, replicas: usize, ports: &[u16]) -> Self {
        let directory = super::super::state();
        fs::write(directory.path().join("workloads.yaml"), objects).expect("our own folder");
        Self::of(directory, replicas, ports)
    }

    /// Starts the mesh of a directory.
    pub fn of(directory: tempfile::TempDir, replicas: usize, ports: &[u16]) -> Self {
        let user = User::present();
        fs::write(directory.path().join(CHANGING), "").expect("our own folder");
        let mut command = user.evenkeel(&["up"]);
        command.arg(directory.path()).arg("--state").arg(user.state.path());
        for port in ports {
            command.arg("--gateway-port").arg(format!("{port}=0"));
        }
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, replicas);
        Self { user, up, directory }
    }

    fn state(&self) -> StateDir {
        StateDir::new(self.user.state.path()).expect("the state directory")
    }

    /// The ports of this machine that lead to gateways, as the commands learn of them.
    pub fn published(&self) -> Vec<PublishedPort> {
        self.state().published_ports()
    }

    fn evenkeel(&self, arguments: &[&str]) -> Command {
        let mut command = self.user.evenkeel(arguments);
        command.arg("--state").arg(self.user.state.path());
        command
    }

    /// Replaces the changing objects, and waits until all proxies run them.
    pub fn write(&self, text: &str) {
        if let Err(said) = self.try_write(text) {
            panic!("{said}\n{text}");
        }
    }

    /// The same; or says what keeps it from being in force.
    pub fn try_write(&self, text: &str) -> Result<(), String> {
        let (new, file) = (self.directory.path().join("new"), self.directory.path().join(CHANGING));
        fs::write(&new, text).expect("our own folder");
        fs::rename(&new, file).expect("our own folder");
        let mark = self.user.state.path().join("mark.yaml");
        fs::write(&mark, MARK).expect("our own folder");
        let output = self.evenkeel(&["apply", "--wait"]).arg("-f").arg(mark).output().expect("it runs");
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if output.status.success() { Ok(()) } else { Err(said) }
    }

    /// Makes the calls, those of each client one after the other.
    pub fn call(&self, calls: &[Call]) -> Vec<Outcome> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; calls.len()];
        let mut clients: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for (at, call) in calls.iter().enumerate() {
            clients.entry(&call.from).or_default().push(at);
        }
        for (client, of_client) in clients {
            let own: Vec<&Call> = of_client.iter().filter_map(|at| calls.get(*at)).collect();
            let got =
                if client == "outside" { self.call_from_outside(&own) } else { self.call_from_workload(client, &own) };
            assert_eq!(got.len(), own.len(), "{client}: {got:?}");
            of_client.into_iter().zip(got).for_each(|(at, outcome)| outcomes[at] = Some(outcome));
        }
        outcomes.into_iter().map(Option::unwrap_or_default).collect()
    }

    fn call_from_outside(&self, calls: &[&Call]) -> Vec<Outcome> {
        let mut curl = Command::new("curl");
        curl.args(["--noproxy", "*"]);
        called_with(&mut curl, calls)
    }

    fn call_from_workload(&self, client: &str, calls: &[&Call]) -> Vec<Outcome> {
        let (name, namespace) = client.split_once('.').expect("WORKLOAD.NAMESPACE");
        let mut command = self.evenkeel(&["exec", name, "-n", namespace]);
        called_with(command.arg("--").arg("curl"), calls)
    }

    /// Now, as proxies note it.
    pub fn now_us() -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    }

    /// What the proxies have kept of requests that began since then, the heads as they were received.
    pub fn kept(&self, since_us: u64) -> Vec<(ProxyName, RecentRequest)> {
        let replicas = exec::list(self.user.state.path(), "", None).expect("the mesh runs");
        let mut all = Vec::new();
        for replica in replicas {
            let asked = ["proxy-config", "page", "/requests", &replica.pod, "--namespace", &replica.namespace];
            let output = self.evenkeel(&asked).output().expect("it runs");
            // A workload without a sidecar has no pages.
            let Ok(page) = serde_json::from_slice::<RecentRequests>(&output.stdout) else { continue };
            let (workload, pod, namespace) = (replica.workload, replica.pod, replica.namespace);
            let proxy = ProxyName { side: "", workload, pod, namespace };
            let is_new = |request: &RecentRequest| request.started_us >= since_us && !request.edited;
            all.extend(page.requests.into_iter().filter(is_new).map(|request| (proxy.clone(), request)));
        }
        all
    }

    /// Reads the mesh as commands without `-f` do.
    pub fn read(&self) -> Read {
        let state = self.state();
        let mut files = Files::new(vec![self.directory.path().to_owned(), state.runtime()]);
        files.refresh(SystemTime::now());
        let texts = files.texts().map(|(path, _, text)| (path.to_string_lossy().into(), text.into())).collect();
        let book = fs::read(state.control().join("addresses.json")).ok();
        let addresses = book.and_then(|book| serde_json::from_slice(&book).ok()).unwrap_or_default();
        let mesh = state.running_options().expect("what the running mesh tells of itself").mesh();
        Read { objects: files.objects(), texts, addresses, mesh, published: self.published() }
    }

    /// The address of a workload's only Pod.
    pub fn address(&self, workload: &str, namespace: &str) -> IpAddr {
        let (world, _) = self.read().worlds("");
        let found = world.find(workload, Some(namespace)).expect("a workload of the mesh");
        *found.addresses.first().expect("its replica runs")
    }

    /// Ends the mesh.
    pub fn end(mut self) {
        self.up.signal(Signal::SIGINT);
        assert!(self.up.wait_for_exit(PATIENCE).success(), "{}", self.up.output());
    }
}

impl Read {
    /// The mesh, and the mesh with other changing objects.
    pub fn worlds(self, next: &str) -> (World, World) {
        let is_changing = |object: &Object| object.origin.file.ends_with(CHANGING);
        let name: Arc<str> = CHANGING.into();
        let (objects, found) = evenkeel_api::load(&[(name.clone(), next.into())]);
        assert!(!found.has_errors(), "{found}");
        let kept = self.objects.iter().filter(|object| !is_changing(object)).cloned();
        let after: Vec<Object> = kept.chain(objects).collect();
        let mut texts = self.texts.clone();
        texts.insert(name, next.into());
        let after = World::of_mesh(after, texts, self.addresses.clone(), self.mesh.clone());
        let before = World::of_mesh(self.objects, self.texts, self.addresses, self.mesh);
        (before.with_published(self.published), after)
    }
}

/// Makes the calls with this curl, one after the other.
fn called_with(curl: &mut Command, calls: &[&Call]) -> Vec<Outcome> {
    for (at, call) in calls.iter().enumerate() {
        if at > 0 {
            curl.arg("--next");
        }
        curl.args(["-s", "-m", "20", "-o", "/dev/null", "-w", "%{http_code} %header{x-served-by}\\n", "--path-as-is"]);
        if call.method == "HEAD" {
            curl.arg("-I");
        } else if call.method != "GET" {
            curl.args(["-X", &call.method]);
        }
        for (name, value) in &call.headers {
            // In curl's spelling of a header without a value.
            let line = if value.is_empty() { format!("{name};") } else { format!("{name}: {value}") };
            curl.args(["-H", &line]);
        }
        curl.arg("-g").arg(call.url());
    }
    let output = curl.output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let read = |line: &str| {
        let (status, by) = line.split_once(' ').unwrap_or((line, ""));
        (status.parse().unwrap_or(0), by.trim().to_owned())
    };
    text.lines().map(read).collect()
}

/// The records as `plan` takes them.
pub fn sampled(kept: &[(ProxyName, RecentRequest)]) -> Vec<Sampled> {
    let one = |(proxy, request): &(ProxyName, RecentRequest)| Sampled {
        pod: proxy.pod.clone(),
        namespace: proxy.namespace.clone(),
        request: request.clone(),
    };
    kept.iter().map(one).collect()
}

/// The record, as if the proxy had been asked now and decided as the files say.
pub fn replayed(world: &World, (proxy, request): &(ProxyName, RecentRequest)) -> RecordedRequest {
    let replayed = world.replay(&proxy.pod, &proxy.namespace, request);
    let decision = replayed.map(|replayed| replayed.decision).ok_or_else(|| "no such Pod".to_owned());
    let now =
        decision.map(|decision| evenkeel_filters::explain::query::ProxyDecision { decision, ..Default::default() });
    RecordedRequest { proxy: proxy.clone(), request: request.clone(), now }
}

/// A copy of the binary beside the manifests, since programs may not read the checkout.
pub fn program(folder: &Path) -> String {
    let program = folder.join("evenkeel");
    fs::copy(env!("CARGO_BIN_EXE_evenkeel"), &program).expect("the binary can be copied");
    program.display().to_string()
}
