use std::path::Path;

use evenkeel_model::{AddressBook, Builder, MeshConfig};
use evenkeel_testkit::objects::whole_service;
use evenkeel_translate::{ClientKind, ProxyKind};
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use evenkeel_xds::server::{Announcement, delta};

use super::*;
use crate::world::Noticed;

/// A mesh of one object per file, and the proxies it is told to.
struct Mesh {
    builder: Builder,
    worlds: watch::Sender<Arc<World>>,
    proxies: Arc<Proxies>,
}

impl Mesh {
    fn new(services: usize) -> Self {
        let mut builder = Builder::new(MeshConfig::default(), AddressBook::default()).checked(false);
        let files = (0..services).map(|n| (format!("s{n}.yaml"), whole_service(n)));
        let snapshot = builder.apply_files(files.map(|(name, text)| parsed(&name, &text)).collect::<Vec<_>>()).snapshot;
        let (worlds, world) = watch::channel(Arc::new(world(1, snapshot)));
        let options = PublishOptions { first_pushes: 100, compare: true };
        Self { builder, worlds, proxies: Proxies::new(world, Arc::default(), options) }
    }

    fn write(&mut self, name: &str, text: &str) {
        let snapshot = self.builder.apply_files(vec![parsed(name, text)]).snapshot;
        let generation = self.worlds.borrow().generation + 1;
        self.worlds.send_replace(Arc::new(world(generation, snapshot)));
        self.proxies.publish();
        self.check_invariants();
    }

    /// Every stream is to hold what the translator says, and nothing is kept for streams that are gone.
    fn check_invariants(&self) {
        assert_eq!(self.proxies.metrics.mismatches.load(Relaxed), 0);
        let (translator, state) = (lock(&self.proxies.translator), lock(&self.proxies.state));
        let mut classes = BTreeMap::new();
        for (id, stream) in &state.streams {
            let known = translator.joined(&stream.client.view).expect("it joined");
            let (holding, shared) = state.held_by(*id).expect("it is there");
            let (held, known) = (holding.over(&shared), known.set());
            assert!(
                held.diff(&known).next().is_none() && held.generation == known.generation,
                "{}",
                stream.client.node
            );
            *classes.entry(holding.class).or_insert(0) += 1;
        }
        let counted: BTreeMap<_, _> = state.classes.iter().map(|(id, class)| (*id, class.streams)).collect();
        assert_eq!(counted, classes);
        assert_eq!(state.by_view.values().map(BTreeSet::len).sum::<usize>(), state.streams.len());
    }
}

fn parsed(name: &str, text: &str) -> (Arc<Path>, Vec<Arc<evenkeel_api::Object>>) {
    let (objects, found) = evenkeel_api::load(&[(name.into(), text.into())]);
    assert!(!found.has_errors(), "{found}");
    (Path::new(name).into(), objects.into_iter().map(Arc::new).collect())
}

fn world(generation: u64, snapshot: Arc<evenkeel_model::Snapshot>) -> World {
    World {
        generation,
        noticed: Noticed::now(),
        causes: Arc::default(),
        snapshot,
        diagnostics: Arc::default(),
        sources: Arc::default(),
        refused: Arc::default(),
        never_accepted: Arc::default(),
    }
}

/// A proxy that subscribes to clusters by name.
struct Proxy {
    session: Session,
    stream: delta::Stream,
}

