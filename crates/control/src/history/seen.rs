//! The generation that a proxy was last seen to run, and the control plane that counted it.

use std::collections::BTreeMap;

use evenkeel_base::suggest;

use super::error::HistoryError;
use super::log::{Record, Run, Writer};

/// What a proxy was seen to run, and which control plane counted the generation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen<'s> {
    pub run: Run,
    pub writer: &'s Writer,
}

/// Returns what a proxy was last seen to run by the time `at`, by any control plane.
pub(super) fn last_run<'s>(segments: &'s [Vec<Record>], wanted: &str, at: u64) -> Result<Seen<'s>, HistoryError> {
    let mut known: BTreeMap<&str, Seen<'_>> = BTreeMap::new();
    for records in segments {
        let Some(Record::Checkpoint(checkpoint)) = records.first() else { continue };
        for (node, run) in last_runs(records, at) {
            if known.get(node).is_none_or(|known| known.run.since <= run.since) {
                known.insert(node, Seen { run, writer: &checkpoint.writer });
            }
        }
    }
    let last = |is_meant: &dyn Fn(&Run) -> bool| {
        known.values().filter(|seen| is_meant(&seen.run)).max_by_key(|seen| seen.run.since)
    };
    let found = last(&|run| run.is(wanted)).or_else(|| last(&|run| run.is_replica_of(wanted)));
    let found = found.or_else(|| last(&|run| run.begins_with(wanted)));
    found.cloned().ok_or_else(|| {
        let names: Vec<String> = known.values().map(|seen| seen.run.name()).collect();
        let known = suggest::instead(wanted, names.iter().map(String::as_str));
        HistoryError::NoProxy { wanted: wanted.to_owned(), known }
    })
}

/// Returns what each proxy that a segment names was last seen to run by the time `at`.
fn last_runs(records: &[Record], at: u64) -> impl Iterator<Item = (&str, Run)> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut runs: Vec<(&str, Option<Run>)> = Vec::new();
    for record in records {
        let named = match record {
            Record::Checkpoint(checkpoint) => checkpoint.proxies.as_slice(),
            Record::Run { proxies, .. } => proxies,
            Record::Change(_) => &[],
            Record::Moved { at: since, generation, proxies } => {
                let rows = proxies.iter().filter(|_| *since <= at);
                for number in rows.flat_map(|(first, last)| *first..=*last) {
                    let run = usize::try_from(number).ok().and_then(|number| runs.get_mut(number)?.1.as_mut());
                    if let Some(run) = run {
                        (run.generation, run.since) = (*generation, *since);
                    }
                }
                continue;
            }
        };
        for run in named {
            let number = *numbers.entry(&run.node).or_insert_with(|| {
                runs.push((&run.node, None));
                runs.len() - 1
            });
            if let Some((_, last)) = runs.get_mut(number).filter(|_| run.since <= at) {
                *last = Some(run.clone());
            }
        }
    }
    runs.into_iter().filter_map(|(node, run)| Some((node, run?)))
}
