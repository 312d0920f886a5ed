//! A proxy that learns its scope, beside a real control plane: processes, sockets and files as in production.

use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_testkit::{Backend, eventually};

use crate::mesh::{Plane, Proxy, host, page};

#[test]
fn what_is_used_is_asked_for_once_remembered_and_outlives_the_control_plane() {
    let (a, b) = (Backend::echo("a"), Backend::echo("b"));
    let plane = Plane::new();
    plane.write("a", &host("a", a.address()));
    let control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let proxy = Proxy::start(&plane, folder.path(), "client-0", "learned", 1);
    assert!(!page(proxy.admin, "/config_dump?include_eds").contains("a.test"), "it holds what nobody asked for");

    // The first request to a host waits for it, the second does not.
    assert_eq!(proxy.get("a.test").0, 200, "{}", proxy.process.output());
    assert_eq!(proxy.held(), [1, 1, 0]);
    assert_eq!(proxy.get("a.test").0, 200);
    assert_eq!(proxy.get("A.test:80").0, 200);
    assert_eq!(proxy.held(), [1, 1, 0]);
    // What does not exist is asked for once, and decided by the outbound policy.
    assert_eq!(proxy.get("unknown.test").0, 502);
    assert_eq!(proxy.get("unknown.test").0, 502);
    assert_eq!(proxy.held(), [2, 1, 1]);
    let scope = page(proxy.admin, "/scope");
    assert!(scope.contains("VHDS 80/a.test present") && scope.contains("VHDS 80/unknown.test absent"), "{scope}");

    // A host that nobody uses costs this proxy nothing, and comes when it is used. The other proxy shows when it is there.
    let full = Proxy::start(&plane, folder.path(), "other-0", "full", 1);
    let before = proxy.updates();
    plane.write("b", &host("b", b.address()));
    eventually("the new host in a proxy that holds everything", || (full.get("b.test").0 == 200).then_some(()));
    assert_eq!(proxy.updates(), before);
    assert_eq!(proxy.get("b.test").0, 200);
    assert_eq!(proxy.held(), [3, 2, 1]);
    // What was asked for in vain is told when it comes to be.
    plane.write("unknown", &host("unknown", a.address()));
    eventually("the host that was unknown", || (proxy.get("unknown.test").0 == 200).then_some(()));
    assert_eq!(proxy.held(), [3, 2, 1]);

    // Another replica of the workload begins with what this one uses.
    eventually("the memory", || {
        let text = plane.remembered();
        ["80/a.test", "80/b.test", "80/unknown.test"].iter().all(|name| text.contains(name)).then_some(())
    });
    let second = Proxy::start(&plane, folder.path(), "client-1", "learned", 1);
    assert_eq!(second.stat("on_demand.recalled"), 3);
    assert_eq!((second.get("a.test").0, second.get("b.test").0), (200, 200));
    assert_eq!(second.held(), [0, 0, 0]);

    // Without a control plane, what is known works; what is not is decided by the policy, and does not wait.
    drop(control);
    plane.write("late", &host("late", b.address()));
    eventually("the end of the stream", || (proxy.stat("control_plane.connected_state") == 0).then_some(()));
    assert_eq!((proxy.get("a.test").0, proxy.get("b.test").0), (200, 200));
    assert_eq!(proxy.get("late.test").0, 502);
    assert_eq!(proxy.stat("on_demand.given_up"), 1);
    assert!(page(proxy.admin, "/scope").contains("80/late.test given up"));
    eventually("a word in the log", || proxy.process.output().contains("the control plane is away").then_some(()));
    // It is told when the control plane is back.
    let _control = plane.start();
    eventually("the late host", || (proxy.get("late.test").0 == 200).then_some(()));
}

#[test]
fn what_is_remembered_of_something_that_is_gone_holds_up_no_start() {
    let a = Backend::echo("a");
    let plane = Plane::new();
    plane.write("a", &host("a", a.address()));
    // Of a service on a port that no other has: its routes, its listener and its cluster are gone with it.
    let last_used = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock").as_secs() - 3600;
    let remembered = serde_json::json!([{
        "namespace": "shop", "service_account": "client", "workload": "client",
        "virtual_hosts": {"80/a.test": last_used, "9999/old.test": last_used},
        "listeners": {"10.96.0.77_9999": last_used},
        "clusters": {"outbound|9999||old.test": last_used},
    }]);
    std::fs::create_dir_all(plane.state()).expect("a folder");
    std::fs::write(plane.state().join("scope.json"), remembered.to_string()).expect("a file");
    let _control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let proxy = Proxy::start(&plane, folder.path(), "client-0", "learned", 1);
    assert_eq!(proxy.stat("on_demand.recalled"), 4);
    // It was answered, and not given up for want of an answer.
    let said = proxy.process.output();
    assert!(!said.contains("no first answer") && !said.contains("not waited for any longer"), "{said}");
    let scope = page(proxy.admin, "/scope");
    for absent in ["VHDS 9999/old.test", "LDS  10.96.0.77_9999", "CDS  outbound|9999||old.test"] {
        assert!(scope.contains(&format!("{absent} absent, remembered")), "{absent}: {scope}");
    }
    // What is used is remembered anew, and the rest is not because of this start.
    assert!(scope.contains("VHDS 80/a.test present, remembered"), "{scope}");
    let when = |name: &str| -> u64 {
        let entries: serde_json::Value = serde_json::from_str(&plane.remembered()).unwrap_or_default();
        entries[0]["virtual_hosts"][name].as_u64().unwrap_or_default()
    };
    assert_eq!(proxy.get("b.test").0, 502);
    plane.write("b", &host("b", a.address()));
    eventually("a host that comes to be", || (proxy.get("b.test").0 == 200).then_some(()));
    eventually("the memory", || (when("80/b.test") > last_used).then_some(()));
    assert_eq!([when("9999/old.test"), when("80/a.test")], [last_used; 2]);
}
