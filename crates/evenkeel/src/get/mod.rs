//! `evenkeel get`: objects with their status, as kubectl prints those of a cluster.

mod kinds;
mod objects;
mod table;

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::ensure;
use clap::{Args, ValueEnum};
use evenkeel_api::Document;
use serde_json::{Value, json};

use crate::formats::{self, width};
use crate::manifests::Manifests;
use crate::overrides::{self, MeshArguments};

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel get gateways,httproutes -A
  evenkeel get httproute reviews -n shop -f DIR -o yaml
  evenkeel get";

/// The namespace without `--namespace`, as kubectl's.
const DEFAULT_NAMESPACE: &str = "default";

#[derive(Debug, Args)]
pub struct GetArguments {
    /// Kinds as kubectl names them (`gateways,httproutes`, `svc`, `gateways.networking.istio.io`), with commas between them.
    #[arg(value_name = "KINDS")]
    kinds: Option<String>,

    /// Names of objects; all if none is given.
    #[arg(value_name = "NAME")]
    names: Vec<String>,

    /// Their namespace [default: default].
    #[arg(short, long, value_name = "NAME", requires = "kinds")]
    namespace: Option<String>,

    /// Objects of all namespaces.
    #[arg(short = 'A', long, requires = "kinds", conflicts_with = "namespace")]
    all_namespaces: bool,

    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR", requires = "kinds", conflicts_with = "directory")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    mesh: MeshArguments,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// How to print objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people.
    Text,
    /// Whole objects, or what has changed.
    Json,
    /// Whole objects.
    Yaml,
}

/// Prints the objects; without kinds, what `apply` and `delete` have changed. Returns 1 if a named object is missing.
pub fn run(arguments: &GetArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let Some(list) = &arguments.kinds else {
        let output = match arguments.output {
            Output::Text => formats::Output::Text,
            Output::Json => formats::Output::Json,
            Output::Yaml => anyhow::bail!("-o yaml prints objects; name their kinds: evenkeel get gateways,httproutes"),
        };
        return overrides::get(&arguments.mesh, output, out);
    };
    ensure!(arguments.mesh.directory.is_none(), "--directory is for the list of changes; name files with -f");
    let kinds = kinds::parse_list(list)?;
    let manifests = Manifests::given_or_running(&arguments.files, arguments.mesh.state.as_deref())?;
    manifests.report_errors();
    let namespace = arguments.namespace.as_deref().unwrap_or(DEFAULT_NAMESPACE);
    let namespace = Some(namespace).filter(|_| !arguments.all_namespaces);
    let selector = objects::Selector { kinds: &kinds, names: &arguments.names, namespace };
    let found = objects::select(manifests, &selector);
    match arguments.output {
        Output::Text => write!(out, "{}", table::tables(&found, &kinds, width()))?,
        Output::Json => writeln!(out, "{:#}", page(&found, &arguments.names))?,
        Output::Yaml => writeln!(out, "{}", serde_saphyr::to_string(&page(&found, &arguments.names))?.trim_end())?,
    }
    Ok(if note_missing(&found, &selector) { 1 } else { 0 })
}

/// What programs read: the object that was named, or else a list.
fn page(found: &[Document], names: &[String]) -> Value {
    match (found, names) {
        ([one], [_]) => one.json.clone(),
        _ => {
            let items: Vec<&Value> = found.iter().map(|document| &document.json).collect();
            json!({ "apiVersion": "v1", "kind": "List", "items": items })
        }
    }
}

/// Says on standard error what was not found. Returns whether a named object is missing.
fn note_missing(found: &[Document], selector: &objects::Selector<'_>) -> bool {
    let place = selector.namespace.map(|name| format!(" in the namespace {name} (-A: in all)")).unwrap_or_default();
    let is_missing = |name: &&String| !found.iter().any(|document| *document.name == ***name);
    let missing: Vec<&String> = selector.names.iter().filter(is_missing).collect();
    // Nothing can be done if standard error is gone.
    for name in &missing {
        let _ = writeln!(io::stderr(), "no object of these kinds has the name {name}{place}");
    }
    if found.is_empty() && missing.is_empty() {
        let _ = writeln!(io::stderr(), "no objects of these kinds{place}");
    }
    !missing.is_empty()
}