impl Proxy {
    async fn new(mesh: &Mesh, number: u8, app: &str, services: &[usize]) -> Self {
        let view = ProxyView {
            kind: ProxyKind::Sidecar,
            addresses: vec![[10, 1, 0, number].into()],
            pod: format!("w-{number}").into(),
            namespace: "shop".into(),
            service_account: "default".into(),
            labels: [("app".to_owned(), app.to_owned())].into(),
            client_kind: ClientKind::EvenkeelLearned,
            takes_proxy_protocol: false,
        };
        let client = Client {
            node: format!("w-{number}"),
            program: String::new(),
            view,
            peer: None,
            identity: None,
            since: SystemTime::now(),
        };
        let first = mesh.proxies.admit(None).await.expect("leave");
        let session = mesh.proxies.connect(client, first).expect("a session");
        let mut proxy = Self { session, stream: delta::Stream::new(Announcement::default()) };
        proxy.look();
        for kind in [ResourceType::Cluster, ResourceType::Endpoint] {
            let request = DeltaDiscoveryRequest {
                type_url: kind.type_url().to_owned(),
                resource_names_subscribe: services.iter().map(|n| cluster(*n)).collect(),
                ..Default::default()
            };
            proxy.stream.on_request(&request, Duration::ZERO).expect("a request");
        }
        proxy.stream.note_interest(&proxy.session.interest);
        proxy.look();
        mesh.check_invariants();
        proxy
    }

    /// Takes in what it is to hold now.
    fn look(&mut self) -> Arc<ResourceSet> {
        let set = self.session.resources.look();
        self.stream.on_snapshot(&set);
        set
    }

    /// Whether it was told to look since it did.
    fn is_told(&self) -> bool {
        match &self.session.resources {
            Resources::Asked { notice, .. } => notice.has_changed().expect("it goes on"),
            Resources::Given(_) => unreachable!("the control plane is asked"),
        }
    }

    fn endpoints(&mut self, service: usize) -> Option<Arc<evenkeel_xds::Resource>> {
        self.look().get(ResourceType::Endpoint, &cluster(service)).cloned()
    }
}

fn cluster(n: usize) -> String {
    format!("outbound|80||s{n}.shop.example.com")
}

fn told(mesh: &Mesh) -> Vec<u64> {
    mesh.proxies.reports().iter().map(|report| report.told).collect()
}

#[tokio::test]
async fn only_those_whom_a_change_concerns_are_told() {
    let mut mesh = Mesh::new(3);
    let mut all = [
        Proxy::new(&mesh, 1, "a", &[0]).await,
        Proxy::new(&mesh, 2, "a", &[0, 1]).await,
        Proxy::new(&mesh, 3, "b", &[1, 2, 3]).await,
    ];
    let mut check = |mesh: &mut Mesh, name: &str, text: &str, expected: [bool; 3]| {
        mesh.write(name, text);
        let found = all.each_ref().map(Proxy::is_told);
        all.iter_mut().zip(found).filter(|(_, told)| *told).for_each(|(proxy, _)| drop(proxy.look()));
        assert_eq!(found, expected, "{text}");
    };
    let moved = |n: usize| whole_service(n).replace("198.51.", "203.0.");
    check(&mut mesh, "s1.yaml", &moved(1), [false, true, true]);
    check(&mut mesh, "s9.yaml", &whole_service(9), [false; 3]);
    check(&mut mesh, "s3.yaml", &whole_service(3), [false, false, true]);
    check(&mut mesh, "s0.yaml", "", [true, true, false]);
    assert_eq!(told(&mesh), [5, 5, 4]);
    // What they were not told of they find when they look, and some time later they are told to.
    assert!(all[0].endpoints(9).is_some());
    assert!(!all[1].is_told() && !all[2].is_told());
    mesh.proxies.tell_those_behind();
    assert!(all.iter().all(Proxy::is_told));
    assert_eq!(told(&mesh), [5, 5, 4], "nothing was said of a change");
    all.iter_mut().for_each(|proxy| drop(proxy.look()));
    mesh.proxies.tell_those_behind();
    assert!(!all.iter().any(Proxy::is_told), "once");
}

/// A rule for the clients with a label: they are told apart from then on.
const RULE_FOR_B: &str = "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: b, namespace: shop}\n\
    spec: {host: s1.shop.example.com, workloadSelector: {matchLabels: {app: b}}, \
    trafficPolicy: {loadBalancer: {simple: RANDOM}}}\n";

