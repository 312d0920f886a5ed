//! The running example, with which most tests of `evenkeel up` begin.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::{PoisonError, RwLockReadGuard};
use std::time::Duration;

use evenkeel_testkit::{Process, Signal, eventually};

use super::processes::Running;
use super::user::User;
use super::{MACHINE, PATIENCE, url, wait_ready};

/// Replicas of the example: two of one version, one of the other, the pages' own, and the gateway.
pub const REPLICAS: usize = 5;

/// A running mesh among those of other tests.
pub struct Mesh {
    /// Who has started it.
    pub user: User,
    /// `evenkeel up`.
    pub up: Process,
    /// The gateway's address, as `up` prints it.
    pub url: String,
    _among_others: RwLockReadGuard<'static, ()>,
}

impl Mesh {
    /// The example of this user: all replicas are ready, and both versions answer at the gateway.
    pub fn of(user: User) -> Self {
        let among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
        let mut up = Process::spawn(&mut user.up(&[]));
        wait_ready(&mut up, REPLICAS);
        let url = url(&mut up);
        // Both versions: each sidecar hears of each ready replica a moment after the user does.
        for population in [true, false] {
            eventually("an answer of each version", || {
                let answer = served(&url, "/api/capitals/Iceland");
                (answer.contains("population") == population).then_some(())
            });
        }
        Self { user, up, url, _among_others: among_others }
    }

    /// The example of whoever runs the tests.
    pub fn present() -> Self {
        Self::of(User::present())
    }

    /// Its state directory.
    pub fn state(&self) -> &Path {
        self.user.state.path()
    }

    /// Its processes.
    pub fn processes(&self) -> Vec<Running> {
        Running::all_of(self.state())
    }

    /// How often `up`, or one of its agents in its log, has said this.
    pub fn said(&self, what: &str) -> usize {
        times_said(what, &self.up, self.state())
    }

    /// Waits until it is said once more than so often.
    #[track_caller]
    pub fn says_again(&mut self, what: &str, before: usize) {
        let state = self.user.state.path();
        self.up.wait_for(what, |up| (times_said(what, up, state) > before).then_some(()));
    }

    /// Interrupts it, and waits until all is removed.
    #[track_caller]
    pub fn end(&mut self) {
        self.up.signal(Signal::SIGINT);
        assert!(self.up.wait_for_exit(PATIENCE).success(), "{}", self.up.output());
    }
}

fn times_said(what: &str, up: &Process, state: &Path) -> usize {
    let logs = std::fs::read_dir(state.join("logs")).expect("the logs are there").flatten();
    let agents = logs.filter(|log| log.file_name().to_string_lossy().ends_with(".proxy.log"));
    let texts = agents.map(|log| std::fs::read(log.path()).unwrap_or_default());
    let said = texts.fold(up.output(), |all, text| all + &String::from_utf8_lossy(&text));
    said.matches(what).count()
}

/// One GET on a connection of its own, and all that comes back.
pub fn get(url: &str, path: &str) -> String {
    let address = url.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).expect("the gateway listens");
    stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a valid timeout");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n").expect("the gateway reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("the gateway answers");
    answer
}

/// The first 200: a gateway hears of a ready replica a moment after the user does.
pub fn served(url: &str, path: &str) -> String {
    eventually("an answer with status 200", || {
        let answer = get(url, path);
        answer.starts_with("HTTP/1.1 200").then_some(answer)
    })
}
