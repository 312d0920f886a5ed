//! A control plane that is stopped or killed and started again on the same directories, while two sidecars serve requests
//! without a pause and files are edited before, during and after the gap.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread::JoinHandle;

use evenkeel_testkit::{Backend, Connection, Process, Signal, eventually};

use crate::mesh::{Plane, Proxy, host, page};

/// Clients, each with a connection it keeps, that ask for these hosts in turn until they are dropped.
struct Load {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    clients: Vec<JoinHandle<Result<(), String>>>,
}

impl Load {
    fn start(proxies: &[SocketAddr], hosts: &'static [&'static str]) -> Self {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = |address: SocketAddr| {
            let (stop, answered) = (stop.clone(), answered.clone());
            move || -> Result<(), String> {
                let mut connection = Connection::open(address).map_err(|error| error.to_string())?;
                for host in hosts.iter().cycle() {
                    if stop.load(SeqCst) {
                        break;
                    }
                    let response = connection.get(host, "/", "").map_err(|error| format!("{host}: {error}"))?;
                    match response.status {
                        200 => answered.fetch_add(1, SeqCst),
                        status => return Err(format!("{host}: {status} {}", response.text())),
                    };
                }
                Ok(())
            }
        };
        let clients = proxies.iter().map(|address| std::thread::spawn(client(*address))).collect();
        Self { stop, answered, clients }
    }

    /// Waits until requests were answered that were sent after now; none may have failed.
    fn flows(&self) {
        let enough = self.answered.load(SeqCst) + 50 * self.clients.len();
        eventually("answers", || (self.answered.load(SeqCst) >= enough || self.has_failed()).then_some(()));
    }

    fn has_failed(&self) -> bool {
        self.clients.iter().any(JoinHandle::is_finished)
    }

    /// Ends it; every request must have been answered with 200.
    fn finish(self) {
        self.stop.store(true, SeqCst);
        let failures: Vec<String> =
            self.clients.into_iter().filter_map(|client| client.join().expect("no panic").err()).collect();
        assert_eq!(failures, [""; 0]);
    }
}

/// Both proxies, and what is asked of each.
struct Mesh {
    plane: Plane,
    control: Option<Process>,
    learned: Proxy,
    full: Proxy,
}

impl Mesh {
    fn proxies(&self) -> [&Proxy; 2] {
        [&self.learned, &self.full]
    }

    /// Ends the control plane and waits until both proxies have noticed.
    fn end_control_plane(&mut self, signal: Signal) {
        self.control.take().expect("a running control plane").signal(signal);
        for proxy in self.proxies() {
            eventually("the end of the stream", || (proxy.stat("control_plane.connected_state") == 0).then_some(()));
        }
    }

    /// Resources that the control plane, since it began, has sent to the proxy, by type; those of which it sent none left out.
    fn sent(&self, pod: &str) -> BTreeMap<String, u64> {
        let proxy = self.plane.settled(pod);
        let types = proxy["types"].as_array().expect("types").iter();
        let sent = types.map(|status| {
            (status["type"].as_str().expect("a name").to_owned(), status["resources_sent"].as_u64().expect("a number"))
        });
        sent.filter(|(_, count)| *count > 0).collect()
    }

    /// All that the proxies hold, with the time at which each resource was taken in.
    fn held(&self) -> [String; 2] {
        self.proxies().map(|proxy| page(proxy.admin, "/config_dump?include_eds"))
    }

    /// Waits until both proxies answer for a host with this backend.
    fn until_served(&self, host: &str, backend: &str) {
        for proxy in self.proxies() {
            eventually(&format!("{host} by {backend}"), || {
                let (status, text) = proxy.get(host);
                (status == 200 && text.contains(&format!("backend: {backend}\n"))).then_some(())
            });
        }
    }
}

fn counts(counts: &[(&str, u64)]) -> BTreeMap<String, u64> {
    counts.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect()
}

#[test]
fn requests_flow_through_restarts_and_only_what_was_edited_is_sent() {
    let backends = ["one", "two"].map(Backend::echo);
    let [one, two] = [backends[0].address(), backends[1].address()];
    let plane = Plane::new();
    for name in ["stays", "moves", "goes"] {
        plane.write(name, &host(name, one));
    }
    let control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let learned = Proxy::start(&plane, folder.path(), "client-0", "learned", 2);
    let full = Proxy::start(&plane, folder.path(), "other-0", "full", 2);
    let mut mesh = Mesh { plane, control: Some(control), learned, full };
    for host in ["stays.test", "moves.test", "goes.test"] {
        mesh.until_served(host, "one");
    }
    let webs = mesh.proxies().map(|proxy| proxy.web);
    let load = Load::start(&webs.repeat(2), &["stays.test", "moves.test"]);
    mesh.plane.write("before", &host("before", one));
    mesh.until_served("before.test", "one");

    // Nothing is edited meanwhile: nothing is sent, and nothing taken in anew.
    for pod in ["client-0", "other-0"] {
        mesh.plane.settled(pod);
    }
    let held = mesh.held();
    mesh.end_control_plane(Signal::SIGTERM);
    load.flows();
    assert_eq!(mesh.held(), held);
    mesh.control = Some(mesh.plane.start());
    for pod in ["client-0", "other-0"] {
        assert_eq!(mesh.sent(pod), counts(&[]), "{pod}");
    }
    load.flows();
    assert_eq!(mesh.held(), held);

    // A host moves, one comes and one goes while it is away: that is sent, to those it concerns, and nothing else.
    mesh.end_control_plane(Signal::SIGKILL);
    mesh.plane.write("moves", &host("moves", two));
    mesh.plane.write("comes", &host("comes", two));
    mesh.plane.remove("goes");
    load.flows();
    assert_eq!(mesh.held(), held);
    mesh.control = Some(mesh.plane.start());
    assert_eq!(mesh.sent("client-0"), counts(&[("EDS", 1)]));
    assert_eq!(mesh.sent("other-0"), counts(&[("CDS", 1), ("EDS", 2), ("VHDS", 1)]));
    mesh.until_served("moves.test", "two");
    mesh.until_served("comes.test", "two");
    for proxy in mesh.proxies() {
        eventually("the end of the host that went", || (proxy.get("goes.test").0 == 502).then_some(()));
        assert_eq!(proxy.get("before.test").0, 200);
    }

    // It is killed while it may be at the edit, and edited once more before it is back.
    mesh.plane.write("moves", &host("moves", one));
    mesh.plane.write("last", &host("last", one));
    mesh.end_control_plane(Signal::SIGKILL);
    mesh.plane.write("last", &host("last", two));
    mesh.control = Some(mesh.plane.start());
    mesh.until_served("moves.test", "one");
    mesh.until_served("last.test", "two");
    mesh.plane.write("after", &host("after", one));
    mesh.until_served("after.test", "one");
    load.flows();
    load.finish();
}
