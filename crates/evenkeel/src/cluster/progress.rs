//! Waits until an installation works, and says what does not, with the reasons of Pods and Events.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::bail;
use evenkeel_install::checks::{self, Outcome, Stage, Verdict};
use evenkeel_k8s::cluster::{Cluster, ObjectKind, Selection};
use serde_json::Value;

use super::object::text_of;
use super::{Target, check, observe};

/// Groups of checks that have to pass.
const GROUPS: [&str; 3] = ["definitions", "control plane", "webhooks"];
/// A check that has to pass although it is only a warning later: the control plane has seen its webhook answer.
const ANSWERS: &str = "validation answers";
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of Events that are shown.
const MAX_EVENTS: usize = 10;

/// Waits until all checks of the control plane pass.
pub async fn until_it_works(
    cluster: &Cluster,
    target: &Target,
    limit: Duration,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let until = Instant::now() + limit;
    let mut shown = String::new();
    loop {
        let mut waiting = checks::run(Stage::After, &observe::picture(cluster, target, Stage::After).await);
        waiting.retain(is_missing);
        let Some(first) = waiting.first() else { return Ok(()) };
        if Instant::now() >= until {
            let events = events(cluster, target).await;
            bail!("it does not work after {} s:\n{}{events}", limit.as_secs(), check::text(&waiting));
        }
        let now = format!("waiting: {}", first.name);
        if now != shown {
            writeln!(out, "{now}")?;
            shown = now;
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

fn is_missing(outcome: &Outcome) -> bool {
    let is_answer = outcome.name == ANSWERS && matches!(outcome.verdict, Verdict::Warning(_));
    GROUPS.contains(&outcome.group) && (check::has_failed(outcome) || is_answer)
}

/// The last warnings of the namespace, as text.
async fn events(cluster: &Cluster, target: &Target) -> String {
    let kind = ObjectKind { api_version: "v1", kind: "Event" };
    let selection = Selection { namespace: Some(&target.namespace), labels: "" };
    let mut events: Vec<Value> = cluster.list(kind, selection).await.unwrap_or_default();
    events.retain(|event| event["type"] == "Warning");
    events.sort_by_key(|event| text_of(event, "/lastTimestamp").to_owned());
    let lines = events.iter().rev().take(MAX_EVENTS).map(|event| {
        let object = format!("{} {}", text_of(event, "/involvedObject/kind"), text_of(event, "/involvedObject/name"));
        format!("  {object}: {}: {}\n", text_of(event, "/reason"), text_of(event, "/message"))
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\nEvents of {}:\n{lines}", target.namespace) }
}
