//! The machine and the versions of a run.

use crate::peers::Setup;
use crate::process::{find, first_line};

/// Lines such as `CPU: …`, `kernel: …`, `Envoy: …`; what cannot be found out is left away.
pub fn describe(setup: &Setup) -> Vec<(String, String)> {
    let mut facts = Vec::new();
    let mut add = |name: &str, value: Option<String>| facts.extend(value.map(|value| (name.to_owned(), value)));
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|line| line.trim_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    add("machine", Some(format!("{} ({cores} cores)", model.unwrap_or("unknown CPU"))));
    add("kernel", std::fs::read_to_string("/proc/sys/kernel/osrelease").ok().map(|line| line.trim().to_owned()));
    add("load average at the start", std::fs::read_to_string("/proc/loadavg").ok().map(|line| line.trim().to_owned()));
    add("Evenkeel", first_line(&setup.evenkeel, &["--version"]).ok());
    add("Evenkeel, its file", identity(&setup.evenkeel));
    add(
        "Envoy",
        first_line(&setup.envoy, &["--version"])
            .ok()
            .map(|line| line.rsplit("version: ").next().unwrap_or_default().to_owned()),
    );
    for (name, program, flag) in [
        ("HAProxy", "haproxy", "-v"),
        ("nginx", "nginx", "-v"),
        ("wrk", "wrk", "-v"),
        ("h2load", "h2load", "--version"),
    ] {
        add(name, find(program).and_then(|path| first_line(&path, &[flag])).ok());
    }
    facts
}

/// Tells one build from another: `1234567 bytes, built at 1795162812`.
fn identity(program: &std::path::Path) -> Option<String> {
    let data = program.metadata().ok()?;
    let built = data.modified().ok()?.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(format!("{} bytes, built at {}", data.len(), built.as_secs()))
}
