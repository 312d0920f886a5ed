//! Changes of the directory while the mesh runs: Deployments that are added, removed or scaled, and the control plane's
//! findings about the files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_admin::diagnostics::{self, Finding};
use evenkeel_admin::settle::{Cause, Settled};
use evenkeel_admin::syncz::{self, Syncz};
use evenkeel_api::in_force;
use evenkeel_base::{APPLIED_FROM, Diagnostics};
use evenkeel_control::source::files::Files;
use evenkeel_control::source::watch::Watch;

use crate::addresses::CONTROL_DEBUG;
use crate::client::Call;
use crate::compiled::Compiled;
use crate::mesh::{Mesh, MeshError};
use crate::plan::Plan;
use crate::ui::Events;
use crate::workloads::{Build, Manifest};

/// Quiet time after a file event before files are read, because editors write in several steps.
const SETTLE: Duration = Duration::from_millis(50);
/// Changed objects that are named, in objects.
const MAX_OBJECTS: usize = 5;
/// A ticket that is always served: the page then tells of the last change.
const SETTLED: &str = "/debug/settle?ticket=0";
/// How often the control plane's findings are fetched.
const FINDINGS_PERIOD: Duration = Duration::from_millis(500);

/// A message for the user, or a change for the mesh.
#[derive(Debug)]
pub enum Change {
    /// The Deployments or the ports of Gateways have changed.
    Manifest(Box<Manifest>),
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
    /// Whether a file has changed since files were read.
    stale: bool,
    plan: Arc<Plan>,
    /// Findings about the manifest that have been reported.
    told: BTreeSet<String>,
    /// The text to report next.
    pending: Option<String>,
    compiled: Compiled,
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
        let (_, known) = Manifest::of(&files, plan.state.path());
        let told = known.iter().map(ToString::to_string).collect();
        let mut compiled = Compiled::new(plan.options.compile);
        compiled.take(in_force(files.objects()));
        Ok(Self {
            files,
            watch,
            manifest: plan.manifest.clone(),
            findings,
            ask,
            stale: false,
            plan: plan.clone(),
            told,
            pending: None,
            compiled,
        })
    }

    /// Returns the next change. The future may be dropped without losing one.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(text) = self.pending.take() {
                return Change::Say(text);
            }
            if self.stale {
                while let Ok(Some(_)) = tokio::time::timeout(SETTLE, self.watch.next()).await {}
                self.stale = false;
                if let Some(change) = self.look_again() {
                    return change;
                }
            }
            tokio::select! {
                Some(_) = self.watch.next() => self.stale = true,
                news = self.compiled.news() => {
                    let found = news.found.render(&self.files.sources(&news.found), false);
                    return Change::Say(found + &news.settled.replace(&self.findings.directory, ""));
                }
                _ = self.ask.tick() => {
                    self.compiled.look();
                    if let Some(text) = self.findings.news().await {
                        return Change::Say(text);
                    }
                }
            }
        }
    }

    /// Reads the files as they are now; returns the change for the mesh, or for the screen, if there is one.
    pub fn look_again(&mut self) -> Option<Change> {
        self.files.refresh(SystemTime::now());
        if let Some(said) = self.settle() {
            // Removing applied objects causes another file event.
            return Some(Change::Say(said));
        }
        let (manifest, findings) = Manifest::of(&self.files, self.plan.state.path());
        if findings.has_errors() {
            return Some(Change::Say(findings.render(&self.files.sources(&findings), false)));
        }
        self.note_news(&findings);
        self.compiled.take(in_force(self.files.objects()));
        if manifest == self.manifest {
            return None;
        }
        self.manifest = manifest.clone();
        Some(Change::Manifest(Box::new(manifest)))
    }
}

impl Follower {
    /// Reports once what this machine cannot do.
    fn note_news(&mut self, findings: &Diagnostics) {
        let news: Diagnostics = findings.iter().filter(|one| !self.told.contains(&one.to_string())).cloned().collect();
        self.told = findings.iter().map(ToString::to_string).collect();
        let text = news.render(&self.files.sources(&news), false);
        self.pending = (!news.is_empty()).then_some(text);
    }

    /// Drops applied objects whose file was edited later.
    fn settle(&self) -> Option<String> {
        match self.plan.applied.as_ref()?.settle(&self.files) {
            Ok(forgotten) if forgotten.is_empty() => None,
            Ok(forgotten) => Some(format!(
                "the directory's version of {} now applies: its file was edited after `evenkeel apply` or `delete`",
                forgotten.join(", ")
            )),
            Err(error) => Some(format!("error: cannot read the applied objects: {error}")),
        }
    }
}

