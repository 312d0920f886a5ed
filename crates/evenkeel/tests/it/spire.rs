//! Certificates of a real SPIRE. SPIRE takes minutes to build, so `make spire` builds it and runs this; `make test` does not.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_testkit::wait::within;
use evenkeel_testkit::{Process, TestCa, eventually, free_ports, workspace};

use crate::mesh::Plane;
use crate::pair::{A, B, Gateway, ask, ask_with, caller_of, local_ports, objects, trusting};

/// Long enough for several certificates.
const PATIENCE: Duration = Duration::from_secs(180);
/// Lifetime of SPIRE's certificates, in seconds; they are replaced at half of it.
const TTL: &str = "20";
const PARTNER: &str = "spiffe://partner.example";

fn tool(name: &str) -> PathBuf {
    let path = workspace::target_dir().join("tools/bin").join(name);
    assert!(path.exists(), "{}: run `make spire`", path.display());
    path
}

/// SPIRE's server and its agent.
struct Spire {
    folder: tempfile::TempDir,
    _server: Process,
    _agent: Process,
}

impl Spire {
    fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let at = |name: &str| folder.path().join(name).display().to_string();
        let [port] = free_ports();
        let server = format!(
            "server {{\n bind_address = \"127.0.0.1\"\n bind_port = \"{port}\"\n socket_path = \"{}\"\n trust_domain = \"cluster.local\"\n \
             data_dir = \"{}\"\n log_level = \"WARN\"\n}}\nplugins {{\n DataStore \"sql\" {{ plugin_data {{ database_type = \"sqlite3\"\n \
             connection_string = \"{}\" }} }}\n NodeAttestor \"join_token\" {{ plugin_data {{}} }}\n KeyManager \"memory\" {{ plugin_data {{}} }}\n}}\n",
            at("server.sock"),
            at("server"),
            at("datastore.sqlite3")
        );
        std::fs::write(at("server.conf"), server).expect("a file");
        let mut command = Command::new(tool("spire-server"));
        let mut server = Process::spawn(command.args(["run", "-config", &at("server.conf")]));
        let socket = at("server.sock");
        let ask = |arguments: &[&str]| say(arguments, &socket);
        server.wait_for("SPIRE's server", |_| ask(&["healthcheck"]).ok());
        let token = ask(&["token", "generate", "-spiffeID", "spiffe://cluster.local/node"]).expect("a token");
        let token = token.trim().strip_prefix("Token: ").expect("a token").trim().to_owned();
        std::fs::write(at("bundle.pem"), ask(&["bundle", "show"]).expect("a bundle")).expect("a file");
        let agent = format!(
            "agent {{\n data_dir = \"{}\"\n log_level = \"WARN\"\n server_address = \"127.0.0.1\"\n server_port = \"{port}\"\n \
             socket_path = \"{}\"\n trust_bundle_path = \"{}\"\n trust_domain = \"cluster.local\"\n}}\nplugins {{\n \
             NodeAttestor \"join_token\" {{ plugin_data {{}} }}\n KeyManager \"memory\" {{ plugin_data {{}} }}\n \
             WorkloadAttestor \"unix\" {{ plugin_data {{ discover_workload_path = true\n workload_size_limit = -1 }} }}\n}}\n",
            at("agent"),
            at("agent.sock"),
            at("bundle.pem")
        );
        std::fs::write(at("agent.conf"), agent).expect("a file");
        let mut command = Command::new(tool("spire-agent"));
        let mut agent = Process::spawn(command.args(["run", "-config", &at("agent.conf"), "-joinToken", &token]));
        agent.wait_for("SPIRE's agent", |_| folder.path().join("agent.sock").exists().then_some(()));
        Self { folder, _server: server, _agent: agent }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The flags of an agent that takes its certificate from here.
    fn source(&self, roots: &str) -> Vec<String> {
        let socket = self.path("agent.sock").display().to_string();
        ["--sds-socket", &socket, "--sds-roots-name", roots].map(str::to_owned).to_vec()
    }

    fn server(&self, arguments: &[&str]) -> String {
        say(arguments, &self.path("server.sock").display().to_string()).expect("SPIRE's server does it")
    }

    /// Gives the program at this path an identity.
    fn register(&self, identity: &str, program: &Path) {
        let selector = format!("unix:path:{}", program.display());
        self.server(&[
            "entry",
            "create",
            "-parentID",
            "spiffe://cluster.local/node",
            "-spiffeID",
            identity,
            "-selector",
            &selector,
            "-x509SVIDTTL",
            TTL,
            "-federatesWith",
            PARTNER,
        ]);
    }

