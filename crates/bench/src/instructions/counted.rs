//! Counts what a proxy's worker executes for a request, under callgrind.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::callgrind::{PER_THREAD, Profile, command, tell};
use crate::config::{PATIENCE, Proxy};
use crate::process::get;

/// Requests before anything is counted, before the counts begin, and those that are counted: what is made with the first requests, as
/// connections and buffers, is not counted.
const FIRST: u64 = 100;
const SETTLING: u64 = 10;
const COUNTED: u64 = 400;
/// Part of the names of functions that only a worker's thread runs; the work of other threads depends on time, and on how
/// often readiness is polled.
const WORKER: &str = "evenkeel_proxy::http::";

/// Returns the instructions that each of several proxies executes for one request; `send` makes the given number of requests,
/// always on the same connection.
pub fn per_request<const PROXIES: usize>(
    what: &str,
    mut proxies: [Counted; PROXIES],
    mut send: impl FnMut(u64) -> Result<()>,
) -> Result<[u64; PROXIES]> {
    let mut count = || -> Result<[u64; PROXIES]> {
        send(FIRST)?;
        proxies.iter().try_for_each(Counted::begin)?;
        send(SETTLING)?;
        proxies.iter_mut().try_for_each(|proxy| proxy.dump().map(drop))?;
        send(COUNTED)?;
        let mut counts = [0; PROXIES];
        for (count, proxy) in counts.iter_mut().zip(&mut proxies) {
            *count = proxy.dump()? / COUNTED;
        }
        Ok(counts)
    };
    count().with_context(|| what.to_owned())
}

/// A proxy that is being counted. Killed if it is still there when this goes.
pub struct Counted {
    child: Child,
    admin: SocketAddr,
    out: PathBuf,
    /// Number of dumps that callgrind has written.
    parts: u32,
}

impl Counted {
    /// Starts it, and waits until it is ready. Its files are named by its node id.
    pub fn start(folder: &Path, proxy: &Proxy<'_>) -> Result<Self> {
        let file = |extension: &str| folder.join(format!("{}.{extension}", proxy.id));
        let (config, out) = (file("yaml"), file("callgrind"));
        std::fs::write(&config, proxy.bootstrap())?;
        let child = command(&out)?
            .arg(PER_THREAD)
            .arg(std::env::current_exe()?)
            // Requests are kept at a rate per second (`evenkeel_proxy::recent`): under callgrind, which is slow, that
            // would be every fifth one. What each request takes to find out that it is not kept is counted.
            .args(["proxy", "--concurrency", "1", "--recent-requests", "0", "-l", "error", "-c"])
            .arg(&config)
            .stdout(Stdio::null())
            .spawn()
            .context("valgrind")?;
        let mut counted = Self { child, admin: proxy.admin, out, parts: 0 };
        let deadline = Instant::now() + PATIENCE;
        while get(counted.admin, "/ready").is_err() {
            let exited = counted.child.try_wait()?;
            ensure!(exited.is_none(), "the proxy under callgrind ended: {exited:?}");
            ensure!(Instant::now() < deadline, "the proxy under callgrind was not ready within {PATIENCE:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(counted)
    }

    /// Counts from now on.
    fn begin(&self) -> Result<()> {
        self.tell(&["instrumentation", "on"])
    }

    /// The instructions that its worker has executed since the last call.
    fn dump(&mut self) -> Result<u64> {
        self.tell(&["dump"])?;
        self.parts += 1;
        Profile::total_of_threads_with(&self.out, self.parts, WORKER)
    }

    /// The admin interface has a separate thread, which keeps callgrind listening.
    fn tell(&self, what: &[&str]) -> Result<()> {
        tell(&self.out, self.child.id(), what, || {
            let _ = get(self.admin, "/ready");
            std::thread::park_timeout(Duration::from_millis(1));
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
