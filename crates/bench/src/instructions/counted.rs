//! A proxy under callgrind, from its start to what its worker has executed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::callgrind::{PER_THREAD, Profile, command};
use crate::config::{PATIENCE, Proxy};
use crate::process::get;

/// Requests of the two runs; what starting and ending take is in both.
const FEW: u64 = 100;
const MANY: u64 = 1100;
/// What a worker's thread runs and no other; the others' work depends on time, and on how often we ask whether it is ready.
const WORKER: &str = "listener::serve::";

/// What each of several proxies executes for one request: `run` starts them, makes so many requests and stops them.
pub fn per_request<const PROXIES: usize>(
    what: &str,
    run: impl Fn(u64) -> Result<[u64; PROXIES]> + Sync,
) -> Result<[u64; PROXIES]> {
    let (many, few) = std::thread::scope(|scope| {
        let few = scope.spawn(|| run(FEW));
        (run(MANY), few.join().unwrap_or_else(|_| bail!("counting panicked")))
    });
    let (many, few) = (many.with_context(|| what.to_owned())?, few.with_context(|| what.to_owned())?);
    let mut counts = [0; PROXIES];
    for (count, (many, few)) in counts.iter_mut().zip(many.into_iter().zip(few)) {
        ensure!(many > few, "{what}: {MANY} requests took {many} instructions, {FEW} took {few}");
        *count = (many - few) / (MANY - FEW);
    }
    Ok(counts)
}

/// A proxy that is being counted. Killed if it is still there when this goes.
pub struct Counted {
    child: Child,
    admin: SocketAddr,
    out: PathBuf,
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
        let mut counted = Self { child, admin: proxy.admin, out };
        let deadline = Instant::now() + PATIENCE;
        while get(counted.admin, "/ready").is_err() {
            let exited = counted.child.try_wait()?;
            ensure!(exited.is_none(), "the proxy under callgrind ended: {exited:?}");
            ensure!(Instant::now() < deadline, "the proxy under callgrind was not ready within {PATIENCE:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(counted)
    }

    /// Ends it. Returns the instructions its worker has executed.
    pub fn stop(mut self) -> Result<u64> {
        let mut stop = TcpStream::connect(self.admin)?;
        stop.write_all(
            b"POST /quitquitquit HTTP/1.1\r\nHost: admin\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        )?;
        stop.set_read_timeout(Some(PATIENCE))?;
        stop.read_to_end(&mut Vec::new()).context("the proxy did not answer /quitquitquit")?;
        let deadline = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            ensure!(Instant::now() < deadline, "the proxy did not end within {PATIENCE:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Profile::total_of_threads_with(&self.out, WORKER)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
