//! The process's own log: to standard error, at a level that can change while it runs.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use clap::ValueEnum;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload;
use tracing_subscriber::util::SubscriberInitExt as _;

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
    /// The least that is logged.
    pub fn filter(self) -> LevelFilter {
        match self {
            Self::Trace => LevelFilter::TRACE,
            Self::Debug => LevelFilter::DEBUG,
            Self::Info => LevelFilter::INFO,
            Self::Warning => LevelFilter::WARN,
            Self::Error | Self::Critical => LevelFilter::ERROR,
            Self::Off => LevelFilter::OFF,
        }
    }

    fn place(self) -> usize {
        Self::value_variants().iter().position(|level| *level == self).unwrap_or_default()
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

/// The log of the program in which the proxy runs, if it has one whose level can change.
static OF_PROGRAM: OnceLock<Logging> = OnceLock::new();

/// Handle that changes the log level while the process runs.
#[derive(Clone, Default)]
pub struct Logging {
    log: Option<Arc<Log>>,
}

struct Log {
    set: Box<dyn Fn(Level) -> bool + Send + Sync>,
    /// The level's place among all levels.
    current: AtomicUsize,
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
            Ok(()) => Self::new(level, move |level| handle.reload(level.filter()).is_ok()),
            Err(_) => Self::default(),
        }
    }

    /// A log at this level, and what sets another.
    pub fn new(level: Level, set: impl Fn(Level) -> bool + Send + Sync + 'static) -> Self {
        Self { log: Some(Arc::new(Log { set: Box::new(set), current: AtomicUsize::new(level.place()) })) }
    }

    /// Makes this the log of the program, for the proxy that runs in it. The first call counts.
    pub fn share(self) {
        // A second log cannot be installed either.
        let _ = OF_PROGRAM.set(self);
    }

    /// The log of the program in which the proxy runs; without effect if it has shared none.
    pub fn of_program() -> Self {
        OF_PROGRAM.get().cloned().unwrap_or_default()
    }

    /// Sets the level; false when the log belongs to another program.
    pub fn set(&self, level: Level) -> bool {
        let Some(log) = &self.log else { return false };
        let is_set = (log.set)(level);
        if is_set {
            log.current.store(level.place(), Ordering::Relaxed);
        }
        is_set
    }

    /// The current level.
    pub fn level(&self) -> String {
        let place = self.log.as_ref().map(|log| log.current.load(Ordering::Relaxed));
        let level = place.and_then(|place| Level::value_variants().get(place));
        level.map_or_else(|| "set by the program the proxy runs in".to_owned(), Level::to_string)
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

    #[test]
    fn the_level_is_the_last_one_that_was_set() {
        let logging = Logging::new(Level::Info, |level| level != Level::Off);
        assert!(logging.set(Level::Debug) && !logging.set(Level::Off));
        assert_eq!(logging.level(), "debug");
        assert!(!Logging::default().set(Level::Debug));
    }
}
