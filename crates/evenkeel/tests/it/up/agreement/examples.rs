//! The examples, in every mode of mutual TLS: each explained call is made, and each request that a proxy has kept is replayed.

use std::fmt::Write as _;
use std::sync::PoisonError;

use evenkeel_testkit::workspace;

use super::super::{MACHINE, state, user};
use super::checks::{Round, tried};
use super::fleet::{Call, Fleet};
use super::meshes::MODES;

/// An example, and calls that its programs answer with 200.
struct Example {
    name: &'static str,
    /// With the gateway's.
    replicas: usize,
    /// Its namespace, and the port of its Gateway.
    namespace: &'static str,
    gateway_port: u16,
    clients: &'static [&'static str],
    /// Hosts and paths within the mesh.
    targets: &'static [(&'static str, &'static str)],
    /// What is called from outside.
    paths: &'static [&'static str],
}

const CAPITALS: Example = Example {
    name: "capitals",
    replicas: 5,
    namespace: "capitals",
    gateway_port: 8080,
    clients: &["capitals-web", "capitals-info-v1", "capitals-info-v2"],
    targets: &[
        ("capitals-info:8080", "/capitals/Peru"),
        ("capitals-info.capitals:8080", "/healthz"),
        ("capitals-web:8080", "/"),
    ],
    paths: &["/", "/healthz"],
};

const BOOKINFO: Example = Example {
    name: "bookinfo",
    replicas: 7,
    namespace: "default",
    gateway_port: 8080,
    clients: &["productpage-v1", "reviews-v1", "reviews-v3", "ratings-v1", "details-v1"],
    targets: &[
        ("productpage:9080", "/health"),
        ("details:9080", "/details/0"),
        ("ratings:9080", "/ratings/0"),
        ("reviews:9080", "/health"),
        ("reviews.default.svc.cluster.local:9080", "/health"),
    ],
    paths: &["/productpage", "/nowhere"],
};

impl Example {
    /// Its calls. Each has its own number, by which its records are found.
    fn calls(&self, fleet: &Fleet) -> Vec<Call> {
        let edge = fleet.published().into_iter().find(|port| port.number == self.gateway_port);
        let edge = edge.expect("the gateway's port").address.to_string();
        let within = self.clients.iter().flat_map(|client| {
            let from = format!("{client}.{}", self.namespace);
            self.targets.iter().map(move |(to, path)| (from.clone(), (*to).to_owned(), (*path).to_owned()))
        });
        let outside = self.paths.iter().map(|path| ("outside".to_owned(), edge.clone(), (*path).to_owned()));
        let call = |(from, to, path)| Call { from, method: "GET".to_owned(), to, path, headers: Vec::new() };
        within.chain(outside).map(call).collect()
    }

    fn check(&self) {
        let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        let folder = state();
        user::copy_readable(&workspace::root().join("examples").join(self.name), folder.path());
        let fleet = Fleet::of(folder, self.replicas, &[self.gateway_port]);
        let calls = self.calls(&fleet);
        let mut wrong = String::new();
        for mode in MODES {
            // Of the example's namespace: one of the mesh would not count where the example has its own.
            let policy = format!(
                "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: a-mode, namespace: {}}}\n\
                 spec: {{mtls: {{mode: {mode}}}}}\n",
                self.namespace
            );
            fleet.write(&policy);
            let (world, _) = fleet.read().worlds("");
            let Round { kept, wrong: found, .. } = tried((&fleet, &world, &calls), |_| String::new());
            assert!(kept.len() >= calls.len(), "{mode}: the proxies keep what is called");
            if !found.is_empty() {
                let _ = writeln!(wrong, "──── {} in mode {mode}\n{found}", self.name);
            }
        }
        fleet.end();
        assert!(wrong.is_empty(), "{wrong}");
    }
}

#[test]
fn the_capitals_are_explained_as_they_answer() {
    CAPITALS.check();
}

#[test]
fn the_bookinfo_is_explained_as_it_answers() {
    BOOKINFO.check();
}
