//! Fortio itself: its results have the same names, and the same samples the same percentiles.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use evenkeel_loadtest::histogram::{Ranges, Recorder};
use evenkeel_testkit::fortio::{Server, program};
use evenkeel_testkit::random::Random;
use evenkeel_testkit::tls::TestCa;
use serde_json::Value;

use crate::loads::load;

/// Fortio's own result for the same flags.
fn fortio_load(line: &str) -> Value {
    let output = Command::new(program("fortio"))
        .arg("load")
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .output()
        .expect("Fortio starts");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// The paths of all names in a result, with the type of each value.
fn names(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                // These have addresses and codes for names.
                names(field, &format!("{path}.{name}"), found);
            }
        }
        Value::Array(items) => {
            for item in items {
                names(item, &format!("{path}[]"), found);
            }
        }
        Value::Null => _ = found.insert(format!("{path}: null")),
        Value::Bool(_) => _ = found.insert(format!("{path}: bool")),
        Value::Number(_) => _ = found.insert(format!("{path}: number")),
        Value::String(_) => _ = found.insert(format!("{path}: string")),
    }
}

#[test]
fn results_have_fortios_names_and_types() {
    let server = Server::start(&[]);
    let check = |line: String| {
        let run = load(&line);
        assert_eq!(run.status, Ok(0), "{line}\n{}", run.text);
        let mut ours = run.json();
        let fields = ours.as_object_mut().expect("an object");
        assert!(fields.remove("Evenkeel").is_some(), "what Fortio does not have is in one place");
        let (mut found, mut expected) = (BTreeSet::new(), BTreeSet::new());
        names(&ours, "", &mut found);
        names(&fortio_load(&line), "", &mut expected);
        assert_eq!(found, expected, "{line}");
        found
    };
    let found = check(format!("-n 10 -c 2 -qps 0 -json - http://{}/echo?size=10", server.http));
    assert!(found.contains(".RetCodes.200: number") && found.len() > 60, "{found:?}");
    check(format!("-n 10 -c 2 -qps 200 -payload abc -labels x -json - http://{}/echo", server.http));
    check(format!("-n 10 -c 2 -qps 0 -json - tcp://{}", server.tcp));
    check(format!("-n 10 -c 2 -qps 0 -h2 -json - http://{}/echo", server.http));
    check(format!("-n 10 -c 2 -s 2 -qps 0 -grpc -ping -json - {}", server.grpc));
    check(format!("-n 10 -c 2 -qps 0 -grpc -healthservice ping -H a:b -json - {}", server.grpc));
    check(format!("-n 10 -c 2 -qps 0 -json - udp://{}", server.udp));
}

#[test]
fn calls_by_http2_and_grpc_are_counted() {
    let server = Server::start(&[]);
    let check = |line: String, expected: &str| {
        let run = load(&line);
        run.has_line(expected);
        run
    };
    let run = check(
        format!("-n 40 -c 2 -s 5 -qps 0 -h2 -payload-size 100000 -json - http://{}/", server.http),
        "Code 200 : 40 (100.0 %)",
    );
    assert_eq!(run.status, Ok(0));
    let json = run.json();
    assert_eq!((&json["SocketCount"], &json["NumThreads"], &json["H2"]), (&2.into(), &10.into(), &true.into()));
    assert!(json["Sizes"]["Min"].as_f64() > Some(100_000.0), "the echo comes back: {}", json["Sizes"]);
    let status = format!("-n 4 -c 2 -qps 0 -h2 http://{}/?status=503", server.http);
    assert_eq!(check(status, "Code 503 : 4 (100.0 %)").status, Ok(1));
    let grpc =
        |flags: &str, expected: &str| check(format!("-n 20 -c 2 -s 2 -qps 0 -grpc {flags} {}", server.grpc), expected);
    assert_eq!(grpc("-ping -payload hello", "Ping SERVING : 20").status, Ok(0));
    assert_eq!(grpc("", "Health SERVING : 20").status, Ok(0));
    assert_eq!(grpc("-healthservice none", "Health ERROR : 20").status, Ok(1));
}

