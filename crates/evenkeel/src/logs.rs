//! `evenkeel logs`: what the programs of a mesh have printed.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use evenkeel_base::replica::match_name;
use evenkeel_base::suggest::instead;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::exec::{self, ExecError};

use crate::formats::Output;

/// How often followed files are checked.
const PERIOD: Duration = Duration::from_millis(100);
/// How much of each file is read at a time, in bytes.
const CHUNK: u64 = 1024 * 1024;
/// The name that means the control plane.
const CONTROL_PLANE: &str = "control-plane";

/// Flags of `evenkeel logs`.
#[derive(Debug, Args)]
pub struct LogsArguments {
    /// A workload, one of its pods, or `control-plane`.
    workload: String,

    /// The workload's namespace; needed only if several namespaces have a workload of that name.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Keep printing new lines until Ctrl-C.
    #[arg(short, long)]
    follow: bool,

    /// Print only the output of the run before the last restart.
    #[arg(short, long, conflicts_with = "follow")]
    previous: bool,

    /// Begin with the last N lines of each log [default: all].
    #[arg(long, value_name = "N")]
    tail: Option<usize>,

    /// Whose log: `istio-proxy` is the sidecar, any other name the program.
    #[arg(short, long, value_name = "NAME", conflicts_with = "proxy")]
    container: Option<String>,

    /// Print the sidecar's log; the same as `-c istio-proxy`.
    #[arg(long)]
    proxy: bool,

