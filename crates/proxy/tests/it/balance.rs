//! Connections whose load changes move to workers with room, and nobody notices.

use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::{Connection, eventually};

use crate::harness::{Proxy, active_by_worker, http_listener, raise_open_files, static_bootstrap};

/// Every answer names the path that was asked for.
const ECHO: &str = "route_config: {name: local, response_headers_to_add: [{header: {key: x-path, value: \
                    '%REQ(:PATH)%'}}], virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                    direct_response: {status: 200, body: {inline_string: hello}}}]}]}";

/// Requests written at once: those behind the first are with the connection when it moves.
const PIPELINED: usize = 3;

fn requests(proxy: &Proxy) -> Vec<u64> {
    per_worker(proxy, "requests_total")
}

fn per_worker(proxy: &Proxy, column: &str) -> Vec<u64> {
    let workers = proxy.json("/workers?format=json");
    let rows = workers["workers"].as_array().expect("a list");
    rows.iter().map(|row| row[column].as_u64().expect("a count")).collect()
}

/// Opens connections one after the other; returns each with the worker it is on.
fn open(proxy: &Proxy, count: usize) -> Vec<(usize, Connection)> {
    let web = proxy.listener("web");
    let mut before = per_worker(proxy, "connections_active");
    let open = (0..count).map(|_| {
        let mut connection = Connection::open(web).expect("it accepts");
        ask(&mut connection, 0);
        let now = per_worker(proxy, "connections_active");
        let worker = before.iter().zip(&now).position(|(before, now)| now > before).expect("a worker has it");
        before = now;
        (worker, connection)
    });
    open.collect()
}

/// Sends a few requests at once and reads the answers, which must be theirs and in order.
fn ask(connection: &mut Connection, turn: usize) {
    let path = |at: usize| format!("/{turn}/{at}");
    let head = |at: usize| format!("GET {} HTTP/1.1\r\nhost: test\r\n\r\n", path(at));
    connection.send((0..PIPELINED).map(head).collect::<String>()).expect("it reads");
    for at in 0..PIPELINED {
        let response = connection.response().expect("an answer");
        assert_eq!((response.status, response.header("x-path")), (200, Some(path(at).as_str())), "{response:?}");
    }
}

/// Asks over all of these connections in turn until told to stop.
fn load(connections: &mut [&mut Connection], stop: &AtomicBool) {
    for turn in 0.. {
        for connection in &mut *connections {
            if stop.load(Ordering::Relaxed) {
                return;
            }
            ask(connection, turn);
        }
    }
}

struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn spread(counts: &[u64]) -> u64 {
    counts.iter().max().unwrap_or(&0) - counts.iter().min().unwrap_or(&0)
}

/// All load comes over the connections of one worker. It spreads, and then each worker serves the same.
fn skew(workers: usize, connections: usize) {
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("web", ECHO, ""), &[]), workers);
    proxy.wait_live();
    let mut open = open(&proxy, connections);
    let counts = active_by_worker(&proxy);
    assert!(counts.len() == workers && spread(&counts) <= 1, "{counts:?}");
    let mut hot: Vec<_> = open.iter_mut().filter(|(worker, _)| *worker == 0).map(|(_, open)| open).collect();
    assert_eq!(hot.len(), connections / workers);
    let stop = AtomicBool::new(false);
    let middle = hot.len() / 2;
    let (left, right) = hot.split_at_mut(middle);
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        let load = [left, right].map(|part| scope.spawn(|| load(part, &stop)));
        let mut before = requests(&proxy);
        let ratio = eventually("every worker to serve the same", || {
            let now = requests(&proxy);
            let served: Vec<_> = now.iter().zip(&before).map(|(now, before)| now - before).collect();
            let (total, most) = (served.iter().sum::<u64>(), *served.iter().max().expect("workers"));
            if total < 200 * workers as u64 {
                assert!(!load.iter().any(|load| load.is_finished()), "a client has failed");
                return None;
            }
            before = now;
            let ratio = most as f64 * workers as f64 / total as f64;
            (ratio <= 1.1).then_some(ratio)
        });
        assert!(ratio >= 1.0);
        drop(stopping);
        for load in load {
            load.join().expect("no request lost or out of order");
        }
    });
    let (moved_in, moved_out) = (per_worker(&proxy, "moved_in"), per_worker(&proxy, "moved_out"));
    let moved = moved_out.iter().sum::<u64>();
    assert_eq!(moved, moved_in.iter().sum::<u64>());
    assert!(moved >= (connections / workers / 2) as u64, "{moved} moves");
    // Nobody was lost on the way: all connections are open, counted once, and answer.
    assert_eq!(active_by_worker(&proxy).iter().sum::<u64>(), connections as u64);
    open.iter_mut().for_each(|(_, connection)| ask(connection, 7));
    drop(open);
    eventually("every seat to be free", || (active_by_worker(&proxy).iter().sum::<u64>() == 0).then_some(()));
}

#[test]
fn load_of_one_worker_spreads_over_2() {
    skew(2, 16);
}

#[test]
fn load_of_one_worker_spreads_over_4() {
    skew(4, 64);
}

#[test]
fn load_of_one_worker_spreads_over_8() {
    raise_open_files();
    skew(8, 256);
}
