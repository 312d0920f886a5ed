//! Check steps in which something changes while requests run.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use evenkeel_base::files::{Readers, write_atomically};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tokio::time::Instant;

use super::example::{Example, POLL_PERIOD};
use super::report::Line;
use crate::addresses::CONTROL_DEBUG;
use crate::client::Call;

/// Time within which an edit or an exit must take effect.
const EFFECT: Duration = Duration::from_secs(1);
/// How long to wait before an expected event counts as missing.
const PATIENCE: Duration = Duration::from_secs(10);
/// Answers in a row that prove the new weights: by chance at 10 %, one in 10^25.
const PROOF: u32 = 25;

/// Other weights take effect within a second.
pub async fn takes_effect(example: &Example<'_>) -> Line {
    let what = "an edited VirtualService (all to v2) takes effect within 1 s";
    let file = Edited::open(example);
    let measured = async {
        let mut visit = example.visit().await.map_err(|error| error.to_string())?;
        file.write(&file.original.replace("weight: 90", "weight: 0").replace("weight: 10", "weight: 100"))?;
        let written = Instant::now();
        let (mut first, mut in_a_row) = (written, 0);
        while in_a_row < PROOF {
            let asked = Instant::now();
            let version = visit.version().await?;
            in_a_row = if version == "v2" { in_a_row + 1 } else { 0 };
            first = if in_a_row == 1 { asked } else { first };
            if written.elapsed() > PATIENCE {
                return Err(format!("answers still came from v1 after {} s", PATIENCE.as_secs()));
            }
        }
        Ok(first - written)
    };
    let result = measured.await;
    let restored = file.write(&file.original);
    match result.and_then(|took| restored.map(|()| took)) {
        Ok(took) => Line::new(
            format!("an edited VirtualService (all to v2) took effect after {} ms", took.as_millis()),
            took <= EFFECT,
            "more than 1 s",
        ),
        Err(seen) => Line::failed(what, seen),
    }
}

/// A file with a mistake is refused with its position, while requests are still answered.
pub async fn is_refused(example: &Example<'_>) -> Line {
    let what = "a broken edit is refused with file, line and column, and serving goes on";
    let file = Edited::open(example);
    let line = file.original.lines().position(|line| line.contains("weight: 90")).unwrap_or_default() + 1;
    let seen = async {
        let mut visit = example.visit().await.map_err(|error| error.to_string())?;
        file.write(&file.original.replace("weight: 90", "wieght: 90"))?;
        let deadline = Instant::now() + PATIENCE;
        let place = loop {
            if let Some(place) = refusal(&file.path, line).await {
                break place;
            }
            visit.version().await?;
            if Instant::now() > deadline {
                return Err(format!("no finding for line {line} of routing.yaml within {} s", PATIENCE.as_secs()));
            }
        };
        for _ in 0..20 {
            visit.version().await?;
        }
        Ok(place)
    };
    let result = seen.await;
    let restored = file.write(&file.original);
    match result.and_then(|place| restored.map(|()| place)) {
        Ok(place) => Line::held(format!("a broken edit is refused at {place}, and serving goes on")),
        Err(seen) => Line::failed(what, seen),
    }
}

/// `routing.yaml:LINE:COLUMN: message`, once the control plane refuses the file.
async fn refusal(path: &std::path::Path, line: usize) -> Option<String> {
    let answer = Call::get("localhost", "/debug/diagnostics").send(None, CONTROL_DEBUG).await.ok()?;
    let page: Value = serde_json::from_str(&answer.body).ok()?;
    let path = path.to_str()?;
    page.get("refused_files")?.as_array()?.iter().find(|file| file.as_str() == Some(path))?;
    let finding = page.get("diagnostics")?.as_array()?.iter().find(|finding| {
        finding.get("file").and_then(Value::as_str) == Some(path)
            && finding.get("line").and_then(Value::as_u64) == u64::try_from(line).ok()
    })?;
    let column = finding.get("column")?.as_u64()?;
    Some(format!("routing.yaml:{line}:{column} ({})", finding.get("message")?.as_str()?))
}