    /// State directory of `up`, which need not be running [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Output format; `json` is one object for each line: `pod` and `line`.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Prints the logs of all replicas that the arguments name. If there are several, each line begins with the pod's name.
pub fn run(arguments: &LogsArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let state = StateDir::new(&arguments.state.clone().unwrap_or_else(StateDir::default_path))?;
    let mut logs = open(arguments, &state)?;
    let many = logs.len() > 1;
    for log in &mut logs {
        log.prefix = if many { format!("[{}] ", log.pod) } else { String::new() };
        log.is_json = arguments.output == Output::Json;
    }
    if arguments.previous {
        return previous(&logs, arguments, out);
    }
    for log in &mut logs {
        log.begin(arguments.tail, out)?;
    }
    if !arguments.follow {
        return Ok(());
    }
    loop {
        out.flush()?;
        #[allow(clippy::disallowed_methods, reason = "a file tells nobody that it has grown")]
        std::thread::sleep(PERIOD);
        for log in &mut logs {
            log.go_on(out)?;
        }
    }
}

/// Prints what the previous run logged, for replicas that were restarted.
fn previous(logs: &[Log], arguments: &LogsArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let mut is_any = false;
    for log in logs {
        let Some(text) = evenkeel_local::logs::previous(&log.path)? else { continue };
        is_any = true;
        let lines: Vec<&[u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
        let first = lines.len().saturating_sub(arguments.tail.unwrap_or(usize::MAX));
        lines.iter().skip(first).try_for_each(|line| log.print(line, out))?;
    }
    if is_any {
        Ok(())
    } else {
        bail!("{} has not been started again: there is no log of an earlier run", arguments.workload)
    }
}

fn open(arguments: &LogsArguments, state: &StateDir) -> anyhow::Result<Vec<Log>> {
    if arguments.workload == CONTROL_PLANE {
        return Ok(vec![Log::new(CONTROL_PLANE, state.logs().join("control-plane.log"))]);
    }
    let part = if arguments.proxy || arguments.container.as_deref() == Some("istio-proxy") { "proxy" } else { "app" };
    let pods = match exec::list(state.path(), &arguments.workload, arguments.namespace.as_deref()) {
        Ok(replicas) => replicas.into_iter().map(|replica| replica.pod).collect(),
        // The logs outlive the run.
        Err(ExecError::NotRunning(_)) if state.logs().is_dir() => of_last_run(&state.logs(), &arguments.workload)?,
        Err(error) => return Err(error.into()),
    };
    let logs: Vec<Log> = pods.iter().map(|pod| Log::new(pod, state.log(pod, part))).collect();
    match logs.iter().any(|log| log.path.exists()) {
        true => Ok(logs),
        false if part == "app" => {
            bail!("{} has no program, or it has not been started yet; --proxy: its proxy's log", arguments.workload)
        }
        false => bail!("{} has no proxy, or it has not been started yet", arguments.workload),
    }
}

/// The pods that a name matches, by the log files of the last run.
fn of_last_run(folder: &Path, wanted: &str) -> anyhow::Result<Vec<String>> {
    let files = fs::read_dir(folder)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pod = |file: String| [".app.log", ".proxy.log"].iter().find_map(|end| Some(file.strip_suffix(end)?.to_owned()));
    let mut pods: Vec<String> = files.filter_map(pod).collect();
    pods.sort();
    pods.dedup();
    let wanted_pod = wanted.split('.').next().unwrap_or(wanted);
    let found: Vec<String> = pods.iter().filter(|pod| match_name(wanted_pod, pod, "", "").is_some()).cloned().collect();
    if found.is_empty() {
        bail!("there is no log of {wanted}; {}", instead(wanted, pods.iter().map(String::as_str)))
    } else {
        Ok(found)
    }
}

/// One file.
struct Log {
    pod: String,
    path: PathBuf,
    prefix: String,
    is_json: bool,
    /// Bytes printed.
    position: u64,
}

impl Log {
    fn new(pod: &str, path: PathBuf) -> Self {
        Self { pod: pod.to_owned(), path, prefix: String::new(), is_json: false, position: 0 }
    }

    /// Prints the existing content, or the end of it.
    fn begin(&mut self, tail: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
        let Ok(file) = File::open(&self.path) else { return Ok(()) };
        let mut reader = BufReader::new(file);
        let mut kept: VecDeque<Vec<u8>> = VecDeque::new();
        loop {
            let mut line = Vec::new();
            let read = reader.read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            self.position += u64::try_from(read).unwrap_or(0);
            match tail {
                None => self.print(&line, out)?,
                Some(limit) => {
                    kept.push_back(line);
                    if kept.len() > limit {
                        kept.pop_front();
                    }
                }
            }
        }
        kept.iter().try_for_each(|line| self.print(line, out))
    }

    /// Prints whole lines that were appended.
    fn go_on(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        // The log was rotated and is empty again.
        if file.metadata()?.len() < self.position {
            self.position = 0;
        }
        file.seek(SeekFrom::Start(self.position))?;
        let mut reader = BufReader::new(io::Read::take(file, CHUNK));
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 {
            let complete = line.ends_with(b"\n") || u64::try_from(line.len()).is_ok_and(|length| length >= CHUNK);
            if !complete {
                break;
            }
            self.position += u64::try_from(line.len()).unwrap_or(0);
            self.print(&line, out)?;
            line.clear();
        }
        Ok(())
    }

    fn print(&self, line: &[u8], out: &mut dyn Write) -> io::Result<()> {
        if self.is_json {
            let text = String::from_utf8_lossy(line.strip_suffix(b"\n").unwrap_or(line));
            return writeln!(out, "{}", serde_json::json!({ "pod": self.pod, "line": text }));
        }
        out.write_all(self.prefix.as_bytes())?;
        out.write_all(line)?;
        if line.ends_with(b"\n") { Ok(()) } else { out.write_all(b"\n") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(state: &Path, workload: &str, tail: Option<usize>, proxy: bool) -> LogsArguments {
        let (workload, state) = (workload.to_owned(), Some(state.to_owned()));
        let (follow, previous) = (false, false);
        LogsArguments {
            workload,
            namespace: None,
            follow,
            previous,
            tail,
            container: None,
            proxy,
            state,
            output: Output::Text,
        }
    }

    #[test]
    fn logs_outlive_the_run_and_are_found_by_every_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let state = StateDir::new(folder.path()).expect("a short path");
        fs::create_dir(state.logs()).expect("our own folder");
        for (pod, text) in [("web-5d-a", "one\ntwo\nthree"), ("web-5d-b", "four\n"), ("other-6-c", "five\n")] {
            fs::write(state.log(pod, "app"), text).expect("our own folder");
            fs::write(state.log(pod, "proxy"), format!("proxy of {pod}\n")).expect("our own folder");
        }
        let check = |workload: &str, tail: Option<usize>, proxy: bool, expected: &str| {
            let mut out = Vec::new();
            run(&arguments(folder.path(), workload, tail, proxy), &mut out).expect("it is there");
            assert_eq!(String::from_utf8_lossy(&out), expected, "{workload}");
        };
        check("web-5d-b", None, false, "four\n");
        check("other", None, false, "five\n");
        check("other", None, true, "proxy of other-6-c\n");
        check("web", Some(2), false, "[web-5d-a] two\n[web-5d-a] three\n[web-5d-b] four\n");
        let json = LogsArguments { output: Output::Json, ..arguments(folder.path(), "web", Some(1), false) };
        let mut out = Vec::new();
        run(&json, &mut out).expect("it is there");
        let expected = "{\"pod\":\"web-5d-a\",\"line\":\"three\"}\n{\"pod\":\"web-5d-b\",\"line\":\"four\"}\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
        let before = LogsArguments { previous: true, ..arguments(folder.path(), "web-5d-b", Some(1), false) };
        let error = run(&before, &mut Vec::new()).expect_err("none");
        assert_eq!(error.to_string(), "web-5d-b has not been started again: there is no log of an earlier run");
        fs::write(state.log("web-5d-b", "app"), "one\ntwo\nthree\n").expect("our own folder");
        fs::write(state.log("web-5d-b", "app").with_extension("starts"), "0\n8\n").expect("our own folder");
        let mut out = Vec::new();
        run(&before, &mut out).expect("it is there");
        assert_eq!(String::from_utf8_lossy(&out), "two\n");
        let error = run(&arguments(folder.path(), "webs", None, false), &mut Vec::new()).expect_err("none");
        assert!(error.to_string().contains("known: other-6-c, web-5d-a"), "{error}");
    }

    #[test]
    fn what_comes_is_printed_line_by_line_also_after_the_log_was_set_aside() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let mut log = Log::new("web", path.clone());
        let mut step = |text: &str, expected: &str| {
            fs::write(&path, text).expect("our own folder");
            let mut out = Vec::new();
            log.go_on(&mut out).expect("it can be read");
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        step("one\nha", "one\n");
        step("one\nhalf\n", "half\n");
        step("new\n", "new\n");
    }
}
