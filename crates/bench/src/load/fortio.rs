//! Fortio and `evenkeel load`, which has Fortio's flags and results, on the proxies' core: here they are what is measured.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel_load::Work;
use serde_json::Value;

use crate::process::PROXY_CORE;

/// Loads `target` as fast as responses come, over this many connections.
///
/// # Errors
/// The program fails, or a request does.
pub fn run(program: &Path, target: SocketAddr, connections: usize, time: Duration) -> Result<Work> {
    let output = Command::new("taskset")
        .args(["--cpu-list", &PROXY_CORE.to_string()])
        .arg(program)
        .args(["load", "-qps", "0", "-quiet", "-json", "-", "-c", &connections.to_string()])
        .args(["-t", &format!("{}s", time.as_secs().max(1))])
        .arg(format!("http://{target}/hello"))
        .stdin(Stdio::null())
        .output()
        .with_context(|| program.display().to_string())?;
    let result: Value = serde_json::from_slice(&output.stdout).with_context(|| {
        format!("{} wrote {:?}", program.display(), String::from_utf8_lossy(&output.stderr).trim_end())
    })?;
    let number =
        |pointer: &str| result.pointer(pointer).and_then(Value::as_u64).with_context(|| format!("no {pointer}"));
    let failed = number("/ErrorsDurationHistogram/Count")?;
    ensure!(failed == 0, "{target}: {failed} requests failed over {connections} connections");
    let count = number("/DurationHistogram/Count")?;
    ensure!(count > 0, "{target}: no request was answered over {connections} connections");
    let seconds = |percentile: f64| {
        let all = result.pointer("/DurationHistogram/Percentiles").and_then(Value::as_array)?;
        let one = all.iter().find(|one| one["Percentile"].as_f64() == Some(percentile))?;
        Some(Duration::from_secs_f64(one["Value"].as_f64()?.max(0.0)))
    };
    let latency = seconds(50.0).zip(seconds(99.0));
    Ok(Work { count, time: Duration::from_nanos(number("/ActualDuration")?), latency })
}
