//! Logging to standard error, at the level that a flag sets.

use std::io::IsTerminal;

use clap::Args;
use evenkeel_base::{Diagnostics, Severity};
use evenkeel_proxy::logging::{Level, Logging};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

/// Libraries whose errors are reported by whoever calls them: an API server that cannot be reached would give a line every two seconds.
const QUIET: &str = ",kube_client::client::builder=off";

/// `-l LEVEL`, on every command.
#[derive(Debug, Clone, Copy, Args)]
pub struct LogOptions {
    /// Log level on standard error: trace, debug, info, warning, error, critical or off.
    #[arg(short, long, value_name = "LEVEL", value_enum, hide_possible_values = true, default_value_t = Level::Info)]
    pub log_level: Level,
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

/// Sends `tracing` events to standard error from here on. A proxy in this process can change the level.
pub fn start(level: Level) {
    let (filter, handle) = reload::Layer::new(filter(level));
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(evenkeel_proxy::stderr::StandardError)
        // Internal errors would go to standard error, and a failure to write there is a panic.
        .log_internal_errors(false);
    // Only a second call can fail, and then the first subscriber stays.
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        Logging::new(level, move |level| handle.reload(self::filter(level)).is_ok()).share();
    }
}

fn filter(level: Level) -> EnvFilter {
    let filter = level.filter();
    let quiet = if filter < LevelFilter::DEBUG { QUIET } else { "" };
    EnvFilter::new(format!("{filter}{quiet}"))
}
