//! Command-line options, under Envoy's names, and the settings derived from them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use evenkeel_runtime_config::custom::CustomFilterKind;

use crate::access_log::FlushOptions;
use crate::handover;
use crate::logging::Level;
use crate::recent;

/// `evenkeel proxy`: what the user wrote.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// Bootstrap file, YAML or JSON.
    #[arg(short = 'c', long, value_name = "FILE")]
    pub config_path: Option<PathBuf>,
    /// Bootstrap as text, merged over --config-path.
    #[arg(long, value_name = "YAML")]
    pub config_yaml: Option<String>,
    /// Worker threads [default: the cores the cgroup allows].
    #[arg(long, value_name = "N")]
    pub concurrency: Option<usize>,
    /// Override the bootstrap's node.id.
    #[arg(long, value_name = "ID")]
    pub service_node: Option<String>,
    /// Override the bootstrap's node.cluster.
    #[arg(long, value_name = "NAME")]
    pub service_cluster: Option<String>,
    /// Override the bootstrap's node.locality.zone.
    #[arg(long, value_name = "ZONE")]
    pub service_zone: Option<String>,
    /// What to do with the configuration.
    #[arg(long, value_enum, default_value_t = Mode::Serve)]
    pub mode: Mode,
    /// Log level on standard error.
    #[arg(short = 'l', long, value_enum, default_value_t = Level::Info)]
    pub log_level: Level,
    /// How long connections may take to finish when the process ends, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub drain_time_s: u64,
    /// Write the admin port's address to this file once it listens.
    #[arg(long, value_name = "FILE")]
    pub admin_address_path: Option<PathBuf>,
    /// Take over from the running proxy with the same number, and let a later one take over from this one.
    #[arg(long, value_name = "N")]
    pub base_id: Option<u32>,
    /// Directory of the sockets for taking over; it must be private to this user [default: evenkeel in $XDG_RUNTIME_DIR, or else
    /// evenkeel-UID in the temporary directory].
    #[arg(long, value_name = "DIR")]
    pub socket_path: Option<PathBuf>,
    /// Neither take over from a running proxy nor be taken over from.
    #[arg(long)]
    pub disable_hot_restart: bool,
    /// Accepted for compatibility with Envoy; the proxy itself finds out whether another one runs.
    #[arg(long, value_name = "N", hide = true)]
    pub restart_epoch: Option<u32>,
    /// How long the previous proxy may take to finish its connections after the takeover, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub parent_shutdown_time_s: u64,
    /// Write lines of access logs to their files after this time, in milliseconds; workers look once a second [default: each time].
    #[arg(long, value_name = "MS")]
    pub file_flush_interval_msec: Option<u64>,
    /// Write them earlier when a worker has so many KiB of them, 1,024 at most [default: 64].
    #[arg(long, value_name = "KIB")]
    pub file_flush_min_size_kb: Option<u64>,
    /// Recent requests that each worker keeps for `evenkeel explain --last` and `evenkeel plan`; 0: none.
    #[arg(long, value_name = "N", default_value_t = recent::DEFAULT_LIMIT, value_parser = recent::limit)]
    pub recent_requests: usize,
    /// Whose requests to the admin port may change the process: those of its own user and root on this machine, or anyone's.
    #[arg(long, value_enum, default_value_t = AdminWriters::User)]
    pub admin_changes_from: AdminWriters,
    /// Keep what the process otherwise gives up when it starts: running programs, and system calls that it never makes.
    #[arg(long)]
    pub no_confinement: bool,
    /// Accepted for compatibility with Envoy; there is only one strategy.
    #[arg(long, value_name = "STRATEGY", hide = true)]
    pub drain_strategy: Option<String>,
    /// Accepted for compatibility with Envoy.
    #[arg(long, value_name = "VERSION", hide = true)]
    pub local_address_ip_version: Option<String>,
}

/// What to do with the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Serve it.
    #[default]
    Serve,
    /// Check it and exit.
    Validate,
}

/// Who may change the process through its admin port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum AdminWriters {
    /// Programs of the process's own user and root, on this machine.
    #[default]
    User,
    /// Whoever reaches the port.
    Anyone,
}

/// The resolved options.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Source of the bootstrap.
    pub bootstrap: BootstrapSource,
    /// Number of worker threads; 0: the cores the cgroup allows.
    pub concurrency: usize,
    /// Overrides of the bootstrap's `node`.
    pub node: NodeOverrides,
    /// Log level at start.
    pub log_level: Level,
    /// How long draining may take.
    pub drain_time: Duration,
    /// The same for connections whose filter chain was changed or removed.
    pub listener_drain_time: Duration,
    /// File to which the admin interface's address is written.
    pub admin_address_path: Option<PathBuf>,
    /// Socket for taking over from a predecessor, and for handing over to a successor.
    pub handover: Option<PathBuf>,
    /// How long the predecessor may take to finish its connections after a takeover.
    pub parent_shutdown_time: Duration,
    /// Which recent requests the workers keep.
    pub recent: recent::Options,
    /// Who may change the process through its admin port.
    pub admin_writers: AdminWriters,
    /// When lines of access logs are written.
    pub log_flush: FlushOptions,
    /// HTTP and network filters of the program that embeds the proxy.
    pub custom_filters: Vec<CustomFilterKind>,
}

/// Source of the bootstrap.
#[derive(Clone, Debug, Default)]
pub struct BootstrapSource {
    /// A file.
    pub path: Option<PathBuf>,
    /// A text, whose top-level fields replace the file's.
    pub text: Option<String>,
}

/// Overrides of the bootstrap's `node`.
#[derive(Clone, Debug, Default)]
pub struct NodeOverrides {
    /// `node.id`.
    pub id: Option<String>,
    /// `node.cluster`.
    pub cluster: Option<String>,
    /// `node.locality.zone`.
    pub zone: Option<String>,
}

/// Invalid options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// No bootstrap is given.
    #[error("no configuration: give a bootstrap with -c FILE or --config-yaml TEXT")]
    NoConfiguration,
}

impl Options {
    /// Checks and resolves the options.
    pub fn resolve(&self) -> Result<Settings, OptionsError> {
        if self.config_path.is_none() && self.config_yaml.is_none() {
            return Err(OptionsError::NoConfiguration);
        }
        Ok(Settings {
            bootstrap: BootstrapSource { path: self.config_path.clone(), text: self.config_yaml.clone() },
            concurrency: self.concurrency.unwrap_or(0),
            node: NodeOverrides {
                id: self.service_node.clone(),
                cluster: self.service_cluster.clone(),
                zone: self.service_zone.clone(),
            },
            log_level: self.log_level,
            drain_time: Duration::from_secs(self.drain_time_s),
            listener_drain_time: Duration::from_secs(self.drain_time_s),
            admin_address_path: self.admin_address_path.clone(),
            handover: self
                .base_id
                .filter(|_| !self.disable_hot_restart)
                .map(|base_id| handover::socket_path(self.socket_path.as_deref(), base_id)),
            parent_shutdown_time: Duration::from_secs(self.parent_shutdown_time_s),
            recent: recent::Options { limit: self.recent_requests, except: Vec::new() },
            admin_writers: self.admin_changes_from,
            log_flush: FlushOptions::new(self.file_flush_interval_msec, self.file_flush_min_size_kb),
            custom_filters: Vec::new(),
        })
    }
}
