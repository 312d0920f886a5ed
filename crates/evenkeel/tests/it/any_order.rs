//! Changes of routes, rules, services and endpoints under load, at any time and in any order: the resources of a new route
//! are there before the route, and those of an old one are removed after it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use evenkeel_testkit::load::Stop;
use evenkeel_testkit::{Backend, Connection, Random, cases, eventually};

use crate::mesh::{Plane, Proxy, host};

/// Time between two changes.
const PAUSE: Duration = Duration::from_millis(12);
/// Changes after which the test waits until the last one is in effect.
const BATCH: usize = 50;

/// What is configured: the objects by file.
struct World {
    random: Random,
    backends: [Backend; 2],
    /// Number of the last change; names that it makes have it.
    step: usize,
    files: BTreeMap<String, String>,
    /// The service that the VirtualService leads to, if there is one.
    service: Option<String>,
    /// Its subset that the route names, if it names one.
    subset: Option<usize>,
    /// A rule keeps the subset that the route named before: each object is written alone.
    one_by_one: bool,
}

impl World {
    fn new(one_by_one: bool) -> Self {
        let backends = ["one", "two"].map(Backend::echo);
        let files = BTreeMap::from([("web".to_owned(), host("web", backends[0].address()))]);
        Self { random: Random::new(7), backends, step: 0, files, service: None, subset: None, one_by_one }
    }

    fn endpoint(&mut self) -> std::net::SocketAddr {
        self.backends[self.random.below(2)].address()
    }

    /// The next state of the mesh; each leads every request to a backend.
    fn change(&mut self) {
        self.step += 1;
        let step = self.step;
        match self.random.below(8) {
            // No route of its own: the host's own service serves it.
            0 => {
                (self.service, self.subset) = (None, None);
                self.files.retain(|file, _| file == "web");
            }
            // The endpoints move.
            1 => {
                let endpoint = self.endpoint();
                let name = self.service.clone().unwrap_or_else(|| "web".to_owned());
                self.files.insert(name.clone(), host(&name, endpoint));
                self.route();
            }
            // Another subset, and another policy.
            2 | 3 if self.service.is_some() => self.route(),
            // Another service; the one before goes with its rule.
            _ => {
                let (name, endpoint) = (format!("s{step}"), self.endpoint());
                self.files.retain(|file, _| file == "web");
                self.files.insert(name.clone(), host(&name, endpoint));
                (self.service, self.subset) = (Some(name), None);
                self.route();
            }
        }
    }

    /// Routes to the service, with or without a subset of this step's name.
    fn route(&mut self) {
        let Some(service) = self.service.clone() else { return };
        let step = self.step;
        let mut destination = format!("host: {service}.test");
        let rule = format!("rule-{service}");
        if self.random.once_in(3) {
            self.files.remove(&rule);
            self.subset = None;
        } else {
            let before = self.subset.replace(step).filter(|before| self.one_by_one && *before != step);
            let subsets = [Some(step), before].into_iter().flatten().map(|v| format!("{{name: v{v}}}"));
            let subsets = subsets.collect::<Vec<_>>().join(", ");
            destination += &format!(", subset: v{step}");
            let policy = self.random.pick(&["ROUND_ROBIN", "LEAST_REQUEST"]);
            self.files.insert(
                rule,
                format!(
                    "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: rule-{service}, namespace: shop}}\n\
                     spec:\n  host: {service}.test\n  trafficPolicy: {{loadBalancer: {{simple: {policy}}}}}\n  subsets: [{subsets}]\n"
                ),
            );
        }
        let timeout = 5 + self.random.below(5);
        self.files.insert(
            "route".to_owned(),
            format!(
                "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: shop}}\n\
                 spec:\n  hosts: [web.test]\n  http:\n  - headers: {{response: {{set: {{x-step: \"{step}\"}}}}}}\n    timeout: {timeout}s\n\
                 \x20   route: [{{destination: {{{destination}}}}}]\n"
            ),
        );
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

    /// Writes each object into its own file, without pause: what the route needs in a random order, then the route, then
    /// takes away what it needed before.
    fn write_one_by_one(&mut self, plane: &Plane, before: &BTreeMap<String, String>) {
        let changed = |(file, text): &(&String, &String)| before.get(*file) != Some(text) && *file != "route";
        let changed = self.files.iter().filter(changed).map(|(file, text)| (file.clone(), text.clone())).collect();
        for (file, text) in self.shuffled(changed) {
            plane.write(&file, &text);
        }
        match self.files.get("route") {
            Some(route) => plane.write("route", route),
            None if before.contains_key("route") => plane.remove("route"),
            None => {}
        }
        let gone = before.keys().filter(|file| !self.files.contains_key(*file) && *file != "route").cloned().collect();
        self.shuffled(gone).iter().for_each(|file| plane.remove(file));
    }

    /// What the answers say once the state is in effect: the number of the route's step.
    fn expected(&self) -> Option<String> {
        let route = self.files.get("route")?;
        route.split("x-step: \"").nth(1)?.split('"').next().map(str::to_owned)
    }
}

/// Requests one after the other on one connection until `stop`; each has to be answered by a backend.
#[allow(clippy::disallowed_methods, reason = "a steady rate is what the load is")]
fn call(name: &str, proxy: &Proxy, stop: &AtomicBool, asked: &AtomicUsize) {
    let mut connection = Connection::open(proxy.web).expect("it accepts");
    while !stop.load(Ordering::Relaxed) {
        let response = connection.get("web.test", "/", "").expect("it answers");
        assert_eq!(response.status, 200, "{name}: {response:?}");
        asked.fetch_add(1, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(2));
    }
}

#[allow(clippy::disallowed_methods, reason = "a steady rate is what the changes have")]
fn check(one_by_one: bool) {
    // Each is of several objects.
    let changes = cases(200, 500);
    let mut world = World::new(one_by_one);
    let plane = Plane::new();
    if one_by_one {
        world.write_one_by_one(&plane, &BTreeMap::new())
    } else {
        world.write_at_once(&plane)
    }
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let proxies = ["learned", "full"].map(|scope| Proxy::start(&plane, folder.path(), &format!("{scope}-0"), scope, 2));
    for proxy in &proxies {
        eventually("the host", || (proxy.get("web.test").0 == 200).then_some(()));
    }
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        for (name, proxy) in ["learned", "full", "learned", "full"].iter().zip(proxies.iter().chain(&proxies)) {
            scope.spawn(|| call(name, proxy, &stop, &asked));
        }
        for number in 1..=changes {
            let before = world.files.clone();
            world.change();
            if one_by_one {
                world.write_one_by_one(&plane, &before)
            } else {
                world.write_at_once(&plane)
            }
            thread::sleep(PAUSE);
            if number.is_multiple_of(BATCH) {
                for proxy in &proxies {
                    in_effect(proxy, world.expected());
                }
            }
        }
        drop(stopping);
    });
    assert!(asked.load(Ordering::Relaxed) > changes, "there was load");
}

fn in_effect(proxy: &Proxy, expected: Option<String>) {
    eventually(&format!("step {expected:?}"), || {
        let response = Connection::open(proxy.web).ok()?.get("web.test", "/", "").ok()?;
        (response.header("x-step") == expected.as_deref()).then_some(())
    });
}

#[test]
fn no_request_fails_when_all_changes_at_once() {
    check(false);
}

#[test]
fn no_request_fails_when_objects_change_one_after_the_other() {
    check(true);
}
