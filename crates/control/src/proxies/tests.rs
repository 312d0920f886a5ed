use std::path::Path;
use std::pin::pin;
use std::task::Poll;

use evenkeel_model::{AddressBook, Builder, MeshConfig};
use evenkeel_testkit::objects::whole_service;
use evenkeel_translate::{ClientKind, ProxyKind, Translator};
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use evenkeel_xds::server::{Announcement, delta};
use tokio::sync::oneshot;

use super::mailbox::Work;
use super::*;
use crate::noticed::Noticed;

/// A mesh with one object per file, and its proxies.
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
        let proxies = Proxies::new(world, Arc::default(), options).expect("a thread");
        Self { builder, worlds, proxies }
    }

    async fn write(&mut self, name: &str, text: &str) {
        self.change(name, text);
        self.proxies.publish().await;
        self.check_invariants().await;
    }

    /// Makes a new world of which nobody is told yet.
    fn change(&mut self, name: &str, text: &str) {
        let snapshot = self.builder.apply_files(vec![parsed(name, text)]).snapshot;
        let generation = self.worlds.borrow().generation + 1;
        self.worlds.send_replace(Arc::new(world(generation, snapshot)));
    }

    /// Runs a function with the translator, after it has forgotten disconnected proxies.
    async fn ask<T: Send + 'static>(&self, question: impl FnOnce(&mut Translator) -> T + Send + 'static) -> T {
        let (told, answer) = oneshot::channel();
        self.proxies.mailbox.ask(move |translator| _ = told.send(question(translator)));
        answer.await.expect("an answer")
    }

    /// Keeps the translator busy until the value is dropped.
    async fn busy(&self) -> std::sync::mpsc::Sender<()> {
        let (free, wait) = std::sync::mpsc::channel();
        let (begun, begins) = oneshot::channel();
        self.proxies.mailbox.ask(move |_| {
            _ = begun.send(());
            _ = wait.recv();
        });
        begins.await.expect("it is busy");
        free
    }

    /// Checks that every stream has the resources that the translator gives it, and that nothing is kept for closed streams.
    async fn check_invariants(&self) {
        assert_eq!(self.proxies.metrics.plane.scope().counter(plane::Counter::pilot_total_xds_internal_errors), 0);
        let streams = self.proxies.streams.clone();
        self.ask(move |translator| streams.check_invariants(translator)).await;
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
    }
}

