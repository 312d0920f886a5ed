//! Reads the proxies of a workload together: a process for each enters the proxy's network namespace and reads its admin port.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, SyncSender};

use anyhow::{Context, bail};
use evenkeel_explain::Caller;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::exec::{self, ReplicaInfo};

use super::TapArguments;
use super::line::Line;

/// Lines that wait to be printed; further ones wait at the proxies.
const MAX_LINES: usize = 1024;

/// The processes, which end with this.
struct Readers(Vec<Child>);

impl Readers {
    /// Waits until all have ended by themselves. The status is 1 if one of them failed.
    fn wait(&mut self) -> u8 {
        let failed = |child: &mut Child| !child.wait().is_ok_and(|status| status.success());
        let count = self.0.iter_mut().map(failed).filter(|failed| *failed).count();
        u8::from(count > 0)
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Prints the requests of all replicas of a workload, each with the replica's name.
pub(super) fn read(arguments: &TapArguments, workload: &str, out: &mut dyn Write) -> anyhow::Result<u8> {
    let (name, namespace) = match Caller::parse(workload) {
        Caller::Workload { name, namespace } => (name, namespace),
        _ => (workload.to_owned(), None),
    };
    let namespace = arguments.namespace.clone().or(namespace);
    let state = arguments.state.clone().unwrap_or_else(StateDir::default_path);
    let replicas = exec::list(&state, &name, namespace.as_deref())?;
    if replicas.is_empty() {
        bail!("{workload} has no replica");
    }
    let (sender, lines) = mpsc::sync_channel(MAX_LINES);
    let mut readers = Readers(Vec::new());
    for replica in &replicas {
        let mut child = arguments.reader(&state, replica)?;
        let output = child.stdout.take();
        readers.0.push(child);
        let (proxy, sender) = (format!("{}.{}", replica.pod, replica.namespace), sender.clone());
        std::thread::spawn(move || output.map(|output| pass_on(output, &proxy, &sender)));
    }
    drop(sender);
    let mut left = arguments.limit.unwrap_or(u64::MAX);
    for line in lines {
        line.print(arguments.output, out)?;
        out.flush()?;
        left -= u64::from(line.is_request());
        if left == 0 {
            return Ok(0);
        }
    }
    Ok(readers.wait())
}

/// Reads lines of a process until it ends or nobody prints them any more.
fn pass_on(output: ChildStdout, proxy: &str, sender: &SyncSender<Line>) {
    for text in BufReader::new(output).lines().map_while(Result::ok) {
        // The others are heartbeats.
        if let Ok(line) = serde_json::from_str::<Line>(&text)
            && sender.send(Line { proxy: proxy.to_owned(), ..line }).is_err()
        {
            return;
        }
    }
}

impl TapArguments {
    /// A process that reads the proxy of this replica.
    fn reader(&self, state: &Path, replica: &ReplicaInfo) -> anyhow::Result<Child> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(&program);
        command.args([
            "exec",
            &replica.pod,
            "--namespace",
            &replica.namespace,
            "--container",
            "istio-proxy",
            "--state",
        ]);
        command.arg(state).arg("--").arg(&program).args(["tap", "--heartbeat", "--output=json"]);
        command.args(self.filter.flags()).args(self.query.then_some("--query"));
        command.args(self.limit.map(|limit| format!("--limit={limit}")));
        command.args(self.duration.map(|duration| format!("--for={}ms", duration.as_millis())));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().with_context(|| format!("running {}", program.display()))
    }
}
