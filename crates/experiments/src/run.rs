//! An experiment from its plan to its result.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use evenkeel_process::resources::raise_open_files;

use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::load::{Load, Turn};
use crate::manifests::Programs;
use crate::progress::Progress;
use crate::record::{Missing, Record, Sample};
use crate::setup::{Proxy, Setup};
use crate::testbed::Testbed;

/// Namespaces that run at the same time. The others follow, so that an experiment needs a bounded amount of memory.
const SETUPS_AT_ONCE: usize = 12;
/// Load on each namespace before it is measured.
const WARM_UP_SECONDS: f64 = 0.3;
/// How long the routes of a namespace may take to arrive.
const ROUTES_LIMIT: Duration = Duration::from_secs(30);
/// How long to wait before the next attempt.
const RETRY: Duration = Duration::from_millis(200);

/// Where an experiment runs and writes.
pub struct Session<'a> {
    /// The programs.
    pub programs: Programs<'a>,
    /// The result's file.
    pub file: PathBuf,
    /// Ends the session.
    pub interrupt: &'a Interrupt,
}

impl Session<'_> {
    /// Measures what is missing in the result. After each sample the file is written.
    ///
    /// # Errors
    /// The mesh does not start, the file cannot be written, or a signal comes.
    pub fn complete(&self, record: &mut Record) -> Result<(), BenchError> {
        // Where the limit cannot be raised, a load says how many connections it could open.
        let _ = raise_open_files();
        self.leave_out_envoy(record);
        let missing = record.missing();
        let mut progress = Progress::new(record.experiment.name(), missing.len() as u64);
        for group in groups(record, &missing) {
            self.measure(record, &group, &mut progress).map_err(|error| self.with_file(error))?;
        }
        record.write(&self.file)
    }

    /// Says in the error how to go on.
    fn with_file(&self, error: BenchError) -> BenchError {
        match error {
            BenchError::Signal => BenchError::Interrupted(self.file.clone()),
            other => other,
        }
    }

    fn leave_out_envoy(&self, record: &mut Record) {
        if self.programs.envoy.is_some() {
            return;
        }
        for measured in record.cells.iter_mut().filter(|measured| measured.cell.setup.has(Proxy::Envoy)) {
            measured.absent = Some("there is no Envoy on PATH; name one: --envoy PATH".to_owned());
        }
    }

    /// Measures samples whose namespaces run at the same time.
    fn measure(&self, record: &mut Record, group: &Group, progress: &mut Progress) -> Result<(), BenchError> {
        progress.say(&format!("starting {} namespaces", group.setups.len()));
        let testbed = Testbed::start(&group.setups, &self.programs, self.interrupt)?;
        for missing in &group.missing {
            let cell = &record.cells[missing.cell].cell;
            if record.cells[missing.cell].absent.is_none() && !group.is_warm(record, missing) {
                let turn = Turn { testbed: &testbed, setup: &cell.setup, load: &cell.load, seconds: WARM_UP_SECONDS };
                self.warm_up(&turn)?;
            }
        }
        let mut round = None;
        for missing in &group.missing {
            if round != Some(missing.round) {
                round = Some(missing.round);
                let (number, of) = (missing.round + 1, record.rounds);
                progress.say(&format!("round {number} of {of}, {}", progress.remaining()));
            }
            self.sample(record, *missing, &testbed, progress)?;
            progress.advance();
        }
        Ok(())
    }

    fn sample(
        &self,
        record: &mut Record,
        missing: Missing,
        testbed: &Testbed<'_>,
        progress: &Progress,
    ) -> Result<(), BenchError> {
        let seconds = record.seconds;
        let measured = &mut record.cells[missing.cell];
        if measured.absent.is_some() {
            return Ok(());
        }
        let turn = Turn { testbed, setup: &measured.cell.setup, load: &measured.cell.load, seconds };
        match turn.run() {
            Ok(values) => measured.samples.push(Sample { round: missing.round, values }),
            Err(BenchError::Load(reason)) => {
                progress.say(&format!("{}, {}: {reason}", measured.cell.table, measured.cell.row));
                measured.absent = Some(reason);
            }
            Err(other) => return Err(other),
        }
        record.write(&self.file)
    }

    /// Calls until the routes have arrived, and opens connections. A load that goes on failing is reported with its sample.
    fn warm_up(&self, turn: &Turn<'_>) -> Result<(), BenchError> {
        let load = Load { connections: turn.load.connections.min(10), hot_streams: 0, ..turn.load.clone() };
        let turn = Turn { load: &load, ..*turn };
        let begin = Instant::now();
        loop {
            match turn.run() {
                Ok(_) => return Ok(()),
                Err(BenchError::Load(_)) if begin.elapsed() < ROUTES_LIMIT => self.interrupt.wait(RETRY)?,
                Err(BenchError::Load(_)) => return Ok(()),
                Err(other) => return Err(other),
            }
        }
    }
}

/// Samples whose namespaces run at the same time.
#[derive(Debug)]
struct Group {
    setups: Vec<Setup>,
    missing: Vec<Missing>,
}

impl Group {
    /// Whether an earlier sample of the group warms this one's cell up.
    fn is_warm(&self, record: &Record, missing: &Missing) -> bool {
        let same = |other: &&Missing| {
            let (one, two) = (&record.cells[other.cell].cell, &record.cells[missing.cell].cell);
            one.setup == two.setup && one.load.entry == two.load.entry
        };
        self.missing.iter().find(same) != Some(missing)
    }
}

/// Divides the samples, in order, so that no group has too many namespaces.
fn groups(record: &Record, missing: &[Missing]) -> Vec<Group> {
    let mut setups: Vec<&Setup> = Vec::new();
    for sample in missing {
        let setup = &record.cells[sample.cell].cell.setup;
        if !setups.contains(&setup) {
            setups.push(setup);
        }
    }
    let group = |setups: &[&Setup]| Group {
        missing: missing
            .iter()
            .filter(|sample| setups.contains(&&record.cells[sample.cell].cell.setup))
            .copied()
            .collect(),
        setups: setups.iter().map(|setup| (*setup).clone()).collect(),
    };
    setups.chunks(SETUPS_AT_ONCE).map(group).collect()
}

/// The Envoy to use: the one that was named, or the one on PATH.
///
/// # Errors
/// The named one is not there.
pub fn find_envoy(chosen: Option<&Path>) -> Result<Option<PathBuf>, BenchError> {
    if let Some(path) = chosen {
        return crate::testbed::absolute(path).map(Some);
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join("envoy")).find(|path| path.is_file());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency;
    use crate::plan::Extent;
    use crate::record::Machine;

    #[test]
    fn a_group_has_all_rounds_of_its_namespaces() {
        let plan = latency::plan(Extent { quick: true, full: false, cores: 2 });
        let record = Record::new(plan, Machine::default(), String::new());
        let missing = record.missing();
        let groups = groups(&record, &missing);
        assert!(groups.iter().all(|group| group.setups.len() <= SETUPS_AT_ONCE));
        assert_eq!(groups.iter().map(|group| group.missing.len()).sum::<usize>(), missing.len());
        let first = &groups[0];
        let setup = |sample: &Missing| &record.cells[sample.cell].cell.setup;
        assert!(first.missing.iter().all(|sample| first.setups.contains(setup(sample))));
        assert!(!first.is_warm(&record, &first.missing[0]));
        let again = first.missing.iter().find(|sample| sample.round == 1).expect("two rounds");
        assert!(first.is_warm(&record, again));
    }
}
