//! Objects are renamed or deleted while requests use them: requests in flight end as they began, those that have an
//! alternative take it, and for the others `analyze` names the object.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use evenkeel_testkit::load::Stop;
use evenkeel_testkit::{Backend, Connection, Reply, Response, eventually, free_ports};

use crate::gateway_secrets::{Program, start};
use crate::mesh::{Plane, Proxy, host};
use crate::settle::settle;

/// A backend whose answers to `/slow` wait until the test releases them.
struct Slow {
    backend: Backend,
    begun: Arc<AtomicUsize>,
    released: Arc<AtomicBool>,
}

impl Slow {
    fn start() -> Self {
        let (begun, released) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, gate) = (Arc::clone(&begun), Arc::clone(&released));
        let backend = Backend::start(move |request| {
            if request.target == "/slow" {
                count.fetch_add(1, Ordering::Relaxed);
                eventually("the test's release", || gate.load(Ordering::Relaxed).then_some(()));
            }
            Reply::text("backend")
        });
        Self { backend, begun, released }
    }

    fn address(&self) -> SocketAddr {
        self.backend.address()
    }

    /// Begins a request, and returns when the backend has it.
    fn begin(&self, proxy: SocketAddr, host: &'static str) -> JoinHandle<Response> {
        let before = self.begun.load(Ordering::Relaxed);
        let request = thread::spawn(move || {
            Connection::open(proxy).and_then(|mut client| client.get(host, "/slow", "")).expect("an answer")
        });
        eventually("a request under way", || (self.begun.load(Ordering::Relaxed) > before).then_some(()));
        request
    }

    /// Lets requests end; each has to be answered by the backend.
    fn release(&self, requests: Vec<JoinHandle<Response>>) {
        self.released.store(true, Ordering::Relaxed);
        for request in requests {
            let response = request.join().expect("a request");
            assert_eq!((response.status, &*response.text()), (200, "backend"));
        }
        self.released.store(false, Ordering::Relaxed);
    }
}

fn route(host: &str, destination: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: shop}}\n\
         spec:\n  hosts: [{host}]\n  http:\n  - headers: {{response: {{set: {{x-routed: \"yes\"}}}}}}\n    route: [{{destination: {{{destination}}}}}]\n"
    )
}

fn rule(subsets: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: one, namespace: shop}}\n\
         spec: {{host: one.test, subsets: [{subsets}]}}\n"
    )
}

/// Status, and whether the VirtualService has routed the request.
fn ask(proxy: &Proxy, host: &str) -> (u16, bool) {
    let response = Connection::open(proxy.web).and_then(|mut client| client.get(host, "/", "")).expect("an answer");
    (response.status, response.header("x-routed") == Some("yes"))
}

/// What `analyze` says of the files.
fn findings(plane: &Plane) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = command.arg("analyze").arg(plane.config()).output().expect("it runs");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Requests one after the other until `stop`; each has to be answered by a backend.
fn call(proxy: SocketAddr, host: &str, stop: &AtomicBool, asked: &AtomicUsize) {
    let mut connection = Connection::open(proxy).expect("it accepts");
    while !stop.load(Ordering::Relaxed) {
        let response = connection.get(host, "/", "").expect("it answers");
        assert_eq!(response.status, 200, "{host}: {response:?}");
        asked.fetch_add(1, Ordering::Relaxed);
        if !response.keeps_open() {
            connection = Connection::open(proxy).expect("it accepts");
        }
    }
}

/// A mesh with `web.test` and `one.test`, whose endpoint is slow, and a client with each scope.
fn mesh(slow: &Slow) -> (Plane, [&'static str; 2]) {
    let plane = Plane::new();
    plane.write("web", &host("web", slow.address()));
    plane.write("one", &host("one", slow.address()));
    (plane, ["learned", "full"])
}

#[test]
fn a_service_or_subset_that_goes_lets_requests_end_and_is_missed_by_name() {
    let slow = Slow::start();
    let (plane, scopes) = mesh(&slow);
    plane.write("rule", &rule("{name: v1}"));
    plane.write("route", &route("web.test", "host: one.test, subset: v1"));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a folder");
    let proxies = scopes.map(|scope| Proxy::start(&plane, folder.path(), &format!("{scope}-0"), scope, 2));
    let all = |expected: (u16, bool)| proxies.iter().for_each(|proxy| assert_eq!(ask(proxy, "web.test"), expected));
    let begin = || proxies.iter().map(|proxy| slow.begin(proxy.web, "web.test")).collect::<Vec<_>>();
    for proxy in &proxies {
        eventually("the route", || (ask(proxy, "web.test") == (200, true)).then_some(()));
    }
    assert!(!findings(&plane).contains("IST0101"), "{}", findings(&plane));

    // The subset goes while the route names it.
    let under_way = begin();
    plane.write("rule", &rule(""));
    settle(&plane);
    all((503, true));
    slow.release(under_way);
    let found = findings(&plane);
    assert!(found.contains("IST0101") && found.contains("v1") && found.contains("route.yaml"), "{found}");
    plane.write("rule", &rule("{name: v1}"));
    settle(&plane);
    all((200, true));

    // The service is renamed, and the route follows: no request finds neither.
    let under_way = begin();
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        proxies.iter().for_each(|proxy| drop(scope.spawn(|| call(proxy.web, "web.test", &stop, &asked))));
        plane.write("two", &host("two", slow.address()));
        plane.write("route", &route("web.test", "host: two.test"));
        plane.remove("rule");
        plane.remove("one");
        settle(&plane);
        drop(stopping);
    });
    slow.release(under_way);
    all((200, true));

    // It goes, and the route does not follow.
    let under_way = begin();
    plane.remove("two");
    settle(&plane);
    all((503, true));
    slow.release(under_way);
    let found = findings(&plane);
    assert!(found.contains("IST0101") && found.contains("two.test"), "{found}");
    // Without the route, the host's own service is left.
    plane.remove("route");
    settle(&plane);
    all((200, false));
}