/// Applies a change.
pub async fn apply(change: Change, mesh: &mut Mesh, events: &Events) {
    match change {
        Change::Say(text) => events.say(text),
        Change::Manifest(manifest) => {
            for build in new_builds(&mesh.manifest().builds, &manifest.builds) {
                events.say(format!(
                    "{}: the build step `{}` runs at the next start of `evenkeel up`",
                    build.span, build.run
                ));
            }
            mesh.follow_ports(&manifest.gateway_ports, events).await;
            // The present replicas keep running; the next edit tries again.
            if let Err(error) = mesh.follow(&manifest).await {
                events.say(format!("error: {error}"));
            }
        }
    }
}

/// New build steps, which were not run: they belong on the machine, whose network this process has left.
fn new_builds<'a>(known: &'a [Build], builds: &'a [Build]) -> impl Iterator<Item = &'a Build> {
    let is_same = |one: &Build, other: &Build| (&one.run, &one.directory) == (&other.run, &other.directory);
    builds.iter().filter(move |build| !known.iter().any(|known| is_same(known, build)))
}

/// The control plane's findings, each reported once.
#[derive(Debug)]
struct Findings {
    directory: String,
    told: BTreeMap<Key, Finding>,
    refused: BTreeSet<String>,
    /// Resources that proxies refuse, with the number of proxies.
    nacks: BTreeSet<String>,
    /// The last generation that was told to be in force; none before the first look.
    in_force: Option<u64>,
}

/// Identifies a finding even if its line has moved: severity, code, file and message.
type Key = (String, String, String, String);

fn key(finding: &Finding) -> Key {
    (finding.severity.clone(), finding.code.clone(), finding.file.clone(), finding.message.clone())
}

/// The refused resources and the proxies that refuse them.
fn refusals(syncz: &Syncz) -> BTreeSet<String> {
    let mut by: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for proxy in &syncz.proxies {
        for refused in proxy.refused() {
            by.entry(refused.to_string()).or_default().insert(proxy.name());
        }
    }
    let one = |(refused, names): (String, BTreeSet<&str>)| {
        let first = names.first().copied().unwrap_or_default();
        match names.len() {
            1 => format!("{first} refuses {refused}"),
            several => format!("{first} and {} more refuse {refused}", several.saturating_sub(1)),
        }
    };
    by.into_iter().map(one).collect()
}

impl Findings {
    fn new(directory: &Path) -> Self {
        let directory = format!("{}/", directory.display());
        Self { directory, told: BTreeMap::new(), refused: BTreeSet::new(), nacks: BTreeSet::new(), in_force: None }
    }

    /// The changes since the last call, if the control plane answers. Whoever waits may give up at any time and ask again: what is new is
    /// noted only once all answers are there, so that nothing is noted that was not told.
    async fn news(&mut self) -> Option<String> {
        self.news_from(async |path| Some(Call::get("localhost", path).send(None, CONTROL_DEBUG).await.ok()?.body)).await
    }

