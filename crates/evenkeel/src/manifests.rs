//! Reads the manifests that a command is given: files, directories, standard input.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use evenkeel_api::{Object, STANDARD_INPUT, in_force};
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Sources, Span};
use evenkeel_control::configuration::ADDRESS_BOOK;
use evenkeel_control::jwks::{self, settings::JwksSettings};
use evenkeel_control::registration;
use evenkeel_control::source::files::{self, Files};
use evenkeel_explain::World;
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::reading;
use evenkeel_k8s::source::Scope;
use evenkeel_local::applied::Applied;
use evenkeel_local::cleanup::StateDir;
use evenkeel_model::{AddressBook, MeshConfig, PublishedPort};
use evenkeel_store::Store;

/// Everything that was read.
#[derive(Debug, Default)]
pub struct Manifests {
    /// The objects, including stand-ins for refused ones.
    pub objects: Vec<Object>,
    /// The files, by the names that positions have.
    pub texts: BTreeMap<Arc<str>, Arc<str>>,
    /// Findings about single files.
    pub diagnostics: Diagnostics,
    /// Virtual addresses that a running mesh has assigned.
    pub addresses: AddressBook,
    /// The control plane's options.
    pub mesh: MeshConfig,
    /// The ports of this machine that lead to the running mesh's gateways.
    published: Vec<PublishedPort>,
}

/// Returns the mesh options that a control plane reads from the environment: who fetches the keys of issuers.
pub fn mesh() -> anyhow::Result<MeshConfig> {
    let fetching = JwksSettings::from_env(|name| std::env::var(name).ok())?;
    Ok(MeshConfig { jwks_fetching: fetching.by, ..MeshConfig::default() })
}

impl Manifests {
    /// Reads files, directories, and standard input (`-`).
    pub fn read(paths: &[PathBuf]) -> Self {
        let mut all = Self::default();
        for path in paths {
            if path.is_dir() { all.directory(path) } else { all.file(path) }
        }
        all
    }

    /// Reads what commands are given, or else what the running mesh runs.
    pub fn given_or_running(paths: &[PathBuf], state: Option<&Path>) -> anyhow::Result<Self> {
        if paths.is_empty() { Self::running(state) } else { Ok(Self { mesh: mesh()?, ..Self::read(paths) }) }
    }

    /// Reads what commands are given: files, or a cluster; or else what the running mesh runs, or what the cluster has that kubectl would
    /// use.
    pub fn of_cluster_or_files(
        cluster: &ClusterOptions,
        paths: &[PathBuf],
        state: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let is_usual = || paths.is_empty() && state.is_none() && cluster.is_named() && !Self::is_running(None);
        if !cluster.is_given() && !is_usual() {
            return Self::given_or_running(paths, state);
        }
        anyhow::ensure!(paths.is_empty(), "name either files or a cluster (--kubeconfig, --context)");
        Self::of_cluster(cluster)
    }

    /// Reads the objects of a cluster from its API server.
    pub fn of_cluster(cluster: &ClusterOptions) -> anyhow::Result<Self> {
        tokio::runtime::Builder::new_multi_thread().enable_all().build()?.block_on(Self::read_cluster(cluster))
    }

    /// Reads them on an event loop that runs already.
    pub async fn read_cluster(cluster: &ClusterOptions) -> anyhow::Result<Self> {
        let mesh = mesh()?;
        let scope = Scope::all(&mesh.root_namespace);
        let read = reading::read(cluster, &scope).await?;
        for (kind, reason) in &read.left_out {
            // Nothing can be done if standard error is gone.
            let _ = writeln!(io::stderr(), "warning: {kind} is left out, because RBAC forbids to read it{reason}");
        }
        Ok(Self { objects: read.objects, diagnostics: read.findings, mesh, ..Self::default() })
    }

    /// Whether a mesh runs on this machine with this state directory.
    pub fn is_running(state: Option<&Path>) -> bool {
        let path = state.map_or_else(StateDir::default_path, Path::to_path_buf);
        StateDir::new(&path).is_ok_and(|state| state.running().is_some())
    }

    /// The mesh of these objects.
    pub fn into_world(self) -> World {
        World::of_mesh(self.objects, self.texts, self.addresses, self.mesh).with_published(self.published)
    }

