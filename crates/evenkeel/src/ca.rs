//! `evenkeel ca`: the certificate authorities of a mesh, and the change from one to the next.

use std::fmt::Write as _;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use evenkeel_admin::authorities::{self, Alarm, AlarmKind, Kind, Origin, Phase, Signer, State, Status, Waiting};
use evenkeel_control::authorities as rotation;
use evenkeel_local::cleanup::StateDir;
use serde_json::json;

use crate::admin;
use crate::formats::Output;
use crate::in_cluster::ControlPlaneChoice;

/// How often the control plane is asked for progress.
const POLL: Duration = Duration::from_millis(250);
/// How long the control plane may take to begin a requested rotation.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Names of workloads in one line.
const MAX_NAMES: usize = 5;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Show the certificate authorities, the rotation that is going on, and certificates that end soon.
    Status(StatusArguments),
    /// Change to a new intermediate certificate, or with --root to a new root, without an outage; show each step.
    Rotate(RotateArguments),
}

/// Flags of `evenkeel ca status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    #[command(flatten)]
    place: Place,

    /// The control plane in a cluster, unless another one is named; a running mesh of this machine comes first.
    #[command(flatten)]
    in_cluster: ControlPlaneChoice,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Flags of `evenkeel ca rotate`.
#[derive(Debug, Args)]
pub struct RotateArguments {
    /// Change the root, too.
    #[arg(long)]
    root: bool,

    /// Do not wait for this workload (POD.NAMESPACE, as `ca status` shows it); may be repeated. Its certificate is refused when
    /// the old root is dropped. During a rotation this only changes what it waits for.
    #[arg(long, value_name = "NAME")]
    without: Vec<String>,

    /// Return when the rotation has begun.
    #[arg(long)]
    no_wait: bool,

    #[command(flatten)]
    place: Place,

    /// Output format; `json`: one object per step.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Which control plane.
#[derive(Debug, Args)]
struct Place {
    /// State directory of `up` or of a control plane [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// HTTP port of the control plane [default: that of the running `up`, or else 127.0.0.1:15014].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address)]
    control_plane: Option<SocketAddr>,
}

impl Place {
    /// The status of a control plane on this machine, whose directory is here.
    fn status(&self) -> anyhow::Result<Status> {
        match self.control_plane {
            Some(address) => admin::read(address, authorities::PATH),
            None => admin::read(admin::control_plane_of_machine(self.of_run())?, authorities::PATH),
        }
    }

    fn of_run(&self) -> Option<&Path> {
        self.state.as_deref().filter(|state| is_of_up(state))
    }