fn client(number: u8, app: &str) -> Client {
    let view = ProxyView {
        kind: ProxyKind::Sidecar,
        addresses: vec![[10, 1, 0, number].into()],
        pod: format!("w-{number}").into(),
        namespace: "shop".into(),
        service_account: "default".into(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        client_kind: ClientKind::EvenkeelLearned,
        takes_proxy_protocol: false,
        has_collector: false,
        has_log_service: false,
        proxy_config: "".into(),
        authenticated: false,
        captures_dns: true,
        interception: None,
        takes_hybrid_curve: false,
        locality: "".into(),
        cluster: "".into(),
        network: "".into(),
        peer_labels: None,
    };
    let (node, program) = (format!("w-{number}"), String::new());
    Client {
        node,
        program,
        confinement: None,
        view,
        peer: None,
        identity: None,
        since: SystemTime::now(),
        serial: None,
    }
}

/// A proxy that subscribes to clusters by name.
struct Proxy {
    session: Session,
    stream: delta::Stream,
}

impl Proxy {
    async fn new(mesh: &Mesh, number: u8, app: &str, services: &[usize]) -> Self {
        let first = mesh.proxies.admit(None).await.expect("leave");
        let session = mesh.proxies.connect(client(number, app), first).await.expect("a session");
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
        mesh.check_invariants().await;
        proxy
    }

    /// Reads its current resources.
    fn look(&mut self) -> Arc<ResourceSet> {
        let set = self.session.resources.look();
        self.stream.on_snapshot(&set);
        set
    }

    /// Whether it was told to read since it last did.
    fn is_told(&self) -> bool {
        match &self.session.resources {
            Resources::Polled { notice, .. } => notice.has_changed().expect("it goes on"),
            Resources::Watched(_) => unreachable!("the control plane is asked"),
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
    let moved = whole_service(1).replace("198.51.", "203.0.");
    for (name, text, expected) in [
        ("s1.yaml", moved, [false, true, true]),
        ("s9.yaml", whole_service(9), [false; 3]),
        ("s3.yaml", whole_service(3), [false, false, true]),
        ("s0.yaml", String::new(), [true, true, false]),
    ] {
        mesh.write(name, &text).await;
        let found = all.each_ref().map(Proxy::is_told);
        all.iter_mut().zip(found).filter(|(_, told)| *told).for_each(|(proxy, _)| drop(proxy.look()));
        assert_eq!(found, expected, "{text}");
    }
    assert_eq!(told(&mesh), [5, 5, 4]);
    // They find changes that they were not told of when they read, and are told to read some time later.
    assert!(all[0].endpoints(9).is_some());
    assert!(!all[1].is_told() && !all[2].is_told());
    mesh.proxies.streams.tell_those_behind();
    assert!(all.iter().all(Proxy::is_told));
    assert_eq!(told(&mesh), [5, 5, 4], "nothing was said of a change");
    all.iter_mut().for_each(|proxy| drop(proxy.look()));
    mesh.proxies.streams.tell_those_behind();
    assert!(!all.iter().any(Proxy::is_told), "once");
}

/// A rule for clients with a label, so that their class is split from others.
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
    let classes = |mesh: &Mesh| mesh.proxies.streams.classes();
    assert_eq!(classes(&mesh), 1);
    mesh.write("rule.yaml", RULE_FOR_B).await;
    assert_eq!(classes(&mesh), 2);
    assert_eq!(all.each_ref().map(Proxy::is_told), [false, true, false]);
    let clusters = all.each_mut().map(|proxy| proxy.look().get(ResourceType::Cluster, &cluster(1)).cloned());
    assert!(clusters[1] == clusters[2] && clusters[0] != clusters[1]);
    mesh.write("s0.yaml", &whole_service(0).replace("198.51.", "203.0.")).await;
    assert_eq!(all.each_ref().map(Proxy::is_told), [false, true, false]);
    // One new proxy splits a class, and another joins it.
    let others = [Proxy::new(&mesh, 4, "c", &[1]).await, Proxy::new(&mesh, 5, "b", &[1]).await];
    mesh.write("rule.yaml", "").await;
    all.iter_mut().for_each(|proxy| drop(proxy.look()));
    mesh.write("s2.yaml", &whole_service(2).replace("198.51.", "203.0.")).await;
    assert_eq!(all.each_ref().map(Proxy::is_told), [false, false, true]);
    drop(all);
    mesh.check_invariants().await;
    drop(others);
    mesh.check_invariants().await;
    assert_eq!(classes(&mesh), 0);
}

#[tokio::test]
async fn what_is_built_anew_replaces_what_streams_hold() {
    let mut mesh = Mesh::new(3);
    let mut all = [Proxy::new(&mesh, 1, "a", &[1]).await, Proxy::new(&mesh, 2, "b", &[0]).await];
    let before = all.each_mut().map(Proxy::look);
    let told = mesh.builder.events();
    let snapshot = mesh.builder.rebuild(told).snapshot;
    let generation = mesh.worlds.borrow().generation;
    mesh.worlds.send_replace(Arc::new(world(generation, snapshot)));
    mesh.proxies.rebuild().await;
    mesh.check_invariants().await;
    assert!(all.iter().all(Proxy::is_told), "they let go of what was");
    for (proxy, before) in all.iter_mut().zip(before) {
        let now = proxy.look();
        assert!(now.diff(&before).next().is_none() && now.generation == before.generation);
        let (now, before) = (now.of(ResourceType::Cluster), before.of(ResourceType::Cluster));
        assert!(now.values().zip(before.values()).all(|(now, before)| !Arc::ptr_eq(now, before)));
    }
    mesh.write("s1.yaml", &whole_service(1).replace("198.51.", "203.0.")).await;
    assert_eq!(all.each_ref().map(Proxy::is_told), [true, false]);
}

#[tokio::test]
async fn who_goes_while_it_waits_is_counted_no_more() {
    let (_worlds, world) = watch::channel(Arc::new(world(1, Arc::default())));
    let options = PublishOptions { first_pushes: 1, compare: false };
    let proxies = Proxies::new(world, Arc::default(), options).expect("a thread");
    let waiting = || proxies.metrics.plane.scope().gauge(plane::Gauge::evenkeel_xds_waiting_streams);
    let first = proxies.admit(None).await.expect("leave");
    let id = SpiffeId::new("cluster.local", "shop", "web").expect("an identity");
    let mut second = Box::pin(proxies.admit(Some(&id)));
    assert!(is_pending(second.as_mut()).await, "it has to wait");
    assert_eq!(waiting(), 1);
    drop(second);
    assert_eq!(waiting(), 0);
    // It also gives back its place in the quota of its identity, and its turn.
    assert_eq!(proxies.by_identity.taken(), 0);
    drop(first);
    proxies.admit(None).await.expect("leave");
    assert_eq!(waiting(), 0);
}

/// Polls a future once.
async fn is_pending(mut future: std::pin::Pin<&mut impl Future>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[tokio::test]
async fn nobody_waits_for_the_translator_but_who_joins() {
    let mut mesh = Mesh::new(3);
    let mut proxy = Proxy::new(&mesh, 1, "a", &[0, 1]).await;
    let other = Proxy::new(&mesh, 2, "a", &[0]).await;
    let busy = mesh.busy().await;
    // Streams and pages continue meanwhile.
    assert!(proxy.endpoints(1).is_some());
    (proxy.session.on_status)(Status::default());
    drop(other);
    assert_eq!((mesh.proxies.reports().len(), mesh.proxies.take_settled().len()), (1, 0));
    mesh.proxies.streams.tell_those_behind();
    // Of several worlds only the last is applied.
    let before = mesh.proxies.published();
    for n in 0..3 {
        mesh.change("s1.yaml", &whole_service(1).replace("198.51.", &format!("203.{n}.")));
        let mut publishing = pin!(mesh.proxies.publish());
        assert!(is_pending(publishing.as_mut()).await);
    }
    let admitted = mesh.proxies.admit(None).await.expect("leave");
    let mut joining = pin!(mesh.proxies.connect(client(3, "a"), admitted));
    assert!(is_pending(joining.as_mut()).await);
    assert_eq!(mesh.proxies.metrics.plane.scope().gauge(plane::Gauge::evenkeel_xds_waiting_streams), 1);
    assert_eq!(mesh.proxies.published(), before);
    drop(busy);
    let _session = joining.await.expect("a session");
    mesh.check_invariants().await;
    assert_eq!(mesh.proxies.published(), before + 3);
    assert_eq!(told(&mesh), [before + 3, before + 3]);
    assert_eq!(mesh.proxies.metrics.plane.scope().gauge(plane::Gauge::evenkeel_xds_waiting_streams), 0);
}

#[tokio::test]
async fn who_goes_while_it_joins_leaves_nothing_behind() {
    let mesh = Mesh::new(1);
    for answered in [false, true] {
        let busy = mesh.busy().await;
        let admitted = mesh.proxies.admit(None).await.expect("leave");
        let mut joining = Box::pin(mesh.proxies.connect(client(1, "a"), admitted));
        assert!(is_pending(joining.as_mut()).await);
        if answered {
            // The answer is ready, and nobody reads it.
            drop(busy);
            while mesh.proxies.reports().is_empty() {
                tokio::task::yield_now().await;
            }
            drop(joining);
        } else {
            drop(joining);
            drop(busy);
        }
        mesh.check_invariants().await;
        assert_eq!((mesh.proxies.reports().len(), mesh.proxies.streams.classes()), (0, 0), "answered: {answered}");
        let view = client(1, "a").view;
        assert!(mesh.ask(move |translator| translator.joined(&view).is_none()).await, "answered: {answered}");
    }
}

#[tokio::test]
async fn a_full_mailbox_keeps_those_waiting_who_come() {
    let mesh = Mesh::new(1);
    let busy = mesh.busy().await;
    let mailbox = Arc::new(Mailbox::<Registered>::with_room(2));
    let mut joining = Vec::new();
    for number in 0..5 {
        let admitted = mesh.proxies.admit(None).await.expect("leave");
        joining.push(Box::pin(mailbox.join(client(number, "a"), admitted)));
    }
    for join in &mut joining {
        assert!(is_pending(join.as_mut()).await);
    }
    assert_eq!(mailbox.waiting(), 2);
    // One request is taken, so there is room for the next.
    match mailbox.next(false) {
        Some(Work::Join(join)) => assert!(join.answer.send(Err(ConnectError::TooMany)).is_ok()),
        work => panic!("a join, not {work:?}"),
    }
    for join in &mut joining[2..] {
        assert!(is_pending(join.as_mut()).await);
    }
    assert_eq!(mailbox.waiting(), 2);
    mailbox.close();
    for (number, join) in joining.into_iter().enumerate() {
        let expected = if number == 0 { ConnectError::TooMany } else { ConnectError::Closed };
        assert_eq!(join.await.expect_err("no session"), expected, "{number}");
    }
    assert!(mailbox.next(false).is_none());
    drop(busy);
}

#[tokio::test]
async fn the_world_comes_before_those_who_join_but_not_for_ever() {
    let mesh = Mesh::new(1);
    let mailbox = Arc::new(Mailbox::<Registered>::default());
    let mut joining = Vec::new();
    for number in 0..3 {
        let admitted = mesh.proxies.admit(None).await.expect("leave");
        joining.push(Box::pin(mailbox.join(client(number, "a"), admitted)));
    }
    for join in &mut joining {
        assert!(is_pending(join.as_mut()).await);
    }
    let mut order = String::new();
    for _ in 0..6 {
        // There is a new world again and again.
        mailbox.publish();
        mailbox.publish();
        order.push(match mailbox.next(order.ends_with('p')) {
            Some(Work::Publish) => 'p',
            Some(Work::Join(_)) => 'j',
            _ => '?',
        });
    }
    assert_eq!(order, "pjpjpj");
    mailbox.left(Arc::new(client(9, "a").view));
    assert!(matches!(mailbox.next(false), Some(Work::Leave(views)) if views.len() == 1), "those who go come first");
}

#[tokio::test]
async fn a_translator_that_panics_is_told_of() {
    let mesh = Mesh::new(1);
    let proxy = Proxy::new(&mesh, 1, "a", &[0]).await;
    let mut failed = pin!(mesh.proxies.failed());
    assert!(is_pending(failed.as_mut()).await);
    mesh.proxies.mailbox.ask(|_| panic!("for the test"));
    assert_eq!(failed.await, "for the test");
    let admitted = mesh.proxies.admit(None).await.expect("leave");
    let refused = mesh.proxies.connect(client(2, "a"), admitted).await.expect_err("nobody can come any more");
    assert_eq!(refused, ConnectError::Closed);
    mesh.proxies.publish().await;
    mesh.proxies.rebuild().await;
    drop(proxy);
}

#[tokio::test]
async fn the_streams_of_an_identity_share_what_their_names_may_take() {
    let mesh = Mesh::new(1);
    let session = async |number: u8, account: Option<&str>| {
        let identity = account.map(|name| SpiffeId::new("cluster.local", "shop", name).expect("an identity"));
        let admitted = mesh.proxies.admit(identity.as_ref()).await.expect("leave");
        let client = Client { identity, ..client(number, "a") };
        mesh.proxies.connect(client, admitted).await.expect("a session")
    };
    let over = || mesh.proxies.metrics.plane.scope().counter(plane::Counter::evenkeel_xds_streams_over_names);
    let half = MAX_NAME_BYTES_PER_IDENTITY / 2;
    let (mut one, mut two) = (session(1, Some("web")).await, session(2, Some("web")).await);
    let mut other = session(3, Some("other")).await;
    let mut nobody = session(4, None).await;
    assert!((one.on_names)(half).is_ok() && (two.on_names)(half).is_ok());
    let refused = (two.on_names)(half + 1).expect_err("too much");
    assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
    assert_eq!(
        refused.message(),
        "streams of spiffe://cluster.local/ns/shop/sa/web may keep names of 512 MiB subscribed at a time"
    );
    assert_eq!(over(), 1);
    assert!((other.on_names)(2 * half).is_ok() && (nobody.on_names)(3 * half).is_ok());
    // Names that are unsubscribed, or of closed streams, are available to others.
    assert!((one.on_names)(half - 1).is_ok() && (two.on_names)(half + 1).is_ok());
    drop(two);
    assert!((one.on_names)(2 * half).is_ok());
    assert_eq!(over(), 1);
}
