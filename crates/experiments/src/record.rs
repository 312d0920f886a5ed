//! The result of an experiment as a file: written anew after each measurement, read to resume, compare and draw.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use evenkeel_measure::Spread;
use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::metric::Values;
use crate::plan::{Cell, Experiment, Plan};

/// The format of the file; other ones are refused.
pub const SCHEMA: u32 = 1;

/// The result of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The format.
    pub schema: u32,
    /// Which experiment.
    pub experiment: Experiment,
    /// When it began, RFC 3339.
    pub date: String,
    /// Where.
    pub machine: Machine,
    /// Rounds that were asked for.
    pub rounds: usize,
    /// Seconds of each measurement.
    pub seconds: f64,
    /// What readers have to know.
    pub notes: Vec<String>,
    /// The cells, in the order of the tables.
    pub cells: Vec<Measured>,
}

/// The machine and the programs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor.
    pub cpu: String,
    /// The cores that may be used.
    pub cores: u32,
    /// The kernel's release.
    pub kernel: String,
    /// The load average at the start, which shows whether others used the machine.
    pub load_average: String,
    /// The measured program: its version, size and date.
    pub evenkeel: String,
    /// The Envoy; `None`: there is none.
    pub envoy: Option<String>,
}

/// A cell and its samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What is measured.
    #[serde(flatten)]
    pub cell: Cell,
    /// One for each round.
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// Why it was not measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absent: Option<String>,
}

/// One measurement of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The round, from 0.
    pub round: usize,
    /// The values, by the key of their metric.
    pub values: Values,
}

impl Measured {
    /// The values of a metric, by round.
    pub fn series(&self, key: &str) -> Vec<f64> {
        self.samples.iter().filter_map(|sample| sample.values.get(key).copied()).collect()
    }

    /// Median, least and greatest of a metric.
    pub fn spread(&self, key: &str) -> Option<Spread> {
        Spread::of(self.series(key))
    }
}

impl Record {
    /// A result without samples.
    pub fn new(plan: Plan, machine: Machine, date: String) -> Self {
        let measured = |cell| Measured { cell, samples: Vec::new(), absent: None };
        Self {
            schema: SCHEMA,
            experiment: plan.experiment,
            date,
            machine,
            rounds: plan.rounds,
            seconds: plan.seconds,
            notes: plan.notes,
            cells: plan.cells.into_iter().map(measured).collect(),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or is no result of this format.
    pub fn read(file: &Path) -> Result<Self, BenchError> {
        let text = fs::read(file).map_err(BenchError::io(file.display().to_string()))?;
        let refused = |reason: String| BenchError::Record { file: file.to_owned(), reason };
        let value: serde_json::Value = serde_json::from_slice(&text)
            .map_err(|error| refused(format!("no result of `evenkeel bench`: {error}")))?;
        match value.get("schema").and_then(serde_json::Value::as_u64) {
            Some(schema) if schema == u64::from(SCHEMA) => {}
            Some(other) => {
                return Err(refused(format!("its format is {other}, and this program reads {SCHEMA}; measure again")));
            }
            None => return Err(refused("no result of `evenkeel bench`: `schema` is missing".to_owned())),
        }
        serde_json::from_value(value).map_err(|error| refused(format!("no result of `evenkeel bench`: {error}")))
    }

    /// Writes the file in one step, so that an interruption leaves the former or the new one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, file: &Path) -> Result<(), BenchError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| BenchError::Usage(error.to_string()))?;
        replace(file, &format!("{text}\n"))
    }

    /// The names of the tables, in order.
    pub fn tables(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for measured in &self.cells {
            if !names.contains(&measured.cell.table.as_str()) {
                names.push(&measured.cell.table);
            }
        }
        names
    }

    /// The cells of a table.
    pub fn rows<'a>(&'a self, table: &'a str) -> impl Iterator<Item = &'a Measured> {
        self.cells.iter().filter(move |measured| measured.cell.table == table)
    }

    /// The samples that are missing, round by round, so that all cells of a round are near each other in time.
    pub fn missing(&self) -> Vec<Missing> {
        let rounds = 0..self.rounds;
        let all = rounds.flat_map(|round| (0..self.cells.len()).map(move |cell| Missing { cell, round }));
        all.filter(|missing| {
            let measured = &self.cells[missing.cell];
            measured.absent.is_none() && measured.samples.iter().all(|sample| sample.round != missing.round)
        })
        .collect()
    }
}

/// A sample that is still to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Index of the cell.
    pub cell: usize,
    /// The round.
    pub round: usize,
}

/// Writes a file beside its place and renames it.
///
/// # Errors
/// It cannot be written.
pub fn replace(file: &Path, text: &str) -> Result<(), BenchError> {
    let failed = || BenchError::io(file.display().to_string());
    let folder =
        file.parent().filter(|folder| !folder.as_os_str().is_empty()).map_or(PathBuf::from("."), PathBuf::from);
    let mut temporary = tempfile::NamedTempFile::new_in(folder).map_err(failed())?;
    temporary.write_all(text.as_bytes()).map_err(failed())?;
    temporary.persist(file).map_err(|error| failed()(error.error))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency;
    use crate::plan::Extent;

    fn record() -> Record {
        let plan = latency::plan(Extent { quick: true, full: false, cores: 2 });
        Record::new(plan, Machine::default(), "2026-12-01T00:00:00Z".to_owned())
    }

    #[test]
    fn what_is_missing_is_measured_when_resumed() {
        let folder = tempfile::tempdir().expect("a directory");
        let file = folder.path().join("result.json");
        let mut record = record();
        let cells = record.cells.len();
        assert_eq!(record.missing().len(), cells * record.rounds);
        record.cells[0].samples.push(Sample { round: 0, values: Values::from([("p50_ms".to_owned(), 1.5)]) });
        record.cells[1].absent = Some("no Envoy".to_owned());
        record.write(&file).expect("it can be written");
        let resumed = Record::read(&file).expect("it can be read");
        assert_eq!(resumed, record);
        let missing = resumed.missing();
        assert_eq!(missing.len(), (cells - 1) * record.rounds - 1);
        assert_eq!(missing[0], Missing { cell: 2, round: 0 });
        assert!(missing.windows(2).all(|pair| pair[0].round <= pair[1].round), "{missing:?}");
        assert_eq!(fs::read_dir(folder.path()).expect("a directory").count(), 1);
    }

    #[test]
    fn other_files_are_refused() {
        let folder = tempfile::tempdir().expect("a directory");
        let check = |text: &str, expected: &str| {
            let file = folder.path().join("result.json");
            fs::write(&file, text).expect("it can be written");
            let error = Record::read(&file).expect_err("no result").to_string();
            assert!(error.contains(expected), "{error}");
        };
        check("", "no result");
        check("{\"RunType\": \"HTTP\"}", "`schema` is missing");
        check("{\"schema\": 2}", "its format is 2, and this program reads 1");
        check("{\"schema\": 1}", "missing field");
    }
}