    /// The control plane's own directory.
    fn directory(&self) -> PathBuf {
        let state = self.state.clone().unwrap_or_else(StateDir::default_path);
        match StateDir::new(&state).map(|state| state.control()) {
            Ok(control) if control.is_dir() => control,
            _ => state,
        }
    }
}

fn is_of_up(state: &Path) -> bool {
    StateDir::new(state).is_ok_and(|state| state.control().is_dir())
}

/// Runs the command.
pub fn run(command: &CaCommand, out: &mut dyn Write) -> anyhow::Result<u8> {
    match command {
        CaCommand::Status(arguments) => {
            let place = &arguments.place;
            let control_plane = admin::control_plane(place.control_plane, place.of_run(), &arguments.in_cluster)?;
            let status: Status = admin::read(control_plane, authorities::PATH)?;
            match arguments.output {
                Output::Text => out.write_all(table(&status).as_bytes())?,
                Output::Json => writeln!(out, "{:#}", json!(status))?,
            }
            Ok(u8::from(!status.alarms.is_empty()))
        }
        CaCommand::Rotate(arguments) => rotate(arguments, out),
    }
}

fn rotate(arguments: &RotateArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let kind = if arguments.root { Kind::Root } else { Kind::Intermediate };
    let before = arguments.place.status()?;
    let is_going_on = before.state.phase != Phase::Steady;
    if is_going_on && arguments.without.is_empty() {
        bail!(
            "a rotation is going on ({}); see `evenkeel ca status`. It goes on without a workload with --without NAME",
            phase(before.state.phase)
        );
    }
    if is_going_on {
        refuse_unknown(&before.waiting.workloads, &arguments.without)?;
    }
    let directory = arguments.place.directory();
    let unwritable = || {
        let known = directory.display();
        format!("cannot ask for a rotation in {known}; name the control plane's state directory: --state DIR")
    };
    if !arguments.without.is_empty() {
        rotation::request_without(&directory, &arguments.without).with_context(unwritable)?;
    }
    if !is_going_on {
        rotation::request(&directory, kind).with_context(unwritable)?;
    }
    let of_root = if is_going_on { before.state.kind == Some(Kind::Root) } else { arguments.root };
    if !arguments.without.is_empty() && !of_root && arguments.output == Output::Text {
        writeln!(
            out,
            "the root stays the same, so the certificates of {} stay valid until they expire: change the root with --root, \
             or revoke them",
            arguments.without.join(", ")
        )?;
    }
    if let Some(external) = &before.external
        && arguments.output == Output::Text
    {
        let who = external.address.as_deref().unwrap_or("an external signer");
        writeln!(
            out,
            "workloads' certificates are signed by {who} and stay; only the control planes' own change. The signer's authority \
             is changed there: put its new root into the file of --external-signer-roots first"
        )?;
    }
    let mut shown = Shown::new(&before, arguments.output);
    let began = wait_for_begin(&arguments.place, &before)?;
    shown.show(&began, out)?;
    if arguments.no_wait {
        return Ok(0);
    }
    loop {
        let status = arguments.place.status()?;
        shown.show(&status, out)?;
        if status.state.phase == Phase::Steady {
            return Ok(0);
        }
        #[allow(clippy::disallowed_methods, reason = "the page is asked for again and again")]
        std::thread::sleep(POLL);
    }
}

/// Refuses names that the rotation does not wait for: nothing would change.
fn refuse_unknown(waiting: &[String], without: &[String]) -> anyhow::Result<()> {
    // The page lists no more than that.
    if waiting.len() >= Waiting::MAX_NAMES {
        return Ok(());
    }
    match (without.iter().find(|name| !waiting.contains(name)), waiting) {
        (None, _) => Ok(()),
        (Some(name), []) => bail!("the rotation does not wait for {name}, nor for any other workload"),
        (Some(name), waiting) => bail!("the rotation does not wait for {name}; it waits for {}", waiting.join(", ")),
    }
}

fn wait_for_begin(place: &Place, before: &Status) -> anyhow::Result<Status> {
    let polls = BEGIN_TIMEOUT.as_millis() / POLL.as_millis();
    for _ in 0..polls {
        let status = place.status()?;
        if status.state.generation != before.state.generation {
            return Ok(status);
        }
        #[allow(clippy::disallowed_methods, reason = "the page is asked for again and again")]
        std::thread::sleep(POLL);
    }
    bail!(
        "the control plane has not begun within {} s; its log says why, or it uses another state directory: --state DIR",
        BEGIN_TIMEOUT.as_secs()
    )
}

/// The lines that were printed already.
struct Shown {
    generation: u64,
    waiting: String,
    output: Output,
}

impl Shown {
    fn new(before: &Status, output: Output) -> Self {
        Self { generation: before.state.generation, waiting: String::new(), output }
    }