#[test]
fn a_renamed_host_of_a_route_is_served_under_the_new_name_and_by_its_service_under_the_old_one() {
    let slow = Slow::start();
    let (plane, scopes) = mesh(&slow);
    plane.write("route", &route("web.test", "host: one.test"));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a folder");
    let proxies = scopes.map(|scope| Proxy::start(&plane, folder.path(), &format!("{scope}-0"), scope, 2));
    for proxy in &proxies {
        eventually("the route", || (ask(proxy, "web.test") == (200, true)).then_some(()));
        assert_eq!(ask(proxy, "new.test"), (502, false));
    }
    let under_way = proxies.iter().map(|proxy| slow.begin(proxy.web, "web.test")).collect();
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        proxies.iter().for_each(|proxy| drop(scope.spawn(|| call(proxy.web, "web.test", &stop, &asked))));
        plane.write("route", &route("new.test", "host: one.test"));
        settle(&plane);
        drop(stopping);
    });
    for proxy in &proxies {
        assert_eq!(ask(proxy, "web.test"), (200, false));
        assert_eq!(ask(proxy, "new.test"), (200, true));
    }
    slow.release(under_way);
    assert!(asked.load(Ordering::Relaxed) > 0, "there was load");
}

#[test]
fn a_port_of_a_gateway_that_goes_lets_requests_end_and_leaves_the_others_alone() {
    let slow = Slow::start();
    let [one, two] = free_ports().map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let gateway = |ports: &[SocketAddr]| {
        let server = |address: &SocketAddr| {
            let port = address.port();
            format!("    - {{port: {{number: {port}, name: h{port}, protocol: HTTP}}, hosts: ['*']}}\n")
        };
        let servers: String = ports.iter().map(server).collect();
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
             spec:\n  selector: {{istio: edge}}\n  servers:\n{servers}"
        )
    };
    let plane = Plane::new();
    plane.write("one", &host("one", slow.address()));
    plane.write("route", &route("'*'", "host: one.test").replace("hosts: ['*']", "gateways: [g]\n  hosts: ['*']"));
    plane.write("gateway", &gateway(&[one, two]));
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a folder");
    let _proxy = start(&plane, folder.path(), "shop", Program::Evenkeel);
    let answers = |address: SocketAddr| {
        let response = Connection::open(address).and_then(|mut client| client.get("web.test", "/", ""));
        response.is_ok_and(|response| response.status == 200)
    };
    for address in [one, two] {
        eventually("the gateway", || answers(address).then_some(()));
    }
    let under_way = vec![slow.begin(one, "web.test")];
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        scope.spawn(|| call(two, "web.test", &stop, &asked));
        plane.write("gateway", &gateway(&[two]));
        eventually("the port is closed", || Connection::open(one).is_err().then_some(()));
        slow.release(under_way);
        // It comes back under the same number.
        plane.write("gateway", &gateway(&[one, two]));
        eventually("the port is open again", || answers(one).then_some(()));
        drop(stopping);
    });
    assert!(asked.load(Ordering::Relaxed) > 0, "there was load");
}
