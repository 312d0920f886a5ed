//! The plugin on a node: its file among those of other plugins, and its entry in the network configuration that the runtime uses.
//!
//! Files are replaced as a whole: the runtime reads them at any time.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::PLUGIN;
use crate::configuration::{Settings, VERSIONS};

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
    /// Another configuration comes before the plugin's own one.
    #[error(
        "{other} comes before {own} by name, so the runtime uses it: give the plugin's own configuration a name before it"
    )]
    Order {
        /// The plugin's own configuration.
        own: PathBuf,
        /// The one before it.
        other: PathBuf,
    },
    /// The name of the own configuration is none.
    #[error("`{0}` is no name of a network configuration: expected NAME.conflist, without a folder")]
    Name(String),
    /// The configuration has another form.
    #[error("{0} is no network configuration: it has neither a list `plugins` nor the type of a plugin")]
    Form(PathBuf),
}

/// Where the plugin's entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placement {
    /// In the configuration that the runtime uses, behind its plugins. If that one is a single plugin, which cannot be followed by
    /// others, in an own configuration with it.
    Chained,
    /// In a configuration of its own of this name, with the plugins of the one that the runtime would use. Others' files stay as they are.
    Own(String),
    /// In a configuration of its own of this name, with no other plugin: for Multus, which runs it beside the Pod's network.
    Alone(String),
}

/// The name of an own configuration that nobody has asked for. It comes before those of most others.
const OWN_NAME: &str = "02-evenkeel-cni.conflist";
/// A field by which own configurations are recognized; runtimes ignore it.
const MARK: &str = "evenkeelOwn";
/// The version of a configuration that names none: those before have another form of results.
const OLDEST: &str = "0.3.1";

impl Node {
    /// Copies the plugin, the program `source`.
    pub fn install_program(&self, source: &Path) -> Result<(), InstallError> {
        let content = fs::read(source).map_err(failed(source))?;
        replace(&self.programs.join(PLUGIN), &content, 0o755)
    }

    /// Whether the copy of the program `source` is in place.
    pub fn has_program(&self, source: &Path) -> bool {
        let found = [source, &self.programs.join(PLUGIN)].map(|path| fs::metadata(path).ok());
        let [Some(own), Some(copy)] = found else { return false };
        own.len() == copy.len() && copy.mode() & 0o111 == 0o111
    }

    /// Puts the plugin into the configuration that the runtime uses, or corrects its entry; returns whether anything changed.
    pub fn install_entry(&self, placement: &Placement, settings: &Settings) -> Result<bool, InstallError> {
        let alone = matches!(placement, Placement::Alone(_));
        let mut entry = json!(Settings { standalone: alone, ..settings.clone() });
        if let Some(fields) = entry.as_object_mut() {
            fields.insert("type".to_owned(), PLUGIN.into());
        }
        let name = own_name(placement)?;
        let first = self.others()?.into_iter().next();
        match (placement, first) {
            (Placement::Alone(_), _) => {
                let list = json!({"cniVersion": VERSIONS[3], "name": PLUGIN, MARK: true, "plugins": [entry]});
                let changed = self.write_own(name, &list)?;
                Ok(self.unchain()? || changed)
            }
            (_, None) => {
                // A copy of what is gone would let the runtime go on with a network that nobody looks after.
                self.remove_own(None)?;
                Err(InstallError::NoConfiguration(self.configurations.clone()))
            }
            (Placement::Chained, Some(first)) if is_list(&first) => {
                // The own one goes last: Pods that start in between would not be captured.
                let changed = chain(&first, entry)?;
                Ok(self.remove_own(None)? || changed)
            }
            (_, Some(first)) => {
                let own = self.configurations.join(name);
                if own > first {
                    return Err(InstallError::Order { own, other: first });
                }
                let list = with_plugins_of(&first, entry)?;
                let changed = self.write_own(name, &list)?;
                Ok(self.unchain()? || changed)
            }
        }
    }

