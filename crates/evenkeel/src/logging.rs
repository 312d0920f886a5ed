//! Logging to standard error, at the level that a flag sets.

use std::io::IsTerminal;

use clap::{Args, ValueEnum};
use evenkeel_base::{Diagnostics, Severity};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

/// Libraries whose errors are reported by whoever calls them: an API server that cannot be reached would give a line every two seconds.
const QUIET: &str = ",kube_client::client::builder=off";

/// `-l LEVEL`, on every command.
#[derive(Debug, Clone, Copy, Args)]
pub struct LogOptions {
    /// Log level on standard error: trace, debug, info, warning, error, critical or off.
    #[arg(short, long, value_name = "LEVEL", value_enum, hide_possible_values = true, default_value_t = Level::Info)]
    pub log_level: Level,
}

/// Log levels, under Envoy's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Everything.
    Trace,
    /// Details for finding a bug.
    Debug,
    /// Events that an operator wants to know.
    Info,
    /// Unexpected conditions.
    #[value(alias = "warn")]
    Warning,
    /// Failures.
    Error,
    /// Failures that end the process; the same lines as `error`.
    Critical,
    /// Nothing.
    Off,
}

impl Level {
    /// The level's name as the value of a flag.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}

/// Writes findings into the log.
pub fn report(found: &Diagnostics) {
    for finding in found.iter() {
        match finding.severity {
            Severity::Error => tracing::error!("{finding}"),
            Severity::Warning => tracing::warn!("{finding}"),
            Severity::Info => tracing::info!("{finding}"),
        }
    }
}

/// Sends `tracing` events to standard error from here on.
pub fn start(level: Level) {
    let filter = match level {
        Level::Trace => LevelFilter::TRACE,
        Level::Debug => LevelFilter::DEBUG,
        Level::Info => LevelFilter::INFO,
        Level::Warning => LevelFilter::WARN,
        Level::Error | Level::Critical => LevelFilter::ERROR,
        Level::Off => LevelFilter::OFF,
    };
    let quiet = if filter < LevelFilter::DEBUG { QUIET } else { "" };
    let subscriber = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(format!("{filter}{quiet}")))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(evenkeel_proxy::stderr::StandardError)
        // Internal errors would go to standard error, and a failure to write there is a panic.
        .log_internal_errors(false)
        .finish();
    // Only a second call can fail, and then the first subscriber stays.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
