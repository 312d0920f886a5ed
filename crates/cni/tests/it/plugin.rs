//! Commands of the runtime, with a real agent behind the socket.

use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread;

use evenkeel_cni::agent::{self, Counts, Rules, SocketFile};
use evenkeel_cni::configuration::{PodName, VERSIONS};
use evenkeel_cni::plugin::Invocation;
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

/// Records in which network rules were loaded, by inode.
#[derive(Default)]
struct Recorded(Mutex<Vec<u64>>);

impl Rules for Recorded {
    type Capture = u8;

    fn of_pod(&self, pod: &PodName) -> Result<Option<u8>, String> {
        match pod.name.as_str() {
            "captured" => Ok(Some(7)),
            "plain" => Ok(None),
            _ => Err("no such Pod".to_owned()),
        }
    }

    fn load(&self, rules: u8) -> Result<(), String> {
        assert_eq!(rules, 7);
        self.0.lock().expect("no panic").push(inode("/proc/thread-self/ns/net"));
        Ok(())
    }

    fn verify(&self, _: u8) -> Result<(), String> {
        let here = inode("/proc/thread-self/ns/net");
        let is_loaded = self.0.lock().expect("no panic").contains(&here);
        if is_loaded { Ok(()) } else { Err("there is no table".to_owned()) }
    }
}

fn inode(path: impl AsRef<Path>) -> u64 {
    fs::metadata(path).expect("a namespace").ino()
}

/// An agent, and a Pod's network, which an open file keeps.
struct Node {
    folder: tempfile::TempDir,
    rules: Arc<Recorded>,
    counts: Arc<Counts>,
    network: PathBuf,
    _held: File,
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let (rules, counts) = (Arc::new(Recorded::default()), Arc::new(Counts::default()));
        let listener = agent::listen(&folder.path().join("agent.sock")).expect("a socket");
        let (served, counted) = (rules.clone(), counts.clone());
        thread::spawn(move || agent::serve(&listener, &served, &counted));
        let thread = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("a network");
            File::open("/proc/thread-self/ns/net").expect("the network of this thread")
        });
        let held = thread.join().expect("a network");
        let network = format!("/proc/self/fd/{}", held.as_raw_fd()).into();
        Self { folder, rules, counts, network, _held: held }
    }

    fn configuration(&self, version: &str, result: Option<Value>) -> Value {
        let mut text = json!({
            "cniVersion": version, "name": "pods", "type": "evenkeel-cni", "socket": self.folder.path().join("agent.sock"),
            "excludeNamespaces": ["kube-system"], "agentNamespace": "istio-system", "agentPrefix": "evenkeel-cni-node-",
        });
        text.as_object_mut().expect("an object").extend(result.map(|result| ("prevResult".to_owned(), result)));
        text
    }

    fn invoke(&self, command: &str, pod: &str, input: &Value) -> (Option<Value>, bool) {
        let (namespace, name) = pod.split_once('/').unwrap_or_default();
        let invocation = Invocation {
            command: command.to_owned(),
            network: self.network.clone(),
            arguments: format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID=1"),
        };
        invocation.run(input.to_string().as_bytes())
    }
}

#[test]
fn rules_are_loaded_in_the_network_of_the_pod() {
    let node = Node::new();
    let result = json!({"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.2/24"}]});
    let check = |pod: &str, loads: usize| {
        let printed = node.invoke("ADD", pod, &node.configuration("1.0.0", Some(result.clone())));
        assert_eq!(printed, (Some(result.clone()), true), "{pod}");
        let loaded = node.rules.0.lock().expect("no panic").clone();
        assert_eq!(loaded, vec![inode(&node.network); loads], "{pod}");
    };
    check("mesh/plain", 0);
    check("mesh/captured", 1);
    check("kube-system/captured", 1);
    check("istio-system/evenkeel-cni-node-x7k2p", 1);
    check("", 1);
    assert_ne!(inode(&node.network), inode("/proc/self/ns/net"));
    let counted = [&node.counts.captured, &node.counts.skipped, &node.counts.failed].map(|count| count.load(Relaxed));
    assert_eq!(counted, [1, 1, 0]);
}

