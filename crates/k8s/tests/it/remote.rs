//! Remote clusters with API servers of their own: their endpoints, other kubeconfigs, outages, and the removal.

use std::time::{Duration, SystemTime};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use evenkeel_admin::clusters::{RemoteCluster, SyncStatus};
use evenkeel_ca::tokens::AUDIENCE;
use evenkeel_control::authentication::{Presented, TokenAuthenticator as _, TokenRefusal};
use evenkeel_control::source::feed::ObjectSource;
use evenkeel_control::source::{Extent, LiveSource as _, SOURCE_OUTAGE};
use evenkeel_k8s::remote::{self, RemoteOptions, Remotes};
use evenkeel_k8s::source::Watching;
use evenkeel_k8s::token_review::clusters::ClusterTokens;
use evenkeel_model::{AddressBook, Builder, Endpoint, MeshConfig, Snapshot, Source as _};
use evenkeel_testkit::kubernetes::{ApiServer, TokenOptions};

use crate::fixture::{admin, client};
use crate::mesh::{PATIENCE, Wire, pod, service, set_ready, start};

/// The rights that a remote cluster gives.
const READER: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules:
- apiGroups: ['', discovery.k8s.io, apiextensions.k8s.io]
  resources: [services, endpointslices, pods, namespaces, nodes, customresourcedefinitions]
  verbs: [get, list, watch]
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
---
";

fn binding(account: &str) -> String {
    format!(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {{name: {account}}}\n\
         roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}}\n\
         subjects: [{{kind: ServiceAccount, name: {account}, namespace: istio-system}}]\n---\n"
    )
}

fn namespace(name: &str) -> String {
    format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n---\n")
}

/// A cluster with a Service `a` in `shop`, and a Pod of it.
fn cluster(address: &str) -> ApiServer {
    let server = ApiServer::start();
    server.apply(&[namespace("istio-system"), namespace("shop")].concat());
    server.service_account("shop", "default");
    server.apply(&[service("shop", "a", 80), pod("shop", "a-0", "a")].concat());
    set_ready(&server, "shop", "a-0", address, true);
    server
}

/// Lets an account read, and returns its token.
fn reader(server: &ApiServer, account: &str) -> String {
    server.service_account("istio-system", account);
    server.apply(&[READER, &binding(account)].concat());
    let lifetime = Duration::from_secs(3600);
    server.token("istio-system", account, &TokenOptions { lifetime, ..TokenOptions::default() })
}

fn kubeconfig(server: &ApiServer, address: &str, user: &str) -> String {
    let roots = BASE64_STANDARD.encode(server.root_pem());
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\ncontexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: 'https://{address}', certificate-authority-data: {roots}}}}}]\n\
         users: [{{name: a, user: {{{user}}}}}]\n"
    )
}

fn secret(name: &str, cluster: &str, kubeconfig: &str) -> String {
    let data = BASE64_STANDARD.encode(kubeconfig);
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: istio-system, labels: {{istio/multiCluster: 'true'}}}}\n\
         data: {{{cluster}: {data}}}\n---\n"
    )
}

/// The address that a kubeconfig leads to.
fn address_in(wire: &Wire) -> String {
    let text = std::fs::read_to_string(wire.kubeconfig()).expect("a file");
    let (_, rest) = text.split_once("https://").expect("an address");
    rest.split('"').next().expect("its end").to_owned()
}

fn options(timeout: Duration) -> RemoteOptions {
    let namespace = "istio-system".to_owned();
    RemoteOptions { namespace: namespace.clone(), root: namespace, own: "Kubernetes".to_owned(), timeout }
}

/// A control plane's view of its own cluster and the remote ones.
struct World {
    own: ObjectSource,
    of_remotes: ObjectSource,
    remotes: Remotes,
    _watching: Watching,
    builder: Builder,
    snapshot: Snapshot,
    /// The fewest endpoints that `a` has had since this was set.
    fewest: usize,
}

