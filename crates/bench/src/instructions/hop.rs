//! The whole proxy for one request: a worker, one client connection, one upstream connection, everything a hop does.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::Counts;
use super::callgrind::{PER_THREAD, Profile, command};
use crate::backend;
use crate::config::{Protocol, Proxy};
use crate::load::http2::Http2Client;
use crate::peers::free_address;
use crate::process::get;

/// Requests of the two runs; what starting and ending take is in both.
const FEW: u64 = 100;
const MANY: u64 = 1100;
/// Longest a proxy under callgrind takes to start or to end.
const PATIENCE: Duration = Duration::from_secs(60);
const BODY_BYTES: usize = 1024;
/// What a worker's thread runs and no other; the others' work depends on time, and on how often we ask whether it is ready.
const WORKER: &str = "worker::thread::Worker::serve";

const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nHost: backend.local\r\nUser-Agent: counts\r\nAccept: */*\r\n\r\n";

/// Counts the hop over HTTP/1.1 and over HTTP/2.
pub fn count(folder: &Path) -> Result<Counts> {
    let mut counts = Counts::new();
    for (name, protocol) in [("hop: HTTP/1.1", Protocol::Http1), ("hop: HTTP/2", Protocol::Http2)] {
        let upstream = free_address()?;
        std::thread::spawn(move || match protocol {
            Protocol::Http2 => backend::http2::run(upstream, BODY_BYTES, false),
            _ => backend::http1::run(upstream, BODY_BYTES),
        });
        let total = |requests: u64| -> Result<u64> { run(folder, (protocol, upstream), requests) };
        let (many, few) = std::thread::scope(|scope| {
            let few = scope.spawn(|| total(FEW));
            (total(MANY), few.join().unwrap_or_else(|_| bail!("counting panicked")))
        });
        let (many, few) = (many.with_context(|| name.to_owned())?, few.with_context(|| name.to_owned())?);
        ensure!(many > few, "{name}: {MANY} requests took {many} instructions, {FEW} took {few}");
        counts.insert(name.to_owned(), (many - few) / (MANY - FEW));
    }
    Ok(counts)
}

fn run(folder: &Path, (protocol, upstream): (Protocol, SocketAddr), requests: u64) -> Result<u64> {
    let (listen, admin) = (free_address()?, free_address()?);
    let name = format!("{protocol:?}-{requests}");
    let proxy = Proxy {
        id: "counted",
        listen,
        admin,
        upstream,
        protocol,
        downstream_tls: None,
        upstream_tls: None,
        rules: 0,
        log: folder.join(format!("{name}.log")),
    };
    let config = folder.join(format!("{name}.yaml"));
    std::fs::write(&config, proxy.bootstrap())?;
    let out = folder.join(format!("{name}.callgrind"));
    let child = command(&out)?
        .arg(PER_THREAD)
        .arg(std::env::current_exe()?)
        .args(["proxy", "--concurrency", "1", "-l", "error", "-c"])
        .arg(&config)
        .stdout(Stdio::null())
        .spawn()
        .context("valgrind")?;
    let mut proxy = Counted(child);
    proxy.wait(|| get(admin, "/ready").is_ok())?;
    match protocol {
        Protocol::Http2 => exchange_http2(listen, requests)?,
        _ => exchange_http1(listen, requests)?,
    }
    let mut stop = TcpStream::connect(admin)?;
    stop.write_all(b"POST /quitquitquit HTTP/1.1\r\nHost: admin\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
    stop.set_read_timeout(Some(PATIENCE))?;
    stop.read_to_end(&mut Vec::new()).context("the proxy did not answer /quitquitquit")?;
    let deadline = Instant::now() + PATIENCE;
    while proxy.0.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "the proxy did not end within {PATIENCE:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    Profile::total_of_threads_with(&out, WORKER)
}

/// One request after the other on one connection.
fn exchange_http1(target: SocketAddr, requests: u64) -> Result<()> {
    let mut stream = TcpStream::connect(target)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let (mut answer, mut buffer) = (Vec::new(), [0; 8 << 10]);
    for _ in 0..requests {
        stream.write_all(REQUEST)?;
        answer.clear();
        while crate::load::answer_end(&answer)?.is_none() {
            let count = stream.read(&mut buffer)?;
            ensure!(count > 0, "the proxy closed the connection");
            answer.extend_from_slice(&buffer[..count]);
        }
    }
    Ok(())
}

/// The same over HTTP/2, one stream after the other.
fn exchange_http2(target: SocketAddr, requests: u64) -> Result<()> {
    let mut client = Http2Client::connect(target, PATIENCE)?;
    for _ in 0..requests {
        let request = client.request("/hello");
        client.send(&request)?;
        while !client.receive()?.ends_stream {}
    }
    Ok(())
}

/// Killed if it is still there when the guard goes.
struct Counted(Child);

impl Counted {
    fn wait(&mut self, reached: impl Fn() -> bool) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while !reached() {
            let exited = self.0.try_wait()?;
            ensure!(exited.is_none(), "the proxy under callgrind ended: {exited:?}");
            ensure!(Instant::now() < deadline, "the proxy under callgrind was not ready within {PATIENCE:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
