//! The processes of a running mesh, as the machine's `/proc` shows them.

use evenkeel_testkit::Signal;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::kill;
use nix::unistd::Pid;

/// A process that belongs to a run.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its process id, outside the mesh's process namespace.
    pub pid: i32,
    command: Vec<String>,
    environment: Vec<String>,
}

impl Running {
    /// All whose command line or environment names this state directory.
    pub fn all_of(state: &Path) -> Vec<Self> {
        let name = state.display().to_string();
        let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
        let read = |entry: fs::DirEntry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let words = |name: &str| -> Option<Vec<String>> {
                let text = fs::read(entry.path().join(name)).ok()?;
                Some(text.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect())
            };
            Some(Self { pid, command: words("cmdline")?, environment: words("environ").unwrap_or_default() })
        };
        let processes = entries.filter_map(read);
        processes
            .filter(|process| process.command.iter().chain(&process.environment).any(|word| word.contains(&name)))
            .collect()
    }

    /// Its command line.
    pub fn line(&self) -> String {
        self.command.join(" ")
    }

    /// The file it runs, or ran when that was still there.
    pub fn executable(&self) -> PathBuf {
        fs::read_link(format!("/proc/{}/exe", self.pid)).expect("it runs")
    }

    /// What it was started with.
    pub fn arguments(&self) -> impl Iterator<Item = &str> {
        // The text ends with a NUL, after which there is nothing.
        self.command.iter().skip(1).filter(|word| !word.is_empty()).map(String::as_str)
    }

    /// The value of a flag.
    pub fn argument(&self, flag: &str) -> &str {
        let mut words = self.command.iter().skip_while(|word| *word != flag);
        words.nth(1).unwrap_or_else(|| panic!("no {flag} in {}", self.line()))
    }

    /// Whether it is an agent of a replica of this workload. Not one that is still being started: `exec` names the agent, too.
    pub fn is_agent_of(&self, workload: &str) -> bool {
        self.command.get(1).is_some_and(|word| word == "agent") && self.argument("--workload-name") == workload
    }

    /// Whether it is the program of a replica of this workload, which does not say so in its command line.
    pub fn is_program_of(&self, workload: &str) -> bool {
        let prefix = format!("POD_NAME={workload}-");
        self.environment.iter().any(|variable| variable.starts_with(&prefix))
    }

    /// Whether it is the Envoy of a replica of this workload.
    pub fn is_envoy_of(&self, workload: &str) -> bool {
        let folder = format!("/pods/{workload}-");
        self.command[0].ends_with("envoy") && self.command.iter().any(|word| word.contains(&folder))
    }

    /// Ends it at once.
    pub fn kill(&self) {
        kill(Pid::from_raw(self.pid), Signal::SIGKILL).expect("it runs");
    }

    /// What its parent runs besides it by this command of ours, which does not name the state directory.
    pub fn sibling(&self, command: &str) -> Self {
        let parent = |process: &Self| process.stat("PPid");
        let mut all = Self::all_of(Path::new("")).into_iter();
        let found =
            all.find(|other| other.command.get(1).is_some_and(|w| w == command) && parent(other) == parent(self));
        found.unwrap_or_else(|| panic!("no {command} beside {}", self.line()))
    }

    /// The process that holds its process namespace.
    pub fn first_of_its_namespace(&self) -> Self {
        let namespace = |process: &Self| fs::read_link(format!("/proc/{}/ns/pid", process.pid)).ok();
        let mut all = Self::all_of(Path::new("")).into_iter();
        let found = all.find(|other| {
            other.command.get(1).is_some_and(|word| word == "pod-init") && namespace(other) == namespace(self)
        });
        found.unwrap_or_else(|| panic!("nobody holds the namespace of {}", self.line()))
    }

    fn stat(&self, name: &str) -> Option<String> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()?;
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim_start_matches(':').trim().to_owned()))
    }

    /// Whether it is the control plane.
    pub fn is_control_plane(&self) -> bool {
        self.command.get(1).is_some_and(|word| word == "control-plane")
    }
}