    /// Removes the plugin's entry, its own configuration, and the plugin. Pods that start afterwards are not captured.
    pub fn remove(&self) -> Result<(), InstallError> {
        self.remove_own(None)?;
        self.unchain()?;
        let program = self.programs.join(PLUGIN);
        match fs::remove_file(&program) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&program)(error)),
            _ => Ok(()),
        }
    }

    /// Removes the plugin's entry from the configurations of others; returns whether there was one.
    fn unchain(&self) -> Result<bool, InstallError> {
        let mut changed = false;
        for path in self.others()? {
            let content = fs::read(&path).map_err(failed(&path))?;
            // What is no configuration has no entry.
            let Ok(mut list) = parse(&path, &content) else { continue };
            let Ok(plugins) = plugins_of(&path, &mut list) else { continue };
            let count = plugins.len();
            plugins.retain(|plugin| !is_ours(plugin));
            if plugins.len() < count {
                write_list(&path, &list)?;
                changed = true;
            }
        }
        Ok(changed)
    }

    /// Writes the own configuration, and removes earlier ones of other names; returns whether anything changed.
    fn write_own(&self, name: &str, list: &Value) -> Result<bool, InstallError> {
        let path = self.configurations.join(name);
        let present = fs::read(&path).ok().and_then(|content| parse(&path, &content).ok());
        let is_there = present.as_ref() == Some(list);
        if !is_there {
            write_list(&path, list)?;
        }
        Ok(self.remove_own(Some(&path))? || !is_there)
    }

    /// Removes own configurations, except one; returns whether there was one.
    fn remove_own(&self, except: Option<&Path>) -> Result<bool, InstallError> {
        let mut changed = false;
        for path in self.candidates()?.into_iter().filter(|path| is_own(path) && Some(path.as_path()) != except) {
            fs::remove_file(&path).map_err(failed(&path))?;
            changed = true;
        }
        Ok(changed)
    }

    /// The files that a runtime takes for network configurations, in its order, without own ones.
    fn others(&self) -> Result<Vec<PathBuf>, InstallError> {
        Ok(self.candidates()?.into_iter().filter(|path| !is_own(path)).collect())
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

/// The name of the own configuration.
fn own_name(placement: &Placement) -> Result<&str, InstallError> {
    let (Placement::Own(name) | Placement::Alone(name)) = placement else { return Ok(OWN_NAME) };
    let is_plain = !name.contains('/') && !name.starts_with('.') && is_list(Path::new(name));
    if is_plain { Ok(name) } else { Err(InstallError::Name(name.clone())) }
}

fn is_list(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "conflist")
}

fn is_own(path: &Path) -> bool {
    let list = fs::read(path).ok().and_then(|content| parse(path, &content).ok());
    list.is_some_and(|list| list[MARK] == true)
}

/// Puts the entry behind the plugins of a configuration; returns whether anything changed.
fn chain(path: &Path, entry: Value) -> Result<bool, InstallError> {
    let content = fs::read(path).map_err(failed(path))?;
    let mut list = parse(path, &content)?;
    let plugins = plugins_of(path, &mut list)?;
    plugins.retain(|plugin| !is_ours(plugin));
    plugins.push(entry);
    if parse(path, &content)? == list {
        return Ok(false);
    }
    write_list(path, &list)?;
    Ok(true)
}

/// An own configuration with the plugins of another one, and the entry behind them.
fn with_plugins_of(path: &Path, entry: Value) -> Result<Value, InstallError> {
    let content = fs::read(path).map_err(failed(path))?;
    let mut list = parse(path, &content)?;
    if !is_list(path) {
        list = list_of_single(path, list)?;
    }
    let plugins = plugins_of(path, &mut list)?;
    plugins.retain(|plugin| !is_ours(plugin));
    plugins.push(entry);
    list[MARK] = true.into();
    Ok(list)
}

/// The configuration of a single plugin as a list of one.
fn list_of_single(path: &Path, mut plugin: Value) -> Result<Value, InstallError> {
    let fields = plugin.as_object_mut().filter(|fields| fields.contains_key("type"));
    let fields = fields.ok_or_else(|| InstallError::Form(path.to_owned()))?;
    // In a list they are the list's.
    let version = fields.remove("cniVersion").unwrap_or_else(|| OLDEST.into());
    let name = fields.remove("name").unwrap_or_else(|| "pods".into());
    Ok(json!({"cniVersion": version, "name": name, "plugins": [plugin]}))
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
