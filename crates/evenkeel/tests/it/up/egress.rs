//! Traffic of a replica to addresses outside the mesh: to the machine, to hosts that the machine can reach, or denied.

use std::sync::PoisonError;

use evenkeel_testkit::tls::TestCa;
use evenkeel_testkit::{Process, Signal};

use super::MACHINE;
use super::processes::Running;
use super::user::User;

/// First a connection as the sidecar makes them (its mark is 1338) to a service's address, then the application's from the same
/// port: for a port that the service does not have, and for one that it has.
const CALLS: &str = r"
import socket, sys
files = socket.gethostbyname('files')
def connect(mark, port):
    s = socket.socket()
    s.settimeout(10)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if mark: s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, mark)
    s.bind(('', 45678))
    s.connect((files, port))
    return s
def ask(s, path):
    s.sendall(b'GET ' + path + b' HTTP/1.1\r\nhost: files\r\n\r\n')
    return s.recv(12).decode().split()[1]
try:
    connect(1338, 8001)
    sys.exit('nobody has this address, and yet it answers')
except OSError as error:
    print('sidecar:', error)
# The sidecar accepts it, whatever it then does.
connect(0, 8001).close()
print('application: captured')
s = connect(1338, 8000)
print('sidecar:', ask(s, b'/'))
s.close()
s = connect(0, 8000)
print('application:', ask(s, b'/'))
";

#[test]
fn of_nobody_is_refused_at_once_and_does_not_stand_in_the_applications_way() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), super::state());
    let run = "exec python3 -m http.server --bind 0.0.0.0 8000";
    let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: files}\nspec:\n  selector: {app: files}\n  ports: [{port: 8000, \
                   name: http}]\n";
    let manifest = format!("{}{service}", super::deployment("files", 1, run));
    std::fs::write(folder.path().join("files.yaml"), manifest).expect("it can be written");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    super::wait_ready(&mut up, 1);
    let state = user.state.path().display().to_string();
    let calls = user
        .evenkeel(&["exec", "files", "--container", "istio-proxy", "--state", &state, "--", "python3", "-c", CALLS])
        .output()
        .expect("exec runs");
    let said = String::from_utf8_lossy(&calls.stdout);
    assert_eq!(
        said,
        "sidecar: [Errno 111] Connection refused\napplication: captured\nsidecar: 200\napplication: 200\n",
        "{calls:?}\n{}",
        up.output()
    );
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(super::PATIENCE).success(), "{}", up.output());
}

/// The machine of a test: servers on its loopback and beyond it, a resolver, names of its own.
const MACHINE_SCRIPT: &str = r#"
set -e
folder=$1; shift
ip link set lo up
ip addr add 203.0.113.10/32 dev lo
ip addr add 203.0.113.11/32 dev lo
mount --bind "$folder/resolv.conf" /etc/resolv.conf
mount --bind "$folder/hosts" /etc/hosts
setpriv --pdeathsig KILL python3 "$folder/outside.py" "$folder" &
until [ -e "$folder/ready" ]; do :; done
exec "$@"
"#;

/// What is outside, by the kinds of ServiceEntries.
const SERVICE_ENTRIES: &str = "---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web}
spec: {hosts: [web.corp], resolution: DNS_ROUND_ROBIN, location: MESH_EXTERNAL, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: rr}
spec: {hosts: [rr.corp], resolution: DNS, location: MESH_EXTERNAL, ports: [{number: 80, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: static}
spec:
  hosts: [static.corp]
  resolution: STATIC
  location: MESH_EXTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 203.0.113.11}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tls}
spec: {hosts: [tls.corp], resolution: NONE, location: MESH_EXTERNAL, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: tcp}
spec: {hosts: [tcp.corp], resolution: DNS, location: MESH_EXTERNAL, ports: [{number: 9000, name: tcp, protocol: TCP}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: origin}
spec:
  hosts: [origin.corp]
  resolution: DNS
  location: MESH_EXTERNAL
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 443}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: origin}
spec: {host: origin.corp, trafficPolicy: {tls: {mode: SIMPLE, insecureSkipVerify: true}}}
";

/// A mesh on such a machine: `client` with a sidecar, `plain` without one, and `files`, a service.
struct Mesh {
    up: Process,
    user: User,
    folder: tempfile::TempDir,
}

impl Mesh {
    fn start(user: User, more: &str, flags: &[&str]) -> Self {
        Self::with_sidecar(user, "", more, flags)
    }

