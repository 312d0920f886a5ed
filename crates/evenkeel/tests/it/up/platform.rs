//! What a cluster gives its Pods beside a mesh: Services' addresses that are alive without a route, names, files of their own.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

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
        Self::with_flags(objects, replicas, &[])
    }

    fn with_flags(objects: &str, replicas: usize, flags: &[&str]) -> Self {
        let (user, folder) = (User::present(), state());
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("it can be written");
        write("calls.py", include_str!("calls.py"));
        write("objects.yaml", objects);
        let mut command = user.evenkeel(&["up"]);
        command.arg(folder.path()).arg("--state").arg(user.state.path()).args(flags);
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

    /// The port of the machine for a Gateway's port that `up` has moved.
    fn moved(&self, number: u16) -> u16 {
        let output = self.up.output();
        let found = output.split(&format!("port {number} of the Gateway is ")).nth(1);
        let digits: String = found.unwrap_or_default().chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("no port {number}: {output}"))
    }

    /// The status that a host gets at the machine's port, and the body if it is a success.
    fn outside_at(&self, port: u16, host: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port is open");
        let request = format!("GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("it is open");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let status = answer.split(' ').nth(1).unwrap_or_default().to_owned();
        if status == "200" { answer.rsplit("\r\n").next().unwrap_or_default().trim().to_owned() } else { status }
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
    // As root each identity has a user of its own, which has a name.
    if super::user::is_root() && std::env::var_os("SUDO_UID").is_none() {
        let (seen, _) = mesh.evenkeel(&["exec", "reader"], &["--", "sh", "-c", "whoami; id -gn; id -un root"]);
        assert_eq!(seen, "default\ndefault\nroot\n");
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

/// A gateway at some port for a host, with a route to a Service of the same namespace.
fn gateway(name: &str, selector: &str, (number, host, to): (u16, &str, &str)) -> String {
    format!(
        "---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: hall}}
spec: {{selector: {{{selector}}}, servers: [{{port: {{number: {number}, name: {name}, protocol: HTTP}}, hosts: ['*']}}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: {name}, namespace: hall}}
spec: {{hosts: [{host}], gateways: [{name}], http: [{{route: [{{destination: {{host: {to}}}}}]}}]}}
"
    )
}

/// A Service of gateways.
fn in_front(name: &str, namespace: &str, selector: &str, (number, target): (u16, u16), more: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}{more}}}
spec: {{type: LoadBalancer, selector: {{{selector}}}, ports: [{{name: http, port: {number}, targetPort: {target}}}]}}
"
    )
}

/// A server in the namespace `hall` that says this.
fn lamp(says: &str) -> String {
    let run = format!("cd $EVENKEEL_DATA_DIR && echo {says} > index.html && exec python3 -m http.server 8000");
    let server =
        super::deployment("lamp", 1, &run).replace("{name: lamp}\nspec", "{name: lamp, namespace: hall}\nspec");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: lamp, namespace: hall}\n\
                   spec: {selector: {app: lamp}, ports: [{name: http, port: 80, targetPort: 8000}]}\n";
    format!("---\n{server}---\n{service}")
}

