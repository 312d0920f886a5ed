//! Flags of `evenkeel-lab`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::mesh::ServiceKind;
use crate::proxy::Scope;

/// The flags that all scenarios share.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Services in the mesh at the start.
    #[arg(long, value_name = "N", default_value_t = 1400)]
    pub services: usize,

    /// Simulated sidecars; one gateway is simulated in addition.
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub proxies: usize,

    /// Time between two changes, such as 200ms; 0s: as fast as files can be written.
    #[arg(long, value_name = "DURATION", default_value = "200ms", value_parser = duration)]
    pub interval: Duration,

    /// Number of changes.
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub changes: usize,

    /// What the proxies subscribe to.
    #[arg(long, value_enum, default_value_t = Scope::Full)]
    pub scope: Scope,

    /// Which kinds define a service.
    #[arg(long, value_enum, default_value_t = ServiceKind::ServiceEntry)]
    pub kind: ServiceKind,

    /// Services that each workload calls (--scope learned).
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub used: usize,

    /// Use the state-of-the-world protocol instead of the delta protocol (--scope envoy).
    #[arg(long)]
    pub sotw: bool,

    /// Quiet time after which the control plane applies a change (PILOT_DEBOUNCE_AFTER), such as 1s [default: its own].
    #[arg(long, value_name = "DURATION", value_parser = duration, conflicts_with = "xds")]
    pub debounce: Option<Duration>,

    /// Number of sidecars that stop reading once they are configured; they must not delay the others.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub stuck: usize,

    /// Do not run the real gateway (`evenkeel proxy`) that services are called through.
    #[arg(long)]
    pub no_gateway: bool,

    /// How long nothing happens (idle), or the control plane is down (restart).
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub pause: Duration,

    /// Services that shrink keeps.
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub keep: usize,

    /// Seed of the random choices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Time limit for each wait.
    #[arg(long, value_name = "DURATION", default_value = "120s", value_parser = duration)]
    pub patience: Duration,

    /// Measure this plaintext xDS server instead of Evenkeel's control plane; it must read --config.
    #[arg(long, value_name = "HOST:PORT", value_parser = socket, requires = "config")]
    pub xds: Option<SocketAddr>,

    /// Directory that the mesh is written into, with --xds [default: a temporary one].
    #[arg(long, value_name = "DIR")]
    pub config: Option<PathBuf>,

    /// Write the mesh through a Kubernetes API server, which this directory of programs (etcd, kube-apiserver) starts, instead of
    /// into files.
    #[arg(long, value_name = "DIR", conflicts_with = "xds")]
    pub kubernetes: Option<PathBuf>,

    /// Process whose CPU time and memory are measured, with --xds.
    #[arg(long, value_name = "PID", requires = "xds")]
    pub server_pid: Option<u32>,

    /// Binary whose control plane and gateway are measured [default: this one].
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub output: Output,

    /// Also write the results as JSON to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Also draw the results into this SVG file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table.
    Table,
    /// JSON, as with --json.
    Json,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            services: 1400,
            proxies: 200,
            interval: Duration::from_millis(200),
            changes: 50,
            scope: Scope::Full,
            kind: ServiceKind::ServiceEntry,
            used: 5,
            sotw: false,
            debounce: None,
            stuck: 0,
            no_gateway: false,
            pause: Duration::from_secs(5),
            keep: 100,
            seed: 1,
            patience: Duration::from_secs(120),
            xds: None,
            config: None,
            kubernetes: None,
            server_pid: None,
            program: None,
            output: Output::Table,
            json: None,
            svg: None,
        }
    }
}

/// Reads a duration; `0s` is one.
pub fn duration(text: &str) -> Result<Duration, String> {
    match text {
        "0s" => Ok(Duration::ZERO),
        _ => evenkeel_base::duration::parse(text).map_err(|error| error.to_string()),
    }
}

fn socket(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|error| format!("`{text}` is not HOST:PORT: {error}"))?;
    found.next().ok_or_else(|| format!("`{text}` has no address"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn the_defaults_are_those_of_the_flags() {
        let parsed = Cli::try_parse_from(["lab"]).expect("all flags have defaults").options;
        assert_eq!(format!("{parsed:?}"), format!("{:?}", Options::default()));
    }

    #[test]
    fn an_external_server_needs_a_directory() {
        let check = |flags: &[&str], fits: bool| {
            let parsed = Cli::try_parse_from(["lab"].iter().chain(flags));
            assert_eq!(parsed.is_ok(), fits, "{flags:?}: {parsed:?}");
        };
        check(&["--xds", "127.0.0.1:15010"], false);
        check(&["--xds", "127.0.0.1:15010", "--config", "/tmp/mesh"], true);
        check(&["--xds", "nowhere", "--config", "/tmp/mesh"], false);
        check(&["--interval", "0s"], true);
        check(&["--interval", "soon"], false);
        check(&["--server-pid", "1"], false);
    }
}
