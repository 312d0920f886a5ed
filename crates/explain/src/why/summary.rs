//! The slowest and the failed requests of the last minutes, grouped by cause.

use evenkeel_filters::explain::cause::{Cause, Fault};
use serde::Serialize;
use serde_json::Value;

use super::Why;
use super::sentence::written;
use crate::columns::columns_within;

/// Requests of one cause at one place.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Group {
    /// The cause.
    pub cause: Cause,
    /// Whose fault it was.
    pub fault: Fault,
    /// The workload whose proxy decided, as `NAME.NAMESPACE`.
    pub at: String,
    /// The cluster that was called.
    pub cluster: String,
    /// How many of the requests that the proxies keep.
    pub count: usize,
    /// Whether they failed; otherwise they were slow.
    pub failed: bool,
    /// The longest duration of one, in microseconds.
    pub longest_us: u64,
    /// The id of the latest one.
    pub latest: String,
    /// What happened to it.
    pub sentence: String,
}

/// All groups, the largest first, failures before slow requests.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// The groups.
    pub groups: Vec<Group>,
    /// Requests that the proxies keep, of those minutes.
    pub requests: usize,
    /// Proxies that have answered.
    pub proxies: usize,
    /// Further notes.
    pub notes: Vec<String>,
}

impl Summary {
    /// Groups the requests that failed, or that took at least as long as `slow_us` microseconds.
    pub fn new(all: Vec<Why>, slow_us: u64) -> Self {
        let mut summary = Self { requests: all.len(), ..Self::default() };
        let mut judged: Vec<Why> = all.into_iter().filter(|why| why.failed || why.duration_us >= slow_us).collect();
        judged.sort_by_key(|why| std::cmp::Reverse(why.started_us));
        for why in judged {
            summary.add(why);
        }
        summary.groups.sort_by_key(|group| (!group.failed, std::cmp::Reverse(group.count)));
        summary
    }

    fn add(&mut self, why: Why) {
        let Some(decided) = why.hops.get(why.decided_at) else { return };
        let at = format!("{}.{}", decided.proxy.workload, decided.proxy.namespace);
        let cluster = decided.request.cluster.clone().unwrap_or_default();
        let same = |group: &&mut Group| {
            group.cause == why.cause && group.failed == why.failed && group.at == at && group.cluster == cluster
        };
        if let Some(group) = self.groups.iter_mut().find(same) {
            group.count += 1;
            group.longest_us = group.longest_us.max(why.duration_us);
            return;
        }
        self.groups.push(Group {
            cause: why.cause,
            fault: why.fault,
            at,
            cluster,
            count: 1,
            failed: why.failed,
            longest_us: why.duration_us,
            latest: why.id,
            sentence: why.sentence,
        });
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// For people. `width`: that of the terminal, in columns.
    pub fn to_text(&self, width: usize) -> String {
        let mut out = match self.groups.len() {
            0 => format!("none of {} requests of {} proxies failed or was slow\n", self.requests, self.proxies),
            _ => String::new(),
        };
        let mut rows = vec![["COUNT", "CAUSE", "AT", "LONGEST"].map(str::to_owned).to_vec()];
        for group in &self.groups {
            let longest = written(group.longest_us);
            let (count, title) = (group.count.to_string(), group.cause.title().to_owned());
            rows.push(vec![count, title, group.at.clone(), longest]);
        }
        if !self.groups.is_empty() {
            out.push_str(&columns_within(&rows, 2, width));
        }
        for group in &self.groups {
            out.push_str(&format!("\n{}:\n  {}\n", group.latest, group.sentence));
        }
        for note in &self.notes {
            out.push_str(&format!("\nnote: {note}\n"));
        }
        out
    }
}
