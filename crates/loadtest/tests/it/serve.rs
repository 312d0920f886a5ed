//! `load serve`, with Fortio's own server beside it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use clap::{CommandFactory as _, Parser as _};
use evenkeel_loadtest::flags;
use evenkeel_testkit::fortio;
use evenkeel_testkit::http::{Connection, Response};
use evenkeel_testkit::server::Backend;
use evenkeel_testkit::wait::eventually;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::loads::Cli;

const PATIENCE: Duration = Duration::from_secs(15);

/// Lines as they are written.
struct Lines(Sender<String>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        _ = self.0.send(String::from_utf8_lossy(bytes).into_owned());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A server that runs until the test's process ends.
struct Server {
    address: SocketAddr,
    folder: TempDir,
}

impl Server {
    fn start(extra: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let line = format!("serve -http-port 127.0.0.1:0 -data-dir {} {extra}", folder.path().display());
        let words = line.split_whitespace().map(OsString::from).collect();
        let words = flags::with_two_dashes(&Cli::command(), words);
        let cli = Cli::try_parse_from([OsString::from("load")].into_iter().chain(words)).expect("flags");
        let (lines, written) = channel();
        std::thread::spawn(move || evenkeel_loadtest::run(&cli.load, &mut Lines(lines), &mut io::sink()));
        let mut text = String::new();
        let address = eventually("the server names its address", || {
            text.push_str(&written.try_recv().ok()?);
            text.split_once("http://")?.1.split_once('/')?.0.parse().ok()
        });
        Self { address, folder }
    }

    fn get(&self, path: &str) -> Response {
        get(self.address, path)
    }

    fn json(&self, path: &str) -> Value {
        json_of(self.address, path)
    }

    fn post(&self, path: &str, head: &str, body: &str) -> Response {
        let mut connection = Connection::open(self.address).expect("a connection");
        let host = self.address;
        let length = body.len();
        let request = format!("POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n{head}\r\n{body}");
        connection.send(request).expect("sent");
        connection.response().expect("a response")
    }
}

fn get(address: SocketAddr, path: &str) -> Response {
    let mut connection = Connection::open(address).expect("a connection");
    connection.get(&address.to_string(), path, "").expect("a response")
}

fn json_of(address: SocketAddr, path: &str) -> Value {
    let text = get(address, path).text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"))
}

/// The names of an object's fields.
fn names(value: &Value) -> BTreeSet<String> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().cloned().collect()
}

#[test]
fn programs_that_call_fortio_call_this_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let data_dir = folder.path().display().to_string();
    let (fortio, ours) = (fortio::Server::start(&["-data-dir", &data_dir]), Server::start(""));
    let target = format!("url=http://{}/echo?size=10", fortio.http);
    let both = |path: &str| [json_of(fortio.http, path), ours.json(path)];
    let [theirs, ours_run] = both(&format!("/fortio/rest/run?{target}&n=6&c=2&qps=-1&labels=x"));
    let mut found = names(&ours_run);
    assert!(found.remove("Evenkeel"), "what Fortio does not have is in one place");
    assert_eq!(found, names(&theirs));
    assert_eq!(ours_run["RetCodes"], json!({"200": 6}));
    assert_eq!((&ours_run["RunID"], &ours_run["Labels"]), (&1.into(), &"x".into()));
    // One that goes on, and its end.
    let [theirs, started] = both(&format!("/fortio/rest/run?{target}&t=on&c=2&qps=20&async=on&save=on&labels=y"));
    assert_eq!(names(&started), names(&theirs));
    assert_eq!((&started["message"], &started["RunID"]), (&"started".into(), &2.into()));
    let [theirs, status] = both("/fortio/rest/status?runid=2");
    let options = |status: &Value| names(&status["Statuses"]["2"]["RunnerOptions"]);
    assert_eq!(names(&status["Statuses"]["2"]), names(&theirs["Statuses"]["2"]));
    assert!(options(&status).is_subset(&options(&theirs)), "{status} {theirs}");
    let live = eventually("calls are made", || {
        let live = ours.json("/fortio/rest/live?runid=2")["Live"].clone();
        (live["DurationHistogram"]["Count"].as_u64() > Some(0)).then_some(live)
    });
    assert_eq!(live["Errors"], 0);
    let [theirs, stopped] = both("/fortio/rest/stop?runid=2&wait=true");
    assert_eq!(names(&stopped), names(&theirs));
    assert_eq!((&stopped["message"], &stopped["Count"]), (&"stopped".into(), &1.into()));
    assert_eq!(stopped["ResultID"], started["ResultID"]);
    let path = format!("/fortio/data/{}.json", started["ResultID"].as_str().expect("a name"));
    assert_eq!(stopped["ResultURL"], format!("http://{}{path}", ours.address));
    let saved = ours.json(&path);
    assert_eq!((&saved["Labels"], &saved["RequestedDuration"]), (&"y".into(), &"until stop".into()));
    assert_eq!(ours.json("/fortio/rest/status")["Statuses"], json!({}));
    let [theirs, found] = both("/fortio/rest/dns?name=127.0.0.1");
    assert_eq!(names(&found), names(&theirs));
    assert_eq!(found["IPv4"], json!(["127.0.0.1"]));
}

