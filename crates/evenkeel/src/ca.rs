//! `evenkeel ca`: the certificate authorities of a mesh, and the change from one to the next.

use std::fmt::Write as _;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use evenkeel_control::authorities::{self, Kind, Waiting};
use evenkeel_local::cleanup::StateDir;
use serde_json::{Value, json};

use crate::admin;
use crate::formats::Output;

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
    fn status(&self) -> anyhow::Result<Value> {
        let of_run = self.state.as_deref().filter(|state| is_of_up(state));
        let control_plane = admin::control_plane(self.control_plane, of_run)?;
        let body = admin::get(admin::CONTROL_PLANE, control_plane, "/debug/ca")?;
        serde_json::from_slice(&body).context("the control plane's answer is not JSON")
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
            let status = arguments.place.status()?;
            match arguments.output {
                Output::Text => out.write_all(table(&status).as_bytes())?,
                Output::Json => writeln!(out, "{status:#}")?,
            }
            let alarms = status["alarms"].as_array().is_some_and(|alarms| !alarms.is_empty());
            Ok(u8::from(alarms))
        }
        CaCommand::Rotate(arguments) => rotate(arguments, out),
    }
}

fn rotate(arguments: &RotateArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let kind = if arguments.root { Kind::Root } else { Kind::Intermediate };
    let before = arguments.place.status()?;
    let is_going_on = before["state"]["phase"] != "steady";
    if is_going_on && arguments.without.is_empty() {
        bail!(
            "a rotation is going on ({}); see `evenkeel ca status`. It goes on without a workload with --without NAME",
            text(&before["state"]["phase"])
        );
    }
    if is_going_on {
        refuse_unknown(&before["waiting"]["workloads"], &arguments.without)?;
    }
    let directory = arguments.place.directory();
    let unwritable = || {
        let known = directory.display();
        format!("cannot ask for a rotation in {known}; name the control plane's state directory: --state DIR")
    };
    if !arguments.without.is_empty() {
        authorities::request_without(&directory, &arguments.without).with_context(unwritable)?;
    }
    if !is_going_on {
        authorities::request(&directory, kind).with_context(unwritable)?;
    }
    let of_root = if is_going_on { before["state"]["kind"] == "root" } else { arguments.root };
    if !arguments.without.is_empty() && !of_root && arguments.output == Output::Text {
        writeln!(
            out,
            "the root stays the same, so the certificates of {} stay valid until they expire: change the root with --root, \
             or revoke them",
            arguments.without.join(", ")
        )?;
    }
    if !before["external"].is_null() && arguments.output == Output::Text {
        let who = before["external"]["address"].as_str().unwrap_or("an external signer");
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
        if status["state"]["phase"] == "steady" {
            return Ok(0);
        }
        #[allow(clippy::disallowed_methods, reason = "the page is asked for again and again")]
        std::thread::sleep(POLL);
    }
}

/// Refuses names that the rotation does not wait for: nothing would change.
fn refuse_unknown(waiting: &Value, without: &[String]) -> anyhow::Result<()> {
    let waiting: Vec<&str> = waiting.as_array().into_iter().flatten().map(text).collect();
    // The page lists no more than that.
    if waiting.len() >= Waiting::MAX_NAMES {
        return Ok(());
    }
    match (without.iter().find(|name| !waiting.contains(&name.as_str())), waiting.as_slice()) {
        (None, _) => Ok(()),
        (Some(name), []) => bail!("the rotation does not wait for {name}, nor for any other workload"),
        (Some(name), waiting) => bail!("the rotation does not wait for {name}; it waits for {}", waiting.join(", ")),
    }
}

