//! Reads the bootstrap file, merges it with the command line, and checks it; every error has a location.

use std::fmt;
use std::io;
use std::path::PathBuf;

use evenkeel_base::yaml::Node as Tree;
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_runtime_config::bootstrap::Bootstrap;
use evenkeel_runtime_config::{Environment, Problem};
use evenkeel_xds::Schema;
use evenkeel_xds::evenkeel::CONFINEMENT_METADATA;
use evenkeel_xds::json::{Read, read_text};
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;
use evenkeel_xds::pb::envoy::config::core::v3::{Locality, Node, node};
use evenkeel_xds::pb::google::protobuf::{Value, value::Kind};

use crate::options::{BootstrapSource, NodeOverrides};

/// Maximum size of a bootstrap, in bytes.
pub const MAX_BOOTSTRAP_BYTES: u64 = 64 * 1024 * 1024;

/// A bootstrap that was read and checked.
#[derive(Debug)]
pub struct Loaded {
    /// The resulting settings.
    pub bootstrap: Bootstrap,
    /// As it was written, for `/config_dump`.
    pub message: pb::Bootstrap,
    tree: Option<Tree>,
}

/// Why the process does not start.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The file cannot be read.
    #[error("cannot read the bootstrap {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// Its content is invalid.
    #[error("{}", Lines(.0))]
    Invalid(Diagnostics),
}

/// Formats one error per line.
struct Lines<'a>(&'a Diagnostics);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, diagnostic) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{diagnostic}")?;
        }
        if self.0.iter().any(is_about_support) {
            write!(f, "\nhelp: {WAY_OUT}")?;
        }
        Ok(())
    }
}

/// Reads and checks a bootstrap.
pub fn load(source: &BootstrapSource, overrides: &NodeOverrides) -> Result<Loaded, BootstrapError> {
    load_in(source, overrides, &Environment::process())
}

/// The same for a process with filters of its own.
pub(crate) fn load_in(
    source: &BootstrapSource,
    overrides: &NodeOverrides,
    environment: &Environment,
) -> Result<Loaded, BootstrapError> {
    let mut message = pb::Bootstrap::default();
    let (mut tree, mut encoded) = (None, Vec::new());
    if let Some(path) = &source.path {
        let text = read_file(path)?;
        let read = checked(&path.display().to_string(), &text)?;
        message = read.message.unwrap_or_default();
        encoded = read.encoded;
        tree = read.tree;
    }
    if let Some(text) = &source.text {
        let read = checked("--config-yaml", text)?;
        merge(&mut message, read.message.unwrap_or_default());
        encoded.extend(read.encoded);
        // With two sources, a path does not tell which text it refers to, so errors have no location besides the
        // field's path.
        tree = if source.path.is_none() { read.tree } else { None };
    }
    message.node = Some(with_overrides(message.node.take().unwrap_or_default(), overrides));
    let bootstrap = Bootstrap::new(&message, environment);
    let loaded = |bootstrap| Loaded { bootstrap, message, tree: tree.clone() };
    match bootstrap {
        Ok(mut bootstrap) => {
            for warning in &bootstrap.warnings {
                let Problem { path, reason } = warning;
                let span = span_of(tree.as_ref(), path);
                tracing::warn!("{}", Diagnostic::warning("bootstrap", span, format!("{path}: {reason}")));
            }
            bootstrap.take_clusters(&encoded);
            name_agent(&mut bootstrap.node);
            Ok(loaded(bootstrap))
        }
        Err(rejection) => {
            let problems = rejection.problems.iter().map(|problem| diagnostic(tree.as_ref(), "", problem));
            Err(BootstrapError::Invalid(problems.collect()))
        }
    }
}

impl Loaded {
    /// The errors of a static resource, at their locations in the file. `list` is `listeners` or `clusters`.
    pub fn resource_error(&self, list: &str, index: usize, problems: &[Problem]) -> BootstrapError {
        let prefix = format!("static_resources.{list}[{index}]");
        let problems = problems.iter().map(|problem| diagnostic(self.tree.as_ref(), &prefix, problem));
        BootstrapError::Invalid(problems.collect())
    }
}