    /// `sidecar`: annotations of the client that choose it.
    fn with_sidecar(user: User, sidecar: &str, more: &str, flags: &[&str]) -> Self {
        let folder = super::state();
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("it can be written");
        };
        write("outside.py", include_str!("outside.py"));
        write("resolv.conf", "nameserver 127.0.0.53\nsearch lan\n");
        write("hosts", "127.0.0.1 localhost dev.corp\n203.0.113.11 hosts.corp\n");
        let identity = TestCa::new().for_dns(&["tls.corp", "origin.corp"]);
        write("cert.pem", &identity.cert_pem);
        write("key.pem", &identity.key_pem);
        let files =
            "cd $EVENKEEL_DATA_DIR && echo replica > index.html && exec python3 -m http.server --bind 0.0.0.0 8000";
        let waits = |name: &str| {
            let ports = ", ports: [{containerPort: 8000}]";
            super::deployment(name, 1, "exec sleep 10000").replace(ports, "")
        };
        let client = waits("client").replace("annotations:\n", &format!("annotations:\n{sidecar}"));
        let plain =
            waits("plain").replace("annotations:\n", "annotations:\n        sidecar.istio.io/inject: \"false\"\n");
        let service = "---\napiVersion: v1\nkind: Service\nmetadata: {name: files}\nspec:\n  selector: {app: files}\n  \
                       ports: [{port: 80, targetPort: 8000, name: http}]\n";
        std::fs::create_dir(folder.path().join("app")).expect("it can be made");
        let parts = [&client, &plain, &super::deployment("files", 1, files)].map(String::as_str).join("---\n");
        write("app/calls.py", include_str!("calls.py"));
        write("app/app.yaml", &format!("{parts}{service}{SERVICE_ENTRIES}{more}"));
        super::user::open_to_all(folder.path());
        super::user::open_to_all(&folder.path().join("app"));

        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--net"]).args((!super::user::is_root()).then_some("--map-root-user"));
        command.args(["sh", "-c", MACHINE_SCRIPT, "machine"]).arg(folder.path());
        let up = user.evenkeel(&["up"]);
        command.arg(up.get_program()).args(up.get_args()).arg(folder.path().join("app"));
        command.envs(up.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.arg("--state").arg(user.state.path()).args(flags).current_dir("/");
        let mut up = Process::spawn(&mut command);
        super::wait_ready(&mut up, 3);
        Self { up, user, folder }
    }

    /// What calls from a replica have seen.
    fn made(&self, workload: &str, calls: &[&str]) -> String {
        let mut command = self.user.evenkeel(&["exec", workload, "--state"]);
        command.arg(self.user.state.path()).args(["--", "python3"]).arg(self.folder.path().join("app/calls.py"));
        String::from_utf8_lossy(&command.args(calls).output().expect("exec runs").stdout).into_owned()
    }

    /// Makes the calls from a replica and compares what each has seen.
    fn calls(&self, workload: &str, expected: &[(&str, &str)]) {
        let mut command = self.user.evenkeel(&["exec", workload, "--state"]);
        command.arg(self.user.state.path()).args(["--", "python3"]).arg(self.folder.path().join("app/calls.py"));
        let made = command.args(expected.iter().map(|(call, _)| call)).output().expect("exec runs");
        let seen: Vec<String> = String::from_utf8_lossy(&made.stdout).lines().map(str::to_owned).collect();
        let expected: Vec<String> = expected.iter().map(|(call, seen)| format!("{call}: {seen}")).collect();
        assert_eq!(seen, expected, "{workload}: {made:?}\n{}\n{}", self.up.output(), self.log("egress.log"));
    }

    fn log(&self, suffix: &str) -> String {
        let logs = self.user.state.path().join("logs");
        let names = super::entries(&logs).into_iter().filter(|name| name.ends_with(suffix));
        names.map(|name| std::fs::read_to_string(logs.join(name)).unwrap_or_default()).collect()
    }

    /// Waits until the access logs name all these.
    fn logged(&self, parts: &[&str]) {
        let log = || self.log(".proxy.log");
        evenkeel_testkit::eventually("access logs", || parts.iter().all(|part| log().contains(part)).then_some(()));
    }

    fn stop(mut self) {
        self.up.signal(Signal::SIGINT);
        assert!(self.up.wait_for_exit(super::PATIENCE).success(), "{}", self.up.output());
    }
}