#[test]
fn a_pod_whose_rules_are_not_known_does_not_start() {
    let node = Node::new();
    let result = Some(json!({"cniVersion": "1.0.0"}));
    let check = |command: &str, pod: &str, input: &Value, code: u32, message: &str| {
        let (printed, succeeded) = node.invoke(command, pod, input);
        let printed = printed.unwrap_or_default();
        assert!(!succeeded, "{printed}");
        assert_eq!(printed["code"], code, "{printed}");
        assert!(printed["msg"].as_str().is_some_and(|text| text.contains(message)), "{printed}");
    };
    let complete = node.configuration("1.0.0", result.clone());
    check("ADD", "mesh/unknown", &complete, 100, "Pod mesh/unknown are not loaded: no such Pod");
    check("ADD", "mesh/captured", &node.configuration("1.0.0", None), 7, "has to be chained");
    check("ADD", "mesh/captured", &node.configuration("2.0.0", result), 1, "`2.0.0` of CNI is not supported");
    check("MOVE", "mesh/captured", &complete, 4, "`MOVE` is no command");
    check("ADD", "mesh/captured", &json!({"cniVersion": "1.0.0"}), 6, "cannot be read");
    let mut elsewhere = complete;
    elsewhere["socket"] = json!(node.folder.path().join("absent.sock"));
    check("ADD", "mesh/captured", &elsewhere, 11, "the agent of this node does not answer");
    check("CHECK", "mesh/captured", &elsewhere, 11, "the agent of this node does not answer");
    // The agent's own Pod starts only on a node that is ready.
    assert_eq!(node.invoke("STATUS", "", &elsewhere), (None, true));
}

#[test]
fn other_commands_need_nothing() {
    let node = Node::new();
    let check = |command: &str, version: &str, expected: Option<Value>| {
        let found = node.invoke(command, "mesh/captured", &node.configuration(version, None));
        assert_eq!(found, (expected, true), "{command} {version}");
    };
    for version in VERSIONS {
        ["DEL", "GC", "STATUS"].iter().for_each(|command| check(command, version, None));
    }
    check("VERSION", "1.1.0", Some(json!({"cniVersion": "1.1.0", "supportedVersions": VERSIONS})));
    let socket = fs::metadata(node.folder.path().join("agent.sock")).expect("it");
    assert_eq!(socket.mode() & 0o777, 0o600);
}

#[test]
fn a_check_finds_rules_that_are_gone() {
    let node = Node::new();
    let input = node.configuration("1.0.0", Some(json!({"cniVersion": "1.0.0"})));
    let check = |pod: &str, expected: Option<u64>| {
        let (printed, succeeded) = node.invoke("CHECK", pod, &input);
        let code = printed.as_ref().and_then(|printed| printed["code"].as_u64());
        assert_eq!((code, succeeded), (expected, expected.is_none()), "{pod}: {printed:?}");
    };
    check("mesh/captured", Some(101));
    check("mesh/plain", None);
    check("kube-system/captured", None);
    check("istio-system/evenkeel-cni-node-x7k2p", None);
    node.invoke("ADD", "mesh/captured", &input);
    check("mesh/captured", None);
    node.rules.0.lock().expect("no panic").clear();
    check("mesh/captured", Some(101));
    let counted = [&node.counts.captured, &node.counts.skipped, &node.counts.failed].map(|count| count.load(Relaxed));
    assert_eq!(counted, [1, 0, 0], "checks are no Pods that start");
}

#[test]
fn alone_it_needs_no_result_of_others() {
    let node = Node::new();
    let mut input = node.configuration("1.0.0", None);
    input["standalone"] = true.into();
    assert_eq!(node.invoke("ADD", "mesh/captured", &input), (Some(json!({"cniVersion": "1.0.0"})), true));
    assert_eq!(node.rules.0.lock().expect("no panic").len(), 1);
}

#[test]
fn a_socket_goes_with_its_agent_alone() {
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path().join("agent.sock");
    let first = agent::listen(&path).expect("a socket");
    let file = SocketFile::of(&path).expect("it");
    // While the first one lives, so that the file of the second one is another.
    let second = agent::listen(&path).expect("a socket");
    file.remove().expect("nothing is wrong");
    assert!(path.exists(), "that of the next agent stays");
    SocketFile::of(&path).expect("it").remove().expect("its own goes");
    assert!(!path.exists());
    file.remove().expect("nothing is there any more");
    drop((first, second));
}