    /// Reads what the running mesh runs: its directory, applied objects, its replicas, and what its control plane has added.
    fn running(state: Option<&Path>) -> anyhow::Result<Self> {
        let state = StateDir::new(&state.map_or_else(StateDir::default_path, Path::to_path_buf))?;
        let directory = state.running().with_context(|| {
            let state = state.path().display();
            format!("no mesh is running with the state directory {state}; name its files instead: -f FILE|DIR")
        })?;
        let applied = Applied::of(&state, &directory).folder().to_owned();
        let mut all = Self { published: state.published_ports(), ..Self::default() };
        // What its command line and its environment said, not this command's.
        all.mesh = match state.running_options() {
            Some(options) => options.mesh(),
            None => mesh()?,
        };
        // The control plane's own objects: the keys that it has fetched, and registered workloads.
        let store = Store::from(&state.control());
        let own = [jwks::FOLDER, registration::FOLDER].map(|folder| store.place(folder));
        let folders = [directory, applied, state.runtime()].into_iter().chain(own);
        all.directories(folders.filter(|path| path.is_dir()).collect());
        all.objects = in_force(std::mem::take(&mut all.objects));
        // Without the file, addresses are searched as the control plane does.
        let book = store.get(ADDRESS_BOOK).ok().flatten();
        all.addresses = book.and_then(|book| serde_json::from_slice(&book).ok()).unwrap_or_default();
        Ok(all)
    }

    /// Puts the objects that name no namespace into this one.
    pub fn set_namespace(&mut self, namespace: &Arc<str>) {
        for (path, text) in &self.texts {
            let documents = evenkeel_api::documents(path, text);
            for document in documents.iter().filter(|own| own.kind.is_namespaced() && own.namespace.is_none()) {
                let is_it = |object: &&mut Object| {
                    object.kind() == document.kind
                        && object.name == document.name
                        && object.namespace == document.namespace()
                };
                if let Some(object) = self.objects.iter_mut().find(is_it) {
                    object.namespace = namespace.clone();
                }
            }
        }
    }

    /// Reads a text that is no file.
    pub fn of_text(name: &str, text: &str) -> Self {
        let mut all = Self::default();
        all.add(name.into(), text.into());
        all
    }

    fn add(&mut self, name: Arc<str>, text: Arc<str>) {
        let (objects, found) = evenkeel_api::load(&[(name.clone(), text.clone())]);
        self.texts.insert(name, text);
        self.objects.extend(objects);
        self.diagnostics.extend(found);
    }

    fn file(&mut self, path: &Path) {
        let (name, text): (Arc<str>, _) = if path == Path::new("-") {
            (STANDARD_INPUT.into(), files::read_all(io::stdin()))
        } else {
            (path.to_string_lossy().into(), files::read_text(path))
        };
        match text {
            Ok(text) => self.add(name, text.into()),
            Err(error) => self.diagnostics.push(evenkeel_api::unreadable(&name, error)),
        }
    }

    fn directory(&mut self, path: &Path) {
        if !self.directories(vec![path.to_path_buf()]) {
            let message = "there is nothing to read in this directory";
            let finding = Diagnostic::warning("no-files", Span::whole_file(path.to_string_lossy()), message);
            self.diagnostics.push(finding.with_help("only files whose names end in .yaml, .yml or .json are read"));
        }
    }

    /// Reads directories as the control plane does. Returns whether there was anything to read.
    fn directories(&mut self, paths: Vec<PathBuf>) -> bool {
        let mut files = Files::new(paths);
        files.refresh(SystemTime::now());
        self.objects.extend(files.objects());
        self.diagnostics.extend(files.diagnostics());
        for (path, _, text) in files.texts() {
            self.texts.insert(path.to_string_lossy().into(), text.into());
        }
        files.texts().next().is_some() || !files.diagnostics().is_empty()
    }

    /// Prints on standard error which documents were refused: an answer without them may be wrong.
    pub fn report_errors(&self) {
        let is_error = |finding: &Diagnostic| finding.severity == Severity::Error;
        let errors: Diagnostics = self.diagnostics.clone().into_iter().filter(is_error).collect();
        let text = errors.render(&self.sources(), io::stderr().is_terminal());
        // Nothing can be done if standard error is gone.
        let _ = io::stderr().write_all(text.as_bytes());
    }

    /// The files, for rendering findings.
    pub fn sources(&self) -> Sources {
        let mut sources = Sources::new();
        for (name, text) in &self.texts {
            sources.insert(name.clone(), text.clone());
        }
        sources
    }
}