    /// `ask`: the control plane's answer for a path.
    async fn news_from(&mut self, ask: impl AsyncFn(&'static str) -> Option<String>) -> Option<String> {
        let page = serde_json::from_str(&ask(diagnostics::PATH).await?).ok()?;
        let status = ask(syncz::PATH).await.and_then(|body| serde_json::from_str(&body).ok());
        let settled = ask(SETTLED).await.and_then(|body| serde_json::from_str(&body).ok());
        self.take(page, status, settled.as_ref())
    }

    fn take(&mut self, page: diagnostics::Page, status: Option<Syncz>, settled: Option<&Settled>) -> Option<String> {
        let mut text = self.compare(page).unwrap_or_default();
        text.extend(status.and_then(|status| self.compare_proxies(refusals(&status))));
        text.extend(settled.and_then(|settled| self.settled(settled)));
        (!text.is_empty()).then_some(text)
    }

    /// Tells once that a change of the user's files is in force everywhere.
    fn settled(&mut self, settled: &Settled) -> Option<String> {
        let Settled { read, generation, behind, refusing, change, .. } = settled;
        if !read || !behind.is_empty() || self.in_force == Some(*generation) {
            return None;
        }
        // What runs at the start is no news, nor is what `up` itself writes about replicas.
        self.in_force.replace(*generation)?;
        let is_users = |cause: &&Cause| cause.file.starts_with(&self.directory) || cause.file.starts_with(APPLIED_FROM);
        let mut files: Vec<&str> = change.causes.iter().filter(is_users).map(|cause| self.short(&cause.file)).collect();
        files.dedup();
        let what = match files.as_slice() {
            [] => return None,
            [file] => (*file).to_owned(),
            [first, others @ ..] => format!("{first} and {} more files", others.len()),
        };
        let objects = change.causes.iter().filter(is_users).map(|cause| cause.object.clone());
        let objects = objects.take(MAX_OBJECTS).collect::<Vec<_>>().join(", ");
        let (all, refusing) = (change.proxies, refusing.len());
        let after = match change.after_ms {
            Some(ms) => format!("after {ms:.0} ms ({} had something to change)", change.changed),
            None => "none had anything to change".to_owned(),
        };
        Some(format!("{what} in force at {} of {all} proxies, {after}: {objects}\n", all.saturating_sub(refusing)))
    }

    fn compare_proxies(&mut self, refusals: BTreeSet<String>) -> Option<String> {
        let mut text = String::new();
        for refusal in refusals.difference(&self.nacks) {
            text.push_str(&format!("error: {refusal}\n"));
        }
        if refusals.is_empty() && !self.nacks.is_empty() {
            text.push_str("all proxies accept their configuration again\n");
        }
        self.nacks = refusals;
        (!text.is_empty()).then_some(text)
    }

    fn compare(&mut self, page: diagnostics::Page) -> Option<String> {
        // Findings of severity info are only shown by `evenkeel validate`.
        let matters = page.diagnostics.into_iter().filter(|finding| finding.severity != "info");
        let (errors, warnings): (Vec<_>, Vec<_>) = matters.partition(|finding| finding.severity == "error");
        let mut text = String::new();
        // Errors come last, where users look first.
        for finding in warnings.iter().chain(&errors).filter(|finding| !self.told.contains_key(&key(finding))) {
            text.push_str(finding.rendered.trim_end());
            text.push_str("\n\n");
        }
        let present: BTreeMap<Key, Finding> =
            warnings.into_iter().chain(errors).map(|finding| (key(&finding), finding)).collect();
        for (_, gone) in self.told.iter().filter(|(key, gone)| gone.severity != "error" && !present.contains_key(*key))
        {
            text.push_str(&format!("resolved: {} ({}:{})\n", gone.message, self.short(&gone.file), gone.line));
        }
        for file in page.refused_files.difference(&self.refused) {
            let rest = if page.never_accepted.contains(file) {
                "only its objects without mistakes apply"
            } else {
                "its previous content stays in force"
            };
            text.push_str(&format!("{} is refused; {rest}\n", self.short(file)));
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

    fn finding(severity: &str, text: &str) -> Finding {
        let text = text.to_owned();
        let (code, file) = ("code".to_owned(), "/app/routes.yaml".to_owned());
        let severity = severity.to_owned();
        Finding { severity, code, message: text.clone(), file, line: 3, rendered: text, ..Finding::default() }
    }

    #[test]
    fn a_build_step_is_new_by_what_it_does_and_where_and_not_by_its_line() {
        let build = |line: u32, run: &str, directory: &str| Build {
            directory: directory.into(),
            run: run.to_owned(),
            span: evenkeel_base::Span::at("evenkeel.yaml", line, 5),
        };
        let known = [build(3, "make", "/a"), build(4, "make", "/b")];
        let now = [build(9, "make", "/a"), build(10, "make all", "/b"), build(11, "make", "/c")];
        let lines: Vec<u32> = new_builds(&known, &now).map(|build| build.span.line).collect();
        assert_eq!(lines, [10, 11]);
    }

    /// The supervisor drops the wait for news whenever something else happens.
    #[tokio::test]
    async fn a_finding_is_told_though_the_wait_for_it_was_given_up() {
        let page = r#"{"refused_files": [], "diagnostics": [{"severity": "warning", "code": "foreign-kind", "message": "m",
            "file": "/app/a.yaml", "line": 1, "rendered": "warning[foreign-kind]: m"}]}"#;
        let mut findings = Findings::new(Path::new("/app"));
        for silent in [diagnostics::PATH, syncz::PATH, SETTLED] {
            let ask = async |path| if path == silent { std::future::pending().await } else { Some(page.to_owned()) };
            let given_up = tokio::time::timeout(Duration::ZERO, findings.news_from(ask)).await;
            assert!(given_up.is_err(), "{silent}");
        }
        let told = findings.news_from(async |path| (path == diagnostics::PATH).then(|| page.to_owned())).await;
        assert_eq!(told.as_deref(), Some("warning[foreign-kind]: m\n\n"));
    }

