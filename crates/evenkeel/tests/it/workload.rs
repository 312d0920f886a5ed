//! `evenkeel workload`: a group as istioctl prints it, and the files of a machine, whose token the API server accepts.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use evenkeel_testkit::{Process, Signal};

fn evenkeel(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).output().expect("it runs");
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

#[test]
fn a_group_is_printed() {
    let create = ["workload", "group", "create", "--name", "vm", "-n", "shop"];
    let (worked, text) = evenkeel(&[&create[..], &["-l", "app=vm,version=v1", "-p", "http=8080", "-s", "vm"]].concat());
    let expected = "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata:\n  name: vm\n  namespace: shop\nspec:\n  \
                    metadata:\n    labels:\n      app: vm\n      version: v1\n  template:\n    serviceAccount: vm\n    ports:\n      \
                    http: 8080\n";
    assert!(worked);
    assert_eq!(text, expected);
    let (worked, text) = evenkeel(&[&create[..], &["-p", "http=0"]].concat());
    assert!(!worked && text.contains("`0` is not a port (1 to 65535)"), "{text}");
    let (worked, text) = evenkeel(&[&create[..], &["-l", "app"]].concat());
    assert!(!worked && text.contains("`app` is not NAME=VALUE"), "{text}");
}

#[test]
fn a_machine_gets_what_it_needs_to_join() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let namespace = server.namespace("machines");
    server.service_account(&namespace, "vm");
    let group = format!(
        "apiVersion: networking.istio.io/v1\nkind: WorkloadGroup\nmetadata: {{name: vm, namespace: {namespace}}}\nspec:\n  metadata: \
         {{labels: {{app: vm}}}}\n  template: {{serviceAccount: vm, ports: {{http: 8080}}}}\n  probe: {{tcpSocket: {{port: 8080}}}}\n"
    );
    server.apply(&group);
    let place = tempfile::tempdir().expect("a folder");
    let folder = place.path().join("vm-1");
    let folder_name = folder.to_str().expect("a path");
    let kubeconfig = server.kubeconfig();
    let kubeconfig = kubeconfig.to_str().expect("a path");
    let cluster = ["--ip", "192.0.2.7", "--ingress-ip", "127.0.0.1", "-o", folder_name, "--kubeconfig", kubeconfig];
    let by_name = [&["workload", "entry", "configure", "--name", "vm", "-n", &namespace][..], &cluster].concat();

    let (worked, text) = evenkeel(&by_name);
    assert!(!worked && text.contains("no ConfigMap istio-ca-root-cert"), "{text}");
    let roots = rcgen::generate_simple_self_signed(["root.test".to_owned()]).expect("a certificate").cert.pem();
    server.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio-ca-root-cert, namespace: {namespace}}}\ndata: {{root-cert.pem: {roots:?}}}\n"
    ));
    let (worked, text) = evenkeel(&by_name);
    assert!(worked && text.contains("start-agent.sh"), "{text}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a file");
    assert_eq!(read("root-cert.pem"), roots);
    assert_eq!(read("hosts"), "127.0.0.1 istiod.istio-system.svc\n");
    let mode = |name: &str| std::fs::metadata(folder.join(name)).expect("a file").permissions().mode() & 0o777;
    assert_eq!((mode("istio-token"), mode("start-agent.sh")), (0o600, 0o755));
    let review = format!(
        "{{\"apiVersion\": \"authentication.k8s.io/v1\", \"kind\": \"TokenReview\", \"spec\": {{\"token\": \"{}\", \"audiences\": \
         [\"istio-ca\"]}}}}",
        read("istio-token")
    );
    let file = place.path().join("review.json");
    std::fs::write(&file, review).expect("our own folder");
    let user = "jsonpath={.status.user.username}";
    let reviewed = server.kubectl(&["create", "-f", file.to_str().expect("a path"), "-o", user]);
    assert_eq!(reviewed, format!("system:serviceaccount:{namespace}:vm"));

    // The same from a file, and again over the files that are there.
    let file = place.path().join("group.yaml");
    std::fs::write(&file, &group).expect("our own folder");
    let by_file = [&["workload", "entry", "configure", "-f", file.to_str().expect("a path")][..], &cluster].concat();
    let before = ["cluster.env", "mesh.yaml", "start-agent.sh"].map(read);
    let (worked, text) = evenkeel(&by_file);
    assert!(worked, "{text}");
    assert_eq!(before, ["cluster.env", "mesh.yaml", "start-agent.sh"].map(read));
    let absent = [&["workload", "entry", "configure", "--name", "absent", "-n", &namespace][..], &cluster].concat();
    assert!(evenkeel(&absent).1.contains("the cluster has no WorkloadGroup absent"));

    // The script starts an agent that looks for the control plane.
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_evenkeel")).parent().expect("a folder");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").expect("a path"));
    let mut command = Command::new(folder.join("start-agent.sh"));
    command.env("PATH", path).env("EVENKEEL_STATE", place.path().join("state")).arg("--no-capture");
    let mut agent = Process::spawn(&mut command);
    agent.wait_for_line("istiod.istio-system.svc");
    agent.signal(Signal::SIGTERM);
}