impl World {
    async fn start(server: &ApiServer, timeout: Duration) -> Self {
        let (watching, mut own) = start(&server.kubeconfig()).await;
        let (mut remotes, mut of_remotes) = remote::start(admin(server).await, options(timeout));
        remotes.settled().await;
        own.first();
        of_remotes.first();
        let builder = Builder::new(MeshConfig::default(), AddressBook::default());
        let mut world = Self {
            own,
            of_remotes,
            remotes,
            _watching: watching,
            builder,
            snapshot: Snapshot::default(),
            fewest: usize::MAX,
        };
        world.take().await;
        world
    }

    async fn take(&mut self) {
        self.own.refresh(Extent::All).await;
        self.of_remotes.refresh(Extent::All).await;
        let events = self.own.tell().into_iter().chain(self.of_remotes.tell());
        self.snapshot = (*self.builder.apply(events.collect::<Vec<_>>()).snapshot).clone();
        self.fewest = self.fewest.min(self.endpoints().len());
    }

    /// The endpoints of `a`: cluster, address and network.
    fn endpoints(&self) -> Vec<String> {
        let Some(a) = self.snapshot.services_of("a.shop.svc.cluster.local").first() else { return Vec::new() };
        let text = |e: &Endpoint| format!("{}/{}/{}", e.cluster, e.address, e.network);
        let ready = self.snapshot.endpoints(a, 80).iter().filter(|endpoint| endpoint.ready);
        let mut all: Vec<String> = ready.map(text).collect();
        all.sort();
        all
    }

