//! The metrics of a mesh's proxies, as a Prometheus on the machine finds them.

use std::sync::PoisonError;

use evenkeel_testkit::{Connection, Process, Signal, eventually};
use serde_json::Value;

use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// The answer to a GET of this server.
fn get(address: &str, path: &str, host: &str) -> (u16, String) {
    let mut connection = Connection::open(address.parse().expect("an address")).expect("it listens");
    let response = connection.get(host, path, "accept: text/plain\r\n").expect("an answer");
    (response.status, response.text())
}

#[test]
fn every_proxy_is_found_and_read_from_the_machine() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let objects = super::deployment("clock", 2, "exec python3 -m http.server 8000");
    std::fs::write(folder.path().join("objects.yaml"), objects).expect("it can be written");
    let mut up = Process::spawn(user.evenkeel(&["up"]).arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 2);
    let line = up.wait_for_line("/targets");
    let url = line.rsplit("http://").next().expect("a URL").trim().to_owned();
    let address = url.strip_suffix("/targets").expect("the list").to_owned();

    let (status, list) = get(&address, "/targets", &address);
    assert_eq!(status, 200, "{list}");
    let list: Vec<Value> = serde_json::from_str(&list).expect("JSON");
    let pods = list.iter().filter(|target| target["labels"]["app"] == "clock").count();
    assert_eq!(pods, 2, "{list:#?}");
    for target in &list {
        assert_eq!(target["targets"][0], address.as_str());
        let path = target["labels"]["__metrics_path__"].as_str().expect("a path");
        let read = || {
            let (status, page) = get(&address, path, &address);
            (status == 200 && page.contains("# TYPE ")).then_some(())
        };
        eventually(&format!("{path} shows metrics"), read);
    }
    // Keys of a page's own, others' pages, and pages of strangers in a browser.
    assert_eq!(get(&address, "/metrics/default/nobody", &address).0, 404);
    assert_eq!(get(&address, "/config_dump", &address).0, 404);
    assert_eq!(get(&address, "/targets", "stranger.example").0, 403);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
