//! The configuration directories in the running control plane: which files have changed, and when they are read.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

use evenkeel_base::{Diagnostics, SourceId, Sources};
use evenkeel_model::{Source, SourceEvent};

use super::debounce::Change;
use super::files::{Difference, Files, RECALLED};
use super::watch::{FileState, Notice, Watch};
use super::{Content, EntryName, Extent, LiveSource, PastContent, PastContents, Refresh, Refused, SourceFuture};
use crate::memory;
use crate::noticed::Noticed;

/// How long files that change while they are read are read again, at most: a writer who never pauses must not keep the change
/// from proxies.
const MAX_READING: Duration = Duration::from_millis(500);

/// Why the configuration directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// A directory does not exist or cannot be read.
    #[error("--config {}: {reason}", .path.display())]
    Unreadable {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        reason: io::Error,
    },
    /// The watch on the directories.
    #[error("cannot watch the configuration directories: {0}")]
    Watch(#[from] notify::Error),
}

/// The files of the configuration directories.
#[derive(Debug)]
pub struct Directories {
    pub(crate) files: Files,
    watch: Watch,
    endpoints: Changed,
    others: Changed,
    /// Notices that arrived while files were read, and wait.
    waiting: Vec<Notice>,
}

/// Changes that were noticed and are not read yet.
#[derive(Debug, Default)]
struct Changed {
    /// The files, and whether a notice said that the file may be gone.
    paths: BTreeMap<PathBuf, bool>,
    /// Whether anything may have changed, not only these files.
    anywhere: bool,
    /// When the first of these changes was noticed.
    noticed: Option<Noticed>,
}

impl Changed {
    fn add(&mut self, notice: Notice) {
        self.anywhere |= notice.paths.is_empty();
        for path in notice.paths {
            *self.paths.entry(path).or_default() |= notice.state == FileState::Gone;
        }
        self.noticed.get_or_insert_with(Noticed::now);
    }

    fn join(&mut self, other: Self) {
        other.paths.into_iter().for_each(|(path, gone)| *self.paths.entry(path).or_default() |= gone);
        self.anywhere |= other.anywhere;
        self.noticed = self.noticed.into_iter().chain(other.noticed).min_by_key(|noticed| noticed.instant);
    }
}

impl Directories {
    /// The files of these directories. The watch begins now, before anything is read, so that no change is missed.
    pub fn watch(roots: Vec<PathBuf>) -> Result<Self, DirectoryError> {
        for path in &roots {
            fs::read_dir(path).map_err(|reason| DirectoryError::Unreadable { path: path.clone(), reason })?;
        }
        let watch = Watch::new(&roots)?;
        let (endpoints, others) = (Changed::default(), Changed::default());
        Ok(Self { files: Files::new(roots), watch, endpoints, others, waiting: Vec::new() })
    }

    /// Records a notice, and returns the change that it stands for. `None`: no change, as when the kernel reports one renamed
    /// file twice.
    fn note(&mut self, notice: Notice) -> Option<Change> {
        let change = classify(&mut self.files, &notice)?;
        match change {
            Change::Endpoints | Change::EndpointsGone => self.endpoints.add(notice),
            Change::Complete | Change::Partial => self.others.add(notice),
        }
        Some(change)
    }

    /// Reads the files that have changed, as they were at one moment: files that change during the reading are read as well.
    /// Otherwise a route might be read before, and the service that it named until then after, the two were replaced.
    async fn read(&mut self, changed: Changed, extent: Extent) -> Refresh {
        let mut refresh = self.read_files(&changed);
        refresh.noticed = changed.noticed;
        // Changes of endpoints do not take other files along, as these may be half written.
        if extent == Extent::Endpoints {
            return refresh;
        }
        let begun = Instant::now();
        loop {
            let is_late = begun.elapsed() >= MAX_READING;
            let notices = std::mem::take(&mut self.waiting).into_iter().chain(self.watch.caught_up().await);
            let (read, kept): (Vec<_>, _) = notices.partition(|notice: &Notice| match notice.state {
                FileState::Complete => true,
                FileState::Partial => false,
                // A service that came and went meanwhile is unknown. The route to it, which is known, is read as well.
                FileState::Gone => refresh.missed && notice.has_gone(),
            });
            self.waiting = kept;
            if read.is_empty() {
                return refresh;
            }
            if is_late {
                tracing::warn!("files change without a pause; what was read of them is not of one moment");
                self.waiting.extend(read);
                return refresh;
            }
            let mut more = Changed::default();
            read.into_iter().for_each(|notice| more.add(notice));
            refresh.join(self.read_files(&more));
        }
    }

    fn read_files(&mut self, changed: &Changed) -> Refresh {
        let _apart = memory::apart();
        if changed.anywhere {
            self.files.refresh(SystemTime::now())
        } else {
            self.files.refresh_only(&changed.paths, SystemTime::now())
        }
    }
}

impl Source for Directories {
    fn id(&self) -> &SourceId {
        self.files.id()
    }

    fn events(&mut self) -> Vec<SourceEvent> {
        self.files.events()
    }

    fn findings(&self) -> Diagnostics {
        self.files.findings()
    }
}