#[test]
fn json_and_forms_ask_for_runs_too() {
    let (backend, server) = (Backend::echo("b"), Server::start(""));
    let url = format!("http://{}/", backend.address());
    let body = json!({"load": {"url": url, "n": 4, "c": 2, "qps": "max", "headers": ["x-a: b"], "payload": "hello"}});
    let response = server.post("/fortio/rest/run?jsonPath=.load", "", &body.to_string());
    let result: Value = serde_json::from_str(&response.text()).expect("JSON");
    assert_eq!(result["RetCodes"], json!({"200": 4}), "{result}");
    let requests = backend.requests();
    assert!(requests.iter().all(|request| request.method == "POST" && request.header("x-a") == Some("b")));
    let form = "content-type: application/x-www-form-urlencoded\r\n";
    let response = server.post("/fortio/rest/run", form, &format!("url={url}&n=2&qps=-1&c=1"));
    assert!(response.text().contains("\"200\": 2"), "{}", response.text());
}

#[test]
fn results_are_shown_and_compared() {
    let (backend, server) = (Backend::echo("b"), Server::start(""));
    for labels in ["first", "second"] {
        let url = format!("http://{}/", backend.address());
        server.json(&format!("/fortio/rest/run?url={url}&n=20&qps=-1&c=1&save=on&labels={labels}"));
    }
    let saved = server.json("/fortio/data/");
    let named = |labels: &str| {
        let all = saved.as_array().expect("a list").iter().filter_map(Value::as_str);
        all.filter(|name| name.ends_with(labels)).collect::<Vec<_>>().join(" ")
    };
    let (first, second) = (named("first"), named("second"));
    let page = server.get(&format!("/fortio/report?name={first}&name={second}"));
    assert!(page.text().contains("■</b> first") && page.text().contains("■</b> second"), "{}", page.text());
    let difference = server.get(&format!("/fortio/compare?before={first}&after={second}")).text();
    assert!(difference.contains("mean ms") && difference.contains("differs beyond noise"), "{difference}");
    assert_eq!(server.get("/fortio/report?name=../secret").status, 400);
    assert_eq!(server.folder.path().read_dir().expect("a folder").count(), 2);
}

#[test]
fn what_is_wrong_is_refused_with_a_reason() {
    let server = Server::start("-max-runs 1 -max-connections 10");
    let backend = Backend::echo("b");
    let url = format!("http://{}/", backend.address());
    let check = |path: &str, status: u16, reason: &str| {
        let response = server.get(path);
        assert_eq!(response.status, status, "{path}: {}", response.text());
        assert!(response.text().contains(reason), "{path}: {}", response.text());
    };
    check("/fortio/rest/run", 400, "URL is required");
    check(&format!("/fortio/rest/run?url={url}&c=11"), 400, "-max-connections");
    check(&format!("/fortio/rest/run?url={url}&payload-file=/etc/passwd"), 400, "unknown parameter");
    check(&format!("/fortio/rest/run?url={url}&s=2"), 400, "-s needs -grpc or -h2");
    check(&format!("/fortio/rest/run?url={url}&payload-size=100000000000000"), 400, "payload-size");
    check(&format!("/fortio/rest/run?url={url}&h2=on&s=4611686018427387904"), 400, "callers");
    check("/fortio/rest/live?runid=9", 404, "no run has the number 9");
    check("/fortio/rest/status?runid=x", 400, "expected a number");
    check("/fortio/data/..%2f..%2fetc%2fpasswd.json", 404, "no name of a result");
    check("/fortio/nosuch", 404, "/fortio/rest/run");
    server.json(&format!("/fortio/rest/run?url={url}&t=on&async=on"));
    check(&format!("/fortio/rest/run?url={url}&n=1"), 400, "-max-runs");
    let stopped = server.json("/fortio/rest/stop?wait=on");
    assert_eq!((&stopped["Count"], &stopped["message"]), (&1.into(), &"stopped".into()));
    assert_eq!(server.post("/fortio/rest/run", "origin: http://attacker.example\r\n", "{}").status, 403);
    let mut connection = Connection::open(server.address).expect("a connection");
    assert_eq!(connection.get("attacker.example", "/fortio/", "").expect("a response").status, 403);
}

/// The client that asked for a run goes away, and the run goes on to its end.
#[test]
fn a_run_outlives_its_client() {
    let (backend, server) = (Backend::echo("b"), Server::start(""));
    let mut connection = Connection::open(server.address).expect("a connection");
    let url = format!("http://{}/", backend.address());
    let run = format!("/fortio/rest/run?url={url}&n=20&qps=40&c=1&save=on&labels=left");
    connection.send(format!("GET {run} HTTP/1.1\r\nhost: localhost\r\n\r\n")).expect("sent");
    eventually("it runs", || server.json("/fortio/rest/status")["Statuses"].get("1").cloned());
    drop(connection);
    let saved = evenkeel_testkit::wait::within(PATIENCE, "the result is saved", || {
        server.json("/fortio/data/").as_array()?.first()?.as_str().map(str::to_owned)
    });
    assert_eq!(server.json(&format!("/fortio/data/{saved}.json"))["RetCodes"], json!({"200": 20}));
}
