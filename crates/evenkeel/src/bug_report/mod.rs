//! `evenkeel bug-report`: one archive, without secrets, with everything that somebody needs who helps.

mod archive;
mod cluster;
mod machine;
mod redact;

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use evenkeel_k8s::cluster::Cluster;
use evenkeel_local::cleanup::StateDir;
use time::OffsetDateTime;

use self::archive::Archive;
use crate::cluster::Target;
use crate::manifests::Manifests;

/// Shown below the options.
pub const EXAMPLES: &str = "\
The archive has no private keys, tokens, contents of Secrets, or values of variables that are named like secrets. Look into it before
you give it to somebody: names of hosts and objects are in it.

Examples:
  evenkeel bug-report                      # the mesh that runs on this machine, or else the cluster that kubectl would use
  evenkeel bug-report --context prod -o report.tar.gz";

#[derive(Debug, Args)]
pub struct BugReportArguments {
    /// The archive's file [default: evenkeel-report-TIME.tar.gz].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// State directory of `up`, which need not be running [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    #[command(flatten)]
    target: Target,
}

impl BugReportArguments {
    /// Whether the report is about a cluster: it is named, or no mesh has run here.
    fn is_of_cluster(&self) -> bool {
        let has_run = || self.state.is_some() || Manifests::is_running(None);
        self.target.options().is_given() || (!has_run() && self.target.options().is_found())
    }
}

/// Collects the report and says where it is.
pub fn run(arguments: &BugReportArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let path = match &arguments.output {
        Some(path) => path.clone(),
        None => PathBuf::from(default_name(OffsetDateTime::now_utc())),
    };
    let mut archive = Archive::create(&path).with_context(|| format!("cannot write {}", path.display()))?;
    archive.add("version.txt", format!("{}\n", env!("CARGO_PKG_VERSION")).as_bytes())?;
    machine::add_machine(&mut archive)?;
    if arguments.is_of_cluster() {
        crate::cluster::block_on(async {
            let cluster = Cluster::of(arguments.target.options()).await?;
            cluster::add(&cluster, &arguments.target, &mut archive).await
        })??;
        cluster::add_findings(&arguments.target, &mut archive)?;
    } else {
        let state = StateDir::new(&arguments.state.clone().unwrap_or_else(StateDir::default_path))?;
        machine::add_mesh(&state, &mut archive)?;
    }
    let missing = archive.problems.len();
    let bytes = archive.finish().with_context(|| format!("cannot write {}", path.display()))?;
    writeln!(out, "{}: {} KiB", path.display(), bytes.div_ceil(1024))?;
    if missing > 0 {
        writeln!(out, "{missing} parts are missing; missing.txt in it says why")?;
    }
    writeln!(
        out,
        "It has no keys, tokens or contents of Secrets, but names of hosts and objects: look into it before you share it."
    )?;
    Ok(0)
}

fn default_name(now: OffsetDateTime) -> String {
    let (date, time) = (now.date(), now.time());
    format!(
        "evenkeel-report-{:04}{:02}{:02}T{:02}{:02}{:02}Z.tar.gz",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}
