//! Named checks of a cluster, before and after the installation. They judge a [`Picture`] and ask nobody, so each can be tested by
//! objects alone.

mod control_plane;
mod data_plane;
mod definitions;
mod kubernetes;
mod namespaces;
mod others;
mod picture;
mod webhooks;

pub use definitions::BINDING;
pub use picture::{Answer, NEEDED, Needed, Picture, RIGHTS, Right};

use serde::Serialize;

/// When a check is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Before the installation.
    Before,
    /// After it.
    After,
}

/// What a check has found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "verdict", content = "reason")]
pub enum Verdict {
    /// It is as it should be.
    Passed,
    /// There is nothing to check, or it could not be looked at.
    Skipped(String),
    /// It works, but not as well as it should.
    Warning(String),
    /// It does not work.
    Failed(String),
}

/// One check.
pub(crate) struct Check {
    group: &'static str,
    name: &'static str,
    /// Whether it is made before the installation; all others only after it.
    is_early: bool,
    /// The page that helps.
    hint: &'static str,
    /// An error: it could not be looked at.
    run: fn(&Picture) -> Result<Verdict, String>,
}

/// The outcome of a check.
#[derive(Debug, Clone, Serialize)]
pub struct Outcome {
    /// Its group.
    pub group: &'static str,
    /// Its name.
    pub name: String,
    /// What it has found.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The page that helps.
    pub hint: &'static str,
}

/// Makes all checks of a stage, group by group.
pub fn run(stage: Stage, picture: &Picture) -> Vec<Outcome> {
    let groups = [
        kubernetes::CHECKS,
        definitions::CHECKS,
        others::CHECKS,
        control_plane::CHECKS,
        webhooks::CHECKS,
        namespaces::CHECKS,
        data_plane::CHECKS,
    ];
    let is_due = |check: &&Check| check.is_early || stage == Stage::After;
    let checked = groups.iter().copied().flatten().filter(is_due).map(|check| Outcome {
        group: check.group,
        name: check.name.to_owned(),
        verdict: (check.run)(picture).unwrap_or_else(Verdict::Skipped),
        hint: check.hint,
    });
    let rights = if stage == Stage::Before { kubernetes::rights(picture) } else { Vec::new() };
    checked.chain(rights).collect()
}

/// Passed if nothing is listed, otherwise what `judged` makes of the list.
fn none_of(listed: Vec<String>, judged: fn(String) -> Verdict) -> Verdict {
    /// Maximum number of names in one line.
    const SHOWN: usize = 5;
    match listed.len() {
        0 => Verdict::Passed,
        1..=SHOWN => judged(listed.join("; ")),
        all => judged(format!("{}; and {} more", listed[..SHOWN].join("; "), all - SHOWN)),
    }
}

/// Passed if it holds, otherwise failed for this reason.
fn must(holds: bool, reason: impl FnOnce() -> String) -> Verdict {
    if holds { Verdict::Passed } else { Verdict::Failed(reason()) }
}

/// Passed if it holds, otherwise a warning.
fn should(holds: bool, reason: impl FnOnce() -> String) -> Verdict {
    if holds { Verdict::Passed } else { Verdict::Warning(reason()) }
}

/// Major and minor version in a text such as `v1.37.1`.
fn minor_version(text: &str) -> Option<[u32; 2]> {
    let mut numbers = text.trim_start_matches('v').split(['.', '+', '-']);
    Some([numbers.next()?.parse().ok()?, numbers.next()?.trim_end_matches('+').parse().ok()?])
}