#[test]
fn the_same_samples_have_the_same_percentiles() {
    const RESOLUTION: f64 = 0.000_01;
    const TOLERANCE: f64 = 0.02;
    let (mut random, mut recorder, mut lines) = (Random::new(7), Recorder::of_seconds(), String::new());
    for _ in 0..20_000 {
        // Latencies as servers have them: many small ones, and few that are larger by an order of magnitude.
        let tail = if random.once_in(50) { 4_000 } else { 0 };
        let microseconds = 200 + random.below(400) + random.below(400) + random.below(1 + tail);
        recorder.record(microseconds as u64 * 1_000);
        lines.push_str(&format!("{}\n", microseconds as f64 / 1e6));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let samples = folder.path().join("samples");
    std::fs::write(&samples, lines).expect("written");
    let theirs = fortio_histogram(&samples, RESOLUTION);
    let percentiles = [50.0, 75.0, 90.0, 99.0, 99.9];
    let ours = recorder.export(&Ranges { resolution: RESOLUTION, offset: 0.0 }, &percentiles);
    for (index, percentile) in ours.percentiles.iter().enumerate() {
        let expected = theirs["Percentiles"][index]["Value"].as_f64().expect("a number");
        let difference = (percentile.value - expected).abs() / expected;
        assert!(difference < TOLERANCE, "p{}: {} and {expected}", percentile.percentile, percentile.value);
    }
    // Fortio's ranges have the same counts, but for samples on a border that rounding moves.
    let counts = |data: &Value| -> Vec<u64> {
        let ranges = data.as_array().expect("ranges");
        ranges.iter().filter_map(|range| range["Count"].as_u64()).collect()
    };
    let (ours, theirs) = (counts(&serde_json::to_value(&ours.data).expect("JSON")), counts(&theirs["Data"]));
    assert_eq!((ours.len(), ours.iter().sum::<u64>()), (theirs.len(), theirs.iter().sum()));
}

fn fortio_histogram(samples: &Path, resolution: f64) -> Value {
    let output = Command::new(program("histogram"))
        .args(["-json", "-p", "50,75,90,99,99.9", "-divider", &resolution.to_string()])
        .stdin(std::fs::File::open(samples).expect("samples"))
        .output()
        .expect("it starts");
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn fortios_server_is_called_over_mutual_tls() {
    let (ca, folder) = (TestCa::new(), tempfile::tempdir().expect("a folder"));
    let root = folder.path().join("root.pem");
    std::fs::write(&root, ca.root_pem()).expect("written");
    let (cert, key) = ca.for_dns(&["localhost"]).write(folder.path(), "server");
    let (client_cert, client_key) = ca.for_client("client", "test").write(folder.path(), "client");
    let text = |path: &Path| path.display().to_string();
    let server = Server::start(&["-cert", &text(&cert), "-key", &text(&key), "-cacert", &text(&root), "-mtls"]);
    let url = format!("https://localhost:{}/echo?size=5", server.http.port());
    let check = |flags: &str, status: u8, line: &str| {
        let run = load(&format!("-n 4 -c 2 -qps 0 {flags} {url}"));
        assert_eq!(run.status, Ok(status), "{flags}\n{}", run.text);
        run.has_line(line);
    };
    let identity = format!("-cert {} -key {}", text(&client_cert), text(&client_key));
    check(&format!("-cacert {} {identity}", text(&root)), 0, "Code 200 : 4 (100.0 %)");
    check(&format!("-k {identity}"), 0, "Code 200 : 4 (100.0 %)");
    check(&identity, 1, "Error tls : 4");
    check(&format!("-cacert {}", text(&root)), 1, "Code  -1 : 4 (100.0 %)");
}
