//! The plugin on a node: its file among those of other plugins, and its entry in the network configuration that the runtime uses.
//!
//! Files are replaced as a whole: the runtime reads them at any time.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::PLUGIN;
use crate::configuration::Settings;

/// Where a node has its plugins and their configuration.
#[derive(Debug, Clone)]
pub struct Node {
    /// The folder of plugins, `/opt/cni/bin` on most nodes.
    pub programs: PathBuf,
    /// The folder of network configurations, `/etc/cni/net.d` on most nodes.
    pub configurations: PathBuf,
}

/// Why the plugin is not in place.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// No configuration is there to be chained behind.
    #[error("{0} has no network configuration (*.conflist) yet: the plugin is chained behind one")]
    NoConfiguration(PathBuf),
    /// The configuration in use is a single plugin.
    #[error("{0} is the configuration of a single plugin; the plugin can be chained only in a *.conflist")]
    Single(PathBuf),
    /// The configuration has another form.
    #[error("{0} is no network configuration: it has no list `plugins`")]
    Form(PathBuf),
}

impl Node {
    /// Copies the plugin, the program `source`.
    pub fn install_program(&self, source: &Path) -> Result<(), InstallError> {
        let content = fs::read(source).map_err(failed(source))?;
        replace(&self.programs.join(PLUGIN), &content, 0o755)
    }

    /// Adds the plugin to the configuration that the runtime uses, or corrects its entry; returns whether anything changed.
    pub fn install_entry(&self, settings: &Settings) -> Result<bool, InstallError> {
        let path = self.configuration()?;
        let content = fs::read(&path).map_err(failed(&path))?;
        let mut list = parse(&path, &content)?;
        let mut entry = json!(settings);
        if let Some(fields) = entry.as_object_mut() {
            fields.insert("type".to_owned(), PLUGIN.into());
        }
        let plugins = plugins_of(&path, &mut list)?;
        plugins.retain(|plugin| !is_ours(plugin));
        plugins.push(entry);
        if parse(&path, &content)? == list {
            return Ok(false);
        }
        write_list(&path, &list)?;
        Ok(true)
    }

    /// Removes the plugin's entry and the plugin. Pods that start afterwards are not captured.
    pub fn remove(&self) -> Result<(), InstallError> {
        for path in self.candidates()? {
            let content = fs::read(&path).map_err(failed(&path))?;
            // What is no configuration has no entry.
            let Ok(mut list) = parse(&path, &content) else { continue };
            let Ok(plugins) = plugins_of(&path, &mut list) else { continue };
            let count = plugins.len();
            plugins.retain(|plugin| !is_ours(plugin));
            if plugins.len() < count {
                write_list(&path, &list)?;
            }
        }
        let program = self.programs.join(PLUGIN);
        match fs::remove_file(&program) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&program)(error)),
            _ => Ok(()),
        }
    }

    /// The configuration that the runtime uses: the first one by name.
    fn configuration(&self) -> Result<PathBuf, InstallError> {
        let first = self.candidates()?.into_iter().next();
        let first = first.ok_or_else(|| InstallError::NoConfiguration(self.configurations.clone()))?;
        if first.extension().is_some_and(|extension| extension == "conflist") {
            Ok(first)
        } else {
            Err(InstallError::Single(first))
        }
    }

    /// The files that a runtime takes for network configurations, in its order.
    fn candidates(&self) -> Result<Vec<PathBuf>, InstallError> {
        let folder = &self.configurations;
        let entries = fs::read_dir(folder).map_err(failed(folder))?;
        let is_configuration = |path: &PathBuf| {
            path.extension().is_some_and(|name| ["conflist", "conf", "json"].iter().any(|known| name == *known))
        };
        let mut found: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_configuration).collect();
        found.sort();
        Ok(found)
    }
}

fn parse(path: &Path, content: &[u8]) -> Result<Value, InstallError> {
    serde_json::from_slice(content).map_err(|error| failed(path)(error.into()))
}

fn plugins_of<'l>(path: &Path, list: &'l mut Value) -> Result<&'l mut Vec<Value>, InstallError> {
    list.get_mut("plugins").and_then(Value::as_array_mut).ok_or_else(|| InstallError::Form(path.to_owned()))
}

fn is_ours(plugin: &Value) -> bool {
    plugin.get("type").and_then(Value::as_str) == Some(PLUGIN)
}

fn write_list(path: &Path, list: &Value) -> Result<(), InstallError> {
    let mut text = serde_json::to_vec_pretty(list).map_err(|error| failed(path)(error.into()))?;
    text.push(b'\n');
    // It may have others' credentials.
    replace(path, &text, 0o600)
}

/// Writes a file beside its place and renames it. The name has no extension that a runtime reads.
fn replace(path: &Path, content: &[u8], mode: u32) -> Result<(), InstallError> {
    let staging = path.with_file_name(format!(".{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
    let write = || -> io::Result<()> {
        match fs::remove_file(&staging) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&staging)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&staging, path)
    };
    write().map_err(failed(path))
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    |source| InstallError::Io { path: path.to_owned(), source }
}
