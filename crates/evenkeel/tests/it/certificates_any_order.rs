//! Certificates of a gateway's servers, and the roots that it verifies a server with, change under load: created, replaced,
//! renamed and deleted with the objects that use them, in any order. No call fails if its credential exists.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use evenkeel_testkit::load::Stop;
use evenkeel_testkit::tls::{TlsClient, TlsServer};
use evenkeel_testkit::{Random, TestCa, eventually, free_ports, objects};

use crate::auto_sni;
use crate::gateway_secrets::{Program, serves, start};
use crate::mesh::Plane;

/// Changes of each test.
const CHANGES: usize = 200;
/// Time between two changes.
const PAUSE: Duration = Duration::from_millis(15);
/// Changes after which the test waits until the last one is in effect.
const BATCH: usize = 25;

/// What is configured: the objects by file. Secrets are in files of their own.
struct World {
    random: Random,
    /// Whose certificates the gateway has; the first is that of the server behind it, too.
    cas: [TestCa; 2],
    port: u16,
    server: SocketAddr,
    step: usize,
    files: BTreeMap<String, String>,
    /// The Secret of the gateway's server, and whose certificate it has.
    certificate: (String, usize),
    /// The Secret with the roots for the server.
    roots: String,
    /// A server that nobody calls, with its Secret.
    extra: Option<usize>,
}

impl World {
    fn new(cas: [TestCa; 2], port: u16, server: SocketAddr) -> Self {
        let (certificate, roots) = (("web-0".to_owned(), 0), "roots-0".to_owned());
        let (random, files) = (Random::new(11), BTreeMap::new());
        let mut world = Self { random, cas, port, server, step: 0, files, certificate, roots, extra: None };
        world.write_certificate();
        world.write_roots();
        world.write_users();
        world
    }

    fn change(&mut self) {
        self.step += 1;
        let step = self.step;
        match self.random.below(5) {
            // The certificate is replaced.
            0 => self.certificate.1 = 1 - self.certificate.1,
            // It comes from another Secret, and the one before goes.
            1 => {
                self.files.remove(&self.certificate.0);
                self.certificate = (format!("web-{step}"), self.random.below(2));
            }
            2 => {
                self.files.remove(&self.roots);
                self.roots = format!("roots-{step}");
            }
            // More or fewer roots.
            3 => {}
            // Another server comes or goes.
            _ => match self.extra.take() {
                Some(known) => _ = self.files.remove(&format!("extra-{known}")),
                None => {
                    let name = format!("extra-{step}");
                    self.files.insert(name.clone(), objects::tls_secret(&self.cas[1], "ingress", &name, "x.test"));
                    self.extra = Some(step);
                }
            },
        }
        self.write_certificate();
        self.write_roots();
        self.write_users();
    }

    fn write_certificate(&mut self) {
        let (name, ca) = &self.certificate;
        let known = self.files.get(name).is_some_and(|text| text.contains(&format!("# {ca}\n")));
        if !known {
            let secret = objects::tls_secret(&self.cas[*ca], "ingress", name, "web.test");
            self.files.insert(name.clone(), format!("# {ca}\n{secret}"));
        }
    }

    fn write_roots(&mut self) {
        let more = if self.random.once_in(2) { self.cas[1].root_pem() } else { String::new() };
        let roots = self.cas[0].root_pem() + &more;
        self.files.insert(self.roots.clone(), objects::secret("ingress", &self.roots, &[("cacert", &roots)]));
    }

