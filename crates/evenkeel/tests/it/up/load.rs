//! Callers of a running mesh, who count failures.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel_testkit::load::{Stop, ends_meanwhile};
use evenkeel_testkit::{Connection, eventually};

/// How many ask, each one request after the other.
pub const CALLERS: usize = KINDS.len();
const KINDS: [KeepAlive; 2] = [KeepAlive::Yes, KeepAlive::No];

/// What is asked: the answer needs both services.
const PATH: &str = "/api/capitals/France";

/// Whether a caller keeps its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeepAlive {
    Yes,
    No,
}

/// What the callers have seen.
#[derive(Debug, Default)]
pub struct Account {
    answered: AtomicUsize,
    failures: Mutex<Vec<String>>,
}

/// Has two callers ask while something happens, one of which keeps its connection, and returns what failed.
pub fn under_load(url: &str, meanwhile: impl FnOnce(&Account)) -> Vec<String> {
    let address = url.trim_start_matches("http://").trim_end_matches('/').parse().expect("HOST:PORT");
    let (stop, account) = (AtomicBool::new(false), Account::default());
    std::thread::scope(|scope| {
        let _ending = Stop(&stop);
        for keep_alive in KINDS {
            let (stop, account) = (&stop, &account);
            scope.spawn(move || ask_again_and_again(address, keep_alive, stop, account));
        }
        meanwhile(&account);
    });
    account.failures.into_inner().expect("no panic")
}

impl Account {
    /// What has failed so far.
    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().expect("no panic").clone()
    }

    /// Waits for so many answers in a row, with no failure between them.
    pub fn answers(&self, count: usize) {
        let goal = || (self.answered.load(Ordering::Relaxed) + count, self.failures().len());
        let (mut enough, mut before) = goal();
        eventually("answers", || {
            if self.failures().len() > before {
                (enough, before) = goal();
            }
            (self.answered.load(Ordering::Relaxed) >= enough).then_some(())
        });
    }
}

/// Asks until `stop`, counting answers with status 200 and noting what else was seen. A connection that fails or is closed is
/// replaced; one the server asks to leave, is left.
fn ask_again_and_again(address: SocketAddr, keep_alive: KeepAlive, stop: &AtomicBool, account: &Account) {
    let mut connection = None;
    while !ends_meanwhile(stop) {
        let asking = connection.take().map_or_else(|| Connection::open(address), Ok);
        let answered = asking.and_then(|mut asking: Connection| {
            let extra = if keep_alive == KeepAlive::Yes { "" } else { "connection: close\r\n" };
            Ok((asking.get(&address.to_string(), PATH, extra)?, asking))
        });
        let seen = match answered {
            Ok((response, asking)) if response.status == 200 => {
                account.answered.fetch_add(1, Ordering::Relaxed);
                connection = response.keeps_open().then_some(asking);
                continue;
            }
            Ok((response, _)) => format!("{} {}", response.status, response.text()),
            Err(error) => error.to_string(),
        };
        account.failures.lock().expect("no panic").push(seen);
    }
}