#[test]
fn gateways_are_called_from_inside_too_and_lead_back_to_themselves() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let port = evenkeel_testkit::free_port();
    let ingress = "istio: ingressgateway";
    let inside = "istio-ingressgateway.istio-system";
    // A second host leads back to the gateway itself, as mapped domains of a serverless platform do.
    let again = format!(
        "---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: again, namespace: hall}}
spec:
  hosts: [again.hall.test]
  gateways: [door]
  http:
    - rewrite: {{authority: www.hall.test}}
      route: [{{destination: {{host: {inside}.svc.cluster.local, port: {{number: {port}}}}}}}]
"
    );
    let egress = "
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: out, namespace: hall}
spec: {selector: {istio: egressgateway}, servers: [{port: {number: 7080, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: out, namespace: hall}
spec:
  hosts: [far.test]
  gateways: [out]
  http: [{directResponse: {status: 200, body: {string: through}}}]
---
apiVersion: v1
kind: Service
metadata: {name: istio-egressgateway, namespace: istio-system}
spec: {selector: {istio: egressgateway}, ports: [{name: http, port: 7080}]}
";
    // A gateway of a Deployment, with two replicas.
    let own = "---
apiVersion: apps/v1
kind: Deployment
metadata: {name: porch, namespace: hall}
spec:
  replicas: 2
  selector: {matchLabels: {istio: porch}}
  template:
    metadata: {labels: {istio: porch}, annotations: {inject.istio.io/templates: gateway}}
    spec: {containers: [{name: istio-proxy, image: auto}]}
";
    let objects = [
        lamp("light"),
        gateway("door", ingress, (port, "'*'", "lamp"))
            .replace("hosts: ['*'], gateways", &format!("hosts: [www.hall.test, {inside}], gateways")),
        in_front("istio-ingressgateway", "istio-system", ingress, (port, port), ""),
        again,
        egress.to_owned(),
        own.to_owned(),
        gateway("porch", "istio: porch", (80, "porch.test", "lamp")),
        in_front("porch", "hall", "istio: porch", (80, 8085), ""),
        client("guest", "hall", ""),
        client("bare", "hall", "        sidecar.istio.io/inject: \"false\"\n"),
    ]
    .concat();
    // lamp, guest, bare, two gateways of Istio's installation, two of the Deployment.
    let mesh = Mesh::with_flags(&objects, 7, &["--gateway-port", "80=0"]);
    let porch = mesh.moved(80);
    // Gateways hear of ready replicas a moment after the user does.
    for (port, host) in [(port, "www.hall.test"), (porch, "porch.test"), (port, "again.hall.test")] {
        eventually(host, || (mesh.outside_at(port, host) == "light").then_some(()));
    }
    (0..4).for_each(|_| assert_eq!(mesh.outside_at(porch, "porch.test"), "light"));
    assert_eq!(mesh.outside_at(porch, "www.hall.test"), "404");
    let call = format!("get {inside}:{port}");
    let other = format!("get {inside}:{port} www.hall.test");
    for client in ["guest", "bare"] {
        mesh.calls(
            client,
            &[
                (&call, "light"),
                (&other, "light"),
                ("get porch.hall:80 porch.test", "light"),
                ("get istio-egressgateway.istio-system:7080 far.test", "through"),
            ],
        );
    }
    mesh.stop();
}

#[test]
fn a_gateways_ports_stay_apart_and_ingresses_are_served() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let ingress = "istio: ingressgateway";
    let label = ", labels: {experimental.istio.io/disable-gateway-port-translation: 'true'}";
    let of_kubernetes = "---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web, namespace: hall, annotations: {kubernetes.io/ingress.class: istio}}
spec:
  rules:
    - host: ingress.test
      http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: lamp, port: {number: 80}}}}]}
";
    let objects = [
        lamp("light"),
        in_front("istio-ingressgateway", "istio-system", ingress, (80, 8080), ""),
        in_front("inner-gateway", "istio-system", ingress, (80, 8081), label),
        gateway("public", ingress, (80, "open.test", "lamp")),
        gateway("inner", ingress, (8081, "secretive.test", "lamp")),
        of_kubernetes.to_owned(),
    ]
    .concat();
    let mesh = Mesh::with_flags(&objects, 2, &["--gateway-port", "80=0", "--gateway-port", "8081=0"]);
    let (public, inner) = (mesh.moved(80), mesh.moved(8081));
    for (port, host) in [(public, "open.test"), (public, "ingress.test"), (inner, "secretive.test")] {
        eventually(host, || (mesh.outside_at(port, host) == "light").then_some(()));
    }
    // Neither port serves what belongs to the other.
    for (port, host) in [(public, "secretive.test"), (inner, "open.test"), (inner, "ingress.test")] {
        assert_eq!(mesh.outside_at(port, host), "404", "{host}: {}", mesh.up.output());
    }
    mesh.stop();
}
