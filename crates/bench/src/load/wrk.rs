//! `wrk` on one thread, closed loop over HTTP/1.1; its summary read from a script's JSON line.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel_load::Work;
use serde_json::Value;

use crate::process::{LOAD_CORE, find};

/// Only `done` is defined, so the script costs nothing per request.
const SCRIPT: &str = r#"
function done(summary, latency, requests)
  local e = summary.errors
  io.write(string.format(
    'JSON {"requests":%d,"micros":%d,"p50":%d,"p99":%d,"errors":%d}\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
"#;

/// The load generator.
pub struct Wrk {
    wrk: PathBuf,
    script: PathBuf,
    headers: Vec<String>,
    core: usize,
}

impl Wrk {
    /// Finds `wrk` and writes its script into `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        let script = folder.join("summary.lua");
        std::fs::write(&script, SCRIPT)?;
        Ok(Self { wrk: find("wrk")?, script, headers: Vec::new(), core: LOAD_CORE })
    }

    /// Sends this header line with each request.
    pub fn with_header(mut self, line: &str) -> Self {
        self.headers.push(line.to_owned());
        self
    }

    /// Runs on another core than that of the loads.
    pub fn on_core(mut self, core: usize) -> Self {
        self.core = core;
        self
    }

    /// Loads `target` over `connections` keep-alive connections, each sending its next request when the answer is there.
    pub fn run(&self, target: SocketAddr, connections: usize, time: Duration) -> Result<Work> {
        let output = Command::new("taskset")
            .args(["--cpu-list", &self.core.to_string()])
            .arg(&self.wrk)
            .args(["--threads", "1", "--connections", &connections.to_string()])
            .args(["--duration", &format!("{}s", time.as_secs().max(1)), "--script"])
            .arg(&self.script)
            .args(self.headers.iter().flat_map(|line| ["--header", line]))
            .arg(format!("http://{target}/hello"))
            .stdin(Stdio::null())
            .output()
            .context("wrk")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text.lines().find_map(|line| line.strip_prefix("JSON "));
        let line = line.with_context(|| format!("wrk said {text:?} {:?}", String::from_utf8_lossy(&output.stderr)))?;
        let summary: Value = serde_json::from_str(line)?;
        let number = |name: &str| summary[name].as_u64().with_context(|| format!("{name} in {line}"));
        ensure!(
            number("errors")? == 0,
            "{target}: {} requests failed over {connections} connections",
            number("errors")?
        );
        ensure!(number("requests")? > 0, "{target}: no request was answered over {connections} connections");
        Ok(Work {
            count: number("requests")?,
            time: Duration::from_micros(number("micros")?),
            latency: Some((Duration::from_micros(number("p50")?), Duration::from_micros(number("p99")?))),
        })
    }
}