fn reaches_the_machine_and_what_it_reaches(user: User) {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mesh = Mesh::start(user, "", &[]);
    mesh.calls(
        "client",
        &[
            ("get host.evenkeel.internal:7001", "machine"),
            ("get host.docker.internal:7001", "machine"),
            ("get dev.corp:7001", "machine"),
            ("get hosts.corp:80", "other"),
            ("get files:80", "replica"),
            ("get web.corp:80", "outside"),
            ("both rr.corp:80", "other and outside"),
            ("get static.corp:80", "other"),
            ("get origin.corp:80", "outside over TLS"),
            ("tls tls.corp:443", "outside over TLS"),
            ("tcp tcp.corp:9000", "300000 bytes"),
            ("get passes.corp:80", "outside"),
            ("get 203.0.113.11:80", "other"),
            ("get 203.0.113.12:80", "503"),
            ("tcp 203.0.113.10:9001", "cut off"),
            ("udp 203.0.113.10:9", "No route to host"),
            ("name big.corp", "203.0.113.11"),
            ("name only-searched", "203.0.113.10"),
            ("name nosuch.corp", "no such name"),
            ("name broken.corp", "try again"),
        ],
    );
    mesh.logged(&["PassthroughCluster", "outbound|80||web.corp", "outbound|443||tls.corp", "outbound|9000||tcp.corp"]);
    mesh.calls(
        "plain",
        &[
            ("get files:80", "replica"),
            ("get files.default:80", "replica"),
            ("get host.evenkeel.internal:7001", "machine"),
            ("get web.corp:80", "outside"),
            ("tcp tcp.corp:9000", "300000 bytes"),
            ("name big.corp", "203.0.113.11"),
            ("name nosuch.corp", "no such name"),
            ("name nosuch.default.svc.cluster.local", "no such name"),
            ("udp 203.0.113.10:9", "No route to host"),
        ],
    );
    mesh.stop();
}

#[test]
fn reaches_the_machine_and_what_it_reaches_by_the_service_entries() {
    reaches_the_machine_and_what_it_reaches(User::present());
}

#[test]
fn reaches_the_machine_without_privileges_too() {
    let user = User::unprivileged();
    if user.may_isolate() {
        reaches_the_machine_and_what_it_reaches(user);
    }
}

#[test]
fn reaches_what_the_machine_reaches_with_envoy_as_the_sidecar_too() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let sidecar = format!(
        "        local.evenkeel.dev/proxy: envoy\n        local.evenkeel.dev/envoy-path: {}\n",
        evenkeel_testkit::envoy().display()
    );
    let mesh = Mesh::with_sidecar(User::present(), &sidecar, "", &[]);
    mesh.calls(
        "client",
        &[
            ("get host.evenkeel.internal:7001", "machine"),
            ("get files:80", "replica"),
            ("get web.corp:80", "outside"),
            ("get static.corp:80", "other"),
            ("get origin.corp:80", "outside over TLS"),
            ("tls tls.corp:443", "outside over TLS"),
            ("tcp tcp.corp:9000", "300000 bytes"),
            ("get 203.0.113.11:80", "other"),
            ("get 203.0.113.12:80", "503"),
            ("tcp 203.0.113.10:9001", "cut off"),
            ("name big.corp", "203.0.113.11"),
        ],
    );
    mesh.stop();
}

#[test]
fn is_there_again_after_its_process_was_killed() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mut mesh = Mesh::start(User::present(), "", &[]);
    let calls =
        [("get web.corp:80", "outside"), ("tcp tcp.corp:9000", "300000 bytes"), ("name big.corp", "203.0.113.11")];
    mesh.calls("client", &calls);
    let control = Running::all_of(mesh.user.state.path()).into_iter().find(Running::is_control_plane);
    control.expect("a control plane").sibling("egress").kill();
    mesh.up.wait_for_line("the name server and egress killed by SIGKILL; ");
    mesh.up.wait_for_line("the name server and egress runs again");
    evenkeel_testkit::eventually("a way out", || {
        mesh.made("plain", &["name big.corp"]).contains("203.0").then_some(())
    });
    mesh.calls("client", &calls);
    mesh.calls("plain", &calls);
    mesh.stop();
}

