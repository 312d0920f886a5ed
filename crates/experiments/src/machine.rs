//! The machine and the programs of a run.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use crate::record::Machine;

/// Reads what there is to read; what cannot be found out stays empty.
pub fn describe(evenkeel: &Path, envoy: Option<&Path>) -> Machine {
    let line = |file: &str| fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default();
    let processors = line("/proc/cpuinfo");
    let model = processors.lines().find_map(|line| line.strip_prefix("model name"));
    Machine {
        cpu: model.map(|model| model.trim_matches([' ', '\t', ':']).to_owned()).unwrap_or_default(),
        cores: cores(),
        kernel: line("/proc/sys/kernel/osrelease"),
        load_average: line("/proc/loadavg"),
        evenkeel: [version(evenkeel), identity(evenkeel)].into_iter().flatten().collect::<Vec<_>>().join(", "),
        envoy: envoy.map(|envoy| version(envoy).unwrap_or_default()),
    }
}

/// The cores that this process may use.
pub fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

fn version(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| !line.trim().is_empty())?;
    Some(line.rsplit("version: ").next().unwrap_or(line).trim().to_owned())
}

/// Distinguishes builds of the same version.
fn identity(program: &Path) -> Option<String> {
    let data = program.metadata().ok()?;
    let seconds = data.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_secs();
    let date = time::OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()?;
    let date = date.format(&time::format_description::well_known::Rfc3339).ok()?;
    Some(format!("{} bytes, of {date}", data.len()))
}
