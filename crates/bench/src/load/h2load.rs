//! `h2load` on one thread, closed loop over HTTP/2 by prior knowledge.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel_load::Work;

use crate::peers::Setup;
use crate::process::{LOAD_CORE, find};

/// Size of a gRPC message as sent in a body, not compressed, in bytes.
const GRPC_MESSAGE_BYTES: usize = 32;

/// The kind of request.
#[derive(Debug, Clone, Copy)]
pub enum Call {
    /// `GET`.
    Get,
    /// A gRPC call with one message each way.
    GrpcUnary,
}

/// The load generator.
pub struct H2Load {
    program: PathBuf,
    message: PathBuf,
}

impl H2Load {
    /// Finds `h2load` and writes the gRPC message's file.
    pub fn new(setup: &Setup) -> Result<Self> {
        let message = setup.file("grpc-message");
        std::fs::write(&message, grpc_message())?;
        Ok(Self { program: find("h2load")?, message })
    }

    /// Loads `target` over connections with as many streams each as said.
    pub fn run(
        &self,
        target: SocketAddr,
        call: Call,
        (connections, streams): (usize, usize),
        time: Duration,
    ) -> Result<Work> {
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &LOAD_CORE.to_string()]).arg(&self.program);
        command.args(["-t", "1", "-c", &connections.to_string(), "-m", &streams.to_string()]);
        command.args(["-D", &time.as_secs().max(1).to_string()]);
        let path = match call {
            Call::Get => "hello",
            Call::GrpcUnary => {
                command.args(["-H", "content-type: application/grpc", "-H", "te: trailers", "-d"]).arg(&self.message);
                "bench.Echo/Unary"
            }
        };
        let output = command.arg(format!("http://{target}/{path}")).stdin(Stdio::null()).output().context("h2load")?;
        parse(&String::from_utf8_lossy(&output.stdout)).with_context(|| format!("{target}"))
    }
}

fn grpc_message() -> Vec<u8> {
    let mut message = vec![0, 0, 0, 0, GRPC_MESSAGE_BYTES as u8];
    message.resize(5 + GRPC_MESSAGE_BYTES, b'm');
    message
}

/// Parses its summary:
///
/// ```text
/// finished in 2.00s, 50000.00 req/s, 50.00MB/s
/// requests: 100000 total, 100032 started, 100000 done, 100000 succeeded, 0 failed, 0 errored, 0 timeout
/// ```
fn parse(text: &str) -> Result<Work> {
    let line = |start: &str| {
        text.lines().find_map(|line| line.strip_prefix(start)).with_context(|| format!("h2load said {text:?}"))
    };
    let number = |line: &str, label: &str| {
        let part = line.split(',').find(|part| part.trim_end().ends_with(label));
        part.and_then(|part| part.split_whitespace().next()).and_then(|word| word.parse::<u64>().ok())
    };
    let requests = line("requests:")?;
    let (done, failed, errored) =
        (number(requests, "succeeded"), number(requests, "failed"), number(requests, "errored"));
    let count = done.filter(|done| *done > 0).with_context(|| format!("no request succeeded: {requests}"))?;
    ensure!(failed == Some(0) && errored == Some(0), "requests failed: {requests}");
    let seconds = line("finished in ")?.split(',').next().unwrap_or_default();
    let seconds = match seconds.strip_suffix("ms") {
        Some(millis) => millis.parse::<f64>()? / 1e3,
        None => seconds.trim_end_matches('s').parse::<f64>()?,
    };
    Ok(Work { count, time: Duration::from_secs_f64(seconds), latency: None })
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::time::Duration;

    #[test]
    fn reads_the_summary_and_refuses_failures() {
        let text = |failed| {
            format!(
                "starting benchmark...\n\nfinished in 2.01s, 50000.00 req/s, 50.00MB/s\nrequests: 100500 total, 100532 started, \
                 100500 done, 100500 succeeded, {failed} failed, 0 errored, 0 timeout\n"
            )
        };
        let work = parse(&text(0)).unwrap();
        assert_eq!((work.count, work.time), (100_500, Duration::from_millis(2010)));
        assert!(parse(&text(3)).is_err());
        assert!(parse("").is_err());
    }
}