    async fn until_endpoints(&mut self, expected: &[&str]) {
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        let waiting = async {
            while self.endpoints() != expected {
                tokio::time::sleep(Duration::from_millis(100)).await;
                self.take().await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(in_time.is_ok(), "{:?}, never {expected:?}; {:?}", self.endpoints(), self.clusters());
    }

    fn clusters(&self) -> Vec<RemoteCluster> {
        self.remotes.page().borrow().clusters.clone()
    }

    /// Waits for the state of a cluster, and returns the reason for it. An alarm is a finding, anything else is none.
    async fn until_status(&mut self, cluster: &str, status: SyncStatus) -> String {
        let is_so = |one: &RemoteCluster| one.id == cluster && one.sync_status == status;
        let waiting = async {
            loop {
                self.take().await;
                if let Some(found) = self.clusters().into_iter().find(is_so) {
                    return found.reason.unwrap_or_default();
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let in_time = tokio::time::timeout(Duration::from_secs(120), waiting).await;
        let reason = in_time.unwrap_or_else(|_| panic!("{cluster} is never {status:?}: {:?}", self.clusters()));
        let findings = self.of_remotes.findings();
        let named = format!("remote cluster `{cluster}`");
        let is_alarm = findings.iter().any(|found| found.code == SOURCE_OUTAGE && found.message.contains(&named));
        assert_eq!(is_alarm, status.is_alarm(), "{status:?}");
        reason
    }
}

/// A token is shown to the API server of the cluster that it is said to be from, and to no other.
async fn tokens_are_verified_by_their_cluster(east: &ApiServer, west: &ApiServer, world: &World) {
    let tokens = ClusterTokens::new(admin(east).await, "Kubernetes", world.remotes.reviews());
    let options = TokenOptions { audience: Some(AUDIENCE), pod: Some("a-0"), ..TokenOptions::default() };
    let [of_east, of_west] = [east, west].map(|server| server.token("shop", "default", &options));
    let check = async |token: &str, cluster: &str, expected: Result<&str, &str>| {
        let verdict = tokens.review(Presented { token, cluster }, SystemTime::now()).await;
        match (verdict.map(|workload| workload.pod).map_err(|refusal| refusal.to_string()), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(found), Err(expected)) => assert!(found.contains(expected), "{found}"),
            (found, expected) => panic!("{found:?}, not {expected:?}"),
        }
    };
    check(&of_east, "", Ok("a-0")).await;
    check(&of_east, "Kubernetes", Ok("a-0")).await;
    check(&of_west, "west", Ok("west/a-0")).await;
    check(&of_west, "", Err("the API server refuses the token")).await;
    check(&of_east, "west", Err("the API server refuses the token")).await;
    check(&of_west, "north", Err("no remote cluster of the name")).await;
    // Nobody is asked to come again with what no API server would accept.
    let other = west.token("shop", "default", &TokenOptions::default());
    for (token, expected) in [("garbage", "no JSON Web Token"), (&other, "its audience is not `istio-ca`")] {
        let presented = Presented { token, cluster: "north" };
        let at_once = tokens.verdict(presented, SystemTime::now());
        for verdict in [at_once.expect("a verdict"), tokens.review(presented, SystemTime::now()).await] {
            assert!(matches!(&verdict, Err(TokenRefusal::Invalid(reason)) if reason.contains(expected)), "{verdict:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn endpoints_of_a_remote_cluster_stay_until_its_secret_is_gone() {
    let (east, west) = (cluster("10.1.0.1"), cluster("10.2.0.1"));
    let wire = Wire::to(&west).await;
    let address = address_in(&wire);
    let token = |account: &str| format!("token: {}", reader(&west, account));
    let first = kubeconfig(&west, &address, &token("first"));
    east.apply(&secret("west", "west", &first));
    let mut world = World::start(&east, Duration::from_secs(30)).await;
    world.until_endpoints(&["/10.1.0.1/", "west/10.2.0.1/"]).await;
    world.until_status("west", SyncStatus::Synced).await;

    tokens_are_verified_by_their_cluster(&east, &west, &world).await;

    // Changes there are followed, also of the network that the cluster is in.
    west.apply(&pod("shop", "a-1", "a"));
    set_ready(&west, "shop", "a-1", "10.2.0.2", true);
    world.until_endpoints(&["/10.1.0.1/", "west/10.2.0.1/", "west/10.2.0.2/"]).await;
    west.kubectl(&["label", "namespace", "istio-system", "topology.istio.io/network=n2"]);
    let all = ["/10.1.0.1/", "west/10.2.0.1/n2", "west/10.2.0.2/n2"];
    world.until_endpoints(&all).await;

    // Another kubeconfig takes over, and nothing is lost meanwhile.
    world.fewest = usize::MAX;
    let second = kubeconfig(&west, &address, &token("second"));
    east.apply(&secret("west", "west", &second));
    tokio::time::sleep(Duration::from_secs(1)).await;
    west.kubectl(&["delete", "serviceaccount", "first", "-n", "istio-system"]);
    west.apply(&pod("shop", "a-2", "a"));
    set_ready(&west, "shop", "a-2", "10.2.0.3", true);
    let more = ["/10.1.0.1/", "west/10.2.0.1/n2", "west/10.2.0.2/n2", "west/10.2.0.3/n2"];
    world.until_endpoints(&more).await;

    // One that cannot be used is an alarm, and the one before it stays in use.
    let (exec, dead) = ("exec: {apiVersion: client.authentication.k8s.io/v1, command: /bin/true}", "127.0.0.1:1");
    let forbidden = format!("token: {}", west.token("shop", "default", &TokenOptions::default()));
    for (kubeconfig, expected) in [
        ("nonsense".to_owned(), "no kubeconfig"),
        (kubeconfig(&west, &address, exec), "`exec` is not accepted"),
        (kubeconfig(&west, dead, &token("second-more")), "cannot be listed"),
        (kubeconfig(&west, &address, &forbidden), "forbidden"),
    ] {
        east.apply(&secret("west", "west", &kubeconfig));
        let waiting = async {
            loop {
                let reason = world.until_status("west", SyncStatus::Failed).await;
                if reason.contains(expected) {
                    assert!(reason.contains("stays in use"), "{reason}");
                    break;
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, waiting).await;
        assert!(in_time.is_ok(), "never {expected}: {:?}", world.clusters());
    }
    west.kubectl(&["delete", "pod", "a-2", "-n", "shop", "--force", "--grace-period=0"]);
    world.until_endpoints(&all).await;
    assert_eq!(world.fewest, 3, "nothing was lost");
    east.apply(&secret("west", "west", &second));
    world.until_status("west", SyncStatus::Synced).await;

    // An outage of its API server takes nothing away.
    wire.set_open(false);
    world.until_status("west", SyncStatus::Outage).await;
    assert_eq!(world.endpoints(), all);
    wire.set_open(true);
    world.until_status("west", SyncStatus::Synced).await;

    // No Secret takes the name of another cluster.
    east.apply(&secret("thief", "west", &first));
    let reason = world.until_status("west (istio-system/thief)", SyncStatus::Failed).await;
    assert!(reason.contains("istio-system/west has a cluster of this name"), "{reason}");
    east.apply(&secret("own", "Kubernetes", &first));
    world.until_status("Kubernetes", SyncStatus::Failed).await;
    assert_eq!((world.endpoints(), world.fewest), (all.map(str::to_owned).to_vec(), 3));

    east.kubectl(&["delete", "secret", "own", "thief", "west", "-n", "istio-system"]);
    world.until_endpoints(&["/10.1.0.1/"]).await;
    assert!(world.clusters().is_empty(), "{:?}", world.clusters());
    assert!(!world.of_remotes.findings().iter().any(|found| found.code == SOURCE_OUTAGE));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_does_not_wait_for_a_cluster_that_is_away() {
    let (east, west) = (cluster("10.1.0.1"), cluster("10.2.0.1"));
    let token = format!("token: {}", reader(&west, "reader"));
    west.kill();
    east.apply(&secret("west", "west", &kubeconfig(&west, &west.address().to_string(), &token)));
    let mut world = World::start(&east, Duration::from_secs(2)).await;
    assert_eq!(world.endpoints(), ["/10.1.0.1/"]);
    world.until_status("west", SyncStatus::Timeout).await;
    // It is not forgotten.
    west.restart();
    world.until_endpoints(&["/10.1.0.1/", "west/10.2.0.1/"]).await;
    world.until_status("west", SyncStatus::Synced).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn secrets_that_cannot_be_read_are_an_alarm_until_they_can() {
    let east = ApiServer::start();
    east.apply(&namespace("istio-system"));
    let wire = Wire::to(&east).await;
    let (mut remotes, mut source) = remote::start(client(wire.kubeconfig()).await, options(Duration::from_secs(30)));
    remotes.settled().await;
    source.first();
    let mut page = remotes.page();
    for is_open in [false, true] {
        wire.set_open(is_open);
        let in_time = tokio::time::timeout(PATIENCE, page.wait_for(|page| page.failing.is_none() == is_open)).await;
        assert!(in_time.is_ok(), "{is_open}: never");
        source.refresh(Extent::All).await;
        let alarms = source.findings().iter().filter(|found| found.code == SOURCE_OUTAGE).count();
        // Nobody must take the list for an empty one.
        let listed = remotes.page().borrow().clusters.iter().filter(|one| one.sync_status.is_alarm()).count();
        assert_eq!((alarms, listed), if is_open { (0, 0) } else { (1, 1) });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn endpoints_wait_until_their_network_is_known() {
    let (east, west) = (cluster("10.1.0.1"), cluster("10.2.0.1"));
    west.kubectl(&["label", "namespace", "istio-system", "topology.istio.io/network=n2"]);
    let wire = Wire::to(&west).await;
    let token = format!("token: {}", reader(&west, "reader"));
    west.apply(&READER.replace("namespaces, ", ""));
    east.apply(&secret("west", "west", &kubeconfig(&west, &address_in(&wire), &token)));
    let mut world = World::start(&east, Duration::from_secs(5)).await;
    let reason = world.until_status("west", SyncStatus::Timeout).await;
    assert!(reason.contains("Namespace") && reason.contains("forbidden"), "{reason}");
    assert_eq!(world.endpoints(), ["/10.1.0.1/"], "whether they can be called directly is not known");
    west.apply(READER);
    let all = ["/10.1.0.1/", "west/10.2.0.1/n2"];
    world.until_endpoints(&all).await;
    world.until_status("west", SyncStatus::Synced).await;
}