    /// What uses the Secrets.
    fn write_users(&mut self) {
        let server = |name: &str, secret: &str| {
            format!(
                "  - {{port: {{number: {}, name: {name}, protocol: HTTPS}}, hosts: [{name}.test], \
                 tls: {{mode: SIMPLE, credentialName: {secret}}}}}\n",
                self.port
            )
        };
        let extra = self.extra.map(|step| server("x", &format!("extra-{step}"))).unwrap_or_default();
        let gateway = format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
             spec:\n  selector: {{istio: edge}}\n  servers:\n{}{extra}",
            server("web", &self.certificate.0)
        );
        let rule = format!(
            "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: back, namespace: shop}}\n\
             spec: {{host: back.test, trafficPolicy: {{tls: {{mode: SIMPLE, credentialName: {}, sni: back.test}}}}}}\n",
            self.roots
        );
        let route = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: web, namespace: shop}\n\
                     spec: {hosts: ['*'], gateways: [g], http: [{route: [{destination: {host: back.test}}]}]}\n";
        self.files.insert("gateway".to_owned(), gateway);
        self.files.insert("rule".to_owned(), rule);
        self.files.insert("route".to_owned(), route.to_owned());
        self.files.insert("back".to_owned(), crate::mesh::host("back", self.server));
    }

    fn shuffled<T>(&mut self, mut parts: Vec<T>) -> Vec<T> {
        for last in (1..parts.len()).rev() {
            parts.swap(last, self.random.below(last + 1));
        }
        parts
    }

    /// Writes all objects into one file, in a random order: they change at once.
    fn write_at_once(&mut self, plane: &Plane) {
        let parts = self.files.values().cloned().collect();
        plane.write("all", &self.shuffled(parts).join("---\n"));
    }

    /// Writes each object into its own file: Secrets in a random order, then what uses them, then takes away what is used
    /// no more.
    fn write_one_by_one(&mut self, plane: &Plane, before: &BTreeMap<String, String>) {
        let users = ["gateway", "rule", "route", "back"];
        let changed = |(file, text): &(&String, &String)| before.get(*file) != Some(text);
        let changed = self.files.iter().filter(changed).map(|(file, text)| (file.clone(), text.clone()));
        let (using, secrets): (Vec<_>, Vec<_>) = changed.partition(|(file, _)| users.contains(&file.as_str()));
        for (file, text) in self.shuffled(secrets).into_iter().chain(self.shuffled(using)) {
            plane.write(&file, &text);
        }
        let gone = before.keys().filter(|file| !self.files.contains_key(*file)).cloned().collect();
        self.shuffled(gone).iter().for_each(|file| plane.remove(file));
    }

    fn write(&mut self, plane: &Plane, before: &BTreeMap<String, String>, one_by_one: bool) {
        if one_by_one { self.write_one_by_one(plane, before) } else { self.write_at_once(plane) }
    }
}

/// Connections one after the other, and requests on one that stays, until `stop`.
fn call(address: SocketAddr, roots: &str, stop: &AtomicBool, asked: &AtomicUsize) {
    let client = TlsClient { server_name: "web.test", root_pem: roots.to_owned(), ..TlsClient::default() };
    let mut kept = client.open(address).expect("a connection");
    while !stop.load(Ordering::Relaxed) {
        let mut fresh = client.open(address).expect("a new connection");
        for connection in [&mut fresh, &mut kept] {
            let response = connection.get("web.test", "/", "").expect("an answer");
            assert_eq!(response.status, 200, "{response:?}");
            if !response.keeps_open() {
                // The listener has changed, and asks its clients to come again.
                *connection = client.open(address).expect("another connection");
            }
        }
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

#[allow(clippy::disallowed_methods, reason = "a steady rate is what the changes have")]
fn check(one_by_one: bool) {
    let cas = [TestCa::new(), TestCa::new()];
    let server = auto_sni::serve(TlsServer::new(&cas[0].for_dns(&["back.test"])));
    let [port] = free_ports::<1>();
    let (address, roots) = (SocketAddr::from(([127, 0, 0, 1], port)), cas[0].root_pem() + &cas[1].root_pem());
    let mut world = World::new(cas, port, server);
    let plane = Plane::new();
    world.write(&plane, &BTreeMap::new(), one_by_one);
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let gateway = start(&plane, folder.path(), "ingress", Program::Evenkeel);
    eventually("the gateway", || serves(address, "web.test", &world.cas[0]).then_some(()));
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        for _ in 0..2 {
            scope.spawn(|| call(address, &roots, &stop, &asked));
        }
        for number in 1..=CHANGES {
            let before = world.files.clone();
            world.change();
            world.write(&plane, &before, one_by_one);
            thread::sleep(PAUSE);
            if number.is_multiple_of(BATCH) {
                let [own, other] = [world.certificate.1, 1 - world.certificate.1].map(|ca| &world.cas[ca]);
                eventually("the last certificate", || {
                    (serves(address, "web.test", own) && !serves(address, "web.test", other)).then_some(())
                });
            }
        }
        drop(stopping);
    });
    assert!(asked.load(Ordering::Relaxed) > CHANGES / 2, "there was load: {}", gateway.output());
}

#[test]
fn no_call_fails_when_certificates_change_at_once_with_what_uses_them() {
    check(false);
}

#[test]
fn no_call_fails_when_certificates_change_one_after_the_other() {
    check(true);
}