impl LiveSource for Directories {
    fn first(&mut self) -> Refresh {
        self.files.refresh(SystemTime::now())
    }

    fn changed(&mut self) -> SourceFuture<'_, Option<Change>> {
        Box::pin(async {
            loop {
                let notice = match self.waiting.pop() {
                    Some(notice) => notice,
                    None => self.watch.next().await?,
                };
                if let Some(change) = self.note(notice) {
                    return Some(change);
                }
            }
        })
    }

    fn refresh(&mut self, extent: Extent) -> SourceFuture<'_, Refresh> {
        let mut changed = std::mem::take(&mut self.endpoints);
        if extent != Extent::Endpoints {
            changed.join(std::mem::take(&mut self.others));
        }
        changed.anywhere |= extent == Extent::All;
        Box::pin(self.read(changed, extent))
    }

    fn renew(&mut self) -> SourceEvent {
        self.files.renew()
    }

    fn refused(&self) -> Vec<Refused> {
        let never = self.files.never_accepted();
        let refused = self.files.refused().into_iter().map(|path| Refused {
            never_accepted: never.contains(&path),
            entry: EntryName::File(Path::new(&*path).into()),
        });
        refused.collect()
    }

    fn texts(&self, findings: &Diagnostics, texts: &mut Sources) {
        self.files.add_texts(findings, texts);
    }

    fn content(&self, entry: &EntryName) -> Option<Content> {
        match entry {
            EntryName::File(path) => self.files.text(path).map(|text| Content::Text(text.to_owned())),
            EntryName::Object(_) => None,
        }
    }

    fn contents(&self) -> Vec<(EntryName, PastContent)> {
        let text = |text: &str| Content::Text(text.to_owned());
        let one = |(path, good, present): (&Path, Option<&str>, &str)| {
            (EntryName::File(path.into()), PastContent { good: good.map(text), present: text(present) })
        };
        self.files.texts().map(one).collect()
    }

    fn recall(&mut self, past: &mut dyn PastContents, result: &mut Refresh) {
        let refused: Vec<PathBuf> = self.files.never_accepted().iter().map(|path| PathBuf::from(&**path)).collect();
        if refused.is_empty() {
            return;
        }
        for (path, texts) in past.files(&|path| refused.iter().any(|refused| path.starts_with(refused))) {
            _ = texts.iter().rev().any(|text| self.files.recall(&path, text, result));
        }
        result.news.extend(self.files.diagnostics().into_iter().filter(|finding| finding.code == RECALLED));
    }
}

fn classify(files: &mut Files, notice: &Notice) -> Option<Change> {
    // The file is read to classify the notice, and its content is kept.
    let _apart = memory::apart();
    let gone = |files: &Files, path: &PathBuf| files.holds_only_endpoints(path) && !path.exists();
    if notice.paths.is_empty() {
        return Some(Change::Partial);
    }
    if notice.state != FileState::Complete {
        return Some(if notice.paths.iter().all(|path| gone(files, path)) {
            Change::EndpointsGone
        } else {
            Change::Partial
        });
    }
    let differences =
        notice.paths.iter().map(|path| if gone(files, path) { Difference::Endpoints } else { files.difference(path) });
    let differences: Vec<Difference> = differences.filter(|difference| *difference != Difference::None).collect();
    match differences.iter().all(|difference| *difference == Difference::Endpoints) {
        _ if differences.is_empty() => None,
        true => Some(Change::Endpoints),
        false => Some(Change::Complete),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A route and its service that were written and removed while other files were read: only the route has been read.
    #[tokio::test]
    async fn a_route_goes_with_a_service_that_nobody_has_read() {
        let folder = tempfile::tempdir().expect("a directory");
        let config = folder.path().join("config");
        fs::create_dir(&config).expect("a directory");
        let file = |name: &str| config.join(name);
        let write = |name: &str| {
            let object =
                format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: 80}}]}}\n");
            fs::write(folder.path().join("new"), object).expect("a file");
            fs::rename(folder.path().join("new"), file(&format!("{name}.yaml"))).expect("a renamed file");
        };
        let remove = |name: &str| fs::remove_file(file(name)).expect("the file");
        let mut directories = Directories::watch(vec![config.clone()]).expect("a directory");
        directories.first();
        let mut check = async |changed: &str, read: &[&str], waiting: &[&str]| {
            directories.others.add(Notice { paths: vec![file(changed)], state: FileState::Complete });
            directories.refresh(Extent::Noticed).await;
            let names: Vec<String> = directories.files.objects().iter().map(|object| object.name.to_string()).collect();
            let left: Vec<PathBuf> = directories.waiting.drain(..).flat_map(|notice| notice.paths).collect();
            assert_eq!(
                (names, left),
                (read.iter().map(|&name| name.into()).collect(), waiting.iter().map(|w| file(w)).collect())
            );
        };
        write("other");
        write("route");
        check("route.yaml", &["other", "route"], &[]).await;
        write("service");
        remove("route.yaml");
        remove("service.yaml");
        check("service.yaml", &["other"], &[]).await;
        // Any other removal waits, as the file may be about to come back.
        write("more");
        remove("other.yaml");
        check("more.yaml", &["more", "other"], &["other.yaml"]).await;
    }
}