#[tokio::test]
async fn proxies_that_change_their_class_follow_the_new_one() {
    let mut mesh = Mesh::new(3);
    let mut all = [
        Proxy::new(&mesh, 1, "a", &[1]).await,
        Proxy::new(&mesh, 2, "b", &[0, 1]).await,
        Proxy::new(&mesh, 3, "b", &[2]).await,
    ];
    let classes = |mesh: &Mesh| lock(&mesh.proxies.state).classes.len();
    assert_eq!(classes(&mesh), 1);
    mesh.write("rule.yaml", RULE_FOR_B);
    assert_eq!(classes(&mesh), 2);
    assert_eq!(all.each_ref().map(Proxy::is_told), [false, true, false]);
    let clusters = all.each_mut().map(|proxy| proxy.look().get(ResourceType::Cluster, &cluster(1)).cloned());
    assert!(clusters[1] == clusters[2] && clusters[0] != clusters[1]);
    mesh.write("s0.yaml", &whole_service(0).replace("198.51.", "203.0."));
    assert_eq!(all.each_ref().map(Proxy::is_told), [false, true, false]);
    // One comes that splits a class by being there, and one that joins it.
    let others = [Proxy::new(&mesh, 4, "c", &[1]).await, Proxy::new(&mesh, 5, "b", &[1]).await];
    mesh.write("rule.yaml", "");
    all.iter_mut().for_each(|proxy| drop(proxy.look()));
    mesh.write("s2.yaml", &whole_service(2).replace("198.51.", "203.0."));
    assert_eq!(all.each_ref().map(Proxy::is_told), [false, false, true]);
    drop(all);
    mesh.check_invariants();
    drop(others);
    mesh.check_invariants();
    assert_eq!(classes(&mesh), 0);
}

#[tokio::test]
async fn what_is_built_anew_replaces_what_streams_hold() {
    let mut mesh = Mesh::new(3);
    let mut all = [Proxy::new(&mesh, 1, "a", &[1]).await, Proxy::new(&mesh, 2, "b", &[0]).await];
    let before = all.each_mut().map(Proxy::look);
    let told = mesh.builder.told();
    let snapshot = mesh.builder.rebuild(told).snapshot;
    let generation = mesh.worlds.borrow().generation;
    mesh.worlds.send_replace(Arc::new(world(generation, snapshot)));
    mesh.proxies.rebuild();
    mesh.check_invariants();
    assert!(all.iter().all(Proxy::is_told), "they let go of what was");
    for (proxy, before) in all.iter_mut().zip(before) {
        let now = proxy.look();
        assert!(now.diff(&before).next().is_none() && now.generation == before.generation);
        let (now, before) = (now.of(ResourceType::Cluster), before.of(ResourceType::Cluster));
        assert!(now.values().zip(before.values()).all(|(now, before)| !Arc::ptr_eq(now, before)));
    }
    mesh.write("s1.yaml", &whole_service(1).replace("198.51.", "203.0."));
    assert_eq!(all.each_ref().map(Proxy::is_told), [true, false]);
}

#[tokio::test]
async fn who_goes_while_it_waits_is_counted_no_more() {
    let (_worlds, world) = watch::channel(Arc::new(world(1, Arc::default())));
    let proxies = Proxies::new(world, Arc::default(), PublishOptions { first_pushes: 1, compare: false });
    let waiting = || proxies.metrics.waiting_streams.load(Relaxed);
    let first = proxies.admit(None).await.expect("leave");
    let id = SpiffeId::new("cluster.local", "shop", "web").expect("an identity");
    let mut second = Box::pin(proxies.admit(Some(&id)));
    let pending = std::future::poll_fn(|cx| std::task::Poll::Ready(second.as_mut().poll(cx).is_pending())).await;
    assert!(pending, "it has to wait");
    assert_eq!(waiting(), 1);
    drop(second);
    assert_eq!(waiting(), 0);
    // Nor does it keep its place among those of its identity, or the turn.
    assert_eq!(proxies.by_identity.taken(), 0);
    drop(first);
    proxies.admit(None).await.expect("leave");
    assert_eq!(waiting(), 0);
}