    fn show(&mut self, status: &Status, out: &mut dyn Write) -> anyhow::Result<()> {
        let State { generation, phase, steps, .. } = &status.state;
        let new = usize::try_from(generation.saturating_sub(self.generation)).unwrap_or(usize::MAX);
        for step in steps.iter().skip(steps.len().saturating_sub(new)) {
            match self.output {
                Output::Text => writeln!(out, "{}  {}", time(step.at), step.what)?,
                Output::Json => writeln!(out, "{}", json!({ "step": step, "phase": phase }))?,
            }
        }
        self.generation = *generation;
        let waiting = waiting(&status.waiting);
        if waiting != self.waiting && *phase != Phase::Steady {
            match self.output {
                Output::Text => writeln!(out, "          {waiting}")?,
                Output::Json => writeln!(out, "{}", json!({ "waiting": status.waiting, "phase": phase }))?,
            }
        }
        self.waiting = waiting;
        Ok(out.flush()?)
    }
}

/// `2 of 3 workloads; waiting for web-0.shop`.
fn waiting(waiting: &Waiting) -> String {
    let Waiting { done, total, workloads, control_planes, unknown_until } = waiting;
    let mut line = format!("{done} of {total} workloads");
    if !workloads.is_empty() {
        let more = workloads.len().saturating_sub(MAX_NAMES);
        let some: Vec<&str> = workloads.iter().take(MAX_NAMES).map(String::as_str).collect();
        _ = write!(line, "; waiting for {}", some.join(", "));
        if more > 0 {
            _ = write!(line, " and {more} more");
        }
    }
    if !control_planes.is_empty() {
        _ = write!(line, "; waiting for control planes {}", control_planes.join(", "));
    }
    if let Some(until) = unknown_until {
        _ = write!(line, "; workloads that are not in the ledger have certificates until {}", time(*until));
    }
    line
}

fn table(status: &Status) -> String {
    let state = &status.state;
    let mut lines = vec![
        format!("phase       {} since {}", phase(state.phase), time(state.since)),
        format!("workloads   {} with a certificate", status.workloads),
    ];
    if let Some(external) = &status.external {
        let who = match &external.problem {
            Some(problem) => format!("nobody signs workloads' certificates: {problem}"),
            None => format!("{} signs workloads' certificates", external.address.as_deref().unwrap_or("-")),
        };
        lines.push(format!("external    {who}; the authority below, control planes' only"));
        lines.push(format!("            {} of {} workloads know all roots", external.trusting, status.workloads));
    }
    let signers = [("signs", Some(&state.active)), ("next", state.next.as_ref()), ("replaced", state.old.as_ref())];
    lines.extend(signers.into_iter().filter_map(|(role, signer)| Some(signer_lines(role, signer?))));
    if state.phase != Phase::Steady {
        lines.push(format!("progress    {}", waiting(&status.waiting)));
    }
    lines.extend(state.steps.iter().map(|step| format!("{}  {}", time(step.at), step.what)));
    lines.extend(status.alarms.iter().map(alarm_line));
    lines.join("\n") + "\n"
}

fn signer_lines(role: &str, signer: &Signer) -> String {
    let id: String = signer.id.chars().take(16).collect();
    let origin = match signer.origin {
        Origin::PluggedIn => "plugged in",
        Origin::First | Origin::Own => "made by the control plane",
    };
    let (end, of_root) = (time(signer.not_after), time(signer.root_not_after));
    format!("{role:<11} {id}  {origin}\n            certificate until {end}, root until {of_root}")
}

/// Formats the alarm about a certificate that expires soon.
pub fn alarm_line(alarm: &Alarm) -> String {
    let (of, end) = (&alarm.of, time(alarm.not_after));
    match alarm.kind {
        AlarmKind::Leaf => format!("ALARM: the certificate of {of} ends at {end} and was not renewed"),
        AlarmKind::ExternalRoot => {
            format!("ALARM: the external signer's root {of} ends at {end}; its operator has to change it")
        }
        AlarmKind::Root | AlarmKind::Intermediate => {
            format!("ALARM: the {} {of} ends at {end}; change it: evenkeel ca rotate", alarm.kind.as_str())
        }
    }
}

fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Steady => "steady",
        Phase::Distributing => "distributing",
        Phase::Replacing => "replacing",
        Phase::Retiring => "retiring",
    }
}

