//! Checks in the background what proxies would reject in the files, whenever the files or the certificates they name change.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use evenkeel_api::{Object, Resource};
use evenkeel_base::{Diagnostic, Diagnostics};
use tokio::task::JoinHandle;

/// The last findings, and the check in progress.
#[derive(Debug)]
pub(crate) struct Compiled {
    compile: fn(&[Object]) -> Diagnostics,
    objects: Arc<Vec<Object>>,
    running: Option<JoinHandle<Diagnostics>>,
    /// Whether another check is needed.
    stale: bool,
    /// Findings that have been reported, by their text.
    told: BTreeMap<String, Diagnostic>,
    certificates: Certificates,
}

/// The difference from the findings reported before.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FindingsDiff {
    /// New findings.
    pub(crate) found: Diagnostics,
    /// Resolved findings, a line for each.
    pub(crate) settled: String,
}

impl Compiled {
    /// Makes a checker without findings; [`Compiled::take`] begins the first check.
    pub(crate) fn new(compile: fn(&[Object]) -> Diagnostics) -> Self {
        let certificates = Certificates::default();
        Self { compile, objects: Arc::default(), running: None, stale: false, told: BTreeMap::new(), certificates }
    }

    /// Sets the objects to check. Must be called within a runtime.
    pub(crate) fn take(&mut self, objects: Vec<Object>) {
        self.certificates = Certificates::of(&objects);
        self.objects = Arc::new(objects);
        self.begin();
    }

    /// Checks whether certificate files have been replaced; call it periodically within a runtime.
    pub(crate) fn look(&mut self) {
        if self.certificates.have_changed() {
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.stale = self.running.is_some();
        if !self.stale {
            let (compile, objects) = (self.compile, self.objects.clone());
            self.running = Some(tokio::task::spawn_blocking(move || compile(&objects)));
        }
    }

    /// Completes when there is something to report. The future may be dropped without losing anything.
    pub(crate) async fn news(&mut self) -> FindingsDiff {
        loop {
            let Some(running) = &mut self.running else { return std::future::pending().await };
            let found = running.await;
            self.running = None;
            if std::mem::take(&mut self.stale) {
                self.begin();
                continue;
            }
            // If a check panics, the reported findings stay as they are.
            let news = found.map(|found| self.compare(found)).unwrap_or_default();
            if news != FindingsDiff::default() {
                return news;
            }
        }
    }

    fn compare(&mut self, found: Diagnostics) -> FindingsDiff {
        let present: BTreeMap<String, Diagnostic> =
            found.into_iter().map(|finding| (finding.to_string(), finding)).collect();
        let before = std::mem::replace(&mut self.told, present);
        let mut news = FindingsDiff::default();
        for (_, finding) in self.told.iter().filter(|(text, _)| !before.contains_key(*text)) {
            news.found.push(finding.clone());
        }
        for (_, gone) in before.iter().filter(|(text, _)| !self.told.contains_key(*text)) {
            news.settled.push_str(&format!("resolved: {}: {}\n", gone.span, gone.message));
        }
        news
    }
}

/// The certificates, keys and roots that Gateways name.
#[derive(Debug, Default)]
struct Certificates {
    files: BTreeSet<PathBuf>,
    seen: Vec<Option<Stamp>>,
    /// Their state when a change was noticed at the last check: after a certificate its key is replaced, too.
    doubtful: Option<Vec<Option<Stamp>>>,
}

/// The metadata that tells one version of a file from the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    /// Device and inode.
    file: (u64, u64),
}

impl Certificates {
    fn of(objects: &[Object]) -> Self {
        let mut files = BTreeSet::new();
        for object in objects {
            let Resource::Gateway(gateway) = &object.resource else { continue };
            for tls in gateway.spec.servers.iter().filter_map(|server| server.tls.as_ref()) {
                let named = [&tls.server_certificate, &tls.private_key, &tls.ca_certificates];
                files.extend(named.into_iter().flatten().map(PathBuf::from));
            }
        }
        let seen = files.iter().map(|file| stamp(file)).collect();
        Self { files, seen, doubtful: None }
    }

    /// Whether they have changed, and have not changed again since the last check.
    fn have_changed(&mut self) -> bool {
        let now: Vec<Option<Stamp>> = self.files.iter().map(|file| stamp(file)).collect();
        if now == self.seen {
            self.doubtful = None;
            return false;
        }
        if self.doubtful.as_ref() == Some(&now) {
            (self.seen, self.doubtful) = (now, None);
            return true;
        }
        self.doubtful = Some(now);
        false
    }
}

fn stamp(file: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(file).ok()?;
    Some(Stamp { modified: found.modified().ok(), bytes: found.len(), file: (found.dev(), found.ino()) })
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Span;

    use super::*;

    const GATEWAY: &str = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec:\n  \
         selector: {istio: ingressgateway}\n  servers:\n    - port: {number: 443, name: https, protocol: HTTPS}\n      hosts: ['*']\n      \
         tls: {mode: SIMPLE, serverCertificate: FOLDER/a.pem, privateKey: FOLDER/a.key}\n";

    /// What a proxy would say whose certificate has to begin with `good`.
    fn compile(objects: &[Object]) -> Diagnostics {
        let files = Certificates::of(objects).files;
        let bad = files.iter().filter(|file| !std::fs::read_to_string(file).is_ok_and(|text| text.starts_with("good")));
        let finding = |file: &PathBuf| {
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            Diagnostic::error("refused-by-proxy", Span::at("gateway.yaml", 9, 7), format!("bad {name}"))
        };
        bad.map(finding).collect()
    }

    #[tokio::test]
    async fn what_proxies_would_refuse_is_told_once_and_so_is_a_bad_certificate_in_place_of_a_good_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("our own folder");
        write("a.pem", "good one");
        let text = GATEWAY.replace("FOLDER", &folder.path().display().to_string());
        let (objects, found) = evenkeel_api::load(&[("gateway.yaml".into(), text.into())]);
        assert!(!found.has_errors(), "{found}");
        let mut compiled = Compiled::new(compile);
        compiled.take(objects);
        let said =
            |news: FindingsDiff| (news.found.iter().map(|one| one.message.clone()).collect::<Vec<_>>(), news.settled);
        assert_eq!(said(compiled.news().await), (vec!["bad a.key".to_owned()], String::new()));
        let settled = |name: &str| format!("resolved: gateway.yaml:9:7: bad {name}\n");
        for (name, text, found, gone) in [
            ("a.key", "good key", None, Some("a.key")),
            ("a.pem", "spoilt", Some("bad a.pem"), None),
            ("a.pem", "good again", None, Some("a.pem")),
        ] {
            write(name, text);
            // At the first check it may be half of a change.
            compiled.look();
            assert!(compiled.running.is_none());
            compiled.look();
            let expected = (found.map(str::to_owned).into_iter().collect(), gone.map(settled).unwrap_or_default());
            assert_eq!(said(compiled.news().await), expected, "{name}: {text}");
            compiled.look();
            assert!(compiled.running.is_none());
        }
    }
}