fn diagnostic(tree: Option<&Tree>, prefix: &str, problem: &Problem) -> Diagnostic {
    let path = match (prefix, problem.path.as_str()) {
        ("", path) => path.to_owned(),
        (prefix, "") => prefix.to_owned(),
        (prefix, path) => format!("{prefix}.{path}"),
    };
    Diagnostic::error("bootstrap", span_of(tree, &path), format!("{path}: {}", problem.reason))
}

fn span_of(tree: Option<&Tree>, path: &str) -> Span {
    tree.map(|tree| tree.span_of_path(path).clone()).unwrap_or_default()
}

/// The way out for what is not supported; said once, after all errors.
const WAY_OUT: &str = "take out what is not supported, or run this file with Envoy; docs/proxy-xds-fields.md lists the fields and \
                       extensions that are";

/// Whether an error says that a field or an extension is not supported, whichever reader found it.
fn is_about_support(diagnostic: &Diagnostic) -> bool {
    diagnostic.message.ends_with("not supported")
}

fn read_file(path: &PathBuf) -> Result<String, BootstrapError> {
    let unreadable = |error| BootstrapError::Unreadable { path: path.clone(), error };
    let length = std::fs::metadata(path).map_err(unreadable)?.len();
    if length > MAX_BOOTSTRAP_BYTES {
        let reason = format!("it has {length} bytes, more than {MAX_BOOTSTRAP_BYTES}");
        return Err(unreadable(io::Error::other(reason)));
    }
    std::fs::read_to_string(path).map_err(unreadable)
}

fn checked(file: &str, text: &str) -> Result<Read<pb::Bootstrap>, BootstrapError> {
    let read = read_text::<pb::Bootstrap>(&Schema::acquire(), file, text);
    if read.diagnostics.has_errors() {
        return Err(BootstrapError::Invalid(read.diagnostics));
    }
    // What is left are warnings.
    read.diagnostics.iter().for_each(|diagnostic| tracing::warn!("{diagnostic}"));
    Ok(read)
}

/// Merges as protobuf does: scalar fields of `over` replace those of `base`, repeated ones are appended.
fn merge(base: &mut pb::Bootstrap, over: pb::Bootstrap) {
    use prost::Message as _;
    // Decoding what was just encoded cannot fail.
    _ = base.merge(&*over.encode_to_vec());
}

fn with_overrides(mut node: Node, overrides: &NodeOverrides) -> Node {
    if let Some(id) = &overrides.id {
        node.id.clone_from(id);
    }
    if let Some(cluster) = &overrides.cluster {
        node.cluster.clone_from(cluster);
    }
    if let Some(zone) = &overrides.zone {
        node.locality.get_or_insert_with(Locality::default).zone.clone_from(zone);
    }
    node
}

/// Tells xDS servers which program this is.
fn name_agent(node: &mut Node) {
    "evenkeel".clone_into(&mut node.user_agent_name);
    let version = env!("CARGO_PKG_VERSION").to_owned();
    node.user_agent_version_type = Some(node::UserAgentVersionType::UserAgentVersion(version));
}

/// Tells control planes how this process is confined.
pub fn tell_confinement(node: &mut Node, state: String) {
    let value = Value { kind: Some(Kind::StringValue(state)) };
    let metadata = node.metadata.get_or_insert_with(Default::default);
    metadata.fields.insert(CONFINEMENT_METADATA.to_owned(), value);
}

/// How long the first answer of LDS or CDS is awaited before the proxy becomes ready without it.
pub fn initial_fetch_timeout(
    source: Option<&evenkeel_xds::pb::envoy::config::core::v3::ConfigSource>,
) -> Option<std::time::Duration> {
    // Envoy's default; 0 waits for ever.
    const DEFAULT: std::time::Duration = std::time::Duration::from_secs(15);
    let Some(timeout) = source.and_then(|source| source.initial_fetch_timeout.as_ref()) else { return Some(DEFAULT) };
    let seconds = u64::try_from(timeout.seconds).unwrap_or(0);
    let timeout = std::time::Duration::new(seconds, u32::try_from(timeout.nanos).unwrap_or(0).min(999_999_999));
    (!timeout.is_zero()).then_some(timeout)
}