fn time(seconds: u64) -> String {
    let time = i64::try_from(seconds).ok().and_then(|seconds| time::OffsetDateTime::from_unix_timestamp(seconds).ok());
    let text = time.and_then(|time| time.format(&time::format_description::well_known::Rfc3339).ok());
    text.unwrap_or_else(|| seconds.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn status(generation: u64, steps: &[&str], phase: &str) -> Status {
        let steps: Vec<Value> = steps.iter().map(|what| json!({ "at": 0, "what": what })).collect();
        let signer = json!({
            "id": "ab", "key_id": "cd", "origin": "own", "parent": null, "not_before": 0, "not_after": 0,
            "root_not_before": 0, "root_not_after": 0,
        });
        let state = json!({
            "generation": generation, "phase": phase, "since": 0, "kind": null, "active": signer, "next": null,
            "old": null, "steps": steps,
        });
        let page = json!({
            "state": state, "bundle": "", "waiting": { "done": 0, "total": 1 }, "workloads": 0, "external": null, "now": 0,
        });
        serde_json::from_value(page).expect("a status")
    }

    #[test]
    fn a_line_says_what_is_waited_for() {
        let check = |value: Value, expected: &str| {
            let value: Waiting = serde_json::from_value(value).expect("what is waited for");
            assert_eq!(waiting(&value), expected);
        };
        check(json!({ "done": 3, "total": 3 }), "3 of 3 workloads");
        check(
            json!({ "done": 1, "total": 2, "workloads": ["web-0.shop"], "control_planes": ["17"] }),
            "1 of 2 workloads; waiting for web-0.shop; waiting for control planes 17",
        );
        let many: Vec<String> = (0..7).map(|number| format!("w{number}")).collect();
        check(
            json!({ "done": 0, "total": 7, "workloads": many }),
            "0 of 7 workloads; waiting for w0, w1, w2, w3, w4 and 2 more",
        );
    }

    #[test]
    fn only_workloads_that_are_waited_for_can_be_left_out() {
        let check = |waiting: &[&str], without: &[&str], expected: Option<&str>| {
            let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<String>>();
            let refused = refuse_unknown(&names(waiting), &names(without)).err().map(|error| error.to_string());
            assert_eq!(refused.as_deref(), expected, "{waiting:?} {without:?}");
        };
        check(&["a.x", "b.x"], &["b.x"], None);
        check(&["a.x", "b.x"], &["b.x", "b"], Some("the rotation does not wait for b; it waits for a.x, b.x"));
        check(&[], &["b.x"], Some("the rotation does not wait for b.x, nor for any other workload"));
        // There may be more than are listed.
        check(&["a"; Waiting::MAX_NAMES], &["b.x"], None);
    }

    #[test]
    fn who_signs_instead_is_shown() {
        let table = |external: Value| {
            let mut status = status(4, &[], "steady");
            status.workloads = 3;
            status.external = serde_json::from_value(external).expect("an external signer");
            table(&status)
        };
        let signer = table(json!({ "address": "signer:8932", "problem": null, "trusting": 2 }));
        assert!(signer.contains("signer:8932 signs workloads' certificates"), "{signer}");
        assert!(signer.contains("2 of 3 workloads know all roots"), "{signer}");
        let nobody = table(json!({ "address": null, "problem": "it is unreadable", "trusting": 0 }));
        assert!(nobody.contains("nobody signs workloads' certificates: it is unreadable;"), "{nobody}");
        assert!(!table(Value::Null).contains("external"));
        let root = AlarmKind::ExternalRoot;
        let root = alarm_line(&Alarm { kind: root, of: "ab".to_owned(), identity: None, not_after: 0 });
        assert_eq!(
            root,
            "ALARM: the external signer's root ab ends at 1970-01-01T00:00:00Z; its operator has to change it"
        );
    }

    #[test]
    fn each_step_is_shown_once() {
        let mut out = Vec::new();
        let mut shown = Shown::new(&status(4, &["earlier"], "steady"), Output::Text);
        for status in [
            status(5, &["earlier", "one"], "distributing"),
            status(5, &["earlier", "one"], "distributing"),
            status(7, &["earlier", "one", "two", "three"], "steady"),
        ] {
            shown.show(&status, &mut out).expect("written");
        }
        let at = "1970-01-01T00:00:00Z";
        let expected = format!("{at}  one\n          0 of 1 workloads\n{at}  two\n{at}  three\n");
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
