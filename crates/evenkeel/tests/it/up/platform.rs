//! What a cluster gives its Pods beside a mesh: Services' addresses that are alive without a route, names, files of their own.

use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal};

use super::user::User;
use super::{MACHINE, PATIENCE, settings, state, wait_ready};

/// A client of the mesh, in a namespace, with annotations.
fn client(name: &str, namespace: &str, annotation: &str) -> String {
    let waits = super::deployment(name, 1, "exec sleep 10000").replace(", ports: [{containerPort: 8000}]", "");
    let waits = waits.replace(&format!("{{name: {name}}}"), &format!("{{name: {name}, namespace: {namespace}}}"));
    format!("---\n{}", waits.replace("annotations:\n", &format!("annotations:\n{annotation}")))
}

/// A server with a Service and a headless one, and clients: with a sidecar, around it, without one, and one whose Sidecar
/// hides the server.
fn objects() -> String {
    let server = super::deployment("clock", 1, "echo tick > index.html && exec python3 -m http.server 8000");
    let server = server.replace("{name: clock}\nspec", "{name: clock, namespace: tower}\nspec");
    [
        format!("---\n{}", server.replace("echo tick", "cd $EVENKEEL_DATA_DIR && echo tick")),
        "---
apiVersion: v1
kind: Service
metadata: {name: clock, namespace: tower}
spec: {selector: {app: clock}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: tower}
spec: {selector: {app: nobody}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: hands, namespace: tower}
spec: {clusterIP: None, selector: {app: clock}, ports: [{name: http, port: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: tower}
spec: {type: ExternalName, externalName: clock.tower.svc.cluster.local}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: small, namespace: hut}
spec: {egress: [{hosts: ['./*']}]}
"
        .to_owned(),
        client("reader", "tower", ""),
        client("around", "tower", "        traffic.sidecar.istio.io/excludeOutboundPorts: \"80\"\n"),
        client("bare", "tower", "        sidecar.istio.io/inject: \"false\"\n"),
        client("far", "hut", ""),
    ]
    .concat()
}

/// A mesh of these objects.
struct Mesh {
    up: Process,
    user: User,
    folder: tempfile::TempDir,
}

impl Mesh {
    fn start(objects: &str, replicas: usize) -> Self {
        let (user, folder) = (User::present(), state());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("it can be written");
        write("calls.py", include_str!("calls.py"));
        write("objects.yaml", objects);
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path());
        let mut up = Process::spawn(&mut command);
        wait_ready(&mut up, replicas);
        Self { up, user, folder }
    }

    /// The output of `evenkeel` with these arguments, and whether it succeeded.
    fn evenkeel(&self, arguments: &[&str], more: &[&str]) -> (String, bool) {
        let mut command = self.user.evenkeel(arguments);
        let output = command.arg("--state").arg(self.user.state.path()).args(more).output().expect("it runs");
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        (text, output.status.success())
    }

    /// Makes the calls from a replica and compares what each has seen.
    fn calls(&self, workload: &str, expected: &[(&str, &str)]) {
        let script = self.folder.path().join("calls.py").display().to_string();
        let calls = expected.iter().map(|(call, _)| *call);
        let more: Vec<&str> = ["--", "python3", &script].into_iter().chain(calls).collect();
        let (seen, _) = self.evenkeel(&["exec", workload], &more);
        let lines: Vec<String> = expected.iter().map(|(call, seen)| format!("{call}: {seen}")).collect();
        assert_eq!(seen.lines().collect::<Vec<_>>(), lines, "{workload}\n{}", self.up.output());
    }

    fn stop(mut self) {
        self.up.signal(Signal::SIGINT);
        assert!(self.up.wait_for_exit(PATIENCE).success(), "{}", self.up.output());
    }
}

#[test]
fn services_are_reached_without_a_route_and_have_the_names_of_a_cluster() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mesh = Mesh::start(&objects(), 5);
    // No route has this name, the sidecar does not see the port, there is no sidecar.
    mesh.calls(
        "reader",
        &[("get clock:80", "tick"), ("get clock:80 clock.public.test", "tick"), ("get nobody:80", "503")],
    );
    mesh.calls("around", &[("get clock:80", "tick")]);
    mesh.calls("far", &[("get clock.tower:80", "tick"), ("name nosuch.tower", "no such name")]);
    mesh.calls("bare", &[("get clock:80", "tick"), ("get nobody:80", "Connection refused"), ("get other:80", "tick")]);
    let (ips, _) = mesh.evenkeel(&["exec", "clock"], &["--", "sh", "-c", "echo $POD_IP"]);
    let (ip, dashed) = (ips.trim(), ips.trim().replace('.', "-"));
    for client in ["reader", "bare"] {
        mesh.calls(
            client,
            &[
                ("srv _http._tcp.clock.tower.svc.cluster.local", "1 at port 80"),
                ("srv _http._tcp.hands.tower.svc.cluster.local", "1 at port 8000"),
                ("srv _ftp._tcp.clock.tower.svc.cluster.local", "none, code 3"),
                (&format!("name {dashed}.tower.pod.cluster.local"), ip),
                (&format!("name {dashed}.hands.tower.svc.cluster.local"), ip),
                (&format!("address {ip}"), &format!("{dashed}.hands.tower.svc.cluster.local")),
                ("address 10.244.9.9", "no such name"),
            ],
        );
    }
    // A program that prints nothing has an empty log.
    assert_eq!(mesh.evenkeel(&["logs", "reader"], &[]), (String::new(), true));
    mesh.stop();
}

#[test]
fn what_no_route_leads_to_stays_closed_under_registry_only() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let settings = settings("outboundTrafficPolicy: {mode: REGISTRY_ONLY}");
    let mesh = Mesh::start(&format!("{}---\n{settings}", objects()), 5);
    mesh.calls("reader", &[("get clock:80", "tick"), ("get clock:80 clock.public.test", "502")]);
    mesh.calls("around", &[("get clock:80", "tick")]);
    mesh.calls("far", &[("get clock.tower:80", "cut off")]);
    mesh.calls("bare", &[("get clock:80", "tick")]);
    mesh.stop();
}
