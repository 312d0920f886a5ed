//! The process's own log: to standard error, at a level that can change while it runs.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, reload};

use crate::stderr::StandardError;

/// Envoy's log levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Everything.
    Trace,
    /// Details for finding a bug.
    Debug,
    /// Events that an operator wants to know.
    #[default]
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
    fn filter(self) -> LevelFilter {
        match self {
            Self::Trace => LevelFilter::TRACE,
            Self::Debug => LevelFilter::DEBUG,
            Self::Info => LevelFilter::INFO,
            Self::Warning => LevelFilter::WARN,
            Self::Error | Self::Critical => LevelFilter::ERROR,
            Self::Off => LevelFilter::OFF,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Off => "off",
        })
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        <Self as ValueEnum>::from_str(text, true)
            .map_err(|_| format!("unknown level {text:?}: trace, debug, info, warning, error, critical or off"))
    }
}

/// Handle that changes the log level while the process runs.
#[derive(Clone, Default)]
pub struct Logging {
    handle: Option<Arc<reload::Handle<LevelFilter, Registry>>>,
}

impl Logging {
    /// Logs to standard error from now on. If the process has a log already (the proxy runs inside another program),
    /// that one stays, and its level cannot be changed here.
    pub fn install(level: Level) -> Self {
        let (filter, handle) = reload::Layer::new(level.filter());
        let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(StandardError)
            // Internal errors would go to standard error, and a failure there panics.
            .log_internal_errors(false)
            .with_target(false)
            .with_ansi(terminal);
        match tracing_subscriber::registry().with(filter).with(lines).try_init() {
            Ok(()) => Self { handle: Some(Arc::new(handle)) },
            Err(_) => Self::default(),
        }
    }

    /// Sets the level; false when the log belongs to another program.
    pub fn set(&self, level: Level) -> bool {
        self.handle.as_ref().is_some_and(|handle| handle.reload(level.filter()).is_ok())
    }

    /// The current level.
    pub fn level(&self) -> String {
        let current = self.handle.as_ref().and_then(|handle| handle.clone_current());
        current.map_or_else(|| "set by the program the proxy runs in".to_owned(), |filter| filter.to_string())
    }
}

impl fmt::Debug for Logging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Logging({})", self.level())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_read_as_they_print() {
        for level in Level::value_variants() {
            assert_eq!(level.to_string().parse(), Ok(*level));
        }
        assert_eq!("warn".parse(), Ok(Level::Warning));
        assert!("loud".parse::<Level>().is_err());
    }
}
