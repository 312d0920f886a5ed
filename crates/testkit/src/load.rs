//! Clients that send requests for the duration of a test; none may fail.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::http::Connection;
use crate::wait::poll;

/// Ends the load when it is dropped, also by a panic: who waits for its threads is not to wait for ever.
pub struct Stop<'s>(pub &'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Pause of callers of a whole mesh. Without it they would use every core, which would slow down what their test waits for.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether the load ends before it is time for the next request.
pub fn ends_meanwhile(stop: &AtomicBool) -> bool {
    poll(PAUSE, || stop.load(Ordering::Relaxed).then_some(())).is_some()
}

/// Sends requests to an echoing server on one connection until `stop`, counting them in `asked`: the server must not ask its
/// client to disconnect.
pub fn on_one_connection(server: SocketAddr, stop: &AtomicBool, asked: &AtomicUsize) {
    let mut connection = Connection::open(server).expect("it accepts");
    while !stop.load(Ordering::Relaxed) {
        let turn = asked.fetch_add(1, Ordering::Relaxed);
        let response = connection.get("test", &format!("/{turn}"), "").expect("an answer");
        assert_eq!((response.status, response.text()), (200, format!("/{turn}")));
        assert!(response.keeps_open(), "{response:?}");
    }
}

/// Like [`on_one_connection`], with a new connection for each request.
pub fn on_new_connections(server: SocketAddr, stop: &AtomicBool, asked: &AtomicUsize) {
    while !stop.load(Ordering::Relaxed) {
        asked.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection::open(server).expect("it accepts");
        let response = connection.get("test", "/new", "connection: close\r\n").expect("an answer");
        assert_eq!((response.status, response.text().as_str()), (200, "/new"));
    }
}
