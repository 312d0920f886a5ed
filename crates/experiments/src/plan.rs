//! The cells of an experiment, and how much of each is measured.

use serde::{Deserialize, Serialize};

use crate::load::Load;
use crate::setup::Setup;

/// The experiments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Experiment {
    /// Added latency, and chains of services.
    Latency,
    /// Requests per second and CPU time by sidecars and workers.
    Throughput,
    /// Connections and requests by worker.
    Balance,
    /// The cost of statistics.
    Telemetry,
}

impl Experiment {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Throughput => "throughput",
            Self::Balance => "balance",
            Self::Telemetry => "telemetry",
        }
    }

    /// The keys of the metrics that its text tables show; pages and files have all.
    pub fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Latency => &["mean_ms", "stddev_ms", "min_ms", "max_ms", "p50_ms", "p90_ms", "p99_ms", "cpu_us"],
            Self::Throughput => &[
                "requests_per_s",
                "cpu_us",
                "cpu_us_client",
                "cpu_us_server",
                "p50_ms",
                "p99_ms",
                "busy_max_mean_client",
                "busy_max_mean_server",
            ],
            Self::Balance => &[
                "connections_max_mean_client",
                "connections_max_mean_server",
                "connections_most_client",
                "connections_most_server",
                "requests_max_mean_client",
                "requests_max_mean_server",
                "busy_max_mean_client",
                "busy_max_mean_server",
            ],
            Self::Telemetry => &["cpu_us", "cpu_us_client", "cpu_us_server", "mean_ms", "p50_ms", "p99_ms"],
        }
    }
}

/// One row of a table: a load on a setup.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cell {
    /// The table that it is in.
    pub table: String,
    /// Its name there, which no other cell of the table has.
    pub row: String,
    /// The mesh.
    pub setup: Setup,
    /// The load.
    pub load: Load,
}

impl Cell {
    /// Creates a cell.
    pub fn new(table: &str, row: impl Into<String>, setup: Setup, load: Load) -> Self {
        Self { table: table.to_owned(), row: row.into(), setup, load }
    }
}

/// All that is measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Which experiment it is.
    pub experiment: Experiment,
    /// Its cells.
    pub cells: Vec<Cell>,
    /// How often each is measured.
    pub rounds: usize,
    /// How long each time.
    pub seconds: f64,
    /// What cannot be measured on this machine, and what rows leave out, for readers.
    pub notes: Vec<String>,
}

/// Settings of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Extent {
    /// Fewer cells, each for a shorter time.
    pub quick: bool,
    /// Every combination of settings.
    pub full: bool,
    /// Cores of this machine.
    pub cores: u32,
}
