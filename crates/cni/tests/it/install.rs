//! The plugin among the files of a node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use evenkeel_cni::PLUGIN;
use evenkeel_cni::configuration::Settings;
use evenkeel_cni::install::{Node, Placement};
use serde_json::{Value, json};

const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}, {"type": "portmap"}]}"#;

fn settings() -> Settings {
    Settings {
        socket: "/run/evenkeel-cni/agent.sock".into(),
        exclude_namespaces: vec!["kube-system".to_owned()],
        agent_namespace: "istio-system".to_owned(),
        standalone: false,
        agent_prefix: "evenkeel-cni-node-".to_owned(),
    }
}

fn node(folder: &tempfile::TempDir) -> Node {
    let node = Node { programs: folder.path().join("bin"), configurations: folder.path().join("net.d") };
    [&node.programs, &node.configurations].into_iter().for_each(|path| fs::create_dir(path).expect("a directory"));
    node
}

fn list(node: &Node, name: &str) -> Value {
    serde_json::from_slice(&fs::read(node.configurations.join(name)).expect("a file")).expect("JSON")
}

fn plugins(node: &Node, name: &str) -> Vec<String> {
    let list = list(node, name);
    let plugins = list["plugins"].as_array().expect("a list").iter();
    plugins.map(|plugin| plugin["type"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_plugin_is_chained_behind_the_others_and_goes_without_a_trace() {
    let folder = tempfile::tempdir().expect("a directory");
    let node = node(&folder);
    let write = |name: &str, text: &str| fs::write(node.configurations.join(name), text).expect("a file");
    let missing = node.install_entry(&Placement::Chained, &settings()).expect_err("there is none").to_string();
    assert!(missing.contains("no network configuration (*.conflist) yet"), "{missing}");
    write("10-pods.conflist", LIST);
    write("20-others.conflist", LIST);
    write("00-notes.txt", "no configuration");
    assert!(node.install_entry(&Placement::Chained, &settings()).expect("it is chained"));
    assert_eq!(plugins(&node, "10-pods.conflist"), ["bridge", "portmap", PLUGIN]);
    assert_eq!(plugins(&node, "20-others.conflist"), ["bridge", "portmap"]);
    let mode = fs::metadata(node.configurations.join("10-pods.conflist")).expect("it").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(!node.install_entry(&Placement::Chained, &settings()).expect("it is there"), "nothing to change");
    // The other plugins' installer writes its file again.
    write("10-pods.conflist", LIST);
    assert!(node.install_entry(&Placement::Chained, &settings()).expect("it is chained again"));
    let moved = Settings { socket: "/run/other.sock".into(), ..settings() };
    assert!(node.install_entry(&Placement::Chained, &moved).expect("it is corrected"));
    assert_eq!(plugins(&node, "10-pods.conflist"), ["bridge", "portmap", PLUGIN]);
    node.remove().expect("it is removed");
    assert_eq!(list(&node, "10-pods.conflist"), serde_json::from_str::<Value>(LIST).expect("JSON"));
    assert_eq!(fs::read_dir(&node.configurations).expect("a directory").count(), 3);
}

#[test]
fn what_cannot_be_chained_is_named() {
    let check = |name: &str, text: &str, expected: &str| {
        let folder = tempfile::tempdir().expect("a directory");
        let node = node(&folder);
        fs::write(node.configurations.join(name), text).expect("a file");
        let error = node.install_entry(&Placement::Chained, &settings()).expect_err("it cannot be chained").to_string();
        assert!(error.contains(expected), "{error}");
        assert_eq!(fs::read_to_string(node.configurations.join(name)).expect("a file"), text);
    };
    check("10-one.conf", &json!({"name": "bridge"}).to_string(), "nor the type of a plugin");
    check("00-one.conf", &json!({"type": "bridge"}).to_string(), "00-one.conf comes before");
    check("10-pods.conflist", "{", "10-pods.conflist: ");
    check("10-pods.conflist", "{}", "neither a list `plugins`");
}

#[test]
fn the_program_is_replaced_as_a_whole() {
    let folder = tempfile::tempdir().expect("a directory");
    let node = node(&folder);
    let source = folder.path().join("evenkeel");
    for content in ["first", "second"] {
        fs::write(&source, content).expect("a file");
        node.install_program(&source).expect("it is copied");
        let copy = node.programs.join(PLUGIN);
        assert_eq!(fs::read_to_string(&copy).expect("it"), content);
        assert_eq!(fs::metadata(&copy).expect("it").permissions().mode() & 0o777, 0o755);
    }
    assert_eq!(fs::read_dir(&node.programs).expect("a directory").count(), 1);
    fs::write(node.configurations.join("10-pods.conflist"), LIST).expect("a file");
    node.remove().expect("it is removed");
    assert_eq!(fs::read_dir(&node.programs).expect("a directory").count(), 0);
}

fn mode(node: &Node, name: &str) -> u32 {
    fs::metadata(node.configurations.join(name)).expect("it").permissions().mode() & 0o777
}

#[test]
fn a_single_plugin_is_followed_in_a_list_of_its_own() {
    let folder = tempfile::tempdir().expect("a directory");
    let node = node(&folder);
    let single = json!({"cniVersion": "0.4.0", "name": "pods", "type": "bridge", "mtu": 1400});
    fs::write(node.configurations.join("10-one.conf"), single.to_string()).expect("a file");
    assert!(node.install_entry(&Placement::Chained, &settings()).expect("it is there"));
    assert!(!node.install_entry(&Placement::Chained, &settings()).expect("it is there"), "nothing to change");
    let own = "02-evenkeel-cni.conflist";
    assert_eq!(plugins(&node, own), ["bridge", PLUGIN]);
    let found = list(&node, own);
    assert_eq!((&found["cniVersion"], &found["name"]), (&json!("0.4.0"), &json!("pods")));
    assert_eq!(found["plugins"][0], json!({"type": "bridge", "mtu": 1400}));
    assert_eq!(mode(&node, own), 0o600);
    assert_eq!(list(&node, "10-one.conf"), single, "others' files stay as they are");
    // The network plugin is upgraded to a list, which can be chained.
    fs::remove_file(node.configurations.join("10-one.conf")).expect("it is removed");
    fs::write(node.configurations.join("10-pods.conflist"), LIST).expect("a file");
    assert!(node.install_entry(&Placement::Chained, &settings()).expect("it is chained"));
    assert_eq!(plugins(&node, "10-pods.conflist"), ["bridge", "portmap", PLUGIN]);
    assert!(!node.configurations.join(own).exists());
}

#[test]
fn an_own_list_follows_that_of_others_and_goes_with_it() {
    let folder = tempfile::tempdir().expect("a directory");
    let node = node(&folder);
    let own = Placement::Own("05-mesh.conflist".to_owned());
    fs::write(node.configurations.join("10-pods.conflist"), LIST).expect("a file");
    node.install_entry(&Placement::Chained, &settings()).expect("it is chained");
    assert!(node.install_entry(&own, &settings()).expect("it is there"));
    assert_eq!(plugins(&node, "05-mesh.conflist"), ["bridge", "portmap", PLUGIN]);
    assert_eq!(plugins(&node, "10-pods.conflist"), ["bridge", "portmap"], "it must not run twice");
    assert!(!node.install_entry(&own, &settings()).expect("it is there"), "nothing to change");
    // Others change their list, and somebody changes or removes the own one.
    let changed = LIST.replace("portmap", "bandwidth");
    fs::write(node.configurations.join("10-pods.conflist"), changed).expect("a file");
    assert!(node.install_entry(&own, &settings()).expect("it follows"));
    assert_eq!(plugins(&node, "05-mesh.conflist"), ["bridge", "bandwidth", PLUGIN]);
    fs::remove_file(node.configurations.join("05-mesh.conflist")).expect("it is removed");
    assert!(node.install_entry(&own, &settings()).expect("it is there again"));
    // Another name: the earlier file goes.
    let renamed = Placement::Own("01-mesh.conflist".to_owned());
    assert!(node.install_entry(&renamed, &settings()).expect("it is there"));
    assert!(!node.configurations.join("05-mesh.conflist").exists());
    // Without others' network there is none.
    fs::remove_file(node.configurations.join("10-pods.conflist")).expect("it is removed");
    let error = node.install_entry(&renamed, &settings()).expect_err("nothing to follow").to_string();
    assert!(error.contains("no network configuration"), "{error}");
    assert_eq!(fs::read_dir(&node.configurations).expect("a directory").count(), 0);
}

#[test]
fn alone_it_needs_no_other_plugin() {
    let folder = tempfile::tempdir().expect("a directory");
    let node = node(&folder);
    let alone = Placement::Alone("YYY-mesh.conflist".to_owned());
    assert!(node.install_entry(&alone, &settings()).expect("it is there"));
    assert_eq!(plugins(&node, "YYY-mesh.conflist"), [PLUGIN]);
    assert_eq!(list(&node, "YYY-mesh.conflist")["plugins"][0]["standalone"], true);
    assert_eq!(mode(&node, "YYY-mesh.conflist"), 0o600);
    for name in ["mesh.conf", "a/b.conflist", ".hidden.conflist"] {
        let error = node.install_entry(&Placement::Alone(name.to_owned()), &settings()).expect_err(name).to_string();
        assert!(error.contains("is no name of a network configuration"), "{error}");
    }
    node.remove().expect("it is removed");
    assert_eq!(fs::read_dir(&node.configurations).expect("a directory").count(), 0);
}

#[test]
fn a_program_that_others_remove_is_missed() {
    let folder = tempfile::tempdir().expect("a directory");
    let node = node(&folder);
    let source = folder.path().join("evenkeel");
    fs::write(&source, "program").expect("a file");
    assert!(!node.has_program(&source));
    node.install_program(&source).expect("it is copied");
    assert!(node.has_program(&source));
    fs::write(node.programs.join(PLUGIN), "other").expect("a file");
    assert!(!node.has_program(&source), "another program");
}

#[test]
fn what_captures_stays_until_its_successor_does() {
    let folder = tempfile::tempdir().expect("a directory");
    let node = node(&folder);
    let pods = node.configurations.join("10-pods.conflist");
    fs::write(&pods, LIST).expect("a file");
    let own = Placement::Own("05-mesh.conflist".to_owned());
    assert!(node.install_entry(&own, &settings()).expect("it is written"));
    fs::write(&pods, "{").expect("a file");
    node.install_entry(&Placement::Chained, &settings()).expect_err("nothing can be chained there");
    assert_eq!(plugins(&node, "05-mesh.conflist"), ["bridge", "portmap", PLUGIN]);
    fs::write(&pods, LIST).expect("a file");
    assert!(node.install_entry(&Placement::Chained, &settings()).expect("it is chained"));
    assert_eq!(plugins(&node, "10-pods.conflist"), ["bridge", "portmap", PLUGIN]);
    assert!(!node.configurations.join("05-mesh.conflist").exists());
    let late = Placement::Own("20-mesh.conflist".to_owned());
    node.install_entry(&late, &settings()).expect_err("the runtime would not take it");
    assert_eq!(plugins(&node, "10-pods.conflist"), ["bridge", "portmap", PLUGIN]);
}