fn wait_for_begin(place: &Place, before: &Value) -> anyhow::Result<Value> {
    let polls = BEGIN_TIMEOUT.as_millis() / POLL.as_millis();
    for _ in 0..polls {
        let status = place.status()?;
        if status["state"]["generation"] != before["state"]["generation"] {
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
    fn new(before: &Value, output: Output) -> Self {
        Self { generation: before["state"]["generation"].as_u64().unwrap_or_default(), waiting: String::new(), output }
    }

    fn show(&mut self, status: &Value, out: &mut dyn Write) -> anyhow::Result<()> {
        let state = &status["state"];
        let generation = state["generation"].as_u64().unwrap_or_default();
        let new = usize::try_from(generation.saturating_sub(self.generation)).unwrap_or(usize::MAX);
        let steps = state["steps"].as_array().map(Vec::as_slice).unwrap_or_default();
        for step in steps.iter().skip(steps.len().saturating_sub(new)) {
            match self.output {
                Output::Text => writeln!(out, "{}  {}", time(&step["at"]), text(&step["what"]))?,
                Output::Json => writeln!(out, "{}", json!({ "step": step, "phase": state["phase"] }))?,
            }
        }
        self.generation = generation;
        let waiting = waiting(&status["waiting"]);
        if waiting != self.waiting && state["phase"] != "steady" {
            match self.output {
                Output::Text => writeln!(out, "          {waiting}")?,
                Output::Json => writeln!(out, "{}", json!({ "waiting": status["waiting"], "phase": state["phase"] }))?,
            }
        }
        self.waiting = waiting;
        Ok(out.flush()?)
    }
}

/// `2 of 3 workloads; waiting for web-0.shop`.
fn waiting(waiting: &Value) -> String {
    let mut line = format!("{} of {} workloads", waiting["done"], waiting["total"]);
    let names = |field: &str| -> Vec<String> {
        waiting[field].as_array().into_iter().flatten().map(|name| text(name).to_owned()).collect()
    };
    let (workloads, control_planes) = (names("workloads"), names("control_planes"));
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
    if let Some(until) = waiting["unknown_until"].as_u64() {
        _ = write!(line, "; workloads that are not in the ledger have certificates until {}", time(&json!(until)));
    }
    line
}

fn table(status: &Value) -> String {
    let state = &status["state"];
    let mut text_of = String::new();
    let mut line = |text: String| {
        text_of += &text;
        text_of.push('\n');
    };
    line(format!("phase       {} since {}", text(&state["phase"]), time(&state["since"])));
    line(format!("workloads   {} with a certificate", status["workloads"]));
    let external = &status["external"];
    if !external.is_null() {
        let who = match external["problem"].as_str() {
            Some(problem) => format!("nobody signs workloads' certificates: {problem}"),
            None => format!("{} signs workloads' certificates", text(&external["address"])),
        };
        line(format!("external    {who}; the authority below, control planes' only"));
        line(format!("            {} of {} workloads know all roots", external["trusting"], status["workloads"]));
    }
    let mut signer = |role: &str, of: &Value| {
        if of.is_null() {
            return;
        }
        let id: String = text(&of["id"]).chars().take(16).collect();
        let origin = match text(&of["origin"]) {
            "plugged-in" => "plugged in",
            _ => "made by the control plane",
        };
        line(format!("{role:<11} {id}  {origin}"));
        line(format!(
            "            certificate until {}, root until {}",
            time(&of["not_after"]),
            time(&of["root_not_after"])
        ));
    };
    signer("signs", &state["active"]);
    signer("next", &state["next"]);
    signer("replaced", &state["old"]);
    if state["phase"] != "steady" {
        line(format!("progress    {}", waiting(&status["waiting"])));
    }
    for step in state["steps"].as_array().into_iter().flatten() {
        line(format!("{}  {}", time(&step["at"]), text(&step["what"])));
    }
    for alarm in status["alarms"].as_array().into_iter().flatten() {
        line(alarm_line(alarm));
    }
    text_of
}

/// Formats the alarm about a certificate that expires soon.
pub fn alarm_line(alarm: &Value) -> String {
    let (of, end) = (text(&alarm["of"]), time(&alarm["not_after"]));
    match text(&alarm["kind"]) {
        "leaf" => format!("ALARM: the certificate of {of} ends at {end} and was not renewed"),
        "external-root" => {
            format!("ALARM: the external signer's root {of} ends at {end}; its operator has to change it")
        }
        kind => format!("ALARM: the {kind} {of} ends at {end}; change it: evenkeel ca rotate"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("-")
}

fn time(seconds: &Value) -> String {
    let seconds = seconds.as_i64().unwrap_or_default();
    let time = time::OffsetDateTime::from_unix_timestamp(seconds).ok();
    let text = time.and_then(|time| time.format(&time::format_description::well_known::Rfc3339).ok());
    text.unwrap_or_else(|| seconds.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_what_is_waited_for() {
        let check = |value: Value, expected: &str| assert_eq!(waiting(&value), expected);
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
            let without: Vec<String> = without.iter().map(|name| (*name).to_owned()).collect();
            let refused = refuse_unknown(&json!(waiting), &without).err().map(|error| error.to_string());
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
        let table =
            |external: Value| table(&json!({ "workloads": 3, "external": external, "state": {}, "alarms": [] }));
        let signer = table(json!({ "address": "signer:8932", "problem": null, "trusting": 2 }));
        assert!(signer.contains("signer:8932 signs workloads' certificates"), "{signer}");
        assert!(signer.contains("2 of 3 workloads know all roots"), "{signer}");
        let nobody = table(json!({ "address": null, "problem": "it is unreadable", "trusting": 0 }));
        assert!(nobody.contains("nobody signs workloads' certificates: it is unreadable;"), "{nobody}");
        assert!(!table(Value::Null).contains("external"));
        let root = alarm_line(&json!({ "kind": "external-root", "of": "ab", "not_after": 0 }));
        assert_eq!(
            root,
            "ALARM: the external signer's root ab ends at 1970-01-01T00:00:00Z; its operator has to change it"
        );
    }

    #[test]
    fn each_step_is_shown_once() {
        let status = |generation: u64, steps: &[&str], phase: &str| {
            let steps: Vec<Value> = steps.iter().map(|what| json!({ "at": 0, "what": what })).collect();
            json!({
                "state": { "generation": generation, "phase": phase, "steps": steps },
                "waiting": { "done": 0, "total": 1 },
            })
        };
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
