//! Runs programs under callgrind and reads its output files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};

use crate::config::PATIENCE;
use crate::process::find;

/// The variable that tells a program under callgrind where its `vgdb` sockets are.
const PREFIX_VARIABLE: &str = "EVENKEEL_BENCH_VGDB";
/// Makes callgrind count threads apart.
pub const PER_THREAD: &str = "--separate-threads=yes";
/// Threads of a proxy: control, log, one worker, what the runtime adds.
const MAX_THREADS: usize = 32;

/// Returns `valgrind` with callgrind's options, without the program and its arguments. Counting is off, which makes
/// everything several times faster, until [`tell`] turns it on.
pub fn command(out: &Path) -> Result<Command> {
    let mut command = Command::new(find("valgrind")?);
    command
        .args(["--tool=callgrind", "--compress-strings=no", "--compress-pos=no", "--error-exitcode=0", "--quiet"])
        .args(["--instr-atstart=no", "--vgdb=yes", &vgdb_prefix(out)])
        .arg(format!("--callgrind-out-file={}", out.display()))
        .env(PREFIX_VARIABLE, out)
        // The user's settings of the C library must not influence the counts.
        .env_remove("GLIBC_TUNABLES")
        .stdin(Stdio::null());
    Ok(command)
}

/// Beginning of the names of `vgdb`'s sockets.
fn vgdb_prefix(out: &Path) -> String {
    format!("--vgdb-prefix={}.vgdb", out.display())
}

/// Sends a command to callgrind, such as `instrumentation on`, for a program that it runs. callgrind listens only while the
/// program executes code, so `busy` is called until it has answered.
pub fn tell(out: &Path, process: u32, what: &[&str], mut busy: impl FnMut()) -> Result<()> {
    let mut command = Command::new(find("vgdb")?);
    // Otherwise vgdb stops an idle program by ptrace, which may not be permitted.
    command.args([&vgdb_prefix(out), &format!("--pid={process}"), "--max-invoke-ms=0"]).args(what);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("vgdb")?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "callgrind does not {what:?}: {status}");
            return Ok(());
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("callgrind does not {what:?} within {PATIENCE:?}");
        }
        busy();
    }
}

/// Runs a part of this program that is counted, if it runs under callgrind.
pub fn counted<T>(run: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(out) = std::env::var_os(PREFIX_VARIABLE) else { return run() };
    let busy = || (0..10_000).for_each(|_| std::hint::spin_loop());
    let own = |what| tell(Path::new(&out), std::process::id(), &["instrumentation", what], busy);
    own("on")?;
    let result = run();
    own("off")?;
    result
}

/// Runs a program to its end.
pub fn run(out: &Path, program: &Path, args: &[&str]) -> Result<Profile> {
    let output = command(out)?.arg(program).args(args).output().context("valgrind")?;
    ensure!(output.status.success(), "{args:?} under valgrind: {}", String::from_utf8_lossy(&output.stderr));
    Profile::read(out)
}

/// The counts of a callgrind run.
#[derive(Debug, Default, PartialEq)]
pub struct Profile {
    /// Instructions of the whole program.
    pub total: u64,
    /// Inclusive instructions of functions as their callers see them, by name.
    inclusive: HashMap<String, u64>,
}

impl Profile {
    /// Reads a file of callgrind's.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
        Self::parse(&text).with_context(|| format!("{}", path.display()))
    }

    /// Returns what the threads executed that ran a function with this in its name, of a program that ran with
    /// [`PER_THREAD`]: callgrind wrote one file each, `OUT.PART-01` and so on.
    pub fn total_of_threads_with(out: &Path, part: u32, function: &str) -> Result<u64> {
        let mut total = 0;
        for thread in 1..=MAX_THREADS {
            let path = PathBuf::from(format!("{}.{part}-{thread:02}", out.display()));
            let Ok(text) = std::fs::read_to_string(&path) else { continue };
            if text.lines().any(|line| line.starts_with("fn=") && line.contains(function)) {
                total += Self::parse(&text).with_context(|| format!("{}", path.display()))?.total;
            }
        }
        ensure!(total > 0, "no thread ran {function}");
        Ok(total)
    }

    /// The format: <https://valgrind.org/docs/manual/cl-format.html>. A call is `cfn=NAME`, `calls=…`, then a line whose last
    /// number is the call's inclusive cost.
    fn parse(text: &str) -> Result<Self> {
        let mut profile = Self::default();
        let (mut callee, mut after_calls) = ("", false);
        for line in text.lines() {
            if after_calls {
                after_calls = false;
                *profile.inclusive.entry(callee.to_owned()).or_default() += last_number(line)?;
            } else if let Some(name) = line.strip_prefix("cfn=") {
                callee = name;
            } else if line.starts_with("calls=") {
                after_calls = true;
            } else if let Some(total) = line.strip_prefix("totals: ").or(line.strip_prefix("summary: ")) {
                profile.total = profile.total.max(last_number(total)?);
            }
        }
        ensure!(profile.total > 0, "no totals");
        Ok(profile)
    }

    /// Inclusive instructions of the function whose path ends like this.
    pub fn inclusive(&self, end: &str) -> Result<u64> {
        let found: Vec<u64> =
            self.inclusive.iter().filter(|(name, _)| name.ends_with(end)).map(|(_, cost)| *cost).collect();
        ensure!(!found.is_empty(), "callgrind saw no call of {end}: was it inlined?");
        Ok(found.into_iter().sum())
    }
}

fn last_number(line: &str) -> Result<u64> {
    let word = line.split_whitespace().next_back().unwrap_or_default();
    word.parse().with_context(|| format!("expected a cost at the end of {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::Profile;

    #[test]
    fn reads_calls_and_totals() {
        let text = "version: 1\nevents: Ir\n\nfn=main\n10 5\ncfi=cases.rs\ncfn=bench::cases::parse\ncalls=100 20\n11 4000\n\
                    cfn=bench::cases::parse\ncalls=1 20\n12 40\n\nfn=bench::cases::parse\n20 4040\n\ntotals: 4045\n";
        let profile = Profile::parse(text).unwrap();
        assert_eq!((profile.total, profile.inclusive("cases::parse").unwrap()), (4045, 4040));
        assert!(profile.inclusive("cases::encode").is_err());
        assert!(Profile::parse("events: Ir\n").is_err());
    }
}
