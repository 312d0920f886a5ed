//! `evenkeel check`: named checks, group by group.

use std::io::Write;
use std::time::{Duration, Instant};

use evenkeel_install::checks::{self, Outcome, Stage, Verdict};

use super::{Target, connect, observe};
use crate::formats::Output;

pub const EXAMPLES: &str = "\
Exits with 0 if no check has failed, otherwise with 1.

Examples:
  evenkeel check --pre              # may I install here, and will it work?
  evenkeel check --wait 120         # does it work? Try again for two minutes
  evenkeel check -o json";

/// How long to wait before the checks are made again.
const INTERVAL: Duration = Duration::from_secs(2);

/// Flags of `evenkeel check`.
#[derive(Debug, clap::Args)]
pub struct CheckArguments {
    /// Check before the installation: versions, rights, what is there already.
    #[arg(long)]
    pre: bool,

    /// Make the checks again until none fails, for at most so many seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=3600))]
    wait: u64,

    #[command(flatten)]
    target: Target,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

pub async fn run(arguments: &CheckArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let cluster = connect(&arguments.target.cluster).await?;
    let stage = if arguments.pre { Stage::Before } else { Stage::After };
    let until = Instant::now() + Duration::from_secs(arguments.wait);
    loop {
        let outcomes = checks::run(stage, &observe::picture(&cluster, &arguments.target, stage).await);
        let failed = outcomes.iter().any(has_failed);
        if failed && Instant::now() < until {
            tokio::time::sleep(INTERVAL).await;
            continue;
        }
        match arguments.output {
            Output::Text => write!(out, "{}", text(&outcomes))?,
            Output::Json => writeln!(out, "{:#}", serde_json::json!({"success": !failed, "checks": outcomes}))?,
        }
        return Ok(u8::from(failed));
    }
}

/// Whether a check has failed.
pub fn has_failed(outcome: &Outcome) -> bool {
    matches!(outcome.verdict, Verdict::Failed(_))
}

/// The outcomes as text: a line for each, and the page that helps with each failure.
pub fn text(outcomes: &[Outcome]) -> String {
    let mut text = String::new();
    let mut group = "";
    for outcome in outcomes {
        if outcome.group != group {
            group = outcome.group;
            text += &format!("{}{group}\n", if text.is_empty() { "" } else { "\n" });
        }
        text += &line(outcome);
    }
    let count = |wanted: fn(&Verdict) -> bool| outcomes.iter().filter(|outcome| wanted(&outcome.verdict)).count();
    let (passed, failed) = (count(|v| *v == Verdict::Passed), count(|v| matches!(v, Verdict::Failed(_))));
    let (warned, skipped) = (count(|v| matches!(v, Verdict::Warning(_))), count(|v| matches!(v, Verdict::Skipped(_))));
    text + &format!("\n{passed} passed, {failed} failed, {warned} warnings, {skipped} skipped\n")
}

fn line(outcome: &Outcome) -> String {
    let Outcome { name, hint, .. } = outcome;
    match &outcome.verdict {
        Verdict::Passed => format!("  ok    {name}\n"),
        Verdict::Skipped(reason) => format!("  skip  {name}: {reason}\n"),
        Verdict::Warning(reason) => format!("  warn  {name}: {reason}\n        see {hint}\n"),
        Verdict::Failed(reason) => format!("  FAIL  {name}: {reason}\n        see {hint}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_are_shown_by_group_with_a_hint() {
        let outcome = |group: &'static str, verdict: Verdict| Outcome {
            group,
            name: "it works".to_owned(),
            verdict,
            hint: "docs/install.md",
        };
        let shown = text(&[
            outcome("a", Verdict::Passed),
            outcome("a", Verdict::Failed("no".to_owned())),
            outcome("b", Verdict::Skipped("why".to_owned())),
        ]);
        let expected = "a\n  ok    it works\n  FAIL  it works: no\n        see docs/install.md\n\nb\n  skip  it works: why\n\n\
                        1 passed, 1 failed, 0 warnings, 1 skipped\n";
        assert_eq!(shown, expected);
    }
}