#[test]
fn is_closed_but_for_what_the_registry_names() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let registry_only = super::settings("outboundTrafficPolicy: {mode: REGISTRY_ONLY}");
    let mesh = Mesh::start(User::present(), &format!("---\n{registry_only}"), &[]);
    mesh.calls(
        "client",
        &[
            ("get web.corp:80", "outside"),
            ("tcp tcp.corp:9000", "300000 bytes"),
            ("tls tls.corp:443", "outside over TLS"),
            ("as passes.corp@203.0.113.10:80", "502"),
            ("get 203.0.113.11:80", "502"),
            ("tls 203.0.113.10:443", "cut off"),
            ("get host.evenkeel.internal:7001", "cut off"),
            ("tcp 203.0.113.10:9000", "cut off"),
            ("name passes.corp", "no such name"),
        ],
    );
    mesh.logged(&["BlackHoleCluster", "outbound|80||web.corp"]);
    mesh.calls(
        "plain",
        &[
            ("get files:80", "replica"),
            ("get 203.0.113.10:80", "cut off"),
            // `static.corp` names this address and port.
            ("get 203.0.113.11:80", "other"),
            ("get host.evenkeel.internal:7001", "cut off"),
            ("name passes.corp", "no such name"),
        ],
    );
    assert!(mesh.log("egress.log").contains("outboundTrafficPolicy is REGISTRY_ONLY"), "{}", mesh.log("egress.log"));
    mesh.stop();
}

/// ServiceEntries that let a sidecar call whatever address a client or a name server says, and one that names the machine.
const ATTACKERS_ENTRIES: &str = "---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: wild}
spec: {hosts: ['*.allowed.example'], resolution: NONE, location: MESH_EXTERNAL, ports: [{number: 7001, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: rebind}
spec: {hosts: [rebind.corp], resolution: DNS, location: MESH_EXTERNAL, ports: [{number: 7001, name: http, protocol: HTTP}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: machine}
spec: {hosts: [host.evenkeel.internal], resolution: DNS, location: MESH_EXTERNAL, ports: [{number: 7002, name: http, protocol: HTTP}]}
";

/// Under REGISTRY_ONLY the machine's loopback is for nobody whom no ServiceEntry sends there: neither past the sidecar, nor
/// under the name of an allowed host, nor by the answer of a name server. And no name carries data out.
#[test]
fn has_no_back_door_to_the_machine_and_no_name_leaves_that_the_registry_lacks() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let with = |name: &str, annotation: &str| {
        let waits = super::deployment(name, 1, "exec sleep 10000").replace(", ports: [{containerPort: 8000}]", "");
        format!("---\n{}", waits.replace("annotations:\n", &format!("annotations:\n        {annotation}\n")))
    };
    let more = [
        with("excluded", "traffic.sidecar.istio.io/excludeOutboundPorts: \"7001,7002,80\""),
        with("ranges", "traffic.sidecar.istio.io/includeOutboundIPRanges: 10.96.0.0/12"),
        format!("---\n{}", super::settings("outboundTrafficPolicy: {mode: REGISTRY_ONLY}")),
        ATTACKERS_ENTRIES.to_owned(),
    ]
    .concat();
    let mut mesh = Mesh::start(User::present(), &more, &[]);
    super::wait_ready(&mut mesh.up, 5);
    for past_it in ["excluded", "ranges"] {
        let calls = [
            ("get 10.244.0.2:7001", "cut off"),
            // The agent answers with an address for the ServiceEntry, which nobody has but the sidecar.
            ("get host.evenkeel.internal:7001", "Connection refused"),
            ("get 203.0.113.10:80", "cut off"),
            // These are named.
            ("get 10.244.0.2:7002", "named machine"),
            ("get 203.0.113.11:80", "other"),
            // A Service's replicas are called past the sidecar as well.
            ("get files:80", "replica"),
        ];
        mesh.calls(past_it, &calls);
    }
    mesh.calls(
        "client",
        &[
            ("as any.allowed.example@10.244.0.2:7001", "503"),
            ("get rebind.corp:7001", "503"),
            ("name secret-data.attacker.example", "no such name"),
            ("get host.evenkeel.internal:7002", "named machine"),
        ],
    );
    mesh.calls("plain", &[("name other-data.attacker.example", "no such name"), ("get 10.244.0.2:7001", "cut off")]);
    let asked = std::fs::read_to_string(mesh.folder.path().join("asked")).expect("names were asked for");
    assert!(asked.contains("rebind.corp") && !asked.contains("attacker"), "{asked}");
    mesh.stop();
}

#[test]
fn is_forbidden_by_a_flag() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mesh = Mesh::start(User::present(), "", &["--no-egress"]);
    mesh.calls(
        "client",
        &[
            ("get files:80", "replica"),
            ("get 203.0.113.10:80", "503"),
            ("get static.corp:80", "503"),
            ("name passes.corp", "try again"),
            ("name host.evenkeel.internal", "try again"),
        ],
    );
    mesh.logged(&["No_route_to_host"]);
    mesh.calls("plain", &[("get files:80", "replica"), ("get 203.0.113.10:80", "No route to host")]);
    mesh.stop();
}
