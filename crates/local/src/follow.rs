//! Edits while it runs: Deployments that come, go or scale, and what the control plane says of the files.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_control::source::files::Files;
use evenkeel_control::source::watch::Watch;
use serde::Deserialize;

use crate::client::Call;
use crate::mesh::{Mesh, MeshError};
use crate::plan::Plan;
use crate::ports::{self, GatewayPort};
use crate::programs::CONTROL_DEBUG;
use crate::ui::Events;
use crate::workloads::Manifest;

/// Quiet after a notice before files are read: editors write in several steps.
const SETTLE: Duration = Duration::from_millis(50);
/// How often the control plane is asked for its findings.
const FINDINGS_PERIOD: Duration = Duration::from_millis(500);

/// Something the user has to know, or the mesh to do.
#[derive(Debug)]
pub enum Change {
    /// Other Deployments, or other ports of Gateways.
    Manifest(Manifest),
    /// Text for the screen.
    Say(String),
}

/// Follows the directory.
#[derive(Debug)]
pub struct Follower {
    files: Files,
    watch: Watch,
    manifest: Manifest,
    findings: Findings,
    ask: tokio::time::Interval,
    /// A file has changed since they were read.
    stale: bool,
    plan: Arc<Plan>,
}

impl Follower {
    /// Starts from what already runs.
    pub fn new(plan: &Arc<Plan>) -> Result<Self, MeshError> {
        let roots = plan.configuration();
        let watch = Watch::new(&roots).map_err(|error| MeshError::Io {
            what: "cannot watch the directory",
            source: std::io::Error::other(error),
        })?;
        let mut files = Files::new(roots);
        files.refresh(SystemTime::now());
        let findings = Findings::new(&plan.directory);
        let ask = tokio::time::interval(FINDINGS_PERIOD);
        Ok(Self { files, watch, manifest: plan.manifest.clone(), findings, ask, stale: false, plan: plan.clone() })
    }

    /// The next change. Nothing is lost when this is dropped while it waits.
    pub async fn next(&mut self) -> Change {
        loop {
            if self.stale {
                while let Ok(Some(_)) = tokio::time::timeout(SETTLE, self.watch.next()).await {}
                self.stale = false;
                if let Some(change) = self.look_again() {
                    return change;
                }
            }
            tokio::select! {
                Some(_) = self.watch.next() => self.stale = true,
                _ = self.ask.tick() => {
                    if let Some(text) = self.findings.news().await {
                        return Change::Say(text);
                    }
                }
            }
        }
    }

    fn look_again(&mut self) -> Option<Change> {
        self.files.refresh(SystemTime::now());
        if let Some(said) = self.settle() {
            // What is forgotten is noticed in turn.
            return Some(Change::Say(said));
        }
        let (manifest, findings) = Manifest::of(&self.files);
        if findings.has_errors() {
            return Some(Change::Say(findings.render(&self.files.sources(&findings), false)));
        }
        if manifest == self.manifest {
            return None;
        }
        self.manifest = manifest.clone();
        Some(Change::Manifest(manifest))
    }
}

impl Follower {
    /// An edit is later than what was applied before it.
    fn settle(&self) -> Option<String> {
        match self.plan.applied.as_ref()?.settle(&self.files) {
            Ok(forgotten) if forgotten.is_empty() => None,
            Ok(forgotten) => Some(format!(
                "{} in force as the directory says now: it was edited after `evenkeel apply` or `delete`",
                forgotten.join(", ")
            )),
            Err(error) => Some(format!("error: what was applied cannot be looked through: {error}")),
        }
    }
}

/// Does what a change asks for.
pub async fn apply(change: Change, mesh: &mut Mesh, events: &Events) {
    match change {
        Change::Say(text) => events.say(text),
        Change::Manifest(manifest) => {
            for port in unopened(&manifest.gateway_ports, mesh.open_ports()) {
                events.say(format!("{}: port {} opens when this is started again", port.span, port.number));
            }
            if let Some(conflict) = ports::conflict(&manifest.gateway_ports) {
                events.say(format!("error: {conflict}"));
            }
            // What runs goes on running; the next edit tries again.
            if let Err(error) = mesh.follow(&manifest).await {
                events.say(format!("error: {error}"));
            }
        }
    }
}

/// Host sockets can only be opened before the host's network is left.
fn unopened(wanted: &[GatewayPort], open: Vec<u16>) -> impl Iterator<Item = &GatewayPort> {
    wanted.iter().filter(move |port| !open.contains(&port.listener()))
}

/// The control plane's findings, each told once.
#[derive(Debug)]
struct Findings {
    directory: String,
    told: BTreeSet<String>,
    refused: BTreeSet<String>,
}

#[derive(Debug, Deserialize)]
struct Page {
    refused_files: BTreeSet<String>,
    diagnostics: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    severity: String,
    rendered: String,
}

impl Findings {
    fn new(directory: &Path) -> Self {
        Self { directory: format!("{}/", directory.display()), told: BTreeSet::new(), refused: BTreeSet::new() }
    }

    /// What is new since the last time, if the control plane answers.
    async fn news(&mut self) -> Option<String> {
        let answer = Call::get("localhost", "/debug/diagnostics").send(None, CONTROL_DEBUG).await.ok()?;
        let page: Page = serde_json::from_str(&answer.body).ok()?;
        self.compare(page)
    }

    fn compare(&mut self, page: Page) -> Option<String> {
        // What is merely good to know is for `evenkeel validate`.
        let matters = page.diagnostics.into_iter().filter(|finding| finding.severity != "info");
        let present: BTreeSet<String> = matters.map(|finding| finding.rendered).collect();
        let mut text = String::new();
        for finding in present.difference(&self.told) {
            text.push_str(finding.trim_end());
            text.push_str("\n\n");
        }
        for file in page.refused_files.difference(&self.refused) {
            text.push_str(&format!("{} is refused; what it said before stays in force\n", self.short(file)));
        }
        for file in self.refused.difference(&page.refused_files) {
            text.push_str(&format!("{} is accepted again\n", self.short(file)));
        }
        self.told = present;
        self.refused = page.refused_files;
        (!text.is_empty()).then_some(text)
    }

    fn short<'a>(&self, file: &'a str) -> &'a str {
        file.strip_prefix(&self.directory).unwrap_or(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_told_once_and_its_end_too() {
        let mut findings = Findings::new(Path::new("/app"));
        let mut check = |refused: &[&str], rendered: &[&str], expected: Option<&str>| {
            let finding = |text: &&str| Finding { severity: "error".to_owned(), rendered: (*text).to_owned() };
            let diagnostics = rendered.iter().map(finding).collect();
            let page = Page { refused_files: refused.iter().map(|file| (*file).to_owned()).collect(), diagnostics };
            assert_eq!(findings.compare(page).as_deref(), expected);
        };
        let told = "error: no such field\n --> routes.yaml:3:5\n\nroutes.yaml is refused; what it said before stays in force\n";
        let rendered = "error: no such field\n --> routes.yaml:3:5";
        check(&[], &[], None);
        check(&["/app/routes.yaml"], &[rendered], Some(told));
        check(&["/app/routes.yaml"], &[rendered], None);
        check(&[], &[], Some("routes.yaml is accepted again\n"));
    }
}