    /// Says which roots the partner has.
    fn federate(&self, roots: &str) {
        let path = self.path("partner.pem");
        std::fs::write(&path, roots).expect("a file");
        self.server(&["bundle", "set", "-id", PARTNER, "-path", &path.display().to_string()]);
    }
}

/// Has SPIRE's server do something.
fn say(arguments: &[&str], socket: &str) -> Result<String, String> {
    let mut command = Command::new(tool("spire-server"));
    let output = command.args(arguments).args(["-socketPath", socket]).output().expect("it runs");
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("{arguments:?}: {output:?}"))
    }
}

#[test]
#[ignore = "needs SPIRE, which takes minutes to build: make spire"]
fn a_request_goes_through_with_certificates_of_a_real_spire() {
    let spire = Spire::start();
    let (partner, next) = (TestCa::new(), TestCa::new());
    spire.federate(&partner.root_pem());
    let [workload_a, workload_b] = ["a", "b"].map(|name| {
        // SPIRE knows a workload by the path of its program.
        let program = spire.path(&format!("evenkeel-{name}"));
        std::fs::copy(env!("CARGO_BIN_EXE_evenkeel"), &program).expect("a copy");
        Gateway::of_program(spire.folder.path(), name, program)
    });
    spire.register(A, &workload_a.program);
    spire.register(B, &workload_b.program);

    let backend = caller_of();
    let [a, b] = local_ports();
    let plane = Plane::new();
    plane.write("objects", &objects(a, b, backend.address(), B));
    // Who may connect is for the mesh to say: its own, and the partner. Which roots vouch for them, SPIRE says.
    plane.write("mesh", &trusting("cluster.local", "partner.example", &TestCa::new().root_pem()));
    // The control plane trusts SPIRE's workloads.
    let _control = plane.start_with(&["--external-signer-roots", &spire.path("bundle.pem").display().to_string()]);

    // SPIRE's `ROOTCA`: its own trust domain.
    {
        let _both = [&workload_a, &workload_b].map(|gateway| gateway.start(&plane, &spire.source("ROOTCA")));
        let seen = within(PATIENCE, "a request through both", || ask(a).ok());
        assert!(seen.contains(A), "{seen}");
        let found = workload_b.certificate().expect("a certificate");
        assert!(found.names.contains(B), "{found:?}");
        assert!(found.roots.contains("cluster.local") && !found.roots.contains("partner"), "{found:?}");
        ask_with(b, &partner.for_spiffe("spiffe://partner.example/web")).expect_err("nobody knows the partner");
        rotations_under_traffic(a, [&workload_a, &workload_b]);
    }
    // SPIRE's `ALL`: those of federated trust domains, too, each for its own.
    let _both = [&workload_a, &workload_b].map(|gateway| gateway.start(&plane, &spire.source("ALL")));
    within(PATIENCE, "a request through both", || ask(a).ok());
    let roots = workload_b.certificate().expect("a certificate").roots;
    assert!(roots.contains("cluster.local") && roots.contains("partner.example"), "{roots}");
    let web = partner.for_spiffe("spiffe://partner.example/web");
    let seen = within(PATIENCE, "the partner", || ask_with(b, &web).ok());
    assert!(seen.contains("URI=spiffe://partner.example/web"), "{seen}");
    ask_with(b, &partner.for_spiffe(A)).expect_err("the partner vouches for its own trust domain only");
    // The partner's roots change.
    spire.federate(&next.root_pem());
    let new = next.for_spiffe("spiffe://partner.example/web");
    within(PATIENCE, "the partner's new root", || ask_with(b, &new).ok());
    eventually("the old one to be gone", || ask_with(b, &web).err());
    ask(a).expect("what is of this trust domain works on");
}

/// Each workload's certificate changes several times, and every request is answered.
fn rotations_under_traffic(a: SocketAddr, workloads: [&Gateway; 2]) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let (mut answered, mut failed) = (0, Vec::new());
            while !stop.load(Ordering::Relaxed) {
                match ask(a) {
                    Ok(seen) if seen.contains(A) => answered += 1,
                    other => failed.push(format!("{other:?}")),
                }
            }
            (answered, failed)
        });
        let mut serials = [BTreeSet::new(), BTreeSet::new()];
        within(PATIENCE, "three certificates of each", || {
            for (workload, seen) in workloads.iter().zip(&mut serials) {
                seen.extend(workload.certificate().map(|found| found.serial));
            }
            serials.iter().all(|seen| seen.len() >= 3).then_some(())
        });
        stop.store(true, Ordering::Relaxed);
        let (answered, failed) = traffic.join().expect("traffic");
        assert_eq!(failed, [""; 0]);
        assert!(answered > 100, "{answered} requests");
    });
}