/// A killed replica leaves the load balancing within a second, and from then on no request fails.
pub async fn replica_dies(example: &Example<'_>) -> Vec<Line> {
    const REQUESTS: usize = 100;
    let what = "a killed replica leaves its callers' endpoints within 1 s";
    let measured = async {
        let victim = example.replica("capitals-info-v1")?;
        let address = format!("{}:8080", victim.pod.address);
        let pid = victim.processes().program.ok_or("it has no process")?;
        let pid = i32::try_from(pid).map_err(|error| error.to_string())?;
        if !caller_uses(example, &address).await? {
            return Err(format!("capitals-web's sidecar did not have {address} at the start"));
        }
        kill(Pid::from_raw(pid), Signal::SIGKILL).map_err(|error| error.to_string())?;
        let killed = Instant::now();
        while caller_uses(example, &address).await? {
            if killed.elapsed() > PATIENCE {
                return Err(format!("{address} is still there after {} s", PATIENCE.as_secs()));
            }
            tokio::time::sleep(POLL_PERIOD).await;
        }
        Ok::<_, String>((killed.elapsed(), victim.pod.name.clone()))
    };
    let (took, victim) = match measured.await {
        Ok(measured) => measured,
        Err(seen) => return vec![Line::failed(what, seen)],
    };
    let left = Line::new(
        format!("a killed replica left its callers' endpoints after {} ms", took.as_millis()),
        took <= EFFECT,
        "more than 1 s",
    );
    let served = async {
        let mut visit = example.visit().await.map_err(|error| error.to_string())?;
        for _ in 0..REQUESTS {
            visit.version().await?;
        }
        Ok::<_, String>(())
    };
    let what = format!("no request fails after that ({REQUESTS} asked)");
    let served = served.await;
    let what_back = "the killed replica is started again and ready";
    let deadline = Instant::now() + PATIENCE;
    while !example.is_ready(&victim) && Instant::now() < deadline {
        tokio::time::sleep(POLL_PERIOD).await;
    }
    vec![
        left,
        Line::new(what, served.is_ok(), served.err().unwrap_or_default()),
        Line::new(what_back, example.is_ready(&victim), format!("not ready after {} s", PATIENCE.as_secs())),
    ]
}

/// Whether capitals-web's sidecar reports this endpoint of capitals-info v1.
async fn caller_uses(example: &Example<'_>, address: &str) -> Result<bool, String> {
    let web = example.replica("capitals-web")?;
    let admin = ([127, 0, 0, 1], 15000).into();
    let answer = Call::get("localhost", "/clusters").send(Some(&web.namespace), admin).await;
    let answer = answer.map_err(|error| format!("the sidecar's /clusters: {error}"))?;
    let prefix = format!("outbound|8080|v1|capitals-info.capitals.svc.cluster.local::{address}::");
    // A replica that is not ready stays among the endpoints, marked as such.
    let flags = format!("{prefix}health_flags::");
    let is_failing = |line: &str| line.strip_prefix(&flags).is_some_and(|flags| flags.trim() != "healthy");
    let mut lines = answer.body.lines().filter(|line| line.starts_with(&prefix)).peekable();
    Ok(lines.peek().is_some() && !lines.any(is_failing))
}

/// Each request leaves a line in the log of the sidecars it passes.
pub async fn access_log(example: &Example<'_>) -> Line {
    let what = "access logs: the request for France is in both sidecars' logs";
    let deadline = Instant::now() + PATIENCE;
    let logs: Vec<PathBuf> = ["capitals-web", "capitals-info-v2"]
        .iter()
        .filter_map(|workload| example.replica(workload).ok())
        .map(|replica| example.plan.state.log(&replica.pod.name, "proxy"))
        .collect();
    let has_line = |path: &PathBuf| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.lines().any(|line| line.contains("\"GET /capitals/France HTTP/1.1\" 200"))
    };
    loop {
        let missing: Vec<String> =
            logs.iter().filter(|path| !has_line(path)).map(|path| path.display().to_string()).collect();
        if missing.is_empty() && logs.len() == 2 {
            return Line::held(what);
        }
        if Instant::now() > deadline {
            return Line::failed(what, format!("no such line in {}", missing.join(", ")));
        }
        tokio::time::sleep(POLL_PERIOD).await;
    }
}

/// The example's routing.yaml, in the check's copy of the directory.
struct Edited {
    path: PathBuf,
    original: String,
}

impl Edited {
    fn open(example: &Example<'_>) -> Self {
        let path = example.plan.directory.join("routing.yaml");
        let original = fs::read_to_string(&path).unwrap_or_default();
        Self { path, original }
    }

    /// Renamed into place, as editors do.
    fn write(&self, text: &str) -> Result<(), String> {
        let done = write_atomically(&self.path, text.as_bytes(), Readers::All);
        done.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}
