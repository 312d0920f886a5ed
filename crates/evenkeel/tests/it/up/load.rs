//! Callers of a running mesh, who keep an account of what went wrong.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel_testkit::Connection;

/// What is asked: the answer needs both services.
const PATH: &str = "/api/capitals/France";

/// Whether a caller keeps its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Yes,
    No,
}

/// Asks until `stop`, counting answers with status 200 in `asked` and adding what else was seen to `failures`. A connection that
/// fails or is closed is replaced; one the server asks to leave, is left.
pub fn ask_again_and_again(
    url: &str,
    kept: Kept,
    stop: &AtomicBool,
    asked: &AtomicUsize,
    failures: &Mutex<Vec<String>>,
) {
    let address = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("HOST:PORT");
    let mut connection = None;
    while !stop.load(Ordering::Relaxed) {
        let asking = connection.take().map_or_else(|| Connection::open(address), Ok);
        let answered = asking.and_then(|mut asking: Connection| {
            let extra = if kept == Kept::Yes { "" } else { "connection: close\r\n" };
            Ok((asking.get(&address.to_string(), PATH, extra)?, asking))
        });
        let seen = match answered {
            Ok((response, asking)) if response.status == 200 => {
                asked.fetch_add(1, Ordering::Relaxed);
                connection = response.keeps_open().then_some(asking);
                continue;
            }
            Ok((response, _)) => format!("{} {}", response.status, response.text()),
            Err(error) => error.to_string(),
        };
        failures.lock().expect("no panic").push(seen);
    }
}