    #[test]
    fn errors_come_last_and_what_is_settled_is_said() {
        let mut findings = Findings::new(Path::new("/app"));
        let mut check = |never: &[&str], found: &[(&str, &str)], expected: Option<&str>| {
            let files: BTreeSet<String> = never.iter().map(|file| (*file).to_owned()).collect();
            let diagnostics = found.iter().map(|(severity, text)| finding(severity, text)).collect();
            let page =
                diagnostics::Page { generation: 1, refused_files: files.clone(), never_accepted: files, diagnostics };
            assert_eq!(findings.compare(page).as_deref(), expected);
        };
        let told = "warning\n\nerror\n\nroutes.yaml is refused; only its objects without mistakes apply\n";
        check(&["/app/routes.yaml"], &[("error", "error"), ("warning", "warning"), ("info", "info")], Some(told));
        check(&["/app/routes.yaml"], &[("error", "error")], Some("resolved: warning (routes.yaml:3)\n"));
        check(&[], &[], Some("routes.yaml is accepted again\n"));
    }

    #[test]
    fn what_proxies_refuse_is_told_once_for_all_of_them() {
        let mut findings = Findings::new(Path::new("/app"));
        let mut check = |names: &[&str], expected: Option<&str>| {
            let proxy = |name: &&str| {
                let nack = serde_json::json!({"message": "no such file", "resources": [{"name": "0.0.0.0_8443", "origin": "gateway.yaml:3:1"}]});
                serde_json::json!({
                    "proxy": format!("router~10.0.0.1~{name}.shop~x"),
                    "types": [{"type": "LDS", "nack": nack}, {"type": "CDS", "nack": null}],
                })
            };
            let page = serde_json::json!({"proxies": names.iter().map(proxy).collect::<Vec<_>>()});
            let status: Syncz = serde_json::from_value(page).expect("a status");
            assert_eq!(findings.compare_proxies(refusals(&status)).as_deref(), expected);
        };
        let refused = "LDS 0.0.0.0_8443 (from gateway.yaml:3:1): no such file\n";
        check(&[], None);
        check(&["gw-0"], Some(&format!("error: gw-0.shop refuses {refused}")));
        check(&["gw-0"], None);
        check(&["gw-0", "gw-1"], Some(&format!("error: gw-0.shop and 1 more refuse {refused}")));
        check(&[], Some("all proxies accept their configuration again\n"));
    }

    #[test]
    fn a_change_that_is_in_force_is_told_once() {
        let mut findings = Findings::new(Path::new("/app"));
        let mut check =
            |generation: u64, file: &str, (behind, after): (&[&str], Option<f64>), expected: Option<&str>| {
                let page = serde_json::json!({
                    "read": true, "generation": generation, "behind": behind, "refusing": [],
                    "change": {
                        "causes": [{"object": "VirtualService shop/web", "file": file}],
                        "proxies": 5, "changed": 2, "after_ms": after,
                    },
                });
                let settled = serde_json::from_value(page).expect("the page");
                assert_eq!(findings.settled(&settled).as_deref(), expected, "{generation}");
            };
        let told = "routing.yaml in force at 5 of 5 proxies, after 6 ms (2 had something to change): VirtualService shop/web\n";
        check(1, "/app/routing.yaml", (&[], Some(6.2)), None);
        check(2, "/app/routing.yaml", (&["web-0"], Some(6.2)), None);
        check(2, "/app/routing.yaml", (&[], Some(6.2)), Some(told));
        check(2, "/app/routing.yaml", (&[], Some(6.2)), None);
        check(3, "/state/runtime/web-0.yaml", (&[], Some(6.2)), None);
        let nobody = "routing.yaml in force at 5 of 5 proxies, none had anything to change: VirtualService shop/web\n";
        check(4, "/app/routing.yaml", (&[], None), Some(nobody));
    }

    #[test]
    fn a_finding_is_told_once_and_its_end_too() {
        let mut findings = Findings::new(Path::new("/app"));
        let mut check = |refused: &[&str], rendered: &[&str], expected: Option<&str>| {
            let diagnostics = rendered.iter().map(|text| finding("error", text)).collect();
            let refused_files = refused.iter().map(|file| (*file).to_owned()).collect();
            let page = diagnostics::Page { refused_files, diagnostics, ..diagnostics::Page::default() };
            assert_eq!(findings.compare(page).as_deref(), expected);
        };
        let told = "error: no such field\n --> routes.yaml:3:5\n\nroutes.yaml is refused; its previous content stays in force\n";
        let rendered = "error: no such field\n --> routes.yaml:3:5";
        check(&[], &[], None);
        check(&["/app/routes.yaml"], &[rendered], Some(told));
        check(&["/app/routes.yaml"], &[rendered], None);
        check(&[], &[], Some("routes.yaml is accepted again\n"));
    }
}
