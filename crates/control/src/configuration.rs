//! The loop that keeps the world up to date: notices, debounce, read, build, publish.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};
use std::{fs, io};

use evenkeel_base::{Diagnostic, Diagnostics, Severity, Sources};
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::proxies::Proxies;
use crate::source::debounce::{Change, Debounce, DebounceOptions};
use crate::source::files::Files;
use crate::source::watch::{Notice, Watch};
use crate::world::World;

/// The file of allotted virtual addresses in the state directory.
const ADDRESS_BOOK_FILE: &str = "addresses.json";

/// Why the configuration cannot be kept.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// A directory is not there.
    #[error("--config {}: {reason}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's word.
        reason: io::Error,
    },
    /// The address book cannot be read.
    #[error("{}: {reason}; remove the file to allot virtual addresses anew", .path.display())]
    AddressBook {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Everything from files to the world.
#[derive(Debug)]
pub struct Configuration {
    files: Files,
    mesh: MeshConfig,
    book: AddressBook,
    book_path: PathBuf,
    /// Findings of the last build, to tell each once.
    told: Diagnostics,
}

impl Configuration {
    /// Checks the directories and reads the address book. `mesh` holds what the files may override.
    pub fn open(roots: Vec<PathBuf>, state: &Path, mesh: MeshConfig) -> Result<Self, ConfigurationError> {
        for path in &roots {
            fs::read_dir(path).map_err(|reason| ConfigurationError::Directory { path: path.clone(), reason })?;
        }
        let book_path = state.join(ADDRESS_BOOK_FILE);
        let book = read_book(&book_path)?;
        Ok(Self { files: Files::new(roots), mesh, book, book_path, told: Diagnostics::new() })
    }

    /// Reads everything for the first time.
    pub fn first(&mut self) -> World {
        let refresh = self.files.refresh(SystemTime::now());
        let (snapshot, diagnostics) = self.build();
        self.tell(refresh.news, &diagnostics);
        self.world(1, Instant::now(), Arc::new(snapshot), diagnostics)
    }

    /// Reads what is new. `None` when nothing is.
    pub fn next(&mut self, last: &World, noticed: Instant) -> Option<World> {
        let refresh = self.files.refresh(SystemTime::now());
        if !refresh.files_changed && refresh.news.is_empty() {
            return None;
        }
        // A comment, or a mistake that is refused, leaves what proxies see as it is.
        let world = match refresh.objects_changed {
            false => {
                let built = self.told.clone();
                self.tell(refresh.news, &built);
                self.world(last.generation, last.noticed, last.snapshot.clone(), built)
            }
            true => {
                let (snapshot, built) = self.build();
                self.tell(refresh.news, &built);
                self.world(last.generation + 1, noticed, Arc::new(snapshot), built)
            }
        };
        Some(world)
    }

    fn build(&mut self) -> (Snapshot, Diagnostics) {
        let before = self.book.clone();
        let objects = self.files.objects();
        let built = evenkeel_model::build(&objects, &self.mesh, &mut self.book);
        if self.book != before
            && let Err(error) = write_book(&self.book_path, &self.book)
        {
            tracing::error!(path = %self.book_path.display(), %error, "virtual addresses cannot be kept for a restart");
        }
        built
    }

    fn tell(&mut self, news: Vec<Diagnostic>, built: &Diagnostics) {
        let sources = self.files.sources();
        let unknown = built.iter().filter(|d| !self.told.iter().any(|told| told == *d));
        for finding in news.iter().chain(unknown) {
            let text = finding.render(&sources, false);
            match finding.severity {
                Severity::Error => tracing::error!("{}", text.trim_end()),
                Severity::Warning => tracing::warn!("{}", text.trim_end()),
                Severity::Info => tracing::debug!("{}", text.trim_end()),
            }
        }
        self.told = built.clone();
    }

    fn world(&self, generation: u64, noticed: Instant, snapshot: Arc<Snapshot>, built: Diagnostics) -> World {
        let mut diagnostics = self.files.diagnostics();
        diagnostics.extend(built);
        diagnostics.sort();
        let sources: Sources = self.files.sources();
        World {
            generation,
            noticed,
            snapshot,
            diagnostics: Arc::new(diagnostics),
            sources: Arc::new(sources),
            refused: self.files.refused(),
        }
    }
}

/// Keeps the world up to date until the watch ends.
pub async fn keep(
    mut configuration: Configuration,
    mut watch: Watch,
    options: DebounceOptions,
    world: watch::Sender<Arc<World>>,
    proxies: Arc<Proxies>,
    metrics: Arc<Metrics>,
) {
    count(&world.borrow(), &metrics);
    let mut debounce = Debounce::new(options);
    let mut noticed = None;
    loop {
        let due = debounce.due();
        tokio::select! {
            notice = watch.next() => {
                let Some(notice) = notice else { return };
                noticed.get_or_insert_with(Instant::now);
                debounce.change(classify(&configuration.files, &notice), Instant::now());
            }
            () = wait_until(due) => {
                debounce.acted();
                let noticed = noticed.take().unwrap_or_else(Instant::now);
                let last = world.borrow().clone();
                if let Some(next) = configuration.next(&last, noticed) {
                    count(&next, &metrics);
                    let pushed = next.generation != last.generation;
                    tracing::info!(generation = next.generation, changed = pushed, "configuration read");
                    world.send_replace(Arc::new(next));
                    if pushed {
                        metrics.config_pushes.fetch_add(1, Relaxed);
                        proxies.publish();
                    }
                }
            }
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn classify(files: &Files, notice: &Notice) -> Change {
    let endpoints = !notice.paths.is_empty() && notice.paths.iter().all(|path| files.holds_only_endpoints(path));
    match (notice.complete, endpoints) {
        (false, _) => Change::Partial,
        (true, true) => Change::Endpoints,
        (true, false) => Change::Complete,
    }
}

fn count(world: &World, metrics: &Metrics) {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    metrics.services.store(number(world.snapshot.services.len()), Relaxed);
    metrics.virtual_services.store(number(world.snapshot.virtual_services.len()), Relaxed);
    metrics.refused_files.store(number(world.refused.len()), Relaxed);
}

fn read_book(path: &Path) -> Result<AddressBook, ConfigurationError> {
    let broken = |reason: String| ConfigurationError::AddressBook { path: path.to_owned(), reason };
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| broken(error.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(AddressBook::default()),
        Err(error) => Err(broken(error.to_string())),
    }
}

/// Written beside and renamed, so that a crash leaves the old file or the new one.
fn write_book(path: &Path, book: &AddressBook) -> io::Result<()> {
    let new = path.with_extension("json.new");
    fs::write(&new, serde_json::to_vec_pretty(book)?)?;
    fs::rename(&new, path)
}
