//! What a run does when servers answer slowly, wrongly or not at all.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use evenkeel_testkit::port::free_port;

use crate::loads::load;

const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// A server that lets `answer` decide about each request, by its number on the connection. `None` closes the connection.
fn server(answer: impl Fn(usize) -> Option<&'static str> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || serve(stream, &answer));
        }
    });
    address
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(usize) -> Option<&'static str>) {
    let mut buffer = [0; 4096];
    for number in 0.. {
        if stream.read(&mut buffer).unwrap_or(0) == 0 {
            return;
        }
        match answer(number) {
            Some(text) if stream.write_all(text.as_bytes()).is_ok() => {}
            _ => return,
        }
    }
}

#[test]
fn every_call_is_counted_by_its_status() {
    let server =
        server(|number| Some(if number % 2 == 0 { OK } else { "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n" }));
    let run = load(&format!("-n 40 -c 2 -qps 0 -json - http://{server}/"));
    assert_eq!(run.status, Ok(0), "{}", run.text);
    run.has_line("Code 200 : 20 (50.0 %)");
    run.has_line("Code 503 : 20 (50.0 %)");
    run.has_line("Sockets used: 2 (for perfect keepalive, would be 2)");
    run.has_line("Starting at max qps with 2 thread(s) [gomax 2] for exactly 40 calls (20 per thread + 0)");
    let json = run.json();
    assert_eq!(json["RetCodes"], serde_json::json!({"200": 20, "503": 20}));
    assert_eq!(
        (&json["DurationHistogram"]["Count"], &json["ErrorsDurationHistogram"]["Count"]),
        (&40.into(), &20.into())
    );
    assert_eq!((&json["Sizes"]["Max"], &json["HeaderSizes"]["Max"]), (&40.0.into(), &40.0.into()));
}

/// The server stalls once. A caller that waits for it would count one slow request; those that were due meanwhile are slow, too.
#[test]
fn latency_counts_from_when_a_request_was_due() {
    const STALL: Duration = Duration::from_millis(300);
    let stalling = || {
        server(|number| {
            if number == 10 {
                std::thread::park_timeout(STALL);
            }
            Some(OK)
        })
    };
    let slow = |flags: &str| {
        let run = load(&format!("-n 100 -c 1 -qps 200 -p 75 -json - {flags}http://{}/", stalling()));
        let ranges = run.json()["DurationHistogram"]["Data"].clone();
        let ranges = ranges.as_array().cloned().unwrap_or_default();
        let slow = ranges.iter().filter(|range| range["Start"].as_f64() >= Some(0.05));
        let slow: u64 = slow.filter_map(|range| range["Count"].as_u64()).sum();
        (slow, run)
    };
    let (open_loop, run) = slow("");
    assert!(open_loop > 20, "{open_loop} slow requests\n{}", run.text);
    assert_eq!(run.json()["Evenkeel"]["LatencyFrom"], "schedule");
    let (closed_loop, run) = slow("-latency-from-sent ");
    assert!(closed_loop < open_loop, "{closed_loop} slow requests\n{}", run.text);
    assert_eq!(run.json()["Evenkeel"]["LatencyFrom"], "sent");
    let (_, run) = slow("-nocatchup ");
    assert!(run.json()["Evenkeel"]["Skipped"].as_u64() > Some(20), "{}", run.text);
}

#[test]
fn failures_have_kinds_and_fail_the_run() {
    let check = |line: &str, kind: &str| {
        let run = load(line);
        assert_eq!(run.status, Ok(1), "{line}\n{}", run.text);
        run.has_line("Code  -1 : 4 (100.0 %)");
        run.has_line(&format!("Error {kind} : 4"));
    };
    let flags = "-n 4 -c 2 -qps 0 -timeout 10s";
    check(&format!("{flags} http://127.0.0.1:{}/", free_port()), "connection refused");
    check(&format!("{flags} http://{}/", server(|_| None)), "closed by peer");
    check(&format!("-n 4 -c 2 -qps 0 -timeout 200ms http://{}/", server(|_| Some(""))), "timeout");
    check(&format!("{flags} http://{}/", server(|_| Some("nonsense\r\n\r\n"))), "protocol");
    check(&format!("{flags} https://{}/", server(|_| Some("nonsense\r\n\r\n"))), "tls");
}

#[test]
fn a_status_may_end_the_run() {
    let server = server(|number| Some(if number == 5 { "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n" } else { OK }));
    let run = load(&format!("-t 1h -c 1 -qps 0 -abort-on 503 http://{server}/"));
    assert_eq!(run.status, Ok(1), "{}", run.text);
    run.has_line("Aborted because of 503");
}

#[test]
fn a_run_does_not_begin_if_the_warm_up_fails() {
    let server = server(|_| Some("HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n"));
    let run = load(&format!("-t 1h -c 2 http://{server}/"));
    let expected = "warmup error: status 500 (-allow-initial-errors goes on)";
    assert_eq!(run.status, Err(expected.to_owned()));
}

#[test]
fn connections_are_replaced_as_often_as_wanted() {
    let check = |flags: &str, sockets: u64| {
        let run = load(&format!("-n 20 -c 2 -qps 0 -json - {flags} http://{}/", server(|_| Some(OK))));
        assert_eq!((run.status.clone(), &run.json()["SocketCount"]), (Ok(0), &sockets.into()), "{flags}\n{}", run.text);
    };
    check("-keepalive=true", 2);
    check("-keepalive=false", 20);
    check("-connection-reuse 5:5", 4);
    check("-connection-reuse 10", 2);
}

#[test]
fn one_request_is_printed() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    let check = |answer: &'static str, status: Result<u8, String>, head: &str, body: &str| {
        let timeout = if answer.is_empty() { "200ms" } else { "10s" };
        let run = load(&format!("curl -timeout {timeout} -H a:b http://{}/", server(move |_| Some(answer))));
        assert_eq!((run.status, run.text.as_str(), run.standard.as_str()), (status, head, body));
    };
    check(OK, Ok(0), "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", "ok");
    check(chunked, Ok(0), "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", "abc");
    let busy = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
    check(busy, Ok(1), busy, "");
    check("", Err("no response: timeout".to_owned()), "", "");
}

#[test]
fn saved_results_are_compared_and_made_a_page() {
    let (server, folder) = (server(|_| Some(OK)), tempfile::tempdir().expect("a folder"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    let run = load(&format!("-n 50 -c 2 -qps 0 -labels first -json {} http://{server}/", path("a.json")));
    assert_eq!(run.status, Ok(0), "{}", run.text);
    let same = load(&format!("compare {0} {0}", path("a.json")));
    assert_eq!(same.status, Ok(0), "{}", same.standard);
    assert!(same.standard.ends_with("Nothing differs beyond noise\n"), "{}", same.standard);
    let report = load(&format!("report -html {} {}", path("a.html"), path("a.json")));
    assert_eq!(report.status, Ok(0), "{}", report.text);
    let page = std::fs::read_to_string(path("a.html")).expect("a page");
    assert!(page.contains("first") && page.contains("<svg"), "{page}");
    std::fs::write(path("b.json"), "{").expect("written");
    assert!(load(&format!("compare {} {}", path("a.json"), path("b.json"))).status.is_err());
}
